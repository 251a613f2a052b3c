"""Guards LabelClusters' predictions: probabilities against Equation 2, top-k against a sort of all probabilities."""

import pytest
import torch
from cluster_cases import TAILS, cases, make
from hypothesis import given, settings

from aplc.nn.clusters import LabelClusters
from reference import cluster_probabilities


@settings(max_examples=60, deadline=None)
@given(cases())
def test_probabilities_match_reference(case):
    layer, hidden, _ = case
    expected = cluster_probabilities(layer, hidden).detach()
    torch.testing.assert_close(layer.probabilities(hidden), expected, rtol=1e-9, atol=1e-12)
    for label in (0, layer.n_labels // 2, layer.n_labels - 1):
        torch.testing.assert_close(layer.probability_of(hidden, label), expected[:, label], rtol=1e-9, atol=1e-12)


def sort_all(layer, hidden, k, allowed):
    """Top-k as a sort of all probabilities; ids and probabilities of labels that aren't allowed are -1."""
    probs = layer.probabilities(hidden)
    if allowed is not None:
        probs[:, ~allowed] = -1
    sorted_probs, ids = probs.sort(dim=1, descending=True, stable=True)
    ids[sorted_probs < 0] = -1
    return probs, sorted_probs[:, :k], ids[:, :k]


def random_layer(pick, generator):
    """A layer of random shape. Weights that are repeated, zero, huge or whole numbers give near and exact ties."""
    n_labels = pick(1, 2, 5, 9, 33, 70, 200, 500)
    n_cuts = min(pick(0, 1, 2, 3), n_labels - 1)
    cuts = sorted((torch.randperm(n_labels - 1, generator=generator)[:n_cuts] + 1).tolist())
    added = pick((), (), (3,), (70, 2))
    options = {"tail": pick(*TAILS), "chunk_size": pick(5, 64, 4096), "bias": pick(True, False)}
    options["min_tail_width"] = 2 if options["tail"] == "norm-relu" else 1
    width = pick(1, 3, 8, 17, 64)
    layer = LabelClusters(width, cuts, n_labels + sum(added), added=added, dtype=torch.float64, **options)
    with torch.no_grad():
        layer.head.weight[layer.head_size :].mul_(pick(1.0, 10.0))
        for linear in (layer.head, *(tail.output for tail in layer.tails)):
            match pick("as is", "repeated", "zero", "huge", "whole"):
                case "repeated":
                    n = linear.out_features
                    linear.weight.copy_(linear.weight[torch.randint(max(n // 4, 1), (n,), generator=generator)])
                case "zero":
                    linear.weight.zero_()
                case "huge":
                    linear.weight.mul_(50)
                case "whole":
                    linear.weight.mul_(4).round_()
    return layer


@pytest.mark.parametrize(("n_threads", "n_rows"), [(1, 12_000), (2, 1_000)])
def test_topk_matches_a_sort_for_thousands_of_random_rows(n_threads, n_rows, threads):
    """To rounding: labels whose probabilities differ by less than 1e-6 of them may change places."""
    threads(n_threads)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    pick = lambda *values: values[torch.randint(len(values), (), generator=generator)]  # noqa: E731
    compared = 0
    while compared < n_rows:
        layer, k = random_layer(pick, generator), pick(1, 2, 5, 40, 1000)
        hidden = torch.randn(pick(1, 3, 16, 24, 31, 40), layer.in_features, generator=generator, dtype=torch.float64)
        hidden *= pick(0.1, 1.0, 5.0)
        allowed = pick(None, None, torch.rand(layer.n_labels, generator=generator) < pick(0.02, 0.5, 0.99))
        probs, ids = layer.topk(hidden, k, allowed=allowed)
        every, expected, expected_ids = sort_all(layer, hidden, k, allowed)
        torch.testing.assert_close(probs, expected, rtol=1e-6, atol=0)
        assert torch.equal(ids < 0, expected_ids < 0)
        theirs = every.gather(1, ids.clamp(min=0)).masked_fill(ids < 0, -1)  # probabilities of the labels found
        torch.testing.assert_close(theirs, probs, rtol=1e-6, atol=0)
        assert all(len(set(found)) == len(found) for found in ([i for i in row if i >= 0] for row in ids.tolist()))
        compared += len(hidden)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("k", [1, 3, 10, 150])
def test_ties_go_to_the_lower_id(dtype, k):
    """All numbers are small and whole, so products are exact, and equal logits are really equal."""
    torch.manual_seed(0)
    for chunk_size in (7, 64, 4096):
        layer = LabelClusters(6, [40, 100], 190, tail="linear", added=[30], chunk_size=chunk_size, dtype=dtype)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.copy_(torch.randint(-2, 3, parameter.shape))
        hidden = torch.randint(-1, 2, (30, 6)).to(dtype)
        probs, ids = layer.topk(hidden, k)
        _, expected, expected_ids = sort_all(layer, hidden, k, None)
        assert (expected[:, 1:] == expected[:, :-1]).any() or k == 1
        assert torch.equal(ids, expected_ids)
        assert torch.equal(probs, expected)


def test_topk_of_a_row_does_not_depend_on_the_other_rows():
    layer, _, _ = make(bias=True)
    hidden = torch.randn(40, 16)
    probs, ids = layer.topk(hidden, 7)
    for i in range(len(hidden)):
        alone, alone_ids = layer.topk(hidden[i : i + 1], 7)
        assert torch.equal(alone_ids[0], ids[i])
        torch.testing.assert_close(alone[0], probs[i], rtol=1e-5, atol=0)


@pytest.mark.parametrize("size", [1, 63, 200])
def test_added_labels_leave_the_probabilities_of_old_ones_alone(size):
    torch.manual_seed(0)
    old = LabelClusters(24, [30], 100, bias=True, added=[5])
    new = LabelClusters(24, [30], 100 + size, bias=True, added=[5, size])
    new.load_state_dict(new.state_dict() | old.state_dict())
    for n_rows in (1, 7, 40):
        hidden = torch.randn(n_rows, 24)
        torch.testing.assert_close(new.probabilities(hidden)[:, :100], old.probabilities(hidden), rtol=1e-6, atol=0)
        allowed = torch.arange(100 + size) < 100
        ours, theirs = new.topk(hidden, 9, allowed=allowed), old.topk(hidden, 9)
        assert torch.equal(ours.ids, theirs.ids)
        torch.testing.assert_close(ours.probs, theirs.probs, rtol=1e-6, atol=0)


def test_topk_skips_tails_whose_root_is_too_low_and_counts_visits():
    layer, hidden, _ = make(bias=True)
    with torch.no_grad():
        layer.head.bias[-2:] = -30.0
    result = layer.topk(hidden, k=5)
    assert (result.visits, result.saved_visits) == (0, 12)
    with torch.no_grad():
        layer.head.bias[-2:] = 30.0
    result = layer.topk(hidden, k=5)
    assert (result.visits, result.saved_visits) == (12, 0)
    assert torch.equal(result.ids, sort_all(layer, hidden, 5, None)[2])


def test_k_above_the_number_of_labels_returns_all_of_them():
    layer, hidden, _ = make()
    probs, ids = layer.topk(hidden, k=200)
    assert probs.shape == ids.shape == (6, 80)
    assert (ids.sort(dim=1).values == torch.arange(80)).all()


def test_a_row_with_nan_gets_no_label_and_leaves_the_others_alone():
    layer, hidden, _ = make(bias=True)
    for k in (1, 5, 80):
        expected = layer.topk(hidden, k)
        broken = hidden.clone()
        broken[2, 3] = float("nan")
        found = layer.topk(broken, k)
        assert (found.ids[2] == -1).all()
        assert (found.probs[2] == -1).all()
        others = torch.arange(6) != 2
        assert torch.equal(found.ids[others], expected.ids[others])
        torch.testing.assert_close(found.probs[others], expected.probs[others])


def test_topk_refuses_k_below_one():
    with pytest.raises(ValueError, match=r"k is 0, .* at least 1"):
        LabelClusters(8, [10], 40).topk(torch.randn(2, 8), k=0)


def test_probability_of_refuses_an_unknown_label():
    with pytest.raises(ValueError, match=r"label is 40, .* from 0 to 39"):
        LabelClusters(8, [10], 40).probability_of(torch.randn(2, 8), 40)
