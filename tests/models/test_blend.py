"""Guards the blend: it takes from each part what it is good for, and leaves a useless network alone."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit

import reference
from aplc.models.blend import Blend, Pairs, curves_at, dcg, log_likelihood, log_odds, place, regress

COUNTS = np.round(2_000 / np.arange(1, 301)).astype(np.int64)


def pairs(*, network_knows, n_documents=400, seed=0, doubt=2.0):
    """Made-up documents with 30 candidates each. The words know rare labels, the network those that are asked for."""
    rng = np.random.default_rng(seed)
    document = np.repeat(np.arange(n_documents), 30)
    label = np.concatenate([rng.choice(len(COUNTS), 30, replace=False) for _ in range(n_documents)])
    truth = rng.normal(-2, 2, len(label))
    noise = np.where(label < 50, doubt, 0.3)
    words = truth + rng.normal(size=len(label)) * noise
    network = np.where(network_knows(label), truth + rng.normal(size=len(label)) * 0.3, rng.normal(-3, 2, len(label)))
    return Pairs(document, label, words, network, rng.random(len(label)) < expit(truth))


def frequent(label):
    return label < 50


def test_the_network_counts_where_it_knows_more():
    blend, found = Blend.learn(pairs(network_knows=frequent), COUNTS)
    _, b_L, c_L = blend.curve_3L
    assert blend.uses_network
    assert c_L[0] > b_L[0]  # a frequent label: mostly the network
    assert c_L[-1] < 0.2 * b_L[-1]  # a rare one: the words
    assert "with both" in found


def test_a_learned_blend_ranks_other_documents_better():
    blend, _ = Blend.learn(pairs(network_knows=frequent), COUNTS)
    fresh = pairs(network_knows=frequent, seed=1)
    a, b, c = blend.curve_3L[:, fresh.label]
    assert dcg(fresh, a + b * fresh.words + c * fresh.network).mean() > dcg(fresh, fresh.words).mean() + 0.05


def test_the_blend_leans_towards_rare_labels():
    """By a twentieth of log n; what was learned is otherwise as it was."""
    made = pairs(network_knows=frequent)
    knots_LK = place(COUNTS)
    learned = curves_at(knots_LK, regress(made, knots_LK, np.ones(len(made.hit), dtype=bool)))
    blend, _ = Blend.learn(made, COUNTS)
    assert np.allclose(blend.curve_3L[1:], learned[1:], atol=1e-6)
    for label in (0, 20, 299):
        assert blend.curve_3L[0, label] == pytest.approx(learned[0, label] - 0.05 * math.log(COUNTS[label]), abs=1e-5)


@pytest.mark.parametrize("doubt", [0.3, 2.0])
@pytest.mark.parametrize("seed", range(5))
def test_a_network_that_knows_nothing_is_left_out(seed, doubt):
    """Also where the words could gain by being held down where they are in doubt: that is not the network's merit."""
    blend, found = Blend.learn(pairs(network_knows=lambda label: label < 0, seed=seed, doubt=doubt), COUNTS)
    assert not blend.uses_network
    assert "adds nothing" in found


def test_a_handful_of_documents_teaches_nothing():
    one = pairs(network_knows=frequent, n_documents=15)
    blend, found = Blend.learn(replace(one, hit=np.ones_like(one.hit)), COUNTS)
    assert not blend.uses_network
    assert "too few" in found


def test_few_hits_teach_nothing():
    few = pairs(network_knows=frequent, n_documents=5)
    blend, found = Blend.learn(few, COUNTS)
    assert not blend.uses_network
    assert "too few" in found
    opinions = np.random.default_rng(0).normal(size=(2, 1, len(COUNTS)))
    assert np.array_equal(blend(*opinions), opinions[0])


def test_neither_part_can_lower_the_blend():
    """Even where the learned numbers would: a network that says the opposite of the truth gets no say."""
    against = pairs(network_knows=frequent)
    blend, _ = Blend.learn(Pairs(**{**vars(against), "network": -against.network}), COUNTS)
    assert (blend.curve_3L[1:] >= 0).all()


def test_log_likelihood_matches_reference():
    made = pairs(network_knows=frequent, n_documents=20)
    found = log_likelihood(made, made.words)
    for document in range(20):
        own = made.document == document
        chances = zip(expit(made.words[own]), made.hit[own], strict=True)
        assert found[document] == pytest.approx(sum(np.log(p if hit else 1 - p) for p, hit in chances))


def test_dcg_matches_reference():
    made = pairs(network_knows=frequent, n_documents=20)
    found = dcg(made, made.words)
    for document in range(20):
        own = made.document == document
        order = np.argsort(-made.words[own], kind="stable")[:5]
        assert found[document] == pytest.approx(sum(made.hit[own][order] / np.log2(np.arange(5) + 2)))


def test_blended_probabilities_match_reference():
    rng = np.random.default_rng(0)
    words, network = rng.random((2, 40))
    network[:3] = 0, 1, 1e-30
    curve = rng.random((3, 40)).astype(np.float32)
    found = expit(Blend(curve)(log_odds(words), log_odds(network)))
    rows = zip(curve.T, log_odds(words), network, strict=True)
    expected = [reference.blended_probability(*row) for row in rows]
    assert np.allclose(found, expected, atol=1e-6)
