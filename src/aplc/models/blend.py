"""Blending two opinions of a label: what the words say, and what the network says, by how frequent the label is.

    logit = a + b w + c v,     a, b and c quadratic in log n: nine numbers for all labels,

w the words model's logit, v the network's, n the label's training documents. Words know most about rare labels, the
network about frequent ones, and a blend that knows n takes from each what it is good for. The nine numbers are learned
by logistic regression on held-out documents, which neither part has seen, and are pulled towards the words alone
(a = 0, b = 1, c = 0). Where cross-validation on these documents finds no gain, they stay there: a network that is of no
use costs nothing.

Shapes: B documents, L labels, N pairs of a held-out document and a candidate label.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

CANDIDATES = 60
"""Labels of a held-out document that the blend is learned from: so many of each part's best."""
FOLDS, AT = 5, 5
"""Cross-validation looks at the DCG of the first five labels."""
LEAST_HITS = 100
"""With fewer hits among the candidates nothing is learned."""
PENALTY = 10.0
"""Of the nine numbers' squares, in columns of unit length: worth some ten pairs."""
LOWEST = 1e-8
"""The network's probabilities are held away from 0 and 1 by this much (1 by what float32 can tell apart)."""

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


def log_odds(probs: Floats) -> Floats:
    """Logits of probabilities."""
    held = np.clip(probs, LOWEST, 1 - 1e-6)
    return np.log(held) - np.log1p(-held)


@dataclass(frozen=True)
class Pairs:
    """Held-out documents' candidates, as both parts see them; arrays of N."""

    document: Ints
    """Rising."""
    label: Ints
    words: Floats
    network: Floats
    hit: Bools


@dataclass(frozen=True)
class Blend:
    curve_3L: NDArray[np.float32]
    """a, b and c of every label."""

    @classmethod
    def of_words_alone(cls, n_labels: int) -> Self:
        return cls(np.repeat(np.array([[0.0], [1.0], [0.0]], dtype=np.float32), n_labels, axis=1))

    @property
    def uses_network(self) -> bool:
        return bool(self.curve_3L[2].any())

    def __call__(self, words_BL: Floats, network_BL: Floats) -> Floats:
        a_L, b_L, c_L = self.curve_3L
        return a_L + b_L * words_BL + c_L * network_BL

    @classmethod
    def learn(cls, pairs: Pairs, label_counts: Ints) -> tuple[Self, str]:
        """The blend, and what was found in a line."""
        alone, log_n_L = cls.of_words_alone(len(label_counts)), np.log(np.maximum(label_counts, 1))
        n_documents, n_hits = len(np.unique(pairs.document)), int(pairs.hit.sum())
        if n_hits < LEAST_HITS:
            return (
                alone,
                f"words alone; {n_hits:,} hits in {n_documents:,} held-out documents are too few to learn from",
            )
        log_n = log_n_L[pairs.label]
        fold = np.unique(pairs.document, return_inverse=True)[1] % FOLDS
        blended = np.empty(len(fold))
        for i in range(FOLDS):
            learned = regress(pairs, log_n, fold != i)
            blended[fold == i] = _logits(learned, pairs, log_n)[fold == i]
        before, after = (dcg(pairs, logits) for logits in (pairs.words, blended))
        gain = after - before
        found = f"DCG@{AT} {before.mean():.3f} with words, {after.mean():.3f} with both, on held-out documents"
        if gain.mean() <= gain.std() / len(gain) ** 0.5:
            return alone, f"words alone; the network adds nothing ({found})"
        a_L, b_L, c_L = curves_at(regress(pairs, log_n, np.ones(len(fold), dtype=bool)), log_n_L)
        made = cls(np.stack([a_L, b_L, c_L]).astype(np.float32))
        share = [f"{c / max(b + c, 1e-9):.0%}" for b, c in ((b_L[0], c_L[0]), (b_L[-1], c_L[-1]))]
        return made, f"{found}; the network counts {share[0]} for the most frequent label, {share[1]} for the rarest"


def _terms(log_n: Floats) -> Floats:
    return np.stack([np.ones_like(log_n), log_n, log_n**2], -1)


def curves_at(learned_33: Floats, log_n: Floats) -> Floats:
    """a, b and c at log n, (3, ...). Neither part's logit may lower the blend's."""
    a, b, c = np.moveaxis(_terms(log_n) @ learned_33.T, -1, 0)
    return np.stack([a, np.maximum(b + 1, 0), np.maximum(c, 0)])


def _logits(learned_33: Floats, pairs: Pairs, log_n: Floats) -> Floats:
    a, b, c = curves_at(learned_33, log_n)
    return a + b * pairs.words + c * pairs.network


def regress(pairs: Pairs, log_n: Floats, chosen: Bools) -> Floats:
    """Coefficients of a, b - 1 and c in 1, log n and (log n)^2, (3, 3), by penalised logistic regression."""
    words, network, hit = (x[chosen].astype(np.float64) for x in (pairs.words, pairs.network, pairs.hit))
    sides = np.stack([np.ones_like(words), words, network], -1)
    x = (sides[:, :, None] * _terms(log_n[chosen])[:, None]).reshape(-1, 9)
    scale = np.maximum(np.sqrt((x**2).mean(0)), 1e-12)
    x /= scale

    def loss(theta: Floats) -> tuple[float, Floats]:
        logit = words + x @ theta
        value = np.logaddexp(0, logit).sum() - logit @ hit + PENALTY / 2 * theta @ theta
        return value, (expit(logit) - hit) @ x + PENALTY * theta

    def curvature(theta: Floats) -> Floats:
        p = expit(words + x @ theta)
        return (x * (p * (1 - p))[:, None]).T @ x + PENALTY * np.eye(9)

    found = minimize(loss, np.zeros(9), jac=True, hess=curvature, method="trust-exact")
    return (found.x / scale).reshape(3, 3)


def dcg(pairs: Pairs, logits: Floats) -> Floats:
    """Of each document's candidates in the order of these logits."""
    order = np.lexsort((pairs.label, -logits, pairs.document))
    starts = np.flatnonzero(np.diff(pairs.document, prepend=-1))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    gains = np.where((rank < AT) & pairs.hit[order], 1 / np.log2(rank + 2), 0)
    return np.add.reduceat(gains, starts)
