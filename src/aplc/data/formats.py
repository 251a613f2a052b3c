"""Reads corpus files of all formats as a stream of `Document`s.

JSON Lines: `{"text": ..., "labels": [...]}` per line. CSV: columns `text` and `labels`, the latter a JSON list or names
separated by `;`. Parquet: column `labels` of lists, or text as in CSV. `.txt`: one text per line, no labels. All but
Parquet may be gzipped. A row that can't be read raises `CorpusError` with file and line; with `BadRows("skip")` it is
written to a rejects file instead.
"""

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from aplc.errors import CorpusError
from aplc.machine import is_main_process, n_processes

SUFFIXES = (".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".parquet", ".txt", ".txt.gz")
STDIN = "-"
UNQUOTED = "is a quote missing, or not doubled inside a cell?"


@dataclass(slots=True)
class Document:
    text: str
    labels: list[str] = field(default_factory=list)
    id: str | None = None
    """The row's own id, where it has one."""
    line: int = 0
    """Line (JSON Lines, CSV, text) or row (Parquet) in its file, from 1."""


@dataclass
class BadRows:
    """What to do with a row that can't be read: stop, or write it to a rejects file and go on."""

    mode: Literal["stop", "skip"] = "stop"
    rejects: Path | None = None
    """Created with the first bad row; JSON Lines with `file`, `line`, `error` and `row`."""
    count: int = 0
    _seen: set[tuple[str, int]] = field(default_factory=set)

    def handle(self, path: Path | str, line: int, error: str, row: object) -> None:
        where = "standard input" if str(path) == STDIN else str(path)
        if self.mode == "stop":
            raise CorpusError(f"{where}, line {line}: {error} (or skip such rows with --on-bad-row skip)")
        if (where, line) in self._seen:  # a corpus is read more than once
            return
        if self.rejects is not None and is_main_process():
            self.rejects.parent.mkdir(parents=True, exist_ok=True)
            with self.rejects.open("w" if self.count == 0 else "a", encoding="utf-8") as out:
                entry = {"file": where, "line": line, "error": error, "row": row}
                out.write(json.dumps(entry, default=str) + "\n")
        self._seen.add((where, line))
        self.count += 1


class _Bad(Exception):  # noqa: N818 -- never leaves this module
    """What is wrong with a row; the caller knows its file and line."""


def read_documents(path: Path | str, bad_rows: BadRows | None = None) -> Iterator[Document]:
    """Stream the documents of one file, or of standard input (`-`, JSON Lines)."""
    bad_rows = bad_rows or BadRows()
    name = str(path).lower()
    if name == STDIN:
        if n_processes() > 1:
            raise CorpusError("standard input can't be shared by several processes; give a file")
        yield from _read_lines(path, sys.stdin.buffer, _from_json, bad_rows)
    elif name.endswith(".parquet"):
        yield from _read_parquet(Path(path), bad_rows)
    elif name.endswith(SUFFIXES):
        with open_bytes(Path(path)) as stream:
            try:
                if name.removesuffix(".gz").endswith(".csv"):
                    yield from _read_csv(Path(path), stream, bad_rows)
                else:
                    plain = name.removesuffix(".gz").endswith(".txt")
                    yield from _read_lines(path, stream, _from_text if plain else _from_json, bad_rows)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise CorpusError(f"{path}: broken gzip file ({error}); download or compress it again") from None
    else:
        raise CorpusError(f"{path}: unknown file format; expected one of {', '.join(SUFFIXES)}")


def open_bytes(path: Path) -> BinaryIO:
    if not path.is_file():
        raise CorpusError(f"{path}: no such file")
    return cast(BinaryIO, gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb"))


def _read_lines(path: Path | str, stream: BinaryIO, parse: Any, bad_rows: BadRows) -> Iterator[Document]:
    for line, raw in enumerate(stream, start=1):
        raw = raw.removeprefix(b"\xef\xbb\xbf") if line == 1 else raw
        if not raw.strip():
            continue
        try:
            yield parse(raw, line)
        except _Bad as bad:
            bad_rows.handle(path, line, str(bad), raw.decode("utf-8", "backslashreplace").rstrip("\r\n"))


def _decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise _Bad(f"not UTF-8 at byte {error.start}; save the file as UTF-8") from None


def _from_text(raw: bytes, line: int) -> Document:
    return Document(text=_decode(raw), line=line)


def _from_json(raw: bytes, line: int) -> Document:
    text = _decode(raw)
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also for a number with too many digits
        raise _Bad(f"not JSON: {error}") from None
    if not isinstance(row, dict):
        raise _Bad(f'a row is an object like {{"text": "...", "labels": ["..."]}}, found {type(row).__name__}')
    return _document(row, line)


def _read_csv(path: Path, stream: BinaryIO, bad_rows: BadRows) -> Iterator[Document]:
    csv.field_size_limit(2**31 - 1)  # the default refuses texts over 128 KiB
    reader = csv.reader(io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline=""), strict=True)
    try:
        header = next(reader, [])
    except csv.Error as error:
        raise CorpusError(f"{path}, line 1: {error}; {UNQUOTED}") from None
    if repeated := [name for name in ("text", "labels", "id") if header.count(name) > 1]:
        raise CorpusError(f"{path}, line 1: the header has several columns {repeated[0]!r}; keep one")
    if header and "text" not in header:
        raise CorpusError(
            f"{path}, line 1: the header has no column 'text', only {', '.join(header)}; "
            "name the columns text and (but for predict) labels, with commas between cells"
        )
    while True:
        cells: list[str] = []
        first_line = reader.line_num + 1
        try:
            cells = next(reader)
            if not cells:
                continue
            if len(cells) != len(header):
                raise _Bad(f"{len(cells)} cells where the header has {len(header)}; quote cells that contain commas")
            row: dict[str, Any] = dict(zip(header, cells, strict=True))
            row["labels"] = _split_labels(row.get("labels", ""))
            yield _document(row, reader.line_num)
        except StopIteration:
            return
        except _Bad as bad:
            bad_rows.handle(path, reader.line_num, str(bad), cells)
        except csv.Error as error:
            bad_rows.handle(path, first_line, f"{error}; {UNQUOTED}", f"lines {first_line} to {reader.line_num}")


def _read_parquet(path: Path, bad_rows: BadRows) -> Iterator[Document]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise CorpusError(f"{path}: reading Parquet needs pyarrow: pip install pyarrow") from None
    if not path.is_file():
        raise CorpusError(f"{path}: no such file")
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise CorpusError(f"{path}: not a Parquet file ({error})") from None
    names = file.schema_arrow.names
    if "text" not in names:
        raise CorpusError(f"{path}: no column 'text', only {', '.join(names)}")
    columns = [name for name in ("text", "labels", "id") if name in names]
    line = 0
    for batch in file.iter_batches(batch_size=1024, columns=columns):
        for row in batch.to_pylist():
            line += 1
            try:
                if isinstance(row.get("labels"), str):
                    row["labels"] = _split_labels(row["labels"])
                yield _document(row, line)
            except _Bad as bad:
                bad_rows.handle(path, line, str(bad), row)


def _split_labels(cell: str) -> list[Any]:
    """Labels in one cell: a JSON list, or names separated by `;` (commas belong to names)."""
    if cell.lstrip().startswith("["):
        try:
            return json.loads(cell)
        except (ValueError, RecursionError) as error:
            raise _Bad(f"labels start with '[' but are not a JSON list: {error}") from None
    return [name for name in cell.split(";") if name.strip()]


def _document(row: dict[str, Any], line: int) -> Document:
    text, labels, identity = row.get("text"), row.get("labels"), row.get("id")
    if not isinstance(text, str):
        raise _Bad("no 'text'" if text is None else f"'text' must be a string, found {type(text).__name__}")
    if labels is None:
        labels = []
    if not isinstance(labels, list):
        raise _Bad(f'\'labels\' must be a list of strings like ["a", "b"], found {type(labels).__name__}')
    try:
        names = clean_names(labels)
    except ValueError as error:
        raise _Bad(str(error)) from None
    identity = None if identity is None else str(identity)
    if not is_unicode(text + (identity or "")):
        raise _Bad("not valid Unicode; save the file as UTF-8")
    return Document(text=text, labels=names, id=identity, line=line)


def clean_names(labels: Iterable[object]) -> list[str]:
    """Labels without surrounding whitespace and without repeats; ValueError for one that can't be a name."""
    names = []
    for label in labels:
        if not isinstance(label, str):
            raise ValueError(f"label {label!r} must be a string, found {type(label).__name__}; quote it")
        names.append(label.strip())
        if not names[-1] or "\n" in names[-1] or "\r" in names[-1]:
            raise ValueError(f"label {label!r} is empty or has a line break")
        if not is_unicode(label):
            raise ValueError(f"label {label!r} is not valid Unicode; save it as UTF-8")
    return list(dict.fromkeys(names))


def is_unicode(text: str) -> bool:
    """False if the text has half of a surrogate pair, which Python and JSON allow and UTF-8 does not."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
