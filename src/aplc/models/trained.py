"""A trained tagger in memory: a model of any kind, its label set, and what was learned about its probabilities.

`store/folder.py` reads it from a model folder and writes it there.
"""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aplc.config import Config
from aplc.data.labels import LabelSet
from aplc.data.vocabulary import Vocabulary
from aplc.models.base import LabelModel
from aplc.models.calibration import Calibration, Ranking


@dataclass(frozen=True, kw_only=True)
class TrainedTagger:
    config: Config
    model: LabelModel
    labels: LabelSet
    n_documents: int
    """Training documents in which the labels were counted."""
    calibration: Calibration | None = None
    """What the held-out documents taught about probabilities."""
    held_out: dict[str, Any] | None = None
    """Number of held-out documents, and metrics and bands on them, for the card."""
    evaluation: dict[str, Any] | None = None
    """What `aplc evaluate --json` left in the folder, for the card."""
    vocabulary: Vocabulary | None = None
    """What labels are called, and their hierarchy and schemes."""

    @cached_property
    def ranking(self) -> Ranking:
        """How candidates become the best labels."""
        merged = self.labels.stands_for if self.labels.has_merged else None
        return Ranking(tuple(self.model.bounds[:-1]), self.calibration, merged)

    def shown(self, label: str) -> str:
        """A label for people: with its name, where the vocabulary has another one."""
        return self.vocabulary.shown(label) if self.vocabulary else label

    @property
    def allowed(self) -> NDArray[np.bool_] | None:
        """Which label ids may be predicted; None if all may."""
        return None if self.labels.active.all() else self.labels.active

    @property
    def cutoffs(self) -> tuple[int, ...]:
        """Where the output layer's tails and added clusters begin; () where there is no tail."""
        inner = tuple(self.model.bounds[1:-1])
        return inner if len(inner) > self.model.n_added else ()

    @property
    def cluster_names(self) -> list[str]:
        """What calibration groups labels by: clusters of the output layer, or labels with and without documents."""
        if not self.cutoffs:
            return ["labels with training documents", "labels without training documents"][: len(self.model.bounds) - 1]
        return [self.cluster_name(first) or "" for first in self.model.bounds[:-1]]

    def cluster_name(self, label: int) -> str | None:
        """Where the output layer keeps a label: head, tail 1, ..., added 1, ...; None where there is no tail."""
        if not self.cutoffs:
            return None
        i, n_tails = bisect_right(self.cutoffs, label), len(self.cutoffs) - self.model.n_added
        return f"added {i - n_tails}" if i > n_tails else f"tail {i}" if i else "head"
