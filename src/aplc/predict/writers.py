"""Predictions as rows of a file: JSON Lines, or CSV, TSV and a JSON list where the file's name ends so.

Columns that were kept come along, under their own names; one that has a name of ours becomes `input_...`.
"""

import csv
import difflib
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol

from aplc.data.columns import ALL, SEPARATOR, listed
from aplc.data.formats import Document
from aplc.data.vocabulary import Vocabulary
from aplc.errors import AplcError, CorpusError

Tags = Sequence[tuple[str, float]]
"""(label, probability) pairs, best first."""
OTHER_FORMATS = (".gz", ".xlsx", ".xls", ".ods", ".parquet", ".feather", ".html", ".xml", ".zip")
"""Endings under which nobody would look for JSON Lines, which any other ending gets."""
LOOKED_AT = 2_048
"""Documents in which a column to keep is looked for."""
OURS = ("id", "line", "labels", "names", "probabilities", "abstained")
LabelsAs = Literal["label", "name", "both"]


@dataclass(frozen=True)
class Naming:
    """How labels are written: themselves, by the vocabulary's names, or with names in a column of their own."""

    labels_as: LabelsAs = "label"
    vocabulary: Vocabulary | None = None

    def __post_init__(self) -> None:
        if self.labels_as != "label" and self.vocabulary is None:
            raise AplcError(
                f"--labels-as {self.labels_as}: the model has no vocabulary, so its labels have no other names; train "
                "it with --vocabulary FILE, or leave the option out"
            )

    def columns(self, labels: Iterable[str]) -> dict[str, list[str]]:
        """What a row has: `labels`, and `names` where both are asked for."""
        labels = list(labels)
        if self.vocabulary is None or self.labels_as == "label":
            return {"labels": labels}
        names = [self.vocabulary.name_of(label) for label in labels]
        return {"labels": names} if self.labels_as == "name" else {"labels": labels, "names": names}


class RowWriter(Protocol):
    def row(self, document: Document, tags: Tags) -> bytes:
        """One document's row."""

    def end(self) -> bytes:
        """What the file ends with; all of it where there was no document."""


def writer_for(
    out: Path, labels: Iterable[str], *, separator: str | None = None, naming: Naming | None = None
) -> RowWriter:
    """Chosen by the name of `out`. `labels`: all that may be written; `separator`: between them in CSV, `;` if None."""
    name, naming = out.name.lower(), naming or Naming()
    if name.endswith(OTHER_FORMATS):
        raise AplcError(
            f"--out {out}: predictions are written as .csv, .tsv, .json or .jsonl, not as {out.suffix}; give one of "
            "these names, and convert the file afterwards"
        )
    if not name.endswith((".csv", ".tsv")):
        return JsonList(naming) if name.endswith(".json") else JsonLines(naming)
    separator = separator or SEPARATOR
    written = (text for texts in naming.columns(labels).values() for text in texts)
    if clash := next((text for text in written if separator in text), None):
        other = next((candidate for candidate in (";", "|", " | ", " ;; ") if candidate != separator), "|")
        raise AplcError(
            f"--out {out}: the label {clash!r} contains {separator!r}, which separates labels; give another "
            f"--label-separator, such as {other!r}, or write .jsonl"
        )
    return Table("\t" if name.endswith(".tsv") else ",", separator, naming)


def check_kept(source: str, documents: Iterable[Document], keep: Sequence[str]) -> Iterator[Document]:
    """The same documents; refuses a column to keep that none of the first ones has. Tables were checked by header."""
    documents = iter(documents)
    first = list(islice(documents, LOOKED_AT))
    names = dict.fromkeys(name for document in first for name in document.names)
    for name in keep if first and keep != (ALL,) else ():
        if name not in names:
            apart = name.split(",")
            folded = {known.casefold(): known for known in names}
            near = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.0)
            cure = f"; the nearest is {folded[near[0]]!r}" if near else "; there is nothing but texts"
            if len(apart) > 1 and names.keys() >= set(apart):
                cure = f"; write {' '.join(f'--keep {one}' for one in apart)}"
            raise CorpusError(f"{source}: --keep {name}: none of the first {len(first):,} documents has it{cure}")
    yield from first
    yield from documents


class JsonLines:
    def __init__(self, naming: Naming | None = None) -> None:
        self.naming = naming or Naming()

    def row(self, document: Document, tags: Tags) -> bytes:
        row = {
            **({"line": document.line} if document.id is None else {"id": document.id}),
            **_carried(document),
            **self.naming.columns(label for label, _ in tags),
            "probabilities": [round(probability, 6) for _, probability in tags],
            **({} if tags else {"abstained": True}),
        }
        return (json.dumps(row, ensure_ascii=False, default=str) + "\n").encode("utf-8")

    def end(self) -> bytes:
        return b""


class JsonList(JsonLines):
    """The same rows as one list, which is what a .json file is read as."""

    def __init__(self, naming: Naming | None = None) -> None:
        super().__init__(naming)
        self.is_empty = True

    def row(self, document: Document, tags: Tags) -> bytes:
        before, self.is_empty = b"[\n" if self.is_empty else b",\n", False
        return before + super().row(document, tags).rstrip(b"\n")

    def end(self) -> bytes:
        return b"[]\n" if self.is_empty else b"\n]\n"


class Table:
    """CSV or TSV; the first document settles the columns. Without a label the cells are empty."""

    def __init__(self, delimiter: str, separator: str, naming: Naming | None = None) -> None:
        self.delimiter, self.separator, self.naming = delimiter, separator, naming or Naming()
        self.kept: tuple[str, ...] | None = None

    def row(self, document: Document, tags: Tags) -> bytes:
        carried, header = _carried(document), b""
        if self.kept is None:
            self.kept, self.key = tuple(carried), "line" if document.id is None else "id"
            header = self._line([self.key, *self.kept, *self.naming.columns(()), "probabilities"])
        if strange := [name for name in carried if name not in self.kept]:
            raise AplcError(
                f"line {document.line} of the input has {strange[0]!r}, which its first document lacks "
                f"({listed(self.kept)}): a table has the same columns in every row; name the columns to keep with "
                "--keep, or write .jsonl"
            )
        return header + self._line(
            [
                document.line if self.key == "line" else document.id or "",
                *(_cell(carried.get(name)) for name in self.kept),
                *map(self.separator.join, self.naming.columns(label for label, _ in tags).values()),
                self.separator.join(f"{probability:.6g}" for _, probability in tags),
            ]
        )

    def end(self) -> bytes:
        return self._line(["line", *self.naming.columns(()), "probabilities"]) if self.kept is None else b""

    def _line(self, cells: Sequence[object]) -> bytes:
        line = io.StringIO()
        csv.writer(line, delimiter=self.delimiter, lineterminator="\n").writerow(cells)
        return line.getvalue().encode("utf-8")


def _carried(document: Document) -> dict[str, Any]:
    """The kept columns, under names that none of ours has. The id is in every row already."""
    kept = {} if document.kept is None else document.kept
    own = {name: value for name, value in kept.items() if not (name == "id" and str(value) == document.id)}
    return {f"input_{name}" if name in OURS else name: value for name, value in own.items()}


def _cell(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
