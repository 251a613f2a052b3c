"""A document's words and word pairs as numbers, read off its tokens.

Pieces are put together to words again, each word is hashed, and so is each pair of neighbours; the hash modulo the
size of a table is the row that stands for it. No vocabulary has to be built or stored, and it works with every
tokenizer. The price: two words may share a row, rarely where the table has a few times as many rows as there are words.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aplc.data.tokenizer import Tokenizer

INSIDE = "##"
"""WordPiece's mark of a piece that goes on a word."""
BEGIN = "▁Ġ"
"""SentencePiece's and byte-level BPE's marks of a piece that begins one."""
_A, _B, _C = (np.uint64(c) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True)
class WordHasher:
    """Token ids to rows of a table of `size` rows."""

    begins: NDArray[np.bool_]
    """For each piece, whether a word begins with it."""
    counts: NDArray[np.bool_]
    """For each piece, whether a word that begins with it is one: punctuation is not."""
    size: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, size: int) -> "WordHasher":
        """For the words that `tokenizer` cuts into pieces, by the marks its pieces carry."""
        pieces = [tokenizer.fast.id_to_token(i) or "" for i in range(tokenizer.vocab_size)]
        if any(piece.startswith(INSIDE) for piece in pieces):
            begins = [not piece.startswith(INSIDE) for piece in pieces]
        elif mark := next((mark for mark in BEGIN if any(piece.startswith(mark) for piece in pieces)), ""):
            begins = [piece.startswith(mark) for piece in pieces]
        else:
            begins = [True] * len(pieces)
        counts = [any(map(str.isalnum, piece)) or (piece != "" and piece in BEGIN) for piece in pieces]
        return cls(np.array(begins), np.array(counts), size)

    def __call__(self, tokens: Sequence[int] | NDArray) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """(rows, how often each occurs) of a document, rows rising."""
        ids = np.asarray(tokens, dtype=np.int64)
        if not len(ids):
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
        starts = np.flatnonzero(self.begins[ids])
        if not len(starts) or starts[0] != 0:
            starts = np.concatenate([[0], starts])
        place = np.arange(len(ids)) - np.repeat(starts, np.diff([*starts, len(ids)]))  # of a piece in its word
        pieces = _mix((ids + 1).astype(np.uint64) * _A + place.astype(np.uint64) * _C)
        words = _mix(np.add.reduceat(pieces, starts))[self.counts[ids[starts]]]
        pairs = _mix(words[:-1] * _A + words[1:])
        rows, counts = np.unique(np.concatenate([words, pairs]) % np.uint64(self.size), return_counts=True)
        return rows.astype(np.int64), counts.astype(np.float32)

    def document_counts(self, documents: Iterable[Sequence[int] | NDArray]) -> NDArray[np.int64]:
        """How many of the documents, given as tokens, have each row of the table."""
        found = np.zeros(self.size, dtype=np.int64)
        for tokens in documents:
            found[self(tokens)[0]] += 1
        return found


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of the result depends on every bit of x."""
    x = (x ^ (x >> np.uint64(30))) * _B
    x = (x ^ (x >> np.uint64(27))) * _C
    return x ^ (x >> np.uint64(31))
