"""The label set: names in order of falling training frequency, which is the order the clusters need.

Ties are broken by name, so that the order follows from the data alone. A label's id is its place in that order; ids
never leave the package. Labels that only occur in test data get ids from `len(labels)` on, for the metrics.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aplc.errors import CorpusError, ModelError
from aplc.files import atomic_write

NAMES, COUNTS = "labels.txt", "label_counts.npy"


@dataclass(frozen=True)
class LabelSet:
    names: tuple[str, ...]
    counts: NDArray[np.int64]
    """Training documents with each label; never rising."""

    @classmethod
    def from_counter(cls, counter: Counter[str], min_count: int = 1) -> "LabelSet":
        if not counter:
            raise CorpusError("no document has a label; each row needs a list of strings under 'labels'")
        kept = sorted(((-n, name) for name, n in counter.items() if n >= min_count))
        if not kept:
            most = max(counter.values())
            raise CorpusError(
                f"data.min_count = {min_count} leaves no label; the most frequent one has {most} documents"
            )
        return cls(tuple(name for _, name in kept), np.array([-n for n, _ in kept], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    def encode(self, names: Iterable[str]) -> list[int]:
        """Ids of the names that are in the set; the others are left out."""
        return [self.index[name] for name in names if name in self.index]

    def encode_all(self, names: Iterable[str], unseen: dict[str, int]) -> list[int]:
        """Ids of all names; one that is not in the set gets the next free id from `len(self)` on, kept in `unseen`."""
        return [
            self.index[name] if name in self.index else unseen.setdefault(name, len(self) + len(unseen))
            for name in names
        ]

    def save(self, folder: Path) -> None:
        with atomic_write(folder / NAMES) as out:
            out.write("".join(f"{name}\n" for name in self.names).encode("utf-8"))
        with atomic_write(folder / COUNTS) as out:
            np.save(out, self.counts, allow_pickle=False)

    @classmethod
    def load(cls, folder: Path) -> "LabelSet":
        try:
            # Only \n ends a name: str.splitlines would also cut at the odd separators some names contain.
            names = tuple((folder / NAMES).read_bytes().decode("utf-8").removesuffix("\n").split("\n"))
            counts = np.load(folder / COUNTS, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ModelError(f"{folder}: can't read {NAMES} and {COUNTS}: {error}") from None
        if counts.shape != (len(names),) or counts.dtype != np.int64 or len(set(names)) != len(names):
            raise ModelError(f"{folder}: {NAMES} has {len(names)} names, {COUNTS} is {counts.dtype}{counts.shape}")
        return cls(names, counts)
