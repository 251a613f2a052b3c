"""Relative attention and dropout, where XLNet spends its time besides large matrix products.

Transformer-XL scores query i against key j by content, by distance i - j, and in XLNet by "same segment or not"
(Yang et al. 2019, section 2.5; Dai et al. 2019, section 3.3):

    score_ij = (q_i + w) . k_j  +  (q_i + p) . r_{i-j}  +  (q_i + s) . e_{seg(i) != seg(j)}        all over sqrt(E)

The position keys r depend on the distance alone, so they are projected once per layer, not once per document. Query i
needs the distances i - K + 1 to i: its scores by distance are shifted by one step against those of query i - 1, and a
reshape undoes that (`relative_shift`).

There are two implementations, equal up to rounding:

* `_sdpa`: position and segment terms as the additive bias of `scaled_dot_product_attention`. For GPUs, `torch.compile`
  and export.
* `_BlockedAttention`: for eager mode on a CPU in float32. There SDPA is slow if its bias needs a gradient, and page
  faults of every (B, H, Q, K) tensor take longer than the arithmetic. So this takes one document and 128 queries at a
  time, in scratch memory that stays in cache, and keeps only the softmax for the backward pass. The price is a backward
  pass written by hand.

Shapes: B documents, Q queries, K keys (memory first, then the queries' own tokens), H heads, E width of a head,
W = K + Q distances, M queries of a block.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

softmax_backward = torch.ops.aten._softmax_backward_data.out
BLOCK = 128
"""Queries at a time: 12 heads x 128 x 640 floats are 4 MB, and matrix products are at full speed already."""
SHORT = 48
"""With fewer queries, one call for the whole batch is faster than a loop over documents."""


def relative_attention(
    qw_BQHE: Tensor,
    qr_BQHE: Tensor,
    k_BKHE: Tensor,
    v_BKHE: Tensor,
    r_WHE: Tensor,
    *,
    seg_BQH: Tensor | None = None,
    differ_BQK: Tensor | None = None,
    mask_BQK: Tensor | None = None,
    places_BQ: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attend from Q queries, the last Q of the K positions, and return (B, Q, H, E).

    The queries `qw = (q + r_w_bias) / sqrt(E)` and `qr = (q + r_r_bias) / sqrt(E)` carry the scale already. `r` holds
    the keys of the distances K, K - 1, ..., 1 - Q. `seg` is added where `differ` is 1 (a float, 0 or 1: the key is in
    another segment). `mask` is added to all heads' scores: 0, or a large negative number where a key is hidden.

    With `places`, query n of document b stands at token `places[b, n]` of the last T = W - K.
    """
    fast = (
        places_BQ is None
        and not torch.compiler.is_compiling()
        and qw_BQHE.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and qw_BQHE.dtype == torch.float32
        and qw_BQHE.shape[1] >= SHORT
    )
    if fast:
        return _BlockedAttention.apply(qw_BQHE, qr_BQHE, k_BKHE, v_BKHE, r_WHE, seg_BQH, differ_BQK, mask_BQK, dropout)
    return _sdpa(qw_BQHE, qr_BQHE, k_BKHE, v_BKHE, r_WHE, seg_BQH, differ_BQK, mask_BQK, dropout, places_BQ)


def relative_shift(scores: Tensor, keys: int) -> Tensor:
    """Turn scores by distance (..., Q, W) into scores by key (..., Q, K) without a copy.

    Entry w of query i belongs to key j = w - Q + i. Dropping the first Q of the flattened scores and viewing the rest
    as (Q, W - 1) shifts each query's scores by one step more than those of the query before it.
    """
    *batch, queries, width = scores.shape
    flat = scores.reshape(*batch, queries * width)[..., queries:]
    return flat.view(*batch, queries, width - 1)[..., :keys]


def shift_at(scores_BHQW: Tensor, keys: int, places_BQ: Tensor) -> Tensor:
    """`relative_shift` for queries that stand at `places` of the last T = W - K tokens."""
    first_BQ = scores_BHQW.shape[3] - keys - places_BQ
    index_BQK = first_BQ[..., None] + torch.arange(keys, device=places_BQ.device)
    return scores_BHQW.gather(3, index_BQK[:, None].expand(-1, scores_BHQW.shape[1], -1, -1))


