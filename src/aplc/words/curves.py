"""Calibrating the words model's scores: how probable is a label with this score?

The penalty holds a label's scores down, the more the rarer it is: ranked by them, rare labels would lose. So a logistic
regression learns how probable a label with n training documents is at a score of s,

    logit = a + b s + c s^2,     a and b quadratic in log n, c linear: eight numbers for all labels;

labels with many documents get three of their own. It learns from leave-one-out scores of training documents
(`ridge.py`), with the n that leaving the document out leaves: one less for its own labels.

Shapes: L labels, C labels of a block, M documents that curves are learned from, K candidates.
"""

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from aplc.words.model import rising

LEARN_FROM = 8_192
"""Documents that curves are learned from."""
CANDIDATES = 50
"""Labels of each of them, the best ones."""
OWN_CURVE, LEAST_HITS = 200, 50
"""A label with OWN_CURVE hits gets its own curve; with fewer than LEAST_HITS hits in all, the others get `PLAIN`."""
ALIKE = 2.0
"""Labels' numbers of documents with a lower standard deviation are taken as equal: a balanced corpus."""
PLAIN = (-5.0, 10.0, 0.0)
"""Keeps the order of scores; probability 0.5 at a score of 0.5."""

Floats = NDArray[np.floating]


class Curves:
    """Learns the curves from leave-one-out scores of M documents, a block of labels at a time."""

    def __init__(self, n_documents: int) -> None:
        self.own: dict[int, Floats] = {}
        """Labels with a curve of their own."""
        self.score_MK = np.full((n_documents, CANDIDATES), -np.inf, dtype=np.float32)
        self.label_MK = np.zeros((n_documents, CANDIDATES), dtype=np.int64)
        self.hit_MK = np.zeros((n_documents, CANDIDATES), dtype=bool)

    def add(self, start: int, score_MC: Floats, hit_MC: NDArray[np.bool_]) -> None:
        """Take in labels `start`, `start + 1`, ...: their scores, and whether documents have them."""
        for j in np.flatnonzero(hit_MC.sum(0) >= OWN_CURVE):
            self.own[start + int(j)] = _own_curve(score_MC[:, j], hit_MC[:, j])
        labels_MC = np.broadcast_to(start + np.arange(score_MC.shape[1]), score_MC.shape)
        scores = np.concatenate([self.score_MK, score_MC], 1)
        best_MK = np.argpartition(-scores, CANDIDATES - 1, axis=1)[:, :CANDIDATES]
        self.score_MK = np.take_along_axis(scores, best_MK, 1)
        self.label_MK = np.take_along_axis(np.concatenate([self.label_MK, labels_MC], 1), best_MK, 1)
        self.hit_MK = np.take_along_axis(np.concatenate([self.hit_MK, hit_MC], 1), best_MK, 1)

    def finish(self, n_L: NDArray[np.int64]) -> Floats:
        """a, b and c of every label, (L, 3); the common curve is learned without the labels that have their own."""
        n_MK = n_L[self.label_MK] - self.hit_MK  # without the document itself
        others = np.delete(n_L, list(self.own))
        if len(others) and others.std() < ALIKE:  # else one document less, or not, would say whether it is a hit
            n_L, n_MK = np.ones_like(n_L), np.ones_like(n_MK)
        found = np.isfinite(self.score_MK) & (n_MK > 0) & ~np.isin(self.label_MK, list(self.own))
        s, log_n, hit = self.score_MK[found], np.log(n_MK[found]), self.hit_MK[found]
        curve_L3 = np.tile(np.array(PLAIN, dtype=np.float32), (len(n_L), 1))
        if min(hit.sum(), (~hit).sum()) >= LEAST_HITS:
            terms = [log_n, log_n**2, s, log_n * s, log_n**2 * s, s**2, log_n * s**2]
            a0, a1, a2, b0, b1, b2, c0, c1 = _regress(np.stack(terms, 1), hit)
            log_n = np.log(np.maximum(n_L, 1))
            a_L, b_L = a0 + a1 * log_n + a2 * log_n**2, b0 + b1 * log_n + b2 * log_n**2
            curve_L3[:] = _no_flatter(np.stack([a_L, b_L, c0 + c1 * log_n], 1), s)
        for label, curve in self.own.items():
            curve_L3[label] = curve
        return curve_L3

    def dcg(self, n_L: NDArray[np.int64], at: int = 5) -> float:
        """Mean DCG of the candidates in the order that the curves give them."""
        found_MK = np.isfinite(self.score_MK)
        curve_3MK = np.moveaxis(self.finish(n_L)[self.label_MK], -1, 0)
        logit_MK = rising(np.where(found_MK, self.score_MK, 0), curve_3MK)
        order_MK = np.argsort(-np.where(found_MK, logit_MK, -np.inf), axis=1, kind="stable")
        hit_MA = np.take_along_axis(self.hit_MK, order_MK[:, :at], 1)
        return float((hit_MA / np.log2(np.arange(hit_MA.shape[1]) + 2)).sum(1).mean())


def _own_curve(s: Floats, hit: NDArray[np.bool_]) -> Floats:
    """a, b and c of one label."""
    if hit.all():
        return np.array(PLAIN, dtype=np.float32)
    return _no_flatter(_regress(np.stack([s, s**2], 1), hit)[None], s)[0]


def _no_flatter(curve_L3: Floats, s: Floats) -> Floats:
    """Curves that `rising` (words/model.py) can take.

    A curve whose slope is below 1 at all scores belongs to a label without signal. `rising` knows no lower slope, and
    would take the line of slope 1 through a point beyond all scores. So it is given the one through their mean.
    """
    a_L, b_L, c_L = curve_L3.T
    steepest_L, middle = b_L + 2 * c_L * np.where(c_L > 0, s.max(), s.min()), s.mean()
    line_L3 = np.stack([a_L + (b_L - 1 + c_L * middle) * middle, np.ones_like(a_L), np.zeros_like(a_L)], 1)
    return np.where(steepest_L[:, None] < 1, line_L3, curve_L3)


def _regress(x: NDArray, hit: NDArray[np.bool_]) -> Floats:
    """Intercept and coefficients of a logistic regression, (1 + columns,)."""
    learned = LogisticRegression(C=100.0, solver="newton-cholesky").fit(x, hit)  # the default stops far too early
    return np.concatenate([learned.intercept_, learned.coef_[0]]).astype(np.float32)
