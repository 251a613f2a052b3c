"""What a person should look at: confused labels, labels that may be missing, and documents drawn at random.

Collected in one pass, in memory that does not grow with the number of documents: pairs of labels in a counter that
drops its rarest entries, candidates in a list of the most probable, examples in a reservoir.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from aplc.data.formats import Document
from aplc.data.reservoir import Reservoir
from aplc.evaluate.matching import Ints

MAX_PAIRS = 200_000
"""Pairs of labels kept by a prune, which happens when there are twice as many."""
SIDES = 10
"""Labels of a document that count on either side of a pair: a document of 1,000 labels must not outweigh the rest."""
PER_LABEL = 2
"""Candidates per label, so that one badly calibrated label does not fill the list."""
SHOWN_LABELS = 8
"""Predictions kept with an example."""
TEXT = 2_000
"""Characters kept of a text."""

_SPAN = 2**31


@dataclass(frozen=True)
class Example:
    """A document with its true labels and the model's first predictions."""

    name: str
    """The document's id, or its line."""
    text: str
    predicted: list[tuple[str, float]]
    true: list[str]


@dataclass(frozen=True)
class Candidate:
    """A label that the model is sure of and the document lacks: either the model is wrong, or the label is missing."""

    name: str
    text: str
    label: str
    probability: float
    true: list[str]


@dataclass(frozen=True)
class Confusion:
    """A true label that was missed where another was predicted wrongly."""

    missed: str
    predicted: str
    documents: int
    expected: float
    """Documents where both would happen by chance, were they independent."""


@dataclass
class PairCounter:
    """How often each pair of ids was seen. Once rare pairs were dropped, `exact` is False and counts may be too low."""

    limit: int = MAX_PAIRS
    exact: bool = True
    keys: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    counts: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def add(self, first: Sequence[int], second: Sequence[int]) -> None:
        keys = np.asarray(first, dtype=np.int64) * _SPAN + np.asarray(second, dtype=np.int64)
        new, new_counts = np.unique(keys, return_counts=True)
        self.keys, place = np.unique(np.concatenate([self.keys, new]), return_inverse=True)
        weights = np.concatenate([self.counts, new_counts])
        self.counts = np.zeros(len(self.keys), dtype=np.int64)
        np.add.at(self.counts, place, weights)
        if len(self.keys) > 2 * self.limit:
            kept = np.sort(np.argsort(-self.counts, kind="stable")[: self.limit])
            self.keys, self.counts, self.exact = self.keys[kept], self.counts[kept], False

    def pairs(self) -> tuple[Ints, Ints, Ints]:
        """(first, second, count)"""
        return self.keys // _SPAN, self.keys % _SPAN, self.counts


class Findings:
    """Collects findings batch by batch. `names` are the model's labels; ids beyond them are labels it does not have."""

    def __init__(
        self, names: Sequence[str], *, sure: float = 0.5, n_examples: int = 12, n_candidates: int = 30, seed: int = 0
    ) -> None:
        self.names = names
        self.sure = sure
        self.n_candidates = n_candidates
        self.n_documents = 0
        self._examples = Reservoir[tuple[int, Example]](n_examples, seed)
        self._candidates: dict[int, list[Candidate]] = {}
        self.pairs = PairCounter()
        self._missed = np.zeros(len(names), dtype=np.int64)
        self._wrong = np.zeros(len(names), dtype=np.int64)

    def update(self, documents: Sequence[Document], ids: np.ndarray, probs: np.ndarray, truth: list[list[int]]) -> None:
        """Arguments as for `Metrics.update`, but the truth as one list of ids per document."""
        firsts: list[int] = []
        seconds: list[int] = []
        for i, document in enumerate(documents):
            row, true = ids[i][ids[i] >= 0].tolist(), set(truth[i])
            first, second = self._confused(row[: len(true)], true)
            firsts += [a for a in first for _ in second]
            seconds += second * len(first)
            self._look_for_missing(document, row, probs[i].tolist(), true)
            self._draw(document, row, probs[i].tolist())
        self.pairs.add(firsts, seconds)

    def _confused(self, row: list[int], true: set[int]) -> tuple[list[int], list[int]]:
        """Missed and wrong labels. With as many predictions as true labels, each miss goes with a wrong prediction."""
        found = set(row)
        missed = sorted(i for i in true if i not in found and i < len(self.names))[:SIDES]
        wrong = [i for i in row if i not in true][:SIDES]
        self._missed[missed] += 1
        self._wrong[wrong] += 1
        return missed, wrong

    def _look_for_missing(self, document: Document, row: list[int], probs: list[float], true: set[int]) -> None:
        for label, probability in zip(row, probs, strict=False):
            if probability < self.sure:
                break
            if label in true:
                continue
            best = self._candidates.setdefault(label, [])
            if len(best) < PER_LABEL or probability > best[-1].probability:
                new = Candidate(_name(document), document.text[:TEXT], self.names[label], probability, document.labels)
                best.append(new)
                best.sort(key=lambda c: -c.probability)
                del best[PER_LABEL:]
        if len(self._candidates) > 4 * self.n_candidates:
            surest = sorted(self._candidates.items(), key=lambda item: -item[1][0].probability)
            self._candidates = dict(surest[: 2 * self.n_candidates])

    def _draw(self, document: Document, row: list[int], probs: list[float]) -> None:
        predicted = [(self.names[j], p) for j, p in zip(row[:SHOWN_LABELS], probs, strict=False)]
        example = Example(_name(document), document.text[:TEXT], predicted, document.labels)
        self._examples.add((self.n_documents, example))
        self.n_documents += 1

    @property
    def examples(self) -> list[Example]:
        """Documents drawn at random, in the order of the corpus."""
        return [example for _, example in sorted(self._examples.items, key=lambda item: item[0])]

    @property
    def candidates(self) -> list[Candidate]:
        """The most probable first."""
        every = [candidate for best in self._candidates.values() for candidate in best]
        return sorted(every, key=lambda c: (-c.probability, c.label, c.name))[: self.n_candidates]

    def confusions(self, n: int = 20) -> list[Confusion]:
        """Pairs that happen more often than by chance, by how much more. At least two documents each."""
        missed, wrong, counts = self.pairs.pairs()
        expected = self._missed[missed] * self._wrong[wrong] / max(self.n_documents, 1)
        order = np.argsort(expected - counts, kind="stable")[:n]
        return [
            Confusion(self.names[missed[i]], self.names[wrong[i]], int(counts[i]), float(expected[i]))
            for i in order
            if counts[i] > max(1, expected[i])
        ]


def _name(document: Document) -> str:
    return document.id if document.id is not None else f"line {document.line}"
