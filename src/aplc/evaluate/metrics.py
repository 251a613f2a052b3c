"""Ranking, propensity, calibration and F1 metrics from top-k lists and sparse truth, batch by batch.

    metrics = Metrics(label_counts, n_documents=11_903)           # of the training data
    for batch in ...:
        metrics.update(pred_ids, pred_probs, indptr, ids)
    metrics.result()                                              # {"P@1": 0.56, ..., "macro-F1": 0.12}

The idea: nearly every metric here is a ratio of two sums over documents, so we keep each document's term of the
numerator and of the denominator. They give the figures and their bootstrap intervals (`bootstrap.py`). Counts per label
give coverage, macro-F1 and the bands (`bands.py`). The price: about 220 bytes per document and 90 per label; nothing of
size documents x labels.

One rule for corner cases, scikit-learn's zero_division=0: 0 / 0 is 0. Formulas and conventions: docs/metrics.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aplc.evaluate.matching import Bools, Floats, Ints, Matches, match

PROPENSITIES: dict[str, tuple[float, float]] = {
    "default": (0.55, 1.5),
    "wikipedia": (0.5, 0.4),
    "amazon": (0.6, 2.6),
}
"""A and B of Jain et al. (KDD 2016) by kind of corpus. AmazonCat-13k takes the default, Amazon-670k "amazon"."""


def propensity(label_counts: ArrayLike, n_documents: int, a: float = 0.55, b: float = 1.5) -> Floats:
    """Inverse propensities 1 + C (N_l + b)^-a with C = (ln N - 1)(b + 1)^a (Jain et al. 2016), one per label.

    `label_counts` and `n_documents` are the training data's. A label unseen in training gets the value for N_l = 0.
    With fewer than three documents C would be negative: then every label has the weight 1.
    """
    if n_documents < 1:
        raise ValueError(f"n_documents is {n_documents}, expected the number of training documents, at least 1")
    c = max(math.log(n_documents) - 1, 0.0) * (b + 1) ** a
    return 1 + c * (np.asarray(label_counts, dtype=np.float64) + b) ** -a


@dataclass(frozen=True)
class LabelStats:
    """Counts per label over the evaluated documents, for lists cut at k. Arrays are indexed by label id."""

    k: int
    """Length of the lists; 0 where they are cut at the threshold instead."""
    train: Ints
    """Training documents with the label; 0 for labels unseen in training."""
    true: Ints
    """Evaluated documents with the label."""
    predicted: Ints
    """Documents with the label among their first k predictions."""
    hits: Ints
    """Documents with both."""


@dataclass(frozen=True)
class DocumentScores:
    """Each document's terms of the metrics that are ratios of sums: sum(numerators) / sum(denominators), by column."""

    names: tuple[str, ...]
    numerators: Floats
    """(documents, names)"""
    denominators: Floats
    """(documents, the last few names). The names before those are means over documents, with denominator 1."""
    n_true: Ints
    """(documents,) Number of true labels; a cheap check that two runs are about the same documents."""

    @property
    def n_means(self) -> int:
        return len(self.names) - self.denominators.shape[1]


@dataclass(frozen=True)
class Reliability:
    """A reliability diagram at k, by bin of predicted probability. Empty bins have zeros."""

    k: int
    edges: Floats
    """(bins + 1,) A bin includes its upper edge, not its lower one, as in scikit-learn's calibration_curve."""
    pairs: Ints
    """(bins,) Number of (document, rank < k) pairs."""
    confidence: Floats
    """(bins,) Mean predicted probability."""
    accuracy: Floats
    """(bins,) Share of pairs that are true."""

    @property
    def ece(self) -> float:
        """Expected calibration error: the gap between confidence and accuracy, averaged over pairs."""
        gap = np.abs(self.confidence - self.accuracy)
        return float((self.pairs * gap).sum() / max(int(self.pairs.sum()), 1))


