"""Probabilities that mean what they say: learned after training, on the documents that were held out of it.

Of the labels a model gives 70 %, 70 % should be right. For each cluster of the output layer, the held-out pairs of
(probability, right or wrong) are cut into blocks by isotonic regression, and the calibrated probability runs straight
from one block's mean to the next. It only rises, so that the order of labels within a cluster stays what it was, and
between clusters it becomes fair. `Ranking` says how the best k labels stay exact under that.

Why this way: on held-out PubMed-MeSH, five-fold, it left less error than a temperature, than a scale and a shift, and
than isotonic regression's own steps (docs/using.md has the figures). The price is a few hundred numbers in
calibration.json, and that a cluster needs some hits in the held-out documents; without them it keeps its probabilities.

Shapes: n documents, w candidates of each.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from aplc.errors import AplcError, ModelError
from aplc.files import read_json, write_json

CALIBRATION_FILE = "calibration.json"
FORMAT = 1
DEPTH = 100
"""Predictions per document that calibration is learned from and that figures see: ranking metrics use the first five,
or as many as asked for, F1 at a threshold all of them."""
PRIOR_HITS = 30
"""A block is pulled towards the model's own probability as if this many hits had been seen there; on few held-out
documents this leaves less error than none, and than no calibration (bench/LOG.md)."""
LEAST_PAIRS, LEAST_HITS = 100, 10
"""A block has at least this many pairs and hits; a cluster twice as many hits, and as many misses, or no knots."""
STEPS = 200
"""The precision curve has this many thresholds, evenly spaced."""
LEAST_PREDICTED = 50
"""A precision measured on fewer predictions is not relied on."""

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def depths(n_labels: int) -> tuple[int, int]:
    """How many labels to rank for a document, and how many to ask an uncalibrated model for: calibration changes the
    order, and the first hundred after it are among twice as many before it."""
    return min(DEPTH, n_labels), min(2 * DEPTH, n_labels)


@dataclass(frozen=True)
class Calibration:
    """What was learned on held-out documents. Clusters in the order of ids: the head, then the tails."""

    knots: tuple[tuple[tuple[float, float], ...], ...]
    """For each cluster, points (model's probability, calibrated one), both rising from 0 to 1."""
    predicted: tuple[int, ...]
    """Held-out predictions with a calibrated probability of at least i / STEPS."""
    hits: tuple[int, ...]
    """How many of these were right."""
    n_documents: int
    """Held-out documents."""
    n_true: int
    """True labels of these."""

    def __post_init__(self) -> None:
        for points in self.knots:
            curve = np.array(points, dtype=np.float64)
            rises = curve.ndim == 2 and curve.shape[1:] == (2,) and bool((np.diff(curve, axis=0) > 0).all())
            if not rises or curve[0].tolist() != [0, 0] or curve[-1].tolist() != [1, 1]:
                raise ModelError("knots must rise from (0, 0) to (1, 1)")
        counts = np.array([self.predicted, self.hits], dtype=np.int64)
        if counts.shape != (2, STEPS + 1) or (counts < 0).any() or (counts[1] > counts[0]).any():
            raise ModelError(f"predicted and hits must have {STEPS + 1} counts, and no more hits than predictions")

    @classmethod
    def fit(cls, ids: Ints, probs: NDArray, hit: Bools, *, bounds: Sequence[int], n_true: int) -> Self:
        """Learn from candidates (n, w) with ids of -1 where there is none; `bounds` are where the clusters begin."""
        cluster = _cluster_of(ids, bounds)
        knots = []
        for c in range(len(bounds)):
            inside = (cluster == c) & (ids >= 0)
            knots.append(_knots(probs[inside].astype(np.float64), hit[inside]))
        calibrated = _interpolate(cluster, probs, knots)[ids >= 0]
        step = np.floor(calibrated * STEPS).astype(np.int64)
        predicted, hits = (
            np.cumsum(np.bincount(step, weights, minlength=STEPS + 1)[::-1])[::-1].astype(np.int64)
            for weights in (np.ones(len(step)), hit[ids >= 0])
        )
        return cls(tuple(knots), tuple(predicted.tolist()), tuple(hits.tolist()), len(ids), n_true)

    def __call__(self, ids: Ints, probs: NDArray, bounds: Sequence[int]) -> Floats:
        """Calibrated probabilities. Clusters beyond the ones learned, those of labels added later, keep theirs."""
        return _interpolate(_cluster_of(ids, bounds), probs, self.knots)

    def threshold_for(self, precision: float) -> float:
        """The lowest threshold at which the held-out predictions were right that often, pooled over documents."""
        if not 0 < precision <= 1:
            raise AplcError(f"precision = {precision}: must be above 0 and at most 1")
        reached = np.array(self.hits) / np.maximum(self.predicted, 1)
        relied = np.array(self.predicted) >= LEAST_PREDICTED
        met = np.flatnonzero(relied & (reached >= precision))
        if len(met):
            return int(met[0]) / STEPS
        if not relied.any():
            raise AplcError(
                f"precision = {precision}: can't be learned from {self.n_documents:,} held-out documents with "
                f"{self.predicted[0]:,} predictions; train with more of them (data.validation)"
            )
        best = int(np.argmax(np.where(relied, reached, -1)))
        raise AplcError(
            f"precision = {precision}: can't be met; the {self.n_documents:,} held-out documents reach "
            f"{reached[best]:.3f} at most, with a threshold of {best / STEPS:g} (precisions of fewer than "
            f"{LEAST_PREDICTED} predictions are not relied on); hold out more (data.validation), or give a threshold"
        )

    def summary(self, clusters: Sequence[str]) -> str:
        """What was learned, in a line; `clusters` are their names."""
        few = [name for name, points in zip(clusters, self.knots, strict=True) if len(points) <= 2]
        documents = f"{self.n_documents:,} held-out document{'' if self.n_documents == 1 else 's'}"
        if len(few) == len(self.knots):
            return f"none, in {documents} there are too few hits"
        kept = f"; too few hits there of {', '.join(few)}: these keep their probabilities" if few else ""
        return f"learned on {documents}{kept}"

    def recall_at(self, threshold: float) -> float:
        """The share of the held-out documents' true labels that were found at a threshold of the curve."""
        return self.hits[round(threshold * STEPS)] / max(self.n_true, 1)

    def save(self, folder: Path) -> None:
        write_json(folder / CALIBRATION_FILE, {"format": FORMAT, **asdict(self)})

    @classmethod
    def load(cls, folder: Path) -> "Calibration | None":
        """The folder's calibration; None where it has none."""
        path = folder / CALIBRATION_FILE
        if not path.is_file():
            return None
        try:
            tree = read_json(path)
            if tree.pop("format") != FORMAT:
                raise ModelError(f"this version of aplc reads format {FORMAT}")
            knots = tuple(tuple((float(x), float(y)) for x, y in points) for points in tree.pop("knots"))
            predicted, hits = (tuple(map(int, tree[name])) for name in ("predicted", "hits"))
            return cls(knots, predicted, hits, int(tree["n_documents"]), int(tree["n_true"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise ModelError(f"{path}: not a calibration ({error}); delete it, and the model is uncalibrated") from None


@dataclass(frozen=True)
class Ranking:
    """From the model's candidates to the best k labels: calibrated, with merged labels as one.

    A merged label's probability is the highest of its members'. The best k are those with the highest final
    probability; ties go to the higher probability of the model, then to the lower id. That is exact although only some
    candidates are looked at: a label that is none of them has at most the last candidate's probability p, so at most
    the largest of the clusters' calibrated p. `settle` says for which rows the k-th final probability is no lower.
    """

    bounds: tuple[int, ...]
    """Where clusters begin, the first one at 0."""
    calibration: Calibration | None
    merged: Ints | None
    """For each id, the id of the label that it stands for; None where no labels were merged."""

    @property
    def is_plain(self) -> bool:
        """Whether the model's own order is the final one."""
        return self.calibration is None and self.merged is None

    def final(self, ids: Ints, probs: NDArray) -> Floats:
        """What the model's own probabilities of labels become; merged labels apart."""
        return probs.astype(np.float64) if self.calibration is None else self.calibration(ids, probs, self.bounds)

    def settle(self, ids: Ints, probs: NDArray, k: int) -> tuple[Ints, NDArray[np.float32], Bools]:
        """(ids, probs) of the best k (n, k), with -1 and 0 where there are fewer, and which rows are settled (n,): more
        candidates could not change them."""
        n, w = ids.shape
        exhausted = (ids < 0).any(axis=1)
        final = np.where(ids < 0, -1.0, self.final(ids, probs))
        order = np.lexsort((ids, -probs, -final), axis=1)
        ids, final = np.take_along_axis(ids, order, 1), np.take_along_axis(final, order, 1)
        valid = ids >= 0
        if self.merged is not None:
            ids = np.where(valid, self.merged[ids], -1)
            valid &= _first_of_each(ids)
            order = np.argsort(~valid, axis=1, kind="stable")
            ids, final = np.take_along_axis(ids, order, 1), np.take_along_axis(final, order, 1)
            valid = np.take_along_axis(valid, order, 1)
        kth = np.where(valid, final, -1.0)[:, k - 1] if w >= k else np.full(n, -1.0)
        ids, final = np.where(valid, ids, -1)[:, :k], np.where(valid, final, 0.0)[:, :k]
        return ids, final.astype(np.float32), exhausted | (kth >= self._bound(probs))

    def _bound(self, probs: NDArray) -> Floats:
        """The highest final probability a label can have that is not among the candidates."""
        last = probs.min(axis=1, initial=1.0).astype(np.float64)
        if self.calibration is None:
            return last
        curves = [np.interp(last, *np.array(points).T) for points in self.calibration.knots]
        added_later = [last] if len(self.bounds) > len(curves) else []  # labels without a curve
        return np.max([*added_later, *curves], axis=0)


def _cluster_of(ids: Ints, bounds: Sequence[int]) -> Ints:
    return np.searchsorted(np.asarray(bounds), ids, side="right") - 1


def _interpolate(cluster: Ints, probs: NDArray, knots: Sequence[Sequence[tuple[float, float]]]) -> Floats:
    result = probs.astype(np.float64)
    for c, points in enumerate(knots):
        inside = cluster == c
        result[inside] = np.interp(result[inside], *np.array(points).T)
    return result


def _knots(probs: Floats, hit: Bools) -> tuple[tuple[float, float], ...]:
    """Means of isotonic regression's blocks, between (0, 0) and (1, 1)."""
    ends = ((0.0, 0.0), (1.0, 1.0))
    if min(hit.sum(), (~hit).sum()) < 2 * LEAST_HITS:
        return ends
    order = np.argsort(probs, kind="stable")
    x, y = probs[order], hit[order].astype(np.float64)
    from sklearn.isotonic import IsotonicRegression  # takes a second, and predicting does not need it

    steps = IsotonicRegression().fit_transform(x, y)
    starts = [0]
    for start in [*np.flatnonzero(np.diff(steps) > 0) + 1, len(x)]:
        if start - starts[-1] >= LEAST_PAIRS and y[starts[-1] : start].sum() >= LEAST_HITS:
            starts.append(int(start))
    starts = starts[:-1] or [0]  # what is left over at the end belongs to the last block
    size = np.diff([*starts, len(x)])
    mean_x, hits = np.add.reduceat(x, starts) / size, np.add.reduceat(y, starts)
    means = zip(mean_x, (hits + PRIOR_HITS) / (size + PRIOR_HITS / np.maximum(mean_x, 1e-12)), strict=True)
    # Equal probabilities can lie on both sides of a cut, and a block can be all right: such points are left out.
    points = [ends[0]]
    for px, py in means:
        if points[-1][0] < px < 1 and points[-1][1] < py < 1:
            points.append((float(px), float(py)))
    return (*points, ends[1])


def _first_of_each(ids: Ints) -> Bools:
    """Where an id occurs for the first time in its row."""
    order = np.argsort(ids, axis=1, kind="stable")
    ordered = np.take_along_axis(ids, order, 1)
    first = np.ones(ids.shape, dtype=bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    result = np.empty_like(first)
    np.put_along_axis(result, order, first, 1)
    return result
