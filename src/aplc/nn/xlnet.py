"""XLNet (Yang et al. 2019): Transformer-XL attention over relative positions, read out at the last token.

The same network and the same weight names as `transformers.XLNetModel`, which is the oracle of the tests, in less time:
position keys are projected once for a layer instead of once for every document, attention runs in blocks that fit the
cache (`relative.py`), and the last layer computes only the row that is used. Input is `text <sep> <cls>`, padded on the
*left*, so that the last position is always `<cls>`.

    encoder = XLNet.from_pretrained("folder")
    encoder(input_ids, attention_mask, token_type_ids)      # (B, D)

One thing differs from `transformers` in training: dropout of the position encodings draws one mask for the whole batch
and not one for every document, the price of projecting them once.

Shapes: B documents, T tokens, M tokens of memory, K = M + T keys, Q queries (the last Q of the K positions; T or 1),
W = K + Q distances, D width, H heads, E = D / H.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from aplc.errors import ModelError
from aplc.nn.relative import dropout, relative_attention
from aplc.nn.weights import WEIGHTS, encoder_folder, load_tensors, read_config, read_tensors

log = logging.getLogger(__name__)

_ACTIVATIONS = ("gelu", "relu", "silu", "gelu_new")


@dataclass(frozen=True, kw_only=True)
class XLNetConfig:
    """Sizes and settings under the names of `transformers`' config.json. Defaults are those of xlnet-base-cased.

    `untie_r` and `same_length` are kept for the round trip; they change nothing in a bidirectional model with weights
    of its own in every layer. `bi_data` and `attn_type` other than "bi" would change results and are refused.
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
    """Tokens of memory carried to the next segment; None or 0 for all, as `transformers` has it."""
    reuse_len: int | None = None
    """Only the first so many tokens of a segment enter memory; None or 0 for all."""
    clamp_len: int = -1
    """Distances beyond this count as this; -1 for no limit."""
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
        """From config.json; keys that are no business of the network (summary_type, start_n_top, ...) are ignored."""
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
    """What is added to the scores besides content and position; the same for all layers."""

    mask: Tensor | None
    """(B, Q, K): 0, or a very large negative number where a key is hidden from a query."""
    differ: Tensor | None
    """(B, Q, K): 1 where query and key are of different segments, else 0."""

    def last(self) -> Bias:
        return Bias(*(x if x is None else x[:, -1:] for x in self))

    def at(self, places_BN: Tensor) -> Bias:
        """The rows of these queries."""
        row_B1 = torch.arange(len(places_BN), device=places_BN.device)[:, None]
        return Bias(*(x if x is None else x[row_B1, places_BN] for x in self))


class Keys(NamedTuple):
    """What queries of either stream attend to in one layer."""

    k: Tensor  # (B, K, H, E)
    v: Tensor  # (B, K, H, E)
    r: Tensor  # (W, H, E)


class RelativeAttention(nn.Module):
    """Multi-head attention with relative positions and segments, residual and layer norm included."""

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
        """`query` holds the states of the last Q positions of `keys`, or of `places` among the last T = W - K."""
        p = self.dropout if self.training else 0.0
        scale = self.q.shape[2] ** -0.5
        q_BQHE = _project(query_BQD, self.q) * scale
        seg_BQH = None
        if bias.differ is not None:
            # softmax ignores what is the same for all keys, so "same segment" can score 0 and "other" the difference
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


