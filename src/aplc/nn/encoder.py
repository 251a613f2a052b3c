"""Any encoder behind one interface: a batch of tokens in, one vector per document out.

XLNet, new or from a checkpoint, runs on our own implementation; every other family goes through `transformers`. Which
token's state becomes the document's vector is decided in `pooling.py`.

What happens to documents longer than `max_length` is the setting `data.long_text`:

* truncate: they were cut when the batch was made (as in the paper).
* memory: segments of `max_length` from left to right, each seeing what the layers computed for the earlier ones
  (Transformer-XL). The *first* segment is the short one, so that the last has a full memory. No gradient flows into
  memory, so all segments but the last run without gradients and without the last layer.
* windows: pieces of about equal length, each with its own special tokens. They are encoded like documents, and their
  vectors are averaged.

With memory and windows, a batch holds whole documents of up to `max_tokens` tokens.

Shapes: B documents, T tokens, R windows of all documents, D width.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aplc.config import EncoderConfig, ModelConfig
from aplc.errors import ModelError, needs
from aplc.nn.distributed import world
from aplc.nn.pooling import average_windows, choose_pooling, longest_document, pool
from aplc.nn.weights import encoder_folder, read_config, weight_files
from aplc.nn.xlnet import XLNet, XLNetConfig

MAX_SEGMENTS = 8
"""Segments or windows that are read of a long document; the rest is cut off."""

_CODE_KEYS = {
    *("auto_map", "attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation"),
    *("quantization_config", "use_kernels"),
}
"""Keys of config.json that make `transformers` fetch or choose code."""

_POSITIONS_START_AFTER_PAD = {"camembert", "longformer", "mpnet", "roberta", "xlm-roberta"}


class Encoder(nn.Module):
    """Documents to vectors. Use `build_encoder`, or `from_config` if the weights are loaded afterwards."""

    body: Any
    """An `XLNet`, or what `transformers` has for another family."""

    def __init__(
        self,
        body: nn.Module,
        *,
        family: str,
        pooling: str,
        reason: str,
        source: str,
        long_text: str = "truncate",
        max_length: int = 512,
        max_segments: int = MAX_SEGMENTS,
    ) -> None:
        super().__init__()
        if pooling not in ("last", "first", "mean"):
            raise ModelError(f"model.pooling = {pooling!r}: must be one of 'auto', 'last', 'first', 'mean'")
        if long_text not in ("truncate", "memory", "windows"):
            raise ModelError(f"data.long_text = {long_text!r}: must be one of 'truncate', 'memory', 'windows'")
        if long_text == "memory" and not isinstance(body, XLNet):
            raise ModelError(
                f"data.long_text = 'memory' needs an XLNet, and {source} is {family!r}; "
                f"pass --set data.long_text=windows"
            )
        if long_text == "memory" and pooling != "last":
            raise ModelError(
                f"data.long_text = 'memory' reads the last token; pass --set model.pooling=last, not {pooling}"
            )
        self.body = body
        self.family, self.pooling, self.reason, self.source = family, pooling, reason, source
        self.long_text, self.max_length, self.max_segments = long_text, max_length, max_segments
        self.pad_left = isinstance(body, XLNet)
        self.in_bfloat16 = False
        # Special tokens before and after the text: `text <sep> <cls>` or `[CLS] text [SEP]`.
        self.specials = (0, 2) if self.pad_left else (1, 1)
        if isinstance(body, XLNet):
            self.width = body.config.d_model
            body.mask_emb.requires_grad_(False)  # pretraining's; data parallelism would wait for its gradient
        else:
            self.width = int(self.body.config.hidden_size)
            self._attention = self.body.config._attn_implementation
            self._takes_types = "token_type_ids" in inspect.signature(body.forward).parameters
            _check_length(self.body.config, max_length, source)

    @property
    def max_tokens(self) -> int:
        """The longest document that a batch may hold, special tokens included."""
        return longest_document(self.long_text, self.max_length, self.max_segments, self.specials)

    @property
    def description(self) -> str:
        """One line for the log: family, size, pooling with its reason, and what happens to long texts."""
        weights = sum(parameter.numel() for parameter in self.parameters())
        long_text = {
            "truncate": f"texts cut at {self.max_length} tokens",
            "memory": f"long texts in up to {self.max_segments} segments of {self.max_length} tokens with memory",
            "windows": f"long texts in up to {self.max_segments} windows of {self.max_length} tokens, averaged",
        }[self.long_text]
        unused = getattr(self.body, "unused_weights", [])
        left_over = f"; not used: {', '.join(unused[:3])}{', ...' if len(unused) > 3 else ''}" if unused else ""
        return (
            f"{self.family} ({self.source}), width {self.width}, {weights / 1e6:.1f} M weights; pooling {self.pooling} "
            f"({self.reason}); {long_text}{left_over}"
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """(B, T) each -> (B, D). Documents are padded on the left for XLNet (`pad_left`), else on the right."""
        if input_ids.shape[1] <= self.max_length:
            return self.encode(input_ids, attention_mask, token_type_ids)
        if self.long_text == "truncate" or input_ids.shape[1] > self.max_tokens:
            raise ValueError(
                f"documents of {input_ids.shape[1]} tokens, but with data.long_text = {self.long_text!r} and "
                f"data.max_length = {self.max_length} this encoder reads {self.max_tokens}: cut them when batches are "
                f"made"
            )
        if self.long_text == "memory":
            return self._with_memory(input_ids, attention_mask, token_type_ids)
        return average_windows(
            self.encode, input_ids, attention_mask, token_type_ids, self.max_length, self.specials, self.pad_left
        )

    def encode(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """`forward` of documents of at most `max_length` tokens."""
        if isinstance(self.body, XLNet):
            if self.pooling == "last":
                return self.body(input_ids, attention_mask, token_type_ids)
            states_BTD = self.body(input_ids, attention_mask, token_type_ids, last_only=False)
            return pool(states_BTD, attention_mask, self.pooling, pad_left=self.pad_left)
        types = {"token_type_ids": token_type_ids} if self._takes_types and token_type_ids is not None else {}
        with torch.autocast("cpu", torch.bfloat16, enabled=self.in_bfloat16):
            states_BTD = self.body(input_ids=input_ids, attention_mask=attention_mask, **types).last_hidden_state
        states_BTD = states_BTD.float() if self.in_bfloat16 else states_BTD
        return pool(states_BTD, attention_mask, self.pooling, pad_left=self.pad_left)

    @property
    def gains_by_bfloat16(self) -> bool:
        """Whether this CPU has products in bfloat16, and the encoder is not our own XLNet, which is fast in float32."""
        made_for_it = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return world().device.type == "cpu" and made_for_it and not isinstance(self.body, XLNet)

    def train_in_bfloat16(self) -> None:
        """Products of an encoder of `transformers` in bfloat16 from now on, on a CPU that has instructions for it."""
        self.in_bfloat16 = True
        self.train(self.training)

    def train(self, mode: bool = True) -> Self:
        """In bfloat16 attention is written out while training: the gradient of PyTorch's fused one takes four times as
        long there. Without gradients the fused one is the faster."""
        if self.in_bfloat16:
            self.body.set_attn_implementation("eager" if mode else self._attention)
        return super().train(mode)

    def checkpoint_activations(self, on: bool) -> None:
        """Whether the backward pass computes each layer's activations again instead of keeping them."""
        if isinstance(self.body, XLNet):
            self.body.checkpoint_activations = on
        elif on:
            self.body.gradient_checkpointing_enable()
        else:
            self.body.gradient_checkpointing_disable()

    def _with_memory(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None) -> Tensor:
        body, length = self.body, self.max_length
        assert isinstance(body, XLNet)
        missing = -input_ids.shape[1] % length
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        parts = [F.pad(x, (missing, 0)).split(length, 1) for x in (input_ids, attention_mask, token_type_ids)]
        segments = list(zip(*parts, strict=True))
        mems: list[Tensor] | None = None
        mem_mask: Tensor | None = None
        for ids, mask, types in segments[:-1]:
            # For a short document this segment is all padding, which memory hides: skip it.
            docs = mask.any(1).nonzero().squeeze(1)
            given = None if mems is None else [memory[docs] for memory in mems]
            given_mask = None if mem_mask is None else mem_mask[docs]
            new = body.memorize(ids[docs], mask[docs], types[docs], mems=given, mem_mask=given_mask)
            mem_mask = body.remember(mask, mem_mask)
            mems = [memory.new_zeros(len(mask), *memory.shape[1:]).index_copy(0, docs, memory) for memory in new]
        ids, mask, types = segments[-1]
        return body(ids, mask, types, mems=mems, mem_mask=mem_mask)

    def save_config(self) -> dict[str, Any]:
        """What `from_config` needs to build the same network again, without weights."""
        return {
            **{name: getattr(self, name) for name in ("family", "pooling", "reason", "source")},
            **{name: getattr(self, name) for name in ("long_text", "max_length", "max_segments")},
            "config": self.body.config.to_dict(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The network that `save_config` described, with random weights. Works offline and without the checkpoint."""
        settings = {name: value for name, value in config.items() if name != "config"}
        if config["family"] != config["config"]["model_type"]:
            kind = config["config"]["model_type"]
            raise ModelError(f"encoder: family is {config['family']!r}, but its config has model_type {kind!r}")
        if config["family"] == "xlnet":
            body: nn.Module = XLNet(XLNetConfig.from_dict(config["config"]))
        else:
            transformers = _transformers()
            # The folder may be untrusted: nothing in it may choose the code that runs.
            known = {name: value for name, value in config["config"].items() if name not in _CODE_KEYS}
            made = transformers.AutoConfig.for_model(**known)
            body = _without_pooler(transformers.AutoModel.from_config(made))
        return cls(body, **settings)


def build_encoder(
    model: ModelConfig,
    *,
    vocab_size: int,
    long_text: str = "truncate",
    max_length: int = 512,
    max_segments: int = MAX_SEGMENTS,
) -> Encoder:
    """The encoder that `model` describes, new or with the weights of a folder or hub name.

    `vocab_size` is the tokenizer's; an encoder with another vocabulary is refused.
    """
    body: nn.Module
    if model.encoder == "new":
        family, source, folder = "xlnet", "new, random weights", None
        body = new_xlnet(model, vocab_size=vocab_size, memory=max_length)
    else:
        folder = encoder_folder(model.encoder)
        settings = read_config(folder)
        source = model.encoder
        family = str(settings.get("model_type") or "")
        if not family:
            raise ModelError(
                f"{folder / 'config.json'} has no model_type; is {folder} an encoder saved by transformers?"
            )
        weight_files(folder)  # raises if there are none; transformers would look for a pickle
        n_embeddings = int(settings.get("vocab_size", vocab_size))
        _check_vocabulary(n_embeddings, vocab_size, folder, exact=family == "xlnet")
        if family == "xlnet":
            body = XLNet.from_pretrained(folder, dropout=model.dropout)
        else:
            body = _load_transformers(folder, model.dropout)
    pooling, reason = choose_pooling(family, folder, source)
    if model.pooling not in ("auto", pooling):
        pooling, reason = model.pooling, f"as model.pooling says; {family} would use {pooling}"
    encoder = Encoder(
        body,
        family=family,
        pooling=pooling,
        reason=reason,
        source=source,
        long_text=long_text,
        max_length=max_length,
        max_segments=max_segments,
    )
    if model.checkpoint_activations:
        encoder.checkpoint_activations(True)
    return encoder


def new_xlnet(model: EncoderConfig, *, vocab_size: int, memory: int | None) -> XLNet:
    """An XLNet of the size that `model` gives, with random weights."""
    config = XLNetConfig(
        vocab_size=vocab_size,
        d_model=model.width,
        n_layer=model.layers,
        n_head=model.heads,
        d_inner=model.inner_width,
        dropout=model.dropout,
        mem_len=memory,
    )
    return XLNet(config, checkpoint_activations=model.checkpoint_activations)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ModelError(needs("an encoder other than XLNet", "transformers")) from error
    return transformers


def _load_transformers(folder: Path, dropout: float) -> nn.Module:
    transformers = _transformers()
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # it prints a table about poolers; missing weights are reported below
    had_bars = transformers.logging.is_progress_bar_enabled()
    transformers.logging.disable_progress_bar()  # it draws one also where there is no terminal
    # Unless it is told, it asks on standard input whether to run a folder's own code.
    safely: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        names = transformers.AutoConfig.from_pretrained(folder, **safely).to_dict()
        dropouts = {name: dropout for name in names if "dropout" in name or name.endswith("pdrop")}
        body, info = transformers.AutoModel.from_pretrained(
            folder,
            **safely,
            use_safetensors=True,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            **dropouts,
        )
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise ModelError(
                f"{folder / 'config.json'}: names code of its own (auto_map), which aplc does not run; choose an "
                "encoder of a family that transformers itself has"
            ) from None
        raise ModelError(f"transformers can't load {folder}: {' '.join(str(error).split())[:200]}") from error
    finally:
        transformers.logging.set_verbosity(verbosity)
        if had_bars:
            transformers.logging.enable_progress_bar()
    for name, found, wanted in sorted(info["mismatched_keys"]):
        raise ModelError(
            f"{folder}: {name} has shape {tuple(found)} but config.json asks for {tuple(wanted)}; weights and "
            f"config.json are of different models"
        )
    missing = sorted(name for name in info["missing_keys"] if not name.startswith("pooler."))
    if missing:
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise ModelError(
            f"{folder}: {len(missing)} tensors are missing from the weights ({some}); do they belong to another model?"
        )
    return _without_pooler(body)


def _without_pooler(body: Any) -> nn.Module:
    """Drop BERT's pooling head: `pool` does its job, and data parallelism would wait for its weights' gradients."""
    if isinstance(getattr(body, "pooler", None), nn.Module):
        body.pooler = None
    return body


def _check_vocabulary(n_embeddings: int, vocab_size: int, folder: Path, *, exact: bool) -> None:
    # Some families round up (DeBERTa has 128,100 embeddings for 128,001 pieces); XLNet's number is exact.
    spare = 0 if exact else min(128, n_embeddings // 100)
    if not 0 <= n_embeddings - vocab_size <= spare:
        raise ModelError(
            f"{folder}: the tokenizer has {vocab_size:,} pieces and the encoder {n_embeddings:,} embeddings; they are "
            f"of different models. Put the tokenizer of these weights (spiece.model or tokenizer.json) into {folder}"
        )


def _check_length(config: Any, max_length: int, source: str) -> None:
    limit = int(getattr(config, "max_position_embeddings", -1) or -1)
    if config.model_type in _POSITIONS_START_AFTER_PAD:
        limit -= int(config.pad_token_id or 0) + 1
    if 0 < limit < max_length:
        raise ModelError(
            f"data.max_length = {max_length}, but {source} reads at most {limit} tokens; pass "
            f"--set data.max_length={limit}, and --set data.long_text=windows to read the rest of long texts"
        )
