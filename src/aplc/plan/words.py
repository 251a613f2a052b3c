"""What a words model will cost, roughly; how many words there are is known only when all are read.

    aplc plan corpus --preset words

The work is reading the texts, the inverse of a matrix of documents or of `words.limit` words, and then by label: sparse
products where one inverse serves all documents; else, for frequent labels, a few iterations of conjugate gradients over
all documents, and for rare ones a sparse product and their neighbours (`words/ridge.py`). Each is timed on this machine
at a small size and scaled up.
"""

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from scipy import sparse

from aplc.config import Config
from aplc.console import Screen
from aplc.data.formats import Document
from aplc.data.inspection import zipf_picture
from aplc.data.source import Source
from aplc.data.survey import Survey, survey_source
from aplc.machine import free_bytes, resident_bytes
from aplc.plan.budget import fits
from aplc.plan.units import duration, in_bytes
from aplc.words.curves import CANDIDATES, n_left_out
from aplc.words.local import NEIGHBOURS
from aplc.words.ridge import INVERSE_BYTES, RARE, block_size, n_equations
from aplc.words.systems import Product
from aplc.words.text import entries_of, words_of

SAMPLE = 2_000
"""Documents that stand for all in their length."""
PROBE, PROBE_LABELS, PROBE_SHAPE = 2_048, 128, (1 << 16, 1 << 18)
"""What is timed: an inverse of this many rows, this many labels at once, and a sparse matrix of documents and words
with 16 entries a word, as docs/peers.md's corpora have."""
HEAPS = 150
"""Words and pairs grow with the square root of documents' entries: 60 to 210 times it on the corpora of docs/peers.md
and docs/scale.md."""
KEPT, MOST_KEPT = 2, 0.65
"""Of a document's pairs, so many times the share that occurs twice in a sample is known, up to this share."""
WEIGHTS, WEIGHT_BYTES = 19, 14
"""Weights kept for a label: so many times the square root of its documents' entries (16 to 22 on these corpora), and
no more than these have."""
ITERATIONS = 5
"""Of conjugate gradients, two to six on these corpora; each multiplies twice with all entries."""
FREQUENT, OVERLAP = 0.4, 0.75
"""Of a document's entries, those of the `words.limit` weightiest words; n documents have n^0.75 times as many."""
STARTING = 3.0
"""Seconds until PyTorch is there, and for choosing the penalty."""
READ_TIMES = 5
"""How many times what splitting texts into words takes: reading files, names of labels, counting, matrices."""
INVERSE_POWER = 2.7
"""Of rows, the time an inverse takes: cubed in theory, but small ones are slower a number."""
LOCAL_PRODUCTS, SCORE_PRODUCTS = 80, 300
"""Multiplications of a sparse product that one entry of a neighbourhood costs, with all that is done with it, and one
score of a left-out document."""
ENTRY_BYTES = 34
"""Memory for an entry of X: by documents and by words, whole and cut into frequent and rare words."""


@dataclass(frozen=True)
class WordsPlan:
    n_documents: int
    n_labels: int
    n_weights: int
    size: int
    """Rows of the matrix to invert, at most."""
    peak: int
    available: int
    seconds: float
    picture: list[str]

    @property
    def fits(self) -> bool:
        return fits(self.peak, self.available)

    def to_dict(self) -> dict[str, Any]:
        return {
            "documents": self.n_documents,
            "labels": self.n_labels,
            "equations": self.size,
            "memory_bytes": {"peak": self.peak, "available": self.available, "fits": self.fits},
            "seconds": self.seconds,
        }

    def render(self) -> str:
        verdict = "fits" if self.fits else "does not fit; raise data.min_count, or lower words.limit"
        return "\n".join(
            [
                f"{self.n_labels:,} labels in {self.n_documents:,} training documents",
                *self.picture,
                "a words model: ridge regression, no epochs",
                f"equations  {self.size:,}: one a document, or, beyond twice words.limit, one a frequent word",
                f"memory     about {in_bytes(self.peak)} of {in_bytes(self.available)} at hand: {verdict}",
                f"time       about {duration(max(self.seconds, 1))}",
            ]
        )


