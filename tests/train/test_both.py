"""Guards words and a network in one model: two parts in a folder, blended, resumed, evaluated, used like any other."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from scipy.special import expit

import reference
from aplc import Tagger
from aplc.config import Config
from aplc.data.corpus import Corpus
from aplc.data.source import Source
from aplc.errors import AplcError
from aplc.models.blend import Blend
from aplc.models.both import BothModel
from aplc.predict.explain import explain
from aplc.store.folder import load_tagger, save_tagger
from aplc.train import loop
from aplc.train.run import train
from helpers import SMALL, Recorder, aplc, as_options, assert_same_weights, fails, ok, with_both_parts

BOTH = [*SMALL, "model.kind=both", "data.validation=0.2", "train.epochs=2"]
TEXTS = ["violin and rain", "a dog in the snow", "", "bread soup cheese " * 200]


def run(corpus, out, *settings, resume=False, screen=None):
    config = Config.from_preset("tiny").with_settings([*BOTH, *settings])
    return train(Source.from_corpus(Corpus.open(corpus)), config, out, resume=resume, screen=screen)


@pytest.fixture(scope="module")
def both(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("both") / "model"
    run(corpus, out)
    return out


@pytest.fixture(scope="module")
def blended(both):
    """The same with a blend in which both parts count: the words alone solve this corpus."""
    return with_both_parts(load_tagger(both))


def test_topk_matches_reference(blended):
    """The slow twin blends the parts' own probabilities, a label at a time."""
    model = blended.model
    batch = model.prepare(TEXTS)
    words, network = model.words.read(batch[0]), model.network.read(batch[1])
    expected = np.empty((len(TEXTS), 6))
    for label in range(6):
        opinions = words[:, label], model.network.probability_of(network, label)
        for i, (w, v) in enumerate(zip(*opinions, strict=True)):
            expected[i, label] = reference.blended_probability(model.blend.curve_3L[:, label], w, v)
    states = model.read(batch)
    for k, allowed in ((1, None), (4, None), (9, None), (3, np.array([True, False, True, False, False, True]))):
        ids, probs = model.topk(states, k, allowed)
        best = reference.best_labels(expected, min(k, 6), allowed)
        assert ids.tolist() == [[label for label, _ in row] for row in best]
        assert np.allclose(probs, [[p for _, p in row] for row in best], atol=1e-4)
    for label in range(6):
        assert np.allclose(model.probability_of(states, label), expected[:, label], atol=1e-4)


def test_a_text_gets_the_same_labels_in_any_company(blended):
    tagger = Tagger()
    tagger._trained = blended
    together = tagger.predict(TEXTS, top_k=6)
    alone = [tagger.predict(text, top_k=6) for text in TEXTS]
    for one, other in zip(together, alone, strict=True):
        assert dict(one) == pytest.approx(dict(other), abs=1e-5)


def test_a_useless_network_costs_nothing(corpus, tmp_path):
    """One step from random weights: labels and probabilities are those of the words alone."""
    screen = Recorder()
    run(corpus, tmp_path / "both", "data.validation=0.5", "train.max_documents=16", screen=screen)
    assert "blend: words alone; the network adds nothing" in screen.text
    run(corpus, tmp_path / "words", "data.validation=0.5", "model.kind=words")
    assert not load_tagger(tmp_path / "both").model.blend.uses_network
    one, other = (Tagger.from_pretrained(tmp_path / name).predict(TEXTS, top_k=6) for name in ("both", "words"))
    assert one == other


def test_a_network_that_does_not_count_is_not_run(both, monkeypatch):
    model = load_tagger(both).model
    curve = np.stack([np.arange(6), np.arange(6), np.zeros(6)]).astype(np.float32)
    model = replace(model, blend=Blend(curve))
    monkeypatch.setattr(model.network, "read", lambda batch: pytest.fail("the network was run"))
    batch = model.prepare(TEXTS)
    expected = expit(curve[0] + curve[1] * model.words.read(batch[0]))
    ids, probs = model.topk(model.read(batch), 6)
    assert np.allclose(np.take_along_axis(expected, ids, 1), probs, atol=1e-6)


