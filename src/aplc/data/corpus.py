"""A corpus: a folder with train, dev and test files, or a single file.

This is the one place that decides which file is which part. `fingerprint` hashes a part's content, so that caches made
from a file are not used once it has changed.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
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

    def fingerprint(self, part: Part) -> str:
        """A hash of the part's bytes."""
        digest = hashlib.blake2b(digest_size=16)
        with self.file(part).open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()
