"""Epochs with a frozen encoder, before all weights are trained together (`train.frozen_epochs`).

The hidden layer and the clusters begin with random weights. While they know nothing, a pretrained encoder learns little
from their gradients, and they learn at its pace: minutes of a CPU an epoch. But all they see of a document is the
encoder's one vector, and while the encoder stays as it is, that vector need be computed only once; an epoch over such
vectors takes seconds. So they learn from these first, and fine-tuning starts from there (linear probing, then
fine-tuning: Kumar et al. 2022). The price is one pass of the encoder over the training documents, without gradients,
about a third of an epoch, and E numbers a document in memory.

The steps are those of the training loop; `Batch.states` takes the place of tokens.

Shapes: C documents of the cache, E encoder width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aplc.data.batches import Batch, Batches, by_length, prefetch
from aplc.nn.distributed import world
from aplc.train import loop
from aplc.train.checkpoint import Progress
from aplc.train.optim import Optimizers, slanted_triangular

if TYPE_CHECKING:
    from aplc.train.network import TrainingRun

BATCH_SIZE = 64
"""Documents a step: the optimizer's pass over all labels' weights takes longer than their arithmetic."""
WARMUP = 0.1
"""Of all steps."""


def train_on_states(run: TrainingRun) -> None:
    """Train the hidden layer and the clusters of a run that has not begun yet."""
    rows, epochs = _documents(run), run.config.train.frozen_epochs
    states_CE, batches, alone = encode(run, rows), state_batches(run, rows), beginning_of(run)
    total = epochs * len(batches)
    run.network.train()
    with run.screen.bar("on states", epochs * len(rows)) as advance:
        for epoch in range(epochs):
            for batch in with_states(batches, batches.order(epoch), states_CE):
                rate = slanted_triangular(alone.progress.step, warmup=int(WARMUP * total), total=total)
                loop.train_step(alone, batch, rate)
                alone.progress.step += 1
                advance(len(batch))


def encode(run: TrainingRun, rows: NDArray[np.int64]) -> Tensor:
    """states_CE: the encoder's vectors of these rows of the cache, zeros elsewhere. The ranks share them out."""
    network, device = run.network, world().device
    states_CE = torch.zeros(len(run.train.cache), network.encoder.width)
    groups = [rows[members] for members in by_length(run.train.lengths(rows).tolist(), network.batch_size)]
    own = world().share(groups)
    network.eval()
    with (
        torch.no_grad(),
        loop.autocast(device, run.config.train.precision),
        run.screen.bar("encoding", len(rows)) as advance,
    ):
        for turn, batch in enumerate(prefetch(run.train.batch, own)):
            moved = batch.to(device)
            vectors = network.encoder(moved.input_ids, moved.attention_mask, moved.token_type_ids)
            if turn * world().size + world().rank < len(groups):  # else it fills up, and is another rank's
                states_CE[torch.from_numpy(own[turn])] = vectors.float().cpu()
            advance(len(batch) * world().size)
    return world().sum(states_CE)


def state_batches(run: TrainingRun, rows: NDArray[np.int64]) -> Batches:
    """These rows with their labels and without their text."""
    without_text = replace(run.train.collate, max_length=run.train.collate.template.size)
    return replace(run.train, rows=rows, batch_size=BATCH_SIZE, collate=without_text)


def with_states(batches: Batches, order: list[NDArray[np.int64]], states_CE: Tensor) -> Iterator[Batch]:
    return prefetch(lambda rows: replace(batches.batch(rows), states=states_CE[torch.from_numpy(rows)]), order)


def beginning_of(run: TrainingRun) -> TrainingRun:
    """The same network with progress and moments of its own; the optimizer leaves alone what has no gradient."""
    optimizers = Optimizers.for_tagging(run.network, run.config.train)
    return replace(run, optimizers=optimizers, progress=Progress())


def _documents(run: TrainingRun) -> NDArray[np.int64]:
    """The rows to learn from: all of the run, or as many of them as `train.max_documents` allows."""
    rows, limit = run.train.rows, run.config.train.max_documents
    if not 0 < limit < len(rows):
        return rows
    return np.sort(np.random.default_rng(run.config.train.seed).permutation(rows)[:limit])
