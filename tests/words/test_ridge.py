"""Guards ridge regression: weights are the closed form, scores are leave-one-out scores, and failures name a cure."""

import numpy as np
import pytest
import torch
from scipy import sparse

from aplc.console import Screen
from aplc.errors import RunError
from aplc.words import ridge, systems
from aplc.words.curves import Curves
from aplc.words.ridge import block_size, solve
from aplc.words.systems import TOLERANCE, Conjugate
from reference import ridge_weights

QUIET = Screen(quiet=True)


def draw(n, v, n_labels=10):
    rng = np.random.default_rng(n)
    x = sparse.random_array((n, v), density=0.3, rng=rng, format="csr", dtype=np.float32)
    return x, (rng.random((n, n_labels)) < 0.3).astype(np.float32)


@pytest.mark.parametrize(("n", "v"), [(20, 50), (50, 20), (30, 30)])
@pytest.mark.parametrize("limit", [1, 5, 19, 1_000])
@pytest.mark.parametrize("block", [3, 1_024])
def test_weights_are_the_closed_form(monkeypatch, n, v, limit, block):
    """With the inverse, or by conjugate gradients with few and with many words in the preconditioner."""
    monkeypatch.setattr(ridge, "LABELS_AT_ONCE", block)
    monkeypatch.setattr(ridge, "TOLERANCE", 1e-6)
    monkeypatch.setattr(ridge, "RARE", 0)
    monkeypatch.setattr(systems, "TOLERANCE", 1e-6)
    x, y = draw(n, v)
    mean = y.mean(0, dtype=np.float64)
    expected = ridge_weights(x.toarray().astype(np.float64), y - mean, 0.7)
    found, found_mean, _ = solve(x, sparse.csr_array(y), np.arange(n), limit=limit, ridge=0.7, prune=0.0, screen=QUIET)
    assert np.allclose(found.toarray(), expected, atol=1e-5)
    assert np.allclose(found_mean, mean)
    pruned, _, _ = solve(x, sparse.csr_array(y), np.arange(n), limit=limit, ridge=0.7, prune=0.1, screen=QUIET)
    assert 0 < pruned.nnz < found.nnz
    assert np.allclose(pruned.toarray(), np.where(np.abs(expected) >= 0.1, expected, 0), atol=1e-5)


def test_conjugate_gradients_end_where_residuals_are_small_enough():
    """Each label's residual is at most the tolerance; labels of no document, and of all, need no iteration."""
    x, y = draw(200, 100)
    y[:, 3], y[:, 5] = 0, 1
    centered = y - y.mean(0)
    answer = Conjugate(x, 10, 0.5)(torch.from_numpy(centered)).numpy()
    rest = centered - x @ (x.T @ answer) - 0.5 * answer
    assert (np.linalg.norm(rest, axis=0) <= (TOLERANCE + 1e-4) * np.linalg.norm(centered, axis=0)).all()
    assert np.linalg.norm(rest) > 1e-3 * np.linalg.norm(centered)
    assert not answer[:, [3, 5]].any()


def test_with_all_words_in_the_preconditioner_one_iteration_is_enough(monkeypatch):
    x, y = draw(50, 20)
    monkeypatch.setattr(ridge, "MOST_ITERATIONS", 1)
    monkeypatch.setattr(systems, "MOST_ITERATIONS", 1)
    answer = Conjugate(x, 20, 0.7)(torch.from_numpy(y)).numpy()
    assert np.allclose(x @ (x.T @ answer) + 0.7 * answer, y, atol=1e-4)


def test_blocks_of_labels_shrink_as_the_corpus_grows(monkeypatch):
    x, y = draw(30, 50)
    monkeypatch.setattr(ridge, "LARGEST", 120)
    sizes = []
    monkeypatch.setattr(Curves, "add", lambda self, start, scores, *_: sizes.append(scores.shape[1]))
    solve(x, sparse.csr_array(y), np.arange(4), limit=1_000, ridge=0.7, prune=0.0, screen=QUIET)
    assert sizes == [2] * 5


@pytest.mark.parametrize(
    ("widest", "block"), [(1_000, 512), (919_385, 128), (1 << 21, 64), (1 << 23, 16), (1 << 28, 1)]
)
def test_blocks_of_labels_are_whole_panels_and_never_empty(widest, block):
    assert block_size((100, widest), direct=True) == block
    assert block_size((100, widest), direct=False) == min(block, 128)


