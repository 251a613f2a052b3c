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

FEW = 16
"""Up to this many times k promising labels a row are sorted as they are; of more, the k best of each row."""

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

    def update(
        self,
        logits_CS: Tensor,
        first_id: int,
        rows_S: Tensor | None = None,
        root_S: Tensor | None = None,
        allowed_L: Tensor | None = None,
    ) -> None:
        """Take in a chunk of labels, whose ids must be above all earlier ones, for some rows (None: for all).

        Only logits that can change something become probabilities, sigmoid(z), times the root's where there is one.
        """
        n_labels, n_rows = logits_CS.shape
        kth_S = self.probs_Bk[:, -1] if rows_S is None else self.probs_Bk[rows_S, -1]
        promising_CS = logits_CS >= least_logit(kth_S, root_S)
        if allowed_L is not None:
            promising_CS &= allowed_L[first_id : first_id + n_labels, None]
        if promising_CS.count_nonzero() > FEW * self.k * n_rows:  # the first chunk, mostly
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
        """Sort by row, then by probability, then as they came (those in hand, then rising ids); k of each row stay."""
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
    """No smaller logit has a probability above `prob_S`, whatever the rounding: a bound, not the exact one."""
    ratio_S = prob_S.double() if root_S is None else prob_S.double() / root_S
    ratio_S = ratio_S * (1 - 8 * torch.finfo(prob_S.dtype).eps)
    return (torch.logit(ratio_S.clamp(0, 1)) - 1e-4).to(prob_S.dtype)


def _probs_(logits: Tensor, root: Tensor | None) -> Tensor:
    probs = sigmoid_(logits)
    return probs if root is None else probs.mul_(root)


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
