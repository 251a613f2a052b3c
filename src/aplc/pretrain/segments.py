"""A corpus as endless text: documents one after the other in a new order every epoch, cut into segments.

The epoch's text is dealt out as B streams, one for each row of the batch; each step takes the next T tokens of every
stream: so a row's memory is what stands right before it. Nothing is padded, and nothing is put together before it is
read: a segment is looked up in the token cache by its place in the text.

Each document comes with its special tokens (`text <sep> <cls>`), as fine-tuning will show it. Segment ids tell
documents, and `<cls>`, from each other; memory is 0, and so is the document that goes on from there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from aplc.data.batches import prefetch
from aplc.data.cache import DocumentCache
from aplc.data.pieces import word_starts
from aplc.data.tokenizer import Template, Tokenizer
from aplc.pretrain.config import ObjectiveConfig
from aplc.pretrain.permutation import PermutationBatch, make_batch


@dataclass(frozen=True)
class Text:
    """Documents in an order, as one row of tokens."""

    cache: DocumentCache
    rows: NDArray[np.int64]
    template: Template

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        return np.cumsum(self.cache.lengths[self.rows] + self.template.size)

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.rows) else 0

    def read(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """(ids, segment ids, whether it is a special token) of the tokens from `start` to `stop`."""
        ids, types, functional = [], [], []
        first = int(np.searchsorted(self.ends, start, side="right"))
        begin = int(self.ends[first - 1]) if first else 0
        number = 0 if begin < start else 2
        for row, end in zip(self.rows[first:], self.ends[first:], strict=True):
            pieces, special, kinds = self._part(row, max(start - begin, 0), stop - begin)
            ids.append(pieces)
            functional.append(special)
            types.append(number + (kinds != 0))
            begin, number = int(end), number + 2
            if begin >= stop:
                break
        return np.concatenate(ids), np.concatenate(types), np.concatenate(functional)

    def _part(self, row: int, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
        """(ids, whether special, the template's segment ids) of a document's tokens from `start` to `stop`."""
        template, body = self.template, self.cache.document(row)[0]
        parts, kinds = [], []
        for tokens, types in (
            (template.prefix, template.prefix_types),
            (body, None),
            (template.suffix, template.suffix_types),
        ):
            here = slice(max(start, 0), max(stop, 0))
            parts.append(np.asarray(tokens[here], dtype=np.int64))
            kinds.append(np.full(len(parts[-1]), -1) if types is None else np.asarray(types[here], dtype=np.int64))
            start, stop = start - len(tokens), stop - len(tokens)
        kind = np.concatenate(kinds)
        return np.concatenate(parts), kind >= 0, np.maximum(kind, 0)


@dataclass(frozen=True)
class Segments:
    """The batches of a part of the corpus, epoch after epoch."""

    cache: DocumentCache
    rows: NDArray[np.int64]
    """Which documents of the cache take part."""
    tokenizer: Tokenizer
    objective: ObjectiveConfig
    length: int
    batch_size: int
    seed: int

    @cached_property
    def n_tokens(self) -> int:
        return int((self.cache.lengths[self.rows] + self.tokenizer.template.size).sum())

    def __len__(self) -> int:
        """Steps an epoch; a rest too short for a whole batch is left out."""
        return self.n_tokens // self.batch_size // self.length

    @cached_property
    def word_starts(self) -> NDArray[np.bool_]:
        """For each piece of the vocabulary, whether a word begins with it."""
        pieces = [self.tokenizer.fast.id_to_token(i) or "" for i in range(self.tokenizer.vocab_size)]
        return np.array(word_starts(pieces))

    def epoch(self, epoch: int, *, start: int = 0) -> Iterator[PermutationBatch]:
        """Batches of `epoch` from number `start` on, put together in a thread ahead of their use."""
        shuffled = np.random.default_rng([self.seed, epoch]).permutation(self.rows)
        text = Text(self.cache, shuffled, self.tokenizer.template)
        return prefetch(lambda number: self.batch(text, epoch, number), range(start, len(self)))

    def batch(self, text: Text, epoch: int, number: int) -> PermutationBatch:
        stride = len(self) * self.length
        starts = [row * stride + number * self.length for row in range(self.batch_size)]
        ids, types, functional = zip(*(text.read(start, start + self.length) for start in starts), strict=True)
        rng = np.random.default_rng([self.seed, epoch, number])
        return make_batch(ids, types, functional, self.word_starts, self.objective, rng)
