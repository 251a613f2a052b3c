"""Guards README and docs: links lead somewhere, names exist. Blocks of code are run by test_docs_blocks.py."""

import re
from pathlib import Path

from helpers import aplc

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
DOCS = ROOT / "docs"


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    pages = [README, *(page.read_text("utf-8") for page in (*DOCS.glob("*.md"), ROOT / "CONTRIBUTING.md"))]
    named = {target for page in pages for target in re.findall(r"(?:`|^)make ([a-z][a-z-]+)", page, re.MULTILINE)}
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


def test_every_command_is_in_the_table():
    table = README.split("## All commands")[1].split("\n## ")[0]
    described = {line.split()[0] for line in aplc("--help").stdout.split("Commands:")[1].splitlines() if line.strip()}
    assert set(re.findall(r"`aplc (\w+)", table)) == described


def test_pictures_show_numbers_as_numbers():
    """Text in them is text: what matplotlib means as TeX would be shown as it is written."""
    pictures = list((DOCS / "pictures").glob("*.svg"))
    assert pictures
    assert [path.name for path in pictures if re.search(r"<text[^>]*>\s*\$", path.read_text("utf-8"))] == []
