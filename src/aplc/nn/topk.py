"""Exact top-k over label clusters, chunk by chunk, visiting a tail only for rows whose k best it can change.

A tail's labels have p = sigmoid(c_t) sigmoid(z) <= sigmoid(c_t), in floating point too. So a row that has k labels can
skip a tail whose root is not above its k-th probability. Labels arrive in rising order of ids, and a label never
displaces an earlier one of equal probability: ties go to the lower id, which is the more frequent label.

A row is one hidden state of the batch. Shapes: B rows of the batch, S rows that visit a cluster, C labels of a chunk,
k best labels, N candidates.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from aplc.nn.fused import logits_of, product_dtype

FEW = 16
"""Up to this many times k candidates per row are merged as they are; if there are more, only the k best of each row."""


class _Pair(NamedTuple):
    probs: Tensor
    ids: Tensor


class TopK(_Pair):
    """`probs, ids = layer.topk(hidden)`, each (B, k), best first. Attributes say how much was evaluated."""

    visits: int = 0
    """(row, tail) pairs that were evaluated."""
    saved_visits: int = 0
    """(row, tail) pairs that were skipped."""


def sigmoid_(logits: Tensor) -> Tensor:
    """In place. Equal logits give equal probabilities, as ties require; `torch.sigmoid` rounds by place in memory."""
    return logits.neg_().exp_().add_(1).reciprocal_()


def outputs_of(rows_RD: Tensor, linear: nn.Linear, chunk: slice) -> Tensor:
    """Logits of a chunk of the outputs of `linear`, (C, R)."""
    bias_C = None if linear.bias is None else linear.bias[chunk]
    return logits_of(rows_RD, linear.weight[chunk], bias_C, product_dtype(rows_RD, linear.weight))


def chunks(n_labels: int, chunk_size: int) -> Iterator[slice]:
    for start in range(0, n_labels, chunk_size):
        yield slice(start, min(start + chunk_size, n_labels))


def check_allowed(allowed_L: Tensor, n_labels: int) -> None:
    if not isinstance(allowed_L, Tensor) or allowed_L.dtype != torch.bool or allowed_L.shape != (n_labels,):
        is_tensor = isinstance(allowed_L, Tensor)
        found = f"{allowed_L.dtype} of shape {tuple(allowed_L.shape)}" if is_tensor else type(allowed_L).__name__
        raise ValueError(
            f"allowed is {found}, but must be torch.bool of ({n_labels},); from ids: "
            f"torch.zeros({n_labels}, dtype=torch.bool).index_fill(0, torch.as_tensor(ids), True)"
        )


class RunningTopK:
    """The k best labels of each row so far. Probabilities start at -1, below any real one."""

    def __init__(self, n_rows: int, k: int, dtype: torch.dtype, device: torch.device) -> None:
        self.k = k
        self.probs_Bk = torch.full((n_rows, k), -1.0, dtype=dtype, device=device)
        self.ids_Bk = torch.full((n_rows, k), -1, dtype=torch.int64, device=device)

    def rows_below(self, bound_B: Tensor) -> Tensor:
        """Rows whose k-th probability is below the bound: a label with that probability would change them."""
        return (bound_B > self.probs_Bk[:, -1]).nonzero().squeeze(1)

    def update(
        self,
        logits_CS: Tensor,
        first_id: int,
        rows_S: Tensor | None = None,
        root_S: Tensor | None = None,
        allowed_L: Tensor | None = None,
    ) -> None:
        """Add a chunk of labels for the rows `rows_S` (None: for all). Ids must be above those of earlier chunks.

        p = sigmoid(z), times `root_S` in a tail, is computed only for logits that can enter a row's k best.
        """
        n_labels, n_rows = logits_CS.shape
        kth_S = self.probs_Bk[:, -1] if rows_S is None else self.probs_Bk[rows_S, -1]
        promising_CS = logits_CS >= least_logit(kth_S, root_S)
        if allowed_L is not None:
            promising_CS &= allowed_L[first_id : first_id + n_labels, None]
        if promising_CS.count_nonzero() > FEW * self.k * n_rows:  # mostly in the first chunk
            probs_SC = _probs_(logits_CS.clone(), root_S).t().masked_fill_(~promising_CS.t(), -1.0)
            probs_Sk, ids_Sk = top_of(probs_SC.contiguous(), self.k)
            probs_N, label_N = probs_Sk.flatten(), ids_Sk.flatten()
            place_N = torch.arange(n_rows, device=label_N.device).repeat_interleave(probs_Sk.shape[1])
        else:
            label_N, place_N = promising_CS.nonzero(as_tuple=True)
            if not len(label_N):
                return
            probs_N = _probs_(logits_CS[label_N, place_N], None if root_S is None else root_S[place_N])
        self._merge(probs_N, label_N + first_id, place_N if rows_S is None else rows_S[place_N])

    def _merge(self, probs_N: Tensor, ids_N: Tensor, row_N: Tensor) -> None:
        """Keep the k best of the old and the new, ties to the lower id: two stable sorts, by probability and by row."""
        n_rows = len(self.probs_Bk)
        each_B = torch.arange(n_rows, device=row_N.device)
        probs_M, ids_M = torch.cat([self.probs_Bk.flatten(), probs_N]), torch.cat([self.ids_Bk.flatten(), ids_N])
        row_M = torch.cat([each_B.repeat_interleave(self.k), row_N])
        order_M = probs_M.argsort(descending=True, stable=True)
        row_M, by_row_M = row_M[order_M].sort(stable=True)
        order_M = order_M[by_row_M]
        kept_Bk = torch.searchsorted(row_M, each_B)[:, None] + torch.arange(self.k, device=row_N.device)
        self.probs_Bk, self.ids_Bk = probs_M[order_M][kept_Bk], ids_M[order_M][kept_Bk]


def least_logit(prob_S: Tensor, root_S: Tensor | None) -> Tensor:
    """A lower bound: no smaller logit can have a probability above `prob_S`, however it is rounded."""
    ratio_S = prob_S.double() if root_S is None else prob_S.double() / root_S
    ratio_S = ratio_S * (1 - 8 * torch.finfo(prob_S.dtype).eps)
    return (torch.logit(ratio_S.clamp(0, 1)) - 1e-4).to(prob_S.dtype)


def _probs_(logits: Tensor, root: Tensor | None) -> Tensor:
    probs = sigmoid_(logits)
    return probs if root is None else probs.mul_(root)


def top_of(probs_NC: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of each row (or all, if fewer), ties to the lower index, which `torch.topk` does not promise."""
    n_labels = probs_NC.shape[1]
    if k >= n_labels:
        return probs_NC.sort(dim=1, descending=True, stable=True)
    probs_Nk, ids_Nk = probs_NC.topk(k + 1, dim=1)  # one more, to see whether the k-th is tied with the next
    tied_M = (probs_Nk[:, k - 1] == probs_Nk[:, k]).nonzero().squeeze(1)
    ids_Nk, order_Nk = ids_Nk[:, :k].sort(dim=1)
    probs_Nk, order_Nk = probs_Nk[:, :k].gather(1, order_Nk).sort(dim=1, descending=True, stable=True)
    ids_Nk = ids_Nk.gather(1, order_Nk)
    if len(tied_M):
        probs_MC, ids_MC = probs_NC[tied_M].sort(dim=1, descending=True, stable=True)
        probs_Nk[tied_M], ids_Nk[tied_M] = probs_MC[:, :k], ids_MC[:, :k]
    return probs_Nk, ids_Nk
