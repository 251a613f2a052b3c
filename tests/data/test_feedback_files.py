"""Guards feedback: what a person accepted, rejected and added is read so, and what was not mentioned stays unknown."""

import gzip
import json

import numpy as np
import pytest

from aplc.config import Config
from aplc.console import Screen
from aplc.data.columns import Columns
from aplc.data.corpus import Corpus, Snapshot
from aplc.data.formats import BadRows, read_documents
from aplc.data.source import Source, read_training_data
from aplc.errors import CorpusError
from helpers import Recorder, fails, ok, write_rows
from helpers import aplc as command

FIRST = {"text": "a cat", "accepted": ["animals"], "rejected": ["cars"], "added": ["pets"], "id": "1"}
OTHER = {"text": "a car", "accepted": [], "rejected": ["animals"], "added": []}
TRAIN = [{"text": f"cat number {i}", "labels": ["animals", "pets"][: 1 + i % 2]} for i in range(40)]


def read(path, **options):
    return [(d.text, d.labels, d.rejected, d.partial) for d in read_documents(path, **options)]


def test_feedback_becomes_partly_known_documents(tmp_path):
    write_rows(tmp_path / "f.jsonl", [FIRST, OTHER])
    expected = [("a cat", ["animals", "pets"], ("cars",), True), ("a car", [], ("animals",), True)]
    assert read(tmp_path / "f.jsonl") == expected
    with gzip.open(tmp_path / "f.jsonl.gz", "wb") as out:
        out.write((tmp_path / "f.jsonl").read_bytes())
    assert read(tmp_path / "f.jsonl.gz") == expected
    other_names = Columns(text=("title",), labels="tags")  # a corpus' own, which its feedback does not have
    assert read(tmp_path / "f.jsonl", columns=other_names) == expected


def test_any_of_the_three_keys_is_enough_and_labels_win(tmp_path):
    rows = [{"text": "x", "rejected": ["a"]}, {"text": "y", "labels": ["b"], "rejected": ["a"]}, {"text": "z"}]
    write_rows(tmp_path / "f.jsonl", rows)
    assert read(tmp_path / "f.jsonl") == [
        ("x", [], ("a",), True),
        ("y", ["b"], (), False),
        ("z", [], (), False),
    ]


def test_tagging_reads_every_line_of_feedback_as_a_text(tmp_path):
    write_rows(tmp_path / "f.jsonl", [FIRST, FIRST])
    assert read(tmp_path / "f.jsonl", columns=Columns(labels=None)) == 2 * [("a cat", [], (), False)]


def test_later_lines_replace_earlier_ones_by_id_or_else_by_text(tmp_path):
    rows = [
        FIRST,
        OTHER,
        {"text": "a cat", "accepted": ["no id, so another document"]},
        {"text": "corrected", "accepted": ["pets"], "id": "1"},
        {"text": "a car", "added": ["cars"]},
        {"text": "corrected", "accepted": ["another id"], "id": "2"},
    ]
    write_rows(tmp_path / "f.jsonl", rows)
    found = [(d.line, d.text, d.labels) for d in read_documents(tmp_path / "f.jsonl")]
    assert found == [
        (3, "a cat", ["no id, so another document"]),
        (4, "corrected", ["pets"]),
        (5, "a car", ["cars"]),
        (6, "corrected", ["another id"]),
    ]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"text": "x", "accepted": "a"}, r"'accepted' must be a list of labels like \[\"a\", \"b\"\], found str"),
        ({"text": "x", "added": ["a", 3]}, "added: label 3 must be a string"),
        ({"text": "x", "accepted": ["a"], "rejected": ["b", "a"]}, "label 'a' is rejected, and accepted or added"),
        ({"accepted": ["a"]}, "no 'text'"),
    ],
)
def test_bad_feedback_names_file_and_line(tmp_path, row, words):
    write_rows(tmp_path / "f.jsonl", [OTHER, row])
    with pytest.raises(CorpusError, match=rf"f\.jsonl, line 2: {words}"):
        read(tmp_path / "f.jsonl")
    bad = BadRows("skip", tmp_path / "rejects.jsonl")
    assert len(read(tmp_path / "f.jsonl", bad_rows=bad)) == bad.count == 1


def test_bad_later_line_replaces_nothing(tmp_path):
    write_rows(tmp_path / "f.jsonl", [FIRST, {"text": "a cat", "accepted": 1, "id": "1"}])
    assert len(read(tmp_path / "f.jsonl", bad_rows=BadRows("skip"))) == 1


def test_what_is_appended_after_opening_is_not_read(tmp_path):
    """Also not the start of a line that was being written, nor does it replace an earlier line."""
    path = tmp_path / "f.jsonl"
    write_rows(path, [FIRST, OTHER])
    whole = Snapshot.open(path, BadRows(), Columns())
    before = whole.fingerprint
    torn = Snapshot(path, whole.size + 5, BadRows(), Columns())
    with path.open("a") as out:
        out.write(json.dumps({"text": "a cat", "accepted": ["late"], "id": "1"}) + "\n")
    for snapshot in (whole, torn):
        assert [d.labels for d in snapshot.documents()] == [["animals", "pets"], []]
    assert whole.fingerprint == before


