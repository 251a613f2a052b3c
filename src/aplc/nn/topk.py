"""Exact top-k over label clusters, chunk by chunk, visiting a tail only for rows that it can still change.

A tail's labels have p = sigmoid(c_t) sigmoid(z) <= sigmoid(c_t), in floating point too. So a row with k labels in hand
need not look into a tail whose root is not above its k-th probability. Labels come in rising id, hence a later label
with an equal probability never displaces an earlier one: ties fall to the lower id, which is the more frequent label.

Shapes: B batch, S rows still in play, D width, C labels of a chunk, k labels in hand, R padded rows.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from aplc.nn.fused import compute_dtype, product_dtype

ROW_TILE = 24
"""Rows of a product with a tail's weights are padded to a multiple of this. A row must have the same bits whether it is
evaluated alone or in a batch, and BLAS kernels differ by shape: with MKL, `W @ h.T` gives each column the same bits for
every multiple of 24 columns, in float32 and float64 (24 is a multiple of its micro-kernels' widths)."""

SMALL_CHUNK = 64
"""Below this many labels MKL chooses other kernels, alike only for exactly equal shapes: so one tile at a time."""


class _Pair(NamedTuple):
    probs: Tensor
    ids: Tensor


class TopK(_Pair):
    """`probs, ids = layer.topk(hidden)`, each (B, k), best first; what the search cost is in the attributes."""

    visits: int = 0
    """(row, tail) pairs that were evaluated."""
    saved_visits: int = 0
    """(row, tail) pairs that full evaluation would have needed besides."""


def sigmoid_(logits: Tensor) -> Tensor:
    """In place. `torch.sigmoid` rounds by an element's place (in a vector or in the remainder), `torch.exp` doesn't."""
    return logits.neg_().exp_().add_(1).reciprocal_()


def tail_logits_of(rows_SD: Tensor, weight_CD: Tensor, bias_C: Tensor | None) -> Tensor:
    """Logits, labels x rows, with bits that do not depend on which other rows are there."""
    n_rows, n_labels = rows_SD.shape[0], weight_CD.shape[0]
    dtype, compute = product_dtype(rows_SD, weight_CD), compute_dtype(rows_SD, weight_CD)
    rows_RD, weight_CD = F.pad(rows_SD, (0, 0, 0, -n_rows % ROW_TILE)).to(dtype), weight_CD.to(dtype)
    if n_labels >= SMALL_CHUNK:
        logits_CR = weight_CD @ rows_RD.t()
    else:
        logits_CR = torch.cat([weight_CD @ tile_RD.t() for tile_RD in rows_RD.split(ROW_TILE)], dim=1)
    logits_CS = logits_CR[:, :n_rows].to(compute)
    return logits_CS if bias_C is None else logits_CS + bias_C[:, None]


def chunks(n_labels: int, chunk_size: int) -> Iterator[slice]:
    for start in range(0, n_labels, chunk_size):
        yield slice(start, min(start + chunk_size, n_labels))


class RunningTopK:
    """The k best labels so far of each row. Probabilities start at -1, so that anything is better."""

    def __init__(self, n_rows: int, k: int, dtype: torch.dtype, device: torch.device) -> None:
        self.k = k
        self.probs_Bk = torch.full((n_rows, k), -1.0, dtype=dtype, device=device)
        self.ids_Bk = torch.full((n_rows, k), -1, dtype=torch.int64, device=device)

    def rows_below(self, bound_B: Tensor) -> Tensor:
        """Rows whose k-th probability is below the bound: those that labels up to it could still change."""
        return (bound_B > self.probs_Bk[:, -1]).nonzero().squeeze(1)

    def update(self, probs_CS: Tensor, first_id: int, rows_S: Tensor | None, allowed_L: Tensor | None = None) -> None:
        """Take in a chunk of labels, whose ids must be above all earlier ones, for some rows (None: for all).

        Labels that are not allowed get a probability of -1, which is never better than what is in hand. Overwrites
        `probs_CS` in doing so.
        """
        if allowed_L is not None:
            probs_CS.masked_fill_(~allowed_L[first_id : first_id + len(probs_CS), None], -1.0)
        best_S = probs_CS.amax(0)
        kth_S = self.probs_Bk[:, -1] if rows_S is None else self.probs_Bk[rows_S, -1]
        better_N = (best_S > kth_S).nonzero().squeeze(1)
        if not len(better_N):
            return
        rows_N = better_N if rows_S is None else rows_S[better_N]
        probs_NC = probs_CS.t()[better_N] if len(better_N) < len(best_S) else probs_CS.t().contiguous()
        probs_Nk, ids_Nk = top_of(probs_NC, self.k)
        # Old ones first: of equal probabilities a stable sort keeps the lower id.
        probs_Nk = torch.cat([self.probs_Bk[rows_N], probs_Nk], dim=1)
        ids_Nk = torch.cat([self.ids_Bk[rows_N], ids_Nk + first_id], dim=1)
        probs_Nk, order_Nk = probs_Nk.sort(dim=1, descending=True, stable=True)
        self.probs_Bk[rows_N] = probs_Nk[:, : self.k]
        self.ids_Bk[rows_N] = ids_Nk.gather(1, order_Nk)[:, : self.k]


def top_of(probs_NC: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of each row (all, where there are fewer), ties to the lower index, which `torch.topk` leaves open."""
    n_labels = probs_NC.shape[1]
    if k >= n_labels:
        return probs_NC.sort(dim=1, descending=True, stable=True)
    probs_Nk, ids_Nk = probs_NC.topk(k + 1, dim=1)  # one more, to see a tie across the boundary
    tied_M = (probs_Nk[:, k - 1] == probs_Nk[:, k]).nonzero().squeeze(1)
    ids_Nk, order_Nk = ids_Nk[:, :k].sort(dim=1)
    probs_Nk, order_Nk = probs_Nk[:, :k].gather(1, order_Nk).sort(dim=1, descending=True, stable=True)
    ids_Nk = ids_Nk.gather(1, order_Nk)
    if len(tied_M):
        probs_MC, ids_MC = probs_NC[tied_M].sort(dim=1, descending=True, stable=True)
        probs_Nk[tied_M], ids_Nk[tied_M] = probs_MC[:, :k], ids_MC[:, :k]
    return probs_Nk, ids_Nk
