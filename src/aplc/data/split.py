"""`aplc split`: one file into train, dev and test parts, in two passes over it.

The first pass notes labels, group and date of each document, the second writes. What stays together is a unit:
documents of one group, and without a group column documents of the same text. Units are dealt out label by label, the
rarest first: of the units that carry it and have no part yet, as many go to test and dev as are still wanted there, the
others to train. The last "label" is one that every document has, which settles the sizes. Each label of each unit is
looked at once. (Iterative stratification, Sechidis and others 2011, without its search for the rarest label.)

A label with fewer documents than it takes to expect one in the smallest part is left to chance. Giving all of those to
train would make the test part easier than what a model meets later.
"""

import datetime
import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aplc.data.checks import hash_text, shorten
from aplc.data.columns import ID, LABELS, TEXT, Columns, listed
from aplc.data.corpus import PARTS, Part, refuse_corpus
from aplc.data.formats import BadRows, Document, read_documents
from aplc.errors import AplcError, CorpusError
from aplc.files import atomic_write

TRAIN, DEV, TEST = range(3)
"""Places of the parts in `PARTS`."""


@dataclass(frozen=True, kw_only=True)
class How:
    """How a file is split."""

    dev: float = 0.1
    """Share of the documents; 0 for no such part."""
    test: float = 0.1
    seed: int = 0
    group: str | None = None
    """Column whose values stay together; a document without a value stands alone."""
    by_date: str | None = None
    """Column with a year or a date: the newest documents go to test, the next to dev."""
    labelled_only: bool = False
    """Whether documents without labels are left out."""

    def __post_init__(self) -> None:
        if self.dev == self.test == 0:
            raise AplcError("--dev 0 --test 0: nothing would be split off; give at least one a share, such as 0.1")
        if not (self.dev >= 0 and self.test >= 0 and 0 < self.dev + self.test < 1):
            raise AplcError(f"--dev {self.dev:g} --test {self.test:g}: give shares that leave something for train")
        if self.group and self.by_date:
            raise AplcError("--group and --by-date: choose one")

    @property
    def shares(self) -> tuple[float, float, float]:
        """In the order of `PARTS`."""
        return (1 - self.dev - self.test, self.dev, self.test)


@dataclass(frozen=True)
class Split:
    counts: dict[Part, int]
    labels: dict[Part, int]
    """Different labels of each part."""
    unseen: int
    """Labels of test that train lacks."""
    unlabelled: int = 0
    """Documents without labels: in the parts, or left out with `How.labelled_only`."""
    empty: int = 0
    """Documents of the parts without text."""


