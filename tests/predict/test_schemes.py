"""Guards predictions narrowed by a vocabulary, and labels written by their names."""

import csv
import json

import pytest

from aplc import Tagger
from aplc.errors import AplcError
from helpers import TOPICS, aplc, fails, ok, topic_rows, write_rows

NAMES = {label: f"Topic of {label.split(',')[0]}" for label in TOPICS}
VOCABULARY = {
    label: {
        "name": name,
        "broader": ["things"] if label in ("food", "vehicles") else ["nature"],
        "scheme": "daily life" if label in ("food", "vehicles", "animals") else "other",
    }
    for label, name in NAMES.items()
} | {"things": {}, "nature": {"name": "Nature", "broader": ["things"]}}


@pytest.fixture(scope="module")
def tagger():
    rows = topic_rows(120, seed=5)
    return Tagger("words").fit([r["text"] for r in rows], [r["labels"] for r in rows], vocabulary=VOCABULARY)


@pytest.fixture(scope="module")
def model(tagger, tmp_path_factory):
    folder = tmp_path_factory.mktemp("schemes") / "model"
    tagger.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("texts") / "t.jsonl", [{"text": "cat dog bread cheese violin rain"}])


def labels_of(tagger, **options):
    return {label for label, _ in tagger.predict("cat dog bread cheese violin rain", top_k=20, **options)}


def test_schemes_and_branches_narrow_the_labels(tagger):
    every = {*TOPICS, "things", "nature"}
    assert labels_of(tagger) == every
    daily = {"food", "vehicles", "animals"}
    assert labels_of(tagger, scheme="daily life") == daily
    assert labels_of(tagger, scheme=["daily life", "other"]) == set(TOPICS)
    assert labels_of(tagger, not_scheme="other") == {*daily, "things", "nature"}
    assert labels_of(tagger, below="things") == every
    assert labels_of(tagger, below=["nature"]) == every - {"things", "food", "vehicles"}
    assert labels_of(tagger, below="Nature") == labels_of(tagger, below="nature")  # by its name
    assert labels_of(tagger, below="nature", scheme="daily life", deny=["food"]) == {"animals"}
    assert labels_of(tagger, scheme="daily life", allow=["food", "rare"]) == {"food"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"scheme": "daily live"},
            "scheme: no scheme 'daily live' in the model's vocabulary; the nearest are 'dai",
        ),
        ({"below": "natur"}, "below: no label 'natur' in the model's vocabulary; the nearest are '[nN]ature'"),
        ({"scheme": "other", "below": "food"}, "below = food: leaves no label that could be predicted"),
        ({"scheme": "other", "allow": ["food"]}, "allow and deny leave no label of these schemes and branches"),
        ({"scheme": [3]}, "scheme: give a name, or a list of names"),
    ],
)
def test_unknown_names_and_empty_choices_are_refused(tagger, options, message):
    with pytest.raises(AplcError, match=message):
        labels_of(tagger, **options)


def test_a_model_without_a_vocabulary_knows_no_schemes(texts, tmp_path):
    tagger = Tagger("words").fit(["cat dog", "car train"] * 4, [["a"], ["b"]] * 4)
    with pytest.raises(AplcError, match="scheme: the model has no vocabulary"):
        labels_of(tagger, scheme="x")
    tagger.save_pretrained(tmp_path / "m")
    done = aplc("predict", tmp_path / "m", texts, "--out", tmp_path / "o.jsonl", "--labels-as", "name")
    fails(done, "--labels-as name: the model has no vocabulary")


def test_predict_writes_labels_names_or_both(model, texts, tmp_path):
    def rows(*options, out="o.jsonl"):
        ok(aplc("predict", model, texts, "--out", tmp_path / out, "--top-k", "3", "--scheme", "daily life", *options))
        return tmp_path / out

    (row,) = map(json.loads, rows().open())
    assert "names" not in row
    assert set(row["labels"]) == {"food", "animals", "vehicles"}
    (named,) = map(json.loads, rows("--labels-as", "name").open())
    assert named["labels"] == [NAMES[label] for label in row["labels"]]
    (both,) = map(json.loads, rows("--labels-as", "both").open())
    assert (both["labels"], both["names"]) == (row["labels"], named["labels"])
    (cells,) = csv.DictReader(rows("--labels-as", "both", out="o.csv").open())
    assert cells["names"] == ";".join(named["labels"])
    assert list(cells) == ["line", "labels", "names", "probabilities"]
    done = aplc("predict", model, texts, "--out", tmp_path / "x.csv", "--labels-as", "both", "--label-separator", "of")
    fails(done, "the label 'Topic of", "contains 'of'")
    fails(aplc("predict", model, texts, "--out", tmp_path / "x.csv", "--below", "x"), "below: no label 'x'")


def test_labels_list_shows_and_finds_names(model):
    shown = ok(aplc("labels", "list", model, "--search", "topic of animals")).splitlines()
    assert shown[1].split("\t")[1:] == ["animals", "Topic of animals"]
    assert len(shown) == 2


def test_evaluate_finds_labels_without_documents(model, tmp_path):
    write_rows(tmp_path / "test.jsonl", [{"text": "cat dog", "labels": ["animals", "nature"]}])
    shown = ok(aplc("evaluate", model, tmp_path, "--at", "8", "--examples", "1", "--json", tmp_path / "e.json"))
    assert "Topic of animals (animals)" in shown
    figures = json.loads((tmp_path / "e.json").read_text())
    unseen = next(band for band in figures["at"]["8"]["bands"] if band["name"] == "unseen")
    assert unseen["hits"] == unseen["true"] == 1  # all eight labels are among the first eight
    assert figures["unseen_labels"] == 0
    fails(aplc("evaluate", model, tmp_path, "--at", "five"), "--at five: give whole numbers")
