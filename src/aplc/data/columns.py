"""Which columns of a row are text, labels and id, and how they are read: what makes a document of a row.

    Columns().read({"text": "...", "labels": ["a", "b"]})                               # our own names
    Columns(text=("title", "abstract"), labels="tags", separator="|").read(row)         # somebody else's

A row comes from a line of JSON, or from a header and cells. Labels are a list; in a cell a JSON or Python list, or
names with `;` between them, since names may have commas.
"""

import ast
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aplc.errors import AplcError, CorpusError

TEXT, LABELS, ID = "text", "labels", "id"
SEPARATOR = ";"
ALL = "all"
"""`keep=("all",)` keeps every column."""
SHOWN = 12
"""Columns named in an error."""

_QUOTED = r"""(?:'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+")"""
_PYTHON_LIST = re.compile(rf"[\[({{]\s*+(?:{_QUOTED}\s*+(?:,\s*+{_QUOTED}\s*+)*+,?+\s*+)?[\])}}]", re.DOTALL)


class BadRow(Exception):  # noqa: N818 -- never leaves aplc.data
    """What is wrong with a row; the caller knows its file and line."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns that are read, and those that are carried along."""

    text: tuple[str, ...] = (TEXT,)
    """Joined by a space; one that a row lacks is left out."""
    labels: str | None = LABELS
    """None where labels are not wanted: they are not looked at then."""
    separator: str | None = None
    """What stands between labels in one string; where it is not given, `;` in cells, and JSON must have lists."""
    id: str = ID
    keep: tuple[str, ...] = ()
    """Columns that `Document.kept` has, as they are in the file; ("all",) for every one."""

    def __post_init__(self) -> None:
        for name, value in (
            ("--text-column", "".join(self.text)),
            ("--labels-column", self.labels),
            ("--id-column", self.id),
        ):
            if value == "":
                raise AplcError(f"{name}: is empty; give the name of a column")
        if self.separator == "":
            raise AplcError("--label-separator: is empty; give what separates two labels, such as ','")

    @property
    def key(self) -> tuple[object, ...]:
        """What tells corpora apart that have the same bytes; nothing for the columns of our own."""
        usual = Columns()
        same = (self.text, self.labels, self.separator, self.id) == (
            usual.text,
            usual.labels,
            usual.separator,
            usual.id,
        )
        return () if same else ([*self.text], self.labels, self.separator, self.id)

    @property
    def keeps_all(self) -> bool:
        return self.keep == (ALL,)

    @property
    def used(self) -> tuple[str, ...]:
        """Columns that become text, labels and id."""
        return (*self.text, *([self.labels] if self.labels else []), self.id)

    def wanted(self, names: Sequence[str]) -> list[str]:
        """Those of a file's columns that must be read."""
        return [name for name in names if self.keeps_all or name in self.used or name in self.keep]

    def check(self, names: Sequence[str], where: str) -> None:
        """Refuse a header that lacks a column asked for, or has it twice. `labels` and `id` can be missing."""
        asked = [*self.text, *(name for name in (self.labels, self.id) if name not in (LABELS, ID, None))]
        asked += [] if self.keeps_all else self.keep
        for name in asked:
            if name not in names:
                option = "--keep" if name in self.keep else option_of(name, self)
                raise CorpusError(f"{where}: no column {name!r}, only {listed(names)}; say which one with {option}")
        used = names if self.keeps_all else (*self.used, *self.keep)
        if repeated := [name for name in used if names.count(name) > 1]:
            raise CorpusError(f"{where}: the header has several columns {repeated[0]!r}; keep one")

    def read(self, row: Mapping[str, Any], *, cells: bool = False) -> tuple[str, list[str], str | None]:
        """(text, labels, id) of a row. `cells`: whether labels may be names in one string without being told so."""
        text = self._text(row)
        labels = row.get(self.labels) if self.labels else None
        if isinstance(labels, str) and (cells or self.separator):
            labels = split_labels(labels, self.separator)
        if labels is None:
            labels = []
        if not isinstance(labels, list):
            raise BadRow(self._not_a_list(labels))
        try:
            names = clean_names(labels)
        except ValueError as error:
            raise BadRow(str(error)) from None
        value = row.get(self.id)
        identity = None if value is None else str(value)
        if not is_unicode(text + (identity or "")):
            raise BadRow("not valid Unicode; save the file as UTF-8")
        return text, names, identity

    def kept(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """The columns to carry along; None where none was asked for."""
        if self.keeps_all:
            return dict(row)
        return {name: row.get(name) for name in self.keep} if self.keep else None

    def _text(self, row: Mapping[str, Any]) -> str:
        values = [(name, row[name]) for name in self.text if row.get(name) is not None]
        for name, value in values:
            if not isinstance(value, str):
                raise BadRow(f"{name!r} must be a string, found {_what(value)}")
        if not values and (null := [name for name in self.text if name in row]):
            raise BadRow(f'{null[0]!r} is null; give a string, "" if there is no text')
        if not values:
            absent = " and no ".join(map(repr, self.text))
            raise BadRow(f"no {absent}, only {listed(list(row))}; say where the text is with --text-column")
        return " ".join(value for _, value in values) if len(values) > 1 else values[0][1]

    def _not_a_list(self, labels: object) -> str:
        message = f'{self.labels!r} must be a list of strings like ["a", "b"], found {_what(labels)}'
        if isinstance(labels, str):
            return f"{message}; if it holds several names, say what is between them, e.g. --label-separator ','"
        return f"{message}; leave it out where there are no labels" if isinstance(labels, float) else message


def option_of(name: str, columns: Columns) -> str:
    """The option of the command line that names this column."""
    if name in columns.text:
        return "--text-column"
    return "--labels-column" if name == columns.labels else "--id-column"


def listed(names: Sequence[str]) -> str:
    """Column names for a message."""
    shown = ", ".join(name if len(name) <= 40 else f"{name[:40]}..." for name in names[:SHOWN])
    return (shown or "nothing") + (", ..." if len(names) > SHOWN else "")


def split_labels(cell: str, separator: str | None = None) -> list[Any]:
    """Labels in one cell: a JSON list, a Python list of strings, or names with a separator between them."""
    stripped = cell.strip()
    if stripped.startswith(("[", "(", "{")):
        found = _list_of(stripped)
        if found is not None and (separator is None or all(isinstance(name, str) for name in found)):
            return found
        if stripped.startswith("[") and separator is None:
            raise BadRow(
                "labels start with '[' but are not a list of quoted names; write [\"a\", \"b\"], ['a', 'b'] or a;b, "
                "or give --label-separator ';' if the bracket belongs to a name"
            )
    return [name for name in cell.split(separator or SEPARATOR) if name.strip()]


def _list_of(cell: str) -> list[Any] | None:
    """A list as JSON or as Python writes it (also a tuple or a set); None if it is neither."""
    if cell.startswith("["):
        try:
            return json.loads(cell)
        except (ValueError, RecursionError):
            pass
    if not _PYTHON_LIST.fullmatch(cell) or (cell[0] != "[" and not re.search(_QUOTED, cell)):
        return None
    try:
        return [ast.literal_eval(quoted) for quoted in re.findall(_QUOTED, cell, re.DOTALL)]
    except (SyntaxError, ValueError):  # a line break or a broken escape between quotes
        return None


def clean_names(labels: Iterable[object]) -> list[str]:
    """Labels without surrounding whitespace and without repeats; ValueError for one that can't be a name."""
    names = []
    for label in labels:
        if not isinstance(label, str):
            raise ValueError(f"label {_short(label)} must be a string, found {_what(label)}; quote it")
        names.append(label.strip())
        if not names[-1] or "\n" in names[-1] or "\r" in names[-1]:
            raise ValueError(f"label {_short(label)} is empty or has a line break")
        if not is_unicode(label):
            raise ValueError(f"label {_short(label)} is not valid Unicode; save it as UTF-8")
    return list(dict.fromkeys(names))


def is_unicode(text: str) -> bool:
    """False if the text has half of a surrogate pair, which Python and JSON allow and UTF-8 does not."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _what(value: object) -> str:
    return "NaN" if isinstance(value, float) and math.isnan(value) else type(value).__name__


def _short(value: object) -> str:
    found = repr(value)
    return found if len(found) <= 80 else f"{found[:80]}..."
