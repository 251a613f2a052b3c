"""Rows of a vocabulary file: JSON Lines, JSON, CSV and TSV, Annif's TSV and CSV. `skos.py` reads RDF.

| file | an entry |
| --- | --- |
| .jsonl | `{"label": "d1", "name": "Dogs", "names": ["dog"], "broader": ["c1"], "scheme": ["topics"]}` |
| .json | one object of labels and names, `{"d1": "Dogs"}`, or of labels and objects; or a list of objects as above |
| .csv, .tsv | columns with the same names; `|` between several values of a cell, or `;` where it has no `|` |
| .tsv of Annif | `<uri>`, a tab, the name; no header |
| .csv of Annif | columns `uri` and `label_en`, `label_fr`, ... |

All may be gzipped. What is read at a time is bounded, so that a hostile file can't take all memory.
"""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from aplc.data.bounded import LANGUAGE, LINE, BoundedLines, read_whole
from aplc.data.columns import listed
from aplc.data.formats import open_bytes
from aplc.data.skos import SUFFIXES as RDF
from aplc.data.skos import read_skos
from aplc.errors import CorpusError

FIELDS = ("label", "name", "names", "broader", "scheme", "description")
SUFFIXES = tuple(f"{kind}{packed}" for kind in (".jsonl", ".json", ".csv", ".tsv", *RDF) for packed in ("", ".gz"))
Row = tuple[str, Mapping[str, Any]]
"""Where it is ("line 12"), and values by `FIELDS`."""


def read_rows(path: Path, language: str | None) -> tuple[Iterator[Row], str]:
    """The rows of a file, and what to call it in messages, with the language that was chosen."""
    name = path.name.lower().removesuffix(".gz")
    if not name.endswith(SUFFIXES):
        raise CorpusError(f"{path}: unknown vocabulary format; expected one of {', '.join(SUFFIXES)}")
    stream = open_bytes(path)
    if name.endswith(RDF):
        return read_skos(path, stream, language)
    if name.endswith(".json"):
        return _read_json(path, stream), str(path)
    if name.endswith(".jsonl"):
        return _read_lines(path, stream), str(path)
    return _read_table(path, stream, "\t" if name.endswith(".tsv") else ",", language)


def _read_lines(path: Path, stream: BinaryIO) -> Iterator[Row]:
    with stream:
        lines = BoundedLines(path, stream)
        for text in lines:
            lines.settle()
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise lines.error(f"not JSON: {error}; a line is an entry like {_LIKE}") from None
            if not isinstance(row, dict):
                raise lines.error(f"a line is an entry like {_LIKE}, found {type(row).__name__}")
            yield lines.where, row


_LIKE = '{"label": "...", "name": "..."}'


def _read_json(path: Path, stream: BinaryIO) -> Iterator[Row]:
    raw = read_whole(path, stream, "make a .jsonl file of it, an entry a line")
    try:
        tree = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_Pairs)
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise CorpusError(f"{path}{line}: not JSON: {error}") from None
    if isinstance(tree, _Pairs):
        for number, (label, value) in enumerate(tree.pairs, start=1):
            fields = dict(value.pairs) if isinstance(value, _Pairs) else {"name": value}
            yield f"entry {number}", fields | {"label": label}
    elif isinstance(tree, list) and all(isinstance(row, _Pairs) for row in tree):
        yield from ((f"entry {number}", dict(row.pairs)) for number, row in enumerate(tree, start=1))
    else:
        raise CorpusError(f"{path}: must be an object of labels and names, or a list of entries like {_LIKE}")


