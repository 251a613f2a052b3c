"""A document's words and pairs of neighbouring words as numbers, read off its tokens.

Pieces are put together to words again, without case and the punctuation at their ends, and each word is hashed letter
by letter, so that it is the same however a tokenizer has cut it (but at a sign inside it: "follow-up" is one word where
it is one piece, else two). Where a script has no blanks between words, each piece is a word. The hash modulo a number
of rows is the row that stands for the word, or behind the words' rows for the pair. So neither has to be stored. The
price: two may share a row, words rarely, of the pairs of a large corpus one in a few, mostly with one of a single
document.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aplc.data.tokenizer import Tokenizer

VERSION = 3
"""Of what a word is and of its row; a model has weights for the rows of one version."""
INSIDE = "##"
"""WordPiece's mark of a piece that goes on a word."""
BEGIN = "▁Ġ"
"""SentencePiece's and byte-level BPE's marks of a piece that begins one."""
LONGEST = 256
"""Letters of a word that count."""
ROWS, PAIR_ROWS = 1 << 22, 1 << 24
"""Rows that words and pairs are hashed to: of 30,000 words, about a hundred share theirs; of five million pairs, one in
four does."""
_SPECIAL = re.compile(r"<.+>|\[.+\]")
"""Pieces that stand for no text: <unk>, [SEP] and their like."""
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
"""Letters of scripts without blanks between words: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_POWERS = np.cumprod(np.full(LONGEST, 0x9E3779B97F4A7C15, dtype=np.uint64))


@dataclass(frozen=True)
class WordHasher:
    """Token ids to rows."""

    begins: NDArray[np.bool_]
    """For each piece, whether a word begins with it."""
    ends: NDArray[np.bool_]
    """Whether one ends with it: a piece with a sign behind its letters, or of a script without blanks."""
    lengths: NDArray[np.int64]
    """Letters of each piece; none for one of punctuation, which ends a word."""
    hashes: NDArray[np.uint64]
    """Sum of a piece's letters, each times a power that its place asks for."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "WordHasher":
        """For the words that `tokenizer` cuts into pieces, by the marks its pieces carry."""
        pieces = [tokenizer.fast.id_to_token(i) or "" for i in range(tokenizer.vocab_size)]
        # One of the marks, unless no piece has any; a text's own signs may look like another.
        mark = max((INSIDE, *BEGIN), key=lambda mark: sum(piece.startswith(mark) for piece in pieces))
        marked = [piece.startswith(mark) for piece in pieces]
        begins = [has != (mark == INSIDE) for has in marked] if any(marked) else [True] * len(pieces)
        texts = [piece.removeprefix(INSIDE).lstrip(BEGIN).lower()[:LONGEST] for piece in pieces]
        bares = ["" if _SPECIAL.fullmatch(text) else _bare(text, mark == BEGIN[1]) for text in texts]
        begins = [
            first or text[:1] != bare[:1] or bool(_UNSPACED.match(bare))
            for first, text, bare in zip(begins, texts, bares, strict=True)
        ]
        ends = [
            not bare or text[-1] != bare[-1] or bool(_UNSPACED.match(bare[-1]))
            for text, bare in zip(texts, bares, strict=True)
        ]
        letters = [np.array([ord(letter) for letter in bare], dtype=np.uint64) for bare in bares]
        hashes = np.array([(row * _POWERS[: len(row)]).sum(dtype=np.uint64) for row in letters], dtype=np.uint64)
        return cls(np.array(begins), np.array(ends), np.array([len(row) for row in letters]), hashes)

    def __call__(self, tokens: Sequence[int] | NDArray) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """(rows, how often each occurs) of a document, rows rising."""
        ids = np.asarray(tokens, dtype=np.int64)
        lettered = self.lengths[ids] > 0
        after_gap = np.concatenate([[True], self.ends[ids]])[:-1] if len(ids) else lettered
        starts = np.flatnonzero((self.begins[ids] | after_gap)[lettered])
        ids = ids[lettered]
        if not len(ids):
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
        before = np.cumsum(self.lengths[ids]) - self.lengths[ids]
        place = before - np.repeat(before[starts], np.diff([*starts, len(ids)]))  # letters of its word before a piece
        shift = np.where(place > 0, _POWERS[np.minimum(place, LONGEST) - 1], np.uint64(1))
        words = _mix(np.add.reduceat(self.hashes[ids] * shift, starts))
        pairs = _mix(words[:-1] * _A + words[1:])
        found = np.concatenate([words % np.uint64(ROWS), ROWS + pairs % np.uint64(PAIR_ROWS)])
        rows, counts = np.unique(found, return_counts=True)
        return rows.astype(np.int64), counts.astype(np.float32)


def _bare(text: str, is_bytes: bool) -> str:
    """Without the signs before and behind it. Accents and vowels that stand by themselves in Unicode are letters, and
    so is all beyond ASCII where signs stand for bytes."""

    def is_letter(sign: str) -> bool:
        marks = unicodedata.category(sign) in ("Mn", "Mc") and not "\ufe00" <= sign <= "\ufe0f"  # but how emoji look
        return sign.isalnum() or marks or (is_bytes and sign > "~")

    letters = [i for i, sign in enumerate(text) if is_letter(sign)]
    return text[letters[0] : letters[-1] + 1] if letters else ""


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of the result depends on every bit of x."""
    x = (x ^ (x >> np.uint64(30))) * _A
    x = (x ^ (x >> np.uint64(27))) * _B
    return x ^ (x >> np.uint64(31))
