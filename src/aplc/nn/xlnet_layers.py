"""The parts of XLNet: its settings, one layer, and the masks that every layer shares.

A layer is Transformer-XL's attention over relative positions (`relative.py` computes it) and a feed-forward network,
each with a residual connection and layer norm behind it. Parameters have the names and shapes of
`transformers.XLNetModel`, so that checkpoints load as they are.

Shapes: B documents, T tokens, M tokens of memory, K = M + T keys, Q queries (the last Q of the K positions; T or 1),
W = K + Q distances, D width, H heads, E = D / H.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aplc.errors import ModelError
from aplc.nn.relative import dropout, relative_attention

_ACTIVATIONS = ("gelu", "relu", "silu", "gelu_new")


@dataclass(frozen=True, kw_only=True)
class XLNetConfig:
    """Sizes and settings under the names of `transformers`' config.json. Defaults are those of xlnet-base-cased.

    `untie_r` and `same_length` have no effect on a bidirectional model whose layers have their own biases; they are
    kept so that a config is saved as it was read. `bi_data` and `attn_type` other than "bi" would change results and
    are refused.
    """

    vocab_size: int = 32000
    d_model: int = 768
    n_layer: int = 12
    n_head: int = 12
    d_inner: int = 3072
    ff_activation: str = "gelu"
    dropout: float = 0.1
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    mem_len: int | None = None
    """Tokens of memory carried to the next segment; None or 0 for all, as in `transformers`."""
    reuse_len: int | None = None
    """How many of a segment's first tokens enter memory; None or 0 for all."""
    clamp_len: int = -1
    """Larger distances are treated as this one; -1 for no limit."""
    attn_type: str = "bi"
    bi_data: bool = False
    same_length: bool = False
    untie_r: bool = True
    pad_token_id: int = 5
    bos_token_id: int = 1
    eos_token_id: int = 2

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "n_layer", "n_head", "d_inner"):
            if getattr(self, name) < 1:
                raise ModelError(f"XLNet: {name} must be at least 1, not {getattr(self, name)}")
        if self.d_model % self.n_head or self.d_model % 2:
            raise ModelError(f"XLNet: d_model {self.d_model} must be even and a multiple of n_head {self.n_head}")
        if not 0 <= self.dropout < 1:
            raise ModelError(f"XLNet: dropout must be in [0, 1), not {self.dropout}")
        if self.ff_activation not in _ACTIVATIONS:
            raise ModelError(f"XLNet: ff_activation {self.ff_activation!r} is not one of {', '.join(_ACTIVATIONS)}")
        if self.attn_type != "bi":
            raise ModelError(
                f"XLNet: attn_type {self.attn_type!r} is not supported, only 'bi' (every token sees all others)"
            )
        if self.bi_data:
            raise ModelError(
                "XLNet: bi_data=true (half of every batch read backwards) is not supported; set it to false"
            )

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_head

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> Self:
        """From config.json; keys that don't concern the network (summary_type, start_n_top, ...) are ignored."""
        if (kind := config.get("model_type", "xlnet")) != "xlnet":
            raise ModelError(f"config.json is of model_type {kind!r}, not 'xlnet'")
        names = {field.name for field in dataclasses.fields(cls)}
        made = cls(**{name: value for name, value in config.items() if name in names})
        if config.get("d_head") not in (None, made.d_head):
            raise ModelError(f"XLNet: d_head {config['d_head']} must be d_model / n_head = {made.d_head}")
        return made

    def to_dict(self) -> dict[str, Any]:
        return {
            "model_type": "xlnet",
            "architectures": ["XLNetModel"],
            "d_head": self.d_head,
            **dataclasses.asdict(self),
        }


class Bias(NamedTuple):
    """Masks and segments, which change the attention scores in the same way in all layers."""

    mask: Tensor | None
    """(B, Q, K), added to the scores: 0, or a very large negative number where a key is hidden from a query."""
    differ: Tensor | None
    """(B, Q, K): 1 where query and key are in different segments, else 0."""

    def last(self) -> Bias:
        """For the last query alone."""
        return Bias(*(x if x is None else x[:, -1:] for x in self))

    def at(self, places_BN: Tensor) -> Bias:
        """For the queries at these places, (B, N, K)."""
        doc_B1 = torch.arange(len(places_BN), device=places_BN.device)[:, None]
        return Bias(*(x if x is None else x[doc_B1, places_BN] for x in self))


class Keys(NamedTuple):
    """What the queries of one layer attend to; in pretraining, those of both streams."""

    k: Tensor  # (B, K, H, E)
    v: Tensor  # (B, K, H, E)
    r: Tensor  # (W, H, E)


