"""Guards the metrics: each against independent implementations, and the rules for corner cases."""

import hashlib
import json
import math
import tracemalloc
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest

from aplc.errors import CorpusError
from aplc.evaluate import PROPENSITIES, Metrics, compare, intervals, propensity
from aplc.evaluate import bootstrap as bootstrap_module
from reference import reference_metrics

CASES = 1000


@dataclass
class Case:
    """Random predictions and truth as arrays for us, and as lists and sets for the other implementations."""

    pred: np.ndarray
    prob: np.ndarray
    indptr: np.ndarray
    ids: np.ndarray
    counts: np.ndarray
    n_documents: int
    ranked: list
    probs: list
    truths: list

    def metrics(self, **options) -> Metrics:
        return self.update(Metrics(self.counts, n_documents=self.n_documents, **options), 0, len(self.pred))

    def update(self, metrics: Metrics, start: int, end: int) -> Metrics:
        metrics.update(self.pred[start:end], self.prob[start:end], self.indptr[start : end + 1], self.ids)
        return metrics


def random_case(seed: int, *, full: bool = False, n: int | None = None, n_labels: int | None = None) -> Case:
    """Labels unseen in training, repeated true labels, short lists, documents without labels, lists wider than the
    label set. `full`: lists that rank every label."""
    rng = np.random.default_rng(seed)
    n = n or int(rng.integers(1, 9))
    n_labels = n_labels or int(rng.integers(2, 13))
    n_unseen = int(rng.integers(0, 4))
    n_documents = int(rng.integers(3, 1000))
    width = n_labels if full else int(rng.integers(1, 10))
    pred = np.full((n, width), -1)
    prob = np.zeros((n, width), dtype=np.float32)
    truth = []
    for i in range(n):
        size = n_labels if full else int(rng.integers(0, min(width, n_labels) + 1))
        pred[i, :size] = rng.permutation(n_labels)[:size]
        # Multiples of 1/8 and of 1/15 are exactly at the threshold and at the edges of bins.
        grid = rng.choice([8, 15, 1000])
        prob[i, :size] = np.sort(rng.integers(0, grid + 1, size) / grid)[::-1]
        truth.append(rng.integers(0, n_labels + n_unseen, rng.integers(0, 7)).tolist())
    return Case(
        pred=pred,
        prob=prob,
        indptr=np.cumsum([0, *map(len, truth)]),
        ids=np.array([label for labels in truth for label in labels], dtype=np.int64),
        counts=np.sort(rng.integers(1, n_documents + 1, n_labels))[::-1],
        n_documents=n_documents,
        ranked=[row[row >= 0].tolist() for row in pred],
        probs=[p[row >= 0].tolist() for row, p in zip(pred, prob, strict=True)],
        truths=[set(labels) for labels in truth],
    )


def multi_hot(sets: list, n_labels: int) -> np.ndarray:
    return np.array([[label in labels for label in range(n_labels)] for labels in sets], dtype=int)


def test_metrics_match_reference():
    for seed in range(CASES):
        case = random_case(seed)
        ks = ((1, 3, 5), (2,), (1, 4, 20))[seed % 3]
        ab = list(PROPENSITIES.values())[seed % 3]
        threshold = (0.5, 0.0, 0.25)[seed % 3]
        ours = case.metrics(ks=ks, propensity=ab, threshold=threshold).result()
        theirs = reference_metrics(
            case.ranked,
            case.probs,
            case.truths,
            counts=case.counts,
            n_documents=case.n_documents,
            ks=ks,
            threshold=threshold,
            ab=ab,
        )
        assert ours.keys() == theirs.keys()
        assert ours == pytest.approx(theirs, abs=1e-9), seed


