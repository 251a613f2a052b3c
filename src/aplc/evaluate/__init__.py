"""How good the predictions are: metrics, their confidence intervals, results by label frequency and by cluster."""

from aplc.evaluate.bands import Band, by_cluster, by_examples, by_frequency
from aplc.evaluate.bootstrap import Difference, Interval, compare, intervals
from aplc.evaluate.metrics import PROPENSITIES, DocumentScores, LabelStats, Metrics, Reliability, propensity

__all__ = [
    "PROPENSITIES",
    "Band",
    "Difference",
    "DocumentScores",
    "Interval",
    "LabelStats",
    "Metrics",
    "Reliability",
    "by_cluster",
    "by_examples",
    "by_frequency",
    "compare",
    "intervals",
    "propensity",
]
