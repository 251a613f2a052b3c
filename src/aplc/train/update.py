"""One gentle pass over new documents with a trained model: what `Tagger.partial_fit` does.

No warm-up, no validation, no checkpoint; the optimizers start afresh, at a tenth of the training run's rates, because
a few documents must not undo what many have taught.
"""

import copy
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from aplc.config import Config
from aplc.data.formats import Document
from aplc.errors import RunError
from aplc.models.base import function_for
from aplc.models.network import TaggingModel
from aplc.models.trained import TrainedTagger
from aplc.train.loop import apply_gradients, autocast
from aplc.train.optim import Optimizers

RATE = 0.1
"""Share of the training run's learning rates."""


def update(trained: TrainedTagger, documents: Sequence[Document], *, n_counted: int = 0) -> TrainedTagger:
    """The tagger after one pass over `documents`; the given one stays as it is.

    Labels with ids from `n_counted` on, if given, have these documents in their counts already.
    """
    labels, learn = trained.labels, function_for(trained.model.kind, "learn")
    truth = [labels.encode(document.labels) for document in documents]
    model = learn(trained.model, trained.config, [document.text for document in documents], truth)
    counts = labels.counts.copy()
    for i, n in Counter(i for own in truth for i in own).items():
        counts[i] += n if i < (n_counted or len(labels)) else 0
    return replace(
        trained,
        model=model,
        labels=replace(labels, counts=counts),
        n_documents=trained.n_documents + len(documents),
        held_out=None,
        evaluation=None,
    )


def learn(model: TaggingModel, config: Config, texts: list[str], truth: Sequence[Sequence[int]]) -> TaggingModel:
    """The network after one pass."""
    train, device = config.train, model.device
    model = copy.deepcopy(model).train()
    tokens, optimizers = model.tokenizer.encode(texts), Optimizers.for_tagging(model, train)
    order = np.random.default_rng(train.seed).permutation(len(tokens))
    for start in range(0, len(order), train.batch_size):
        members = order[start : start + train.batch_size]
        batch = model.collator([tokens[i] for i in members], [truth[i] for i in members]).to(device)
        optimizers.zero_grad()
        with autocast(device, train.precision):
            loss = model(batch)
        loss.backward()
        if not apply_gradients(model, optimizers, float(loss.detach()), clip_norm=train.clip_norm, rate=RATE):
            raise RunError(
                f"partial_fit: loss or gradients are not finite at document {start + 1:,}; nothing is changed"
            )
    return model.eval()
