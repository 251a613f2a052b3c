"""The training loop, top to bottom.

Each step: set the rates (Equation 15), loss and gradients of a batch, clip, AdamW. Each epoch: score the held-out
documents, keep the model if it is the best so far, write a checkpoint. The order of batches follows from seed and
epoch, so `Progress` and the random state are all it takes to go on exactly where a run stopped.
"""

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import numpy as np
import torch

from aplc.console import Screen
from aplc.data.batches import Batch, Batches
from aplc.data.tokens import TokenCache
from aplc.distributed import world
from aplc.errors import RunError
from aplc.evaluate.metrics import Metrics
from aplc.folder import WEIGHTS, ModelFolder
from aplc.predict import predict_rows
from aplc.sharding import clip_gradients, sum_gradients
from aplc.train.checkpoint import Progress, load_checkpoint, newest_good, save_checkpoint
from aplc.train.optim import Optimizers, slanted_triangular
from aplc.train.tracking import Tracker

SCORE = "nDCG@5"
"""Chooses the best epoch: it looks at all five places of a list and weighs the first ones most."""
LOG_EVERY = 20


@dataclass
class Run:
    """A run in progress."""

    folder: ModelFolder
    optimizers: Optimizers
    batches: Batches
    valid: TokenCache
    valid_rows: np.ndarray
    progress: Progress
    out: Path
    screen: Screen

    @property
    def finished(self) -> bool:
        config = self.folder.config.train
        out_of_patience = 0 < config.patience <= self.progress.bad_evaluations
        return self.progress.epoch >= config.epochs or out_of_patience


def fit(run: Run) -> None:
    """Train from `run.progress` to the end; the best model is in `run.out` after each epoch."""
    config, progress, model = run.folder.config.train, run.progress, run.folder.model
    total = config.epochs * len(run.batches)
    n_rows = len(run.batches.rows)
    model.train()
    with (
        Tracker(run.out, progress.step) as tracker,
        interruptible(run.screen) as interrupted,
        run.screen.bar("training", config.epochs * n_rows, done=_documents_done(run)) as advance,
    ):
        while not run.finished:
            began = time.monotonic()
            for batch in run.batches.epoch(progress.epoch, start=progress.batch):
                rate = slanted_triangular(progress.step, warmup=config.warmup_steps, total=total)
                loss = train_step(run, batch, rate)
                progress.step += 1
                progress.batch += 1
                progress.loss_sum += loss
                now = time.monotonic()
                progress.seconds, began = progress.seconds + now - began, now
                advance(len(batch), note=f"epoch {progress.epoch + 1}/{config.epochs}, loss {_mean_loss(progress):.5f}")
                if progress.step % LOG_EVERY == 0:
                    tracker.log(progress.step, epoch=progress.epoch, loss=loss, rate=rate, seconds=progress.seconds)
                (stop,) = world().any(interrupted.is_set())
                if stop or progress.step % config.checkpoint_steps == 0:
                    save_checkpoint(run.out, progress, model, run.optimizers)
                if stop:
                    run.screen.say(f"stopped at step {progress.step:,}; go on with the same command and --resume")
                    raise KeyboardInterrupt
            _end_epoch(run, tracker)
            save_checkpoint(run.out, progress, model, run.optimizers)


def train_step(run: Run, batch: Batch, rate: float) -> float:
    """One optimizer step; the batch is shared out among the processes, each share worked off in parts."""
    config, model, device = run.folder.config.train, run.folder.model, world().device
    run.optimizers.zero_grad()
    loss = torch.zeros((), device=device)
    weigh = model.clusters.loss_weight
    whole = weigh(batch.labels)
    filler = batch.split(len(batch))[0].to(device)
    parts = batch.split(world().size * min(config.accumulate, len(batch)))
    for turn in (parts[i : i + world().size] for i in range(0, len(parts), world().size)):
        part = turn[world().rank]
        # Sharded clusters see the rows of all ranks at once, and give the loss of all.
        share = (sum(weigh(p.labels) for p in turn) if config.shard_labels else weigh(part.labels)) / whole
        with autocast(device):
            part_loss = model(part.to(device), filler)
        (part_loss * share if share != 1 else part_loss).backward()
        loss += part_loss.detach() * share
    sum_gradients(model)
    if not config.shard_labels:
        world().sum(loss)
    norm = clip_gradients(model, config.clip_norm)
    if not math.isfinite(float(loss)) or not math.isfinite(norm):
        _give_up(run, float(loss))
    run.optimizers.step(rate)
    return float(loss)


