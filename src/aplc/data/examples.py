"""Examples of labels that a model does not have yet: what `add_labels` of any kind learns from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aplc.data.labels import LabelSet


@dataclass(frozen=True)
class Examples:
    names: Sequence[str]
    """Of the new labels."""
    texts: list[str]
    truth: list[list[int]]
    """Each text's new labels, from 0 on; texts without any come last."""
    weights: list[float]
    """How many documents a text stands for."""
    labels: LabelSet
    """Of the model, before they are added."""
    n_documents: int
    """That the model was trained on."""

    @property
    def counts(self) -> NDArray[np.int64]:
        """Training documents of the old labels."""
        return self.labels.counts
