"""Results by band of labels: by training frequency, by cluster of the output layer, by number of examples.

P@k is about a document's whole list and can't be split by label. Pairs of document and label can: of the true pairs of
a band, how many are in the top k (recall), and of the predictions in the band, how many are true (precision). Summed
over bands, the counts are those of the whole label set.

    by_frequency(metrics.label_stats(5))            # head (101 and more), torso (11-100), tail (1-10), unseen (0)
    by_cluster(metrics.label_stats(5), cutoffs=[1978], n_labels=3956)
    by_examples(metrics.label_stats(5))             # 0, 1, 2, 3-4, 5-8, ... training examples
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from aplc.evaluate.matching import Bools
from aplc.evaluate.metrics import LabelStats

TAIL, TORSO = 10, 100
"""A tail label has at most 10 training documents, a torso label at most 100. Fixed counts, not shares of the label set,
so that bands can be compared between corpora."""


@dataclass(frozen=True)
class Band:
    """Results at k for a group of labels. `dataclasses.asdict` gives JSON."""

    name: str
    k: int
    low: int
    """Fewest training documents of a label in the band."""
    high: int
    """Most training documents of a label in the band."""
    labels: int
    """Labels in the band; of those unseen in training, the ones that occur in the evaluated documents."""
    labels_true: int
    """Of these, labels that occur in the evaluated documents."""
    true: int
    """True (document, label) pairs."""
    predicted: int
    """Pairs among the first k predictions."""
    hits: int
    """Pairs that are both."""
    recall: float
    """hits / true"""
    precision: float
    """hits / predicted"""
    f1: float
    """2 hits / (true + predicted)"""
    share: float
    """predicted / predictions in all bands"""
    share_true: float
    """true / true pairs in all bands; below `share`, the model favours the band"""
    coverage: float
    """Labels hit at least once / labels_true"""
    label_recall: float
    """Mean recall of the labels in labels_true: each label has the same weight, however frequent."""


def by_frequency(stats: LabelStats, *, tail: int = TAIL, torso: int = TORSO) -> list[Band]:
    """Bands head, torso (at most `torso` training documents), tail (at most `tail`) and unseen (none)."""
    if not 0 < tail < torso:
        raise ValueError(f"tail is {tail} and torso is {torso}, expected 0 < tail < torso")
    highest = max(int(stats.train.max(initial=0)), torso + 1)
    bounds = [("head", torso + 1, highest), ("torso", tail + 1, torso), ("tail", 1, tail), ("unseen", 0, 0)]
    return [band_of(name, stats, _between(stats, low, high), (low, high)) for name, low, high in bounds]


def by_cluster(stats: LabelStats, *, cutoffs: Sequence[int], n_labels: int, n_added: int = 0) -> list[Band]:
    """Bands by cluster of the output layer: head, tail 1, tail 2, ..., and labels the model doesn't have.

    The last `n_added` clusters hold labels that were added after training: added 1, added 2, ...
    """
    edges = [0, *cutoffs, n_labels]
    if edges != sorted(set(edges)):
        raise ValueError(f"cutoffs is {list(cutoffs)}, expected rising ids between 0 and n_labels = {n_labels}")
    ids = np.arange(len(stats.train))
    bands = []
    for i, (start, end) in enumerate(pairwise(edges)):
        n_tails = len(edges) - 2 - n_added
        name = f"added {i - n_tails}" if i > n_tails else f"tail {i}" if i else "head"
        bands.append(band_of(name, stats, (ids >= start) & (ids < end)))
    return [*bands, band_of("not in the model", stats, (ids >= n_labels) & (stats.true + stats.predicted > 0))]


def by_examples(stats: LabelStats) -> list[Band]:
    """How many examples does a label need? Bands of 0, 1, 2, 3-4, 5-8, ... training documents, empty ones left out."""
    highest = int(stats.train.max(initial=0))
    bounds = [(0, 0), (1, 1)]
    while bounds[-1][1] < highest:
        bounds.append((bounds[-1][1] + 1, bounds[-1][1] * 2))
    bands = [
        band_of(f"{low}-{high}" if low < high else f"{low}", stats, _between(stats, low, high), (low, high))
        for low, high in bounds
    ]
    return [band for band in bands if band.labels]


@dataclass(frozen=True)
class LabelScore:
    """Results for one label."""

    name: str
    train: int
    """Training documents."""
    true: int
    predicted: int
    hits: int
    precision: float
    recall: float
    f1: float


def best_and_worst(
    stats: LabelStats, names: Sequence[str], *, n: int = 15, least: int = 5
) -> tuple[list[LabelScore], list[LabelScore]]:
    """The `n` labels with the highest F1 and the `n` with the lowest, among labels of at least `least` documents.

    Ties go to the more surprising label: with fewer training documents among the best, with more among the worst. No
    label is in both lists. Where too few labels are that frequent, one document is enough.
    """
    true, train = stats.true[: len(names)], stats.train[: len(names)]
    ids = np.flatnonzero(true >= least)
    if len(ids) < 2 * n:
        ids = np.flatnonzero(true > 0)
    f1 = 2 * stats.hits[ids] / (true[ids] + stats.predicted[ids])
    order = ids[np.lexsort((ids, -train[ids], f1))]  # the worst first
    n = min(n, len(order) // 2)
    return [_score(i, stats, names) for i in order[::-1][:n]], [_score(i, stats, names) for i in order[:n]]


def _score(i: int, stats: LabelStats, names: Sequence[str]) -> LabelScore:
    train, true, predicted, hits = (int(x[i]) for x in (stats.train, stats.true, stats.predicted, stats.hits))
    return LabelScore(
        name=names[i],
        train=train,
        true=true,
        predicted=predicted,
        hits=hits,
        precision=hits / max(predicted, 1),
        recall=hits / max(true, 1),
        f1=2 * hits / max(true + predicted, 1),
    )


def _between(stats: LabelStats, low: int, high: int) -> Bools:
    inside = (stats.train >= low) & (stats.train <= high)
    # Ids of labels unseen in training may have gaps: an id that never occurs is not a label.
    return inside if low else inside & (stats.true + stats.predicted > 0)


def band_of(name: str, stats: LabelStats, inside: Bools, bounds: tuple[int, int] | None = None) -> Band:
    """Results of the labels `inside`; `bounds`: the fewest and most training documents that they may have."""
    train, true, predicted, hits = (x[inside] for x in (stats.train, stats.true, stats.predicted, stats.hits))
    if bounds is None:
        bounds = (int(train.min()), int(train.max())) if len(train) else (0, 0)
    occurs = true > 0
    n_true, n_predicted, n_hits, n_occurring = (int(x.sum()) for x in (true, predicted, hits, occurs))
    return Band(
        name=name,
        k=stats.k,
        low=bounds[0],
        high=bounds[1],
        labels=len(train),
        labels_true=n_occurring,
        true=n_true,
        predicted=n_predicted,
        hits=n_hits,
        recall=n_hits / max(n_true, 1),
        precision=n_hits / max(n_predicted, 1),
        f1=2 * n_hits / max(n_true + n_predicted, 1),
        share=n_predicted / max(int(stats.predicted.sum()), 1),
        share_true=n_true / max(int(stats.true.sum()), 1),
        coverage=int((hits > 0).sum()) / max(n_occurring, 1),
        label_recall=float((hits[occurs] / true[occurs]).sum()) / max(n_occurring, 1),
    )
