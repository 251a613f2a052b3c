"""Guards runs that train a words model: it learns, is the same every time, and the commands work on it."""

import json
import random
import shutil
from collections import Counter

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from scipy import sparse

from aplc import Tagger
from aplc.config import Config
from aplc.data.corpus import Corpus
from aplc.data.source import Source
from aplc.errors import AplcError, ModelError, RunError
from aplc.evaluate.run import evaluate
from aplc.plan.words import plan
from aplc.predict.explain import explain
from aplc.store.folder import load_tagger, save_tagger
from aplc.train.relabel import retire_labels
from aplc.train.run import train
from aplc.words import fit as fit_module
from aplc.words.blocks import Blocks
from aplc.words.text import BUCKETS
from helpers import Recorder, write_rows
from reference import word_counts

CONFIG = Config.from_preset("words").with_settings(["data.validation=0.2"])


def fit(corpus, out, **options):
    return train(Source.from_corpus(Corpus.open(corpus)), CONFIG, out, **options)


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    out = tmp_path_factory.mktemp("words") / "model"
    fit(corpus, out)
    return out


def test_it_learns_and_tags_a_text_alone_as_in_a_batch(trained, corpus):
    found = evaluate(load_tagger(trained), Corpus.open(corpus).documents("test"))
    assert found.metrics.result()["P@1"] > 0.9
    tagger = Tagger.from_pretrained(trained)
    assert tagger.predict("bread and cheese and soup", top_k=1)[0][0] == "food"
    alone, together = tagger.predict("a dog barks"), tagger.predict(["a dog barks", "rain", ""])
    assert alone == together[0]


