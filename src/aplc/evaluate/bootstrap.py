"""Confidence intervals by bootstrap over documents, and a paired test of two runs on the same documents.

A resample draws n of n documents with replacement. Only how often each was drawn matters, so a resample is a vector of
weights, and a metric is (weights @ numerators) / (weights @ denominators). Resamples are made in groups of `_BYTES`, so
memory doesn't grow with their number. Coverage, calibration error and macro-F1 are not ratios of sums over documents
and have no interval.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from aplc.evaluate.matching import Floats
from aplc.evaluate.metrics import DocumentScores

_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Interval:
    """A metric with its percentile confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """A metric of two runs, the difference a - b with its interval, and a p-value."""

    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    """Two-sided: twice the share of resamples where the difference is 0 or has the other sign, at least 2 / (n + 1)."""


def intervals(
    scores: DocumentScores, *, n_resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """Percentile intervals by name of metric. The same seed gives the same intervals."""
    _check(n_resamples, level)
    samples = np.concatenate([_values(w, scores) for w in _resamples(len(scores.n_true), n_resamples, seed)])
    value = _values(np.ones((1, len(scores.n_true))), scores)[0]
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0)
    triples = zip(value.tolist(), low.tolist(), high.tolist(), strict=True)
    return {name: Interval(*triple) for name, triple in zip(scores.names, triples, strict=True)}


def compare(
    a: DocumentScores, b: DocumentScores, *, n_resamples: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, Difference]:
    """Paired bootstrap of a - b by name of metric: a resample draws the same documents of both runs."""
    _check(n_resamples, level)
    if a.names != b.names:
        raise ValueError(f"the runs have different metrics: {sorted(set(a.names) ^ set(b.names))}")
    if not np.array_equal(a.n_true, b.n_true):
        raise ValueError("the runs don't have the same documents in the same order; evaluate both on one corpus")
    groups = _resamples(len(a.n_true), n_resamples, seed)
    samples = np.concatenate([_values(w, a) - _values(w, b) for w in groups])
    every = np.ones((1, len(a.n_true)))
    value_a, value_b = _values(every, a)[0], _values(every, b)[0]
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0)
    # The observed data count as one more resample, so that a finite number of resamples never gives p = 0.
    against = np.minimum((samples <= 0).sum(0), (samples >= 0).sum(0))
    p_value = np.minimum(2 * (against + 1) / (n_resamples + 1), 1)
    columns = (value_a, value_b, value_a - value_b, low, high, p_value)
    values = zip(*(column.tolist() for column in columns), strict=True)
    return {name: Difference(*each) for name, each in zip(a.names, values, strict=True)}


def _check(n_resamples: int, level: float) -> None:
    if n_resamples < 1:
        raise ValueError(f"n_resamples is {n_resamples}, expected at least 1; 1000 is usual")
    if not 0 < level < 1:
        raise ValueError(f"level is {level}, expected a share between 0 and 1, such as 0.95")


def _resamples(n: int, n_resamples: int, seed: int) -> Iterator[Floats]:
    """Weights (resamples, n), in groups. Drawn one by one, so that the size of a group doesn't change the draws."""
    rng = np.random.default_rng(seed)
    size = max(1, _BYTES // (8 * n))
    for start in range(0, n_resamples, size):
        weights = np.empty((min(size, n_resamples - start), n))
        for row in weights:  # as rng.multinomial, at half the cost
            row[:] = np.bincount(rng.integers(n, size=n), minlength=n)
        yield weights


def _values(weights: Floats, scores: DocumentScores) -> Floats:
    """(resamples, names)"""
    over = weights @ scores.numerators
    under = np.full_like(over, len(scores.n_true))
    under[:, scores.n_means :] = weights @ scores.denominators
    return np.divide(over, under, out=np.zeros_like(over), where=under != 0)
