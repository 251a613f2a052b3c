"""Guards README and docs: commands and Python examples run as they stand."""

import csv
import re
import shlex
import shutil
from pathlib import Path

from aplc.data.corpus import Corpus
from helpers import SMALL, aplc, as_options, ok

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
DOCS = Path(__file__).parent.parent / "docs"


def blocks(language, page=None):
    """Code blocks of README, or of a page of the docs."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8") if page else README, flags=re.DOTALL)


def test_commands_run(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(corpus, "corpus")
    shutil.copy(corpus / "test.jsonl", "new.jsonl")
    commands = [shlex.split(line) for block in blocks("sh") for line in block.splitlines()]
    assert len(commands) >= 4
    for program, *arguments in commands:
        assert program == "aplc"
        small = [*SMALL, "train.epochs=1"] if arguments[0] == "train" else []  # the same command, on a smaller model
        done = aplc(*arguments, *as_options(small))
        assert done.returncode == 0, (arguments, done.stderr)
    assert len((tmp_path / "tags.jsonl").read_text().splitlines()) == 60


def test_python_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert blocks("python")
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), {})


def test_pandas_and_scikit_learn_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    examples = blocks("python", DOCS / "using.md")
    assert len(examples) == 2
    for block in examples:  # the second goes on with what the first made
        exec(compile(block, "using.md", "exec"), names)
    assert names["df"]["tags"][0] == ["animals"]
    assert names["search"].best_score_ > 0.5
    assert names["search"].predict(names["df"]["title"]).shape == names["y"].shape


def test_one_file_is_split_as_docs_say(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [[f"a text, {i}\nof two lines", "x;y"] for i in range(50)]
    with open("records.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["text", "labels"], *rows])
    (command,) = re.findall(r"^aplc (split .*?) \[", (DOCS / "corpus.md").read_text("utf-8"), flags=re.MULTILINE)
    ok(aplc(*shlex.split(command)))
    corpus = Corpus.open("corpus")
    texts = {part: [document.text for document in corpus.documents(part)] for part in corpus.parts}
    assert {part: len(found) for part, found in texts.items()} == {"train": 40, "dev": 5, "test": 5}
    assert sorted(text for found in texts.values() for text in found) == sorted(text for text, _ in rows)


def test_every_command_is_in_the_table():
    listed = set(re.findall(r"^\| `aplc (\w+)", README, flags=re.MULTILINE))
    described = {line.split()[0] for line in aplc("--help").stdout.split("Commands:")[1].splitlines() if line.strip()}
    assert listed == described & listed
    assert described <= listed
