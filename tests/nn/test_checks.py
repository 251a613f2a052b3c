"""Guards what someone with a network of his own gets wrong: each mistake is one ValueError that names the cure."""

import re

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from aplc.nn.clusters import LabelClusters
from aplc.nn.partition import Partition


def layer(**options):
    return LabelClusters(**{"in_features": 8, "cutoffs": [10], "n_labels": 40, **options})


def test_a_normed_tail_of_width_one_is_refused_and_a_linear_one_is_not():
    with pytest.raises(ValueError, match=r"tail 3 has the width 1 .*in_features 8 // div_value 2\^3.*min_tail_width"):
        layer(cutoffs=[10, 20, 30])
    for cure in ({"min_tail_width": 2}, {"div_value": 1.5}, {"tail": "linear"}):
        assert len(layer(cutoffs=[10, 20, 30], **cure).tails) == 3
    with torch.no_grad():  # why: whatever the hidden state, LayerNorm of one number is 0
        assert torch.nn.functional.layer_norm(torch.randn(5, 1), (1,)).abs().max() == 0


@pytest.mark.parametrize("in_features", [1, 2, 3, 4, 8])
def test_automatic_never_chooses_a_tail_of_width_one(in_features):
    counts = (900 / np.arange(1, 5001)).astype(int)
    options = {"n_documents": 900, "in_features": in_features, "batch_size": 8, "div_values": (2.0, 4.0, 8.0)}
    partition = Partition.automatic(counts, **options)
    assert 1 not in partition.widths(in_features)[1:]
    LabelClusters.from_partition(partition, in_features=in_features)


def test_from_partition_keeps_what_automatic_chose():
    counts = (900 / np.arange(1, 5001)).astype(int)
    options = {"n_documents": 900, "in_features": 64, "batch_size": 8, "div_values": (4.0,), "min_tail_width": 3}
    partition = Partition.automatic(counts, **options, max_parameters=64 * 5000 / 3)
    made = LabelClusters.from_partition(partition, in_features=64, tail="linear", added=[7])
    assert partition.cutoffs
    assert (made.cutoffs, made.n_labels) == (list(partition.cutoffs), 5007)
    assert [tail.output.in_features for tail in made.tails] == list(partition.widths(64)[1:])
    made = LabelClusters.from_partition(partition, in_features=64, tail="linear")
    assert sum(p.numel() for p in made.parameters()) == partition.parameters(64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cutoffs": Partition.from_cutoffs(40, [10])}, r"cutoffs is a Partition.*from_partition\(partition"),
        ({"cutoffs": 5}, "cutoffs is 5, .* a list of whole numbers"),
        ({"cutoffs": [10.5]}, r"cutoffs is \[10.5\], .* a list of whole numbers"),
        ({"added": [5000]}, r"added is \[5000\], .* below n_labels \(40\), which counts the added labels"),
        ({"added": [40], "cutoffs": []}, r"added is \[40\], .* below n_labels \(40\)"),
        ({"added": 5}, "added is 5, .* a list of whole numbers"),
    ],
)
def test_settings_of_a_wrong_kind_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        layer(**options)


def test_partition_refuses_cutoffs_that_are_not_whole():
    for cutoffs in (5, [1000.5]):
        with pytest.raises(ValueError, match=r"cutoffs is .* a list of whole numbers"):
            Partition.from_cutoffs(4000, cutoffs)
    assert Partition.from_cutoffs(40, np.array([10, 20])).cutoffs == (10, 20)
    assert layer(cutoffs=torch.tensor([10, 20])).cutoffs == [10, 20]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[1, 2], [3]], r"labels is of type list, .* torch.int64 tensor of ids, \(2, P\)"),
        (np.array([[1, 2], [3, 4]]), "labels is of type ndarray, .* torch.int64 tensor"),
    ],
)
def test_labels_that_are_no_tensor_are_refused_with_a_cure_that_works(labels, message):
    clusters = layer()
    with pytest.raises(ValueError, match=message) as refused:
        clusters(torch.randn(2, 8), labels)
    assert cured(refused, labels).shape == (2, 2)
    clusters(torch.randn(2, 8), cured(refused, labels))
    with pytest.raises(ValueError, match="hidden is of type ndarray"):
        clusters(np.zeros((2, 8)), torch.tensor([[1], [2]]))


