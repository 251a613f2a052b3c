"""Labels' names: a text *mentions* a label if it has all the words of its name.

A mention tells little of some labels ("Time") and nearly everything of others ("Pheochromocytoma"), and it is all that
there is to know of a label that no training document has. So the logit z that a label got for the text's words
(`curves.py`) is replaced where the text mentions it, by one that knows how much a mention of this label is worth:

    a + b z + c log(1 + place)

`place` is the number of words of the text up to where the name is complete: titles and first sentences say what a text
is about. a, b and c depend on how many training documents have the label, how many of these mention it, and how many
mention it without having it. How they depend on that is 16 numbers, the same for all labels, learned by logistic
regression on left-out documents and pulled towards a = 0, b = 1, c = 0, which leaves z as it is. Labels without
documents have no z: a and c are all they get.

Names are never counted as documents: word weights, frequencies and curves are those of documents alone. (As further
rows of the ridge regression, names gained less and cost more: bench/LOG.md.) Where labels are codes, nothing is
mentioned, and nothing changes. The price: a label called by other words than its name and synonyms is not noticed, and
"not diabetes" mentions diabetes.

Shapes: B documents, S stems, K names, T stems of all names, L labels, N mentions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import murmurhash3_32

from aplc.words.pulled import regress
from aplc.words.text import words_of

VERSION = 1
"""Of what a mention is; a cache holds mentions of one version."""
MENTION = np.dtype([("label", np.int32), ("place", np.float32)])
"""A label that a document mentions, and log(1 + place), as the feature cache stores it."""
LEAST = 100
"""Mentions that are right, and mentions that are wrong, with fewer of which only one number is learned."""
MOST_WORDS = 1 << 18
"""Words whose stems are remembered."""
RIGHT, WRONG = 1, 3
"""Mentions that are taken for granted where there are few: as if one of four were right."""
PENALTY = 10.0
"""Of the learned numbers' squares, in columns whose root mean square is 1: worth some ten mentions."""
NO_DOCUMENTS = -12.0
"""The logit of a label without training documents that a text does not mention: once in 160,000 texts."""

Floats = NDArray[np.floating]
Ints = NDArray[np.integer]


def stem(word: str) -> str:
    """A word without a plural's ending, so that "cells" is "cell"."""
    if len(word) <= 4 or not word.endswith("s") or word.endswith("ss"):
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    return word[:-2] if word.endswith(("ses", "xes", "ches", "shes")) else word[:-1]


@lru_cache(maxsize=MOST_WORDS)
def _hash(word: str) -> int:
    """Of the word's stem; of a million stems about a hundred pairs share one."""
    return int(murmurhash3_32(stem(word), positive=True))


class _Places(dict[str, int]):
    """Words' places in `Names.stem`, -1 for words that no name has; remembered."""

    def __init__(self, stem: NDArray[np.int64]) -> None:
        self.of_stem = dict(zip(stem.tolist(), range(len(stem)), strict=True))

    def __missing__(self, word: str) -> int:
        if len(self) >= MOST_WORDS:
            self.clear()
        self[word] = place = self.of_stem.get(_hash(word), -1)
        return place


class Mentions(NamedTuple):
    """Which labels documents mention; documents rising, and each document's labels."""

    document: NDArray[np.int64]
    label: NDArray[np.int64]
    place: NDArray[np.float32]
    """log(1 + words of the text up to where the name is complete)."""


