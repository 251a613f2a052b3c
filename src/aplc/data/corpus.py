"""A corpus: a folder with train, dev and test files, or a single file.

This is the one place that decides which file is which part. `fingerprint` hashes a part's content, so that caches made
from a file are not used once it has changed. A `Snapshot` is a file that may grow meanwhile.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

from aplc.data.columns import Columns
from aplc.data.formats import SUFFIXES, BadRows, Document, read_documents
from aplc.data.labels import NAMES
from aplc.data.vocabulary import vocabulary_file
from aplc.errors import CorpusError

Part = Literal["train", "dev", "test"]
PARTS: tuple[Part, ...] = get_args(Part)


def corpus_parts(folder: Path) -> list[Path]:
    """Files of a folder that would be read as parts of a corpus."""
    names = [folder / f"{part}{suffix}" for part in PARTS for suffix in SUFFIXES]
    return [path for path in names if path.is_file()]


def refuse_corpus(out: Path) -> None:
    """Refuse to write a corpus into a folder that has one."""
    if parts := corpus_parts(out):
        raise CorpusError(f"{parts[0]}: already exists; give --out another folder, or remove it")


@dataclass(frozen=True)
class Corpus:
    path: Path
    parts: dict[Part, Path]
    """A single file is both the train and the test part."""
    bad_rows: BadRows = field(default_factory=BadRows)
    columns: Columns = field(default_factory=Columns)

    @classmethod
    def open(cls, path: Path | str, bad_rows: BadRows | None = None, columns: Columns | None = None) -> "Corpus":
        path = Path(path)
        bad_rows, columns = bad_rows or BadRows(), columns or Columns()
        if path.is_file():
            return cls(path, {"train": path, "test": path}, bad_rows, columns)
        if not path.is_dir():
            raise CorpusError(f"{path}: no such file or folder")
        parts: dict[Part, Path] = {}
        for part in PARTS:
            found = [path / f"{part}{suffix}" for suffix in SUFFIXES if (path / f"{part}{suffix}").is_file()]
            if len(found) > 1:
                raise CorpusError(f"{path}: both {found[0].name} and {found[1].name}; keep one")
            if found:
                parts[part] = found[0]
        if not parts and (path / NAMES).is_file():
            raise CorpusError(f"{path}: is a model folder, not a corpus; are the arguments in the wrong order?")
        if not parts:
            raise CorpusError(
                f"{path}: no train, dev or test file in this folder ({', '.join(SUFFIXES)}); "
                "aplc split makes a corpus of one file"
            )
        return cls(path, parts, bad_rows, columns)

    @property
    def is_file(self) -> bool:
        return self.path.is_file()

    @property
    def vocabulary_file(self) -> Path | None:
        """The vocabulary in its folder, if there is one."""
        return None if self.is_file else vocabulary_file(self.path)

    def file(self, part: Part) -> Path:
        if part not in self.parts:
            raise CorpusError(f"{self.path}: no {part} part; add {part}.jsonl to the folder")
        return self.parts[part]

    def documents(self, part: Part) -> Iterator[Document]:
        return read_documents(self.file(part), self.bad_rows, self.columns)

    def is_feedback(self, part: Part) -> bool:
        """Whether a part holds feedback, as its first document shows."""
        return any(document.partial for document in islice(self.documents(part), 1))

    def fingerprint(self, part: Part) -> str:
        """A hash of the part's bytes."""
        return fingerprint_of(self.file(part))


@dataclass(frozen=True)
class Snapshot:
    """A file as it is when it is opened: what a server adds to its feedback afterwards is not read."""

    path: Path
    size: int
    bad_rows: BadRows
    columns: Columns

    @classmethod
    def open(cls, path: Path, bad_rows: BadRows, columns: Columns) -> "Snapshot":
        if not path.is_file():
            what = "is a folder; give one file" if path.is_dir() else "no such file"
            raise CorpusError(f"{path}: {what}")
        return cls(path, path.stat().st_size, bad_rows, columns)

    def documents(self) -> Iterator[Document]:
        return read_documents(self.path, self.bad_rows, self.columns, size=self.size)

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.path, self.size)


def fingerprint_of(path: Path, size: int | None = None) -> str:
    """A hash of a file's bytes, or of the first `size` of them."""
    digest = hashlib.blake2b(digest_size=16)
    left = path.stat().st_size if size is None else size
    with path.open("rb") as stream:
        while left > 0 and (block := stream.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()