class XLNet(nn.Module):
    """The encoder. `checkpoint_activations` trades about a third more time for the memory of all but one layer.

    Args:
        config: sizes; `XLNetConfig(d_model=256, n_layer=4, n_head=4, d_inner=1024, vocab_size=8000)` is a small one.
        checkpoint_activations: recompute each layer in the backward pass instead of keeping its intermediate results.
    """

    def __init__(self, config: XLNetConfig, *, checkpoint_activations: bool = False) -> None:
        super().__init__()
        self.config = config
        self.checkpoint_activations = checkpoint_activations
        self.unused_weights: list[str] = []
        self.word_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.mask_emb = nn.Parameter(torch.empty(1, 1, config.d_model))  # input of pretraining's query stream
        self.layer = nn.ModuleList(XLNetLayer(config) for _ in range(config.n_layer))
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """As `transformers` has it; std is `initializer_range`.

        | tensor                                          | distribution   |
        | ----------------------------------------------- | -------------- |
        | word_embedding.weight, mask_emb                 | normal(0, std) |
        | rel_attn.q, k, v, o, r                          | normal(0, std) |
        | rel_attn.r_r_bias, r_s_bias, r_w_bias, seg_embed | normal(0, std) |
        | ff.layer_1.weight, ff.layer_2.weight            | normal(0, std) |
        | ff.layer_1.bias, ff.layer_2.bias                | 0              |
        | layer_norm.weight                               | 1              |
        | layer_norm.bias                                 | 0              |
        """
        for name, parameter in self.named_parameters():
            if name.endswith("layer_norm.weight"):
                parameter.fill_(1.0)
            elif name.endswith(("layer_norm.bias", "layer_1.bias", "layer_2.bias")):
                parameter.zero_()
            else:
                parameter.normal_(0.0, self.config.initializer_range)

    @overload
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = ...,
        token_type_ids: Tensor | None = ...,
        *,
        last_only: bool = ...,
        mems: Sequence[Tensor] | None = ...,
        mem_mask: Tensor | None = ...,
        return_mems: Literal[False] = ...,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = ...,
        token_type_ids: Tensor | None = ...,
        *,
        last_only: bool = ...,
        mems: Sequence[Tensor] | None = ...,
        mem_mask: Tensor | None = ...,
        return_mems: Literal[True],
    ) -> tuple[Tensor, list[Tensor]]: ...

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        last_only: bool = True,
        mems: Sequence[Tensor] | None = None,
        mem_mask: Tensor | None = None,
        return_mems: bool = False,
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Encode a batch.

        Args:
            input_ids: (B, T).
            attention_mask: (B, T), 1 for tokens and 0 for padding, which must be on the left. None: no padding.
            token_type_ids: (B, T), 0 for text and 2 for `<cls>`; only equality matters. None: no segment term at all.
            last_only: return the last token's state (B, D) instead of all (B, T, D).
            mems: what `return_mems` gave for the segment before: for each layer (B, M, D), `transformers`' transposed.
            mem_mask: (B, M), 0 for memory of padding. None: all of it is real.
            return_mems: also return the memory for the segment to come, without gradient.
        """
        mems_out: list[Tensor] | None = [] if return_mems else None
        hidden_BTD = self._run(
            input_ids, attention_mask, token_type_ids, mems, mem_mask, self.config.n_layer, last_only, mems_out
        )
        out = dropout(hidden_BTD, self.config.dropout, self.training)
        out = out[:, -1] if last_only else out
        return out if mems_out is None else (out, mems_out)

    @torch.no_grad()
    def memorize(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        mems: Sequence[Tensor] | None = None,
        mem_mask: Tensor | None = None,
    ) -> list[Tensor]:
        """The memory that `forward` would return, without the last layer, which nobody remembers."""
        mems_out: list[Tensor] = []
        depth = self.config.n_layer - 1
        hidden_BTD = self._run(input_ids, attention_mask, token_type_ids, mems, mem_mask, depth, False, mems_out)
        mems_out.append(self.remember(hidden_BTD, None if mems is None else mems[depth]))
        return mems_out

    def _run(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        mems: Sequence[Tensor] | None,
        mem_mask: Tensor | None,
        depth: int,
        last_only: bool,
        mems_out: list[Tensor] | None,
    ) -> Tensor:
        """The first `depth` layers; what enters each goes into `mems_out`."""
        if attention_mask is not None:
            attention_mask = self._check_padding(attention_mask)
        hidden_BTD = dropout(self.word_embedding(input_ids), self.config.dropout, self.training)
        tokens = input_ids.shape[1]
        n_keys = tokens + (0 if mems is None else mems[0].shape[1])
        bias = make_bias(attention_mask, token_type_ids, tokens, n_keys, mem_mask=mem_mask, dtype=hidden_BTD.dtype)
        positions_WD = self.positions(tokens, n_keys).to(hidden_BTD)
        positions_WD = dropout(positions_WD, self.config.dropout, self.training)
        for i, layer in enumerate(self.layer[:depth]):
            memory_BMD = None if mems is None else mems[i]
            if mems_out is not None:
                mems_out.append(self.remember(hidden_BTD, memory_BMD))
            args = (hidden_BTD, memory_BMD, positions_WD, bias, last_only and i == depth - 1)
            if self.checkpoint_activations and torch.is_grad_enabled():
                hidden_BTD = checkpoint(layer, *args, use_reentrant=False)
            else:
                hidden_BTD = layer(*args)
        return hidden_BTD

    def positions(self, queries: int, keys: int) -> Tensor:
        """Sinusoids of the distances K, K - 1, ..., 1 - Q: (W, D), sines first and cosines after them."""
        device = self.mask_emb.device
        distance_W1 = torch.arange(keys, -queries, -1, device=device, dtype=torch.float32)[:, None]
        if self.config.clamp_len > 0:
            distance_W1 = distance_W1.clamp(-self.config.clamp_len, self.config.clamp_len)
        width = self.config.d_model
        angle = distance_W1 / torch.pow(10000.0, torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
        return torch.cat([angle.sin(), angle.cos()], -1)

    def remember(self, hidden_BTD: Tensor, memory_BMD: Tensor | None) -> Tensor:
        """Memory after a segment: the newest `mem_len` tokens of what was there and what came; also of masks (B, T)."""
        if self.config.reuse_len:
            hidden_BTD = hidden_BTD[:, : self.config.reuse_len]
        joined = hidden_BTD if memory_BMD is None else torch.cat([memory_BMD, hidden_BTD], 1)
        return joined[:, -self.config.mem_len :].detach() if self.config.mem_len else joined.detach()

    @staticmethod
    def _check_padding(mask_BT: Tensor) -> Tensor | None:
        """Refuse padding on the right; drop a mask that hides nothing. Looks at values, so not while compiling."""
        if torch.compiler.is_compiling():
            return mask_BT
        real_BT = mask_BT > 0
        if (real_BT[:, :-1] & ~real_BT[:, 1:]).any():
            raise ValueError(
                "attention_mask has padding to the right of a token; XLNet reads the last position, so pad on the left "
                "(tokenizer.padding_side = 'left')"
            )
        return None if real_BT.all() else real_BT

    @classmethod
    def from_pretrained(cls, name: str | Path, *, checkpoint_activations: bool = False, **changes: Any) -> Self:
        """Load a folder or a hub name; `changes` override config.json, e.g. `dropout=0.0`."""
        folder = encoder_folder(name)
        config = XLNetConfig.from_dict(read_config(folder) | changes)
        model = cls(config, checkpoint_activations=checkpoint_activations)
        model.unused_weights = load_tensors(model, read_tensors(folder), source=folder, prefix="transformer.")
        if model.unused_weights:
            log.info("%s: left over and not used: %s", folder, ", ".join(model.unused_weights))
        return model

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors; `transformers.XLNetModel.from_pretrained` reads them."""
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config.to_dict(), indent=2) + "\n", "utf-8")
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def make_bias(
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    queries: int,
    keys: int,
    *,
    mem_mask: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Bias:
    """Masks and segments of a batch as numbers to add to the scores.

    Memory counts as segment 0. Padding is hidden from all but itself: its own rows keep one key and stay finite.
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
