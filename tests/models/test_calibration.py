"""Guards probabilities that mean what they say, and best labels that stay exact when they are calibrated and merged."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from aplc.data.formats import read_documents
from aplc.errors import AplcError, ModelError
from aplc.evaluate.metrics import Metrics
from aplc.evaluate.run import evaluate
from aplc.evaluate.table import render
from aplc.models.calibration import STEPS, Calibration, Ranking
from aplc.nn.clusters import LabelClusters
from aplc.predict.search import Found, calibrate, predict_batches, predict_documents
from aplc.store.folder import load_tagger
from reference import reference_ranking, reference_threshold

BOUNDS = (0, 6, 14)
N_LABELS = 20


def overconfident(n, seed, width=10):
    """Candidates whose true chance is the square of what the model says in the head, and the root elsewhere."""
    rng = np.random.default_rng(seed)
    ids = np.argsort(rng.random((n, N_LABELS)), axis=1)[:, :width]
    probs = -np.sort(-rng.random((n, width)), axis=1)
    chance = np.where(ids < BOUNDS[1], probs**2, np.sqrt(probs))
    return ids, probs.astype(np.float32), rng.random(probs.shape) < chance


@pytest.fixture(scope="module")
def calibration():
    ids, probs, hit = overconfident(2000, seed=0)
    return Calibration.fit(ids, probs, hit, bounds=BOUNDS, n_true=int(hit.sum()))


def ece(ids, probs, hit):
    metrics = Metrics(np.ones(N_LABELS), n_documents=10, ks=(10,))
    indptr = np.cumsum([0, *hit.sum(axis=1)])
    metrics.update(ids, probs, indptr, ids[hit])
    return metrics.result()["ECE@10"]


def test_fresh_documents_have_less_error(calibration):
    ids, probs, hit = overconfident(1000, seed=1)
    after = calibration(ids, probs, BOUNDS)
    assert ece(ids, after, hit) < 0.03
    assert ece(ids, probs, hit) > 0.06


def test_the_fewer_documents_the_less_is_changed():
    """A model whose probabilities are right is hardly spoilt by calibration on few documents."""
    rng = np.random.default_rng(0)
    moved = []
    for n in (30, 300, 3_000):
        ids = np.tile(np.arange(10), (n, 1))
        probs = rng.random((n, 10)).astype(np.float32)
        fitted = Calibration.fit(ids, probs, rng.random((n, 10)) < probs, bounds=(0,), n_true=1)
        x, y = np.array(fitted.knots[0]).T
        assert len(x) > 2
        moved.append(np.abs(x - y).max())
    assert moved[0] < 0.12
    over = overconfident(2000, seed=0)
    few, many = (
        Calibration.fit(*(a[:n] for a in over), bounds=BOUNDS, n_true=1)(np.array([0]), np.array([0.7]), BOUNDS)[0]
        for n in (60, 2000)
    )
    assert 0.49 < many < few < 0.7


def test_order_within_a_cluster_stays(calibration):
    ids, probs, _ = overconfident(200, seed=2)
    after = calibration(ids, probs, BOUNDS)
    for start, stop in ((0, 6), (6, 14), (14, 20)):
        for row in range(len(ids)):
            inside = after[row, (ids[row] >= start) & (ids[row] < stop)]
            assert (np.diff(inside) < 0).all()


def test_cluster_with_few_hits_keeps_its_probabilities():
    ids, probs, hit = overconfident(100, seed=3)
    hit[ids >= BOUNDS[2]] = False
    fitted = Calibration.fit(ids, probs, hit, bounds=BOUNDS, n_true=1)
    tail = ids >= BOUNDS[2]
    assert np.array_equal(fitted(ids, probs, BOUNDS)[tail], probs[tail].astype(np.float64))
    assert not np.array_equal(fitted(ids, probs, BOUNDS)[~tail], probs[~tail].astype(np.float64))
    assert fitted.summary(["head", "tail 1", "tail 2"]) == (
        "learned on 100 held-out documents; too few hits there of tail 2: these keep their probabilities"
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("calibrated", [True, False])
def test_ranking_matches_reference(calibration, seed, calibrated):
    """Wherever `settle` is sure of a row, no label beyond the candidates belongs into it."""
    rng = np.random.default_rng(seed)
    probs = rng.random((60, N_LABELS)).astype(np.float32) ** 3
    probs[::7] = np.round(probs[::7], 1)  # ties
    merged = np.arange(N_LABELS)
    if seed % 2:
        merged[[3, 9, 17]] = [15, 15, 2]
    ranking = Ranking(BOUNDS, calibration if calibrated else None, merged if seed % 2 else None)
    n_sure = 0
    for width in (6, 12, N_LABELS):
        order = np.lexsort((np.broadcast_to(np.arange(N_LABELS), probs.shape), -probs), axis=1)[:, :width]
        ids, best, sure = ranking.settle(order, np.take_along_axis(probs, order, 1), 4)
        sure |= width == N_LABELS
        n_sure += sure.sum()
        curves = calibration.knots if calibrated else ()
        for i in np.flatnonzero(sure):
            expected = reference_ranking(probs[i].astype(float).tolist(), curves, BOUNDS, merged.tolist())[:4]
            assert ids[i].tolist() == [label for label, _ in expected]
            assert best[i] == pytest.approx([p for _, p in expected], abs=1e-6)
    assert n_sure > 80


def test_fewer_labels_than_asked_for(calibration):
    ids, probs = np.array([[4, 15, -1]]), np.array([[0.9, 0.2, 0.0]], dtype=np.float32)
    found, final, sure = Ranking(BOUNDS, calibration, None).settle(ids, probs, 3)
    assert sorted(found[0].tolist()) == [-1, 4, 15]
    assert found[0, -1] == -1
    assert final[0, -1] == 0
    assert sure.all()


@pytest.mark.parametrize("precision", [0.5, 0.7, 0.9])
def test_threshold_for_precision_matches_reference(precision):
    ids, probs, hit = overconfident(300, seed=5)
    fitted = Calibration.fit(ids, probs, hit, bounds=BOUNDS, n_true=int(hit.sum()))
    after = fitted(ids, probs, BOUNDS)
    expected = reference_threshold(after.ravel().tolist(), hit.ravel().tolist(), precision, STEPS)
    assert fitted.threshold_for(precision) == expected
    assert fitted.recall_at(expected) == pytest.approx(hit[after >= expected].sum() / hit.sum())


def test_precision_that_can_not_be_met_says_so():
    ids, probs, _ = overconfident(300, seed=5)
    hit = np.random.default_rng(0).random(probs.shape) < 0.3
    fitted = Calibration.fit(ids, probs, hit, bounds=BOUNDS, n_true=int(hit.sum()))
    with pytest.raises(AplcError, match=r"precision = 0.99: can't be met; the .* documents reach 0\.\d+ at most"):
        fitted.threshold_for(0.99)
    few = Calibration.fit(ids[:3], probs[:3], hit[:3], bounds=BOUNDS, n_true=3)
    with pytest.raises(AplcError, match="3 held-out documents"):
        few.threshold_for(0.5)


def test_file_gives_the_same_and_damage_is_refused(calibration, tmp_path):
    assert Calibration.load(tmp_path) is None
    calibration.save(tmp_path)
    assert Calibration.load(tmp_path) == calibration
    path = tmp_path / "calibration.json"
    whole = path.read_text()
    for bad in (
        "[]",
        "{}",
        whole.replace('"format": 1', '"format": 2'),
        whole.replace("0.0", "0.5", 1),
        whole.replace('"knots": [', '"knots": [[],', 1),
        whole.replace('"knots": [', '"knots": [[[0, 0], [NaN, 0.5], [1, 1]],', 1),
        whole.replace('"n_true"', '"n_false"'),
    ):
        path.write_text(bad)
        with pytest.raises(ModelError, match="calibration"):
            Calibration.load(tmp_path)


class HiddenStates:
    """A model whose batches are hidden states; it notes how many candidates it was asked for."""

    def __init__(self, clusters):
        self.clusters, self.n_labels, self.asked = clusters, clusters.n_labels, []

    def read(self, batch):
        return batch

    def topk(self, states, k, allowed=None):
        self.asked.append(k)
        found = self.clusters.topk(states, k, allowed=None if allowed is None else torch.from_numpy(allowed))
        return found.ids.numpy(), found.probs.detach().numpy()


@pytest.mark.parametrize("retired", [False, True])
def test_search_is_exact_where_calibration_turns_the_order_around(retired):
    """A tail's labels rise above the head's, so that the best ones are far down among the model's own candidates."""
    torch.manual_seed(0)
    model = HiddenStates(LabelClusters(8, [60, 150], 200, bias=True))
    curves = (((0, 0), (0.9, 0.05), (1, 1)), ((0, 0), (0.02, 0.5), (1, 1)), ((0, 0), (0.3, 0.4), (1, 1)))
    calibration = Calibration(curves, (0,) * (STEPS + 1), (0,) * (STEPS + 1), 1, 1)
    hidden = torch.randn(12, 8)
    merged = np.arange(200)
    merged[100:110] = 3
    ranking = Ranking((0, 60, 150), calibration, merged)
    allowed = np.arange(200) % 3 > 0 if retired else None
    ids, probs = predict_batches(
        model, [np.arange(12)], lambda members: hidden[members], 5, ranking=ranking, allowed=allowed
    )
    assert len(model.asked) > 1  # more candidates were needed, and found
    raw = model.clusters.probabilities(hidden).double()
    for i in range(len(hidden)):
        expected = reference_ranking(raw[i].tolist(), curves, (0, 60, 150), merged.tolist())
        if retired:  # one document at a time, and a merged label only through parts that are allowed
            left = [p if allowed[j] else -1.0 for j, p in enumerate(raw[i].tolist())]
            expected = reference_ranking(left, curves, (0, 60, 150), merged.tolist())
        assert ids[i].tolist() == [label for label, _ in expected[:5]]
        assert probs[i] == pytest.approx([p for _, p in expected[:5]], abs=1e-5)


def test_evaluation_shows_the_error_before_and_after(trained, corpus):
    tagger = load_tagger(trained)
    documents = list(read_documents(corpus / "train.jsonl"))
    raw = predict_documents(replace(tagger, calibration=None), documents, len(tagger.labels))
    found = [Found(ids, probs, [tagger.labels.encode(d.labels) for d in block]) for block, ids, probs in raw]
    learned = calibrate(tagger, found)
    assert any(len(points) > 2 for points in learned.knots)
    after = evaluate(replace(tagger, calibration=learned), documents)
    before = evaluate(replace(tagger, calibration=None), documents)
    assert before.before is None
    assert after.before == {f"ECE@{k}": before.metrics.result()[f"ECE@{k}"] for k in (1, 3, 5)}
    assert after.metrics.result()["ECE@5"] < after.before["ECE@5"]
    assert after.to_dict()["uncalibrated"] == after.before
    assert "before calibration" in render(after)
    assert "before calibration" not in render(before)
