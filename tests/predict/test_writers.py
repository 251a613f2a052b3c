"""Guards the rows that `aplc predict` writes: JSON Lines, CSV and TSV by name, kept columns under safe names."""

import csv
import io
import json
from pathlib import Path

import pytest

from aplc.data.formats import Document
from aplc.errors import AplcError
from aplc.predict.writers import check_kept, writer_for
from helpers import aplc, fails, ok, write

TAGS = [("a, b", 0.75), ("c", 0.5)]


def written(name, documents, **options):
    writer = writer_for(Path(name), ["a, b", "c"], **options)
    return (b"".join(writer.row(d, TAGS if d.text else []) for d in documents) + writer.end()).decode()


def test_csv_reads_back(tmp_path):
    kept = {"title": 'say "x",\ny', "labels": ["true"], "n": 3, "none": None}
    text = written("out.csv", [Document("t", line=1, kept=kept), Document("", line=2, kept=kept)])
    assert list(csv.DictReader(io.StringIO(text, newline=""))) == [
        {
            "line": str(line),
            "title": 'say "x",\ny',
            "input_labels": '["true"]',
            "n": "3",
            "none": "",
            "labels": labels,
            "probabilities": probabilities,
        }
        for line, labels, probabilities in ((1, "a, b;c", "0.75;0.5"), (2, "", ""))
    ]


def test_tsv_and_separator():
    text = written("OUT.TSV", [Document("t", id="x")], separator=" | ")
    assert text == "id\tlabels\tprobabilities\nx\ta, b | c\t0.75 | 0.5\n"


def test_no_documents_leave_a_header():
    assert written("out.csv", []) == "line,labels,probabilities\n"
    assert written("out.jsonl", []) == ""


@pytest.mark.parametrize("n", [0, 1, 3])
def test_json_is_a_list_of_the_same_rows(n):
    documents = [Document(f"t{i}", line=i) for i in range(1, n + 1)]
    lines = written("out.jsonl", documents).splitlines()
    assert json.loads(written("out.json", documents)) == [json.loads(line) for line in lines]


def test_json_lines_keep_columns():
    row = json.loads(written("out.jsonl", [Document("", id="x", kept={"id": "x", "labels": ["t"], "year": 2020})]))
    assert row == {"id": "x", "input_labels": ["t"], "year": 2020, "labels": [], "probabilities": [], "abstained": True}


def test_ambiguous_tables_are_refused():
    with pytest.raises(AplcError, match=r"the label 'a, b' contains ','.*--label-separator"):
        writer_for(Path("out.csv"), ["c", "a, b"], separator=",")
    with pytest.raises(AplcError, match=r"line 2 .* has 'y'.*--keep"):
        written("out.csv", [Document("t", line=1, kept={"x": 1}), Document("t", line=2, kept={"y": 1})])


def test_columns_that_no_document_has_can_not_be_kept():
    documents = [Document("t", names=("text", "isbn")), Document("t", names=("text", "isbn", "year"))]
    assert list(check_kept("a.jsonl", documents, ("isbn", "year"))) == documents
    assert list(check_kept("a.jsonl", documents, ("all",))) == documents
    assert list(check_kept("a.jsonl", [], ("isbn",))) == []
    with pytest.raises(AplcError, match=r"a.jsonl: --keep ISBN: none of the first 2 documents .* nearest is 'isbn'$"):
        list(check_kept("a.jsonl", documents, ("year", "ISBN")))
    with pytest.raises(AplcError, match=r"write --keep isbn --keep text$"):
        list(check_kept("a.jsonl", documents, ("isbn,text",)))
    with pytest.raises(AplcError, match="nothing but texts"):
        list(check_kept("a.txt", [Document("t")], ("isbn",)))


def test_keep_all_and_labels_that_nobody_reads(trained, tmp_path):
    """An input's labels are of no use to predict: odd ones must not stop it."""
    path = write(tmp_path / "in.jsonl", '{"id": 7, "text": "cat dog", "labels": "odd", "year": 2020}\n')
    ok(aplc("predict", trained, path, "--out", tmp_path / "o.jsonl", "--keep", "all", "--top-k", 1))
    row = json.loads((tmp_path / "o.jsonl").read_text())
    assert (row["id"], row["text"], row["input_labels"], row["year"]) == ("7", "cat dog", "odd", 2020)
    ok(aplc("predict", trained, path, "--out", tmp_path / "o.csv", "--keep", "year"))
    assert (tmp_path / "o.csv").read_text().startswith("id,year,labels,probabilities\n7,2020,")
    fails(aplc("predict", trained, path, "--out", tmp_path / "o.csv", "--label-separator", ","), "music, classical")
    fails(aplc("predict", trained, path, "--out", tmp_path / "p.csv", "--keep", "Year"), "in.jsonl: --keep Year")
    table = write(tmp_path / "in.csv", "text\ncat\n")
    fails(aplc("predict", trained, table, "--out", tmp_path / "p.csv", "--keep", "yaer"), "in.csv, line 1", "--keep")