def test_folder_survives_saving(blended, tmp_path):
    save_tagger(blended, tmp_path / "copy")
    again = load_tagger(tmp_path / "copy")
    assert isinstance(again.model, BothModel)
    one, other = (tagged.model.topk(tagged.model.read(tagged.model.prepare(TEXTS)), 6) for tagged in (blended, again))
    assert np.array_equal(one[0], other[0])
    assert np.allclose(one[1], other[1], atol=1e-6)


@pytest.mark.parametrize("stop_at", [0, 5, 13])
def test_resumed_run_equals_uninterrupted_one(corpus, tmp_path, both, stop_at, monkeypatch):
    step, screen = loop.train_step, Recorder()

    def dying(running, batch, rate):
        if running.progress.step == stop_at:
            raise MemoryError
        return step(running, batch, rate)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "train_step", dying)
        with pytest.raises(MemoryError):
            run(corpus, tmp_path / "parts", "train.checkpoint_steps=3")
    if stop_at == 13:  # usable from the first epoch on
        assert not load_tagger(tmp_path / "parts").model.blend.uses_network
    run(corpus, tmp_path / "whole", "train.checkpoint_steps=3")
    run(corpus, tmp_path / "parts", "train.checkpoint_steps=3", resume=True, screen=screen)
    assert "words: found in the folder, not fitted again" in screen.text
    assert "ridge regression" not in screen.text
    for name in ("model", "words", "blend"):
        one, other = ((tmp_path / run_ / f"{name}.safetensors").read_bytes() for run_ in ("whole", "parts"))
        assert one == other, name


def test_the_parts_words_are_those_of_a_words_model(corpus, both, tmp_path):
    run(corpus, tmp_path / "words", "model.kind=words")
    assert (tmp_path / "words" / "model.safetensors").read_bytes() == (both / "words.safetensors").read_bytes()


def test_the_parts_network_is_that_of_a_network_model(corpus, both, tmp_path):
    run(corpus, tmp_path / "network", "model.kind=network")
    assert_same_weights(tmp_path / "network", both)


def test_evaluate_shows_three_rows(both, corpus, tmp_path):
    shown = ok(aplc("evaluate", both, corpus, "--json", tmp_path / "e.json", "--report", tmp_path / "r.html"))
    for name in ("words alone", "network alone", "both"):
        assert re.search(rf"^{name} +\d", shown, flags=re.MULTILINE), shown
    figures = json.loads((tmp_path / "e.json").read_text())
    assert set(figures["parts"]) == {"words", "network"}
    low, high = figures["gains"]["network"]["P@1"][1:]
    assert low <= figures["metrics"]["P@1"] - figures["parts"]["network"]["P@1"] <= high
    assert "network alone" in (tmp_path / "r.html").read_text()


def test_each_row_is_what_the_part_has_by_itself(both, corpus, tmp_path):
    """`--set model.kind=words` and `network` train the very parts."""
    ok(aplc("evaluate", both, corpus, "--json", tmp_path / "both.json"))
    parts = json.loads((tmp_path / "both.json").read_text())["parts"]
    for kind in ("words", "network"):
        run(corpus, tmp_path / kind, f"model.kind={kind}")
        (tmp_path / kind / "calibration.json").unlink()
        config = json.loads((tmp_path / kind / "config.json").read_text())
        del config["files"]
        (tmp_path / kind / "config.json").write_text(json.dumps(config))
        ok(aplc("evaluate", tmp_path / kind, corpus, "--json", tmp_path / f"{kind}.json"))
        alone = json.loads((tmp_path / f"{kind}.json").read_text())["metrics"]
        for name in ("P@1", "P@3", "P@5", "PSP@5", "nDCG@5"):
            assert parts[kind][name] == pytest.approx(alone[name], abs=1e-6), (kind, name)


