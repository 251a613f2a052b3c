"""Text to numbers for the words model: which words, word pairs and runs of characters a text has, and how often.

A word is a run of letters and digits in lower case, with the marks on them (the vowel signs of Hindi, say); in scripts
without spaces between words it is one character, so that pairs are neighbouring characters. Words and pairs are hashed
into buckets, as scikit-learn's `FeatureHasher` does it, so that no vocabulary has to be stored. The price: two may
share a bucket. Of 30,000 words about a hundred do; of the five million pairs of a large corpus one in four does, mostly
with a pair of a single document, which is left out anyway.

Titles and first sentences say what a text is about. Where that is so (`choice.py`), words at its beginning count as if
they stood there three times.
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.feature_extraction import FeatureHasher

from aplc import native
from aplc.data.scripts import WORD

VERSION = 7
"""Of what a word is and which bucket it has; a model has weights for the buckets of one version."""
SIZES = 1 << 22, 1 << 24, 1 << 22
STARTS = 0, SIZES[0], SIZES[0] + SIZES[1]
BUCKETS = sum(SIZES)
"""Words, pairs and runs of characters have buckets of their own, one group behind the other."""
RUN = 4
"""Characters of a run; a word's beginning and end count as one each."""
LEAD, AGAIN = 32, 2
"""Words that are a text's lead, and how many times more what is among them may count (bench/LOG.md)."""
ENTRY = np.dtype([("bucket", np.int32), ("count", np.uint16), ("lead", np.uint16)])
"""One word or pair of a document, as the feature cache stores it: how often it occurs, and how often in the lead."""

_WORD = re.compile(rf"[a-z0-9]++(?![^\x00-\x7f])|{WORD}")
"""ASCII first, which nearly all words are: the other is for words of any script, and takes longer."""
_ASCII = "".join(chr(i).lower() if chr(i).isalnum() else " " for i in range(128))
_HASHERS = [FeatureHasher(n, input_type="string", alternate_sign=False, dtype=np.float32) for n in SIZES]


def words_of(text: str) -> list[str]:
    """The words of a text, in order."""
    if text.isascii():
        return text.translate(_ASCII).split()
    return _WORD.findall(unicodedata.normalize("NFKC", text).lower())


def runs_of(word: str) -> list[str]:
    """The runs of characters inside a word; none for a word that is no longer than a run."""
    marked = f"<{word}>"
    return [marked[i : i + RUN] for i in range(len(marked) - RUN + 1)] if len(word) >= RUN else []


def count_words(texts: Sequence[str], *, runs: bool) -> sparse.csr_array:
    """How often each bucket's words, pairs and, if asked for, runs occur in each text, (B, BUCKETS), columns rising."""
    return count_split([words_of(text) for text in texts], runs=runs)


def count_split(words: Sequence[list[str]], *, runs: bool) -> sparse.csr_array:
    """`count_words` of texts that are split into words."""
    if native.library() is None:
        return count_slowly(words, runs=runs)
    start, bucket, count = native.count(words, SIZES, runs=runs)
    return sparse.csr_array((count, bucket, start), shape=(len(words), BUCKETS))


def count_slowly(words: Sequence[list[str]], *, runs: bool) -> sparse.csr_array:
    """`native.count` by scikit-learn."""
    pairs = [list(map(" ".join, pairwise(own))) for own in words]
    inside = [[run for word in own for run in runs_of(word)] if runs else [] for own in words]
    groups = [hasher.transform(group) for hasher, group in zip(_HASHERS, (words, pairs, inside), strict=True)]
    return sparse.csr_array(sparse.hstack(groups, format="csr"))


def count_single_words(texts: Sequence[str]) -> sparse.csr_array:
    """`count_words` of single words alone, (B, SIZES[0])."""
    return sparse.csr_array(_HASHERS[0].transform([words_of(text) for text in texts]))


def leads_of(words: Sequence[list[str]]) -> list[list[str]]:
    """The lead of each text."""
    return [own[:LEAD] for own in words]


def entries_of(texts: Sequence[str], *, runs: bool) -> list[NDArray]:
    """What occurs in texts and in their leads, as an array of `ENTRY` for each."""
    words = [words_of(text) for text in texts]
    counts, leads = count_split(words, runs=runs), count_split(leads_of(words), runs=runs)
    entries = np.zeros(counts.nnz, dtype=ENTRY)
    entries["bucket"], entries["count"] = counts.indices, _as_count(counts)
    entries["lead"][np.searchsorted(_cells(counts), _cells(leads))] = _as_count(leads)
    return np.split(entries, counts.indptr[1:-1])


def _as_count(counts: sparse.csr_array) -> NDArray[np.uint16]:
    return np.minimum(counts.data, np.iinfo(np.uint16).max).astype(np.uint16)


def _cells(counts: sparse.csr_array) -> NDArray[np.int64]:
    """A number for each entry's row and column, rising."""
    return np.repeat(np.arange(counts.shape[0]), np.diff(counts.indptr)) * BUCKETS + counts.indices