def split(
    path: Path,
    out: Path,
    how: How,
    *,
    columns: Columns | None = None,
    bad_rows: BadRows | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Split:
    """Write `out`/train.jsonl, dev.jsonl and test.jsonl, with text, labels and id under these names, and the rest."""
    if path.is_dir():
        raise CorpusError(f"{path}: is a folder; split takes one file, and a folder with train and test is a corpus")
    if not path.is_file():
        raise CorpusError(f"{path}: no such file")
    refuse_corpus(out)
    columns = replace(columns or Columns(), keep=("all",))
    bad_rows = bad_rows or BadRows()

    def documents() -> Iterator[tuple[Document, Any]]:
        for document in read_documents(path, bad_rows, columns):
            if document.partial:
                raise CorpusError(
                    f"{path}, line {document.line}: feedback can't be split, it is for aplc train CORPUS --more {path}"
                )
            try:
                yield document, _unit_key(document, how)
            except ValueError as error:
                bad_rows.handle(path, document.line, str(error), document.kept)
            advance()

    units, unlabelled, empty = _Units(), 0, 0
    for document, key in documents():
        unlabelled += not document.labels
        if document.labels or not how.labelled_only:
            empty += not document.text.strip()
            units.add(document, key)
    if not units.of_document:
        raise CorpusError(f"{path}: no documents{' with labels' if unlabelled else ''}")
    part_of = newest_last(np.array(units.dates), how) if how.by_date else deal(*units.entries(), how)[units.of_document]
    sizes = np.bincount(part_of, minlength=3)
    for share, size, part in zip(how.shares, sizes, PARTS, strict=True):
        if share and not size:
            more = "are in too few groups" if how.group else "are too few"
            raise CorpusError(f"{path}: {len(part_of):,} documents {more}; nothing is left for {part}")
    kept = (pair for pair in documents() if pair[0].labels or not how.labelled_only)
    done = _write(out, kept, part_of, [part for part, size in zip(PARTS, sizes, strict=True) if size], columns)
    return replace(done, unlabelled=unlabelled, empty=empty)


def _unit_key(document: Document, how: How) -> Any:
    """Documents with the same key stay together; None stands alone. By date, the date."""
    row = document.kept or {}
    if how.by_date:
        return seconds_of(row.get(how.by_date), how.by_date, row)
    if how.group:
        if how.group not in row:
            raise ValueError(f"no {how.group!r}, only {listed(list(row))}; say which one with --group")
        return None if row[how.group] in (None, "") else str(row[how.group])
    return hash_text(document.text) if document.text.strip() else None


class _Units:
    """Documents that stay together, with their labels."""

    def __init__(self) -> None:
        self.of_document = array("q")
        self.n = 0
        self.dates = array("d")
        self._numbers: dict[Any, int] = {}
        self._label_ids: dict[str, int] = {}
        self._pairs = array("q")  # unit, label, unit, label, ...

    def add(self, document: Document, key: Any) -> None:
        if isinstance(key, float):
            self.dates.append(key)
        unit = self.n if key is None else self._numbers.setdefault(key, self.n)
        self.n += unit == self.n
        self.of_document.append(unit)
        for name in document.labels:
            self._pairs.extend((unit, self._label_ids.setdefault(name, len(self._label_ids))))

    def entries(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(unit, label, documents of the unit with it), sorted by unit; every document has the last label."""
        everywhere = len(self._label_ids)
        pairs = np.array(self._pairs, dtype=np.int64).reshape(-1, 2)
        own = np.array(self.of_document, dtype=np.int64)
        codes = np.concatenate([pairs @ [everywhere + 1, 1], own * (everywhere + 1) + everywhere])
        distinct, n_documents = np.unique(codes, return_counts=True)
        return *np.divmod(distinct, everywhere + 1), n_documents


def newest_last(dates: NDArray[np.float64], how: How) -> NDArray[np.int64]:
    """The part of each document, by date."""
    n, order = len(dates), np.argsort(dates, kind="stable")
    test, dev = (max(1, round(n * share)) if share else 0 for share in (how.test, how.dev))
    parts = np.full(n, TRAIN)
    parts[order[max(n - test - dev, 0) :]] = DEV
    parts[order[n - test :]] = TEST
    return parts


def deal(
    units: NDArray[np.int64], labels: NDArray[np.int64], n_documents: NDArray[np.int64], how: How
) -> NDArray[np.int64]:
    """The part of each unit, from entries as `_Units.entries` has them."""
    rng, shares = np.random.default_rng(how.seed), np.array(how.shares)
    totals, carried_by = np.bincount(labels, n_documents), np.bincount(labels)
    everywhere, n_units = len(totals) - 1, units[-1] + 1
    left = np.floor(totals[:, None] * shares + rng.random((everywhere + 1, 3)))  # rounded up or down by chance
    left[everywhere] = np.where(shares > 0, np.maximum(1, np.round(totals[everywhere] * shares)), 0)
    shuffled = rng.permutation(len(units))
    by_label, ends = shuffled[np.argsort(labels[shuffled], kind="stable")], np.cumsum(carried_by)
    starts = np.searchsorted(units, np.arange(n_units + 1))
    parts = np.full(n_units, -1)
    frequent = carried_by * shares[shares > 0].min() >= 1
    frequent[everywhere] = True
    for label in np.argsort(totals, kind="stable"):  # rarest first; the one that all have is last
        for entry in by_label[ends[label] - carried_by[label] : ends[label]] if frequent[label] else ():
            unit = units[entry]
            if parts[unit] >= 0:
                continue
            own = slice(starts[unit], starts[unit + 1])
            # A unit goes where it brings both the label and the part nearer to what is wanted.
            near = np.minimum(left[label] / n_documents[entry], left[everywhere] / n_documents[own][-1]) >= 0.5
            part = TEST if near[TEST] else DEV if near[DEV] else TRAIN
            left[labels[own], part] -= n_documents[own]
            parts[unit] = part
    return parts


def _write(
    out: Path,
    documents: Iterator[tuple[Document, Any]],
    part_of: NDArray[np.int64],
    parts: list[Part],
    columns: Columns,
) -> Split:
    counts, labels = Counter[Part](), {part: set[str]() for part in PARTS}
    with ExitStack() as stack:  # all parts are written, or none
        written = {part: stack.enter_context(atomic_write(out / f"{part}.jsonl")) for part in parts}
        for (document, _), number in zip(documents, part_of.tolist(), strict=True):
            part = PARTS[number]
            row = _row(document, columns)
            written[part].write((json.dumps(row, ensure_ascii=False, default=str) + "\n").encode("utf-8"))
            counts[part] += 1
            labels[part].update(document.labels)
    sizes = {part: len(labels[part]) for part in parts}
    return Split({part: counts[part] for part in parts}, sizes, len(labels["test"] - labels["train"]))


def _row(document: Document, columns: Columns) -> dict[str, Any]:
    """Under our own names; a column that is none of them but has such a name becomes `input_...`."""
    own: dict[str, Any] = {} if document.id is None else {ID: document.id}
    own |= {TEXT: document.text, LABELS: document.labels}
    others = {name: value for name, value in (document.kept or {}).items() if name not in columns.used}
    return own | {f"input_{name}" if name in (ID, TEXT, LABELS) else name: value for name, value in others.items()}


def seconds_of(value: object, column: str, row: dict[str, Any]) -> float:
    """A year, a date or a time as seconds since 1970; ValueError with the cure for anything else."""
    if column not in row:
        raise ValueError(f"no {column!r}, only {listed(list(row))}; say which one with --by-date")
    try:
        if isinstance(value, datetime.datetime):
            return (value if value.tzinfo else value.replace(tzinfo=datetime.UTC)).timestamp()
        text = str(value).strip()
        if re.fullmatch(r"-?\d{5,7}|-?\d{9,}", text):  # YYYY has four digits, YYYYMMDD eight
            return float(text)
        month = re.fullmatch(r"(\d{4})(?:-(\d\d))?", text)
        when = f"{month[1]}-{month[2] or '01'}-01" if month else text
        found = datetime.datetime.fromisoformat(when)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{column!r} is {shorten(str(value))!r}, which is neither a year nor a date such as 2026-05-31"
        ) from None
    return (found if found.tzinfo else found.replace(tzinfo=datetime.UTC)).timestamp()
