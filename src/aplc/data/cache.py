"""A corpus part as its model reads it, tokens or words, with label ids, in memory-mapped arrays.

Built once by streaming the part through an encoding function, and keyed by the content of the corpus, the encoding and
the label set: a changed file gives another key, and a half-built cache stays under a temporary name until it is
complete. So a corpus may be larger than memory. Texts are stored whole, without special tokens, so that any
`max_length` can be served. The price is disk space: two to four bytes a token, six a word or pair.

Documents that are only partly reviewed (feedback) are noted in arrays of their own, which are empty without any.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.errors import CorpusError
from aplc.files import CACHE_CURE, flush_files, naming, write_json

VERSION = 2
ENCODED_AT_ONCE = 1_000
"""Documents encoded at a time: enough to keep `tokenizers`' threads busy."""
REVIEWED = "reviewed.bin"
"""Of each partly reviewed document: its number, how many labels were rejected, and their ids."""
NOTE = "done.json"
NOTE_EVERY = 20
"""Blocks between notes of what is safely on disk."""

T = TypeVar("T")
Encode = Callable[[list[str]], Sequence[Sequence[int] | NDArray]]
"""Texts to an array each."""


@dataclass(frozen=True)
class DocumentCache:
    """Document i: `items[offsets[i]:offsets[i+1]]` and `label_ids[label_offsets[i]:label_offsets[i+1]]`."""

    items: NDArray
    offsets: NDArray[np.int64]
    label_ids: NDArray[np.int32]
    label_offsets: NDArray[np.int64]
    partial: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Numbers of the partly reviewed documents, rising: nothing is known of labels they neither have nor reject."""
    rejected_ids: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    rejected_offsets: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    """Document `partial[j]` rejects `rejected_ids[rejected_offsets[j]:rejected_offsets[j+1]]`."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def document(self, i: int) -> tuple[NDArray, NDArray[np.int32]]:
        """(items, label ids) of document i."""
        items = self.items[self.offsets[i] : self.offsets[i + 1]]
        return items, self.label_ids[self.label_offsets[i] : self.label_offsets[i + 1]]

    def rejected(self, i: int) -> NDArray[np.int64] | None:
        """Ids of the labels that a partly reviewed document i rejects; None if all of its labels are known."""
        j = int(np.searchsorted(self.partial, i))
        if j == len(self.partial) or self.partial[j] != i:
            return None
        return self.rejected_ids[self.rejected_offsets[j] : self.rejected_offsets[j + 1]]

    @classmethod
    def load(cls, folder: Path) -> "DocumentCache":
        meta = json.loads((folder / "meta.json").read_text("utf-8"))
        offsets, label_offsets = np.load(folder / "offsets.npy"), np.load(folder / "label_offsets.npy")
        return cls(
            items=_map(folder / "items.bin", _dtype(meta["dtype"]), offsets[-1]),
            offsets=offsets,
            label_ids=_map(folder / "label_ids.bin", np.dtype(np.int32), label_offsets[-1]),
            label_offsets=label_offsets,
            **_read_reviewed(folder / REVIEWED),
        )

    @classmethod
    def build(
        cls,
        folder: Path,
        documents: Iterable[Document],
        encode: Encode,
        dtype: np.dtype,
        labels: LabelSet,
        advance: Callable[[int], None] = lambda _: None,
    ) -> "DocumentCache":
        """The cache in `folder`, streamed from `documents` unless it exists; `advance` is called after each block.

        A build that was cut short goes on where its last note says; of several processes one builds, the others wait.
        """
        temporary = folder.with_name(f".{folder.name}.part")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with naming(folder, CACHE_CURE), FileLock(temporary.with_suffix(".lock")):
            if not folder.is_dir():
                try:
                    _write(temporary, documents, encode, dtype, labels, advance)
                except CorpusError:  # the corpus must change, and with it the key
                    shutil.rmtree(temporary)
                    raise
                flush_files(temporary)
                os.rename(temporary, folder)
        return cls.load(folder)


