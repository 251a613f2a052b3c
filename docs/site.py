"""Hooks of mkdocs.yml: files from outside docs/ become pages, so that they are written once and read in both places.

Links between files are as GitHub wants them, and are turned into the site's.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "bench/LOG.md": "log.md",
    "examples/README.md": "examples.md",
    "CITATION.cff": "CITATION.cff",
}
PAGES |= {f"examples/{path.name}": f"examples/{path.name}" for path in sorted((ROOT / "examples").glob("*.py"))}
ORIGINS = {page: file for file, page in PAGES.items()}
LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)#\s]+)")
LIST = re.compile(r"^(?![-|>\s#]|\d+\. )(.+\n)(?=(?:- |1\. ))", re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    for file, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / file).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links of files become links of pages; a list needs an empty line before it, as it does not on GitHub."""
    place = ORIGINS.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def moved(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(place), match[2]))
        return match[1] + PAGES.get(target, target.removeprefix("docs/"))

    parts = re.split(r"(^```.*?^```$)", LINK.sub(moved, markdown), flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LIST.sub(r"\1\n", part) for part in parts)
