"""Guards the Python API: names in and out, one string or a list, and a folder that gives the same answers."""

import json

import numpy as np
import pytest
from sklearn.base import clone

from aplc import Tagger
from aplc.errors import AplcError, CorpusError, ModelError, NotFittedError
from helpers import SMALL, topic_rows

TEXTS = ["cat dog paw", "violin sonata opera", "", "rain " * 5000]


@pytest.fixture(scope="module")
def tagger():
    rows = topic_rows(150, seed=3)
    tagger = Tagger("tiny", settings=[*SMALL, "train.epochs=20"])
    return tagger.fit([r["text"] for r in rows], [r["labels"] for r in rows])


def test_names_in_names_out(tagger):
    animal, music, *_ = tagger.predict(TEXTS, top_k=2)
    assert animal[0][0] == "animals"
    assert music[0][0] == "music, classical"
    assert all(len(tags) == 2 for tags in (animal, music))
    assert 1 >= animal[0][1] > animal[1][1] > 0


def test_one_string_gives_one_result(tagger):
    label, probability = tagger.predict("cat dog paw", top_k=1)[0]
    assert label == "animals"
    assert probability == pytest.approx(tagger.predict(["cat dog paw"], top_k=1)[0][0][1])


def test_more_labels_than_there_are(tagger):
    assert len(tagger.predict("cat", top_k=1000)) == 6


def test_threshold(tagger):
    assert all(p >= 0.5 for _, p in tagger.predict("cat dog paw", top_k=6, threshold=0.5))
    assert tagger.predict("cat dog paw", threshold=1.0) == []


def test_nothing_in_nothing_out(tagger):
    assert tagger.predict([]) == []


def test_saved_model_gives_bit_identical_predictions(tagger, tmp_path):
    tagger.save_pretrained(tmp_path / "model")
    loaded = Tagger.from_pretrained(tmp_path / "model")
    assert loaded.predict(TEXTS, top_k=6) == tagger.predict(TEXTS, top_k=6)
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "labels.txt",
        "label_counts.npy",
        "README.md",
        "calibration.json",
    }


def test_not_fitted():
    with pytest.raises(NotFittedError, match="call fit"):
        Tagger().predict("x")


def test_labels_that_do_not_fit():
    with pytest.raises(AplcError, match="2 texts but 1 lists"):
        Tagger().fit(["a", "b"], [["x"]])
    with pytest.raises(AplcError, match="is the string"):
        Tagger().fit(["a"], ["x"])


def test_label_names_are_for_matrices():
    with pytest.raises(AplcError, match="leave label_names out"):
        Tagger("words").fit(["a", "b"], [["x"], ["y"]], label_names=["x", "y"])


@pytest.mark.parametrize("settings", ["words.ridge=2", {"words.ridge": 2}, [("words.ridge", 2)], None])
def test_settings_that_are_no_list_of_strings(settings):
    with pytest.raises(AplcError, match="settings: give a list of strings"):
        Tagger("words", settings=settings).fit(["a"], [["x"]])


def test_none_in_place_of_a_name():
    with pytest.raises(AplcError, match=r"preset = None: give its name"):
        Tagger(None).fit(["a"], [["x"]])
    with pytest.raises(ModelError, match=r"None: give a model folder"):
        Tagger.from_pretrained(None)


def test_folder_that_is_no_model(tmp_path):
    with pytest.raises(ModelError, match="not a model folder"):
        Tagger.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("config.json", lambda path: path.write_text("{")),
        ("config.json", lambda path: path.write_text('{"format": 99}')),
        ("config.json", lambda path: edit(path, n_labels=7)),
        ("config.json", lambda path: edit(path, cutoffs=[5, 2])),
        ("config.json", lambda path: edit(path, encoder={})),
        ("model.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-10])),
        ("model.safetensors", lambda path: path.unlink()),
        ("labels.txt", lambda path: path.write_text("a\n")),
        ("label_counts.npy", lambda path: np.save(path, np.array([{}], dtype=object), allow_pickle=True)),
        ("tokenizer.json", lambda path: path.write_text("[]")),
    ],
)
def test_damaged_folder_is_refused(tagger, tmp_path, name, damage):
    tagger.save_pretrained(tmp_path)
    damage(tmp_path / name)
    with pytest.raises(ModelError):
        Tagger.from_pretrained(tmp_path)


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_script_under_torchrun_keeps_the_files_of_every_process(tmp_path, monkeypatch):
    """It has not joined the others: each process works alone, and nobody else would write its files."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    rows = topic_rows(50, seed=3)
    tagger = Tagger("words").fit([row["text"] for row in rows], [row["labels"] for row in rows])
    tagger.save_pretrained(tmp_path / "model")
    assert Tagger.from_pretrained(tmp_path / "model").predict(TEXTS) == tagger.predict(TEXTS)


def test_a_tagger_evaluates_and_explains(tagger):
    evaluation = tagger.evaluate(["violin sonata"], [["music, classical"]])
    assert evaluation.to_dict()["metrics"]["P@1"] == 1
    assert "1 document, 6 labels" in str(evaluation)
    words = dict(tagger.explain("the violin sonata", "music, classical"))
    assert list(words) == ["the", "violin", "sonata"]
    assert words["violin"] > words["the"]
    with pytest.raises(AplcError, match="no label 'music'; the nearest is"):
        tagger.explain("violin", "music")
    with pytest.raises(CorpusError, match="none of the 1 documents has a label"):
        tagger.evaluate(["violin"], [[]])


def test_a_loaded_tagger_trains_what_was_saved(tmp_path):
    texts, labels = ["a cat", "a dog", "a train"] * 4, [["animals"], ["animals"], ["vehicles"]] * 4
    Tagger("words", settings=["words.ridge=4", "words.names=off"]).fit(texts, labels).save_pretrained(tmp_path / "m")
    loaded = Tagger.from_pretrained(tmp_path / "m")
    assert loaded.preset == "words"
    again = clone(loaded).fit(texts, labels)
    assert again.trained.config == loaded.trained.config


def test_no_documents_teach_nothing(tagger):
    with pytest.raises(AplcError, match="none to learn from"):
        tagger.partial_fit([], [])


@pytest.mark.parametrize(
    ("row", "cure"), [("a|b", r"row\.split\('\|'\)"), ("a; b", r"row\.split\(';'\)"), ("one", r"\[row\] if")]
)
def test_strings_in_place_of_lists_are_told_apart(row, cure):
    with pytest.raises(AplcError, match=f"row 1 is the string .*{cure}"):
        Tagger("words").fit(["x", "y"], [["a"], row])
