"""Guards README and docs: every block of code is run as it stands, or says why it can't be.

A block is fenced and has a language. `sh` and `python` are run in order, each page in a folder of its own with the
files that docs speak of; `json` is parsed; `text` is what was printed, a formula or a drawing; `bibtex` is for
copying. A comment above the fence, one of `MARKS`, says why a block is not run.
"""

import contextlib
import csv
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import typer

from aplc.cli import app
from aplc.data.corpus import Corpus
from helpers import SMALL, TOPICS, aplc, as_options, ok, topic_rows, write, write_rows

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "README.md"]
MARKS = {
    "needs a GPU",
    "needs a cluster",
    "needs the hub",
    "needs the package index",
    "needs Annif",
    "needs Ray",
    "needs Spark",
    "long: run by hand",
}
RUN_LANGUAGES = {"sh", "python", "json"}
LANGUAGES = RUN_LANGUAGES | {"text", "bibtex"}
LABELS = {"music, classical": "music", "météo": "weather", "rare": "culture"}
"""Names that can be typed on any keyboard."""


def name_of(page):
    return str(page.relative_to(ROOT))


class Block(NamedTuple):
    line: int
    language: str
    mark: str
    code: str


def blocks(page):
    """The fenced blocks of a page; an indented one has no language."""
    lines, found, i = page.read_text("utf-8").split("\n"), [], 0
    while i < len(lines):
        if lines[i].startswith("```"):
            end = lines.index("```", i + 1)
            mark = re.fullmatch(r"<!-- (.*) -->", lines[i - 1])
            found.append(Block(i + 1, lines[i][3:], mark[1] if mark else "", "\n".join(lines[i + 1 : end])))
            i = end
        elif lines[i].startswith("    ") and not lines[i - 1]:
            found.append(Block(i + 1, "", "", lines[i]))
        i += 1
    return found


def commands(block):
    """Lines to type: joined where they end in a backslash, without comments."""
    lines = (re.sub(r"\s+#\s.*", "", line) for line in block.code.replace("\\\n", "").split("\n"))
    return [line for line in lines if line]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_has_a_language_and_a_known_mark(page):
    for block in blocks(page):
        where = f"{page.name}, line {block.line}"
        assert block.language in LANGUAGES, f"{where}: fence it, as {', '.join(sorted(LANGUAGES))}"
        assert not block.mark or block.mark in MARKS, f"{where}: {block.mark!r} is not one of {sorted(MARKS)}"
        typed = re.search(r"^\$? ?(?:aplc|make|pip|python|torchrun|curl) .*$", block.code, flags=re.MULTILINE)
        assert block.language != "text" or not typed, f"{where}: a command in a text block is not run: {typed[0]}"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What docs speak of, made once: a corpus, files, a words model, a network, an encoder."""
    folder = tmp_path_factory.mktemp("docs")
    rows, new = ([named(row) for row in topic_rows(n, seed=seed)] for n, seed in ((200, 1), (40, 2)))
    (folder / "corpus").mkdir()
    write_rows(folder / "corpus" / "train.jsonl", rows)
    write_rows(folder / "corpus" / "test.jsonl", new)
    for name in ("new.jsonl", "texts.jsonl"):
        write_rows(folder / name, [{"id": row["id"], "text": row["text"]} for row in new])
    write_rows(folder / "examples.jsonl", [{"text": f"{row['text']} telescope", "labels": ["space"]} for row in new])
    reviewed = [{"text": row["text"], "accepted": row["labels"], "rejected": ["culture"]} for row in new[1:9]]
    write_rows(folder / "feedback.jsonl", reviewed)
    for name in ("records.csv", "new.csv"):
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(table(rows))
    ok(aplc("train", folder / "corpus", "--preset", "words", "--out", folder / "words"))
    for copy in ("model", "newer"):
        shutil.copytree(folder / "words", folder / copy)
    small = as_options([*SMALL, "train.epochs=10"])
    ok(aplc("train", folder / "corpus", "--preset", "tiny", *small, "--out", folder / "network"))
    sizes = ["data.vocab_size=60", "model.layers=1", "model.width=32", "model.heads=2", "model.inner_width=32"]
    steps = as_options([*sizes, "train.steps=3", "train.batch_size=4", "data.max_length=32", "data.memory=0"])
    ok(aplc("pretrain", folder / "corpus", *steps, "--out", folder / "encoder"))
    return folder


def named(row):
    return row | {"labels": [LABELS.get(label, label) for label in row["labels"]]}


def table(rows):
    """Rows of a CSV file in which every option for columns has something to name."""
    yield ["text", "labels", "title", "abstract", "tags", "year", "journal"]
    for i, row in enumerate(rows):
        labels = row["labels"]
        yield [row["text"], ";".join(labels), row["text"], "", ",".join(labels), 1990 + i // 10, f"journal {i % 20}"]


class Shell:
    """Types a page's commands. `aplc` runs in this process, where that will do: importing torch takes seconds."""

    def __init__(self, folder, tools):
        self.folder, self.address, self.serving = folder, "", None
        self.environment = os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    def type(self, line):
        words = shlex.split(line, comments=True)
        if "--out" in words and "--resume" not in words:  # each block stands for itself
            self.remove(words[words.index("--out") + 1])
        if words[:2] == ["aplc", "serve"]:
            self.serve(words[2:])
        elif words[0] == "aplc" and not set("|<>&;$*") & set(line):
            done = aplc(*words[1:])
            ok(done)
            assert done.stderr.splitlines()[-1].startswith("next: aplc "), f"{line}: does not say what to type next"
        else:
            line = line.replace("localhost:8000", self.address).replace("curl ", "curl --fail-with-body -sS ")
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", line],
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"

    def remove(self, name):
        path = self.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def serve(self, words):
        self.stop()
        command = [sys.executable, "-m", "aplc", "serve", *words, "--port", "0"]
        self.serving = subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, text=True, stdout=subprocess.DEVNULL
        )
        found = (re.search(r"http://([\d.:]+)/", line) for line in self.serving.stderr)
        self.address = next(match[1] for match in found if match)

    def stop(self):
        if self.serving:
            self.serving.terminate()
            self.serving.wait(30)
            self.serving.stderr.close()
            self.serving = None


