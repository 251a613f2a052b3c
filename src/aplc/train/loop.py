"""The engine of training and pretraining, top to bottom.

Each step: set the rates (Equation 15), loss and gradients of a batch, clip, AdamW. Now and then: evaluate, keep the
model if it is the best so far, write a checkpoint. The order of batches follows from seed and epoch, so `Progress` and
the random state are all it takes to go on exactly where a run stopped. What differs between training and pretraining,
the objective and the data, is in the subclasses of `Run`.
"""

import contextlib
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aplc.config import StepsConfig
from aplc.console import Screen
from aplc.errors import RunError
from aplc.models.sharding import clip_gradients, sum_gradients
from aplc.nn.device import module_of
from aplc.nn.distributed import world
from aplc.train.checkpoint import Progress, load_checkpoint, newest_good, save_checkpoint
from aplc.train.optim import Optimizers, slanted_triangular
from aplc.train.run_folder import RunFolder
from aplc.train.stopping import Stopping
from aplc.train.tracking import Tracker

LOG_EVERY = 20


@dataclass
class Run(ABC):
    """A run in progress."""

    network: nn.Module
    optimizers: Optimizers
    steps: StepsConfig
    progress: Progress
    out: Path
    screen: Screen

    @property
    @abstractmethod
    def total_steps(self) -> int:
        """Optimizer steps from the first to the last; the learning rate falls to 0 there."""

    @property
    @abstractmethod
    def finished(self) -> bool: ...

    @abstractmethod
    def batches(self, epoch: int, start: int) -> Iterator[Any]:
        """The batches of an epoch, from number `start` on."""

    @abstractmethod
    def losses(self, batch: Any) -> Iterator[tuple[Tensor, float]]:
        """This process' parts of a batch: the loss of each, and its share of the batch's loss."""

    @abstractmethod
    def after_step(self, tracker: Tracker) -> None:
        """Evaluate, if it is time to."""

    @abstractmethod
    def after_epoch(self, tracker: Tracker) -> None:
        """Evaluate, if it is time to, and go to the next epoch."""

    @abstractmethod
    def bar(self) -> contextlib.AbstractContextManager[Any]: ...

    @abstractmethod
    def note(self) -> str:
        """What stands beside the progress bar."""

    @abstractmethod
    def units(self, batch: Any) -> int:
        """What a batch counts on the progress bar."""

    @abstractmethod
    def salvage(self) -> str:
        """After losses that are not finite: leave a model in `out` if there can be one. Says what is there, and what
        to try."""

    checkpoints_epochs = True
    """Whether every epoch ends with a checkpoint."""

    @property
    def loss_is_global(self) -> bool:
        """Whether every process' loss is already that of all of them."""
        return False

    def extra_state(self) -> dict[str, Tensor]:
        """What a checkpoint holds besides weights, optimizer, random state and progress; the same on every process."""
        return {}

    def load_extra_state(self, extra: dict[str, Tensor]) -> None:  # noqa: B027
        """Put back what `extra_state` gave."""

    @property
    def mean_loss(self) -> float:
        return self.progress.loss_sum / max(1, self.progress.loss_count)

    def save_checkpoint(self) -> None:
        save_checkpoint(self.out, self.progress, self.network, self.optimizers, self.extra_state())

    def resume(self) -> bool:
        """Go on from the newest good checkpoint, if there is one."""
        found = newest_good(self.out, self.screen.say)
        if found is None:
            return False
        path, self.progress = found
        self.load_extra_state(load_checkpoint(path, self.network, self.optimizers))
        self.screen.say(f"resuming from {path.name}: epoch {self.progress.epoch + 1}, batch {self.progress.batch + 1}")
        return True


def begin(run: Run, folder: RunFolder, identity: dict[str, Any]) -> bool:
    """Go on where the folder's run stopped, or say that there is no such place; note what the run is started with.

    Whether the run goes on.
    """
    goes_on = folder.started and run.resume()
    if folder.resume and not goes_on:
        run.screen.say("no checkpoint to resume from: starting from the beginning")
    folder.begin(identity)
    return goes_on


