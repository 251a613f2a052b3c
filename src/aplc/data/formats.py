"""Reads corpus files of all formats as a stream of `Document`s.

JSON Lines: `{"text": ..., "labels": [...]}` per line. JSON: one list of such objects. CSV and TSV: columns `text` and
`labels`, the latter a list or names separated by `;`. Parquet: column `labels` of lists, or text as in CSV. `.txt`: one
text per line, no labels. All but Parquet may be gzipped. `Columns` says which columns are read if they have other
names. A line of JSON may be feedback instead (`feedback.py`). A row that can't be read raises `CorpusError` with file
and line; with `BadRows("skip")` it is written to a rejects file instead.
"""

import contextlib
import csv
import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from aplc.data.columns import BadRow, Columns, clean_names, is_unicode, listed
from aplc.data.feedback import Review, is_feedback, last_lines, read_review
from aplc.data.json_list import read_list
from aplc.errors import CorpusError, needs
from aplc.machine import is_main_process, n_processes

__all__ = ["SUFFIXES", "BadRows", "Document", "clean_names", "is_unicode", "open_bytes", "read_documents"]

SUFFIXES = (
    *(".jsonl", ".jsonl.gz", ".json", ".json.gz", ".csv", ".csv.gz", ".tsv", ".tsv.gz"),
    *(".parquet", ".txt", ".txt.gz"),
)
NUMBERED = (".parquet", ".json", ".json.gz")
"""Files whose documents are counted by row: these have no lines, or all on one."""
STDIN = "-"
UNQUOTED = "is a quote missing, or not doubled inside a cell?"


@dataclass(slots=True)
class Document:
    text: str
    labels: list[str] = field(default_factory=list)
    id: str | None = None
    """The row's own id, where it has one."""
    line: int = 0
    """Line (JSON Lines, CSV, TSV, text) or row (JSON, Parquet) in its file, from 1."""
    kept: dict[str, Any] | None = None
    """Columns that were to be carried along (`Columns.keep`), as they are in the file."""
    names: tuple[str, ...] = field(default=(), compare=False)
    """The row's own columns, where some were to be carried along."""
    rejected: tuple[str, ...] = ()
    """Labels that a person said are wrong."""
    partial: bool = False
    """Whether nothing is known of labels that are in neither list; otherwise labels not in `labels` are wrong."""


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
            unit = "row" if where.lower().endswith(NUMBERED) else "line"
            raise CorpusError(f"{where}, {unit} {line}: {error} (or skip such rows with --on-bad-row skip)")
        if (where, line) in self._seen:  # a corpus is read more than once
            return
        if self.rejects is not None and self.rejects.resolve() == Path(path).resolve():
            raise CorpusError(f"{where}: rows that can't be read would be written to this very file; rename it")
        if self.rejects is not None and is_main_process():
            self.rejects.parent.mkdir(parents=True, exist_ok=True)
            with self.rejects.open("w" if self.count == 0 else "a", encoding="utf-8") as out:
                entry = {"file": where, "line": line, "error": error, "row": row}
                out.write(json.dumps(entry, default=str) + "\n")
        self._seen.add((where, line))
        self.count += 1


def read_documents(
    path: Path | str, bad_rows: BadRows | None = None, columns: Columns | None = None, *, size: int | None = None
) -> Iterator[Document]:
    """Stream the documents of one file, or of standard input (`-`, JSON Lines).

    Of a .jsonl file only the first `size` bytes are read, if given: a server may be adding to it.
    """
    bad_rows, columns = bad_rows or BadRows(), columns or Columns()
    name = str(path).lower()
    if name == STDIN:
        if n_processes() > 1:
            raise CorpusError("standard input can't be shared by several processes; give a file")
        yield from _read_lines(path, sys.stdin.buffer, bad_rows, columns)
    elif name.endswith(".jsonl") and size is not None:
        with open_bytes(Path(path)) as stream:
            yield from _read_lines(path, stream, bad_rows, columns, size)
    elif name.endswith(".parquet"):
        yield from _read_parquet(Path(path), bad_rows, columns)
    elif name.endswith(SUFFIXES):
        with open_bytes(Path(path)) as stream:
            try:
                yield from _READERS[name.removesuffix(".gz").rpartition(".")[2]](Path(path), stream, bad_rows, columns)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise CorpusError(f"{path}: broken gzip file ({error}); download or compress it again") from None
    else:
        sheet = "; save the sheet as CSV UTF-8" if name.endswith((".xlsx", ".xls", ".ods")) else ""
        raise CorpusError(f"{path}: unknown file format; expected one of {', '.join(SUFFIXES)}{sheet}")


