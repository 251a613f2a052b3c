"""Guards docs/mistakes.md: each mistake of its tables is made here, and the page shows what is printed, exactly."""

import gzip
from pathlib import Path

import pytest

from helpers import aplc

PAGE = (Path(__file__).parents[2] / "docs" / "mistakes.md").read_text("utf-8")
GOOD = '{"text": "cats and dogs", "labels": ["animals"]}\n{"text": "trains", "labels": ["vehicles"]}\n'
CSV = "text,labels\n"

ERRORS = {
    "broken JSON": ({"a.jsonl": GOOD + '{"text": "x", "labels": ["a"}\n'}, "inspect a.jsonl"),
    "JSON over many lines": ({"a.jsonl": '{\n  "text": "x"\n}\n'}, "inspect a.jsonl"),
    "JSON list named .jsonl": ({"a.jsonl": '[{"text": "x"}]\n'}, "inspect a.jsonl"),
    "JSON Lines named .json": ({"a.json": GOOD}, "inspect a.json"),
    "JSON object with a list in it": ({"a.json": '{"data": [{"text": "x"}]}'}, "inspect a.json"),
    "JSON list that is cut off": ({"a.json": '[{"text": "x"},\n {"text": "y"}'}, "inspect a.json"),
    "no text": ({"a.jsonl": '{"title": "x", "tags": ["a"]}\n'}, "inspect a.jsonl"),
    "text is null": ({"a.jsonl": '{"text": null, "labels": []}\n'}, "inspect a.jsonl"),
    "no text column": ({"a.csv": "title,tags\nx,a\n"}, "inspect a.csv"),
    "misspelt column": ({"a.csv": "title,tags\nx,a\n"}, "inspect a.csv --text-column title --labels-column tag"),
    "semicolons between cells": ({"a.csv": "text;labels\nx;a\n"}, "inspect a.csv"),
    "tabs in a .csv": ({"a.csv": "text\tlabels\nx\ta\n"}, "inspect a.csv"),
    "comma without quotes": ({"a.csv": CSV + "one, two,a\n"}, "inspect a.csv"),
    "quote that does not end": ({"a.csv": CSV + '"x,a\ny,b\n'}, "inspect a.csv"),
    "column twice": ({"a.csv": "text,labels,text\nx,a,y\n"}, "inspect a.csv"),
    "labels in one string": ({"a.jsonl": '{"text": "x", "labels": "a, b"}\n'}, "inspect a.jsonl"),
    "labels that are numbers": ({"a.jsonl": '{"text": "x", "labels": [3, 5]}\n'}, "inspect a.jsonl"),
    "labels NaN": ({"a.jsonl": '{"text": "x", "labels": NaN}\n'}, "inspect a.jsonl"),
    "NumPy array in a cell": ({"a.csv": CSV + "x,['a' 'b']\n"}, "inspect a.csv"),
    "label with a line break": ({"a.jsonl": '{"text": "x", "labels": ["a\\nb"]}\n'}, "inspect a.jsonl"),
    "empty label separator": ({"a.csv": CSV + "x,a\n"}, ["inspect", "a.csv", "--label-separator", ""]),
    "Latin-1 JSON Lines": ({"a.jsonl": '{"text": "é"}\n'.encode("latin-1")}, "inspect a.jsonl"),
    "Latin-1 CSV": ({"a.csv": (CSV + "é,a\n").encode("latin-1")}, "inspect a.csv"),
    "UTF-16": ({"a.jsonl": '{"text": "x"}\n'.encode("utf-16")}, "inspect a.jsonl"),
    "gzip that is cut off": ({"a.jsonl.gz": gzip.compress(GOOD.encode(), mtime=0)[:-10]}, "inspect a.jsonl.gz"),
    "not gzip": ({"a.jsonl.gz": GOOD}, "inspect a.jsonl.gz"),
    "Excel": ({"a.xlsx": b"PK"}, "inspect a.xlsx"),
    "file that is not there": ({}, "inspect a.jsonl"),
    "empty file": ({"a.jsonl": ""}, "inspect a.jsonl"),
    "header alone": ({"a.csv": CSV}, "inspect a.csv"),
    "training on an empty file": ({"a.jsonl": ""}, "train a.jsonl --preset words --out m"),
    "training without labels": ({"a.jsonl": '{"text": "x"}\n'}, "train a.jsonl --preset words --out m"),
    "folder without parts": ({"c/records.jsonl": GOOD}, "train c --preset words --out m"),
    "folder without train": ({"c/test.jsonl": GOOD}, "train c --preset words --out m"),
    "a part twice": ({"c/train.jsonl": GOOD, "c/train.csv": CSV}, "train c --preset words --out m"),
    "evaluating what is not there": ({"c/train.jsonl": GOOD}, "evaluate m c"),
    "splitting a folder": ({"c/train.jsonl": GOOD}, "split c --out d"),
    "splitting over a corpus": ({"a.jsonl": GOOD, "c/train.jsonl": GOOD}, "split a.jsonl --out c"),
    "too few to split": ({"a.jsonl": GOOD}, "split a.jsonl --out c"),
    "shares above one": ({"a.jsonl": GOOD}, "split a.jsonl --out c --dev 0.5 --test 0.5"),
    "date in another order": ({"a.csv": "text,labels,day\nx,a,31.12.2020\n"}, "split a.csv --out c --by-date day"),
    "splitting nothing off": ({"a.jsonl": GOOD}, "split a.jsonl --out c --dev 0 --test 0"),
    "figures over a table": ({"a.csv": CSV + "x,a\n"}, "evaluate m c --json a.csv"),
    "figures over a part": ({"c/test.json": "[]"}, "evaluate m c --json c/test.json"),
    "tags over a model": ({"m/labels.txt": "a\n", "a.jsonl": GOOD}, "predict m a.jsonl --out m/labels.txt"),
    "model over a corpus": ({"c/train.jsonl": GOOD}, "train c --preset words --out c"),
    "text before model": ({"a.jsonl": GOOD}, "predict a.jsonl m --out tags.csv"),
    "corpus for a model": ({"c/train.jsonl": GOOD}, "serve c"),
    "corpus before model": ({"c/test.jsonl": GOOD, "m/labels.txt": "a\n"}, "evaluate c m"),
    "group that is not there": ({"a.csv": CSV + "x,a\n"}, "split a.csv --out c --group journal"),
}

