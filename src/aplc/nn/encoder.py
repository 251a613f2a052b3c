"""Any encoder behind one interface: a batch of tokens in, one vector a document out.

XLNet, new or from a checkpoint, runs on our own implementation; every other family goes through `transformers`. Which
state stands for the document depends on how a family was trained, so it is chosen here and said (`description`).

Documents longer than `max_length` (`data.long_text`):

* truncate: the batch is cut already (the paper's way).
* memory: segments of `max_length` from left to right, each seeing what the layers computed for the ones before it
  (Transformer-XL). The *first* segment is the short one, so the last is full of context. No gradient flows into memory,
  so all but the last segment run without one and without their last layer.
* windows: pieces of like length, each with its own special tokens, encoded as documents of their own and averaged.

For memory and windows a batch holds whole documents of up to `max_tokens` tokens.

Shapes: B documents, T tokens, L = max_length, R windows of all documents, D width.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aplc.config import EncoderConfig, ModelConfig
from aplc.errors import ModelError
from aplc.nn.weights import encoder_folder, read_config, weight_files
from aplc.nn.xlnet import XLNet, XLNetConfig

MAX_SEGMENTS = 8
_FIRST = {
    *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "longformer"),
    *("modernbert", "roberta", "xlm-roberta"),
}
_NAMES_CODE = {
    *("auto_map", "attn_implementation", "_attn_implementation", "experts_implementation", "_experts_implementation"),
    *("quantization_config", "use_kernels"),
}
_POSITIONS_START_AFTER_PAD = {"camembert", "longformer", "mpnet", "roberta", "xlm-roberta"}


class Encoder(nn.Module):
    """Documents to vectors. Made by `build_encoder`, or by `from_config` for weights that come from elsewhere."""

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
        self.specials = (
            (0, 2) if self.pad_left else (1, 1)
        )  # before and after the text: `text <sep> <cls>`, `[CLS] text [SEP]`
        if isinstance(body, XLNet):
            self.width = body.config.d_model
            body.mask_emb.requires_grad_(False)  # pretraining's; without a gradient data parallelism would wait for it
        else:
            config: Any = body.config
            self.width = int(config.hidden_size)
            self._takes_types = "token_type_ids" in inspect.signature(body.forward).parameters
            _check_length(config, max_length, source)

    @property
    def max_tokens(self) -> int:
        """The longest row a batch may hold, special tokens included."""
        if self.long_text == "windows":
            extra = sum(self.specials)
            return extra + self.max_segments * (self.max_length - extra)
        return self.max_length * (self.max_segments if self.long_text == "memory" else 1)

    @property
    def description(self) -> str:
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
        """(B, T) each -> (B, D). Rows are padded on the left for XLNet (`pad_left`), else on the right."""
        if input_ids.shape[1] <= self.max_length:
            return self._encode(input_ids, attention_mask, token_type_ids)
        if self.long_text == "truncate" or input_ids.shape[1] > self.max_tokens:
            raise ValueError(
                f"rows of {input_ids.shape[1]} tokens, but with data.long_text = {self.long_text!r} and data.max_length"
                f" = {self.max_length} this encoder reads {self.max_tokens}: cut them when batches are made"
            )
        if self.long_text == "memory":
            return self._with_memory(input_ids, attention_mask, token_type_ids)
        return self._in_windows(input_ids, attention_mask, token_type_ids)

    def _encode(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None) -> Tensor:
        if isinstance(self.body, XLNet):
            if self.pooling == "last":
                return self.body(input_ids, attention_mask, token_type_ids)
            states_BTD = self.body(input_ids, attention_mask, token_type_ids, last_only=False)
        else:
            types = {"token_type_ids": token_type_ids} if self._takes_types and token_type_ids is not None else {}
            states_BTD = self.body(input_ids=input_ids, attention_mask=attention_mask, **types).last_hidden_state
        return pool(states_BTD, attention_mask, self.pooling, pad_left=self.pad_left)

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
            # A short document is all padding here. Its memory stays hidden, so nothing needs to be computed for it.
            rows = mask.any(1).nonzero().squeeze(1)
            given = None if mems is None else [memory[rows] for memory in mems]
            given_mask = None if mem_mask is None else mem_mask[rows]
            new = body.memorize(ids[rows], mask[rows], types[rows], mems=given, mem_mask=given_mask)
            mem_mask = body.remember(mask, mem_mask)
            mems = [memory.new_zeros(len(mask), *memory.shape[1:]).index_copy(0, rows, memory) for memory in new]
        ids, mask, types = segments[-1]
        return body(ids, mask, types, mems=mems, mem_mask=mem_mask)

    def _in_windows(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None) -> Tensor:
        source_RT, mask_RT, doc_R, n_B = split_windows(
            attention_mask, self.max_length, specials=self.specials, pad_left=self.pad_left
        )
        ids_RT = input_ids[doc_R[:, None], source_RT]
        types_RT = None if token_type_ids is None else token_type_ids[doc_R[:, None], source_RT]
        vectors_RD = self._encode(ids_RT, mask_RT, types_RT)
        sum_BD = vectors_RD.new_zeros(len(input_ids), self.width).index_add(0, doc_R, vectors_RD)
        return sum_BD / n_B[:, None]

    def save_config(self) -> dict[str, Any]:
        """All that `from_config` needs to build the same network again, weights aside."""
        body: Any = self.body
        return {
            **{name: getattr(self, name) for name in ("family", "pooling", "reason", "source")},
            **{name: getattr(self, name) for name in ("long_text", "max_length", "max_segments")},
            "config": body.config.to_dict(),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], *, checkpoint_activations: bool = False) -> Self:
        """The network of `save_config` with random weights; needs neither the original checkpoint nor a network."""
        settings = {name: value for name, value in config.items() if name != "config"}
        if config["family"] != config["config"]["model_type"]:
            raise ModelError(f"encoder: family {config['family']!r} is not its model_type")
        if config["family"] == "xlnet":
            body: nn.Module = XLNet(
                XLNetConfig.from_dict(config["config"]), checkpoint_activations=checkpoint_activations
            )
        else:
            transformers = _transformers()
            # A folder may come from anywhere: nothing in it may name code to be fetched.
            known = {name: value for name, value in config["config"].items() if name not in _NAMES_CODE}
            made = transformers.AutoConfig.for_model(**known)
            loaded = transformers.AutoModel.from_config(made)
            if checkpoint_activations:
                loaded.gradient_checkpointing_enable()
            body = _without_pooler(loaded)
        return cls(body, **settings)


def build_encoder(
    model: ModelConfig,
    *,
    vocab_size: int,
    long_text: str = "truncate",
    max_length: int = 512,
    max_segments: int = MAX_SEGMENTS,
) -> Encoder:
    """The encoder that `model` asks for, new or with the weights of a folder or hub name.

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
        weight_files(folder)  # before transformers looks for a pickle
        rows = int(settings.get("vocab_size", vocab_size))
        _check_vocabulary(rows, vocab_size, folder, exact=family == "xlnet")
        if family == "xlnet":
            body = XLNet.from_pretrained(
                folder, checkpoint_activations=model.checkpoint_activations, dropout=model.dropout
            )
        else:
            body = _load_transformers(folder, checkpoint_activations=model.checkpoint_activations)
    pooling, reason = choose_pooling(family, folder, source)
    if model.pooling not in ("auto", pooling):
        pooling, reason = model.pooling, f"as model.pooling says; {family} would use {pooling}"
    return Encoder(
        body,
        family=family,
        pooling=pooling,
        reason=reason,
        source=source,
        long_text=long_text,
        max_length=max_length,
        max_segments=max_segments,
    )


