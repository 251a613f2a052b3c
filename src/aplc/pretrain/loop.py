"""A pretraining run: segments, memory, and now and then the held-out loss, on the engine of `train/loop.py`.

The batch is shared out among processes by segments: a segment stays with its process, and so does its memory. A
checkpoint holds the memory too, so that a resumed run goes on as if nothing had happened.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aplc.data.batches import NO_LABEL
from aplc.nn.distributed import world
from aplc.pretrain.config import PretrainConfig
from aplc.pretrain.objective import PermutationLM
from aplc.pretrain.permutation import PermutationBatch
from aplc.pretrain.segments import Segments
from aplc.train import loop
from aplc.train.tracking import Tracker


@dataclass
class PretrainingRun(loop.Run):
    network: PermutationLM
    config: PretrainConfig
    train: Segments
    valid: Segments | None
    baseline: float
    """The unigram distribution's loss on the held-out targets; 0 where none are held out."""
    save: Callable[[float | None, int], None]
    """Writes the encoder's folder, given its held-out loss and step."""
    memory: list[Tensor] = field(default_factory=list)
    """For each layer, the states of this process' segments; empty where an epoch begins."""

    checkpoints_epochs = False

    @property
    def total_steps(self) -> int:
        return self.config.train.steps

    @property
    def finished(self) -> bool:
        return self.progress.step >= self.total_steps

    def batches(self, epoch: int, start: int) -> Iterator[PermutationBatch]:
        return self.train.epoch(epoch, start=start)

    def losses(self, batch: PermutationBatch) -> Iterator[tuple[Tensor, float]]:
        """This process' segments, processed in `train.accumulate` parts."""
        first, last = own_segments(len(batch))
        parts = np.linspace(first, last, min(self.config.train.accumulate, last - first) + 1).astype(int)
        memories = []
        for start, stop in pairwise(parts):
            part = batch.rows(start, stop)
            before = [layer[start - first : stop - first] for layer in self.memory] or None
            with loop.autocast(world().device):
                loss, memory = self.network(part.to(world().device), before)
            memories.append(memory)
            yield loss, part.n_targets / max(1, batch.n_targets)
        if self.config.data.memory:
            self.memory = [torch.cat(layer) for layer in zip(*memories, strict=True)]

    def after_step(self, tracker: Tracker) -> None:
        progress, config = self.progress, self.config.train
        if progress.step % config.evaluate_steps and not self.finished:
            return
        mean = self.mean_loss
        progress.loss_sum, progress.loss_count = 0.0, 0
        line = f"step {progress.step:,}/{config.steps:,}: loss {mean:.3f}"
        loss = self.held_out_loss() if self.valid else None
        better = loss is None or -loss > progress.best_score
        if loss is not None:
            line += f", held out {loss:.3f} (unigram {self.baseline:.3f})" + (", best" if better else "")
            progress.best_score = max(progress.best_score, -loss)
        tracker.log(progress.step, mean_loss=mean, held_out=loss, unigram=self.baseline if self.valid else None)
        if better:
            progress.best_step = progress.step
            self.save(loss, progress.step)
        self.screen.say(line)

    def after_epoch(self, tracker: Tracker) -> None:
        self.progress.epoch, self.progress.batch, self.memory = self.progress.epoch + 1, 0, []

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Mean loss of all targets of the held-out segments, always with the same orders."""
        assert self.valid is not None
        self.network.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=world().device)
        memory: list[Tensor] = []
        for batch in self.valid.epoch(0):
            part = batch.rows(*own_segments(len(batch)))
            if len(part):
                with loop.autocast(world().device):
                    loss, states = self.network(part.to(world().device), memory or None)
                memory = states if self.config.data.memory else []
                sums += torch.tensor([float(loss) * part.n_targets, part.n_targets], device=sums.device)
        self.network.train()
        total, count = world().sum(sums).tolist()
        return total / max(1, count)

    def bar(self) -> contextlib.AbstractContextManager[Any]:
        return self.screen.bar("pretraining", self.total_steps, unit="steps", done=self.progress.step)

    def note(self) -> str:
        return f"loss {self.mean_loss:.3f}"

    def units(self, batch: PermutationBatch) -> int:
        return 1

    def salvage(self) -> str:
        return (
            f"the checkpoints in {self.out} are intact. Try a lower train.lr or a longer train.warmup_steps in another "
            "--out"
        )

    def extra_state(self) -> dict[str, Tensor]:
        parts = world().gather([layer.cpu() for layer in self.memory])
        return {f"memory.{i}": torch.cat(layers) for i, layers in enumerate(zip(*parts, strict=True))}

    def load_extra_state(self, extra: dict[str, Tensor]) -> None:
        """For any number of processes."""
        first, last = own_segments(self.config.train.batch_size)
        self.memory = [extra[f"memory.{i}"][first:last].to(world().device) for i in range(len(extra))]


def baseline_loss(valid: Segments, unigram_V: NDArray[np.float64]) -> float:
    """Mean loss of the unigram distribution on the same targets as `held_out_loss`."""
    labels = np.concatenate([batch.labels.numpy().ravel() for batch in valid.epoch(0)])
    return float(-unigram_V[labels[labels != NO_LABEL]].mean())


def own_segments(n: int) -> tuple[int, int]:
    """First and last of a batch's n segments that are this process'."""
    return n * world().rank // world().size, n * (world().rank + 1) // world().size
