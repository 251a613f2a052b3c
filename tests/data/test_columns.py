"""Guards files with other column names than ours: the same documents come out, and caches do not mix them up."""

import csv
import gzip
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aplc.data.columns import BadRow, Columns, split_labels
from aplc.data.corpus import Corpus
from aplc.data.formats import read_documents
from aplc.data.json_list import read_list
from aplc.data.source import Source
from aplc.errors import AplcError, CorpusError
from helpers import aplc, ok, topic_rows, write, write_rows

ROWS = [
    {"doi": "7", "title": "Cats", "abstract": "and dogs", "tags": "animals|pets, small", "year": "2020"},
    {"doi": "8", "title": "Trains", "abstract": "", "tags": "vehicles", "year": "2021"},
]
THEIRS = Columns(text=("title", "abstract"), labels="tags", separator="|", id="doi")
EXPECTED = [("Cats and dogs", ["animals", "pets, small"], "7"), ("Trains ", ["vehicles"], "8")]


def table(delimiter):
    out = io.StringIO()
    writer = csv.DictWriter(out, ROWS[0], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(ROWS)
    return out.getvalue().encode()


CONTENTS = {
    "a.csv": table(","),
    "a.tsv": table("\t"),
    "a.tsv.gz": gzip.compress(table("\t")),
    "a.json": json.dumps(ROWS, indent=2).encode(),
    "a.json.gz": gzip.compress(b"\xef\xbb\xbf" + json.dumps(ROWS).encode()),
    "a.jsonl": "".join(json.dumps(row) + "\n" for row in ROWS).encode(),
}


@pytest.mark.parametrize("name", [*CONTENTS, "a.parquet"])
def test_all_formats_with_own_columns(tmp_path, name):
    path = tmp_path / name
    if name.endswith("parquet"):
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    else:
        path.write_bytes(CONTENTS[name])
    assert [(d.text, d.labels, d.id) for d in read_documents(path, columns=THEIRS)] == EXPECTED
    kept = Columns(text=("title",), labels=None, keep=("year", "doi"))
    assert [d.kept for d in read_documents(path, columns=kept)] == [{k: r[k] for k in ("year", "doi")} for r in ROWS]


def test_text_column_that_a_row_lacks_is_left_out():
    assert Columns(text=("title", "abstract")).read({"title": "a", "abstract": None})[0] == "a"
    with pytest.raises(BadRow, match="no 'title' and no 'abstract', only x"):
        Columns(text=("title", "abstract")).read({"x": "a"})


@pytest.mark.parametrize(
    ("cell", "separator", "names"),
    [
        ("['a', 'b, c']", None, ["a", "b, c"]),
        ("""["it's", 'say "x"', 'a\\'b']""", None, ["it's", 'say "x"', "a'b"]),
        ("[]", None, []),
        ("('a', 'b')", None, ["a", "b"]),
        ("{'a'}", None, ["a"]),
        ("(2+1)-dimensional; b", None, ["(2+1)-dimensional", " b"]),
        ("[18F]FDG|b", "|", ["[18F]FDG", "b"]),
        ("[1]", "|", ["[1]"]),
        ("['a', 'b']", ",", ["a", "b"]),
        ("a, b", ",", ["a", " b"]),
        ("a;b", None, ["a", "b"]),
        ("a -- b", " -- ", ["a", "b"]),
    ],
)
def test_labels_in_a_cell(cell, separator, names):
    assert split_labels(cell, separator) == names


@pytest.mark.parametrize(
    "cell", ["['a' 'b']", "['a', b]", "[a, b]", "['a', nan]", "['a'", "['" + "\\" * 99_999, "[" * 99_999]
)
def test_list_that_is_none_is_refused_in_our_own_words(cell):
    with pytest.raises(BadRow, match=r"not a list of quoted names; write \[\"a\", \"b\"\]"):
        split_labels(cell)


def test_other_columns_are_another_corpus_to_caches(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [{"text": "a", "title": "b", "labels": ["x"], "tags": ["y"]}])
    options = [Columns(), Columns(text=("title",)), Columns(text=("text", "title")), Columns(labels="tags")]
    options += [Columns(separator=","), Columns(id="doi")]
    keys = [Source.from_corpus(Corpus.open(path, columns=columns)).key for columns in options]
    assert len(set(keys)) == len(keys)
    assert Source.from_corpus(Corpus.open(path, columns=Columns(keep=("all",)))).key == keys[0]


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_list_in_blocks_matches_json_loads(block):
    rows = [{"text": 'é]},{[\\" ' * i, "n": [i, {"x": None}]} for i in range(9)] + [12345, "a", [1], -1.5e3]
    for text in (json.dumps(rows), json.dumps(rows, indent=3, ensure_ascii=False), " [ ] \n", "\ufeff[1 , 2]"):
        stream = io.BytesIO(text.encode())
        assert list(read_list("a.json", stream, block=block)) == json.loads(text.removeprefix("\ufeff"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"a": 1},\n{"b" 2}]', "line 2: not JSON: Expecting ':' delimiter"),
        ('[{"a": 1}\n{"b": 2}]', "line 2: expected ',' or ']'"),
        ('[{"a": 1}, ', "line 1: not JSON"),
        ('[{"a": 1},\n{"b": 2},\n{"c" 3}]\n\n\n', "line 3: not JSON: Expecting ':' delimiter"),
        ('[{"a": 1},\n{"b":\n"2\n"}]', "line 3: not JSON: Invalid control character"),
        ('[{"a": 1},\n{"b": 2},\n{"c": "3', "line 3: not JSON: Unterminated string"),
        ('[{"a": 1}] x', "line 1: there is more after the list"),
        ('"a"', "one list of objects"),
        ('{"data": {"rows": [1]}}', "one object, not a list"),
        ("[" * 99_999, "line 1: nested too deeply"),
    ],
)
@pytest.mark.parametrize("block", [1, 1 << 20])
def test_file_that_is_no_list_is_refused(text, words, block):
    with pytest.raises(CorpusError) as error:
        list(read_list("a.json", io.BytesIO(text.encode()), block=block))
    assert words in str(error.value)


