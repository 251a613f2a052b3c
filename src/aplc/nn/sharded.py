"""Label clusters spread over processes, for label sets that are too large for one device.

Each rank holds a slice of the head's and of every tail's labels; the tails' roots and projections, which are small, are
on all ranks. A rank's slices form a `LabelClusters` of their own, so loss and top-k are the same code. In a training
step the ranks exchange their hidden states, each computes the loss terms of its own labels for all rows, and the hidden
states' gradients are summed in the backward pass. The price: every rank needs memory for all ranks' hidden states, and
each cluster must have at least as many labels as there are ranks.

Loss, gradients and top-k equal those of the whole layer. Gradients of weights that all ranks hold (everything but the
first `own_rows` outputs of a parameter) are partial sums; the training loop adds them up like those of the encoder.

A row is one hidden state. Shapes: B rows of this rank, A rows of all ranks, D width, K tails, P labels of a row, k best
labels.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from aplc.nn.clusters import LabelClusters
from aplc.nn.targets import PADDING, Targets, check_hidden
from aplc.nn.topk import TopK


class ShardedLabelClusters(LabelClusters):
    """One rank's part of a `LabelClusters` over `n_labels` labels. Takes its arguments and the process group."""

    whole: LabelClusters

    def __init__(
        self, in_features: int, cutoffs: Any, n_labels: int, *, group: dist.ProcessGroup | None = None, **options: Any
    ) -> None:
        if options.get("added"):
            raise ValueError(f"added is {options['added']}, but a layer with added labels can't be sharded")
        self.rank, self.size, self.group = dist.get_rank(group), dist.get_world_size(group), group
        whole = [0, *cutoffs, n_labels]
        sizes = [stop - start for start, stop in pairwise(whole)]
        if min(sizes) < self.size:
            raise ValueError(
                f"cutoffs is {list(cutoffs)}: a cluster of {min(sizes)} labels can't be shared by {self.size} processes"
            )
        slices = [(size * self.rank // self.size, size * (self.rank + 1) // self.size) for size in sizes]
        local = torch.tensor([0] + [stop - start for start, stop in slices]).cumsum(0).tolist()
        super().__init__(in_features, local[1:-1], local[-1], **options)
        # `whole` is for its bounds only: it has no weights (device "meta") and must not become a submodule.
        object.__setattr__(self, "whole", LabelClusters(in_features, cutoffs, n_labels, **options | {"device": "meta"}))
        self.slice_starts = [start + first for start, (first, _) in zip(whole, slices, strict=False)]

    def forward(
        self, hidden_BD: Tensor, labels_BP: Tensor, *, partial: Tensor | None = None, rejected: Tensor | None = None
    ) -> Tensor:
        """The loss of all ranks' rows together; every rank returns the same number."""
        if partial is not None and partial.any():
            raise ValueError("partial is True for some rows, but these need the whole layer")
        check_hidden(hidden_BD, self.in_features)
        hidden_AD, labels_AP = _GatherRows.apply(hidden_BD, self.group), self._gather_labels(labels_BP)
        targets = self.whole._targets(labels_AP, len(hidden_AD))
        loss, roots_AK = self._leaf_loss(hidden_AD, self._own(targets))
        if self.rank == 0:
            loss = loss + self._root_loss(roots_AK, targets)
        return _SumLoss.apply(loss, self.group)

    def loss_weight(self, labels_BP: Tensor, *, partial: Tensor | None = None, rejected: Tensor | None = None) -> float:
        return self.whole.loss_weight(labels_BP, partial=partial, rejected=rejected)

    @torch.no_grad()
    def topk(self, hidden_BD: Tensor, k: int = 5, *, allowed: Tensor | None = None) -> TopK:
        """Each rank finds the best of its own labels for all rows, and the lists are merged."""
        if allowed is not None:
            raise ValueError("allowed needs the whole layer; load the saved model")
        hidden_AD = _GatherRows.apply(hidden_BD, self.group)
        found = super().topk(hidden_AD, k)
        probs_Ak, ids_Ak = F.pad(found.probs, (0, k - found.probs.shape[1]), value=-1.0), self._whole_ids(found.ids)
        ids_Ak = F.pad(ids_Ak, (0, k - ids_Ak.shape[1]), value=self.whole.n_labels)
        probs, ids = torch.cat(_all_gather(probs_Ak, self.group), 1), torch.cat(_all_gather(ids_Ak, self.group), 1)
        order = ids.argsort(1)  # by id, then stably by probability: ties go to the lower id
        probs, ids = probs.gather(1, order), ids.gather(1, order)
        order = probs.argsort(dim=1, descending=True, stable=True)[:, : min(k, self.whole.n_labels)]
        first = sum(_all_sizes(len(hidden_BD), hidden_BD.device, self.group)[: self.rank])
        own = slice(first, first + len(hidden_BD))
        return TopK(probs.gather(1, order)[own], ids.gather(1, order)[own])

    def _own(self, targets: Targets) -> Targets:
        """The pairs whose label this rank holds, with local ids. Rows are still those of all ranks."""
        label_N = targets.label_N
        local_N = np.full_like(label_N, -1)
        for start, (first, stop) in zip(self.slice_starts, pairwise(self.bounds), strict=True):
            inside = (label_N >= start) & (label_N < start + stop - first)
            local_N = np.where(inside, label_N - start + first, local_N)
        mine = local_N >= 0
        return targets._replace(label_N=local_N[mine], row_N=targets.row_N[mine])

    def _whole_ids(self, ids: Tensor) -> Tensor:
        cluster = torch.bucketize(ids, torch.tensor(self.bounds[1:-1], device=ids.device), right=True)
        shift = torch.tensor(self.slice_starts, device=ids.device) - torch.tensor(self.bounds[:-1], device=ids.device)
        return ids + shift[cluster]

    def _gather_labels(self, labels_BP: Tensor) -> Tensor:
        width = max(_all_sizes(labels_BP.shape[1], labels_BP.device, self.group))
        return torch.cat(_all_gather(F.pad(labels_BP, (0, width - labels_BP.shape[1]), value=PADDING), self.group))

    def own_rows(self, name: str) -> int:
        """For how many of a parameter's first outputs (labels) only this rank has weights."""
        if name.startswith("head."):
            return self.bounds[1]
        if ".output." in name:
            t = int(name.split(".")[1]) + 1
            return self.bounds[t + 1] - self.bounds[t]
        return 0

    def slice_of(self, name: str, whole: Tensor) -> Tensor:
        """This rank's part of the whole layer's tensor `name`."""
        if name.startswith("head."):
            head, n_roots = self.bounds[1], len(self.tails)
            own = whole[self.slice_starts[0] : self.slice_starts[0] + head]
            return torch.cat([own, whole[len(whole) - n_roots :]])
        if ".output." in name:
            t = int(name.split(".")[1]) + 1
            first = self.slice_starts[t] - self.whole.bounds[t]
            return whole[first : first + self.own_rows(name)]
        return whole

    def join(self, name: str, parts: list[Tensor]) -> Tensor:
        """The whole layer's tensor `name` from every rank's part."""
        if name.startswith("head."):
            n_roots = len(self.tails)
            leaves = [part[: len(part) - n_roots] for part in parts]
            return torch.cat([*leaves, parts[0][len(parts[0]) - n_roots :]])
        return torch.cat(parts) if ".output." in name else parts[0]


class _GatherRows(torch.autograd.Function):
    """All ranks' rows, concatenated. Backward: the sum of all ranks' gradients, for this rank's rows."""

    @staticmethod
    def forward(ctx: Any, rows_BD: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group, ctx.sizes = group, _all_sizes(len(rows_BD), rows_BD.device, group)
        return torch.cat(_all_gather(rows_BD, group, ctx.sizes))

    @staticmethod
    def backward(ctx: Any, grad_AD: Tensor) -> tuple[Tensor, None]:
        grad_AD = grad_AD.contiguous()
        dist.all_reduce(grad_AD, group=ctx.group)
        return grad_AD.split(ctx.sizes)[dist.get_rank(ctx.group)], None


class _SumLoss(torch.autograd.Function):
    """The sum over ranks of their parts of the loss. Backward: the derivative by each part is 1."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        total = part.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def _all_sizes(size: int, device: torch.device, group: dist.ProcessGroup | None) -> list[int]:
    sizes = _all_gather(torch.tensor([size], device=device), group, [1] * dist.get_world_size(group))
    return [int(n) for n in sizes]


def _all_gather(rows: Tensor, group: dist.ProcessGroup | None, sizes: list[int] | None = None) -> list[Tensor]:
    """Every rank's rows. Ranks may have different numbers of them, so they are padded for the exchange."""
    sizes = sizes or _all_sizes(len(rows), rows.device, group)
    padded = F.pad(rows, (0, 0) * (rows.ndim - 1) + (0, max(sizes) - len(rows))).contiguous()
    gathered = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(gathered, padded, group=group)
    return [part[:size] for part, size in zip(gathered, sizes, strict=True)]