def test_missing_compiled_code_is_reported(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(fit_module.native, "library", lambda: None)
    monkeypatch.setattr(fit_module.native, "_told", False)
    screen = Recorder()
    fit(corpus, tmp_path / "m", screen=screen)
    assert "compiled code is not used" in screen.text
    assert "SciPy multiplies sparse matrices" in screen.text


def test_more_documents_than_one_inverse_takes(corpus, tmp_path):
    screen = Recorder()
    config = CONFIG.with_settings(["words.limit=20"])
    train(Source.from_corpus(Corpus.open(corpus)), config, tmp_path / "m", screen=screen)
    assert "conjugate gradients, 20 words and pairs" in screen.text
    found = evaluate(load_tagger(tmp_path / "m"), Corpus.open(corpus).documents("test"))
    assert found.metrics.result()["P@1"] > 0.9


def test_the_order_of_words_is_learned(tmp_path):
    texts = {"hound": "dog bites man", "news": "man bites dog", "else": "rain and wind"}
    lines = [json.dumps({"text": f"w{i} {texts[name]} w{i + 1}", "labels": [name]})
             for i, name in enumerate(["hound", "news", *["else"] * 20] * 15)]  # fmt: skip
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    train(Source.from_corpus(Corpus.open(tmp_path / "c.jsonl")), CONFIG, tmp_path / "m")
    tagger = Tagger.from_pretrained(tmp_path / "m")
    for name, text in texts.items():
        assert tagger.predict(text, top_k=1)[0][0] == name


def test_same_corpus_same_weights(trained, corpus, tmp_path):
    fit(corpus, tmp_path / "again")
    again = load_file(tmp_path / "again" / "model.safetensors")
    for name, tensor in load_file(trained / "model.safetensors").items():
        assert tensor.tobytes() == again[name].tobytes(), name


def test_resume_says_that_a_run_is_finished_and_fits_one_that_is_not(trained, corpus, tmp_path):
    screen = Recorder()
    fit(corpus, trained, resume=True, screen=screen)
    assert "finished" in screen.text
    with pytest.raises(RunError, match="--resume"):
        fit(corpus, trained)
    fit(corpus, tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").unlink()
    fit(corpus, tmp_path / "m", resume=True)
    assert Tagger.from_pretrained(tmp_path / "m").predict("violin opera", top_k=1)[0][0] == "music, classical"


def test_a_fit_that_was_stopped_goes_on_with_what_is_finished(trained, corpus, tmp_path, monkeypatch):
    """The same bytes; a fit that fails leaves nothing to go on with."""
    save, failure = Blocks.save, [KeyboardInterrupt]

    def stop(self, number, block):
        save(self, number, block)
        raise failure[0]

    monkeypatch.setattr(Blocks, "save", stop)
    screen = Recorder()
    with pytest.raises(KeyboardInterrupt):
        fit(corpus, tmp_path / "m", screen=screen)
    assert "go on with the same command and --resume" in screen.text
    failure[0] = RunError("no end")
    with pytest.raises(RunError):
        fit(corpus, tmp_path / "other")
    assert not list((tmp_path / "other").glob("*"))
    monkeypatch.setattr(Blocks, "save", None)
    with monkeypatch.context() as patch:  # too little memory for now, say: what is finished stays
        patch.setattr("aplc.words.ridge.free_bytes", lambda: 0)
        with pytest.raises(RunError, match="GB are free"):
            fit(corpus, tmp_path / "m", resume=True)
    fit(corpus, tmp_path / "m", resume=True)
    again, whole = (load_file(folder / "model.safetensors") for folder in (tmp_path / "m", trained))
    assert {name: tensor.tobytes() for name, tensor in again.items()} == {
        name: tensor.tobytes() for name, tensor in whole.items()
    }
    assert not (tmp_path / "m" / "blocks").exists()


def test_a_damaged_block_is_named(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(Blocks, "join", None)  # the fit ends when all blocks are there
    with pytest.raises(TypeError):
        fit(corpus, tmp_path / "m")
    monkeypatch.undo()
    (path,) = (tmp_path / "m" / "blocks").iterdir()
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ModelError, match=r"000000\.npz: damaged .*; delete it, and go on with --resume"):
        fit(corpus, tmp_path / "m", resume=True)
    path.unlink()
    fit(corpus, tmp_path / "m", resume=True)
    assert Tagger.from_pretrained(tmp_path / "m").predict("violin opera", top_k=1)[0][0] == "music, classical"


def test_words_speak_for_and_against_a_label(trained):
    effects = {part.start: part.effect for part in explain(load_tagger(trained), "soup, wheel and rain", "food").parts}
    assert effects[0] > 0 > effects[6]


def test_a_retired_label_is_not_predicted(trained, tmp_path):
    save_tagger(retire_labels(load_tagger(trained), ["food"]), tmp_path)
    found = Tagger.from_pretrained(tmp_path).predict("bread soup", top_k=6)
    assert len(found) == 5
    assert "food" not in dict(found)


def test_texts_without_spaces_between_words_are_learned(tmp_path):
    topics = {"weather": "今天下雨明天下雪", "food": "面包奶酪苹果汤", "music": "小提琴协奏曲歌剧"}
    rows = [
        {"text": text[i % 3 :] + text[: i % 4], "labels": [name]} for i in range(20) for name, text in topics.items()
    ]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    fit(tmp_path / "c.jsonl", tmp_path / "m")
    tagger = Tagger.from_pretrained(tmp_path / "m")
    assert [tagger.predict(text, top_k=1)[0][0] for text in ("下雪了", "苹果", "歌剧")] == ["weather", "food", "music"]


def test_damaged_folders_are_refused(trained, tmp_path):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    state = {name: tensor.copy() for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    state["label"][0] = 77
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match="has changed since the model was saved"):
        load_tagger(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["files"]  # as whoever means harm would
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="labels beyond the 6"):
        load_tagger(tmp_path)
    config["words"]["version"] -= 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"another version.* train it again"):
        load_tagger(tmp_path)
    config["words"]["version"] += 1
    config["words"]["lead"] = 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="whether the lead counts again"):
        load_tagger(tmp_path)
    config["words"]["lead"] = False
    config["words"]["n_words"] = 10**12
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match="asks for"):
        load_tagger(tmp_path)


def test_settings_without_effect_are_reported(corpus, tmp_path):
    screen = Recorder()
    config = CONFIG.with_settings(["train.epochs=3", "train.seed=5", "data.min_count=2", "data.long_text=windows"])
    train(Source.from_corpus(Corpus.open(corpus)), config, tmp_path / "m", screen=screen)
    assert "these settings have no effect on a words model: data.long_text, train.epochs" in screen.lines


