"""Batches: documents of like length together, padded to the longest of the batch, in an order that follows from a seed.

The order of an epoch is a shuffle, cut into pools of many batches; each pool is sorted by length, cut into batches, and
all batches are shuffled again. Padding falls to a few percent while every epoch still mixes the documents anew.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aplc.data.cache import DocumentCache
from aplc.data.tokenizer import Template, Tokenizer

POOL = 50
"""Batches sorted by length together."""
NO_LABEL = -100

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Batch:
    """B documents of up to T tokens with up to P labels."""

    input_ids: Tensor  # (B, T)
    attention_mask: Tensor  # (B, T), 0 for padding
    token_type_ids: Tensor  # (B, T)
    labels: Tensor  # (B, P), padded with NO_LABEL
    partial: Tensor | None = None  # (B,), True where labels in neither list are unknown; None where nowhere
    rejected: Tensor | None = None  # (B, Q), what partial documents reject, padded with NO_LABEL; None with partial
    states: Tensor | None = None  # (B, E), the encoder's, where they are known already; the tokens are not read then

    def to(self, device: torch.device) -> "Batch":
        if device.type == "cpu":
            return self
        return Batch(**{name: x.pin_memory().to(device, non_blocking=True) for name, x in self.tensors().items()})

    def split(self, parts: int) -> list["Batch"]:
        """As many smaller batches with the same documents in the same order; some are empty where documents run out."""
        pieces = {name: tensor.tensor_split(parts) for name, tensor in self.tensors().items()}
        return [Batch(**{name: piece[i] for name, piece in pieces.items()}) for i in range(parts)]

    def tensors(self) -> dict[str, Tensor]:
        """Those that there are."""
        return {name: tensor for name, tensor in vars(self).items() if tensor is not None}

    def __len__(self) -> int:
        return len(self.input_ids)


@dataclass(frozen=True)
class Collator:
    """Puts token rows together as the encoder wants them."""

    template: Template
    max_length: int
    """Tokens a row may have, special tokens included."""
    pad_left: bool = True

    def __call__(
        self,
        tokens: Sequence[Sequence[int] | NDArray],
        labels: Sequence[Sequence[int] | NDArray],
        rejected: Sequence[Sequence[int] | NDArray | None] | None = None,
    ) -> Batch:
        """`rejected`: of each document that is only partly reviewed what it rejects, of others None."""
        template = self.template
        bodies = [row[: self.room] for row in tokens]
        width = max(len(body) for body in bodies) + template.size
        shape = (len(bodies), width)
        input_ids = np.full(shape, template.pad, dtype=np.int64)
        attention_mask = np.zeros(shape, dtype=np.int64)
        token_type_ids = np.zeros(shape, dtype=np.int64)
        for i, body in enumerate(bodies):
            row = np.concatenate([template.prefix, body, template.suffix]).astype(np.int64)
            types = (*template.prefix_types, *[0] * len(body), *template.suffix_types)
            place = slice(width - len(row), width) if self.pad_left else slice(0, len(row))
            input_ids[i, place], attention_mask[i, place], token_type_ids[i, place] = row, 1, types
        arrays = [input_ids, attention_mask, token_type_ids, _padded(labels)]
        partial = np.array([own is not None for own in rejected or ()], dtype=bool)
        if rejected is not None and partial.any():
            arrays += [partial, _padded([() if own is None else own for own in rejected])]
        return Batch(*map(torch.from_numpy, arrays))

    @property
    def room(self) -> int:
        """Tokens of a text that are taken."""
        return max(self.max_length - self.template.size, 0)

    def characters_read(self, tokenizer: Tokenizer, text: str) -> int:
        """Where a text is cut: after the last character of the last token that is taken."""
        offsets = tokenizer.fast.encode(text, add_special_tokens=False).offsets
        if len(offsets) <= self.room:
            return len(text)
        return max((stop for _, stop in offsets[: self.room]), default=0)


def _padded(lists: Sequence[Sequence[int] | NDArray]) -> NDArray[np.int64]:
    """Lists of label ids as rows, filled up with NO_LABEL."""
    ids = np.full((len(lists), max(1, *map(len, lists))), NO_LABEL, dtype=np.int64)
    for row, own in zip(ids, lists, strict=True):
        row[: len(own)] = own
    return ids


@dataclass(frozen=True)
class Batches:
    """The training batches of a cache, epoch after epoch."""

    cache: DocumentCache
    rows: NDArray[np.int64]
    """Which rows of the cache take part."""
    collate: Collator
    batch_size: int
    seed: int

    def __len__(self) -> int:
        return math.ceil(len(self.rows) / self.batch_size)

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens that are read of these rows."""
        return np.minimum(self.cache.lengths[rows], self.collate.max_length)

    def order(self, epoch: int) -> list[NDArray[np.int64]]:
        """The rows of each batch of `epoch`."""
        rng = np.random.default_rng([self.seed, epoch])
        shuffled = rng.permutation(self.rows)
        lengths = self.lengths(shuffled)
        pool = POOL * self.batch_size
        batches = []
        for start in range(0, len(shuffled), pool):
            by_length = start + np.argsort(lengths[start : start + pool], kind="stable")
            batches += [shuffled[by_length[i : i + self.batch_size]] for i in range(0, len(by_length), self.batch_size)]
        return [batches[i] for i in rng.permutation(len(batches))]

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """Batches of `epoch` from number `start` on, put together in a thread ahead of their use."""
        return prefetch(self.batch, self.order(epoch)[start:])

    def batch(self, rows: NDArray[np.int64]) -> Batch:
        tokens, labels = zip(*map(self.cache.document, rows), strict=True)
        rejected = [self.cache.rejected(int(i)) for i in rows] if len(self.cache.partial) else None
        return self.collate(tokens, labels, rejected)


def by_length(lengths: Sequence[int], batch_size: int) -> list[NDArray[np.int64]]:
    """Indices in batches of like length, the longest first: memory runs out at once or not at all."""
    order = np.argsort(-np.asarray(lengths), kind="stable")
    return [order[i : i + batch_size] for i in range(0, len(order), batch_size)]


def prefetch(make: Callable[[T], R], items: Iterable[T], depth: int = 2) -> Iterator[R]:
    """`make(item)` for each item in order, made by a thread up to `depth` ahead."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        pending: deque[Future[R]] = deque()
        for item in items:
            pending.append(pool.submit(make, item))
            if len(pending) > depth:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
