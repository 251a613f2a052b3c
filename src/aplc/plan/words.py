"""What a words model will cost, roughly; how many words there are is known only when all are read.

    aplc plan corpus --preset words

The work is the inverse of a matrix as large as the smaller of documents and `words.limit`, and for every label a
product with it and sparse products: one of each where there are no more documents than that, else those of a few
iterations of conjugate gradients (`words/ridge.py`). Each is timed on this machine at a small size and scaled up.
"""

import time
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
from aplc.data.survey import survey_source
from aplc.machine import free_bytes, resident_bytes
from aplc.plan.budget import fits
from aplc.plan.units import duration, in_bytes
from aplc.words.curves import CANDIDATES, LEARN_FROM
from aplc.words.ridge import INVERSE_BYTES, block_size, equations
from aplc.words.systems import Product
from aplc.words.text import words_of

SAMPLE = 2_000
"""Documents that stand for all in their length."""
PROBE, PROBE_LABELS, PROBE_SHAPE = 2_048, 128, (1 << 16, 1 << 18)
"""What is timed: an inverse of this many rows, this many labels at once, and a sparse matrix of documents and words
with 16 entries a word, as docs/peers.md's corpora have."""
HEAPS = 256
"""Words and pairs grow with the square root of documents' entries: 80 to 220 times it on docs/peers.md's corpora."""
WEIGHTS_PER_LABEL = 1_000
"""Weights kept for a label, 350 to 3,500 on these corpora."""
ITERATIONS = 5
"""Of conjugate gradients, two to six on these corpora; each multiplies twice with all entries."""


@dataclass(frozen=True)
class WordsPlan:
    n_documents: int
    n_labels: int
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
                f"equations  at most {self.size:,}, the smaller of documents and words.limit",
                f"memory     about {in_bytes(self.peak)} of {in_bytes(self.available)} at hand: {verdict}",
                f"time       about {duration(max(self.seconds, 1))} to solve, besides reading the texts",
            ]
        )


def plan(source: Source, config: Config, *, memory: float | None = None, screen: Screen | None = None) -> WordsPlan:
    """Plan a words model on `source`. `memory` is what may be used, in bytes, if not what this machine has."""
    screen = screen or Screen(quiet=True)
    seen = survey_source(source, config.data, SAMPLE, screen)
    n_labels = len(seen.labels)
    entries = seen.n_documents * float(np.mean([_entries(document) for document in seen.sample]))
    n_words, learned = round(HEAPS * entries**0.5), min(LEARN_FROM, seen.n_documents)
    shape = seen.n_documents, n_words
    size = equations(shape, config.words.limit)
    direct = seen.n_documents == size
    block, n_sides = block_size(shape), n_labels + (0 if direct else 512)
    peak = resident_bytes() + INVERSE_BYTES * size**2 + 48 * round(entries)  # the matrix and its inverse; documents
    peak += 4 * block * (3 * n_words + 10 * seen.n_documents) + 26 * learned * (block + CANDIDATES)  # a block; curves
    peak += 24 * WEIGHTS_PER_LABEL * n_labels  # while they are put together
    iterations, products = (1, 1) if direct else (ITERATIONS, 2 * ITERATIONS + 1)
    return WordsPlan(
        n_documents=seen.n_documents,
        n_labels=n_labels,
        size=size,
        peak=peak,
        available=free_bytes() + resident_bytes() if memory is None else int(memory),
        seconds=_seconds(size, n_sides * iterations, n_sides * entries * products),
        picture=zipf_picture(seen.labels.counts),
    )


def _entries(document: Document) -> float:
    """Its words, and about half of its pairs: the others are in too few documents, or too many."""
    words = words_of(document.text)
    return len(set(words)) + len(set(pairwise(words))) / 2


def _seconds(size: int, n_sides: int, n_products: float) -> float:
    """Of an inverse of `size` rows, its product with each right side, and sparse products, from small ones."""
    matrix = torch.eye(PROBE) * 2
    right = torch.ones(PROBE, PROBE_LABELS)
    document = np.random.default_rng(0).integers(0, PROBE_SHAPE[0], 16 * PROBE_SHAPE[1], dtype=np.int32)
    ends = np.arange(0, len(document) + 1, 16, dtype=np.int32)
    x = sparse.csr_array((np.ones(len(document), np.float32), document, ends), shape=PROBE_SHAPE[::-1])
    by_document, by_word = Product(x.T.tocsr()), Product(x)
    documents, words = (torch.ones(n, PROBE_LABELS) for n in PROBE_SHAPE)
    inverse = _clock(lambda: torch.cholesky_inverse(torch.linalg.cholesky(matrix)))
    solve = _clock(lambda: matrix @ right) / PROBE_LABELS
    product = _clock(lambda: (by_document(words), by_word(documents))) / (2 * PROBE_LABELS * x.nnz)
    scale = size / PROBE
    return inverse * scale**3 + n_sides * solve * scale**2 + n_products * product


def _clock(work: Callable[[], object]) -> float:
    work()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