def test_labels_can_be_renamed_merged_and_retired(both, tmp_path):
    folder = shutil.copytree(both, tmp_path / "model")
    ok(aplc("labels", "rename", folder, "food", "meals"))
    ok(aplc("labels", "merge", folder, "vehicles", "--into", "meals"))
    ok(aplc("labels", "retire", folder, "rare"))
    names = {name for name, _ in Tagger.from_pretrained(folder).predict("car bread quark", top_k=6)}
    assert "meals" in names
    assert not names & {"food", "vehicles", "rare"}


def test_explains(blended):
    found = explain(blended, "the violin", "music, classical")
    assert found.read == len("the violin")
    the, violin = (part.effect for part in found.parts)
    assert violin > the


def test_what_it_cannot_do_is_said_in_one_line(both, corpus, tmp_path):
    fails(aplc("export", both, "--out", tmp_path / "x"), "can't be exported")
    fails(aplc("ablate", "clusters", corpus, "--preset", "both", "--out", tmp_path / "y"), "model.kind=network")


def test_both_parts_learn_from_more_documents(both):
    tagger = Tagger.from_pretrained(both)
    before = tagger.trained.model
    after = tagger.partial_fit(["a cat"], [["animals"]]).trained.model
    assert not np.array_equal(before.words.index.weight, after.words.index.weight)
    assert any((a != b).any() for a, b in zip(before.network.parameters(), after.network.parameters(), strict=True))


def test_card_says_what_is_read(both):
    card = (both / "README.md").read_text()
    assert "blended by how frequent a label is" in card
    assert "The words part reads texts whole" in card


@pytest.mark.parametrize("name", ["words.safetensors", "blend.safetensors"])
def test_damaged_part_is_named(both, tmp_path, name):
    folder = shutil.copytree(both, tmp_path / "model")
    (folder / name).write_bytes((folder / name).read_bytes()[:-1] + b"x")
    fails(aplc("predict", folder, "-", "--out", "-", stdin="{}"), name)
    (folder / name).unlink()
    fails(aplc("predict", folder, "-", "--out", "-", stdin="{}"), name)


@pytest.mark.parametrize(
    "curve", [np.full((3, 6), value, dtype=np.float32) for value in (np.nan, np.inf, -1, 1e30)] + [np.ones((3, 5))]
)
def test_untrusted_blend_is_refused(both, tmp_path, curve):
    folder = shutil.copytree(both, tmp_path / "model")
    assert load_file(folder / "blend.safetensors")["curve"].shape == (3, 6)
    save_file({"curve": curve}, folder / "blend.safetensors")
    config = json.loads((folder / "config.json").read_text())
    del config["files"]
    (folder / "config.json").write_text(json.dumps(config))
    fails(aplc("predict", folder, "-", "--out", "-", stdin="{}"), "curve")


def test_an_encoder_that_cannot_be_used_is_refused_before_the_words_are_fitted(corpus, tmp_path):
    screen = Recorder()
    with pytest.raises(AplcError, match="memory"):
        run(corpus, tmp_path / "model", "data.long_text=memory", "model.pooling=mean", screen=screen)
    assert "ridge regression" not in screen.text
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("lose", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x")])
@pytest.mark.parametrize("name", ["blend.safetensors", "words.safetensors"])
def test_a_lost_part_comes_back_on_resume_and_the_other_is_kept(corpus, both, tmp_path, name, lose):
    folder, screen = shutil.copytree(both, tmp_path / "model"), Recorder()
    lose(folder / name)
    run(corpus, folder, resume=True, screen=screen)
    assert ("ridge regression" in screen.text) == (name == "words.safetensors")
    assert (folder / name).read_bytes() == (both / name).read_bytes()


def test_without_held_out_documents_the_words_are_used(corpus, tmp_path):
    screen = Recorder()
    run(corpus, tmp_path / "model", "data.validation=0.0", screen=screen)
    assert "no documents were held out" in screen.text


def test_plan_has_both_parts(corpus):
    shown = ok(aplc("plan", corpus, "--preset", "tiny", *as_options(BOTH)))
    assert "parameters of the whole model" in shown
    assert "words part: ridge regression" in shown
    assert " in all" in shown