def _sdpa(
    qw_BQHE: Tensor,
    qr_BQHE: Tensor,
    k_BKHE: Tensor,
    v_BKHE: Tensor,
    r_WHE: Tensor,
    seg_BQH: Tensor | None,
    differ_BQK: Tensor | None,
    mask_BQK: Tensor | None,
    dropout: float,
    places_BQ: Tensor | None = None,
) -> Tensor:
    skewed_BHQW, keys = qr_BQHE.transpose(1, 2) @ r_WHE.permute(1, 2, 0), k_BKHE.shape[1]
    bias_BHQK = relative_shift(skewed_BHQW, keys) if places_BQ is None else shift_at(skewed_BHQW, keys, places_BQ)
    if seg_BQH is not None and differ_BQK is not None:
        bias_BHQK = bias_BHQK + seg_BQH.transpose(1, 2)[..., None] * differ_BQK[:, None]
    if mask_BQK is not None:
        bias_BHQK = bias_BHQK + mask_BQK[:, None]
    out_BHQE = F.scaled_dot_product_attention(
        qw_BQHE.transpose(1, 2),
        k_BKHE.transpose(1, 2),
        v_BKHE.transpose(1, 2),
        attn_mask=bias_BHQK.to(qw_BQHE.dtype),  # under autocast some terms come in float32
        dropout_p=dropout,
        scale=1.0,
    )
    return out_BHQE.transpose(1, 2)


