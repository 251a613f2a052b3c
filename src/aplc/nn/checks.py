"""Settings that label clusters and their partition refuse: a ValueError names the field, the value and the bound.

What is wrong with a batch is said in `targets.py` and `topk.py`.
"""

import math
import operator
from collections.abc import Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def check_at_least(field: str, value: int, bound: int) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < bound:
        raise ValueError(f"{field} is {value!r}, but must be a whole number, at least {bound}")


def check_choice(field: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{field} is {value!r}, but must be one of {', '.join(map(repr, choices))}")


def whole_numbers(field: str, values: Any) -> list[int]:
    """A list of ints, of NumPy's and of tensors', too; 1000.5 is not rounded."""
    try:
        return [operator.index(value) for value in values]
    except TypeError:
        raise ValueError(f"{field} is {values!r}, but must be a list of whole numbers") from None


def check_cutoffs(cutoffs: Sequence[int], n_labels: int) -> None:
    for before, cutoff in pairwise([0, *cutoffs]):
        if cutoff <= before:
            raise ValueError(
                f"cutoffs is {list(cutoffs)}, but must rise strictly from at least 1: {cutoff} follows {before}"
            )
    if cutoffs and cutoffs[-1] >= n_labels:
        raise ValueError(f"cutoffs is {list(cutoffs)}, but must be below n_labels ({n_labels}): {cutoffs[-1]} is not")


def check_added(added: Sequence[int], n_labels: int) -> None:
    for size in added:
        check_at_least("added", size, 1)
    if sum(added) >= n_labels:
        raise ValueError(
            f"added is {list(added)}, but the sum must be below n_labels ({n_labels}), which counts the added labels"
        )


def check_div_value(div_value: float) -> None:
    if not 1 <= div_value < math.inf:
        raise ValueError(f"div_value is {div_value}, but must be at least 1 and finite")


def check_layer(
    *,
    in_features: int,
    cutoffs: Sequence[int],
    n_labels: int,
    added: Sequence[int],
    div_value: float,
    objective: str,
    tail: str,
    tail_dropout: Sequence[float],
    min_tail_width: int,
    chunk_size: int,
) -> None:
    """The settings of a `LabelClusters`, with a dropout for each tail."""
    check_at_least("in_features", in_features, 1)
    check_at_least("n_labels", n_labels, 1)
    check_added(added, n_labels)
    check_cutoffs(cutoffs, n_labels - sum(added))
    check_at_least("min_tail_width", min_tail_width, 1)
    check_at_least("chunk_size", chunk_size, 1)
    check_choice("objective", objective, ("released", "paper"))
    check_choice("tail", tail, ("norm-relu", "linear"))
    check_div_value(div_value)
    check_tail_dropouts(tail_dropout, len(cutoffs))


def check_tail_widths(widths: Sequence[int], tail: str, *, in_features: int, div_value: float) -> None:
    """`widths` of the tails. LayerNorm of a single number is 0, whatever the number: such a tail learns nothing."""
    for t, width in enumerate(widths, start=1):
        if width == 1 and tail == "norm-relu":
            raise ValueError(
                f"tail {t} has the width 1 (in_features {in_features} // div_value {div_value:g}^{t}), but LayerNorm "
                "of one number is always 0: set min_tail_width to 2 or more, or a smaller div_value, or tail='linear'"
            )


def check_tail_dropouts(dropouts: Sequence[float], n_tails: int) -> None:
    if len(dropouts) != n_tails:
        raise ValueError(f"tail_dropout has {len(dropouts)} entries, but there are {n_tails} tails")
    for t, dropout in enumerate(dropouts):
        if not 0 <= dropout < 1:
            raise ValueError(f"tail_dropout of tail {t} is {dropout}, but must be at least 0 and below 1")


def falling_counts(label_counts: ArrayLike, n_documents: int) -> NDArray[np.float64]:
    """The counts, (L,), which must fall: otherwise ids are not by falling frequency."""
    check_at_least("n_documents", n_documents, 1)
    counts = np.asarray(label_counts, dtype=np.float64)
    if counts.ndim != 1 or not len(counts):
        raise ValueError(f"label_counts has shape {counts.shape}, but must be (n_labels,)")
    if not counts.min() >= 0:  # NaN, too
        raise ValueError(f"label_counts holds {counts.min():g}, but counts must be at least 0")
    rises = np.flatnonzero(np.diff(counts) > 0)
    if len(rises):
        i = int(rises[0])
        raise ValueError(
            f"label_counts must fall, but label {i + 1} has {counts[i + 1]:g}, more than label {i} with {counts[i]:g}: "
            "sort labels by falling frequency"
        )
    if counts[0] > n_documents:
        raise ValueError(
            f"label_counts holds {counts[0]:g}, more than n_documents ({n_documents}): count a label once a document"
        )
    return counts


def check_reached(reached: Sequence[float] | NDArray[np.float64], n_tails: int) -> None:
    if len(reached) != n_tails:
        raise ValueError(f"reached has {len(reached)} entries, but there are {n_tails} tails")
    for p in reached:
        if not 0 <= p <= 1:
            raise ValueError(f"reached holds {p}, but probabilities must be from 0 to 1")
