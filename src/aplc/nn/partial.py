"""The loss of partly reviewed documents, of which a few labels are known: accepted, added or rejected by a reviewer.

Only these have a term, -log p or -log(1-p) with the p of Equation 2. Other labels get no gradient, and a cluster's root
gets one only through the known labels of its cluster. A document has few of them, so their weights are gathered, and
autograd does the rest. The price: in a batch with such rows a cluster has a second gradient of its weights' size for a
moment.

Shapes: B rows (hidden states) of the batch, D their width, R rows that list a label of a cluster, N (label, row) pairs.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from aplc.nn.fused import compute_dtype, softplus
from aplc.nn.tail import Tail
from aplc.nn.targets import Pairs, Targets, edges, make_pairs


class Listed(NamedTuple):
    """What the partial rows of a batch list, sorted by label."""

    label_N: NDArray[np.int64]
    row_N: NDArray[np.int64]
    right_N: NDArray[np.bool_]
    """Whether the label is the row's own; otherwise it was rejected."""


def rejected_pairs(partial_B: Tensor, rejected_BQ: Tensor | None, n_rows: int, n_labels: int) -> Pairs:
    """What partial rows reject. Of other rows nothing: all labels but their own are wrong anyway."""
    if partial_B.dtype != torch.bool or partial_B.shape != (n_rows,):
        raise ValueError(
            f"partial is {partial_B.dtype} of shape {tuple(partial_B.shape)}, but must be torch.bool of ({n_rows},)"
        )
    if rejected_BQ is None:
        return Pairs(np.empty(0, np.int64), np.empty(0, np.int64))
    label_N, row_N = make_pairs(rejected_BQ, n_rows, n_labels=n_labels, name="rejected")
    own_N = partial_B.cpu().numpy()[row_N]
    return Pairs(label_N[own_N], row_N[own_N])


def split_targets(targets: Targets, rejected: Pairs, partial_B: NDArray[np.bool_]) -> tuple[Targets, Listed]:
    """The targets of the rows that are not partial, which count from 0 here, and what the others list."""
    own_N, whole_B = partial_B[targets.row_N], ~partial_B
    place_B = whole_B.cumsum(dtype=np.int64) - 1
    whole = Targets(
        targets.label_N[~own_N],
        place_B[targets.row_N[~own_N]],
        targets.touched_BK[whole_B],
        targets.row_weight_B[whole_B],
    )
    label_N = np.concatenate([targets.label_N[own_N], rejected.label_N])
    row_N = np.concatenate([targets.row_N[own_N], rejected.row_N])
    right_N = np.arange(len(label_N)) < own_N.sum()
    pair_N = label_N * len(partial_B) + row_N
    order = np.argsort(pair_N, kind="stable")
    if len(twice := np.flatnonzero(np.diff(pair_N[order]) == 0)):
        first = order[twice[0]]
        raise ValueError(f"row {row_N[first]} has label {label_N[first]} in both labels and rejected")
    return whole, Listed(label_N[order], row_N[order], right_N[order])


def listed_loss(
    hidden_BD: Tensor,
    listed: Listed,
    row_weight_B: NDArray[np.float64],
    outputs: Sequence[nn.Linear],
    tails: Sequence[Tail],
    bounds: list[int],
) -> Tensor:
    """The weighted sum of what is listed. `outputs`: of head, tails and additions; the roots are the head's last."""
    loss, device = hidden_BD.sum() * 0.0, hidden_BD.device  # a graph also where nothing is listed
    for i, (label_N, row_N, right_N) in _in_clusters(listed, bounds):
        rows, place = np.unique(row_N, return_inverse=True)
        place_N = torch.from_numpy(place).to(device)
        rows_RD, roots_N = hidden_BD.index_select(0, torch.from_numpy(rows).to(device)), None
        if 1 <= i <= len(tails):
            roots_N = _logits(outputs[0], rows_RD, place_N, torch.full_like(place_N, bounds[1] + i - 1))
            rows_RD = F.dropout(tails[i - 1].narrow(rows_RD), tails[i - 1].dropout, tails[i - 1].training)
        z_N = _logits(outputs[i], rows_RD, place_N, torch.from_numpy(label_N).to(device))
        terms_N = _terms(z_N, roots_N, torch.from_numpy(right_N).to(device))
        loss = loss + (terms_N * torch.from_numpy(row_weight_B[row_N]).to(terms_N)).sum()  # autocast would round @
    return loss


def _in_clusters(listed: Listed, bounds: list[int]) -> Iterator[tuple[int, Listed]]:
    """(cluster, what is listed of its labels, which count from 0 there), without clusters of which nothing is."""
    for i, (begin, end) in enumerate(pairwise(edges(listed.label_N, bounds))):
        if end > begin:
            here = slice(begin, end)
            yield i, Listed(listed.label_N[here] - bounds[i], listed.row_N[here], listed.right_N[here])


def _logits(linear: nn.Linear, rows_RD: Tensor, place_N: Tensor, output_N: Tensor) -> Tensor:
    """Logits (N,) of single outputs of `linear`, each for one row."""
    dtype = compute_dtype(rows_RD, linear.weight)
    weight_ND = linear.weight.index_select(0, output_N).to(dtype)
    logits_N = (weight_ND * rows_RD.to(dtype).index_select(0, place_N)).sum(1)
    return logits_N if linear.bias is None else logits_N + linear.bias.index_select(0, output_N)


def _terms(z_N: Tensor, roots_N: Tensor | None, right_N: Tensor) -> Tensor:
    """-log p of the labels that are right, -log(1-p) of the others, (N,). With roots, p = sigmoid(c) sigmoid(z).

    Then log(p / (1-p)) = c - softplus(softplus(c) - z), which is finite for any finite logits.
    """
    if roots_N is None:
        return softplus(torch.where(right_N, -z_N, z_N))
    wrong_N = softplus(roots_N - softplus(softplus(roots_N) - z_N))
    return torch.where(right_N, softplus(-z_N) + softplus(-roots_N), wrong_N)
