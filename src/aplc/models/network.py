"""APLC-XLNet as a `LabelModel`: tokenizer, encoder, hidden layer, label clusters.

    texts -> tokens (B, T) -> encoder -> pooled_BE -> linear, tanh, dropout -> hidden_BD -> clusters -> loss, or top-k

B documents, T tokens, E encoder width, D hidden width d_h.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from aplc.config import Config
from aplc.data.batches import Batch, Collator
from aplc.data.tokenizer import Tokenizer
from aplc.errors import ModelError
from aplc.files import atomic_path
from aplc.machine import is_main_process
from aplc.models.base import Ids, Probs
from aplc.models.sharding import gather_state
from aplc.nn.checked import build_checked, check_depth, check_lengths, check_settings, load_weights, read_header
from aplc.nn.clusters import LabelClusters
from aplc.nn.distributed import world
from aplc.nn.encoder import Encoder
from aplc.nn.weights import WEIGHTS


class TaggingModel(nn.Module):
    """The paper's Figure 1. `forward` gives the loss of a batch, `topk` its best labels with their probabilities."""

    kind = "network"
    batch_size = 32
    parts: ClassVar[Mapping[str, Any]] = {}

    def __init__(
        self,
        encoder: Encoder,
        tokenizer: Tokenizer,
        config: Config,
        *,
        n_labels: int,
        cutoffs: tuple[int, ...],
        added: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        model, clusters = config.model, config.clusters
        self.encoder, self.tokenizer = encoder, tokenizer
        self._cuts = {"cutoffs": list(cutoffs), "added": list(added)}  # the whole layer's, also where it is sharded
        self.hidden = nn.Linear(encoder.width, model.hidden_width)
        self.activation = nn.Tanh()
        self.dropout = nn.Dropout(model.hidden_dropout)
        self.clusters = LabelClusters(
            in_features=model.hidden_width,
            cutoffs=list(cutoffs),
            n_labels=n_labels,
            div_value=clusters.div_value,
            objective=clusters.objective,
            tail=clusters.tail,
            bias=clusters.bias,
            min_tail_width=clusters.min_tail_width,
            tail_dropout=clusters.tail_dropout,
            added=added,
        )

    @property
    def n_labels(self) -> int:
        return self.clusters.n_labels

    @property
    def bounds(self) -> Sequence[int]:
        return self.clusters.bounds

    @property
    def n_added(self) -> int:
        return len(self.clusters.added)

    @property
    def device(self) -> torch.device:
        return self.hidden.weight.device

    @cached_property
    def collator(self) -> Collator:
        return Collator(self.tokenizer.template, self.encoder.max_tokens, pad_left=self.encoder.pad_left)

    def represent(self, batch: Batch) -> Tensor:
        """hidden_BD, what the clusters see."""
        pooled_BE = batch.states
        if pooled_BE is None:
            pooled_BE = self.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
        return self.dropout(self.activation(self.hidden(pooled_BE)))

    def forward(self, batch: Batch, filler: Batch | None = None) -> Tensor:
        """The loss. Of several processes, one with no documents left passes a `filler` that counts nothing.

        Its forward pass keeps the sharded encoder's ranks in step.
        """
        if filler is not None and len(batch) == 0:
            return self.clusters(self.represent(filler)[:0], batch.labels)
        return self.clusters(self.represent(batch), batch.labels, partial=batch.partial, rejected=batch.rejected)

    def loss_weight(self, batch: Batch) -> float:
        """How much the loss of a batch counts in a mean over batches."""
        return self.clusters.loss_weight(batch.labels, partial=batch.partial, rejected=batch.rejected)

    def prepare(self, texts: Sequence[str]) -> Batch:
        return self.collator(self.tokenizer.encode(list(texts)), [[]] * len(texts))

    @torch.inference_mode()
    def read(self, batch: Batch) -> Tensor:
        return self.represent(batch.to(self.device))

    @torch.inference_mode()
    def topk(self, states: Tensor, k: int, allowed: NDArray[np.bool_] | None = None) -> tuple[Ids, Probs]:
        mask = None if allowed is None else torch.from_numpy(allowed).to(self.device)
        found = self.clusters.topk(states, k, allowed=mask)
        return found.ids.cpu().numpy(), found.probs.float().clamp_min(0).cpu().numpy()

    @torch.inference_mode()
    def probability_of(self, states: Tensor, label: int) -> NDArray[np.float32]:
        return self.clusters.probability_of(states, label).float().cpu().numpy()

    @torch.inference_mode()
    def probabilities(self, states: Tensor) -> NDArray[np.float32]:
        """Of every label, (B, L)."""
        return self.clusters.probabilities(states).float().cpu().numpy()

    def characters_read(self, text: str) -> int:
        return self.collator.characters_read(self.tokenizer, text)

    def unknown_words(self, texts: Sequence[str]) -> None:
        """Its tokenizer has pieces for every word."""

    def settings(self) -> dict[str, Any]:
        return {"encoder": self.encoder.save_config(), **self._cuts}

    def save_parts(self, folder: Path) -> None:
        self.tokenizer.save(folder)

    def save_weights(self, folder: Path) -> None:
        state = gather_state(self)
        if not is_main_process():
            return
        with atomic_path(folder / WEIGHTS) as temporary:
            save_file(state, temporary)


def load(folder: Path, settings: dict[str, Any], config: Config) -> TaggingModel:
    """The network of a model folder, in evaluation mode on this process' device."""
    settings = {"added": []} | settings
    check_settings(settings, {"encoder": dict, "cutoffs": list, "added": list}, folder)
    check_lengths(settings["encoder"], folder)
    header = read_header(folder / WEIGHTS)
    check_depth({name: settings[name] for name in ("encoder", "cutoffs", "added")}, header, folder)
    tokenizer = Tokenizer.load(folder)

    def build() -> TaggingModel:
        encoder = Encoder.from_config(settings["encoder"])
        cutoffs, added = tuple(settings["cutoffs"]), tuple(settings["added"])
        return TaggingModel(encoder, tokenizer, config, n_labels=settings["n_labels"], cutoffs=cutoffs, added=added)

    model = build_checked(build, header, folder)
    n_embeddings = int(getattr(model.encoder.body.config, "vocab_size", tokenizer.vocab_size))
    check_vocabulary(tokenizer, n_embeddings, folder)
    load_weights(model, folder / WEIGHTS)
    return model.to(world().device).eval()


def check_vocabulary(tokenizer: Tokenizer, n_embeddings: int, folder: Path) -> None:
    if tokenizer.vocab_size > n_embeddings:
        raise ModelError(f"{folder}: the tokenizer has {tokenizer.vocab_size:,} pieces, the encoder {n_embeddings:,}")