@pytest.mark.parametrize(("n", "v"), [(20, 50), (50, 20)])
@pytest.mark.parametrize("limit", [5, 1_000])
def test_leave_one_out_scores_are_those_of_a_model_without_the_document(monkeypatch, n, v, limit):
    """As close as c comes among neighbours, where there is no inverse of all documents."""
    monkeypatch.setattr(ridge, "TOLERANCE", 1e-6)
    monkeypatch.setattr(ridge, "RARE", 0)
    monkeypatch.setattr(systems, "TOLERANCE", 1e-6)
    x, y = draw(n, v)
    chosen = np.array([1, 4, 5, 11])
    _, mean, curves = solve(x, sparse.csr_array(y), chosen, limit=limit, ridge=0.7, prune=0.0, screen=QUIET)
    dense, centered = x.toarray().astype(np.float64), y - y.mean(0)
    for m, i in enumerate(chosen):
        rest = np.arange(n) != i
        expected = dense[i] @ ridge_weights(dense[rest], centered[rest], 0.7) + mean
        kept = np.isfinite(curves.score_MK[m])
        assert sorted(curves.label_MK[m, kept]) == list(range(10))
        assert np.allclose(
            curves.score_MK[m, kept], expected[curves.label_MK[m, kept]], atol=1e-4 if limit > n else 0.1
        )
        assert (curves.hit_MK[m, kept] == y[i, curves.label_MK[m, kept]]).all()


def test_leave_one_out_scores_where_conjugate_gradients_end_early():
    """With the constants of the package, errors are far smaller than the differences between scores."""
    rng, n, v = np.random.default_rng(1), 400, 800
    common_V = 1 / np.arange(1, v + 1)
    topic_NL = rng.random((n, 10)) < 0.15
    likely_LV = common_V * rng.choice([0.2, 1, 20], (10, v), p=[0.3, 0.6, 0.1])
    dense = (rng.random((n, v)) < np.minimum(20 * common_V + 4 * topic_NL @ likely_LV, 0.9)).astype(np.float32)
    dense /= np.linalg.norm(dense, axis=1, keepdims=True)
    y, chosen = topic_NL.astype(np.float32), np.arange(0, n, 20)
    curves = solve(sparse.csr_array(dense), sparse.csr_array(y), chosen, limit=60, ridge=0.5, prune=0.0, screen=QUIET)[
        2
    ]
    mean, expected = y.mean(0), np.zeros((len(chosen), 10))
    for m, i in enumerate(chosen):
        rest = np.arange(n) != i
        expected[m] = dense[i] @ ridge_weights(dense[rest], (y - mean)[rest], 0.5) + mean
    kept = np.isfinite(curves.score_MK)
    found = curves.score_MK[kept].reshape(expected.shape)
    expected = np.take_along_axis(expected, curves.label_MK[kept].reshape(expected.shape), 1)
    assert np.sqrt(np.mean((found - expected) ** 2)) < 0.4 * expected.std()


def test_equations_that_do_not_converge_are_refused_with_a_cure(monkeypatch):
    monkeypatch.setattr(ridge, "MOST_ITERATIONS", 2)
    monkeypatch.setattr(systems, "MOST_ITERATIONS", 2)
    monkeypatch.setattr(ridge, "TOLERANCE", 1e-6)
    monkeypatch.setattr(ridge, "RARE", 0)
    monkeypatch.setattr(systems, "TOLERANCE", 1e-6)
    x, y = draw(50, 40)
    with pytest.raises(RunError, match=r"words\.ridge"):
        solve(x, sparse.csr_array(y), np.arange(3), limit=1, ridge=0.7, prune=0.0, screen=QUIET)


def test_a_matrix_larger_than_free_memory_is_refused_with_a_cure(monkeypatch):
    monkeypatch.setattr(ridge, "free_bytes", lambda: 1_000)
    x = sparse.csr_array(np.eye(30, dtype=np.float32))
    with pytest.raises(RunError, match=r"words\.limit=5"):
        solve(x, x, np.arange(3), limit=1_000, ridge=1.0, prune=0.0, screen=QUIET)


def test_a_penalty_that_is_too_small_is_refused():
    x = sparse.csr_array(np.ones((40, 50), dtype=np.float32))
    with pytest.raises(RunError, match=r"words\.ridge"):
        solve(x, x, np.arange(3), limit=1_000, ridge=1e-12, prune=0.0, screen=QUIET)
