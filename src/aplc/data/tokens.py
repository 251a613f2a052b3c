"""Tokens and label ids of a whole corpus part in memory-mapped arrays.

Built once by streaming the part through the tokenizer, and keyed by the content of corpus, tokenizer and label set:
a changed file gives another key, and a half-built cache stays under a temporary name. Texts are stored whole, without
special tokens, so that any `max_length` can be served. Price: two to four bytes a token on disk.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.data.tokenizer import Tokenizer
from aplc.files import cached

VERSION = 1
BLOCK = 1_000
"""Documents tokenized at a time: enough to keep `tokenizers`' threads busy."""

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
        """The cache in `folder`, streamed there from `documents` unless it exists; `advance` hears of each block."""

        def write(aside: Path) -> None:
            dtype = np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)
            lengths: list[int] = []
            label_lengths: list[int] = []
            with (aside / "tokens.bin").open("wb") as tokens, (aside / "label_ids.bin").open("wb") as label_ids:
                for block in blocks(documents, BLOCK):
                    for document, ids in zip(block, tokenizer.encode([d.text for d in block]), strict=True):
                        tokens.write(np.array(ids, dtype=dtype).tobytes())
                        known = np.array(labels.encode(document.labels), dtype=np.int32)
                        label_ids.write(known.tobytes())
                        lengths.append(len(ids))
                        label_lengths.append(len(known))
                    advance(len(block))
            np.save(aside / "offsets.npy", np.cumsum([0, *lengths], dtype=np.int64))
            np.save(aside / "label_offsets.npy", np.cumsum([0, *label_lengths], dtype=np.int64))
            (aside / "meta.json").write_text(json.dumps({"version": VERSION, "dtype": dtype.name}))

        return cls.load(cached(folder, write))


def _map(path: Path, dtype: str, size: int) -> NDArray:
    # An empty file can't be mapped.
    return np.memmap(path, dtype=dtype, mode="r", shape=(size,)) if size else np.empty(0, dtype=dtype)


def blocks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Consecutive lists of up to `size` items."""
    iterator = iter(items)
    while block := list(islice(iterator, size)):
        yield block
