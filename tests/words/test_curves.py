"""Guards calibrating the words model's scores: rare labels are ranked fairly, and no label becomes certain."""

import numpy as np
import pytest
from scipy.special import expit

from aplc.words import curves as curves_module
from aplc.words.curves import PLAIN, Curves
from aplc.words.index import rising


def test_curves_are_learned(monkeypatch):
    """Probabilities are right at every score, with other curves for frequent labels than for rare ones."""
    monkeypatch.setattr(curves_module, "OWN_CURVE", 2_500)
    rng = np.random.default_rng(0)
    n = np.geomspace(200_000, 500, 40).astype(int)
    log_n = np.log(n)
    true_L3 = np.stack([-3 - 0.2 * log_n, 6 - 0.5 * log_n, 1 + 0.1 * log_n], 1)
    true_L3[7] = 0.3, 2.0, 1.0
    scores = rng.random((4_000, 40)).astype(np.float32)
    logits = true_L3[:, 0] + true_L3[:, 1] * scores + true_L3[:, 2] * scores**2
    hits = rng.random(logits.shape) < 1 / (1 + np.exp(-logits))
    curves = Curves(len(scores))
    for start in (0, 15, 30):
        part = slice(start, start + 15)
        curves.add(start, scores[:, part], hits[:, part], n[part] - hits[:, part])
    found = curves.finish(n)
    assert list(curves.own) == [7]
    expected = 1 / (1 + np.exp(-logits))
    learned = 1 / (1 + np.exp(-(found[:, 0] + found[:, 1] * scores + found[:, 2] * scores**2)))
    assert np.abs(learned - expected).max() < 0.04


def test_labels_without_signal_are_as_probable_as_they_are_frequent():
    """Their curves are nearly flat; that `rising` gives every curve a slope must not change their probabilities."""
    rng = np.random.default_rng(0)
    scores = rng.normal(0.05, 0.02, (4_000, 30)).astype(np.float32)
    hits = rng.random(scores.shape) < 0.06
    curves = Curves(len(scores))
    curves.add(0, scores, hits, hits.sum(0) - hits)
    curve = curves.finish(hits.sum(0))
    assert len(curves.own) == 30
    share = expit(rising(scores, curve.T)).mean(0)
    assert share.min() > 0.045
    assert share.max() < 0.08


@pytest.mark.parametrize("seed", range(4))
def test_common_curve_of_labels_without_signal(seed):
    """Their leave-one-out scores are a little lower where they are right; none may become certain everywhere."""
    rng = np.random.default_rng(seed)
    n = np.maximum(170 / np.arange(1, 61), 2).astype(int)
    hits = rng.random((1_000, 60)) < n / 1_000
    scores = (rng.normal(n / 1_000, 0.1, hits.shape) - 0.02 * hits).astype(np.float32)
    curves = Curves(len(scores))
    curves.add(0, scores, hits, n - hits)
    assert not curves.own
    share = expit(rising(scores, curves.finish(n).T)).mean(0)
    assert np.abs(share - n / 1_000).max() < 0.2


def test_labels_with_about_equally_many_documents_share_one_curve():
    """In a balanced corpus, the count without a document would give away whether the document has the label."""
    rng = np.random.default_rng(0)
    n = rng.integers(20, 22, 100)
    hits = rng.permutation(np.repeat(np.eye(100, dtype=bool), n, axis=0))
    scores = np.where(hits, rng.normal(0.35, 0.15, hits.shape), rng.normal(0.03, 0.06, hits.shape)).astype(np.float32)
    curves = Curves(len(scores))
    curves.add(0, scores, hits, n - hits)
    curve = curves.finish(n)
    assert (curve == curve[0]).all()
    share = expit(rising(scores, curve.T)).sum(1).mean()
    assert share == pytest.approx(1, abs=0.1)


def test_curves_count_documents_without_the_one_left_out(monkeypatch):
    """A label's only document teaches nothing about labels with one document: the model without it has none."""
    monkeypatch.setattr(curves_module, "LEAST_HITS", 1)
    monkeypatch.setattr(curves_module, "ALIKE", 0)
    seen = []
    monkeypatch.setattr(curves_module, "_regress", lambda x, hit: seen.append((x, hit)) or np.zeros(8))
    curves = Curves(2)
    hits, n = np.array([[True, True, False], [False, True, False]]), np.array([1, 3, 4])
    curves.add(0, np.float32([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]), hits, n - hits)
    curves.finish(n)
    ((x, hit),) = seen
    expected = {(0.2, 2, True), (0.3, 4, False), (0.4, 1, False), (0.5, 2, True), (0.6, 4, False)}
    found = zip(x[:, 2].round(3).tolist(), np.exp(x[:, 0]).round().tolist(), hit.tolist(), strict=True)
    assert {(round(s, 3), n, h) for s, n, h in found} == expected


