"""Guards results by band: each matches a slow count, and the bands add up to the whole label set."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from aplc.evaluate import Metrics, by_cluster, by_examples, by_frequency
from reference import reference_band


def random_case(seed: int):
    rng = np.random.default_rng(seed)
    n, n_labels = int(rng.integers(1, 30)), int(rng.integers(2, 40))
    counts = np.sort(np.ceil(10 ** rng.uniform(0, 3, n_labels)).astype(int))[::-1]
    ranked = [rng.permutation(n_labels)[: rng.integers(0, 8)].tolist() for _ in range(n)]
    truths = [set(rng.integers(0, n_labels + 5, rng.integers(0, 9)).tolist()) for _ in range(n)]
    pred = np.array([row + [-1] * (8 - len(row)) for row in ranked])
    metrics = Metrics(counts, n_documents=1000)
    metrics.update(pred, np.full(pred.shape, 0.5), np.cumsum([0, *map(len, truths)]), [x for t in truths for x in t])
    return metrics, counts, ranked, truths


def ids_between(counts, truths, low, high):
    ids = {i for i, count in enumerate(counts) if low <= count <= high}
    return ids | {i for true in truths for i in true if i >= len(counts)} if low == 0 else ids


def test_bands_match_reference():
    for seed in range(300):
        metrics, counts, ranked, truths = random_case(seed)
        stats = metrics.label_stats(5)
        cutoff = max(1, len(counts) // 3)
        inside = {
            "frequency": [(101, 10**9), (11, 100), (1, 10), (0, 0)],
            "examples": [(band.low, band.high) for band in by_examples(stats)],
        }
        pairs = [
            (band, ids_between(counts, truths, low, high))
            for bands, bounds in ((by_frequency(stats), inside["frequency"]), (by_examples(stats), inside["examples"]))
            for band, (low, high) in zip(bands, bounds, strict=True)
        ]
        clusters = by_cluster(stats, cutoffs=[cutoff], n_labels=len(counts))
        ranges = [range(cutoff), range(cutoff, len(counts)), range(len(counts), 10**6)]
        pairs += list(zip(clusters, ranges, strict=True))
        for band, ids in pairs:
            true, predicted, hits = reference_band(ranked, truths, 5, ids)
            assert (band.true, band.predicted, band.hits) == (true, predicted, hits)
            assert band.recall == pytest.approx(hits / true if true else 0, abs=1e-12)
            assert band.precision == pytest.approx(hits / predicted if predicted else 0, abs=1e-12)
            assert band.f1 == pytest.approx(2 * hits / (true + predicted) if true + predicted else 0, abs=1e-12)
            if not isinstance(ids, range):
                assert band.labels == len(ids)


def test_bands_add_up_to_the_whole_label_set():
    metrics, counts, *_ = random_case(7)
    stats = metrics.label_stats(3)
    everything = by_cluster(stats, cutoffs=[], n_labels=len(counts))
    for bands in (by_frequency(stats), by_examples(stats), by_cluster(stats, cutoffs=[3, 9], n_labels=len(counts))):
        for field in ("labels", "labels_true", "true", "predicted", "hits"):
            assert sum(getattr(band, field) for band in bands) == sum(getattr(band, field) for band in everything)
        assert sum(band.share for band in bands) == pytest.approx(1)
        assert sum(band.share_true for band in bands) == pytest.approx(1)
        covered = sum(band.coverage * band.labels_true for band in bands) / sum(band.labels_true for band in bands)
        assert covered == pytest.approx(metrics.result()["coverage@3"])


def test_a_small_case_by_hand():
    metrics = Metrics([200, 50, 5, 5], n_documents=300, ks=(2,))
    #              two hits in the head, one of two in the tail; label 4 is unseen
    metrics.update([[0, 2], [0, 1]], [[0.9, 0.8], [0.9, 0.8]], [0, 2, 5], [0, 2, 0, 2, 4])
    head, torso, tail, unseen = by_frequency(metrics.label_stats(2))
    assert [band.name for band in (head, torso, tail, unseen)] == ["head", "torso", "tail", "unseen"]
    assert (head.low, head.high, torso.low, torso.high, tail.low, tail.high) == (101, 200, 11, 100, 1, 10)
    assert (head.recall, head.precision, head.share, head.share_true) == (1, 1, 0.5, 0.4)
    assert (torso.true, torso.predicted, torso.recall, torso.precision, torso.f1) == (0, 1, 0, 0, 0)
    assert (tail.labels, tail.labels_true, tail.recall, tail.precision) == (2, 1, 0.5, 1)
    assert tail.f1 == pytest.approx(2 / 3)
    assert (tail.coverage, tail.label_recall) == (1, 0.5)
    assert (unseen.labels, unseen.true, unseen.recall, unseen.coverage) == (1, 1, 0, 0)
    curve = by_examples(metrics.label_stats(2))
    assert [(band.name, band.recall) for band in curve] == [("0", 0), ("5-8", 0.5), ("33-64", 0), ("129-256", 1)]
    assert json.loads(json.dumps([asdict(band) for band in curve]))[1]["label_recall"] == 0.5
    clusters = by_cluster(metrics.label_stats(2), cutoffs=[2], n_labels=4)
    assert [(band.name, band.low, band.high, band.true) for band in clusters] == [
        ("head", 50, 200, 2),
        ("tail 1", 5, 5, 2),
        ("not in the model", 0, 0, 1),
    ]


def test_wrong_bounds_are_refused():
    stats = random_case(0)[0].label_stats(1)
    with pytest.raises(ValueError, match="tail is 100"):
        by_frequency(stats, tail=100)
    with pytest.raises(ValueError, match="cutoffs is"):
        by_cluster(stats, cutoffs=[5, 3], n_labels=40)