class RelativeAttention(nn.Module):
    """Multi-head attention with relative positions and segments, followed by residual and layer norm."""

    def __init__(self, config: XLNetConfig) -> None:
        super().__init__()
        shape = (config.d_model, config.n_head, config.d_head)
        self.q, self.k, self.v, self.o, self.r = (nn.Parameter(torch.empty(shape)) for _ in range(5))
        self.r_r_bias, self.r_s_bias, self.r_w_bias = (nn.Parameter(torch.empty(shape[1:])) for _ in range(3))
        self.seg_embed = nn.Parameter(torch.empty(2, *shape[1:]))
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.dropout = config.dropout

    def keys(self, context_BKD: Tensor, positions_WD: Tensor) -> Keys:
        return Keys(_project(context_BKD, self.k), _project(context_BKD, self.v), _project(positions_WD, self.r))

    def forward(self, query_BQD: Tensor, keys: Keys, bias: Bias, places_BQ: Tensor | None = None) -> Tensor:
        """`query_BQD`: the states of the last Q positions, or of the positions `places_BQ` among the last T = W - K."""
        p = self.dropout if self.training else 0.0
        scale = self.q.shape[2] ** -0.5
        q_BQHE = _project(query_BQD, self.q) * scale
        seg_BQH = None
        if bias.differ is not None:
            # softmax ignores what all keys share, so "same segment" may score 0 and "other segment" the difference
            seg_HE = self.seg_embed[1] - self.seg_embed[0]
            seg_BQH = torch.einsum("bqhe,he->bqh", q_BQHE, seg_HE) + scale * (self.r_s_bias * seg_HE).sum(-1)
        queries, n_keys = query_BQD.shape[1], keys.k.shape[1]
        out_BQHE = relative_attention(
            q_BQHE + scale * self.r_w_bias,
            q_BQHE + scale * self.r_r_bias,
            keys.k,
            keys.v,
            keys.r[: n_keys + queries] if places_BQ is None else keys.r,  # distances K ... 1 - Q, or 1 - T
            seg_BQH=seg_BQH,
            differ_BQK=bias.differ,
            mask_BQK=bias.mask,
            places_BQ=places_BQ,
            dropout=p,
        )
        out_BQD = out_BQHE.flatten(2) @ self.o.flatten(1).t()  # o is stored as (D, H, E)
        return self.layer_norm(dropout(out_BQD, p, True) + query_BQD)


def _project(x: Tensor, weight_DHE: Tensor) -> Tensor:
    """(..., D) -> (..., H, E) as one matrix product."""
    return (x @ weight_DHE.flatten(1)).unflatten(-1, weight_DHE.shape[1:])


class FeedForward(nn.Module):
    def __init__(self, config: XLNetConfig) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.layer_1 = nn.Linear(config.d_model, config.d_inner)
        self.layer_2 = nn.Linear(config.d_inner, config.d_model)
        self.activation = config.ff_activation
        self.dropout = config.dropout

    def forward(self, x_BQD: Tensor) -> Tensor:
        inner = self.layer_1(x_BQD)
        if self.activation == "gelu_new":
            inner = F.gelu(inner, approximate="tanh")
        else:
            inner = getattr(F, self.activation)(inner)
        inner = dropout(inner, self.dropout, self.training)
        return self.layer_norm(dropout(self.layer_2(inner), self.dropout, self.training) + x_BQD)


class XLNetLayer(nn.Module):
    def __init__(self, config: XLNetConfig) -> None:
        super().__init__()
        self.rel_attn = RelativeAttention(config)
        self.ff = FeedForward(config)

    def forward(
        self, hidden_BTD: Tensor, memory_BMD: Tensor | None, positions_WD: Tensor, bias: Bias, last_only: bool = False
    ) -> Tensor:
        context_BKD = hidden_BTD if memory_BMD is None else torch.cat([memory_BMD, hidden_BTD], 1)
        keys = self.rel_attn.keys(context_BKD, positions_WD)
        if last_only:
            hidden_BTD, bias = hidden_BTD[:, -1:], bias.last()
        return self.ff(self.rel_attn(hidden_BTD, keys, bias))


def make_bias(
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    queries: int,
    keys: int,
    *,
    mem_mask: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Bias:
    """Masks and segments of a batch, for `queries` tokens that see `keys` positions.

    Memory is in segment 0. Padding is hidden from every token but itself: with one key left its softmax is finite.
    """
    memory = keys - queries
    mask_BQK = differ_BQK = None
    if token_type_ids is not None:
        key_type = F.pad(token_type_ids, (memory, 0))
        differ_BQK = (token_type_ids[:, :, None] != key_type[:, None]).to(dtype)
    if attention_mask is not None or mem_mask is not None:
        mask = attention_mask if attention_mask is not None else mem_mask
        assert mask is not None
        ones = [mask.new_ones(mask.shape[0], n, dtype=torch.bool) for n in (memory, queries)]
        own = attention_mask > 0 if attention_mask is not None else ones[1]
        seen_BK = torch.cat([mem_mask > 0 if mem_mask is not None else ones[0], own], 1)
        itself_QK = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).triu(memory).tril(memory)
        seen_BQK = seen_BK[:, None] | itself_QK
        hidden = max(-1e30, torch.finfo(dtype).min)
        mask_BQK = torch.zeros(seen_BQK.shape, dtype=dtype, device=mask.device).masked_fill(~seen_BQK, hidden)
    return Bias(mask_BQK, differ_BQK)
