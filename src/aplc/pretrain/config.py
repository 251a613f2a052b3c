"""A pretraining run's settings. Defaults are XLNet's (Yang et al. 2019, section 3.1 and appendix A.4) at the base size.

Presets are in `presets/pretrain/`; names that `aplc train` also has mean the same there.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from aplc.config import Tree, check


@dataclass(kw_only=True, frozen=True)
class TextConfig:
    max_length: int = 512
    """Tokens of a segment; documents are put one after the other and cut into segments."""
    memory: int = 384
    """Tokens before a segment whose states it sees, without gradient; 0 for none."""
    tokenizer: str = ""
    """A tokenizer.json or a folder with one; empty for the encoder's own, or for one trained on the corpus."""
    vocab_size: int = 32_000
    """Pieces of the tokenizer trained on the corpus."""
    validation: float = 0.02
    """Share of the documents held out to measure the loss on, where the corpus has no dev part."""
    validation_limit: int = 500
    """At most so many held-out documents."""

    def __post_init__(self) -> None:
        check("data", "max_length", self.max_length, self.max_length >= 2, "at least 2 (one to see, one to predict)")
        check("data", "memory", self.memory, self.memory >= 0, "at least 0")
        check("data", "vocab_size", self.vocab_size, self.vocab_size >= 16, "at least 16")
        check("data", "validation", self.validation, 0 <= self.validation < 1, "in [0, 1)")
        check("data", "validation_limit", self.validation_limit, self.validation_limit >= 1, "at least 1")


@dataclass(kw_only=True, frozen=True)
class SizeConfig:
    encoder: str = "new"
    """A hub name or a folder to go on from, or "new": an XLNet of the size below with random weights."""
    layers: int = 12
    """Blocks of a new encoder."""
    width: int = 768
    """Width of a new encoder."""
    heads: int = 12
    """Attention heads of a new encoder."""
    inner_width: int = 3072
    """Width of a new encoder's feed-forward layers."""
    dropout: float = 0.1
    """Dropout while pretraining; fine-tuning has its own setting."""
    checkpoint_activations: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "inner_width"):
            check("model", name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        check("model", "heads", self.heads, self.width % self.heads == 0, f"a divisor of model.width = {self.width}")
        check("model", "dropout", self.dropout, 0 <= self.dropout < 1, "in [0, 1)")


@dataclass(kw_only=True, frozen=True)
class ObjectiveConfig:
    one_in: int = 6
    """The paper's K: one token in so many is predicted."""
    max_span: int = 5
    """Words of the longest span of targets; a span of n words is n times as rare as one of a single word."""

    def __post_init__(self) -> None:
        check("objective", "one_in", self.one_in, self.one_in >= 2, "at least 2 (targets need context)")
        check("objective", "max_span", self.max_span, self.max_span >= 1, "at least 1")


@dataclass(kw_only=True, frozen=True)
class ScheduleConfig:
    steps: int = 500_000
    """Optimizer steps."""
    batch_size: int = 64
    """Segments a step, over all processes; each goes on where it ended in the step before."""
    accumulate: int = 1
    """Each step's batch is worked off in so many parts: the same step in less memory."""
    lr: float = 4e-4
    """Learning rate at the end of the warm-up; it falls to 0 in a straight line from there."""
    warmup_steps: int = 10_000
    """Steps in which the rate rises from 0."""
    weight_decay: float = 0.01
    """AdamW's decoupled weight decay."""
    adam_epsilon: float = 1e-6
    """AdamW's epsilon."""
    clip_norm: float = 1.0
    """Gradients are scaled down to at most this norm."""
    evaluate_steps: int = 1_000
    """The held-out loss every so many steps, and at the end; the encoder is saved where it is the best so far."""
    checkpoint_steps: int = 1_000
    """A checkpoint every so many steps, and at the end."""
    seed: int = 0
    """Weights, order of documents, factorization orders and dropout follow from it."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "accumulate", "evaluate_steps", "checkpoint_steps"):
            check("train", name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        for name in ("lr", "warmup_steps", "weight_decay", "seed"):
            check("train", name, getattr(self, name), getattr(self, name) >= 0, "at least 0")
        for name in ("adam_epsilon", "clip_norm"):
            check("train", name, getattr(self, name), getattr(self, name) > 0, "above 0")
        divides = self.accumulate <= self.batch_size
        check("train", "accumulate", self.accumulate, divides, f"at most train.batch_size = {self.batch_size}")


@dataclass(kw_only=True, frozen=True)
class PretrainConfig(Tree):
    presets: ClassVar[str] = "aplc.presets.pretrain"

    data: TextConfig = field(default_factory=TextConfig)
    model: SizeConfig = field(default_factory=SizeConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    train: ScheduleConfig = field(default_factory=ScheduleConfig)
