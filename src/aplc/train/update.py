"""One gentle pass over new documents with a trained model: what `Tagger.partial_fit` does.

No warm-up, no validation, no checkpoint; the optimizers start afresh, at a tenth of the training run's rates, because
a few documents must not undo what many have taught.
"""

import copy
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from aplc.data.formats import Document
from aplc.distributed import world
from aplc.errors import RunError
from aplc.folder import ModelFolder
from aplc.relabel import check_learns
from aplc.sharding import clip_gradients
from aplc.train.loop import autocast
from aplc.train.optim import Optimizers

RATE = 0.1
"""Share of the training run's learning rates."""


def update(folder: ModelFolder, documents: Sequence[Document], *, n_counted: int = 0) -> ModelFolder:
    """The model after one pass over `documents`; the given one stays as it is.

    Labels with ids from `n_counted` on, if given, have these documents in their counts already.
    """
    check_learns(folder)
    config, labels, device = folder.config.train, folder.labels, world().device
    truth = [labels.encode(document.labels) for document in documents]
    rows = folder.tokenizer.encode([document.text for document in documents])
    model = copy.deepcopy(folder.model).train()
    optimizers = Optimizers.for_tagging(model, config)
    order = np.random.default_rng(config.seed).permutation(len(rows))
    for start in range(0, len(order), config.batch_size):
        members = order[start : start + config.batch_size]
        batch = folder.collator([rows[i] for i in members], [truth[i] for i in members]).to(device)
        optimizers.zero_grad()
        with autocast(device):
            loss = model(batch)
        loss.backward()
        norm = clip_gradients(model, config.clip_norm)
        if not math.isfinite(float(loss.detach())) or not math.isfinite(norm):
            raise RunError(
                f"partial_fit: loss or gradients are not finite at document {start + 1:,}; nothing is changed"
            )
        optimizers.step(RATE)
    counts = labels.counts.copy()
    for i, n in Counter(i for row in truth for i in row).items():
        counts[i] += n if i < (n_counted or len(labels)) else 0
    return replace(
        folder,
        model=model.eval(),
        labels=replace(labels, counts=counts),
        n_documents=folder.n_documents + len(documents),
        held_out=None,
        evaluation=None,
    )
