"""A model of words: every label is a weighted sum of a document's words and pairs of words, and nothing else.

The idea: on a CPU, and where labels have few examples, that a word occurs says more than what a small network makes of
its sentence. So there is no encoder and no hidden layer. A document is its words and pairs of neighbours, weighted by
TF-IDF; the weights of a label come from ridge regression (`aplc.train.ridge`), and most of them are small enough to be
left out. A label's curve then turns its score s into a logit, a + b s + c s^2.
The price: what is said in more than two words, and the meaning of unseen words, is lost.

Shapes: B documents, W words and pairs of the longest, V of both known, L labels, N weights kept.
"""

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aplc.config import WORDS
from aplc.data.batches import Batch
from aplc.data.words import ROWS, VERSION
from aplc.errors import ModelError
from aplc.nn.topk import RunningTopK, TopK, sigmoid_

PAIR_LEAST, PAIR_MOST = 3, 0.1
"""Documents that a pair must be in, and the share of all that it may be in: more say nothing and cost time."""
PAIR_LENGTH = 0.5
"""Of a document's pairs, where its words have 1."""


class WordFeatures(nn.Module):
    """Which words and pairs are known, and how much each counts: TF-IDF, a document's words together of length 1, its
    pairs of length `PAIR_LENGTH`."""

    row: Tensor
    idf: Tensor

    def __init__(self, n_words: int) -> None:
        super().__init__()
        self.register_buffer("row", torch.zeros((n_words,), dtype=torch.int64))
        self.register_buffer("idf", torch.zeros((n_words,)))

    @classmethod
    def choose(cls, document_counts: NDArray[np.integer], n_documents: int) -> Self:
        """The words of two and more documents, and pairs; `document_counts` has an entry for each row of the hasher."""
        row = np.flatnonzero(document_counts > 1)
        count = document_counts[row]
        row = row[(row < ROWS) | ((count >= PAIR_LEAST) & (count <= PAIR_MOST * n_documents))]
        features = cls(len(row))
        features.row.copy_(torch.from_numpy(row))
        features.idf.copy_(torch.from_numpy(np.log((1 + n_documents) / (1 + document_counts[row])) + 1))
        return features

    def forward(self, words_BW: Tensor, counts_BW: Tensor) -> tuple[Tensor, Tensor]:
        """Columns (B, W) of the words, and their weights, 0 for padding and for words that are not known."""
        column_BW = torch.searchsorted(self.row, words_BW).clamp_max(len(self.row) - 1)
        known_BW = (self.row[column_BW] == words_BW) & (counts_BW > 0)
        weight_BW = (1 + counts_BW.clamp_min(1).log()) * self.idf[column_BW] * known_BW
        pair_BW = words_BW >= ROWS
        return column_BW, _unit(weight_BW * ~pair_BW) + PAIR_LENGTH * _unit(weight_BW * pair_BW)


def _unit(x_BW: Tensor) -> Tensor:
    """Rows of length 1. Squares are summed one by one, so that padding changes no bit."""
    return x_BW / x_BW.square().cumsum(1)[:, -1:].sqrt().clamp_min(1e-12)


class AllLabels:
    """What the rest of the package asks of label clusters, for logits that are there already: one cluster of all."""

    def __init__(self, n_labels: int) -> None:
        self.n_labels, self.bounds = n_labels, [0, n_labels]
        self.cutoffs: list[int] = []
        self.added: list[Any] = []
        self.options: dict[str, Any] = {"added": []}

    def topk(self, logits_BL: Tensor, k: int, *, allowed: Tensor | None = None) -> TopK:
        """As `LabelClusters.topk`."""
        best = RunningTopK(len(logits_BL), min(k, self.n_labels), logits_BL.dtype, logits_BL.device)
        best.update(logits_BL.t(), 0, allowed_L=allowed)
        return TopK(best.probs_Bk, best.ids_Bk)


