"""Guards confusions, candidates and examples: exact while there are few, and of bounded size."""

from collections import Counter

import numpy as np

from aplc.data.formats import Document
from aplc.evaluate.bands import best_and_worst
from aplc.evaluate.findings import PER_LABEL, SIDES, Findings, PairCounter
from aplc.evaluate.metrics import LabelStats

NAMES = [f"label {i}" for i in range(30)]


def feed(findings, rows):
    """rows: (predicted ids, probabilities, true ids) of each document."""
    width = max(len(ids) for ids, _, _ in rows)
    ids = np.full((len(rows), width), -1)
    probs = np.zeros((len(rows), width))
    documents = []
    for i, (predicted, p, true) in enumerate(rows):
        ids[i, : len(predicted)], probs[i, : len(p)] = predicted, p
        number = findings.n_documents + i
        documents.append(Document(f"text {number}", [f"label {j}" for j in true], line=number + 1))
    findings.update(documents, ids, probs, [list(true) for _, _, true in rows])
    return findings


def test_pair_counter_matches_counter():
    rng = np.random.default_rng(0)
    counter, expected = PairCounter(), Counter()
    for _ in range(20):
        pairs = rng.integers(0, 12, (50, 2))
        counter.add(pairs[:, 0], pairs[:, 1])
        expected.update(map(tuple, pairs.tolist()))
    first, second, counts = counter.pairs()
    assert dict(zip(zip(first.tolist(), second.tolist(), strict=True), counts.tolist(), strict=True)) == expected
    assert counter.exact


def test_pair_counter_drops_the_rarest_and_is_no_longer_exact():
    rng = np.random.default_rng(0)
    counter = PairCounter(limit=100)
    for _ in range(50):
        noise = rng.integers(10, 100_000, 80)
        counter.add([*noise, 1, 1, 1], [*noise, 2, 2, 2])
        assert len(counter.keys) <= 2 * counter.limit
    first, _, counts = counter.pairs()
    assert not counter.exact
    assert counts[first.tolist().index(1)] == 150


def test_confusion_is_a_miss_and_a_wrong_prediction_more_often_than_by_chance():
    rows = [([1, 2, 9], [0.9, 0.8, 0.7], (0, 2))] * 6  # 0 missed, 1 wrong; 9 is not among the first two
    rows += [([3, 4], [0.9, 0.8], (3, 4))] * 6
    (confusion,) = feed(Findings(NAMES), rows).confusions()
    assert (confusion.missed, confusion.predicted, confusion.documents) == ("label 0", "label 1", 6)
    assert confusion.expected == 6 * 6 / 12


def test_pairs_expected_by_chance_are_no_confusions():
    assert feed(Findings(NAMES), [([1], [0.9], (0,))] * 5).confusions() == []
    assert feed(Findings(NAMES), [([1], [0.9], ())] * 5).confusions() == []


def test_documents_with_many_or_unknown_labels_add_few_pairs():
    findings = feed(Findings(NAMES), [(list(range(15)), [0.9] * 15, tuple(range(15, 40)))])
    assert len(findings.pairs.keys) == SIDES * SIDES


def test_candidates_are_the_most_probable_absent_labels_and_few_per_label():
    rows = [([0, 1, 2], [0.99 - i / 1000, 0.7, 0.4], (1,)) for i in range(9)]
    candidates = feed(Findings(NAMES, sure=0.5), rows).candidates
    assert [c.label for c in candidates] == ["label 0"] * PER_LABEL
    assert [c.name for c in candidates] == ["line 1", "line 2"]
    assert [c.true for c in candidates] == [["label 1"]] * PER_LABEL


def test_candidates_stay_few_and_the_most_probable_over_many_labels():
    rng = np.random.default_rng(0)
    findings = Findings([f"label {i}" for i in range(5000)], n_candidates=10)
    best = []
    for i in range(5000):
        p = float(rng.random())
        feed(findings, [([i], [p], ())])
        best.append(p)
    assert [c.probability for c in findings.candidates] == sorted(best, reverse=True)[:10]
    assert len(findings._candidates) <= 4 * 10


def test_examples_are_drawn_uniformly_and_depend_on_the_seed_only():
    counts = Counter()
    for seed in range(300):
        findings = feed(Findings(NAMES, n_examples=2, seed=seed), [([0], [0.5], (0,))] * 10)
        names = [example.name for example in findings.examples]
        assert names == sorted(names, key=lambda name: int(name.split()[1]))
        counts.update(names)
    assert len(counts) == 10
    assert min(counts.values()) > 30  # 60 expected
    again = feed(Findings(NAMES, n_examples=2, seed=299), [([0], [0.5], (0,))] * 10)
    assert [example.name for example in again.examples] == names


def test_best_and_worst_labels_by_f1():
    true = np.array([10, 10, 10, 10, 3, 10])
    hits = np.array([10, 0, 5, 0, 3, 9])
    stats = LabelStats(0, np.array([900, 50, 40, 30, 20, 10]), true, predicted=hits, hits=hits)
    best, worst = best_and_worst(stats, NAMES[:6], n=2, least=5)
    assert [score.name for score in best] == ["label 0", "label 5"]
    assert [score.name for score in worst] == ["label 1", "label 3"]
    assert best[1].recall == 0.9
    assert best[1].precision == 1
    alone = best_and_worst(LabelStats(0, *(np.array([1]) for _ in range(4))), ["only"])
    assert alone == ([], [])
