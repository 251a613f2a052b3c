"""Guards README and docs: commands and Python examples run as they stand."""

import csv
import re
import shlex
from pathlib import Path

import pytest

from aplc.data.corpus import Corpus
from helpers import aplc, ok, topic_rows

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
DOCS = ROOT / "docs"


def blocks(language, page=None):
    """Code blocks of README, or of a page of the docs."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8") if page else README, flags=re.DOTALL)


def test_commands_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [[row["text"], ";".join(row["labels"])] for row in topic_rows(150, seed=3)]
    for name in ("records.csv", "new.csv"):
        with open(name, "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([["text", "labels"], *rows])
    install, *commands = [line for block in blocks("sh") for line in block.splitlines()]
    assert install == "pip install ."  # `make release-check` does that
    assert len(commands) == 4
    for program, *arguments in map(shlex.split, commands):
        assert program == "aplc"
        ok(aplc(*arguments))
    assert "P@5" in (tmp_path / "report.html").read_text("utf-8")
    assert len((tmp_path / "tags.csv").read_text("utf-8").splitlines()) == 151


def test_python_example_prints_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("python")
    exec(compile(block, "README.md", "exec"), {})
    found, said = (
        [(int(share), label) for share, label in re.findall(r"(\d+)% (\w+)", text)]
        for text in (capsys.readouterr().out, blocks("text")[0])
    )
    assert [label for _, label in found] == [label for _, label in said]
    assert [share for share, _ in found] == pytest.approx([share for share, _ in said], abs=2)


def test_every_block_of_code_is_of_a_kind_that_is_run():
    """Python and commands are run above; text is what was printed, and the one indented block is the picture."""
    assert set(re.findall(r"^```(\w*)$", README, flags=re.MULTILINE)) == {"sh", "python", "text", ""}
    indented = re.findall(r"\n\n((?:    .*\n)+)", README)
    assert [block.count("►") > 3 for block in indented] == [True]


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    pages = [README, *(page.read_text("utf-8") for page in DOCS.glob("*.md"))]
    named = {target for page in pages for target in re.findall(r"(?:`| {4})make ([a-z][a-z-]+)", page)}
    assert named >= {"demo", "install", "bench-peers"}
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))


def test_readme_is_short():
    lines = README.splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 120 and not line.startswith(("|", "!", "["))] == []


def test_links_lead_somewhere():
    """Files and headings that README, docs and examples point at."""
    for page in (ROOT / "README.md", *DOCS.glob("*.md"), *(ROOT / "examples").glob("*.md")):
        for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text("utf-8")):
            name, _, heading = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), (page.name, link)
            assert not heading or heading in anchors(target), (page.name, link)


def anchors(page):
    """Headings as GitHub and MkDocs name them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


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
    table = README.split("## All commands")[1].split("\n## ")[0]
    described = {line.split()[0] for line in aplc("--help").stdout.split("Commands:")[1].splitlines() if line.strip()}
    assert set(re.findall(r"`aplc (\w+)", table)) == described
