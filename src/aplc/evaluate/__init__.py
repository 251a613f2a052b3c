"""Metrics of predictions, their confidence intervals, and results by label frequency and by cluster."""

from aplc.evaluate.bands import Band, LabelScore, best_and_worst, by_cluster, by_examples, by_frequency
from aplc.evaluate.bootstrap import Difference, Interval, compare, intervals
from aplc.evaluate.metrics import PROPENSITIES, DocumentScores, LabelStats, Metrics, Reliability, propensity

__all__ = [
    "PROPENSITIES",
    "Band",
    "Difference",
    "DocumentScores",
    "Interval",
    "LabelScore",
    "LabelStats",
    "Metrics",
    "Reliability",
    "best_and_worst",
    "by_cluster",
    "by_examples",
    "by_frequency",
    "compare",
    "intervals",
    "propensity",
]
