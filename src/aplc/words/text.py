"""Text to numbers for the words model: which words and word pairs a text has, and how often.

A word is a run of letters and digits in lower case, with the marks on them (the vowel signs of Hindi, say); in scripts
without spaces between words it is one character, so that pairs are neighbouring characters. Words and pairs are hashed
into buckets by scikit-learn's `FeatureHasher`, so that no vocabulary has to be stored. The price: two may share a
bucket. Of 30,000 words about a hundred do; of the five million pairs of a large corpus one in four does, mostly with a
pair of a single document, which is left out anyway.
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.feature_extraction import FeatureHasher

from aplc.data.scripts import WORD

VERSION = 5
"""Of what a word is and which bucket it has; a model has weights for the buckets of one version."""
WORD_BUCKETS, PAIR_BUCKETS = 1 << 22, 1 << 24
BUCKETS = WORD_BUCKETS + PAIR_BUCKETS
"""Pairs have the buckets behind the words'."""
ENTRY = np.dtype([("bucket", np.int32), ("count", np.uint16)])
"""One word or pair of a document, as the feature cache stores it."""

_WORD = re.compile(WORD)
_WORDS, _PAIRS = (
    FeatureHasher(n, input_type="string", alternate_sign=False, dtype=np.float32) for n in (WORD_BUCKETS, PAIR_BUCKETS)
)


def words_of(text: str) -> list[str]:
    """The words of a text, in order."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return _WORD.findall(text.lower())


def count_words(texts: Sequence[str]) -> sparse.csr_array:
    """How often each bucket's words and pairs occur in each text, (B, BUCKETS), columns rising."""
    words = [words_of(text) for text in texts]
    pairs = [list(map(" ".join, pairwise(own))) for own in words]
    return sparse.csr_array(sparse.hstack([_WORDS.transform(words), _PAIRS.transform(pairs)], format="csr"))


def entries_of(texts: Sequence[str]) -> list[NDArray]:
    """`count_words` as an array of `ENTRY` for each text."""
    counts = count_words(texts)
    entries = np.empty(counts.nnz, dtype=ENTRY)
    entries["bucket"], entries["count"] = counts.indices, np.minimum(counts.data, np.iinfo(np.uint16).max)
    return np.split(entries, counts.indptr[1:-1])