def test_rest_of_the_file_is_not_read_after_a_syntax_error():
    text = b'[{"a" 1}, ' + b'{"a": 1}, ' * 100_000
    stream = io.BytesIO(text)
    read, stream.close = stream.tell, lambda: None  # the reader closes what it is given
    with pytest.raises(CorpusError, match="line 1: not JSON: Expecting ':' delimiter"):
        list(read_list("a.json", stream, block=100))
    assert read() < len(text) / 10


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(), lambda own: st.lists(own) | st.dictionaries(st.text(), own)
)


@given(st.lists(VALUES))
def test_what_a_block_cuts_off_is_read_on(rows):
    text = json.dumps([{"value": row} for row in rows])
    for block in (1, 2, 3, 5, 8, 13):
        found = list(read_list("a.json", io.BytesIO(text.encode()), block=block))
        assert json.dumps(found) == text


def test_bad_row_of_a_list_has_its_number(tmp_path):
    path = write(tmp_path / "a.json", '[{"text": "a"}, {"text": 5}]')
    with pytest.raises(CorpusError, match=r"a.json, row 2: 'text' must be a string"):
        list(read_documents(path))


def test_empty_names_are_refused():
    for bad in ({"separator": ""}, {"labels": ""}, {"text": ("",)}, {"id": ""}):
        with pytest.raises(AplcError, match="is empty"):
            Columns(**bad)


def test_from_somebody_elses_csv_to_predictions(tmp_path, monkeypatch):
    """train, evaluate, plan and predict take the same options; predictions are a table with the columns kept."""
    monkeypatch.chdir(tmp_path)
    with open("records.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["nr", "title", "body", "tags", "year"])
        for i, row in enumerate(topic_rows(120, seed=3)):
            first, _, rest = row["text"].partition(" ")
            writer.writerow([f"d{i}", first, rest, "|".join(row["labels"]), 2000 + i])
    options = ["--text-column", "title", "--text-column", "body", "--labels-column", "tags", "--label-separator", "|"]
    options += ["--id-column", "nr"]
    train = aplc("train", "records.csv", "--preset", "words", "--out", "m", *options)
    ok(train)
    assert "6 labels" in train.stderr
    assert "trained on these documents" in aplc("evaluate", "m", "records.csv", *options).stderr
    assert "6" in ok(aplc("plan", "records.csv", "--preset", "words", *options))
    ok(aplc("predict", "m", "records.csv", "--out", "tags.csv", "--keep", "year", "--keep", "tags", *options))
    with open("tags.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "year", "tags", "labels", "probabilities"]
    assert (len(rows), rows[5]["id"], rows[5]["year"]) == (120, "d5", "2005")
    assert sum(row["labels"].split("|")[0] in row["tags"].split("|") for row in rows) > 100
    assert all(len(row["labels"].split("|")) == len(row["probabilities"].split("|")) for row in rows)