def cured(refused, labels):
    """What the message says to type, typed."""
    return eval(re.search(r"torch\.nn\.utils.*", str(refused.value))[0], {"torch": torch, "labels": labels})


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
def test_multi_hot_targets_are_refused_with_a_cure_that_works(dtype):
    clusters, hidden = layer(), torch.randn(3, 8)
    multi_hot = torch.zeros(3, 40, dtype=torch.int64)
    multi_hot[0, [3, 25]] = 1
    multi_hot[2, [0]] = 1
    with pytest.raises(ValueError, match=r"shape \(3, 40\) and holds only 0 and 1.*padded with -100") as refused:
        clusters(hidden, multi_hot.to(dtype))
    assert cured(refused, multi_hot.to(dtype)).tolist() == [[3, 25], [-100, -100], [0, -100]]
    assert cured(refused, multi_hot[1:2]).shape == (1, 0)  # a batch without any label
    assert clusters(hidden[:1], cured(refused, multi_hot[1:2])).isfinite()


def test_ids_in_as_many_columns_as_labels_are_not_taken_for_multi_hot():
    clusters, hidden = layer(cutoffs=[], n_labels=3), torch.randn(2, 8)
    for labels in ([[0, 1, 2], [0, 1, 1]], [[0, 1, -100], [1, -100, -100]]):
        assert clusters(hidden, torch.tensor(labels)).isfinite()
    assert layer(cutoffs=[], n_labels=2)(hidden, torch.tensor([[0, 1], [1, 0]])).isfinite()  # two ids each
    assert clusters(hidden[:0], torch.zeros(0, 3, dtype=torch.int64)).item() == 0


@pytest.mark.parametrize(
    ("allowed", "message"),
    [
        (torch.tensor([3, 7]), r"allowed is torch.int64 of shape \(2,\), .* torch.bool of \(40,\)"),
        (torch.ones(39, dtype=torch.bool), r"allowed is torch.bool of shape \(39,\)"),
        ([3, 7], "allowed is list, .* torch.bool"),
    ],
)
def test_allowed_that_is_no_mask_is_refused_with_a_cure_that_works(allowed, message):
    with pytest.raises(ValueError, match=message) as refused:
        layer().topk(torch.randn(2, 8), k=2, allowed=allowed)
    mask = eval(re.search(r"torch\.zeros.*", str(refused.value))[0], {"torch": torch, "ids": [3, 7]})
    assert set(layer().topk(torch.randn(2, 8), k=2, allowed=mask).ids.flatten().tolist()) == {3, 7}


@pytest.mark.parametrize(
    ("counts", "touched", "message"),
    [
        ([5, 9, 1, 1], [2], "label 1 has 9, more than label 0 with 5: sort labels"),
        ([11, 9, 1, 1], [2], r"label_counts holds 11, more than n_documents \(10\)"),
        ([9, 5, 1, -1], [2], "label_counts holds -1, .* at least 0"),
        ([float("nan"), 5, 1, 1], [2], "label_counts holds nan"),
        ([9, 5, 1, 1], [11], r"tail_documents is \[11.0\], .* n_documents \(10\)"),
    ],
)
def test_init_bias_refuses_counts_that_cannot_be(counts, touched, message):
    clusters = LabelClusters(8, [2], 4, bias=True)
    with pytest.raises(ValueError, match=message):
        clusters.init_bias(counts, 10, touched)
    if touched == [2]:
        with pytest.raises(ValueError, match=message):
            Partition.automatic(counts, n_documents=10, in_features=8, batch_size=2)


def test_init_bias_takes_counts_of_added_labels_in_any_order():
    LabelClusters(8, [2], 6, bias=True, added=[2]).init_bias([9, 5, 1, 1, 3, 7], 10, [2])


def test_repr_shows_what_is_not_default():
    assert "bias" not in layer().extra_repr()
    assert "min_tail_width" not in layer().extra_repr()
    shown = layer(bias=True, min_tail_width=4, tail_dropout=0.1, added=[3]).extra_repr()
    assert shown.endswith("bias=True, tail_dropout=0.1, min_tail_width=4, added=[3]")


@pytest.mark.parametrize("objective", ["released", "paper"])
def test_losses_by_weight_accumulate_to_the_gradients_of_the_whole_batch(objective):
    torch.manual_seed(0)
    clusters = layer(objective=objective, cutoffs=[10, 25], dtype=torch.float64)
    hidden = torch.randn(5, 8, dtype=torch.float64)
    labels = pad_sequence([torch.tensor(x) for x in ([1], [2, 12, 30], [0], [26], [3, 4])], True, -100)
    clusters(hidden, labels).backward()
    expected = [parameter.grad.clone() for parameter in clusters.parameters()]
    clusters.zero_grad()
    parts = [slice(0, 1), slice(1, 3), slice(3, 5)]
    total = sum(clusters.loss_weight(labels[part]) for part in parts)
    for part in parts:
        (clusters(hidden[part], labels[part]) * (clusters.loss_weight(labels[part]) / total)).backward()
    for parameter, whole in zip(clusters.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, whole)
