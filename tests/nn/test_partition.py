"""Guards Partition: no cut leaves an empty cluster, and Equations 6-14 hold exactly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aplc.nn.clusters import LabelClusters
from aplc.nn.partition import Partition

# The paper's five settings: labels, width, proportions, cut-offs, and Equation 6 worked out by hand for them.
PAPER = {
    "eurlex-4k": (3_956, 768, (0.5, 0.5), (1_978,), 768 * 1_979 + 384 * (768 + 1_978)),
    "amazoncat-13k": (13_330, 768, (0.5, 0.5), (6_665,), 768 * 6_666 + 384 * (768 + 6_665)),
    "wiki10-31k": (30_938, 768, (0.5, 0.5), (15_469,), 768 * 15_470 + 384 * (768 + 15_469)),
    "wiki-500k": (
        501_069,
        768,
        (0.33, 0.33, 0.34),
        (165_352, 330_705),
        768 * 165_354 + 384 * (768 + 165_353) + 192 * (768 + 170_364),
    ),
    "amazon-670k": (
        670_091,
        512,
        (0.25, 0.25, 0.25, 0.25),
        (167_522, 335_045, 502_568),
        512 * 167_525 + 256 * (512 + 167_523) + 128 * (512 + 167_523) + 64 * (512 + 167_523),
    ),
}


@pytest.mark.parametrize("name", PAPER)
def test_parameters_are_equation_6_for_the_papers_settings(name):
    n_labels, width, proportions, cutoffs, parameters = PAPER[name]
    partition = Partition.from_proportions(n_labels, proportions)
    assert partition.cutoffs == cutoffs
    assert partition.parameters(width) == parameters
    layer = LabelClusters(width, partition.cutoffs, n_labels, tail="linear", device="meta")
    assert sum(p.numel() for p in layer.parameters()) == parameters
    assert [tuple(tail.output.weight.shape) for tail in layer.tails] == list(
        zip(partition.sizes[1:], partition.widths(width)[1:], strict=True)
    )


def test_sizes_are_those_in_the_docs():
    """docs/clusters.md and README print these."""
    sizes = {name: Partition.from_proportions(p[0], p[2]).parameters(p[1]) for name, p in PAPER.items()}
    assert sizes == {
        "eurlex-4k": 2_574_336,
        "amazoncat-13k": 7_973_760,
        "wiki10-31k": 18_115_968,
        "wiki-500k": 223_639_680,
        "amazon-670k": 161_052_480,
    }


def test_costs_are_equations_11_13_and_14():
    partition = Partition.from_cutoffs(100, [20, 60])
    reached = [0.5, 0.25]
    assert partition.cost(16, 8, reached) == 8 * (16 * 22 + 0.5 * 8 * (40 + 16) + 0.25 * 4 * (40 + 16))
    assert partition.flat_cost(16, 8) == 8 * 16 * 100
    assert partition.cost_ratio(reached) == pytest.approx(100 / (20 + 0.5 * 40 / 2 + 0.25 * 40 / 4))
    assert partition.size_ratio(16) == pytest.approx(16 * 100 / partition.parameters(16))
    flat = Partition.from_cutoffs(100, [])
    assert (flat.parameters(16), flat.size_ratio(16), flat.cost_ratio([])) == (1600, 1, 1)


@given(st.integers(1, 50), st.lists(st.floats(0.01, 1), min_size=1, max_size=6))
def test_proportions_never_give_an_empty_cluster(n_labels, weights):
    partition = Partition.from_proportions(n_labels, [weight / sum(weights) for weight in weights])
    assert partition.n_clusters == min(n_labels, len(weights))
    assert min(partition.sizes) >= 1
    assert sum(partition.sizes) == n_labels


def test_proportions_are_not_misled_by_floating_point():
    assert Partition.from_proportions(10, (0.7, 0.2, 0.1)).cutoffs == (7, 9)  # 0.7 + 0.2 is 0.8999... in floats


def test_reach_from_documents_counts_and_reach_from_counts_assumes_independence():
    partition = Partition.from_cutoffs(6, [2, 4])
    indptr, ids = [0, 2, 3, 3, 6], [0, 2, 1, 3, 3, 5]  # tail 1 in documents 0 and 3, tail 2 in document 3
    assert partition.documents_touching(indptr, ids).tolist() == [2, 1]
    assert partition.documents_touching([[0, 2], [1], [], [3, 3, 5]]).tolist() == [2, 1]
    assert partition.documents_touching([]).tolist() == [0, 0]
    np.testing.assert_allclose(partition.reach_from_documents(indptr, ids, batch_size=3), [1 - 0.5**3, 1 - 0.75**3])
    found = partition.reach_from_counts([4, 3, 2, 1, 1, 0], n_documents=4, batch_size=3)
    np.testing.assert_allclose(found, [1 - (0.5 * 0.75) ** 3, 1 - 0.75**3])


def zipf(n_labels, n_documents):
    return np.maximum(1, 0.3 * n_documents / np.arange(1, n_labels + 1) ** 0.82).astype(int)


@pytest.mark.parametrize(
    "budget", [{"max_parameters": 5e6}, {"max_seconds": 0.004}, {"max_bytes": 150e6}, {"max_parameters": 15e6}]
)
def test_automatic_keeps_the_budget_and_says_why(budget):
    counts = zipf(30_938, 14_146)
    partition = Partition.automatic(counts, n_documents=14_146, in_features=768, batch_size=12, **budget)
    size, reached = partition.parameters(768), partition.reach_from_counts(counts, 14_146, 12)
    assert size <= budget.get("max_parameters", np.inf)
    assert 16 * size <= budget.get("max_bytes", np.inf)
    assert 6 * partition.cost(768, 12, reached) / 1e11 <= budget.get("max_seconds", np.inf)
    assert "budget" in partition.reason
    assert f"{size:,} parameters" in partition.reason


def test_automatic_respects_the_least_width_of_a_tail():
    options = {"n_documents": 14_146, "in_features": 256, "batch_size": 12, "max_parameters": 3.5e6}
    counts = zipf(30_938, 14_146)
    narrow, wide = (Partition.automatic(counts, min_tail_width=width, **options) for width in (1, 100))
    assert min(narrow.widths(256)) < 100 == min(wide.widths(256))
    assert wide.parameters(256) <= 3.5e6


def test_automatic_uses_no_more_clusters_than_it_needs():
    options = {"n_documents": 14_146, "in_features": 768, "batch_size": 12}
    counts = zipf(30_938, 14_146)
    clusters = [Partition.automatic(counts, max_parameters=n, **options).n_clusters for n in (24e6, 12e6, 5e6, 1e6)]
    assert clusters == sorted(clusters)
    assert clusters[0] == 1
    assert Partition.automatic(counts, **options).parameters(768) <= 768 * 30_938 / 2  # the default budget
    assert Partition.automatic(zipf(50, 1000), **options).n_clusters == 1  # tails would cost more than they save


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Partition.from_cutoffs(10, [5, 3]), r"cutoffs is \[5, 3\], .* 3 follows 5"),
        (lambda: Partition.from_cutoffs(10, [10]), r"cutoffs is \[10\], .* below n_labels \(10\)"),
        (lambda: Partition.from_cutoffs(0, []), "n_labels is 0, .* at least 1"),
        (lambda: Partition.from_proportions(10, (0.5, 0.6)), r"proportions is \[0.5, 0.6\], .* sum 1"),
        (lambda: Partition.from_proportions(10, (1.5, -0.5)), "proportions .* positive"),
        (lambda: Partition.from_cutoffs(10, [5], div_value=0.5), "div_value is 0.5, .* at least 1"),
        (lambda: Partition.from_cutoffs(10, [5]).cost(8, 4, [1.0, 1.0]), "reached has 2 entries, .* 1 tails"),
        (lambda: Partition.from_cutoffs(10, [5]).cost_ratio([1.5]), "reached holds 1.5, .* from 0 to 1"),
        (lambda: Partition.from_cutoffs(3, [1]).reach_from_counts([3, 5, 1], 9, 2), "label 1 has 5, more than label 0"),
        (lambda: Partition.from_cutoffs(3, [1]).reach_from_counts([3, 2], 9, 2), "2 entries, .* n_labels is 3"),
        (lambda: Partition.from_cutoffs(3, [1]).documents_touching([0, 1], [3]), "ids holds 3, .* from 0 to 2"),
        (
            lambda: Partition.automatic(
                zipf(5000, 900), n_documents=900, in_features=64, batch_size=8, max_parameters=10
            ),
            "budget of 10 parameters is out of reach for 5000 labels",
        ),
    ],
)
def test_errors_name_field_value_and_bound(make, message):
    with pytest.raises(ValueError, match=message):
        make()
