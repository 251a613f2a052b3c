"""Guards ridge regression with partly reviewed documents: exactly as if unlisted labels had never seen them."""

import numpy as np
import pytest
from scipy import sparse

from aplc.console import Screen
from aplc.words import matrices, ridge, systems
from aplc.words import reviewed as module
from aplc.words.reviewed import Reviewed
from aplc.words.ridge import solve
from reference import masked_ridge

QUIET = Screen(quiet=True)


@pytest.fixture(scope="module")
def corpus():
    rng = np.random.default_rng(0)
    x = sparse.random_array((90, 40), density=0.2, rng=rng, format="csr", dtype=np.float32)
    y = (rng.random((60, 7)) < 0.2).astype(np.float32)
    y[:, 6] = 0  # a label that reviewed documents alone have
    listed = rng.choice([0, 1, -1], (30, 7), p=[0.6, 0.2, 0.2])
    listed[:, 5] = 0  # a label that nobody reviewed
    return x, sparse.csr_array(y), listed


def found_by(corpus, limit, reviewed):
    x, y, _ = corpus
    return solve(x[:60], y, np.arange(9), limit=limit, ridge=0.7, prune=0.0, screen=QUIET, reviewed=reviewed)[0]


def reviewed_of(corpus, n=60):
    x, _, listed = corpus
    return Reviewed.of(x[60:], *(sparse.csr_array((listed == sign).astype(np.float32)) for sign in (1, -1)), n)


@pytest.mark.parametrize("limit", [1_000, 10])
@pytest.mark.parametrize("at_once", [256, 3])
def test_weights_match_reference(corpus, monkeypatch, limit, at_once):
    """In closed form and by conjugate gradients, in one block and in several."""
    monkeypatch.setattr(systems, "TOLERANCE", 1e-6)
    monkeypatch.setattr(ridge, "EXACT", 1e-6)
    monkeypatch.setattr(ridge, "RARE", -1)
    monkeypatch.setattr(matrices, "COLUMNS_AT_ONCE", at_once)
    x, y, listed = corpus
    found = found_by(corpus, limit, reviewed_of(corpus)).toarray()
    expected = masked_ridge(x.toarray(), y.toarray(), listed, 0.7)
    assert np.allclose(found, expected, atol=2e-5)
    alone = found_by(corpus, limit, None).toarray()
    assert np.allclose(found[:, 5], alone[:, 5], atol=1e-6)
    assert np.abs(found[:, :5] - alone[:, :5]).max() > 0.01


def test_only_the_latest_documents_are_kept_where_there_is_no_room(corpus, monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 600)
    kept = reviewed_of(corpus)
    assert kept.x_PV.shape[0] == 10
    assert (corpus[2][20:] == kept.listed_LP.toarray().T).all()


def test_a_label_that_is_listed_twice_is_right():
    one = sparse.csr_array(np.ones((1, 1), dtype=np.float32))
    assert Reviewed.of(one, one, one, 1).listed_LP.toarray().tolist() == [[1]]
    assert Reviewed.of(one, one, one, 1).counts.tolist() == [1]
