"""What a batch of label lists means for the clusters: its positives, the tails they touch, and each row's weight.

In NumPy, which takes half the time of tensor operations for a few hundred numbers.

Shapes: B rows (hidden states) of the batch, P labels of a row (padded), K tails, N positive (label, row) pairs.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PADDING = -100
"""Fills up label lists that are shorter than others; the value that PyTorch's losses ignore."""


PAD = "torch.nn.utils.rnn.pad_sequence([{row} for row in {name}], batch_first=True, padding_value=-100)"
"""The cure for targets of other kinds."""


class Targets(NamedTuple):
    label_N: NDArray[np.int64]
    """Label ids of the positive pairs, without repeats, sorted."""
    row_N: NDArray[np.int64]
    """The row of each pair."""
    touched_BK: NDArray[np.bool_]
    """Which rows have a label in which tail: S_i without the head (Eq. 3)."""
    row_weight_B: NDArray[np.float64]
    """What a row's loss is multiplied by."""


class Pairs(NamedTuple):
    """(label, row) pairs without repeats, sorted by label."""

    label_N: NDArray[np.int64]
    row_N: NDArray[np.int64]


def make_targets(
    labels_BP: Tensor, n_rows: int, bounds: list[int], n_tails: int, objective: str, rejected: Pairs | None = None
) -> Targets:
    """The targets of a batch. Cluster i holds labels bounds[i] to bounds[i + 1]: the head, the tails, the additions.

    What partial rows reject touches a tail as their own labels do.
    """
    positive = make_pairs(labels_BP, n_rows, n_labels=bounds[-1])
    touched_BK = np.zeros((n_rows, n_tails), dtype=bool)
    for label_N, row_N in (positive, rejected) if rejected else (positive,):
        for t, inside in enumerate(pairwise(edges(label_N, bounds)[1 : 2 + n_tails])):
            touched_BK[row_N[slice(*inside)], t] = True
    return Targets(*positive, touched_BK, _row_weights(touched_BK, bounds, objective))


def edges(label_N: NDArray[np.int64], bounds: list[int]) -> list[int]:
    """Cluster i has the pairs edges[i]:edges[i + 1]. Labels must be sorted."""
    return np.searchsorted(label_N, bounds).tolist()


def labels_evaluated(touched_BK: NDArray[np.bool_], bounds: list[int]) -> NDArray[np.float64]:
    """L_i, (B,): the labels of the head, of the additions and of the tails that row i touches (Eq. 4)."""
    n_tails = touched_BK.shape[1]
    n_added = bounds[-1] - bounds[1 + n_tails]
    return bounds[1] + n_added + touched_BK.astype(np.float64) @ np.diff(bounds[1 : 2 + n_tails])


def make_pairs(labels_BP: Tensor, n_rows: int, *, n_labels: int, name: str = "labels") -> Pairs:
    """The pairs of a batch; `name` is for messages."""
    _check_labels(labels_BP, n_rows, n_labels, name)
    labels = labels_BP.cpu().numpy()
    row_N, place_N = (labels != PADDING).nonzero()
    label_N = labels[row_N, place_N]
    for label in (label_N.min(), label_N.max()) if len(label_N) else ():
        if not 0 <= label < n_labels:
            raise ValueError(
                f"{name} holds the id {label}, but ids must be from 0 to {n_labels - 1} (n_labels - 1), "
                f"or {PADDING} for padding"
            )
    return Pairs(*np.divmod(np.unique(label_N * n_rows + row_N), max(n_rows, 1)))


def check_hidden(hidden_BD: Tensor, in_features: int) -> None:
    if not isinstance(hidden_BD, Tensor):
        raise ValueError(f"hidden is of type {type(hidden_BD).__name__}, but must be a tensor (B, {in_features})")
    if hidden_BD.ndim != 2 or hidden_BD.shape[1] != in_features:
        raise ValueError(f"hidden has shape {tuple(hidden_BD.shape)}, but must be (B, {in_features}) (in_features)")


def _check_labels(labels_BP: Tensor, n_rows: int, n_labels: int, name: str) -> None:
    """Types and shapes, which cost nothing; numbers only where the shape is that of a multi-hot matrix."""
    if not isinstance(labels_BP, Tensor):
        cure = PAD.format(row="torch.as_tensor(row)", name=name)
        raise ValueError(
            f"{name} is of type {type(labels_BP).__name__}, but must be a torch.int64 tensor of ids, ({n_rows}, P), "
            f"padded with -100: {cure}"
        )
    if labels_BP.ndim != 2 or labels_BP.shape[0] != n_rows:
        raise ValueError(f"{name} has shape {tuple(labels_BP.shape)}, but must be ({n_rows}, P), padded with -100")
    may_be_multi_hot = labels_BP.shape[1] == n_labels > 2 and n_rows > 0
    if may_be_multi_hot and bool(((labels_BP == 0) | (labels_BP == 1)).all()):
        cure = PAD.format(row="row.nonzero().squeeze(1)", name=name)
        raise ValueError(
            f"{name} has shape {tuple(labels_BP.shape)} and holds only 0 and 1, a column for each label, but must be "
            f"lists of label ids, padded with -100: {cure}"
        )
    if labels_BP.dtype != torch.int64:
        raise ValueError(f"{name} has dtype {labels_BP.dtype}, but must be torch.int64: ids, padded with -100")


def _row_weights(touched_BK: NDArray[np.bool_], bounds: list[int], objective: str) -> NDArray[np.float64]:
    """1 / sum of L_i (paper, Eq. 5) or 1 / (B L_i) (released)."""
    size_B = labels_evaluated(touched_BK, bounds)
    if objective == "paper":
        return np.full(len(size_B), 1 / max(1, size_B.sum()))
    return 1 / ((size_B + (~touched_BK).sum(1)) * len(size_B))  # the root of an untouched tail counts as one label


def log_odds(count: Tensor, total: float) -> Tensor:
    """Of `count` documents among `total`, half a document away from none and from all."""
    count = count.clamp(0.5, max(total - 0.5, 0.5))
    return torch.log(count) - torch.log((total - count).clamp(min=0.5))