class Metrics:
    """Streaming metrics over top-k predictions and sparse truth.

    Args:
        label_counts: training frequency of each label id. Ids beyond its end are labels unseen in training: no model
            can predict them, but they count as true labels. It may be longer than the model's label set, for labels
            that occur in training and were left out of the model.
        n_documents: number of training documents, for the propensities.
        ks: list lengths to measure at.
        threshold: F1 is about predictions of at least this probability.
        propensity: name in PROPENSITIES, or (A, B).
        bins: equal-width bins of the calibration error.
    """

    def __init__(
        self,
        label_counts: ArrayLike,
        *,
        n_documents: int,
        ks: Sequence[int] = (1, 3, 5),
        threshold: float = 0.5,
        propensity: str | tuple[float, float] = "default",
        bins: int = 15,
    ) -> None:
        if not ks or min(ks) < 1 or list(ks) != sorted(set(ks)):
            raise ValueError(f"ks is {tuple(ks)}, expected rising numbers from 1 up, such as (1, 3, 5)")
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is {threshold}, expected a probability between 0 and 1")
        if bins < 1:
            raise ValueError(f"bins is {bins}, expected at least 1")
        if isinstance(propensity, str) and propensity not in PROPENSITIES:
            raise ValueError(
                f"propensity is {propensity!r}, expected one of {', '.join(PROPENSITIES)} or a pair (A, B)"
            )
        a, b = PROPENSITIES[propensity] if isinstance(propensity, str) else propensity

        self.ks = tuple(int(k) for k in ks)
        self.threshold = float(threshold)
        self.bins = int(bins)
        self.propensity = (float(a), float(b))
        self.n_documents = int(n_documents)
        self._train = np.array(label_counts, dtype=np.int64).reshape(-1)
        if self._train.size and self._train.min() < 0:
            raise ValueError("label_counts has a negative entry")
        # One more entry than labels: the weight of every label unseen in training.
        self._inverse = _inverse_propensity(self._train, self.n_documents, self.propensity)

        means = [f"{name}@{k}" for name in ("P", "nDCG", "R", "RP") for k in self.ks]
        ratios = [f"{name}@{k}" for name in ("PSP", "PSnDCG") for k in self.ks] + ["micro-F1"]
        self._names = (*means, *ratios)
        self._n_means = len(means)
        self._numerators: list[Floats] = []
        self._denominators: list[Floats] = []
        self._n_true: list[Ints] = []
        # Rows: true; predicted and hit above the threshold; predicted, then hit, at each k. Columns grow with the ids.
        self._labels = np.zeros((3 + 2 * len(self.ks), self._train.size), dtype=np.int64)
        self._n_ids = self._train.size
        # pairs, hits, sum of probabilities: (3, ks, bins). Counts are exact in float64.
        self._calibration = np.zeros((3, len(self.ks), self.bins))

    @property
    def n_evaluated(self) -> int:
        """Documents given to `update`."""
        return sum(len(n) for n in self._n_true)

    @property
    def n_unlabelled(self) -> int:
        """Documents among them without a true label; they count as 0 in every mean over documents."""
        return sum(int((n == 0).sum()) for n in self._n_true)

    def update(self, pred_ids: ArrayLike, pred_probs: ArrayLike, indptr: ArrayLike, ids: ArrayLike) -> None:
        """Add a batch of n documents.

        Args:
            pred_ids: (n, width) label ids by falling probability, -1 where a document has fewer. Any width:
                predictions beyond the largest k are used by F1 only, missing ones count as wrong.
            pred_probs: (n, width) their probabilities; ignored where the id is -1.
            indptr: (n + 1,) document i has the labels ids[indptr[i] : indptr[i + 1]]. It may be a slice of a larger
                array and need not start at 0.
            ids: true label ids, in any order; a repeated one counts once. Ids should be dense: memory grows with the
                largest.
        """
        matches = match(pred_ids, pred_probs, indptr, ids)
        chosen = matches.valid & (matches.prob >= self.threshold)
        numerators, denominators = self._document_terms(matches, chosen)
        self._numerators.append(numerators)
        self._denominators.append(denominators)
        self._n_true.append(matches.n_true)
        self._count_labels(matches, chosen)
        for i, k in enumerate(self.ks):
            valid = matches.valid[:, :k]
            self._calibration[:, i] += self._bin(matches.prob[:, :k][valid], matches.hit[:, :k][valid])

    def update_lists(
        self, pred_ids: ArrayLike, pred_probs: ArrayLike, truth: Sequence[Sequence[int] | NDArray[np.integer]]
    ) -> None:
        """`update` with each document's true label ids as a list or an array."""
        ids = np.fromiter(chain.from_iterable(truth), dtype=np.int64)
        self.update(pred_ids, pred_probs, np.cumsum([0, *map(len, truth)]), ids)

    def result(self) -> dict[str, float]:
        """Every metric as a fraction between 0 and 1, by name: P@1, ..., coverage@5, ECE@5, micro-F1, macro-F1."""
        scores = self.document_scores()
        over = scores.numerators.sum(0).tolist()
        under = [float(len(scores.n_true))] * self._n_means + scores.denominators.sum(0).tolist()
        result = {name: _ratio(x, y) for name, x, y in zip(self._names, over, under, strict=True)}
        micro = result.pop("micro-F1")
        result |= {f"coverage@{k}": self._coverage(k) for k in self.ks}
        result |= {f"ECE@{k}": self.reliability(k).ece for k in self.ks}
        result |= {"micro-F1": micro, "macro-F1": self._macro_f1()}
        return result

    def document_scores(self) -> DocumentScores:
        """Each document's terms of the metrics that have confidence intervals, in the order of the updates."""
        if self.n_evaluated == 0:
            raise ValueError("no document was evaluated, so there is nothing to report; call update first")
        # Kept joined, so that a second call costs nothing.
        self._numerators = [np.concatenate(self._numerators)]
        self._denominators = [np.concatenate(self._denominators)]
        self._n_true = [np.concatenate(self._n_true)]
        return DocumentScores(self._names, self._numerators[0], self._denominators[0], self._n_true[0])

    def label_stats(self, k: int) -> LabelStats:
        """Counts per label at k (one of `ks`). Ids beyond `label_counts` follow, with a training count of 0."""
        i = self._index(k)
        return self._stats(k, 3 + i, 3 + len(self.ks) + i)

    def threshold_stats(self) -> LabelStats:
        """Counts per label for predictions of at least the threshold's probability, as in F1."""
        return self._stats(0, 1, 2)

    def _stats(self, k: int, predicted: int, hits: int) -> LabelStats:
        train = np.zeros(self._n_ids, dtype=np.int64)
        train[: self._train.size] = self._train
        true, predicted_, hits_ = self._labels[[0, predicted, hits], : self._n_ids]
        return LabelStats(k, train, true, predicted_, hits_)

    def reliability(self, k: int) -> Reliability:
        """The bins behind ECE@k (k one of `ks`)."""
        pairs, hits, total = self._calibration[:, self._index(k)]
        count = np.maximum(pairs, 1)
        edges = np.linspace(0, 1, self.bins + 1)
        return Reliability(k, edges, pairs.astype(np.int64), total / count, hits / count)

    def _index(self, k: int) -> int:
        if k not in self.ks:
            raise ValueError(f"k is {k}, expected one of ks: {self.ks}")
        return self.ks.index(k)

    def _weight(self, ids: Ints) -> Floats:
        """Inverse propensities; ids beyond the training labels have the last entry, for N_l = 0."""
        return self._inverse[np.minimum(ids, self._train.size)]

    def _document_terms(self, matches: Matches, chosen: Bools) -> tuple[Floats, Floats]:
        """Numerators (n, names) and denominators (n, ratios) of n documents, in the order of the names."""
        pred, hit, row, n_true = matches.pred, matches.hit, matches.row, matches.n_true
        n, depth = len(pred), self.ks[-1]
        discount = 1 / np.log2(np.arange(depth) + 2)
        ideal = np.concatenate([[0.0], np.cumsum(discount)])  # DCG of that many true labels, ranked first
        gain = np.zeros((n, depth))  # 1 where the prediction of that rank is true
        width = min(depth, pred.shape[1])
        gain[:, :width] = hit[:, :width]
        weighted = np.zeros((n, depth))
        weighted[:, :width] = np.where(hit[:, :width], self._weight(np.maximum(pred[:, :width], 0)), 0)
        # The best list has the true labels by falling weight.
        best = np.zeros((n, depth))
        weight = self._weight(matches.true)
        order = np.lexsort((-weight, row))
        rank = np.arange(len(row)) - (np.cumsum(n_true) - n_true)[row]  # row is sorted, so also the row after sorting
        kept = rank < depth
        best[row[kept], rank[kept]] = weight[order][kept]

        ks = np.array(self.ks)
        reach = np.minimum(ks[None, :], n_true[:, None])  # (n, ks): most possible hits
        cut = ks - 1
        hits = np.cumsum(gain, 1)[:, cut]
        dcg = np.cumsum(gain * discount, 1)[:, cut]
        norm = ideal[np.maximum(reach, 1)]  # without a true label every numerator is 0, whatever the norm
        means = [hits / ks, dcg / norm, hits / np.maximum(n_true, 1)[:, None], hits / np.maximum(reach, 1)]
        over = [np.cumsum(weighted, 1)[:, cut] / ks, np.cumsum(weighted * discount, 1)[:, cut] / norm]
        under = [np.cumsum(best, 1)[:, cut] / ks, np.cumsum(best * discount, 1)[:, cut] / norm]
        over.append(2 * (hit & chosen).sum(1, keepdims=True))  # micro-F1
        under.append(chosen.sum(1, keepdims=True) + n_true[:, None])
        return np.concatenate(means + over, 1), np.concatenate(under, 1)

    def _grow(self, n_labels: int) -> None:
        self._n_ids = max(self._n_ids, n_labels)
        if self._n_ids > self._labels.shape[1]:
            # With room to spare: unseen labels turn up a few at a time, and growing copies all counts.
            self._labels = np.pad(self._labels, ((0, 0), (0, self._n_ids + 4096 - self._labels.shape[1])))

    def _count_labels(self, matches: Matches, chosen: Bools) -> None:
        pred, true = matches.pred, matches.true
        self._grow(1 + max(int(true.max(initial=-1)), int(pred.max(initial=-1))))
        masks = [chosen, matches.hit & chosen]
        masks += [mask[:, :k] for mask in (matches.valid, matches.hit) for k in self.ks]
        # add.at touches the batch's ids only; bincount would go over all labels in every batch.
        np.add.at(self._labels[0], true, 1)
        for row, mask in zip(self._labels[1:], masks, strict=True):
            np.add.at(row, pred[:, : mask.shape[1]][mask], 1)

    def _bin(self, prob: Floats, hit: Bools) -> Floats:
        """(3, bins): pairs, hits, sum of probabilities."""
        # As in scikit-learn's calibration_curve, a bin includes its upper edge.
        where = np.searchsorted(np.linspace(0, 1, self.bins + 1)[1:-1], prob)
        return np.stack([np.bincount(where, weights=x, minlength=self.bins) for x in (np.ones_like(prob), hit, prob)])

    def _coverage(self, k: int) -> float:
        stats = self.label_stats(k)
        return _ratio(int((stats.hits > 0).sum()), int((stats.true > 0).sum()))

    def _macro_f1(self) -> float:
        true, predicted, hits = self._labels[:3]
        size = true + predicted
        occurring = size > 0
        return float((2 * hits[occurring] / size[occurring]).sum()) / max(int(occurring.sum()), 1)


def _inverse_propensity(label_counts: Ints, n_documents: int, ab: tuple[float, float]) -> Floats:
    return propensity(np.append(label_counts, 0), n_documents, *ab)


def _ratio(x: float, y: float) -> float:
    return x / y if y else 0.0
