"""Guards the table of kinds: its functions exist, refusals are sentences, and every kind of model is a `LabelModel`."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

import reference
from aplc import Tagger
from aplc.config import Config
from aplc.data.corpus import Corpus
from aplc.data.source import Source
from aplc.errors import ModelError
from aplc.models.base import KINDS, Deferred, LabelModel, function_for, require, training_of
from aplc.models.network import TaggingModel
from aplc.store.folder import load_tagger
from aplc.train.run import train
from aplc.words.model import WordsModel
from helpers import aplc, fails, ok

FUNCTIONS = [(name, entry, value) for name, kind in KINDS.items() for part in (kind, kind.training) if part
             for entry, value in vars(part).items() if isinstance(value, Deferred)]  # fmt: skip
REFUSALS = [(name, ability) for name, kind in KINDS.items() for ability in kind.cannot]
TEXTS = ["violin and rain", "a dog in the snow", "", "bread soup cheese " * 200]


@pytest.mark.parametrize(("kind", "entry", "function"), FUNCTIONS, ids=lambda part: getattr(part, "place", part))
def test_every_function_of_the_table_exists(kind, entry, function):
    assert callable(function.resolve())


@pytest.mark.parametrize("kind", KINDS)
def test_an_ability_comes_with_its_function_and_a_function_with_its_ability(kind):
    entry = KINDS[kind]
    for ability in ("learn", "add_labels", "export"):
        assert (getattr(entry, ability) is not None) == (ability in entry.abilities), ability
        if ability in entry.abilities:
            assert function_for(kind, ability) is getattr(entry, ability)
    assert entry.training is not None or "clusters" not in entry.abilities


@pytest.mark.parametrize("kind", KINDS)
def test_sections_that_have_an_effect_are_sections_of_the_configuration(kind):
    assert set(KINDS[kind].sections) <= Config().to_dict().keys()


@pytest.mark.parametrize(("kind", "ability"), REFUSALS)
def test_a_refusal_is_one_sentence(kind, ability):
    for where, start in (("", ""), ("models/mine", "models/mine: ")):
        with pytest.raises(ModelError) as caught:
            require(kind, ability, where)
        message = str(caught.value)
        assert message.startswith(start)
        assert "\n" not in message
        assert "; " in message or ": " in message.removeprefix(start)  # then follows what to do instead


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_kind_can_do_is_not_refused(kind):
    for ability in KINDS[kind].abilities:
        require(kind, ability)


def of_kind(kind):
    return replace(Config(), model=replace(Config().model, kind=kind))


def test_an_exported_model_is_not_trained():
    assert training_of(of_kind("words")) is KINDS["words"].training
    with pytest.raises(ModelError, match=r"model.kind = 'exported' .*; choose one of network, words, both$"):
        training_of(of_kind("exported"))


def test_training_an_exported_model_fails_in_one_line(corpus, tmp_path):
    done = aplc("train", corpus, "--out", tmp_path / "model", "--set", "model.kind=exported")
    fails(done, "model.kind = 'exported'", "network, words, both")
    assert not (tmp_path / "model").exists()


@pytest.fixture(scope="module")
def words(corpus, tmp_path_factory):
    """A model folder with a words model."""
    out = tmp_path_factory.mktemp("words") / "model"
    train(Source.from_corpus(Corpus.open(corpus)), Config.from_preset("words"), out)
    return out


@pytest.fixture(params=["network", "words"])
def model(request):
    """`tests/predict/test_export.py` has the same tests for an exported one."""
    folder = request.getfixturevalue({"network": "trained"}.get(request.param, request.param))
    return load_tagger(folder).model


def test_a_model_has_all_that_label_models_have(model):
    assert [name for name in vars(LabelModel) if not name.startswith("_") and not hasattr(model, name)] == []
    assert isinstance(model, {"network": TaggingModel, "words": WordsModel}[model.kind])
    assert (model.bounds[0], model.bounds[-1]) == (0, model.n_labels)
    assert model.batch_size >= 1


@pytest.mark.parametrize("k", [1, 3, 6, 9])
def test_topk_matches_reference(model, k):
    """The slow twin sorts all labels by `probability_of`."""
    states = model.read(model.prepare(TEXTS))
    every = np.stack([model.probability_of(states, label) for label in range(model.n_labels)], 1)
    for allowed in (None, np.array([True, False, True, False, False, True])):
        ids, probs = model.topk(states, k, allowed)
        expected = reference.best_labels(every, min(k, model.n_labels), allowed)
        assert ids.tolist() == [[label for label, _ in row] for row in expected]
        assert np.allclose(probs, [[p for _, p in row] for row in expected], atol=1e-6)


def former(folder, copy, **model_settings):
    """A copy of a model folder as versions before 0.2 wrote it: format 1, and no name of a kind."""
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    config["format"] = 1
    del config["config"]["model"]["kind"]
    config["config"]["model"] |= model_settings
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def test_a_network_of_the_former_format_is_read_and_predicts_the_same(trained, tmp_path):
    old = former(trained, tmp_path / "old")
    assert load_tagger(old).model.kind == "network"
    found, expected = (Tagger.from_pretrained(folder).predict(TEXTS, top_k=6) for folder in (old, trained))
    assert found == expected


def test_a_network_of_the_former_format_is_saved_in_the_new_one(trained, tmp_path):
    old = former(trained, tmp_path / "old")
    ok(aplc("labels", "retire", old, "food"))
    config = json.loads((old / "config.json").read_text())
    assert (config["format"], config["config"]["model"]["kind"]) == (2, "network")
    assert "food" not in dict(Tagger.from_pretrained(old).predict("bread soup", top_k=6))


def test_a_words_model_of_the_former_format_is_refused_with_what_to_do(words, corpus, tmp_path):
    old = former(words, tmp_path / "old", encoder="words")
    with pytest.raises(ModelError, match=r"earlier version.* train it again: aplc train CORPUS --preset words"):
        load_tagger(old)
    fails(aplc("evaluate", old, corpus), "train it again")


def with_kind(folder, copy, kind):
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    config["config"]["model"]["kind"] = kind
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def predict_with(folder, tmp_path):
    return aplc("predict", folder, "-", "--out", tmp_path / "x.jsonl", stdin='{"text": "cat"}\n')


@pytest.mark.parametrize("kind", ["neither", "", 3, ["words"], {"a": 1}])
def test_an_unknown_kind_is_refused_in_one_line(trained, tmp_path, kind):
    fails(predict_with(with_kind(trained, tmp_path / "odd", kind), tmp_path), "kind")


@pytest.mark.parametrize("pretended", ["words", "exported", "network"])
def test_a_folder_of_another_kind_than_it_says_is_refused_in_one_line(trained, words, tmp_path, pretended):
    folder = trained if pretended == "words" else words
    fails(predict_with(with_kind(folder, tmp_path / "odd", pretended), tmp_path), "odd")
