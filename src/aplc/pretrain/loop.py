"""The pretraining loop: segments, memory, a step; now and then the held-out loss and a checkpoint.

The batch is shared out among processes by rows: a row stays with its process, and so does its memory. A checkpoint
holds the memory too, so that a resumed run goes on as if nothing had happened.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aplc.console import Screen
from aplc.data.batches import NO_LABEL
from aplc.distributed import world
from aplc.errors import RunError
from aplc.pretrain.config import PretrainConfig
from aplc.pretrain.objective import PermutationLM
from aplc.pretrain.permutation import PermutationBatch
from aplc.pretrain.segments import Segments
from aplc.sharding import clip_gradients, sum_gradients
from aplc.train.checkpoint import Progress, save_checkpoint
from aplc.train.loop import LOG_EVERY, autocast, interruptible
from aplc.train.optim import Optimizers, slanted_triangular
from aplc.train.tracking import Tracker


@dataclass
class Run:
    """A pretraining run in progress."""

    config: PretrainConfig
    model: PermutationLM
    optimizers: Optimizers
    train: Segments
    valid: Segments | None
    baseline: float
    """The unigram distribution's loss on the held-out targets; 0 where none are held out."""
    save: Callable[[float | None, int], None]
    """Writes the encoder's folder, given its held-out loss and step."""
    progress: Progress
    out: Path
    screen: Screen
    memory: list[Tensor] = field(default_factory=list)
    """For each layer, this process' rows; empty where an epoch begins."""

    @property
    def finished(self) -> bool:
        return self.progress.step >= self.config.train.steps


def fit(run: Run) -> None:
    """Train from `run.progress` to the end; the encoder with the lowest held-out loss is in `run.out`."""
    config, progress = run.config.train, run.progress
    run.model.train()
    with (
        Tracker(run.out, progress.step) as tracker,
        interruptible(run.screen) as interrupted,
        run.screen.bar("pretraining", config.steps, unit="steps", done=progress.step) as advance,
    ):
        while not run.finished:
            began = time.monotonic()
            for batch in run.train.epoch(progress.epoch, start=progress.batch):
                rate = slanted_triangular(progress.step, warmup=config.warmup_steps, total=config.steps)
                loss = train_step(run, batch, rate)
                progress.step += 1
                progress.batch += 1
                progress.loss_sum += loss
                progress.loss_count += 1
                now = time.monotonic()
                progress.seconds, began = progress.seconds + now - began, now
                advance(1, note=f"loss {progress.loss_sum / progress.loss_count:.3f}")
                if progress.step % LOG_EVERY == 0:
                    tracker.log(progress.step, epoch=progress.epoch, loss=loss, rate=rate, seconds=progress.seconds)
                (stop,) = world().any(interrupted.is_set())
                if progress.step % config.evaluate_steps == 0 or run.finished:
                    _evaluate(run, tracker)
                    began = time.monotonic()
                if stop or progress.step % config.checkpoint_steps == 0 or run.finished:
                    _save_checkpoint(run)
                if stop and not run.finished:
                    run.screen.say(f"stopped at step {progress.step:,}; go on with the same command and --resume")
                    raise KeyboardInterrupt
                if run.finished:
                    return
            progress.epoch, progress.batch, run.memory = progress.epoch + 1, 0, []


def train_step(run: Run, batch: PermutationBatch, rate: float) -> float:
    """One optimizer step; the rows are shared out among the processes, each share worked off in parts."""
    config, model, device = run.config.train, run.model, world().device
    run.optimizers.zero_grad()
    loss = torch.zeros((), device=device)
    first, last = own_rows(len(batch))
    parts = np.linspace(first, last, min(config.accumulate, last - first) + 1).astype(int)
    memories = []
    for start, stop in pairwise(parts):
        part = batch.rows(start, stop)
        share = part.n_targets / max(1, batch.n_targets)
        with autocast(device):
            part_loss, memory = model(part.to(device), _rows_of(run.memory, start - first, stop - first))
        (part_loss * share).backward()
        loss += part_loss.detach() * share
        memories.append(memory)
    if run.config.data.memory:
        run.memory = [torch.cat(layer) for layer in zip(*memories, strict=True)]
    sum_gradients(model)
    world().sum(loss)
    norm = clip_gradients(model, config.clip_norm)
    if not math.isfinite(float(loss)) or not math.isfinite(norm):
        raise RunError(
            f"loss or gradients are not finite (loss {float(loss)}) at step {run.progress.step + 1:,}; the checkpoints "
            f"in {run.out} are intact. Try a lower train.lr or a longer train.warmup_steps in another --out"
        )
    run.optimizers.step(rate)
    return float(loss)


@torch.no_grad()
def held_out_loss(run: Run) -> float:
    """Mean loss of all targets of the held-out segments, always with the same orders."""
    assert run.valid is not None
    run.model.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=world().device)
    memory: list[Tensor] = []
    for batch in run.valid.epoch(0):
        part = batch.rows(*own_rows(len(batch)))
        if len(part):
            with autocast(world().device):
                loss, states = run.model(part.to(world().device), memory or None)
            memory = states if run.config.data.memory else []
            sums += torch.tensor([float(loss) * part.n_targets, part.n_targets], device=sums.device)
    run.model.train()
    total, count = world().sum(sums).tolist()
    return total / max(1, count)


def baseline_loss(valid: Segments, unigram_V: NDArray[np.float64]) -> float:
    """Mean loss of the unigram distribution on the same targets as `held_out_loss`."""
    labels = np.concatenate([batch.labels.numpy().ravel() for batch in valid.epoch(0)])
    return float(-unigram_V[labels[labels != NO_LABEL]].mean())


def own_rows(n_rows: int) -> tuple[int, int]:
    """First and last row of a batch that are this process'."""
    return n_rows * world().rank // world().size, n_rows * (world().rank + 1) // world().size


def _rows_of(memory: list[Tensor], start: int, stop: int) -> list[Tensor] | None:
    return [layer[start:stop] for layer in memory] or None


def _evaluate(run: Run, tracker: Tracker) -> None:
    progress, config = run.progress, run.config.train
    mean = progress.loss_sum / max(1, progress.loss_count)
    progress.loss_sum, progress.loss_count = 0.0, 0
    line = f"step {progress.step:,}/{config.steps:,}: loss {mean:.3f}"
    loss = held_out_loss(run) if run.valid else None
    better = loss is None or -loss > progress.best_score
    if loss is not None:
        line += f", held out {loss:.3f} (unigram {run.baseline:.3f})" + (", best" if better else "")
        progress.best_score = max(progress.best_score, -loss)
    tracker.log(progress.step, mean_loss=mean, held_out=loss, unigram=run.baseline if run.valid else None)
    if better:
        progress.best_step = progress.step
        run.save(loss, progress.step)
    run.screen.say(line)


def _save_checkpoint(run: Run) -> None:
    parts = world().gather([layer.cpu() for layer in run.memory])
    memory = {f"memory.{i}": torch.cat(layers) for i, layers in enumerate(zip(*parts, strict=True))}
    save_checkpoint(run.out, run.progress, run.model, run.optimizers, memory)


def load_memory(run: Run, extra: dict[str, Tensor]) -> None:
    """Put back what `_save_checkpoint` saved, for any number of processes."""
    first, last = own_rows(run.config.train.batch_size)
    names = [f"memory.{i}" for i in range(len(extra))]
    run.memory = [extra[name][first:last].to(world().device) for name in names]
