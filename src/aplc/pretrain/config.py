"""A pretraining run's settings. Defaults are XLNet's (Yang et al. 2019, section 3.1 and appendix A.4) at the base size.

Presets are in `presets/pretrain/`; names that `aplc train` also has mean the same there.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from aplc.config import EncoderConfig, StepsConfig, TextsConfig, Tree, check


@dataclass(kw_only=True, frozen=True)
class TextConfig(TextsConfig):
    """Documents are put one after the other and cut into segments of `max_length` tokens."""

    vocab_size: int = 32_000
    validation: float = 0.02
    validation_limit: int = 500
    memory: int = 384
    """Tokens before a segment whose states it sees, without gradient; 0 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check("data", "memory", self.memory, self.memory >= 0, "at least 0")


@dataclass(kw_only=True, frozen=True)
class SizeConfig(EncoderConfig):
    """The encoder to begin with; `dropout` is that of pretraining, fine-tuning has its own."""

    encoder: str = "new"


@dataclass(kw_only=True, frozen=True)
class ObjectiveConfig:
    one_in: int = 6
    """The paper's K: one token in this many is predicted."""
    max_span: int = 5
    """Words of the longest span of targets; a span of n words is n times as rare as one of a single word."""

    def __post_init__(self) -> None:
        check("objective", "one_in", self.one_in, self.one_in >= 2, "at least 2 (targets need context)")
        check("objective", "max_span", self.max_span, self.max_span >= 1, "at least 1")


@dataclass(kw_only=True, frozen=True)
class ScheduleConfig(StepsConfig):
    """A batch's segments each go on where they ended in the step before."""

    steps: int = 500_000
    """Optimizer steps."""
    batch_size: int = 64
    lr: float = 4e-4
    """Learning rate at the end of the warm-up; it falls to 0 in a straight line from there."""
    warmup_steps: int = 10_000
    weight_decay: float = 0.01
    adam_epsilon: float = 1e-6
    evaluate_steps: int = 1_000
    """The held-out loss every this many steps, and at the end; the encoder is saved where it is the best so far."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "evaluate_steps"):
            check("train", name, getattr(self, name), getattr(self, name) >= 1, "at least 1")
        check("train", "lr", self.lr, self.lr >= 0, "at least 0")


@dataclass(kw_only=True, frozen=True)
class PretrainConfig(Tree):
    presets: ClassVar[str] = "aplc.presets.pretrain"

    data: TextConfig = field(default_factory=TextConfig)
    model: SizeConfig = field(default_factory=SizeConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    train: ScheduleConfig = field(default_factory=ScheduleConfig)
