"""A few real steps before a run: how long one takes, and how much memory its activations need.

Activations are counted: every tensor that autograd keeps for the backward pass, once per storage. That works on every
device, and for a model that would not fit. Time is taken on batches spread over all lengths, through the step of the
training loop itself.
"""

import hashlib
import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aplc.data.batches import Batch, Batches, prefetch
from aplc.machine import free_bytes, resident_bytes
from aplc.nn.device import module_of
from aplc.nn.distributed import world
from aplc.nn.encoder import Encoder
from aplc.train import frozen
from aplc.train.loop import autocast, train_step
from aplc.train.network import TrainingRun

STEPS, WARMUP = 20, 2
ENOUGH_SECONDS, FEWEST = 60.0, 5
"""Slow steps are no longer timed after this many seconds, but at least this many are."""
BACKWARD = 1.25
"""What the backward pass holds beside the kept activations: gradients of the layer at work, the allocator's gaps."""
DISK_SAMPLE = 64 << 20


@dataclass(frozen=True)
class Activations:
    """Bytes of a forward and backward pass over n documents of `tokens` tokens: fixed + n x each."""

    tokens: int
    fixed: float
    each: float
    layers: int

    def of(self, n_documents: int) -> int:
        return round(self.fixed + n_documents * self.each)

    def checkpointed(self) -> "Activations":
        """With `model.checkpoint_activations`: one layer at a time, and what enters each of them.

        On a CPU the C library's heap is left with gaps that the next layer's tensors do not fit into: a half of the
        memory of 12 layers remained (bench/LOG.md).
        """
        share = max(1 / self.layers + 0.06, 0.5 if world().device.type == "cpu" else 0.0)
        return replace(self, each=min(1.0, share) * self.each)


def measure_activations(encoder: Encoder, batch: Batch, *, after: int, checkpointed: bool) -> Activations:
    """Forward passes over a few of `batch`'s documents. `after` bytes a document are needed behind the encoder."""
    config = encoder.body.config
    layers = int(getattr(config, "n_layer", 0) or getattr(config, "num_hidden_layers", 1))
    encoder.checkpoint_activations(False)
    small = max(1, min(2, len(batch) // 2))
    large = max(small + 1, min(8, len(batch)))
    kept = {n: _kept_bytes(encoder, _rows(batch, n)) for n in (small, large)}
    each = (kept[large] - kept[small]) / (large - small)
    fixed = max(0.0, kept[small] - small * each)
    found = Activations(batch.input_ids.shape[1], BACKWARD * fixed, BACKWARD * each, layers)
    if checkpointed:
        encoder.checkpoint_activations(True)
        found = found.checkpointed()
    return replace(found, each=found.each + after)


def _rows(batch: Batch, n: int) -> Batch:
    """The first n documents; over again where there are fewer."""
    rows = torch.arange(n) % len(batch)
    return Batch(**{name: tensor[rows] for name, tensor in batch.tensors().items()})


def _kept_bytes(encoder: Encoder, batch: Batch) -> int:
    device = world().device
    encoder.to(device).train()  # before its weights' addresses are taken
    own = {parameter.untyped_storage().data_ptr() for parameter in encoder.parameters()}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []  # a freed storage's address could come up again

    def count(tensor: Tensor) -> Tensor:
        tensor = tensor.detach()  # a graph that keeps a tensor with its own history would never be freed
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    moved = batch.to(device)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor), autocast(device):
        encoder(moved.input_ids, moved.attention_mask, moved.token_type_ids)
    return sum(kept.values())


@dataclass(frozen=True)
class Timing:
    steps: int
    """Measured."""
    step_seconds: float
    """Mean of a training step, over batches of all lengths."""
    state_step_seconds: float
    """Of a step on the encoder's states (`train.frozen_epochs`); 0 if there are none."""
    validation_seconds: float
    """Of a held-out document."""
    bytes_per_second: float
    """A checkpoint's way to the disk, checksum included."""
    resident: int
    """Memory of the process after the last step."""


def measure_time(run: TrainingRun) -> Timing:
    """Train for a moment. `run.train` has the batches of a sample; its weights are spoilt for anything else."""
    spread = spread_batches(run.train, STEPS)
    longest = max(spread, key=lambda rows: int(run.train.cache.lengths[rows].max()))
    chosen = [longest] * WARMUP + spread  # the longest first: if memory is short, it shows at once
    run.network.train()
    began, steps = _now(), -WARMUP
    for batch in prefetch(run.train.batch, chosen):
        train_step(run, batch, 1.0)
        steps += 1
        if steps == 0:
            began = _now()
        if steps >= FEWEST and _now() - began > ENOUGH_SECONDS:
            break
    step_seconds = (_now() - began) / steps
    resident = resident_bytes()
    return Timing(steps, step_seconds, _state_step_seconds(run), _validation_seconds(run), _disk_speed(), resident)


def spread_batches(batches: Batches, n: int) -> list[NDArray[np.int64]]:
    """The rows of n full batches spread evenly over all lengths, in no order: their mean stands for an epoch's."""
    order = batches.order(0)
    full = [rows for rows in order if len(rows) == batches.batch_size] or order
    full.sort(key=lambda rows: int(batches.cache.lengths[rows].max()))
    places = np.random.default_rng(0).permutation(n)
    return [full[int((place + 0.5) * len(full) / n)] for place in places]


def _now() -> float:
    device = world().device
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.monotonic()


def _state_step_seconds(run: TrainingRun) -> float:
    if not run.config.train.frozen_epochs:
        return 0.0
    batches, alone = frozen.state_batches(run, run.train.rows), frozen.beginning_of(run)
    states_CE = torch.rand(len(run.train.cache), run.network.encoder.width)
    order = (batches.order(0) * (1 + FEWEST))[: 1 + FEWEST]
    began = _now()
    for i, batch in enumerate(frozen.with_states(batches, order, states_CE)):
        if i == 1:
            began = _now()  # the first one makes the optimizer's moments
        train_step(alone, batch, 1.0)
    return (_now() - began) / FEWEST


def _validation_seconds(run: TrainingRun) -> float:
    cache = run.train.cache
    n = min(4 * run.network.batch_size, len(cache))
    run.valid, run.valid_rows = cache, np.linspace(0, len(cache) - 1, n).astype(np.int64)
    began = _now()
    run.validate()
    return (_now() - began) / n


def _disk_speed() -> float:
    """Bytes a second from memory through a checksum to the disk, as checkpoints go."""
    block = os.urandom(1 << 20)
    began = time.monotonic()
    with tempfile.NamedTemporaryFile() as file:
        for _ in range(DISK_SAMPLE >> 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        with Path(file.name).open("rb") as stream:
            hashlib.file_digest(stream, "sha256")
    return DISK_SAMPLE / (time.monotonic() - began)


def memory_at_hand() -> tuple[int, str]:
    """(bytes, what they are): the GPU's memory, or what this process has and may still get."""
    device = world().device
    if device.type != "cpu":
        return torch.accelerator.get_memory_info(device)[1], module_of(device).get_device_name(device)
    return free_bytes() + resident_bytes(), "memory available now"
