"""Guards the choice of the penalty: leave-one-out scores and their ranking match slow versions, and the best wins."""

import numpy as np
import pytest
from scipy import sparse

from aplc.config import Config
from aplc.errors import AplcError
from aplc.words import penalty
from aplc.words.curves import Curves
from aplc.words.penalty import choose_ridge
from aplc.words.ridge import leave_one_out
from reference import ridge_weights


def draw(n, v, n_labels, noise, seed=0):
    """Documents of a few words; a label is right where its own word occurs, but for noise."""
    rng = np.random.default_rng(seed)
    x = (rng.random((n, v)) < 6 / v).astype(np.float32)
    x[x.sum(1) == 0, 0] = 1
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = (x[:, :n_labels] > 0) ^ (rng.random((n, n_labels)) < noise)
    return sparse.csr_array(x), sparse.csr_array(y.astype(np.float32))


@pytest.mark.parametrize("ridge", [0.5, 4.0])
def test_leave_one_out_matches_reference(ridge):
    x, y = draw(40, 30, 8, noise=0.05)
    curves = leave_one_out(x, y, ridge)
    dense, truth = x.toarray().astype(np.float64), y.toarray()
    mean = truth.mean(0)
    for i in range(40):
        rest = np.arange(40) != i
        expected = dense[i] @ ridge_weights(dense[rest], (truth - mean)[rest], ridge) + mean
        kept = np.isfinite(curves.score_MK[i])
        assert sorted(curves.label_MK[i, kept]) == list(range(8))
        assert np.allclose(curves.score_MK[i, kept], expected[curves.label_MK[i, kept]], atol=1e-4)


def test_dcg_matches_a_loop():
    rng = np.random.default_rng(0)
    scores, hits = rng.random((50, 12)).astype(np.float32), rng.random((50, 12)) < 0.2
    curves = Curves(50)
    curves.add(0, scores, hits, 5 - hits)
    expected = 0.0  # with so few hits the curves keep the order of scores
    for own, hit in zip(scores, hits, strict=True):
        order = sorted(range(12), key=lambda j: -own[j])
        expected += sum(hit[j] / np.log2(rank + 2) for rank, j in enumerate(order[:5]))
    assert curves.dcg(np.full(12, 5)) == pytest.approx(expected / 50)


def test_the_best_of_the_choices_is_taken(monkeypatch):
    x, y = draw(600, 300, 40, noise=0.02)
    gains = {ridge: leave_one_out(x, y, ridge).dcg(np.bincount(y.indices)) for ridge in penalty.CHOICES}
    assert len(set(gains.values())) > 1
    assert choose_ridge(x, y, seed=0) == max(gains, key=gains.get)
    monkeypatch.setattr(penalty, "CHOICES", (1e-3, 1e3))
    assert choose_ridge(x, y, seed=0) in (1e-3, 1e3)


def test_few_documents_and_labels_that_the_sample_lacks(monkeypatch):
    x, y = draw(50, 30, 8, noise=0.05)
    assert choose_ridge(x, y, seed=0) == penalty.CHOICES[0]
    monkeypatch.setattr(penalty, "FEWEST", 10)
    monkeypatch.setattr(penalty, "SAMPLE", 20)
    assert choose_ridge(x, y, seed=0) in penalty.CHOICES
    assert choose_ridge(x, sparse.csr_array((50, 8), dtype=np.float32), seed=0) == penalty.CHOICES[0]


def test_negative_penalty_is_refused():
    with pytest.raises(AplcError, match=r"words\.ridge"):
        Config.from_preset("words").with_settings(["words.ridge=-1"])