def _end_epoch(run: Run, tracker: Tracker) -> None:
    config, progress = run.folder.config.train, run.progress
    line = f"epoch {progress.epoch + 1}/{config.epochs}: loss {_mean_loss(progress):.5f}"
    scores = validate(run) if len(run.valid_rows) else None
    tracker.log(progress.step, epoch=progress.epoch, mean_loss=_mean_loss(progress), validation=scores)
    better = scores is None or scores[SCORE] > progress.best_score
    if scores:
        shown = ", ".join(f"{name} {100 * scores[name]:.2f}" for name in ("P@1", "P@3", "P@5", SCORE))
        line += f", held out {shown}" + (" (best)" if better else "")
        progress.best_score = max(progress.best_score, scores[SCORE])
    run.screen.say(line)
    progress.bad_evaluations = 0 if better else progress.bad_evaluations + 1
    if better:
        progress.best_step = progress.step
        run.folder.save_weights(run.out)
    progress.epoch, progress.batch, progress.loss_sum = progress.epoch + 1, 0, 0.0
    if run.finished and progress.epoch < config.epochs:
        run.screen.say(f"no better score in {config.patience} evaluations (train.patience): stopping early")


def validate(run: Run) -> dict[str, float]:
    """Metrics on the held-out rows."""
    tokens, labels = zip(*map(run.valid.row, run.valid_rows), strict=True)
    with autocast(world().device):
        ids, probs = predict_rows(run.folder.model, run.folder.collator, tokens, k=5)
    metrics = Metrics(run.folder.labels.counts, n_documents=run.folder.n_documents)
    metrics.update(ids, probs, np.cumsum([0, *map(len, labels)]), np.concatenate(labels))
    return metrics.result()


def autocast(device: torch.device) -> contextlib.AbstractContextManager:
    return torch.autocast(device.type, torch.bfloat16, enabled=uses_bfloat16(device))


def uses_bfloat16(device: torch.device) -> bool:
    """Where a GPU has it; CPUs rarely gain by it."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported()


def _give_up(run: Run, loss: float) -> None:
    progress = run.progress
    kept = f"the best model so far (step {progress.best_step:,}) is in {run.out}"
    if not (run.out / WEIGHTS).is_file():
        good = newest_good(run.out, run.screen.say)
        if good:
            load_checkpoint(good[0], run.folder.model, run.optimizers)
            run.folder.save_weights(run.out)
        kept = f"the model of {good[0].name} is in {run.out}" if good else "no model was complete before that"
    raise RunError(
        f"loss or gradients are not finite (loss {loss}) at step {progress.step + 1:,}, epoch {progress.epoch + 1}; "
        f"{kept}. Try lower rates (train.lr_clusters, train.lr_hidden, train.lr_encoder) or train.warmup_steps"
    )


@contextlib.contextmanager
def interruptible(screen: Screen) -> Iterator[threading.Event]:
    """Ctrl-C once sets the event, so that the step ends and is saved; twice stops at once."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handle(_number: int, _frame: FrameType | None) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()
        screen.say("finishing this step and writing a checkpoint; Ctrl-C again stops at once")

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def _mean_loss(progress: Progress) -> float:
    return progress.loss_sum / max(1, progress.batch)


def _documents_done(run: Run) -> int:
    progress, batches = run.progress, run.batches
    return progress.epoch * len(batches.rows) + min(progress.batch * batches.batch_size, len(batches.rows))
