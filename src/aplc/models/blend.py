"""Blending two opinions of a label: what the words say, and what the network says, by how frequent the label is.

    logit = a + b w + c v,     a, b and c curves in log n: straight from knot to knot, six knots each,

w the words model's logit, v the network's, n the label's training documents. Words know most about rare labels, the
network about frequent ones, and a blend that knows n takes from each what it is good for. The 18 numbers are learned by
logistic regression on held-out documents, which neither part has seen, and are pulled towards the words alone (a = 0,
b = 1, c = 0). Where cross-validation on these documents finds that the network adds nothing, they stay there: a network
that is of no use costs nothing. Why curves: quadratic in log n, the blend lost half a point of PSP (bench/LOG.md).

The network makes the blend surer of frequent labels, which then push rare ones out of the lists. So 0.05 log n is taken
off what was learned: precision stays what it was, and more of what is found is rare.

Shapes: B documents, L labels, K knots, N pairs of a held-out document and a candidate label.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from aplc.words import pulled

CANDIDATES = 120
"""Labels of a held-out document that the blend is learned from: so many of each part's best."""
KNOTS = 6
"""Of each curve, evenly from log 1 to the most frequent label's log n."""
FOLDS, AT = 5, 5
"""Cross-validation asks whether the candidates' likelihood rises, and the DCG of the first five labels with it."""
LEAST_HITS, LEAST_DOCUMENTS = 100, 20
"""With fewer hits among the candidates, or fewer documents, nothing is learned."""
RARITY = 0.05
"""Times log n, taken off a label's logit. On held-out documents of two corpora P stays level and PSP gains up to 1.7
points (bench/LOG.md)."""
PENALTY = 10.0
"""Of the numbers' squares, in columns whose root mean square is 1: worth some ten pairs."""
LOWEST, HIGHEST = 1e-8, 1 - 1e-7
"""The network's probabilities are held between these before their logit is taken."""

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


def log_odds(probs: Floats) -> Floats:
    """Logits of probabilities."""
    held = np.clip(np.asarray(probs, dtype=np.float64), LOWEST, HIGHEST)
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

    def __call__(self, words_BL: Floats, network_BL: Floats | np.floating) -> Floats:
        a_L, b_L, c_L = self.curve_3L
        return a_L + b_L * words_BL + c_L * network_BL

    @classmethod
    def learn(cls, pairs: Pairs, label_counts: Ints) -> tuple[Self, str]:
        """The blend, and what was found in a line."""
        alone, knots_LK = cls.of_words_alone(len(label_counts)), place(label_counts)
        n_documents, n_hits = len(np.unique(pairs.document)), int(pairs.hit.sum())
        if n_hits < LEAST_HITS or n_documents < LEAST_DOCUMENTS:
            return (
                alone,
                f"words alone; {n_hits:,} hits in {n_documents:,} held-out documents are too few to learn from",
            )
        fold = np.unique(pairs.document, return_inverse=True)[1] % FOLDS
        silent = replace(pairs, network=np.zeros_like(pairs.network))  # what a and b gain is not the network's merit
        refitted, blended = (_crossed(part, knots_LK, fold) for part in (silent, pairs))
        gain = log_likelihood(pairs, blended) - log_likelihood(pairs, refitted)
        words, both = (dcg(pairs, logits).mean() for logits in (pairs.words, blended))
        found = f"DCG@{AT} {words:.3f} with words, {both:.3f} with both, on held-out documents"
        curve_3L = curves_at(knots_LK, regress(pairs, knots_LK, np.ones(len(fold), dtype=bool)))
        seen_L = label_counts > 0
        curve_3L[0] -= RARITY * np.log(np.maximum(label_counts, 1))
        curve_3L[:, ~seen_L] = alone.curve_3L[:, ~seen_L]  # the network knows nothing of labels without documents
        adds = gain.mean() > 2 * gain.std() / len(gain) ** 0.5 and both > words and bool(curve_3L[2].any())
        if not adds:
            return alone, f"words alone; the network adds nothing ({found})"
        share_L = (curve_3L[2] / np.maximum(curve_3L[1] + curve_3L[2], 1e-9))[seen_L]
        counts = f"the network counts {share_L[0]:.0%} for the most frequent label, {share_L[-1]:.0%} for the rarest"
        return cls(curve_3L.astype(np.float32)), f"{found}; {counts}"


def _crossed(pairs: Pairs, knots_LK: Floats, fold: Ints) -> Floats:
    """Blended logits of the pairs, each by a blend that was learned on the other folds."""
    blended = np.empty(len(fold))
    for i in range(FOLDS):
        a_N, b_N, c_N = curves_at(knots_LK, regress(pairs, knots_LK, fold != i))[:, pairs.label]
        blended[fold == i] = (a_N + b_N * pairs.words + c_N * pairs.network)[fold == i]
    return blended


def place(label_counts: Ints) -> Floats:
    """Where labels stand between the knots: (L, K), two neighbours' weights each."""
    log_n_L = np.log(np.maximum(label_counts, 1))
    knots_K = np.linspace(0, max(log_n_L.max(), 1e-9), KNOTS)
    return np.stack([np.interp(log_n_L, knots_K, one) for one in np.eye(KNOTS)], 1)


def curves_at(knots_LK: Floats, learned_3K: Floats) -> Floats:
    """a, b and c of every label, (3, L); b and c are at least 0."""
    a_L, b_L, c_L = learned_3K @ knots_LK.T
    return np.stack([a_L, np.maximum(b_L + 1, 0), np.maximum(c_L, 0)])


def regress(pairs: Pairs, knots_LK: Floats, chosen: Bools) -> Floats:
    """a, b - 1 and c at the knots, (3, K), by penalised logistic regression on the chosen pairs."""
    words, network = (x[chosen].astype(np.float64) for x in (pairs.words, pairs.network))
    sides_N3 = np.stack([np.ones_like(words), words, network], 1)
    x = (sides_N3[:, :, None] * knots_LK[pairs.label[chosen], None]).reshape(len(words), 3 * KNOTS)
    return pulled.regress(x, pairs.hit[chosen], offset=words, penalty=PENALTY).reshape(3, KNOTS)


def log_likelihood(pairs: Pairs, logits: Floats) -> Floats:
    """Of each document's hits and misses."""
    each = np.where(pairs.hit, -np.logaddexp(0, -logits), -np.logaddexp(0, logits))
    return np.add.reduceat(each, np.flatnonzero(np.diff(pairs.document, prepend=-1)))


def dcg(pairs: Pairs, logits: Floats) -> Floats:
    """Of each document's candidates in the order of these logits."""
    order = np.lexsort((pairs.label, -logits, pairs.document))
    starts = np.flatnonzero(np.diff(pairs.document, prepend=-1))
    rank = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    gains = np.where((rank < AT) & pairs.hit[order], 1 / np.log2(rank + 2), 0)
    return np.add.reduceat(gains, starts)
