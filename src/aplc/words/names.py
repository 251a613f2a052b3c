"""What labels are called: a further row of the ridge regression for every label, with the words of its name.

A name is no document. It teaches which words speak for its label, and for labels of few documents that is much of what
there is to know; but word frequencies, label frequencies, curves and held-out figures are those of documents alone. Of
other labels it says nothing: there its target is the label's mean, and not that a document lacks the label.

A label's own string is its name if it reads like one. Codes don't: their words are unknown, or no more frequent in
their label's documents than elsewhere. So a sample of documents decides (`tell`).

Shapes: N documents, V words, L labels.
"""

import numpy as np
from scipy import sparse

SAMPLE = 5_000
"""Pairs of a document and one of its labels that are looked at."""
CLEARER = 3.0
"""How many times as much a document must have in common with its label's name as with another label's."""


def tell(x_NV: sparse.csr_array, y_NL: sparse.csr_array, names_LV: sparse.csr_array, seed: int) -> bool:
    """Whether labels' names have more words in common with their own documents than with others."""
    rng = np.random.default_rng(seed)
    pair = rng.permutation(y_NL.nnz)[:SAMPLE]
    document = np.searchsorted(y_NL.indptr, pair, side="right") - 1
    label = y_NL.indices[pair]

    def common(label: np.ndarray) -> float:
        return float((x_NV[document] * names_LV[label]).sum())

    return common(label) > CLEARER * common(rng.permutation(label))


def with_names(
    x_NV: sparse.csr_array, y_NL: sparse.csr_array, names_LV: sparse.csr_array
) -> tuple[sparse.csr_array, sparse.csr_array]:
    """X and Y with a row for each label whose name has a known word, behind those of the documents."""
    named = np.flatnonzero(np.diff(names_LV.indptr))
    ones = np.ones(len(named), dtype=np.float32)
    y_names = sparse.csr_array((ones, named, np.arange(len(named) + 1)), shape=(len(named), y_NL.shape[1]))
    return sparse.vstack([x_NV, names_LV[named]], format="csr"), sparse.vstack([y_NL, y_names], format="csr")
