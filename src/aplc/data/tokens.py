"""Tokens and label ids of a whole corpus part in memory-mapped arrays.

Built once by streaming the part through the tokenizer, and keyed by the content of corpus, tokenizer and label set:
a changed file gives another key, and a half-built cache stays under a temporary name until it is completed. Texts are
stored whole, without special tokens, so that any `max_length` can be served. Price: two to four bytes a token on disk.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.data.tokenizer import Tokenizer
from aplc.errors import CorpusError
from aplc.files import write_json

VERSION = 1
BLOCK = 1_000
"""Documents tokenized at a time: enough to keep `tokenizers`' threads busy."""
NOTE = "done.json"
NOTE_EVERY = 20
"""Blocks between notes of what is safely on disk."""

T = TypeVar("T")


@dataclass(frozen=True)
class TokenCache:
    """Row i: `tokens[offsets[i]:offsets[i+1]]` and `label_ids[label_offsets[i]:label_offsets[i+1]]`."""

    tokens: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    label_ids: NDArray[np.int32]
    label_offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def row(self, i: int) -> tuple[NDArray[np.uint32], NDArray[np.int32]]:
        tokens = self.tokens[self.offsets[i] : self.offsets[i + 1]]
        return tokens, self.label_ids[self.label_offsets[i] : self.label_offsets[i + 1]]

    @classmethod
    def load(cls, folder: Path) -> "TokenCache":
        meta = json.loads((folder / "meta.json").read_text("utf-8"))
        offsets, label_offsets = np.load(folder / "offsets.npy"), np.load(folder / "label_offsets.npy")
        return cls(
            tokens=_map(folder / "tokens.bin", meta["dtype"], offsets[-1]),
            offsets=offsets,
            label_ids=_map(folder / "label_ids.bin", "int32", label_offsets[-1]),
            label_offsets=label_offsets,
        )

    @classmethod
    def build(
        cls,
        folder: Path,
        documents: Iterable[Document],
        tokenizer: Tokenizer,
        labels: LabelSet,
        advance: Callable[[int], None] = lambda _: None,
    ) -> "TokenCache":
        """The cache in `folder`, streamed there from `documents` unless it exists; `advance` hears of each block.

        A build that was cut short goes on where its last note says; of several processes one builds, the others wait.
        """
        aside = folder.with_name(f".{folder.name}.part")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(aside.with_suffix(".lock")):
            if not folder.is_dir():
                try:
                    _write(aside, documents, tokenizer, labels, advance)
                except CorpusError:  # the corpus must change, and with it the key
                    shutil.rmtree(aside)
                    raise
                os.rename(aside, folder)
        return cls.load(folder)


def _write(
    aside: Path,
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    labels: LabelSet,
    advance: Callable[[int], None],
) -> None:
    aside.mkdir(exist_ok=True)
    dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
    done = _cut_to_note(aside, dtype)
    advance(done)
    files = [(aside / name).open("ab") for name in ("tokens.bin", "label_ids.bin", "lengths.bin")]
    with contextlib.ExitStack() as stack:
        tokens, label_ids, lengths = map(stack.enter_context, files)
        for number, block in enumerate(blocks(islice(documents, done, None), BLOCK), start=1):
            for document, ids in zip(block, tokenizer.encode([d.text for d in block]), strict=True):
                known = np.array(labels.encode(document.labels), dtype=np.int32)
                tokens.write(np.array(ids, dtype=dtype).tobytes())
                label_ids.write(known.tobytes())
                lengths.write(np.array([len(ids), len(known)], dtype=np.int64).tobytes())
            done += len(block)
            if number % NOTE_EVERY == 0:
                for file in files:
                    file.flush()
                    os.fsync(file.fileno())
                write_json(aside / NOTE, {"documents": done})
            advance(len(block))
    both = np.fromfile(aside / "lengths.bin", dtype=np.int64).reshape(-1, 2)
    for name, column in (("offsets.npy", both[:, 0]), ("label_offsets.npy", both[:, 1])):
        np.save(aside / name, np.concatenate([[0], np.cumsum(column)]).astype(np.int64))
    (aside / "meta.json").write_text(json.dumps({"version": VERSION, "dtype": dtype.name}))
    (aside / "lengths.bin").unlink()
    (aside / NOTE).unlink(missing_ok=True)


def _cut_to_note(aside: Path, dtype: np.dtype) -> int:
    """How many documents an earlier build noted as safe on disk; what it wrote after that note is cut off."""
    note, lengths = aside / NOTE, aside / "lengths.bin"
    done = json.loads(note.read_text("utf-8"))["documents"] if note.is_file() and lengths.is_file() else 0
    n_tokens, n_labels = np.fromfile(lengths, np.int64, 2 * done).reshape(-1, 2).sum(0) if done else (0, 0)
    for name, size in (("tokens", n_tokens * dtype.itemsize), ("label_ids", n_labels * 4), ("lengths", done * 16)):
        with (aside / f"{name}.bin").open("ab") as file:
            file.truncate(int(size))
    return done


def _map(path: Path, dtype: str, size: int) -> NDArray:
    # An empty file can't be mapped.
    return np.memmap(path, dtype=dtype, mode="r", shape=(size,)) if size else np.empty(0, dtype=dtype)


def blocks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive lists of up to `size` items."""
    iterator = iter(items)
    while block := list(islice(iterator, size)):
        yield block