WARNINGS = {
    "labels with commas between them": "".join(f'{{"text": "t{i}", "labels": ["a{i}, b{i}"]}}\n' for i in range(4)),
    "missing values as labels": "".join(f'{{"text": "t{i}", "labels": ["nan", "a{i}"]}}\n' for i in range(4)),
    "a text as label": f'{{"text": "x", "labels": ["{"word " * 20_000}"]}}\n{{"text": "y", "labels": ["b", "c"]}}\n',
    "ids that repeat": "".join(f'{{"id": 1, "text": "t{i}", "labels": ["a{i}", "b"]}}\n' for i in range(4)),
    "empty texts": GOOD + '{"text": " ", "labels": ["animals"]}\n',
    "documents without labels": GOOD + '{"text": "more", "labels": []}\n',
    "the same text twice": GOOD + '{"text": "Trains", "labels": ["animals"]}\n',
    "two spellings": GOOD + '{"text": "a cat", "labels": ["Animals"]}\n',
    "a label that all have": "".join(f'{{"text": "t{i}", "labels": ["all", "a{i}"]}}\n' for i in range(4)),
}


def put(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def answer(folder, files, command):
    """What a command says of these files."""
    put(folder, files)
    before = contents(folder)
    done = aplc(*(command.split() if isinstance(command, str) else command))
    assert (done.returncode, done.stdout) == (2, ""), done
    assert contents(folder) == before
    return done.stderr.strip()


def warnings_of(printed):
    return [line for line in printed.splitlines() if line.startswith("warning: ")]


@pytest.mark.parametrize("mistake", ERRORS)
def test_page_shows_what_is_printed(tmp_path, monkeypatch, mistake):
    monkeypatch.chdir(tmp_path)
    (line,) = answer(tmp_path, *ERRORS[mistake]).splitlines()
    assert line.startswith("aplc: ")
    assert f"| `{line.replace('|', chr(92) + '|')}` |" in PAGE


@pytest.mark.parametrize("mistake", WARNINGS)
def test_inspect_and_train_warn_alike(tmp_path, monkeypatch, mistake):
    monkeypatch.chdir(tmp_path)
    put(tmp_path, {"a.jsonl": WARNINGS[mistake]})
    inspected = warnings_of(aplc("inspect", "a.jsonl", "--preset", "words").stdout)
    assert inspected
    trained = aplc("train", "a.jsonl", "--preset", "words", "--out", "m")
    assert warnings_of(trained.stderr) == inspected
    assert any(f"| `{line}` |" in PAGE for line in inspected), inspected
