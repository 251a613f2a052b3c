"""Guards the loss of partly reviewed rows: terms of the labels they list, and no pull on any other label or root."""

import copy

import pytest
import torch
from cluster_cases import OBJECTIVES, TAILS, assert_same_by_name, cases, gradients, make, pad
from hypothesis import given, settings
from hypothesis import strategies as st

from aplc.nn.clusters import LabelClusters
from reference import cluster_loss


@st.composite
def partial_cases(draw):
    """A layer, hidden states, labels, which rows are partial, and what they reject: also nothing at all."""
    layer, hidden, labels = draw(cases())
    partial = torch.tensor([draw(st.booleans()) for _ in hidden])
    rejected = [
        sorted(draw(st.sets(st.integers(0, layer.n_labels - 1), max_size=6)) - set(own)) for own in labels.tolist()
    ]
    return layer, hidden, labels, partial, pad(rejected)


@settings(max_examples=40, deadline=None, report_multiple_bugs=False)
@given(partial_cases())
def test_partial_loss_and_gradients_match_reference(case):
    layer, hidden, labels, partial, rejected = case
    hidden.requires_grad_()
    expected = cluster_loss(layer, hidden, labels, partial, rejected)
    found = layer(hidden, labels, partial=partial, rejected=rejected)
    assert found.item() == pytest.approx(expected.item(), rel=1e-10, abs=1e-14)
    if expected.requires_grad:
        found_gradients = gradients(found, layer, hidden)
        assert_same_by_name(layer, found_gradients, gradients(expected, layer, hidden), 1e-10)

    single, hidden_32 = copy.deepcopy(layer).float(), hidden.detach().float().requires_grad_()
    loss = single(hidden_32, labels, partial=partial, rejected=rejected)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-6)


@settings(max_examples=15, deadline=None)
@given(partial_cases())
def test_parts_of_a_batch_weigh_as_in_the_whole(case):
    layer, hidden, labels, partial, rejected = case
    whole = layer(hidden, labels, partial=partial, rejected=rejected)
    total, part = layer.loss_weight(labels, partial=partial, rejected=rejected), 0.0
    for i in range(len(hidden)):
        own = slice(i, i + 1)
        options = {"partial": partial[own], "rejected": rejected[own]}
        part += layer(hidden[own], labels[own], **options) * layer.loss_weight(labels[own], **options) / total
    torch.testing.assert_close(part, whole, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_rows_without_gaps_have_the_loss_they_always_had(objective):
    layer, hidden, labels = make(objective=objective)
    none = torch.zeros(6, dtype=torch.bool)
    assert torch.equal(layer(hidden, labels), layer(hidden, labels, partial=none, rejected=torch.full((6, 1), -100)))


@pytest.mark.parametrize("tail", TAILS)
def test_a_row_that_lists_all_labels_it_evaluates_is_no_different(tail):
    """The paper's objective, in which nothing but the labels of touched clusters has a term."""
    layer, hidden, _ = make(objective="paper", tail=tail)
    labels, rejected = [3, 25], [i for i in range(40) if i not in (3, 25)]
    full = layer(hidden, pad([labels] * 6))
    listed = layer(hidden, pad([labels] * 6), partial=torch.ones(6, dtype=torch.bool), rejected=pad([rejected] * 6))
    torch.testing.assert_close(listed, full)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_what_is_not_listed_is_not_pulled(objective):
    layer, hidden, _ = make(objective=objective, bias=True)
    labels, rejected = pad([[3]] * 6), pad([[7, 25]] * 6)
    layer(hidden, labels, partial=torch.ones(6, dtype=torch.bool), rejected=rejected).backward()
    root = layer.head_size  # of the first tail, which holds 25
    moved = layer.head.weight.grad.abs().sum(1).nonzero().squeeze(1)
    assert moved.tolist() == [3, 7, root]
    assert layer.head.bias.grad.nonzero().squeeze(1).tolist() == [3, 7, root]
    assert layer.tails[0].output.weight.grad.abs().sum(1).nonzero().squeeze(1).tolist() == [5]
    assert layer.tails[1].output.weight.grad is None
    before = layer.probabilities(hidden)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.grad is not None and parameter.shape[0] in (22, 20):
                parameter -= 0.01 * parameter.grad
    change = layer.probabilities(hidden) - before
    assert (change[:, 3] > 0).all()
    assert (change[:, [7, 25]] < 0).all()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_rows_that_list_nothing_count_nothing(objective):
    layer, hidden, _ = make(objective=objective)
    hidden.requires_grad_()
    partial = torch.ones(6, dtype=torch.bool)
    loss = layer(hidden, torch.full((6, 1), -100), partial=partial)
    loss.backward()
    assert loss.item() == 0
    assert not hidden.grad.any()


@pytest.mark.parametrize("leaf", [-100.0, -20.0, 0.0, 20.0, 100.0])
@pytest.mark.parametrize("root", [-100.0, -20.0, 0.0, 20.0, 100.0])
def test_extreme_logits_are_finite_and_right(root, leaf):
    layer = LabelClusters(1, [1], 3, tail="linear", div_value=1.0, dtype=torch.float32)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(1.0)
        layer.head.weight[1] = root
        layer.tails[0].output.weight[:] = leaf
    double = copy.deepcopy(layer).double()
    hidden, partial = torch.ones(2, 1, requires_grad=True), torch.ones(2, dtype=torch.bool)
    labels, rejected = pad([[1], [-100]]), pad([[-100], [1]])
    loss = layer(hidden, labels, partial=partial, rejected=rejected)
    expected = cluster_loss(double, hidden.double(), labels, partial, rejected)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-30)
    loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


def test_bad_input_is_refused():
    layer, hidden, labels = make()
    partial = torch.ones(6, dtype=torch.bool)
    with pytest.raises(ValueError, match="row 0 has label 3 in both labels and rejected"):
        layer(hidden, pad([[3]] * 6), partial=partial, rejected=pad([[3]] * 6))
    with pytest.raises(ValueError, match="rejected holds the id 80"):
        layer(hidden, labels, partial=partial, rejected=pad([[80]] * 6))
    with pytest.raises(ValueError, match=r"partial is torch.int64 of shape \(6,\)"):
        layer(hidden, labels, partial=partial.long(), rejected=pad([[1]] * 6))
