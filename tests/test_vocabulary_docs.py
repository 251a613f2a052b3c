"""Guards docs/vocabulary.md: its example of a vocabulary is read, trained with, and narrows predictions as it says."""

import json
import re
import shlex
from pathlib import Path

from helpers import aplc, ok, topic_rows, write, write_rows

DOCS = (Path(__file__).parents[1] / "docs" / "vocabulary.md").read_text("utf-8")


def test_the_example_does_what_the_page_says(tmp_path, monkeypatch):
    (lines,) = re.findall(r"```json\n(.*?)```", DOCS, re.DOTALL)
    commands = [
        line
        for block in re.findall(r"```sh\n(.*?)```", DOCS, re.DOTALL)
        for line in block.replace("\\\n", "").splitlines()
    ]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus").mkdir()
    write(tmp_path / "corpus" / "vocabulary.jsonl", lines)
    renamed = {"animals": "d1", "vehicles": "v1"}
    rows = [
        row | {"labels": [renamed[label] for label in row["labels"] if label in renamed]}
        for row in topic_rows(80, seed=7)
    ]
    write_rows(tmp_path / "corpus" / "train.jsonl", rows)
    write_rows(tmp_path / "corpus" / "test.jsonl", rows[:20])
    write_rows(tmp_path / "new.jsonl", [{"text": "a dog and a train"}])
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "aplc"
        ok(aplc(*arguments))
    (row,) = map(json.loads, (tmp_path / "tags.jsonl").open())
    assert set(row["labels"]) == {"c1", "d1", "d2"}
    assert set(row["names"]) == {"Animals", "Dogs", "Terriers"}