@dataclass(frozen=True)
class Names:
    """Names by their rarest stem, so that only names are looked at whose rarest stem a text has."""

    stem: NDArray[np.int64]
    """(S,), rising: hashes."""
    first: NDArray[np.int64]
    """(S + 1,): names whose rarest stem is this one."""
    start: NDArray[np.int64]
    """(K + 1,): where a name's stems begin."""
    part: NDArray[np.int32]
    """(T,): places in `stem`."""
    label: NDArray[np.int32]
    """(K,)."""

    @classmethod
    def of(cls, names: Sequence[Sequence[str]]) -> Self:
        """From every label's names."""
        found = {
            (label, tuple(sorted({_hash(w) for w in words_of(n)}))) for label, own in enumerate(names) for n in own
        }
        kept = sorted((label, parts) for label, parts in found if parts)
        label = np.array([label for label, _ in kept], dtype=np.int32)
        size_K = np.array([len(parts) for _, parts in kept], dtype=np.int64)
        return cls._build(label, size_K, np.array([part for _, parts in kept for part in parts], dtype=np.int64))

    @cached_property
    def _places(self) -> _Places:
        return _Places(self.stem)

    @classmethod
    def _build(cls, label: NDArray[np.int32], size_K: NDArray[np.int64], hashes: NDArray[np.int64]) -> Self:
        """From every name's label, its number of stems, and the stems of all names."""
        stem, part = np.unique(hashes, return_inverse=True)
        if not len(label):
            return cls(stem, np.zeros(1, np.int64), np.zeros(1, np.int64), part.astype(np.int32), label)
        name = np.repeat(np.arange(len(size_K)), size_K)
        frequency = np.bincount(part)[part]
        rarest = part[np.lexsort((part, frequency, name))[np.cumsum(size_K) - size_K]]
        order = np.argsort(rarest, kind="stable")
        start = np.concatenate([[0], np.cumsum(size_K)])
        ends = np.concatenate([[0], np.cumsum(size_K[order])])
        first = np.searchsorted(rarest[order], np.arange(len(stem) + 1))
        return cls(stem, first, ends, part[_spans(start[order], size_K[order])].astype(np.int32), label[order])

    def joined(self, others: "Names", n_labels: int) -> Self:
        """With the names of labels behind these, of which there are `n_labels`."""
        label = np.concatenate([self.label, others.label + np.int32(n_labels)])
        size_K = np.concatenate([np.diff(self.start), np.diff(others.start)])
        return self._build(label, size_K, np.concatenate([self.stem[self.part], others.stem[others.part]]))

    def mentions(self, documents: Sequence[Sequence[str]], n_labels: int) -> Mentions:
        """The labels that texts mention, from their words."""
        n_stems = len(self.stem)
        if not n_stems:
            return Mentions(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))
        size_B = np.array([len(words) for words in documents], dtype=np.int64)
        at = np.array([at for words in documents for at in map(self._places.__getitem__, words)], dtype=np.int64)
        document, place = np.repeat(np.arange(len(size_B)), size_B), _spans(np.ones_like(size_B), size_B)
        known = at >= 0
        key, earliest = np.unique(document[known] * n_stems + at[known], return_index=True)  # a document's stems
        place = place[known][earliest]
        first = self.first[key % n_stems]
        n_names = self.first[key % n_stems + 1] - first
        name = _spans(first, n_names)
        document = np.repeat(key // n_stems, n_names)
        size = self.start[name + 1] - self.start[name]
        wanted = np.repeat(document * n_stems, size) + self.part[_spans(self.start[name], size)]
        at = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
        begins = np.cumsum(size) - size
        if not len(begins):
            return Mentions(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))
        whole = np.logical_and.reduceat(key[at] == wanted, begins)
        complete = np.maximum.reduceat(place[at], begins)[whole]
        pair = document[whole] * n_labels + self.label[name[whole]]
        order = np.lexsort((complete, pair))
        pair, one = np.unique(pair[order], return_index=True)  # of several names, the earliest
        return Mentions(pair // n_labels, pair % n_labels, np.log1p(complete[order][one]).astype(np.float32))

    def entries_of(self, texts: Sequence[str], n_labels: int) -> list[NDArray]:
        """`mentions` as an array of `MENTION` for each text."""
        found = self.mentions([words_of(text) for text in texts], n_labels)
        entries = np.empty(len(found.label), dtype=MENTION)
        entries["label"], entries["place"] = found.label, found.place
        return np.split(entries, np.searchsorted(found.document, np.arange(1, len(texts))))


UNSEEN = 3
"""The place of the number that only labels without documents have."""


class Known(NamedTuple):
    """What is known of labels, or of a mention's label without the document that mentions it; arrays of one length."""

    n: Ints
    """Training documents that have the label."""
    right: Ints
    """Those that have it and mention it."""
    wrong: Ints
    """Those that mention it and don't have it."""

    def columns(self) -> tuple[Floats, Floats, Floats]:
        """What a, b and c are made of, (N, 9), (N, 3) and (N, 4)."""
        unseen, log_n = (self.n == 0).astype(np.float64), np.log(np.maximum(self.n, 1))
        right, wrong, ones = np.log1p(self.right), np.log1p(self.wrong), np.ones(len(self.n))
        more = [unseen, wrong, right, wrong * unseen, wrong * log_n, right * log_n]
        seen = 1 - unseen
        return (
            np.stack([ones, log_n, log_n**2, *more], 1),
            np.stack([seen, seen * log_n, seen * wrong], 1),
            np.stack([ones, log_n, unseen, wrong], 1),
        )


def learn_worth(known: Known, z: Floats, place: Floats, hit: NDArray[np.bool_]) -> Floats:
    """The 16 numbers, from mentions.

    If these are too few, words are believed where a label has documents, and other labels have the odds of all
    mentions. `z` is what the words say of a mention's label: without documents it must be 0.
    """
    if min(hit.sum(), (~hit).sum()) < LEAST:
        plain = np.zeros(16, dtype=np.float32)
        plain[UNSEEN] = np.log((RIGHT + hit.sum()) / (WRONG + (~hit).sum()))
        return plain
    sides = [np.ones_like(z), z, place]
    x = np.concatenate([part * side[:, None] for part, side in zip(known.columns(), sides, strict=True)], 1)
    return regress(x, hit, offset=z, penalty=PENALTY).astype(np.float32)


def is_plain(learned: Floats) -> bool:
    """Whether there were too few mentions to learn all numbers."""
    return not np.delete(learned, UNSEEN).any()


def mention_worth(learned: Floats, labels: Known) -> NDArray[np.float32]:
    """a, b and c of every label, (3, L)."""
    numbers = np.split(learned.astype(np.float64), [9, 12])
    a_L, b_L, c_L = (part @ own for part, own in zip(labels.columns(), numbers, strict=True))
    return np.stack([a_L, np.where(labels.n > 0, np.maximum(b_L + 1, 0), 0), c_L]).astype(np.float32)


def _spans(start: Ints, size: Ints) -> NDArray[np.int64]:
    """start[0], start[0] + 1, ..., `size[0]` of them, then those of start[1], and so on."""
    ends = np.cumsum(size)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(start - (ends - size), size)
