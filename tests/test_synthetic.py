"""Guards `bench/synthetic.py`: what its figures rest on is a corpus of the size that was asked for."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))
import synthetic


@pytest.mark.parametrize(("n_documents", "n_labels"), [(3_000, 300), (1_000, 1_000), (700, 3_000)])
def test_every_label_occurs_and_documents_have_as_many_as_asked_for(n_documents, n_labels):
    rows = list(synthetic.rows(n_documents, n_labels, labels_each=5.45, words_each=10, cover=True, seed=0))
    sizes = [len(row["labels"]) for row in rows]
    assert len({label for row in rows for label in row["labels"]}) == n_labels
    assert np.mean(sizes) == pytest.approx(5.45, rel=0.2)
    assert max(sizes) < 25
