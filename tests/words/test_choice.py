"""Guards the choice of penalty and lead: leave-one-out scores, and their ranking, match slow versions."""

import numpy as np
import pytest
from scipy import sparse

from aplc.config import Config, WordsConfig
from aplc.errors import AplcError
from aplc.words import choice
from aplc.words.choice import choose, sample_of
from aplc.words.curves import Curves
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


def as_read(x, y):
    """What `choose` reads, the same for either way to count the lead."""
    return lambda _: (x, y)


def test_the_best_penalty_is_taken(monkeypatch):
    x, y = draw(600, 300, 40, noise=0.02)
    gains = {ridge: leave_one_out(x, y, ridge).dcg(np.bincount(y.indices)) for ridge in choice.RIDGES}
    assert len(set(gains.values())) > 1
    assert choose(as_read(x, y), WordsConfig()) == (max(gains, key=gains.get), False)
    monkeypatch.setattr(choice, "RIDGES", (1e-3, 1e3))
    assert choose(as_read(x, y), WordsConfig()).ridge in (1e-3, 1e3)
    assert choose(as_read(x, y), WordsConfig(ridge=7.0)).ridge == 7


@pytest.mark.parametrize("setting", ["auto", "on", "off"])
@pytest.mark.parametrize("better", [False, True])
def test_the_lead_counts_again_where_that_ranks_labels_better(setting, better):
    (x, y), (worse, _) = draw(600, 300, 40, noise=0.02), draw(600, 300, 40, noise=0.02, seed=1)

    def read(lead):
        return (x if lead == better else worse), y

    assert choose(read, WordsConfig(lead=setting)).lead == {"auto": better, "on": True, "off": False}[setting]


def test_few_documents_and_labels_that_the_sample_lacks(monkeypatch):
    x, y = draw(50, 30, 8, noise=0.05)
    assert choose(as_read(x, y), WordsConfig()) == (choice.RIDGES[0], False)
    monkeypatch.setattr(choice, "FEWEST", 10)
    assert choose(as_read(x, y), WordsConfig()).ridge in choice.RIDGES
    none = sparse.csr_array((50, 8), dtype=np.float32)
    assert choose(as_read(x, none), WordsConfig()) == (choice.RIDGES[0], False)


def test_the_sample_is_drawn_once(monkeypatch):
    monkeypatch.setattr(choice, "SAMPLE", 20)
    sample = sample_of(50, seed=0)
    assert sample.tolist() == sorted(set(sample.tolist())) == sample_of(50, seed=0).tolist()
    assert (len(sample), len(sample_of(7, seed=0))) == (20, 7)


def test_negative_penalty_is_refused():
    with pytest.raises(AplcError, match=r"words\.ridge"):
        Config.from_preset("words").with_settings(["words.ridge=-1"])
