"""Results that know the vocabulary: results by scheme, and wrong predictions that are next to a true label.

A prediction that is just above or below a true label in the hierarchy is wrong in every metric; a librarian forgives
it. These are counted apart: `broader` ones, which say less than the true label, and `narrower` ones, which say more.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from aplc.data.labels import LabelSet
from aplc.data.vocabulary import Vocabulary
from aplc.evaluate.bands import Band, band_of
from aplc.evaluate.metrics import LabelStats

MOST_SCHEMES = 30
"""Results are given for the schemes with the most labels."""
REST = "no scheme"


@dataclass(frozen=True)
class Near:
    """Of all documents' first k predictions."""

    k: int
    predicted: int
    hits: int
    broader: int
    """Wrong, and just above a true label of the document."""
    narrower: int
    """Wrong, and just below a true label."""

    @property
    def near(self) -> int:
        """Right, or next to a true label."""
        return self.hits + self.broader + self.narrower

    @property
    def share(self) -> float:
        """Share of the predictions that are right or next to a true label."""
        return self.near / max(self.predicted, 1)


class NearCounter:
    """Counts predictions next to true labels, batch by batch."""

    def __init__(self, labels: LabelSet, vocabulary: Vocabulary, ks: Sequence[int]) -> None:
        self.ks = tuple(ks)
        self.above: dict[int, set[int]] = defaultdict(set)
        for label, entry in vocabulary.entries.items():
            if label in labels.index:
                self.above[labels.index[label]] |= {labels.index[up] for up in entry.broader if up in labels.index}
        self.counts = np.zeros((len(self.ks), 4), dtype=np.int64)

    def update(self, ids: np.ndarray, truth: Sequence[Sequence[int]]) -> None:
        """Predicted ids, -1 where a list is shorter, and each document's true ids."""
        for row, own in zip(ids[:, : self.ks[-1]].tolist(), truth, strict=True):
            true = set(own)
            parents = set().union(*(self.above.get(label, ()) for label in true))
            kinds = np.zeros((len(row), 4), dtype=np.int64)
            for place, label in enumerate(row):
                if label < 0:
                    continue
                is_near = (label in true, label in parents, not true.isdisjoint(self.above.get(label, ())))
                kinds[place, 0] = 1
                if any(is_near):
                    kinds[place, 1 + is_near.index(True)] = 1
            self.counts += np.array([kinds[:k].sum(0) for k in self.ks])

    def finish(self) -> list[Near]:
        return [Near(k, *map(int, row)) for k, row in zip(self.ks, self.counts, strict=True)]


def by_scheme(stats: LabelStats, labels: LabelSet, vocabulary: Vocabulary) -> list[Band]:
    """Results for the labels of each scheme, and for labels of none; a label of two schemes counts in both."""
    largest = sorted(vocabulary.schemes, key=lambda name: -len(vocabulary.schemes[name]))[:MOST_SCHEMES]
    rest = np.arange(len(stats.train)) < len(labels)
    bands = []
    for scheme in largest:
        inside = np.zeros(len(stats.train), dtype=bool)
        members = vocabulary.schemes[scheme]
        inside[[i for i, name in enumerate(labels.names) if name in members]] = True
        rest &= ~inside
        bands.append(band_of(scheme, stats, inside))
    if bands:
        bands.append(band_of(REST, stats, rest))
    return [band for band in bands if band.labels]


def names_of(vocabulary: Vocabulary | None, labels: Iterable[str]) -> dict[str, str]:
    """What labels are called, where that is another string."""
    if vocabulary is None:
        return {}
    found = {label: vocabulary.name_of(label) for label in sorted(set(labels))}
    return {label: name for label, name in found.items() if name != label}
