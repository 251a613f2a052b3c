"""Calibrating the words model's scores: how probable is a label with this score?

The penalty shrinks scores, most of all those of rare labels: ranked by score, rare labels would lose. So a logistic
regression learns how probable a label with n training documents is at a score of s,

    logit = a + b s + c s^2,     a and b quadratic in log n, c linear: eight numbers for all labels;

labels with many documents get three of their own. It learns from scores of left-out training documents (`ridge.py`),
with the n that leaving the document out leaves: one less for its own labels. Labels without documents have no score.

Labels that a text mentions by name get another logit afterwards (`names.py`); their scores are kept for that, too.

Shapes: L labels, C labels of a block, M documents that curves are learned from, K candidates.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from aplc.words.index import rising
from aplc.words.names import NO_DOCUMENTS

LEARN_FROM = 8_192
"""Documents that curves are learned from, at most."""
CANDIDATES = 50
"""Labels of each of them, the best ones."""
OWN_CURVE, LEAST_HITS = 200, 50
"""A label with OWN_CURVE hits gets its own curve; with fewer than LEAST_HITS hits in all, the others get `PLAIN`."""
ALIKE = 2.0
"""Labels' numbers of documents with a lower standard deviation are taken as equal: a balanced corpus."""
PLAIN = (-5.0, 10.0, 0.0)
"""Keeps the order of scores; probability 0.5 at a score of 0.5."""

Floats = NDArray[np.floating]


def n_left_out(n_documents: int, *, direct: bool) -> int:
    """How many documents curves are learned from: fewer where rare labels have to do without them."""
    share = n_documents if direct else max(n_documents // 6, min(2_048, n_documents // 5))
    return max(1, min(LEARN_FROM, share))


class Scored(NamedTuple):
    """Labels with their scores in documents, arrays of one length, documents rising."""

    document: NDArray[np.int64]
    label: NDArray[np.int64]
    score: Floats
    hit: NDArray[np.bool_]
    n: NDArray[np.int64]
    """Documents of the label that the score was learned from."""


class Candidates(NamedTuple):
    """What a block of labels says of the left-out documents."""

    best: Scored
    """Labels that may be among a document's best."""
    mentioned: Scored
    """Labels that a document mentions."""
    own: dict[int, Floats]
    """Labels' own curves."""


class Curves:
    """Learns the curves from scores of M left-out documents, a block of labels at a time."""

    def __init__(self, n_documents: int, mentions_ML: sparse.csc_array | None = None) -> None:
        self.own: dict[int, Floats] = {}
        """Labels with a curve of their own."""
        self.mentions_ML = mentions_ML
        self.mentioned: list[Scored] = []
        self.score_MK = np.full((n_documents, CANDIDATES), -np.inf, dtype=np.float32)
        self.label_MK = np.zeros((n_documents, CANDIDATES), dtype=np.int64)
        self.hit_MK = np.zeros((n_documents, CANDIDATES), dtype=bool)
        self.n_MK = np.zeros((n_documents, CANDIDATES), dtype=np.int64)

    def add(self, start: int, score_MC: Floats, hit_MC: NDArray[np.bool_], n_MC: NDArray[np.int64]) -> Candidates:
        """Take in labels `start`, `start + 1`, ...: their scores, whether documents have them, and from how many
        documents the label was learned.

        Returns what was new, for `take`.
        """
        frequent = np.flatnonzero(hit_MC.sum(0) >= OWN_CURVE)
        own = {start + int(j): _own_curve(score_MC[:, j], hit_MC[:, j]) for j in frequent}

        def scored(document: NDArray[np.int64], column: NDArray[np.int64]) -> Scored:
            at = document, column
            return Scored(document, start + column, score_MC[at], hit_MC[at], n_MC[at])

        above_MC = score_MC > self.score_MK.min(axis=1, keepdims=True)
        crowded = np.flatnonzero(above_MC.sum(axis=1) > CANDIDATES)  # seldom after the first blocks
        if len(crowded):
            least_D1 = np.partition(score_MC[crowded], -CANDIDATES, axis=1)[:, -CANDIDATES, None]
            above_MC[crowded] &= score_MC[crowded] >= least_D1
        best = scored(*np.nonzero(above_MC))
        none = np.zeros(0, dtype=np.int64)
        mentioned = none, none
        if self.mentions_ML is not None:
            block = self.mentions_ML[:, start : start + score_MC.shape[1]].tocsr()
            mentioned = np.repeat(np.arange(block.shape[0]), np.diff(block.indptr)), block.indices
        new = Candidates(best, scored(*mentioned), own)
        self.take(new)
        return new

    def take(self, new: Candidates) -> None:
        """Take in what `add` returned, here or in another run. Of equal scores the first to come stays."""
        self.own |= new.own
        self.mentioned.append(new.mentioned)
        best = new.best
        if not len(best.document):
            return
        row_D, first_D, count_D = np.unique(best.document, return_index=True, return_counts=True)
        place = np.repeat(np.arange(len(row_D)), count_D), np.arange(len(best.document)) - np.repeat(first_D, count_D)

        def joined(old_MK: NDArray, added: NDArray, fill: float) -> NDArray:
            added_DK = np.full((len(row_D), count_D.max()), fill, dtype=old_MK.dtype)
            added_DK[place] = added
            return np.concatenate([old_MK[row_D], added_DK], 1)

        score_DK = joined(self.score_MK, best.score, -np.inf)
        best_DK = np.argsort(-score_DK, axis=1, kind="stable")[:, :CANDIDATES]
        self.score_MK[row_D] = np.take_along_axis(score_DK, best_DK, 1)
        self.label_MK[row_D] = np.take_along_axis(joined(self.label_MK, best.label, 0), best_DK, 1)
        self.hit_MK[row_D] = np.take_along_axis(joined(self.hit_MK, best.hit, 0), best_DK, 1)
        self.n_MK[row_D] = np.take_along_axis(joined(self.n_MK, best.n, 0), best_DK, 1)

    def finish(self, n_L: NDArray[np.int64]) -> Floats:
        """a, b and c of every label, (L, 3); the common curve is learned without the labels that have their own."""
        n_MK, n = self.n_MK, n_L
        others = np.delete(n_L, list(self.own))
        others = others[others > 0]
        if len(others) and others.std() < ALIKE:  # else one document less, or not, would say whether it is a hit
            n, n_MK = np.minimum(n_L, 1), np.minimum(n_MK, 1)
        found = np.isfinite(self.score_MK) & (n_MK > 0) & ~np.isin(self.label_MK, list(self.own))
        s, hit = self.score_MK[found], self.hit_MK[found]
        curve_L3 = np.tile(np.array(PLAIN, dtype=np.float32), (len(n_L), 1))
        if min(hit.sum(), (~hit).sum()) >= LEAST_HITS:
            log_n = np.log(n_MK[found])
            terms = [log_n, log_n**2, s, log_n * s, log_n**2 * s, s**2, log_n * s**2]
            a0, a1, a2, b0, b1, b2, c0, c1 = _regress(np.stack(terms, 1), hit)
            log_n = np.log(np.clip(n, n_MK[found].min(), n_MK[found].max()))  # beyond what was seen, squares run wild
            a_L, b_L = a0 + a1 * log_n + a2 * log_n**2, b0 + b1 * log_n + b2 * log_n**2
            curve_L3[:] = _no_flatter(np.stack([a_L, b_L, c0 + c1 * log_n], 1), s)
        for label, curve in self.own.items():
            curve_L3[label] = curve
        curve_L3[n_L == 0] = NO_DOCUMENTS, 1, 0
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
    """Curves that `rising` (words/index.py) can take.

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
