"""XLNet (Yang et al. 2019): Transformer-XL attention over relative positions, read out at the last token.

The same network and the same weight names as `transformers.XLNetModel`, against which the tests compare it, but faster:
position keys are projected once per layer instead of once per document, attention runs in blocks that fit the cache
(`relative.py`), and the last layer computes only the token that is read. Input is `text <sep> <cls>`, padded on the
*left*, so that the last position is always `<cls>`.

    encoder = XLNet.from_pretrained("folder")
    encoder(input_ids, attention_mask, token_type_ids)      # (B, D)

Training differs from `transformers` in one way, the price of projecting position keys once: dropout of the position
encodings draws one mask for the whole batch, not one for every document.

Shapes: B documents, T tokens, M tokens of memory, K = M + T keys, W = K + T distances, D width.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from aplc.files import atomic_path, write_json
from aplc.nn.relative import dropout
from aplc.nn.weights import WEIGHTS, encoder_folder, load_tensors, read_config, read_tensors
from aplc.nn.xlnet_layers import Bias, XLNetConfig, XLNetLayer, make_bias

__all__ = ["Bias", "XLNet", "XLNetConfig", "XLNetLayer", "make_bias"]

log = logging.getLogger(__name__)


class XLNet(nn.Module):
    """The encoder.

    Args:
        config: sizes; `XLNetConfig(d_model=256, n_layer=4, n_head=4, d_inner=1024, vocab_size=8000)` is a small one.
        checkpoint_activations: recompute each layer in the backward pass instead of keeping its intermediate results.
            Training takes about a third longer and needs the memory of one layer's activations instead of all layers'.
    """

    def __init__(self, config: XLNetConfig, *, checkpoint_activations: bool = False) -> None:
        super().__init__()
        self.config = config
        self.checkpoint_activations = checkpoint_activations
        self.unused_weights: list[str] = []
        self.word_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.mask_emb = nn.Parameter(torch.empty(1, 1, config.d_model))  # what pretraining's query stream starts from
        self.layer = nn.ModuleList(XLNetLayer(config) for _ in range(config.n_layer))
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """The same as in `transformers`; std is `initializer_range`.

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

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        last_only: bool = True,
        mems: Sequence[Tensor] | None = None,
        mem_mask: Tensor | None = None,
    ) -> Tensor:
        """Encode a batch.

        Args:
            input_ids: (B, T).
            attention_mask: (B, T), 1 for tokens and 0 for padding, which must be on the left. None: no padding.
            token_type_ids: (B, T), 0 for text and 2 for `<cls>`; only equality matters. None: no segment term.
            last_only: return the last token's state (B, D) instead of all (B, T, D).
            mems: what `memorize` returned for the previous segment: (B, M, D) for each layer. `transformers` has the
                first two dimensions the other way round.
            mem_mask: (B, M), 0 where the memory is of padding. None: no padding.
        """
        depth = self.config.n_layer
        hidden_BTD = self._run(input_ids, attention_mask, token_type_ids, mems, mem_mask, depth, last_only, None)
        out = dropout(hidden_BTD, self.config.dropout, self.training)
        return out[:, -1] if last_only else out

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
        """The memory for the next segment, without gradient. The last layer is skipped: its output never enters it."""
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
        """Run the first `depth` layers. `mems_out` collects each layer's memory, made of its inputs."""
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
        """Sinusoids of the distances K, K - 1, ..., 1 - Q, (W, D): sines in the first half, cosines in the second."""
        device = self.mask_emb.device
        distance_W1 = torch.arange(keys, -queries, -1, device=device, dtype=torch.float32)[:, None]
        if self.config.clamp_len > 0:
            distance_W1 = distance_W1.clamp(-self.config.clamp_len, self.config.clamp_len)
        width = self.config.d_model
        angle = distance_W1 / torch.pow(10000.0, torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
        return torch.cat([angle.sin(), angle.cos()], -1)

    def remember(self, hidden_BTD: Tensor, memory_BMD: Tensor | None) -> Tensor:
        """Memory after a segment: the last `mem_len` tokens of old memory and segment. Works on masks (B, T) too."""
        if self.config.reuse_len:
            hidden_BTD = hidden_BTD[:, : self.config.reuse_len]
        joined = hidden_BTD if memory_BMD is None else torch.cat([memory_BMD, hidden_BTD], 1)
        return joined[:, -self.config.mem_len :].detach() if self.config.mem_len else joined.detach()

    @staticmethod
    def _check_padding(mask_BT: Tensor) -> Tensor | None:
        """Refuse padding on the right, and drop a mask that hides nothing. Compiled graphs can't look at values."""
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
            log.info("%s: tensors that the encoder doesn't use: %s", folder, ", ".join(model.unused_weights))
        return model

    def save_pretrained(self, folder: str | Path) -> None:
        """Write config.json and model.safetensors; `transformers.XLNetModel.from_pretrained` reads them."""
        folder = Path(folder)
        write_json(folder / "config.json", self.config.to_dict())
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        with atomic_path(folder / WEIGHTS) as temporary:
            save_file(tensors, temporary, metadata={"format": "pt"})