def test_each_document_keeps_its_best_candidates(monkeypatch):
    monkeypatch.setattr(curves_module, "CANDIDATES", 3)
    curves = Curves(1)
    for start, scores in [(0, [0.1, 0.9]), (2, [0.5]), (3, [0.2, 0.7, 0.0])]:
        none = np.zeros((1, len(scores)), dtype=bool)
        curves.add(start, np.float32([scores]), none, 1 - none)
    assert curves.label_MK[0].tolist() == [1, 4, 2]


def test_what_was_added_can_be_taken_again():
    """In a run that goes on, or of several processes: the same candidates, whatever order blocks come in."""
    rng = np.random.default_rng(0)
    scores, hits = rng.random((40, 200)).astype(np.float32), rng.random((40, 200)) < 0.1
    whole, added = Curves(40), []
    for start in range(0, 200, 64):
        part = slice(start, start + 64)
        added.append(whole.add(start, scores[:, part], hits[:, part], 3 - hits[:, part]))
    for order in added, added[::-1]:
        again = Curves(40)
        for new in order:
            again.take(new)
        for name in ("score_MK", "label_MK", "hit_MK", "n_MK"):
            assert getattr(again, name).tolist() == getattr(whole, name).tolist()
    assert sum(len(new.best.document) for new in added) < 40 * 200
    assert whole.score_MK.tolist() == np.sort(scores, axis=1)[:, ::-1][:, :50].tolist()


def test_labels_with_many_hits_keep_their_curves_where_others_have_too_few():
    """And a label that every document has is certain."""
    scores = np.random.default_rng(0).random((300, 2)).astype(np.float32)
    hits = np.stack([scores[:, 0] > 0.2, np.ones(300, dtype=bool)], 1)
    curves = Curves(300)
    curves.add(0, scores, hits, 1 - hits)
    found = curves.finish(np.ones(2, dtype=int))
    assert found[0].tolist() != list(PLAIN)
    assert found[1].tolist() == list(PLAIN)
    assert sorted(curves.own) == [0, 1]


def test_with_too_few_hits_labels_keep_the_order_of_scores():
    curves = Curves(2)
    hits = np.array([[False, True], [True, False]])
    curves.add(0, np.float32([[0.1, 0.9], [0.3, 0.2]]), hits, 1 - hits)
    assert curves.finish(np.ones(2, dtype=int)).tolist() == [list(PLAIN)] * 2


def test_labels_without_documents_teach_nothing_and_are_improbable(monkeypatch):
    """Their scores are no scores; only a mention of their name can make them probable (`names.py`)."""
    monkeypatch.setattr(curves_module, "OWN_CURVE", 10_000)
    rng = np.random.default_rng(0)
    n = np.array([0] * 10 + [1] * 10 + [8] * 10 + [40] * 10)
    scores = rng.random((2_000, 40)).astype(np.float32)
    hits = rng.random(scores.shape) < expit(np.where(n == 0, 4, -2 + 4 * scores))
    curves = Curves(2_000)
    curves.add(0, scores, hits, np.broadcast_to(n, scores.shape))
    found = expit(rising(scores, curves.finish(n).T))
    assert np.abs(found - expit(-2 + 4 * scores))[:, n > 0].max() < 0.06
    assert found[:, n == 0].max() < 1e-4


def test_labels_beyond_the_numbers_of_documents_seen_have_no_wild_curves():
    """All labels frequent but one: squares of log n, learned far from it, must not make that one certain."""
    rng = np.random.default_rng(0)
    curves, n = Curves(400), np.array([180, 200, 220, 240, 260, 1])
    hit = rng.random((400, 6)) < 0.4
    hit[:, 5] = False
    score = np.where(hit, 0.8, 0.1) + rng.normal(0, 0.15, hit.shape)
    score[:, 5] = 0
    learned_from = np.broadcast_to(n, hit.shape).copy()
    learned_from[:, 5] = 0  # only a reviewed document has it
    curves.add(0, score.astype(np.float32), hit, learned_from)
    curve = curves.finish(n)
    assert rising(np.float32(0), curve[5]) < rising(np.float32(0.1), curve[0]) + 1
    assert rising(np.float32(0), curve[5]) < 0
