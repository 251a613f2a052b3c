"""Where training starts from: what the training documents say about words and labels before the first step.

Biases start at the labels' log-odds (`clusters.bias`), word weights at inverse document frequencies, and labels, where
`clusters.init` says so, at the mean hidden state of the documents that carry them. A rare label is seen in few steps;
begun there, it is found from its first example on. Price: one forward pass over the training documents.

Shapes: B documents, D hidden width, L labels of a cluster, W its width, P (document, label) pairs.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aplc.console import Screen
from aplc.data.batches import NO_LABEL, Batches
from aplc.data.tokens import TokenCache
from aplc.data.words import WordHasher
from aplc.distributed import world
from aplc.folder import ModelFolder
from aplc.nn.model import TaggingModel
from aplc.nn.partition import Partition

SCALE = 10.0
"""A label's first logit for a document whose state points where its mean does, beyond its bias."""
BATCH = 64


def begin(
    folder: ModelFolder, partition: Partition, cache: TokenCache, rows: NDArray[np.int64], screen: Screen
) -> None:
    """Set what can be known before training from the documents `rows` of `cache`."""
    model, config = folder.model, folder.config
    if config.clusters.bias:
        touched = partition.documents_touching(cache.label_offsets, cache.label_ids)
        model.clusters.init_bias(folder.labels.counts, folder.n_documents, touched)
    if model.words is not None:
        hasher = WordHasher.of(folder.tokenizer, config.model.words)
        model.words.set_idf(hasher.document_counts(cache.row(int(i))[0] for i in rows), len(rows))
    if config.clusters.init == "documents":
        batches = Batches(cache, rows, folder.collator, BATCH, 0)
        with screen.bar("placing labels", len(rows)) as advance:
            place_labels(model, batches, advance)


@torch.no_grad()
def place_labels(model: TaggingModel, batches: Batches, advance: Callable[[int], None]) -> None:
    """Every label's weights from the mean state of its documents. Every rank does the same work."""
    clusters, device = model.clusters, world().device
    bounds = [0, *clusters.cutoffs, clusters.n_labels]
    tails: Any = clusters.tails
    layers = [clusters.head, *(tail.output for tail in tails)]
    means = [
        _Means(stop - start, layer.in_features) for (start, stop), layer in zip(pairwise(bounds), layers, strict=True)
    ]
    model.to(device).eval()
    for batch in batches.epoch(0):
        hidden_BD = model.represent(batch.to(device))
        row_P, place_P = (batch.labels != NO_LABEL).nonzero(as_tuple=True)
        label_P = batch.labels[row_P, place_P]
        for i, mean in enumerate(means):
            states_BW = hidden_BD if i == 0 else tails[i - 1].narrow(hidden_BD)
            own_P = (label_P >= bounds[i]) & (label_P < bounds[i + 1])
            mean.add(states_BW.float().cpu(), row_P[own_P], label_P[own_P] - bounds[i])
        advance(len(batch))
    for layer, mean in zip(layers, means, strict=True):
        layer.weight[: len(mean.count_L)] = mean.weights().to(layer.weight)
    model.train()


class _Means:
    """Running sums of states by label."""

    def __init__(self, n_labels: int, width: int) -> None:
        self.sum_LW, self.count_L = torch.zeros(n_labels, width), torch.zeros(n_labels)
        self.total_W, self.norm, self.n = torch.zeros(width), 0.0, 0

    def add(self, states_BW: Tensor, row_P: Tensor, label_P: Tensor) -> None:
        self.sum_LW.index_add_(0, label_P, states_BW[row_P])
        self.count_L.index_add_(0, label_P, torch.ones(len(label_P)))
        self.total_W += states_BW.sum(0)
        self.norm, self.n = self.norm + float(states_BW.norm(dim=1).sum()), self.n + len(states_BW)

    def weights(self) -> Tensor:
        """Each label's direction away from the mean of all, as long as SCALE asks for."""
        away_LW = self.sum_LW / self.count_L.clamp_min(1)[:, None] - self.total_W / self.n
        away_LW[self.count_L == 0] = 0
        return torch.nn.functional.normalize(away_LW, dim=1) * (SCALE * self.n / self.norm)