def source_of(folder, *more):
    return Source.from_corpus(Corpus.open(folder / "corpus.jsonl"), more=[folder / name for name in more])


def test_more_is_trained_on_beside_the_train_part_and_never_held_out(tmp_path):
    write_rows(tmp_path / "corpus.jsonl", TRAIN)
    write_rows(tmp_path / "one.jsonl", [FIRST, OTHER])
    write_rows(tmp_path / "two.jsonl", [{"text": "a car", "added": ["trucks"]}, {"text": "full", "labels": ["pets"]}])
    data, screen, config = {}, Recorder(), Config().with_settings(["data.validation=0.2"]).data
    for more in ((), ("one.jsonl", "two.jsonl")):
        data[more] = read_training_data(source_of(tmp_path, *more), config, 0, screen)
    plain, grown = data.values()
    assert grown.valid_rows.tolist() == plain.valid_rows.tolist()
    # "a car" of the first file is replaced by that of the second
    assert [d.text for d in grown.source.training()][40:] == ["a cat", "a car", "full"]
    assert grown.train_rows.tolist() == [*plain.train_rows.tolist(), 40, 41, 42]
    assert grown.n_documents == 43
    assert dict(zip(grown.labels.names, grown.labels.counts.tolist(), strict=True)) == {
        "animals": 41,
        "pets": 22,
        "trucks": 1,
    }
    assert "more: 3 documents, 2 of them partly reviewed, 1 label that the training part lacks" in screen.text
    assert {d.text for d in grown.held_out()} <= {row["text"] for row in TRAIN}


def test_cache_tells_what_partly_reviewed_documents_reject(tmp_path):
    write_rows(tmp_path / "corpus.jsonl", TRAIN)
    write_rows(tmp_path / "f.jsonl", [FIRST, OTHER])
    plain, grown = (
        read_training_data(source, Config().data, 0, Screen(quiet=True))
        for source in (source_of(tmp_path), source_of(tmp_path, "f.jsonl"))
    )
    caches = [
        data.source.encoded(
            "train",
            lambda texts: [[1]] * len(texts),
            np.dtype(np.uint16),
            data.labels,
            name="n",
            screen=Screen(quiet=True),
        )
        for data in (plain, grown, grown)  # the last one is read, not built
    ]
    assert caches[0].rejected(0) is None
    assert not len(caches[0].partial)
    index = grown.labels.index
    for cache in caches[1:]:
        assert cache.partial.tolist() == [40, 41]
        assert cache.rejected(39) is None
        assert cache.rejected(40).tolist() == []  # nobody has "cars", so it is no label
        assert cache.rejected(41).tolist() == [index["animals"]]
        assert cache.document(40)[1].tolist() == [index["animals"], index["pets"]]


def test_partly_reviewed_documents_of_the_train_part_are_not_held_out(tmp_path):
    write_rows(tmp_path / "corpus.jsonl", [*TRAIN, *({**FIRST, "id": str(i)} for i in range(40))])
    data = read_training_data(
        source_of(tmp_path), Config().with_settings(["data.validation=0.5"]).data, 0, Screen(quiet=True)
    )
    assert len(data.valid_rows) == 20
    assert data.valid_rows.max() < 40
    assert sorted([*data.train_rows, *data.valid_rows]) == list(range(80))


def test_feedback_is_refused_where_all_labels_must_be_known(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    write_rows(folder / "train.jsonl", TRAIN)
    write_rows(folder / "dev.jsonl", [FIRST])
    fails(command("train", folder, "--out", tmp_path / "m", "--preset", "words"), "dev part holds feedback", "--more")
    fails(command("split", folder / "dev.jsonl", "--out", tmp_path / "s"), "dev.jsonl, line 1", "--more")
    fails(command("train", folder / "train.jsonl", "--more", tmp_path, "--out", tmp_path / "m"), "is a folder")
    fails(command("train", folder / "train.jsonl", "--more", tmp_path / "x", "--out", tmp_path / "m"), "no such file")


def test_a_run_is_resumed_with_the_same_more_only(tmp_path):
    write_rows(tmp_path / "c.jsonl", TRAIN)
    write_rows(tmp_path / "f.jsonl", [FIRST, OTHER])
    train = ("train", tmp_path / "c.jsonl", "--preset", "words", "--out", tmp_path / "m")
    assert "2 of them partly reviewed" in command(*train, "--more", tmp_path / "f.jsonl").stderr
    fails(command(*train, "--resume"), "what --more adds has changed")
    ok(command(*train, "--more", tmp_path / "f.jsonl", "--resume"))
    write_rows(tmp_path / "f.jsonl", [FIRST])
    fails(command(*train, "--more", tmp_path / "f.jsonl", "--resume"), "what --more adds has changed")
