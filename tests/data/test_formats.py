"""Guards reading: all formats give the same documents, and the error for a bad row names file and line."""

import gzip
import json

import pytest

from aplc.data.corpus import Corpus
from aplc.data.formats import BadRows, read_documents
from aplc.errors import CorpusError

ROWS = [
    {"text": "Ünïcode text, with a comma", "labels": ["Café, bar", "日本語"], "id": "7", "other": 1},
    {"text": "no labels here", "labels": []},
    {"text": "repeated", "labels": ["a", "b", "a"]},
]
EXPECTED = [
    ("Ünïcode text, with a comma", ["Café, bar", "日本語"]),
    ("no labels here", []),
    ("repeated", ["a", "b"]),
]


def lines(newline="\n"):
    return newline.join(json.dumps(row, ensure_ascii=False) for row in ROWS)


def read(path, **kwargs):
    return [(d.text, d.labels) for d in read_documents(path, **kwargs)]


@pytest.mark.parametrize(
    "content",
    [
        lines().encode(),
        (lines() + "\n").encode(),
        (lines("\r\n") + "\r\n").encode(),
        b"\xef\xbb\xbf" + lines().encode(),
        lines("\n\n  \n").encode(),
    ],
    ids=["plain", "final newline", "windows", "byte-order mark", "blank lines"],
)
def test_jsonl(tmp_path, content):
    path = tmp_path / "train.jsonl"
    path.write_bytes(content)
    assert read(path) == EXPECTED
    assert next(read_documents(path)).id == "7"


def test_gzip(tmp_path):
    path = tmp_path / "train.jsonl.gz"
    path.write_bytes(gzip.compress(lines().encode()))
    assert read(path) == EXPECTED


def test_broken_gzip_is_an_error(tmp_path):
    path = tmp_path / "train.jsonl.gz"
    path.write_bytes(gzip.compress((lines() + "\n").encode() * 1000)[:-20])
    with pytest.raises(CorpusError, match=r"train.jsonl.gz: broken gzip"):
        read(path)


def test_csv_with_json_labels_and_byte_order_mark(tmp_path):
    path = tmp_path / "train.csv"
    path.write_bytes(
        b"\xef\xbb\xbfid,text,labels\r\n"
        + '7,"Ünïcode text, with a comma","[""Café, bar"", ""日本語""]"\r\n'.encode()
        + b'8,no labels here,\r\n9,repeated,"a;b; a"\r\n'
    )
    assert read(path) == EXPECTED


def test_csv_longer_than_pythons_default_limit(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("text,labels\n" + "word " * 100_000 + ",a\n")
    assert len(read(path)[0][0]) == 500_000


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "train.parquet"
    table = pyarrow.table({"text": [t for t, _ in EXPECTED], "labels": [row["labels"] for row in ROWS]})
    parquet.write_table(table, path)
    assert read(path) == EXPECTED


def test_text_lines(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("one\n\ntwo\r\n")
    assert read(path) == [("one", []), ("two", [])]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"{broken", "not JSON"),
        (b"[1]", "a row is an object"),
        (b'{"labels": []}', "no 'text'"),
        (b'{"text": 5}', "'text' must be a string"),
        (b'{"text": "a", "labels": "a, b"}', "must be a list of strings"),
        (b'{"text": "a", "labels": [5]}', "label 5 must be a string"),
        (b'{"text": "a", "labels": [" "]}', "empty or has a line break"),
        (b'{"text": "a", "labels": ["b\\nc"]}', "empty or has a line break"),
        (b'{"text": "a\\ud800"}', "not valid Unicode"),
        (b'{"text": "a", "id": "\\ud800"}', "not valid Unicode"),
        (b'{"text": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
        (b'{"text": "a", "n": ' + b"1" * 5_000 + b"}", "not JSON"),
    ],
)
def test_bad_row_is_an_error_or_goes_to_the_rejects(tmp_path, row, message):
    path = tmp_path / "train.jsonl"
    path.write_bytes(b'{"text": "good"}\n' + row + b'\n{"text": "good too"}\n')
    with pytest.raises(CorpusError, match=rf"train.jsonl, line 2: .*{message}"):
        read(path)
    bad_rows = BadRows("skip", tmp_path / "rejects.jsonl")
    for _ in range(2):  # a corpus is read more than once, its rejects are written once
        assert read(path, bad_rows=bad_rows) == [("good", []), ("good too", [])]
    rejects = [json.loads(line) for line in (tmp_path / "rejects.jsonl").read_text().splitlines()]
    assert [(r["line"], message in r["error"]) for r in rejects] == [(2, True)]
    assert bad_rows.count == 1


@pytest.mark.parametrize("cell", ["[a", "[" * 100_000], ids=["no JSON", "too deep"])
def test_csv_labels_with_broken_json_are_refused(tmp_path, cell):
    path = tmp_path / "train.csv"
    path.write_text(f"text,labels\ngood,a\none,{cell}\n")
    with pytest.raises(CorpusError, match=r"train.csv, line 3: labels start with '\['"):
        read(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('text,labels\ngood,a\n"open,b\nc,d\n', "line 3: unexpected end of data; is a quote missing"),
        ('text,labels\n"one" two,b\n', "line 2: .* expected after .*; is a quote missing"),
        ('"text,labels\na,b\n', "line 1: unexpected end of data; is a quote missing"),
        ("text,labels,text\na,b,c\n", "line 1: the header has several columns 'text'"),
    ],
)
def test_ambiguous_csv_is_refused(tmp_path, content, message):
    """Otherwise rows or texts would be lost silently."""
    (tmp_path / "train.csv").write_text(content)
    with pytest.raises(CorpusError, match=f"train.csv, {message}"):
        read(tmp_path / "train.csv")


def test_csv_row_with_too_many_cells_is_refused(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("text,labels\ngood,a\none,two,three\n")
    with pytest.raises(CorpusError, match=r"train.csv, line 3: 3 cells where the header has 2"):
        read(path)


@pytest.mark.parametrize("name", ["train.csv", "train.parquet"])
def test_missing_text_column_is_an_error(tmp_path, name):
    path = tmp_path / name
    if name.endswith("csv"):
        path.write_text("body,labels\nx,a\n")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"body": ["x"]}), path)
    with pytest.raises(CorpusError, match=r"no column 'text'.* only body"):
        read(path)


def test_corpus_parts(tmp_path):
    (tmp_path / "train.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "test.csv").write_text("text,labels\nb,x\n")
    corpus = Corpus.open(tmp_path)
    assert set(corpus.parts) == {"train", "test"}
    before = corpus.fingerprint("train")
    with pytest.raises(CorpusError, match="no dev part"):
        corpus.file("dev")
    (tmp_path / "train.jsonl").write_text('{"text": "b"}\n')
    assert corpus.fingerprint("train") != before
    (tmp_path / "train.csv").write_text("text\na\n")
    with pytest.raises(CorpusError, match=r"both train.jsonl and train.csv"):
        Corpus.open(tmp_path)


@pytest.mark.parametrize("name", ["nowhere", "empty", "file.xyz"])
def test_paths_that_are_no_corpus_are_refused(tmp_path, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.xyz").write_text("x")
    with pytest.raises(CorpusError):
        list(Corpus.open(tmp_path / name).documents("train"))