def new_xlnet(model: EncoderConfig, *, vocab_size: int, memory: int | None) -> XLNet:
    """An XLNet of the size that `model` asks for, with random weights."""
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


def choose_pooling(family: str, folder: Path | None, source: str) -> tuple[str, str]:
    """(pooling, reason) for an encoder of this family."""
    if family == "xlnet":
        return "last", "XLNet's <cls> ends the text"
    if folder is not None and (folder / "1_Pooling" / "config.json").is_file():
        modes = json.loads((folder / "1_Pooling" / "config.json").read_text("utf-8"))
        for pooling, key in (("first", "cls"), ("last", "lasttoken"), ("mean", "mean")):
            if modes.get(f"pooling_mode_{key}_token") or modes.get("pooling_mode") == key:
                return pooling, "its 1_Pooling/config.json says so"
        return "mean", "a sentence encoder, see its 1_Pooling/config.json"
    if folder is not None and (folder / "modules.json").is_file():
        return "mean", "a sentence encoder, it has a modules.json"
    if family == "mpnet" or "minilm" in source.lower():
        return "mean", "MPNet and MiniLM are mostly trained as sentence encoders"
    if family in _FIRST:
        return "first", f"{family}'s classification token begins the text"
    return "mean", f"no rule for {family}, and the mean works for any encoder"


