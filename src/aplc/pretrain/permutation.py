"""Factorization orders and the masks that follow from them (Yang et al. 2019, Equations 2-4 and section 2.3).

Permutation language modelling predicts the tokens of a segment one after the other in a random order, each from those
before it in the order, wherever they stand in the text. Only the last of the order are predicted ("partial prediction",
one token in K); the others are context that everybody sees. So an order is one number a token: -1 for context, 0, 1, 2,
... for the targets. Targets are spans of whole words: a single piece is easily guessed from the rest of its word.

Shapes: B segments, T tokens, N targets.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aplc.data.batches import NO_LABEL
from aplc.pretrain.config import ObjectiveConfig

CONTEXT = -1


@dataclass(frozen=True)
class PermutationBatch:
    """Segments with a factorization order each."""

    input_ids: Tensor  # (B, T)
    token_type_ids: Tensor  # (B, T)
    order: Tensor  # (B, T), CONTEXT or a target's place in the order
    places: Tensor  # (B, N), the targets' positions
    labels: Tensor  # (B, N), the targets' ids; NO_LABEL where a segment has fewer targets

    def rows(self, start: int, stop: int) -> "PermutationBatch":
        return PermutationBatch(*(tensor[start:stop] for tensor in vars(self).values()))

    def to(self, device: torch.device) -> "PermutationBatch":
        return PermutationBatch(*(tensor.to(device) for tensor in vars(self).values()))

    @property
    def n_targets(self) -> int:
        return int((self.labels != NO_LABEL).sum())

    def __len__(self) -> int:
        return len(self.input_ids)


def perm_mask(order_BT: Tensor) -> Tensor:
    """(B, T, T): True where token j is hidden from token i. Hidden are targets that come no earlier than i.

    A target is hidden from itself, which is what the query stream needs; the content stream lifts that.
    """
    later_BTT = order_BT[:, :, None] <= order_BT[:, None, :]
    return later_BTT & (order_BT != CONTEXT)[:, None]


def choose_targets(
    starts_T: NDArray[np.bool_], allowed_T: NDArray[np.bool_], config: ObjectiveConfig, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Positions of a segment's targets, rising: one token in `one_in`, or fewer where fewer are allowed.

    Spans of n words, n drawn with probability proportional to 1/n, each somewhere in a stretch of n * one_in tokens.
    The stretches begin at a random token and go round, so that no part of the segment is favoured; a span that would
    leave the segment goes on at its beginning.
    """
    tokens = len(starts_T)
    wanted = min(max(1, tokens // config.one_in), int(allowed_T.sum()))
    words = np.flatnonzero(starts_T)
    lengths = np.arange(1, config.max_span + 1)
    chosen = np.zeros(tokens, dtype=bool)
    missing, begin, walked = wanted, int(rng.integers(tokens)), 0
    while missing > 0 and walked < tokens and len(words):
        n = int(rng.choice(lengths, p=(1 / lengths) / (1 / lengths).sum()))
        stretch = n * config.one_in
        at = (begin + walked + int(rng.integers(stretch - n + 1))) % tokens
        first = int(np.searchsorted(words, at)) % len(words)
        size = (words[(first + n) % len(words)] - words[first]) % tokens if n < len(words) else tokens
        span = np.arange(words[first], words[first] + size) % tokens
        walked += stretch
        span = span[allowed_T[span] & ~chosen[span]][:missing]
        chosen[span] = True
        missing -= len(span)
    if missing > 0:
        chosen[rng.choice(np.flatnonzero(allowed_T & ~chosen), missing, replace=False)] = True
    return np.flatnonzero(chosen)


def make_batch(
    ids: Sequence[NDArray[np.int64]],
    types: Sequence[NDArray[np.int64]],
    functional: Sequence[NDArray[np.bool_]],
    word_starts_V: NDArray[np.bool_],
    config: ObjectiveConfig,
    rng: np.random.Generator,
) -> PermutationBatch:
    """Draw an order for each segment. Functional tokens (`<sep>`, `<cls>`) are always context."""
    tokens = len(ids[0])
    slots = max(1, tokens // config.one_in)
    order = np.full((len(ids), tokens), CONTEXT, dtype=np.int64)
    places = np.zeros((len(ids), slots), dtype=np.int64)
    labels = np.full((len(ids), slots), NO_LABEL, dtype=np.int64)
    for b, row in enumerate(ids):
        found = choose_targets(word_starts_V[row] | functional[b], ~functional[b], config, rng)
        order[b, found] = rng.permutation(len(found))
        places[b, : len(found)] = found
        labels[b, : len(found)] = row[found]
    arrays = (np.stack(ids), np.stack(types), order, places, labels)
    return PermutationBatch(*map(torch.from_numpy, arrays))
