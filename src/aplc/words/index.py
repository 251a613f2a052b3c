"""The words model's weights: an index of labels by words, with weights in 16 bits, read from disk as they are needed.

A weight is a whole number times one scale, so it is off by at most a 65,000th of the largest weight; the smallest that
is kept, `words.prune`, is hundreds of times as much. A document's scores come from its own words' rows of the index,
by score.c on all cores, or by SciPy.

Shapes: B documents, V words, L labels, N weights.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aplc import native
from aplc.errors import ModelError

LARGEST = 32_767
_DAMAGED = "the model's weights point beyond its labels; the model is damaged"

Floats = NDArray[np.floating]


@dataclass(frozen=True)
class Index:
    start: NDArray[np.int64]
    """(V + 1,): where a word's weights begin."""
    label: NDArray[np.int32]
    """(N,), rising within a word."""
    weight: NDArray[np.int16]
    scale: np.float32
    n_labels: int

    @classmethod
    def of(cls, weight_VL: sparse.csr_array, scale: np.float32 | None = None) -> Self:
        """A given `scale`, that of another index, keeps its weights to the bit; larger ones are cut."""
        scale = scale or np.float32(np.abs(weight_VL.data).max(initial=1e-9) / LARGEST)
        weight = np.clip(np.rint(weight_VL.data / scale), -LARGEST, LARGEST).astype(np.int16)
        start, label = weight_VL.indptr.astype(np.int64), weight_VL.indices.astype(np.int32)
        return cls(start, label, weight, scale, weight_VL.shape[1])

    def logits(self, batch: sparse.csr_array, bias_L: Floats, curve_3L: Floats) -> Floats:
        """(B, L): the documents' scores, weights times words and a bias, through each label's curve."""
        if native.library() is None:
            return rising((batch @ self.matrix).toarray() + bias_L, curve_3L)
        curve_5L = np.concatenate([curve_3L, _ends(curve_3L)]).astype(np.float32)
        found = native.logits(batch, self.start, self.label, self.weight, self.scale, bias_L, curve_5L)
        if found is None:
            raise ModelError(_DAMAGED)
        return found

    @cached_property
    def matrix(self) -> sparse.csr_array:
        """The weights, (V, L)."""
        if len(self.label) and not (self.label.min() >= 0 and self.label.max() < self.n_labels):
            raise ModelError(_DAMAGED)
        weight = self.weight * self.scale
        return sparse.csr_array((weight, self.label, self.start), shape=(len(self.start) - 1, self.n_labels))


def rising(score_BL: Floats, curve_3L: Floats) -> Floats:
    """a + b s + c s^2 up to where its slope falls to 1; from there on a line of slope 1."""
    a_L, b_L, c_L = curve_3L
    least_L, most_L = _ends(curve_3L)
    bent_BL = np.minimum(np.maximum(score_BL, least_L), most_L)
    return a_L + (b_L + c_L * bent_BL) * bent_BL + (score_BL - bent_BL)


def _ends(curve_3L: Floats) -> Floats:
    """The least and the largest score, (2, L), between which a curve's slope is at least 1."""
    _, b_L, c_L = curve_3L
    with np.errstate(divide="ignore", invalid="ignore"):
        turn_L = (1 - b_L) / (2 * c_L)  # infinite or NaN for a straight line
    return np.stack([np.where(c_L > 0, turn_L, -np.inf), np.where(c_L < 0, turn_L, np.inf)])


def best_columns(x_BL: Floats, k: int) -> NDArray[np.int64]:
    """The k largest of each row, largest first; of equal ones the lower column first."""
    n_columns = x_BL.shape[1]
    if native.library() is not None and x_BL.dtype == np.float32:
        return native.best(x_BL, k).astype(np.int64)
    if k < n_columns:
        candidates = np.sort(np.argpartition(-x_BL, k, axis=1)[:, : k + 1], axis=1)  # one more, to see a tie at the end
    else:
        candidates = np.broadcast_to(np.arange(n_columns), x_BL.shape)
    order = np.argsort(-np.take_along_axis(x_BL, candidates, 1), axis=1, kind="stable")
    best = np.take_along_axis(candidates, order, 1)
    if k < n_columns:
        last_two = np.take_along_axis(x_BL, best[:, k - 1 : k + 1], 1)
        for row in np.flatnonzero(last_two[:, 0] == last_two[:, 1]):
            best[row, :k] = np.argsort(-x_BL[row], kind="stable")[:k]
    return best[:, :k].astype(np.int64)