def open_bytes(path: Path) -> BinaryIO:
    if not path.is_file():
        raise CorpusError(f"{path}: no such file")
    return cast(BinaryIO, gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb"))


def _document(row: Mapping[str, Any], line: int, columns: Columns, *, cells: bool = False) -> Document:
    return Document(*columns.read(row, cells=cells), line, *_kept(row, columns))


def _kept(row: Mapping[str, Any], columns: Columns) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    """`Document.kept` and `Document.names`."""
    kept = columns.kept(row)
    if kept is not None and not is_unicode(json.dumps(kept, ensure_ascii=False, default=str)):
        raise BadRow("not valid Unicode; save the file as UTF-8")
    return kept, () if kept is None else tuple(row)


def _read_lines(
    path: Path | str, stream: BinaryIO, bad_rows: BadRows, columns: Columns, size: int | None = None
) -> Iterator[Document]:
    last: set[int] | None = None  # lines of feedback that no later one replaces
    for line, raw in _lines(stream, size):
        try:
            row = _object(path, line, raw)
            if not is_feedback(row, columns):
                yield _document(row, line, columns)
                continue
            review = read_review(row)
            if last is None:
                last = last_lines(_reviews(path, columns, size))
            if line in last:
                text, labels, rejected, identity = review
                yield Document(text, labels, identity, line, *_kept(row, columns), rejected, partial=True)
        except BadRow as bad:
            bad_rows.handle(path, line, str(bad), raw.decode("utf-8", "backslashreplace").rstrip("\r\n"))


def _object(path: Path | str, line: int, raw: bytes) -> dict[str, Any]:
    """The JSON object of a line."""
    text = _decode(raw)
    if line == 1:
        _check_first(path, text)
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError also for a number with too many digits
        raise BadRow(_not_json(error)) from None
    if not isinstance(row, dict):
        raise BadRow(_not_an_object(row))
    return row


def _reviews(path: Path | str, columns: Columns, size: int | None) -> Iterator[tuple[int, Review]]:
    """The lines of feedback in a file, but for bad ones, which are reported when the file is read again."""
    if str(path) == STDIN:
        raise CorpusError("standard input can't be read twice, as feedback must be; give a file")
    with open_bytes(Path(path)) as stream:
        for line, raw in _lines(stream, size):
            with contextlib.suppress(BadRow):
                row = _object(path, line, raw)
                if is_feedback(row, columns):
                    yield line, read_review(row)


def _read_texts(path: Path, stream: BinaryIO, bad_rows: BadRows, columns: Columns) -> Iterator[Document]:
    for line, raw in _lines(stream):
        try:
            yield Document(_decode(raw), line=line)
        except BadRow as bad:
            bad_rows.handle(path, line, str(bad), raw.decode("utf-8", "backslashreplace").rstrip("\r\n"))


def _lines(stream: BinaryIO, size: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers; with `size`, those that end within so many bytes."""
    end = 0
    for line, raw in enumerate(stream, start=1):
        end += len(raw)
        if size is not None and end > size:
            return
        raw = raw.removeprefix(b"\xef\xbb\xbf") if line == 1 else raw
        if raw.strip():
            yield line, raw


def _decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise BadRow(f"not UTF-8 at byte {error.start}; save the file as UTF-8") from None


def _not_json(error: Exception) -> str:
    where = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
    return f'not JSON: {where}; a line is an object like {{"text": "...", "labels": ["..."]}}'


def _check_first(path: Path | str, text: str) -> None:
    """Refuse a file that is JSON but not JSON Lines, as its first line shows: to skip its rows would skip all."""
    start, where = text.strip(), "standard input" if str(path) == STDIN else path
    if start == "[" or re.match(r"\[\s*\{", start):
        raise CorpusError(
            f"{where}, line 1: this is one JSON list; name the file .json, or make lines of it with jq -c '.[]'"
        )
    if start == "{":
        raise CorpusError(
            f"{where}, line 1: this is one JSON object over many lines; .jsonl files have an object a line, "
            ".json files a list of objects"
        )


def _not_an_object(row: object) -> str:
    return f'a row is an object like {{"text": "...", "labels": ["..."]}}, found {type(row).__name__}'


def _read_json(path: Path, stream: BinaryIO, bad_rows: BadRows, columns: Columns) -> Iterator[Document]:
    for number, row in enumerate(read_list(path, stream), start=1):
        try:
            if not isinstance(row, dict):
                raise BadRow(_not_an_object(row))
            yield _document(row, number, columns)
        except BadRow as bad:
            bad_rows.handle(path, number, str(bad), row)


def _read_csv(path: Path, stream: BinaryIO, bad_rows: BadRows, columns: Columns) -> Iterator[Document]:
    csv.field_size_limit(2**31 - 1)  # the default refuses texts over 128 KiB
    tabs = path.name.lower().removesuffix(".gz").endswith(".tsv")
    decoded = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    reader = csv.reader(decoded, delimiter="\t" if tabs else ",", strict=True)
    try:
        header = next(reader, [])
    except csv.Error as error:
        raise CorpusError(f"{path}, line 1: {error}; {UNQUOTED}") from None
    if header:
        _check_header(path, header, columns)
    while True:
        cells: list[str] = []
        first_line = reader.line_num + 1
        try:
            cells = next(reader)
            if not cells:
                continue
            if len(cells) != len(header):
                between = "tabs" if tabs else "commas"
                raise BadRow(
                    f"{len(cells)} cells where the header has {len(header)}; quote cells that contain {between}"
                )
            yield _document(dict(zip(header, cells, strict=True)), reader.line_num, columns, cells=True)
        except StopIteration:
            return
        except BadRow as bad:
            bad_rows.handle(path, reader.line_num, str(bad), cells)
        except csv.Error as error:
            bad_rows.handle(path, first_line, f"{error}; {UNQUOTED}", f"lines {first_line} to {reader.line_num}")


def _check_header(path: Path, header: list[str], columns: Columns) -> None:
    where = f"{path}, line 1"
    if not is_unicode("".join(header)):
        raise CorpusError(f"{where}: the header is not UTF-8; save the file as UTF-8")
    separators = {";": "semicolons", "|": "bars", ",": "commas", "\t": "tabs"}
    found = [name for separator, name in separators.items() if separator in header[0]]
    if len(header) == 1 and header[0] not in columns.text and found:
        raise CorpusError(
            f"{where}: no column {columns.text[0]!r}, only {listed(header)}; are cells separated by {found[0]}? "
            "Save it with commas as .csv, or with tabs as .tsv"
        )
    columns.check(header, where)


def _read_parquet(path: Path, bad_rows: BadRows, columns: Columns) -> Iterator[Document]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise CorpusError(needs(f"{path}: reading Parquet", "pyarrow")) from None
    if not path.is_file():
        raise CorpusError(f"{path}: no such file")
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise CorpusError(f"{path}: not a Parquet file ({error})") from None
    names = file.schema_arrow.names
    columns.check(names, str(path))
    line = 0
    for batch in file.iter_batches(batch_size=1024, columns=columns.wanted(names)):
        for row in batch.to_pylist():
            line += 1
            try:
                yield _document(row, line, columns, cells=True)
            except BadRow as bad:
                bad_rows.handle(path, line, str(bad), row)


_READERS = {"jsonl": _read_lines, "json": _read_json, "csv": _read_csv, "tsv": _read_csv, "txt": _read_texts}