@pytest.fixture
def shell(files, tmp_path, monkeypatch):
    folder, tools = tmp_path / "here", tmp_path / "tools"
    shutil.copytree(files, folder)
    tools.mkdir()
    for name, program in {"aplc": "-m aplc", "torchrun": "-m torch.distributed.run", "python": ""}.items():
        write(tools / name, f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {program} "$@"\n').chmod(0o755)
    monkeypatch.chdir(folder)
    opened = Shell(folder, tools)
    yield opened
    opened.stop()


RUN = [page for page in PAGES if any(not block.mark and block.language in RUN_LANGUAGES for block in blocks(page))]


@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_blocks_run(page, shell):
    names, printed = {}, []
    PREPARE.get(name_of(page), lambda *_: None)(page, shell.folder)
    for block in blocks(page):
        if block.mark or block.language not in RUN_LANGUAGES:
            continue
        if block.language == "sh":
            for command in commands(block):
                shell.type(command)
        elif block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block.code, page.name, "exec"), names)
            printed.append(out.getvalue())
        else:
            parsed(block.code)
    CHECKS.get(name_of(page), lambda *_: None)(page, shell.folder, names, printed)


def parsed(code):
    """One object, or one a line."""
    try:
        return [json.loads(code)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in code.split("\n")]


def with_vocabulary(page, folder):
    """The corpus carries the ids of the page's own vocabulary."""
    (entries,) = (block.code for block in blocks(page) if block.language == "json")
    write(folder / "corpus" / "vocabulary.jsonl", entries)
    ids = {"animals": "d1", "vehicles": "v1"}
    for part in ("train", "test"):
        path = folder / "corpus" / f"{part}.jsonl"
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        write_rows(path, [row | {"labels": [ids[name] for name in row["labels"] if name in ids]} for row in rows])


def with_thesaurus(page, folder):
    """Names in the records, URIs in the thesaurus."""
    pytest.importorskip("rdflib")
    names = [LABELS.get(label, label) for label in TOPICS]
    concepts = (f'e:{name} a skos:Concept ; skos:prefLabel "{name.title()}"@en .\n' for name in names)
    prefixes = "@prefix skos: <http://www.w3.org/2004/02/skos/core#> .\n@prefix e: <http://example.org/> .\n"
    write(folder / "thesaurus.ttl", prefixes + "".join(concepts))


def check_readme(page, folder, names, printed):
    """The Python example prints what README says, and the commands write what they should."""
    (code,) = (block.code for block in blocks(page) if block.language == "python")
    found, said = ([(int(n), label) for n, label in re.findall(r"(\d+)% (\w+)", text)] for text in (*printed, code))
    assert [label for _, label in found] == [label for _, label in said]
    assert [share for share, _ in found] == pytest.approx([share for share, _ in said], abs=2)
    assert "P@5" in (folder / "report.html").read_text("utf-8")
    assert len((folder / "tags.csv").read_text("utf-8").splitlines()) == 201


def check_split(page, folder, names, printed):
    assert set((folder / "newer" / "labels.txt").read_text("utf-8").split()) == {
        f"http://example.org/{LABELS.get(label, label)}" for label in TOPICS
    }
    assert '"added": ["http://example.org/animals"]' in (folder / "feedback.jsonl").read_text("utf-8")
    sizes = {part: len(list(Corpus.open("corpus").documents(part))) for part in ("train", "dev", "test")}
    assert sizes == {"train": 160, "dev": 20, "test": 20}
    newest = {json.loads(line)["year"] for line in (folder / "newest" / "test.jsonl").open(encoding="utf-8")}
    assert newest == {str(year) for year in range(2006, 2010)}


def check_using(page, folder, names, printed):
    assert names["df"]["tags"][0] == ["animals"]
    assert names["search"].best_score_ > 0.5
    assert names["search"].predict(names["df"]["title"]).shape == names["y"].shape


def check_vocabulary(page, folder, names, printed):
    rows = [json.loads(line) for line in (folder / "tags.jsonl").open(encoding="utf-8")]
    assert {label for row in rows for label in row["labels"]} == {"c1", "d1", "d2"}
    assert {name for row in rows for name in row["names"]} == {"Animals", "Dogs", "Terriers"}


PREPARE = {"docs/corpus.md": with_thesaurus, "docs/vocabulary.md": with_vocabulary}
CHECKS = {
    "README.md": check_readme,
    "docs/corpus.md": check_split,
    "docs/using.md": check_using,
    "docs/vocabulary.md": check_vocabulary,
}


def spans(page):
    """Commands in the middle of a sentence or in a table: `aplc train CORPUS --preset words`."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(span.split()) for span in re.findall(r"`(aplc [a-z][^`]*)`", text)]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "mistakes.md"], ids=name_of)
def test_commands_in_sentences_exist(page):
    """With all their options; mistakes.md has a test of its own."""
    for span in spans(page):
        group, words = typer.main.get_command(app), span.split()[1:]
        while words and hasattr(group, "commands") and words[0] in group.commands:
            group = group.commands[words.pop(0)]
        assert not hasattr(group, "commands") or not words, (page.name, span)
        known = {option for parameter in group.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known, (page.name, span)