def _write(
    temporary: Path,
    documents: Iterable[Document],
    encode: Encode,
    dtype: np.dtype,
    labels: LabelSet,
    advance: Callable[[int], None],
) -> None:
    temporary.mkdir(exist_ok=True)
    done = _cut_to_note(temporary, dtype)
    advance(done)
    files = [(temporary / name).open("ab") for name in ("items.bin", "label_ids.bin", "lengths.bin", REVIEWED)]
    with contextlib.ExitStack() as stack:
        items, label_ids, lengths, reviewed = map(stack.enter_context, files)
        for number, block in enumerate(blocks(islice(documents, done, None), ENCODED_AT_ONCE), start=1):
            for i, (document, encoded) in enumerate(zip(block, encode([d.text for d in block]), strict=True), done):
                known = np.array(labels.encode(document.labels), dtype=np.int32)
                items.write(np.asarray(encoded, dtype=dtype).tobytes())
                label_ids.write(known.tobytes())
                lengths.write(np.array([len(encoded), len(known)], dtype=np.int64).tobytes())
                if document.partial:
                    wrong = labels.encode(document.rejected)
                    reviewed.write(np.array([i, len(wrong), *wrong], dtype=np.int64).tobytes())
            done += len(block)
            if number % NOTE_EVERY == 0:
                for file in files:
                    file.flush()
                    os.fsync(file.fileno())
                write_json(temporary / NOTE, {"documents": done, "reviewed": reviewed.tell()})
            advance(len(block))
    both = np.fromfile(temporary / "lengths.bin", dtype=np.int64).reshape(-1, 2)
    for name, column in (("offsets.npy", both[:, 0]), ("label_offsets.npy", both[:, 1])):
        np.save(temporary / name, np.concatenate([[0], np.cumsum(column)]).astype(np.int64))
    (temporary / "meta.json").write_text(
        json.dumps({"version": VERSION, "dtype": dtype.descr if dtype.names else dtype.name})
    )
    (temporary / "lengths.bin").unlink()
    (temporary / NOTE).unlink(missing_ok=True)
    if not (temporary / REVIEWED).stat().st_size:
        (temporary / REVIEWED).unlink()


def _cut_to_note(temporary: Path, dtype: np.dtype) -> int:
    """How many documents an earlier build noted as safe on disk; what it wrote after that note is cut off."""
    note, lengths = temporary / NOTE, temporary / "lengths.bin"
    noted = json.loads(note.read_text("utf-8")) if note.is_file() and lengths.is_file() else {"documents": 0}
    done, n_reviewed = noted["documents"], noted.get("reviewed", 0)
    n_items, n_labels = np.fromfile(lengths, np.int64, 2 * done).reshape(-1, 2).sum(0) if done else (0, 0)
    sizes = {"items.bin": n_items * dtype.itemsize, "label_ids.bin": n_labels * 4, "lengths.bin": done * 16}
    for name, size in (sizes | {REVIEWED: n_reviewed}).items():
        with (temporary / name).open("ab") as file:
            file.truncate(int(size))
    return done


def _read_reviewed(path: Path) -> dict[str, NDArray[np.int64]]:
    """`partial`, `rejected_ids` and `rejected_offsets`; nothing where no document is partly reviewed."""
    if not path.is_file():
        return {}
    numbers, at = np.fromfile(path, dtype=np.int64), 0
    partial, ids = [], []
    while at < len(numbers):
        document, n = numbers[at : at + 2].tolist()
        partial.append(document)
        ids.append(numbers[at + 2 : at + 2 + n])
        at += 2 + n
    return {
        "partial": np.array(partial, dtype=np.int64),
        "rejected_ids": np.concatenate(ids),
        "rejected_offsets": np.cumsum([0, *map(len, ids)], dtype=np.int64),
    }


def _dtype(description: str | list[list[str]]) -> np.dtype:
    return np.dtype(description if isinstance(description, str) else [tuple(field) for field in description])


def _map(path: Path, dtype: np.dtype, size: int) -> NDArray:
    # An empty file can't be mapped. A plain array has parts in a third of the time.
    return np.asarray(np.memmap(path, dtype=dtype, mode="r", shape=(size,))) if size else np.empty(0, dtype=dtype)


def blocks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive lists of up to `size` items."""
    iterator = iter(items)
    while block := list(islice(iterator, size)):
        yield block