def test_settings_that_leave_no_model_are_refused(corpus, tmp_path):
    with pytest.raises(AplcError, match=r"words\.ridge = 1e\+300: must be between 0 and 1,000"):
        CONFIG.with_settings(["words.ridge=1e300"])
    source = Source.from_corpus(Corpus.open(corpus))
    with pytest.raises(RunError, match=r"words\.prune = 1000: .* choose a lower one"):
        train(source, CONFIG.with_settings(["words.prune=1000"]), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_handful_of_texts_that_share_no_word_can_be_trained_on():
    tagger = Tagger("words").fit(["cat", "dog", "rain"], [["animals"], ["animals"], ["weather"]])
    assert tagger.predict("rain", top_k=1)[0][0] == "weather"


def test_a_corpus_without_words_is_refused(tmp_path):
    (tmp_path / "c.jsonl").write_text('{"text": "! -?", "labels": ["a"]}\n' * 9)
    with pytest.raises(AplcError, match="no words"):
        train(Source.from_corpus(Corpus.open(tmp_path / "c.jsonl")), CONFIG, tmp_path / "m")


def test_plan_says_what_does_not_fit(corpus):
    source = Source.from_corpus(Corpus.open(corpus))
    planned = plan(source, CONFIG)
    assert (planned.n_documents, planned.n_labels, planned.size) == (200, 6, 200)
    assert planned.fits
    assert 0 < planned.seconds < 60
    few = plan(source, CONFIG.with_settings(["words.limit=50"]), memory=1_000)
    assert few.size == 50
    assert "lower words.limit" in few.render()
    assert few.to_dict()["memory_bytes"] == {"peak": few.peak, "available": 1_000, "fits": False}


def test_one_document_of_very_many_words_costs_no_columns(corpus, tmp_path):
    """Words that only it has are left out, so that the matrix stays as small as without it."""
    rows = [json.loads(line) for line in (corpus / "train.jsonl").read_text("utf-8").splitlines()]
    long = {"text": " ".join(f"w{i}" for i in range(100_000)), "labels": ["food"]}
    for name, content in (("plain", rows), ("long", [*rows, long])):
        write_rows(tmp_path / f"{name}.jsonl", content)
        train(Source.from_corpus(Corpus.open(tmp_path / f"{name}.jsonl")), CONFIG, tmp_path / name)
    plain, long = (load_tagger(tmp_path / name).model.features.bucket.shape[0] for name in ("plain", "long"))
    assert long <= 1.2 * plain


@pytest.mark.parametrize(
    ("setting", "longer", "runs"), [("auto", 1, True), ("auto", 20, False), ("off", 1, False), ("on", 20, True)]
)
def test_runs_of_characters_are_read_where_texts_are_short(tmp_path, setting, longer, runs):
    """So that a compound that training never saw is known by its parts."""
    rng = random.Random(0)
    stems = {name: ["".join(rng.choices(letters, k=7)) for _ in range(40)] for name, letters in LETTERS.items()}
    rows = []
    for i in range(400):
        label = list(stems)[i % 2]
        words = [rng.choice(stems[label]) + "".join(rng.choices("xyz", k=3)) for _ in range(3 * longer)]
        rows.append({"text": " ".join(words), "labels": [label]})
    write_rows(tmp_path / "c.jsonl", rows)
    config = CONFIG.with_settings([f"words.runs={setting}"])
    tagger = train(Source.from_corpus(Corpus.open(tmp_path / "c.jsonl")), config, tmp_path / "m")
    assert tagger.model.features.has_runs == runs
    if longer == 1:
        unseen = [f"{stems[name][0]}www" for name in stems]
        tags = Tagger.from_pretrained(tmp_path / "m").predict(unseen, top_k=2)
        sure = [dict(own)[name] > 0.6 for name, own in zip(stems, tags, strict=True)]
        assert sure == [runs, runs]


LETTERS = {"Bauwesen": "abcdef", "Musik": "ghijkl"}


@pytest.mark.parametrize("first", [True, False])
def test_the_lead_counts_where_it_says_what_a_text_is_about(tmp_path, first):
    """Texts have some words of their label and many of others, either in this order or in any."""
    rng, rows = random.Random(0), []
    words = {name: [f"{letters}{i}" for i in range(60)] for name, letters in LETTERS.items()}
    every = [word for own in words.values() for word in own]
    for i in range(400):
        label = list(words)[i % 2]
        text = rng.choices(words[label], k=32) + rng.choices(every, k=200)
        rows.append({"text": " ".join(text if first else rng.sample(text, len(text))), "labels": [label]})
    write_rows(tmp_path / "c.jsonl", rows)
    screen = Recorder()
    model = train(Source.from_corpus(Corpus.open(tmp_path / "c.jsonl")), CONFIG, tmp_path / "m", screen=screen).model
    assert model.features.lead == load_tagger(tmp_path / "m").model.features.lead == first
    assert f"words.lead = {'on' if first else 'off'}" in screen.text
    counts = Counter(word_counts(rows[0]["text"], runs=False))
    for _ in range(2 * first):
        counts.update(word_counts(rows[0]["text"], runs=False, first=32))
    column, often = map(np.array, zip(*sorted(counts.items()), strict=True))
    counted = sparse.csr_array((often.astype(np.float32), column, [0, len(column)]), shape=(1, BUCKETS))
    assert abs(model.features(counted) - model.prepare([rows[0]["text"]]).x).max() == 0