def fit(run: Run) -> None:
    """Train from `run.progress` to the end; the best model so far is always in `run.out`."""
    steps = run.steps
    run.network.train()
    with Tracker(run.out, run.progress.step) as tracker, Stopping(run.screen) as stopping, run.bar() as advance:
        while not run.finished:
            began = time.monotonic()
            for batch in run.batches(run.progress.epoch, run.progress.batch):
                progress = run.progress
                warmup = min(steps.warmup_steps, run.total_steps // 5)
                rate = slanted_triangular(progress.step, warmup=warmup, total=run.total_steps)
                loss = train_step(run, batch, rate)
                progress.step += 1
                progress.batch += 1
                progress.loss_sum += loss
                progress.loss_count += 1
                progress.seconds += time.monotonic() - began
                advance(run.units(batch), note=run.note())
                if progress.step % LOG_EVERY == 0:
                    tracker.log(progress.step, epoch=progress.epoch, loss=loss, rate=rate, seconds=progress.seconds)
                stop = stopping.agreed()
                run.after_step(tracker)
                if stop or progress.step % steps.checkpoint_steps == 0 or run.finished:
                    run.save_checkpoint()
                if run.finished:
                    return
                if stop:
                    run.screen.say(f"stopped at step {progress.step:,}; go on with the same command and --resume")
                    raise stop
                began = time.monotonic()
            run.after_epoch(tracker)
            if run.checkpoints_epochs:
                run.save_checkpoint()


def train_step(run: Run, batch: Any, rate: float) -> float:
    """One optimizer step; returns the batch's loss."""
    run.optimizers.zero_grad()
    loss = torch.zeros((), device=world().device)
    for part_loss, share in run.losses(batch):
        (part_loss * share if share != 1 else part_loss).backward()
        loss += part_loss.detach() * share
    sum_gradients(run.network)
    if not run.loss_is_global:
        world().sum(loss)
    if not apply_gradients(run.network, run.optimizers, float(loss), clip_norm=run.steps.clip_norm, rate=rate):
        raise RunError(
            f"loss or gradients are not finite (loss {float(loss)}) at step {run.progress.step + 1:,}, "
            f"epoch {run.progress.epoch + 1}; {run.salvage()}"
        )
    return float(loss)


def apply_gradients(network: nn.Module, optimizers: Optimizers, loss: float, *, clip_norm: float, rate: float) -> bool:
    """Clip the gradients and take the optimizers' step. False, and no step, where anything is NaN or infinite."""
    norm = clip_gradients(network, clip_norm)
    if not math.isfinite(loss) or not math.isfinite(norm):
        return False
    optimizers.step(rate)
    return True


def autocast(device: torch.device, precision: str = "auto") -> contextlib.AbstractContextManager:
    return torch.autocast(device.type, torch.bfloat16, enabled=uses_bfloat16(device, precision))


def uses_bfloat16(device: torch.device, precision: str = "auto") -> bool:
    """Whether a GPU has it and `train.precision` allows it. On a CPU it is up to the encoder (`nn/encoder.py`)."""
    if precision != "auto" or device.type == "cpu":
        return False
    has_it = getattr(module_of(device), "is_bf16_supported", None)
    return has_it is not None and has_it(including_emulation=False)  # GPUs before Ampere emulate it, slowly


def describe_work(network: nn.Module, *, bfloat16: bool) -> str:
    """How large the network is and where it will be trained."""
    n_parameters = sum(p.numel() for p in network.parameters())
    device, size = world().device, world().size
    threads = torch.get_num_threads()
    where = f"{threads} CPU thread{'s' * (threads > 1)}" if device.type == "cpu" else str(device)
    dtype = "bfloat16 where it is safe" if bfloat16 else "float32"
    processes = f"{size} processes with " if size > 1 else ""
    return f"{n_parameters:,} parameters on {processes}{where} in {dtype}"