class NoEncoder:
    """What the rest of the package asks of an encoder: a model of words reads all of a text."""

    pad_left, max_tokens = False, 1 << 62

    def __init__(self, n_words: int, n_weights: int) -> None:
        self.n_words, self.n_weights = n_words, n_weights

    def save_config(self) -> dict[str, Any]:
        return {"family": WORDS, "version": VERSION, "n_words": self.n_words, "n_weights": self.n_weights}


def rising(score_BL: Tensor, curve_3L: Tensor) -> Tensor:
    """a + b s + c s^2 up to where it rises by s; from there on straight, with a slope of 1."""
    a_L, b_L, c_L = curve_3L
    turn_L = (1 - b_L) / (2 * c_L)  # infinite, or no number, for a straight line
    bent_BL = torch.where(c_L > 0, torch.maximum(score_BL, turn_L), score_BL)
    bent_BL = torch.where(c_L < 0, torch.minimum(bent_BL, turn_L), bent_BL)
    return a_L + (b_L + c_L * bent_BL) * bent_BL + (score_BL - bent_BL)


class WordModel(nn.Module):
    """In place of `TaggingModel` where `model.encoder` is "words". Not trained by gradients.

    Weights are kept by word: those of word v are `weight[start[v]:start[v + 1]]`, for the labels in `label`.
    """

    start: Tensor
    label: Tensor

    def __init__(self, features: WordFeatures, n_weights: int, n_labels: int) -> None:
        super().__init__()
        n_words = len(features.row)
        self.features = features
        self.register_buffer("start", torch.zeros(n_words + 1, dtype=torch.int64))
        self.register_buffer("label", torch.zeros((n_weights,), dtype=torch.int32))
        self.weight = nn.Parameter(torch.zeros((n_weights,)), requires_grad=False)
        self.bias = nn.Parameter(torch.zeros(n_labels), requires_grad=False)
        self.curve = nn.Parameter(torch.zeros(3, n_labels), requires_grad=False)
        self.encoder, self.clusters = NoEncoder(n_words, n_weights), AllLabels(n_labels)

    @classmethod
    def from_config(cls, config: dict[str, Any], n_labels: int) -> Self:
        """The model of `NoEncoder.save_config`, its weights to be loaded."""
        if config.get("version") != VERSION:
            raise ModelError("a model of words that reads words as another version of aplc did; train it again")
        return cls(WordFeatures(config["n_words"]), config["n_weights"], n_labels)

    def represent(self, batch: Batch) -> Tensor:
        """logits_BL. Sums run over a document's own words in their order, so other documents change no bit."""
        column_BW, value_BW = self.features(batch.words, batch.word_counts)
        score_BL = self.bias.repeat(len(column_BW), 1)
        for column_W, value_W, score_L in zip(column_BW, value_BW, score_BL, strict=True):
            column_W, value_W = column_W[value_W > 0], value_W[value_W > 0]
            size_W = self.start[column_W + 1] - self.start[column_W]
            word_N = torch.repeat_interleave(size_W)
            place_N = torch.arange(len(word_N)) + (self.start[column_W] - size_W.cumsum(0) + size_W)[word_N]
            score_L.index_add_(0, self.label[place_N], self.weight[place_N] * value_W[word_N])
        return rising(score_BL, self.curve)

    def probability_of(self, batch: Batch, label: int) -> Tensor:
        return sigmoid_(self.represent(batch)[:, label].clone())

    def forward(self, *_: Any) -> Tensor:
        raise ModelError("a model of words has no gradients; train it again with all documents, it takes little time")

    def check(self) -> None:
        """Refuse a table that points outside itself, as one from a stranger may."""
        start, label, row = self.start, self.label, self.features.row
        inside = (
            len(row) and start[0] == 0 and start[-1] == len(label) and start.min() >= 0 and start.max() <= len(label)
        )
        if not inside or bool((start.diff() < 0).any()):
            raise ModelError("the words' weights don't fit together; the model is damaged")
        if len(label) and not 0 <= int(label.min()) <= int(label.max()) < self.clusters.n_labels:
            raise ModelError(f"weights for labels that are none of {self.clusters.n_labels:,}; the model is damaged")
        if bool((row.diff() <= 0).any()):
            raise ModelError("the words' rows must rise; the model is damaged")