def test_metrics_match_napkinxc():
    theirs = pytest.importorskip("napkinxc.metrics")
    for seed in range(CASES):
        case = random_case(seed)
        ours = case.metrics(ks=(1, 2, 3, 4, 5), threshold=0.0).result()
        truths = [sorted(labels) for labels in case.truths]
        n_ids = 1 + max([len(case.counts) - 1, *case.ids.tolist()])
        inverse = propensity(np.pad(case.counts, (0, n_ids - len(case.counts))), case.n_documents)
        with np.errstate(invalid="ignore"):  # napkinxc answers 0 / 0 with NaN, we with 0
            expected = {
                "P": theirs.precision_at_k(truths, case.ranked, k=5),
                "R": theirs.recall_at_k(truths, case.ranked, k=5),
                "nDCG": theirs.ndcg_at_k(truths, case.ranked, k=5),
                "PSP": theirs.psprecision_at_k(truths, case.ranked, inverse, k=5),
                "PSnDCG": theirs.psndcg_at_k(truths, case.ranked, inverse, k=5),
                "coverage": theirs.coverage_at_k(truths, case.ranked, k=5) if case.ids.size else np.zeros(5),
            }
        for name, values in expected.items():
            mine = [ours[f"{name}@{k}"] for k in range(1, 6)]
            np.testing.assert_allclose(mine, np.nan_to_num(values), atol=1e-9, rtol=0, err_msg=f"{name}, case {seed}")
        if any(case.truths) or any(case.ranked):
            micro = theirs.micro_f1_measure(truths, case.ranked)
            assert ours["micro-F1"] == pytest.approx(micro, abs=1e-9)


