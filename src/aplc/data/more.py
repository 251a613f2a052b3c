"""Documents that are trained on beside a corpus' train part (`aplc train --more FILE`) and never held out.

Any corpus file will do; a file of feedback is what it is for. Where several files hold feedback on the same document,
the last one given counts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aplc.data.corpus import Corpus, Snapshot
from aplc.data.feedback import key_of
from aplc.data.formats import Document
from aplc.files import digest


@dataclass(frozen=True)
class More:
    files: tuple[Snapshot, ...]

    @classmethod
    def open(cls, paths: Sequence[Path], corpus: Corpus) -> "More | None":
        """Files that are read as the corpus is; None without any."""
        if not paths:
            return None
        return cls(tuple(Snapshot.open(path, corpus.bad_rows, corpus.columns) for path in paths))

    @property
    def name(self) -> str:
        return ", ".join(str(file.path) for file in self.files)

    @property
    def key(self) -> str:
        """A hash of the content."""
        return digest(*(file.fingerprint for file in self.files))

    def documents(self) -> Iterator[Document]:
        last: dict[bytes, int] = {}
        for number, file in enumerate(self.files) if len(self.files) > 1 else ():
            last |= {key_of(document.id, document.text): number for document in file.documents() if document.partial}
        for number, file in enumerate(self.files):
            for document in file.documents():
                if not document.partial or last.get(key_of(document.id, document.text), number) == number:
                    yield document