def pool(states_BTD: Tensor, mask_BT: Tensor, pooling: str, *, pad_left: bool) -> Tensor:
    if pooling == "mean":
        weights_BT1 = mask_BT[..., None].to(states_BTD.dtype)
        return (states_BTD * weights_BT1).sum(1) / weights_BT1.sum(1).clamp_min(1)
    if pad_left == (pooling == "last"):  # the side without padding
        return states_BTD[:, -1 if pad_left else 0]
    length_B = mask_BT.sum(1)
    at_B = mask_BT.shape[1] - length_B if pad_left else length_B - 1
    return states_BTD[torch.arange(len(at_B), device=at_B.device), at_B]


def split_windows(
    mask_BT: Tensor, length: int, *, specials: tuple[int, int], pad_left: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cut documents into as few windows of at most `length` tokens as possible, all of a document's about equally long.

    Returns the columns that each window takes from its document (R, T'), its mask (R, T'), its document (R,), and the
    number of windows of each document (B,).
    """
    before, after = specials
    room = length - before - after
    whole_B = mask_BT.sum(1).long()
    text_B = (whole_B - before - after).clamp_min(0)
    n_B = ((text_B + room - 1) // room).clamp_min(1)
    size_B = (text_B + n_B - 1) // n_B
    doc_R = torch.repeat_interleave(torch.arange(len(n_B), device=n_B.device), n_B)
    number_R = torch.arange(len(doc_R), device=n_B.device) - (n_B.cumsum(0) - n_B)[doc_R]
    skip_R = number_R * size_B[doc_R]
    taken_R = torch.minimum(size_B[doc_R], text_B[doc_R] - skip_R)
    total_R = taken_R + torch.minimum(whole_B, whole_B.new_tensor(before + after))[doc_R]
    width = int(total_R.max())
    place_RT = torch.arange(width, device=n_B.device).expand(len(doc_R), width)
    if pad_left:
        place_RT = place_RT - (width - total_R)[:, None]
    mask_RT = (place_RT >= 0) & (place_RT < total_R[:, None])
    column_RT = place_RT + torch.where(place_RT >= before, skip_R[:, None], 0)
    from_end_RT = whole_B[doc_R][:, None] - (total_R[:, None] - place_RT)
    column_RT = torch.where(place_RT >= before + taken_R[:, None], from_end_RT, column_RT)
    if pad_left:
        column_RT = column_RT + (mask_BT.shape[1] - whole_B)[doc_R][:, None]
    return torch.where(mask_RT, column_RT, 0), mask_RT.to(mask_BT.dtype), doc_R, n_B


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ModelError("encoders other than XLNet need transformers: pip install transformers") from error
    return transformers


def _load_transformers(folder: Path, *, checkpoint_activations: bool) -> nn.Module:
    transformers = _transformers()
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()  # it prints a table about poolers; we say what matters ourselves
    try:
        body, info = transformers.AutoModel.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except Exception as error:
        raise ModelError(f"transformers can't load {folder}: {' '.join(str(error).split())[:200]}") from error
    finally:
        transformers.logging.set_verbosity(verbosity)
    for name, found, wanted in sorted(info["mismatched_keys"]):
        raise ModelError(
            f"{folder}: {name} has shape {tuple(found)} but config.json asks for {tuple(wanted)}; weights and "
            f"config.json are of different models"
        )
    missing = sorted(name for name in info["missing_keys"] if not name.startswith("pooler."))
    if missing:
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise ModelError(
            f"{folder}: {len(missing)} tensors are missing from the weights ({some}); is it another model?"
        )
    if checkpoint_activations:
        body.gradient_checkpointing_enable()
    return _without_pooler(body)


def _without_pooler(body: Any) -> nn.Module:
    """Drop BERT's pooling head: we pool ourselves, and weights without a gradient disturb data parallelism."""
    if isinstance(getattr(body, "pooler", None), nn.Module):
        body.pooler = None
    return body


def _check_vocabulary(rows: int, vocab_size: int, folder: Path, *, exact: bool) -> None:
    # Some families round their embedding up (DeBERTa 128,001 pieces in 128,100 rows); XLNet's fits exactly.
    spare = 0 if exact else min(128, rows // 100)
    if not 0 <= rows - vocab_size <= spare:
        raise ModelError(
            f"{folder}: the tokenizer has {vocab_size:,} pieces and the encoder {rows:,} embeddings; they are of "
            f"different models. Put the tokenizer of these weights (spiece.model or tokenizer.json) into {folder}"
        )


def _check_length(config: Any, max_length: int, source: str) -> None:
    limit = int(getattr(config, "max_position_embeddings", -1) or -1)
    if config.model_type in _POSITIONS_START_AFTER_PAD:
        limit -= int(config.pad_token_id or 0) + 1
    if 0 < limit < max_length:
        raise ModelError(
            f"data.max_length = {max_length}, but {source} reads at most {limit} tokens; pass "
            f"--set data.max_length={limit}, and --set data.long_text=windows to read on"
        )