def plan(
    source: Source,
    config: Config,
    *,
    memory: float | None = None,
    screen: Screen | None = None,
    seen: Survey | None = None,
) -> WordsPlan:
    """Plan a words model on `source`. `memory` is what may be used, in bytes, if not what this machine has.

    `seen` is what a survey found, where that is known.
    """
    seen = seen or survey_source(source, config.data, SAMPLE, screen or Screen(quiet=True))
    counts, n_documents = seen.labels.seen.counts, seen.n_documents
    reading, entries_each = _read(random.Random(0).sample(seen.sample, min(SAMPLE, len(seen.sample))))
    entries = n_documents * entries_each
    shape = n_documents, round(HEAPS * entries**0.5)
    size = n_equations(shape, config.words.limit)
    work = Work(READ_TIMES * reading * n_documents, size)
    direct = size == shape[0]
    learned = n_left_out(n_documents, direct=direct)
    if direct:
        block = block_size(shape, direct=True)
        work.sparse = len(seen.label_ids) * shape[0] + len(counts) * entries
    else:
        rare, n_often = counts[counts <= RARE], int((counts > RARE).sum())
        block = min(block_size(shape, direct=False), n_often)
        twice = float((1 - (1 - learned / n_documents) ** rare[rare > 1]).sum())  # a left-out document has the label
        sides = learned + len(rare) + twice
        work.sides = (ITERATIONS + 1) * n_often
        work.sparse = (2 * ITERATIONS + 1) * n_often * entries
        work.sparse += (float((rare**OVERLAP).sum()) + learned) * FREQUENT * entries_each * size
        work.local = sides * (NEIGHBOURS + float(rare.mean() if len(rare) else 0)) * entries_each
        work.scores = (len(rare) + twice) * learned
    of_block = (shape[1] + 3 * n_documents) if direct else (2 * shape[1] + 8 * n_documents)
    block_bytes = 4 * block * of_block + 26 * learned * (block + CANDIDATES)  # with its candidates for curves
    of_labels = entries_each * len(seen.label_ids)
    n_weights = round(min(WEIGHTS * (of_labels * len(counts)) ** 0.5, of_labels))
    solving = 4 * size**2 + max(block_bytes, WEIGHT_BYTES * n_weights)  # weights are put together after the last block
    peak = resident_bytes() + ENTRY_BYTES * round(entries) + max(INVERSE_BYTES * size**2, solving)
    return WordsPlan(
        n_documents=n_documents,
        n_labels=len(counts),
        n_weights=n_weights,
        size=size,
        peak=peak,
        available=free_bytes() + resident_bytes() if memory is None else int(memory),
        seconds=work.seconds(),
        picture=zipf_picture(counts),
    )


def _read(sample: list[Document]) -> tuple[float, float]:
    """Seconds to read a document, and its entries, on average."""
    start = time.perf_counter()
    entries_of([document.text for document in sample], runs=False)
    seconds = time.perf_counter() - start
    return seconds / len(sample), _entries([document.text for document in sample])


def _entries(texts: list[str]) -> float:
    """Words and pairs of a text that a model will know, on average."""
    words = [words_of(text) for text in texts]
    pairs = [set(pairwise(own)) for own in words]
    count = Counter(pair for own in pairs for pair in own)
    n_pairs = max(1, sum(map(len, pairs)))
    twice = sum(count[pair] > 1 for own in pairs for pair in own) / n_pairs
    n_entries = sum(len(set(own)) for own in words) + min(MOST_KEPT, KEPT * twice) * n_pairs
    return n_entries / len(texts)


@dataclass
class Work:
    """What there is to do: reading (seconds), an inverse of `size` rows, and multiplications of several sorts."""

    reading: float
    size: int
    sides: float = 0
    """Products of the inverse matrix with one label's numbers."""
    sparse: float = 0
    """Multiplications of sparse products with many labels at once."""
    local: float = 0
    """Entries of neighbourhoods."""
    scores: float = 0
    """Rare labels' scores of left-out documents."""

    def seconds(self) -> float:
        matrix, right = torch.eye(PROBE) * 2, torch.ones(PROBE, PROBE_LABELS)
        document = np.random.default_rng(0).integers(0, PROBE_SHAPE[0], 16 * PROBE_SHAPE[1], dtype=np.int32)
        ends = np.arange(0, len(document) + 1, 16, dtype=np.int32)
        x = sparse.csr_array((np.ones(len(document), np.float32), document, ends), shape=PROBE_SHAPE[::-1])
        by_document, by_word = Product(x.T.tocsr()), Product(x)
        documents, words = (torch.ones(n, PROBE_LABELS) for n in PROBE_SHAPE)
        inverse = _clock(lambda: torch.cholesky_inverse(torch.linalg.cholesky(matrix)))
        side = _clock(lambda: matrix @ right) / PROBE_LABELS
        product = _clock(lambda: (by_document(words), by_word(documents))) / (2 * PROBE_LABELS * x.nnz)
        scale = self.size / PROBE
        solving = inverse * scale**INVERSE_POWER + self.sides * side * scale**2
        products = self.sparse + LOCAL_PRODUCTS * self.local + SCORE_PRODUCTS * self.scores
        return STARTING + self.reading + solving + products * product


def _clock(work: Callable[[], object]) -> float:
    work()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