def test_propensity_matches_napkinxc():
    theirs = pytest.importorskip("napkinxc.metrics")
    rng = np.random.default_rng(0)
    for _ in range(CASES):
        dense = rng.integers(0, 2, (rng.integers(3, 20), rng.integers(1, 8)))
        a, b = rng.uniform(0.3, 0.8), rng.uniform(0.2, 3)
        expected = theirs.Jain_et_al_inverse_propensity(dense, A=a, B=b)
        np.testing.assert_allclose(propensity(dense.sum(0), len(dense), a, b), expected, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
def test_metrics_match_scikit_learn():
    from sklearn.metrics import f1_score, ndcg_score, precision_score, recall_score

    for seed in range(CASES):
        case = random_case(seed, full=True)
        k = 1 + seed % len(case.counts)
        ours = case.metrics(ks=(k,), threshold=0.5).result()
        n_ids = 1 + max([len(case.counts) - 1, *case.ids.tolist()])
        true = multi_hot(case.truths, n_ids)
        top = multi_hot([ids[:k] for ids in case.ranked], n_ids)
        score = np.zeros(true.shape)
        for row, ids in zip(score, case.ranked, strict=True):
            row[ids] = np.arange(len(ids), 0, -1)
        chosen = multi_hot(
            [np.array(ids)[np.array(p) >= 0.5] for ids, p in zip(case.ranked, case.probs, strict=True)], n_ids
        )
        occurring = np.flatnonzero((true | chosen).any(0))
        kinds = {"average": "samples", "zero_division": 0}
        expected = {
            f"P@{k}": precision_score(true, top, **kinds),
            f"R@{k}": recall_score(true, top, **kinds),
            f"nDCG@{k}": ndcg_score(true, score, k=k),
            "micro-F1": f1_score(true, chosen, average="micro", zero_division=0),
            "macro-F1": f1_score(true, chosen, labels=occurring, average="macro", zero_division=0)
            if len(occurring)
            else 0,
        }
        assert {name: ours[name] for name in expected} == pytest.approx(expected, abs=1e-9), seed


def test_reliability_matches_scikit_learn():
    from sklearn.calibration import calibration_curve

    for seed in range(CASES):
        case = random_case(seed)
        bins = (15, 8, 10)[seed % 3]
        diagram = case.metrics(ks=(3,), bins=bins).reliability(3)
        rows = list(zip(case.ranked, case.probs, case.truths, strict=True))
        hit = [label in true for ids, _, true in rows for label in ids[:3]]
        prob = [p for _, row, _ in rows for p in row[:3]]
        assert diagram.pairs.sum() == len(prob)
        if prob:
            accuracy, confidence = calibration_curve(hit, prob, n_bins=bins)
            np.testing.assert_allclose(diagram.accuracy[diagram.pairs > 0], accuracy, atol=1e-9)
            np.testing.assert_allclose(diagram.confidence[diagram.pairs > 0], confidence, atol=1e-9)


@pytest.mark.network
def test_baseline_on_pubmed_mesh_has_the_known_figures():
    """The most frequent labels for every document. The figures come from another implementation; unseen labels count
    in PSP's denominator."""
    samples = pytest.importorskip("aplc.data.samples")
    try:
        path = samples.fetch_medline()
    except CorpusError as error:
        pytest.skip(str(error))
    train, test = [], []
    for row in samples.citations(path):
        if row["labels"] and row["abstract"]:
            heldout = int(hashlib.sha1(row["id"].encode()).hexdigest(), 16) % 5 == 0
            (test if heldout else train).append(row["labels"])
    counter = Counter(label for labels in train for label in labels)
    index = {name: i for i, name in enumerate(sorted(counter, key=lambda name: (-counter[name], name)))}
    counts = [counter[name] for name in index]
    truth = [[index.setdefault(name, len(index)) for name in labels] for labels in test]
    assert (len(train), len(test), len(counts), len(index)) == (11_903, 2_929, 8_839, 9_315)

    metrics = Metrics(counts, n_documents=len(train))
    pred = np.tile(np.arange(5), (len(test), 1))
    prob = np.array(counts)[pred] / len(train)
    metrics.update(pred, prob, np.cumsum([0, *map(len, truth)]), np.concatenate(truth))
    percent = {name: round(100 * value, 2) for name, value in metrics.result().items()}
    assert [percent[f"P@{k}"] for k in (1, 3, 5)] == [56.03, 43.46, 37.31]
    assert [percent[f"PSP@{k}"] for k in (1, 3, 5)] == [8.57, 8.76, 9.2]


def known(pred, truth, *, prob=None, counts=(8, 4, 2, 1), **options) -> dict[str, float]:
    metrics = Metrics(counts, n_documents=10, **options)
    pred = np.array(pred)
    prob = np.full(pred.shape, 0.9) if prob is None else np.array(prob)
    metrics.update(pred, prob, np.cumsum([0, *map(len, truth)]), [label for labels in truth for label in labels])
    return metrics.result()


def test_fewer_than_k_predictions_count_as_wrong():
    short = known([[0, -1, -1]], [[0, 1]])
    assert short["P@3"] == pytest.approx(1 / 3)
    assert short["P@5"] == pytest.approx(1 / 5)
    assert short["RP@5"] == short["R@5"] == pytest.approx(1 / 2)
    assert short["ECE@5"] == pytest.approx(0.1)  # of the one pair there is
    assert known([[0]], [[0, 1]]) == short  # a narrow array is the same as padding
    nothing = known(np.zeros((1, 0), dtype=int), [[0, 1]], prob=np.zeros((1, 0)))
    assert set(nothing.values()) == {0.0}


def test_document_without_true_labels_counts_as_zero():
    one = known([[2, 1, 0]], [[0, 1, 2]])
    two = known([[2, 1, 0], [2, 1, 0]], [[0, 1, 2], []])
    for name in ("P@3", "nDCG@3", "R@3", "RP@3"):
        assert two[name] == one[name] / 2
    for name in ("PSP@3", "PSnDCG@3", "coverage@3"):  # ratios of sums: the document adds 0 to both
        assert two[name] == one[name] == 1
    metrics = Metrics([1], n_documents=10)
    metrics.update([[0], [0]], [[0.5], [0.5]], [0, 0, 1], [0])
    assert (metrics.n_evaluated, metrics.n_unlabelled) == (2, 1)
    assert known([[0]], [[]])["P@1"] == 0


def test_labels_unknown_to_the_model_count_as_true_labels():
    without, with_unseen = known([[0, 1]], [[0, 1]]), known([[0, 1]], [[0, 1, 7]])
    assert with_unseen["P@1"] == without["P@1"] == 1
    assert (with_unseen["R@3"], with_unseen["RP@3"]) == pytest.approx((2 / 3, 2 / 3))
    weight = propensity([8, 4, 0], 10)
    assert with_unseen["PSP@3"] == pytest.approx(weight[:2].sum() / weight.sum())
    assert with_unseen["PSP@1"] == pytest.approx(weight[0] / weight[2])
    assert with_unseen["coverage@5"] == pytest.approx(2 / 3)
    assert with_unseen["nDCG@5"] < without["nDCG@5"] == 1


def test_k_may_exceed_the_number_of_labels():
    result = known([[3, 2, 1, 0]], [[0, 1, 2, 3]], ks=(4, 1000))
    assert result["P@1000"] == pytest.approx(4 / 1000)
    perfect = ("R@1000", "RP@1000", "nDCG@1000", "PSP@1000", "PSnDCG@1000", "coverage@1000")
    assert [result[name] for name in perfect] == [1] * 6


def test_repeated_true_label_counts_once():
    assert known([[0, 1]], [[0, 0, 0]]) == known([[0, 1]], [[0]])


def test_f1_uses_the_whole_list_and_includes_the_threshold():
    result = known([[0, 1, 2]], [[0, 2]], prob=[[0.9, 0.5, 0.4]], ks=(1,))
    assert result["micro-F1"] == pytest.approx(2 * 1 / (2 + 2))
    assert result["macro-F1"] == pytest.approx((1 + 0 + 0) / 3)  # label 3 is neither true nor predicted


def test_probability_at_an_edge_belongs_to_the_lower_bin():
    metrics = Metrics([1, 1, 1], n_documents=10, ks=(3,), bins=2)
    metrics.update([[0, 1, 2]], [[1.0, 0.5, 0.0]], [0, 1], [0])
    assert metrics.reliability(3).pairs.tolist() == [2, 1]
    assert metrics.result()["ECE@3"] == pytest.approx((2 * 0.25 + 0) / 3)


def test_propensity_values():
    c = (math.log(1000) - 1) * 2.5**0.55
    assert propensity([0, 10], 1000).tolist() == pytest.approx([1 + c * 1.5**-0.55, 1 + c * 11.5**-0.55])
    assert propensity([2, 1, 0], 2).tolist() == [1, 1, 1]  # too few documents for the formula
    assert propensity([5], 100, *PROPENSITIES["amazon"])[0] == pytest.approx(
        1 + (math.log(100) - 1) * 3.6**0.6 * 7.6**-0.6
    )
    assert Metrics([1], n_documents=9, propensity="wikipedia").propensity == (0.5, 0.4)


def test_result_is_json_with_stable_names():
    result = random_case(3).metrics().result()
    assert json.loads(json.dumps(result)) == result
    names = ["P", "nDCG", "R", "RP", "PSP", "PSnDCG", "coverage", "ECE"]
    assert list(result) == [f"{name}@{k}" for name in names for k in (1, 3, 5)] + ["micro-F1", "macro-F1"]
    assert all(type(value) is float for value in result.values())


def test_batch_boundaries_do_not_change_the_figures():
    for seed in range(50):
        case = random_case(seed, n=40, n_labels=30)
        whole = case.metrics()
        rng = np.random.default_rng(seed)
        cuts = [0, *sorted(rng.integers(0, 41, 4).tolist()), 40]  # some batches are empty
        batched = Metrics(case.counts, n_documents=case.n_documents)
        for start, end in pairwise(cuts):
            case.update(batched, start, end)
        assert batched.result() == pytest.approx(whole.result(), abs=1e-12)
        assert batched.n_evaluated == 40
        for k in whole.ks:
            np.testing.assert_array_equal(batched.label_stats(k).hits, whole.label_stats(k).hits)
            np.testing.assert_array_equal(batched.reliability(k).pairs, whole.reliability(k).pairs)


@pytest.mark.parametrize(
    ("pred", "prob", "indptr", "ids", "message"),
    [
        ([[0, 0]], [[0.5, 0.5]], [0, 1], [0], "twice"),
        ([[0, 1]], [[0.5]], [0, 1], [0], "both be"),
        ([[0]], [[1.5]], [0, 1], [0], "not a probability"),
        ([[0]], [[math.nan]], [0, 1], [0], "not a probability"),
        ([[0]], [[0.5]], [0, 1, 2], [0, 1], r"expected \(2,\) for 1 rows"),
        ([[0]], [[0.5]], [0, 3], [0], "at most 1"),
        ([[0]], [[0.5]], [0, 1], [-100], "padding"),
    ],
)
def test_wrong_input_is_refused(pred, prob, indptr, ids, message):
    metrics = Metrics([1, 1], n_documents=10)
    with pytest.raises(ValueError, match=message):
        metrics.update(pred, prob, indptr, ids)


@pytest.mark.parametrize(
    "options", [{"ks": ()}, {"ks": (3, 1)}, {"ks": (0,)}, {"threshold": 2}, {"bins": 0}, {"propensity": "eurlex"}]
)
def test_wrong_settings_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
        Metrics([1], n_documents=10, **options)


def test_no_document_or_another_depth_is_refused():
    metrics = Metrics([1], n_documents=10)
    with pytest.raises(ValueError, match="no document"):
        metrics.result()
    with pytest.raises(ValueError, match="one of ks"):
        metrics.label_stats(4)


def test_bootstrap_matches_metrics_of_resampled_documents(monkeypatch):
    """Weighting documents equals evaluating the drawn documents themselves, whatever the size of a group."""
    case = random_case(1, n=25, n_labels=20)
    monkeypatch.setattr(bootstrap_module, "_BYTES", 8 * 25 * 7)
    found = intervals(case.metrics().document_scores(), n_resamples=40, level=0.9, seed=5)
    rng = np.random.default_rng(5)
    samples = []
    for _ in range(40):
        drawn = Metrics(case.counts, n_documents=case.n_documents)
        for i in rng.integers(25, size=25):
            case.update(drawn, i, i + 1)
        samples.append(drawn.result())
    whole = case.metrics().result()
    assert len(found) == 19
    for name, interval in found.items():
        low, high = np.quantile([sample[name] for sample in samples], [0.05, 0.95])
        assert (interval.value, interval.low, interval.high) == pytest.approx((whole[name], low, high), abs=1e-9)


def test_bootstrap_interval_is_as_wide_as_the_normal_approximation():
    rng = np.random.default_rng(0)
    metrics = Metrics(np.ones(2), n_documents=10, ks=(1,))
    metrics.update((rng.random((2000, 1)) < 0.3).astype(int), np.full((2000, 1), 0.5), np.arange(2001), np.zeros(2000))
    interval = intervals(metrics.document_scores())["P@1"]
    expected = 2 * 1.96 * math.sqrt(interval.value * (1 - interval.value) / 2000)
    assert interval.high - interval.low == pytest.approx(expected, rel=0.1)
    assert intervals(metrics.document_scores())["P@1"] == interval  # the seed is fixed


def test_paired_bootstrap_finds_the_better_run():
    rng = np.random.default_rng(0)
    n = 300
    runs = []
    for accuracy in (0.75, 0.55):
        metrics = Metrics(np.ones(2), n_documents=10, ks=(1,))
        metrics.update((rng.random((n, 1)) > accuracy).astype(int), np.full((n, 1), 0.5), np.arange(n + 1), np.zeros(n))
        runs.append(metrics.document_scores())
    there, back = compare(*runs)["P@1"], compare(*reversed(runs))["P@1"]
    assert 0 < there.low < there.difference < there.high
    assert there.p_value < 0.05
    assert (back.difference, back.p_value) == (-there.difference, there.p_value)
    same = compare(runs[0], runs[0])["P@1"]
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)
    other = random_case(0, n=n).metrics(ks=(1,)).document_scores()
    with pytest.raises(ValueError, match="same documents"):
        compare(runs[0], other)
    with pytest.raises(ValueError, match="different metrics"):
        compare(runs[0], random_case(0, n=n).metrics().document_scores())


def test_memory_at_the_size_of_amazon_670k():
    """30,000 documents and 670,091 labels, with intervals, take less than 1 GB."""
    rng = np.random.default_rng(0)
    n_labels, size = 670_091, 1000
    tracemalloc.start()
    metrics = Metrics(np.arange(n_labels, 0, -1), n_documents=490_449, propensity="amazon")
    for _ in range(30):
        pred = np.arange(size)[:, None] + rng.permutation(n_labels // size)[:20] * size
        prob = np.sort(rng.random(pred.shape).astype(np.float32))[:, ::-1]
        metrics.update(pred, prob, np.arange(0, 5 * size + 1, 5), rng.integers(0, n_labels + 3000, 5 * size))
    metrics.result()
    intervals(metrics.document_scores(), n_resamples=100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert metrics.n_evaluated == 30_000
    assert peak < 2**30