class _BlockedAttention(torch.autograd.Function):
    """The same by blocks of one document and `BLOCK` queries, with

    S = Q K^T + bias,  P = softmax(S),  O = P V:     dP = dO V^T,  dS = P * (dP - rowsum(P * dP)),
                                                     dV = P^T dO,  dQ = dS K,  dK = dS^T Q

    (Dao et al. 2022, appendix B.2; their shorter rowsum(dO * O) is less exact, as the gradients of the segment term
    show.)
    """

    @staticmethod
    def forward(
        ctx: Any,
        qw_BQHE: Tensor,
        qr_BQHE: Tensor,
        k_BKHE: Tensor,
        v_BKHE: Tensor,
        r_WHE: Tensor,
        seg_BQH: Tensor | None,
        differ_BQK: Tensor | None,
        mask_BQK: Tensor | None,
        dropout: float,
    ) -> Tensor:
        n_docs, queries, heads, _ = qw_BQHE.shape
        keys = k_BKHE.shape[1]
        keep_probs = any(ctx.needs_input_grad)
        out_BQHE = torch.empty_like(qw_BQHE, memory_format=torch.contiguous_format)
        probs: list[Tensor] = []  # softmax of each block, then its dropout mask if there is one
        buffers: dict[int, tuple[Tensor, Tensor]] = {}
        for doc in range(n_docs):
            qw_HQE, qr_HQE = qw_BQHE[doc].transpose(0, 1), qr_BQHE[doc].transpose(0, 1)
            kt_HEK, v_HKE = k_BKHE[doc].permute(1, 2, 0), v_BKHE[doc].transpose(0, 1)
            for start in range(0, queries, BLOCK):
                stop = min(start + BLOCK, queries)
                size = stop - start
                if size not in buffers:
                    buffers[size] = (
                        qw_BQHE.new_empty(heads, size, keys + size),
                        qw_BQHE.new_empty(heads, size, keys),
                    )
                skewed_HMW, scores_HMK = buffers[size]
                if keep_probs:
                    scores_HMK = torch.empty_like(scores_HMK)
                rt_HEW = r_WHE[queries - stop : queries - stop + keys + size].permute(1, 2, 0)
                torch.bmm(qr_HQE[:, start:stop], rt_HEW, out=skewed_HMW)
                position_HMK = relative_shift(skewed_HMW, keys)
                if seg_BQH is not None and differ_BQK is not None:
                    seg_HM1 = seg_BQH[doc, start:stop].t()[..., None]
                    torch.addcmul(position_HMK, differ_BQK[doc, start:stop], seg_HM1, out=scores_HMK)
                else:
                    scores_HMK.copy_(position_HMK)
                scores_HMK.baddbmm_(qw_HQE[:, start:stop], kt_HEK)
                if mask_BQK is not None:
                    scores_HMK.add_(mask_BQK[doc, start:stop])
                probs_HMK = torch.softmax(scores_HMK, -1, out=scores_HMK)
                if keep_probs:
                    probs.append(probs_HMK)
                if dropout:
                    kept_HMK = random_mask(probs_HMK.shape, dropout)
                    probs_HMK = torch.mul(probs_HMK, kept_HMK, out=buffers[size][1])
                    if keep_probs:
                        probs.append(kept_HMK)
                out_BQHE[doc, start:stop] = torch.bmm(probs_HMK, v_HKE).transpose(0, 1)
        if dropout:
            out_BQHE.mul_(1 / (1 - dropout))
        ctx.dropout = dropout
        ctx.save_for_backward(qw_BQHE, qr_BQHE, k_BKHE, v_BKHE, r_WHE, seg_BQH, differ_BQK, *probs)
        return out_BQHE

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        qw_BQHE, qr_BQHE, k_BKHE, v_BKHE, r_WHE, seg_BQH, differ_BQK, *probs = ctx.saved_tensors
        n_docs, queries, heads, width = qw_BQHE.shape
        keys = k_BKHE.shape[1]
        blocks = iter(probs)
        dout_BQHE = grads[0]
        if ctx.dropout:
            dout_BQHE = dout_BQHE / (1 - ctx.dropout)
        dqw_BQHE, dqr_BQHE = torch.empty_like(qw_BQHE), torch.empty_like(qr_BQHE)
        dk_BKHE, dv_BKHE = torch.empty_like(k_BKHE), torch.empty_like(v_BKHE)
        dr_HWE = r_WHE.new_zeros(heads, r_WHE.shape[0], width)
        dseg_BQH = torch.empty_like(seg_BQH) if seg_BQH is not None else None
        buffers: dict[int, tuple[Tensor, Tensor]] = {}
        for doc in range(n_docs):
            qw_HQE, qr_HQE = qw_BQHE[doc].transpose(0, 1), qr_BQHE[doc].transpose(0, 1)
            k_HKE, vt_HEK = k_BKHE[doc].transpose(0, 1), v_BKHE[doc].permute(1, 2, 0)
            dout_HQE = dout_BQHE[doc].transpose(0, 1)
            dk_HKE, dv_HKE = (r_WHE.new_zeros(heads, keys, width) for _ in range(2))
            for start in range(0, queries, BLOCK):
                stop = min(start + BLOCK, queries)
                size = stop - start
                if size not in buffers:  # where no key belongs to a distance, the gradient stays zero
                    buffers[size] = (
                        qw_BQHE.new_zeros(heads, size, keys + size),
                        qw_BQHE.new_empty(heads, size, keys),
                    )
                dskewed_HMW, scratch_HMK = buffers[size]
                dout_HME = dout_HQE[:, start:stop]
                probs_HMK = next(blocks)
                if ctx.dropout:
                    kept_HMK = next(blocks)
                    dv_HKE.baddbmm_(torch.mul(probs_HMK, kept_HMK, out=scratch_HMK).transpose(1, 2), dout_HME)
                    torch.bmm(dout_HME, vt_HEK, out=scratch_HMK).mul_(kept_HMK)
                else:
                    dv_HKE.baddbmm_(probs_HMK.transpose(1, 2), dout_HME)
                    torch.bmm(dout_HME, vt_HEK, out=scratch_HMK)
                softmax_backward(scratch_HMK, probs_HMK, -1, torch.float32, grad_input=scratch_HMK)
                dscores_HMK = relative_shift(dskewed_HMW, keys).copy_(scratch_HMK)
                if dseg_BQH is not None:
                    scratch_HMK.mul_(differ_BQK[doc, start:stop])
                    dseg_BQH[doc, start:stop] = scratch_HMK.sum(-1).t()
                dqw_BQHE[doc, start:stop] = torch.bmm(dscores_HMK, k_HKE).transpose(0, 1)
                dk_HKE.baddbmm_(dscores_HMK.transpose(1, 2), qw_HQE[:, start:stop])
                near = slice(queries - stop, queries - stop + keys + size)
                dqr_BQHE[doc, start:stop] = torch.bmm(dskewed_HMW, r_WHE[near].transpose(0, 1)).transpose(0, 1)
                dr_HWE[:, near] += torch.bmm(dskewed_HMW.transpose(1, 2), qr_HQE[:, start:stop])
            dk_BKHE[doc], dv_BKHE[doc] = dk_HKE.transpose(0, 1), dv_HKE.transpose(0, 1)
        return dqw_BQHE, dqr_BQHE, dk_BKHE, dv_BKHE, dr_HWE.transpose(0, 1), dseg_BQH, None, None, None


def random_mask(shape: torch.Size, dropout: float) -> Tensor:
    """1 with probability 1 - dropout, else 0, as bytes. One 64-bit random number serves four elements.

    On a CPU, PyTorch draws a double for every element, which takes longer than the attention itself.
    """
    count = shape.numel()
    bits = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:count]
    return bits.ge(round(dropout * 2**16) - 2**15).view(shape).view(torch.uint8)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        kept = random_mask(x.shape, p)
        ctx.p = p
        ctx.save_for_backward(kept)
        return torch.mul(x, kept).mul_(1 / (1 - p))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return torch.mul(grads[0], ctx.saved_tensors[0]).mul_(1 / (1 - ctx.p)), None


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """`F.dropout`, five times as fast in eager mode on a CPU. The probability is rounded to a multiple of 2^-16."""
    if p == 0.0 or not training:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    return _Dropout.apply(x, p)
