"""What peers are given, and the form their answers have. Only numpy and scipy are at hand: it is imported in the peers'
own environments."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

DEPTH = 20
"""Labels kept a document."""
TopK = tuple[np.ndarray, np.ndarray]
Steps = Iterator[TopK | None]


@dataclass(frozen=True)
class Features:
    folder: Path
    x: sp.csr_matrix
    """TF-IDF of the training documents, rows of unit length."""
    y: sp.csr_matrix
    """Training documents x labels, ones; labels by falling frequency."""
    x_test: sp.csr_matrix

    @classmethod
    def load(cls, folder: Path) -> "Features":
        x, y, x_test = (sp.csr_matrix(sp.load_npz(folder / f"{name}.npz")) for name in ("x", "y", "x_test"))
        return cls(folder, x, y, x_test)


def spans(matrix: sp.csr_matrix) -> Iterator[tuple[int, int]]:
    return zip(matrix.indptr[:-1].tolist(), matrix.indptr[1:].tolist(), strict=True)


def sparse_top(scores: sp.csr_matrix, k: int) -> sp.csr_matrix:
    """The k largest entries of each row."""
    ids, values = best(scores, k)
    kept = ids >= 0
    rows = np.repeat(np.arange(len(ids)), kept.sum(1))
    return sp.csr_matrix((values[kept], (rows, ids[kept])), shape=scores.shape)


def best(scores: sp.csr_matrix | np.ndarray, k: int = DEPTH) -> TopK:
    """Ids and scores of the best labels of each row; -1 where a sparse row has fewer."""
    if sp.issparse(scores):
        scores.sort_indices()
        rows = []
        for start, end in spans(scores):
            order = np.argsort(-scores.data[start:end], kind="stable")[:k]
            rows.append(zip(scores.indices[start:end][order], scores.data[start:end][order], strict=True))
        return padded(rows, k)
    k = min(k, scores.shape[1])
    ids = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    found = np.take_along_axis(scores, ids, 1)
    order = np.argsort(-found, axis=1, kind="stable")
    return np.take_along_axis(ids, order, 1), np.take_along_axis(found, order, 1)


def blocks(x: sp.csr_matrix, score: Callable[[sp.csr_matrix], Any], size: int = 256) -> TopK:
    """Scores block by block, so that documents x labels never stands in memory at once."""
    parts = [best(score(x[start : start + size])) for start in range(0, x.shape[0], size)]
    return np.concatenate([ids for ids, _ in parts]), np.concatenate([scores for _, scores in parts])


def padded(rows: Any, k: int = DEPTH) -> TopK:
    listed = [list(row)[:k] for row in rows]
    ids, scores = np.full((len(listed), k), -1), np.zeros((len(listed), k), dtype=np.float32)
    for i, row in enumerate(listed):
        if row:
            ids[i, : len(row)], scores[i, : len(row)] = zip(*row, strict=True)
    return ids, scores