class _Pairs:
    """A JSON object with all its keys: a dict would drop labels that occur twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.pairs = pairs


def _read_table(path: Path, stream: BinaryIO, delimiter: str, language: str | None) -> tuple[Iterator[Row], str]:
    lines = BoundedLines(path, stream)
    texts = iter(lines)
    first = next(texts, "")
    if delimiter == "\t" and first.startswith("<"):
        return _read_annif(lines, first, texts), str(path)
    rows = _cells(lines, first, texts, delimiter)
    _, header = next(rows, ("", []))
    if "label" in header:
        _check_header(path, header, FIELDS)
        return _read_ours(rows, header), str(path)
    languages = [name.removeprefix("label_") for name in header if name.startswith("label_")]
    if "uri" not in header or not languages:
        raise CorpusError(
            f"{path}, line 1: no column 'label', only {listed(header)}; name the columns {', '.join(FIELDS)}, or as "
            "Annif does: uri, label_en, ..."
        )
    _check_header(path, header, ("uri", *(f"label_{name}" for name in languages)))
    if language and language not in languages:
        raise CorpusError(f"{path}: no names in --language {language}, only in {', '.join(languages)}")
    chosen = language or (LANGUAGE if LANGUAGE in languages else languages[0])
    in_order = [chosen, *(name for name in languages if name != chosen)]
    return _read_annif_csv(rows, header, in_order, only=language is not None), f"{path} (names in {chosen})"


def _check_header(path: Path, header: list[str], used: tuple[str, ...]) -> None:
    if repeated := [name for name in used if header.count(name) > 1]:
        raise CorpusError(f"{path}, line 1: the header has several columns {repeated[0]!r}; keep one")


def _cells(lines: BoundedLines, first: str, rest: Iterator[str], delimiter: str) -> Iterator[tuple[str, list[str]]]:
    """(where, cells) of a table's rows, the header included; all have as many cells."""

    def texts() -> Iterator[str]:
        yield first
        yield from rest

    limit = csv.field_size_limit(LINE)
    width, reader = 0, csv.reader(texts(), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            lines.settle()
            if not cells:
                continue
            width = width or len(cells)
            if len(cells) != width:
                between = "tabs" if delimiter == "\t" else "commas"
                raise lines.error(
                    f"{len(cells)} cells where the header has {width}; quote cells that contain {between}"
                )
            yield lines.where, cells
    except csv.Error as error:
        raise lines.error(f"{error}; is a quote missing, or not doubled inside a cell?") from None
    finally:
        csv.field_size_limit(limit)
        lines.stream.close()


def _read_ours(rows: Iterator[tuple[str, list[str]]], header: list[str]) -> Iterator[Row]:
    places = [(header.index(name), name, _SPLIT.get(name, str)) for name in FIELDS if name in header]
    for where, cells in rows:
        yield where, {name: read(cells[i]) for i, name, read in places}


def split_values(cell: str) -> list[Any]:
    """Several values of a cell: a JSON list, or values with `|` between them, or else with `;`."""
    if cell.startswith("["):
        try:
            return list(json.loads(cell))
        except (ValueError, TypeError, RecursionError):
            pass  # a name may begin with a bracket
    return cell.split("|" if "|" in cell else ";")


_SPLIT: dict[str, Callable[[str], Any]] = {"names": split_values, "broader": split_values, "scheme": split_values}


def _read_annif(lines: BoundedLines, first: str, rest: Iterator[str]) -> Iterator[Row]:
    """Annif's TSV; a subject without a name is a deprecated one there, and no label."""

    def texts() -> Iterator[str]:
        yield first
        yield from rest

    with lines.stream:
        for text in texts():
            lines.settle()
            if not text.strip():
                continue
            uri, _, others = text.strip().partition("\t")
            if not (uri.startswith("<") and uri.endswith(">")):
                raise lines.error("expected a URI like <http://example.org/subject>, a tab and a name, as in line 1")
            if name := others.split("\t")[0]:
                yield lines.where, {"label": uri[1:-1], "name": name}


def _read_annif_csv(
    rows: Iterator[tuple[str, list[str]]], header: list[str], languages: list[str], *, only: bool
) -> Iterator[Row]:
    """Annif's CSV; the first language's name comes first. `only`: others are read only where it has none."""
    uri, places = header.index("uri"), [header.index(f"label_{name}") for name in languages]
    for where, cells in rows:
        names = [cells[i] for i in places if cells[i].strip()]
        if names:
            label = cells[uri].strip().removeprefix("<").removesuffix(">")
            yield where, {"label": label, "name": names[0], "names": [] if only else names[1:]}
