"""Guards LabelClusters in training: loss and gradients against Equations 2-5, what users do with them, bad input."""

import copy
import io

import pytest
import torch
from cluster_cases import OBJECTIVES, TAILS, assert_same_by_name, cases, gradients, make, pad
from hypothesis import HealthCheck, given, settings

from aplc import native
from aplc.nn.clusters import LabelClusters
from reference import cluster_loss, naive_cluster_loss


def assert_same(found, expected, tolerance):
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert (a.double() - b).abs().max() <= tolerance * max(b.abs().max().item(), 1e-12)


@pytest.mark.usefixtures("compiled_or_not")  # float64 is never compiled
@settings(
    max_examples=100,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(cases())
def test_loss_and_gradients_match_reference(case):
    layer, hidden, labels = case
    hidden.requires_grad_()
    expected = cluster_loss(layer, hidden, labels)
    expected_gradients = gradients(expected, layer, hidden)
    found = layer(hidden, labels)
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    assert_same_by_name(layer, gradients(found, layer, hidden), expected_gradients, 1e-10)

    single = copy.deepcopy(layer).float()
    layer.load_state_dict({name: x.double() for name, x in single.state_dict().items()})  # the same, rounded weights
    hidden_32 = hidden.detach().float().requires_grad_()
    hidden_64 = hidden_32.detach().double().requires_grad_()
    expected = cluster_loss(layer, hidden_64, labels)
    expected_gradients = gradients(expected, layer, hidden_64)
    found = single(hidden_32, labels)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    assert_same_by_name(layer, gradients(found, single, hidden_32), expected_gradients, 1e-5)


@settings(max_examples=10, deadline=None)
@given(cases())
def test_gradients_match_finite_differences(case):
    layer, hidden, labels = case
    if layer.tail == "norm-relu":
        layer = LabelClusters(layer.in_features, layer.cutoffs, layer.n_labels, tail="linear", dtype=torch.float64)
    names = [name for name, _ in layer.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in layer.parameters()]

    def loss(hidden, *values):
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (hidden, labels))

    # The loss is divided by the number of labels, so slopes are small, and so must be the absolute tolerance.
    assert torch.autograd.gradcheck(loss, (hidden.requires_grad_(), *values), atol=1e-7, rtol=1e-4)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("tail", TAILS)
def test_naive_layer_matches_reference(objective, tail):
    torch.manual_seed(0)
    layer = LabelClusters(8, [10, 20], 40, objective=objective, tail=tail)
    hidden, labels = torch.randn(5, 8), pad([[1, 12], [], [39, 39, 3], [25], [0, 11, 30]])
    expected = cluster_loss(layer, hidden, labels)
    torch.testing.assert_close(naive_cluster_loss(layer, hidden, labels), expected)
    torch.testing.assert_close(layer(hidden, labels), expected)


@pytest.mark.usefixtures("compiled_or_not")  # float64 is never compiled
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("leaf", [-100.0, -20.0, 0.0, 20.0, 100.0])
@pytest.mark.parametrize("root", [-100.0, -20.0, 0.0, 20.0, 69.0, 79.0, 100.0])
def test_extreme_logits_are_finite_and_right(objective, root, leaf):
    layer = LabelClusters(1, [2], 5, objective=objective, tail="linear", div_value=1.0, bias=True)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(0.0)
        layer.head.bias.copy_(torch.tensor([leaf, -leaf, root]))
        layer.tails[0].output.bias.copy_(torch.tensor([leaf, -leaf, leaf]))
        layer.tails[0].project.weight.fill_(1.0)
    hidden, labels = torch.ones(3, 1, requires_grad=True), pad([[0, 2], [1, 3, 4], [0]])
    double = copy.deepcopy(layer).double()
    hidden_64 = hidden.detach().double().requires_grad_()
    expected = cluster_loss(double, hidden_64, labels)
    found = layer(hidden, labels)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    expected_gradients = gradients(expected, double, hidden_64)
    largest = max(g.abs().max().item() for g in expected_gradients)
    for a, b in zip(gradients(found, layer, hidden), expected_gradients, strict=True):
        assert a.isfinite().all()
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-6 * largest)


def test_untouched_tail_gets_no_gradient_and_no_work():
    torch.manual_seed(0)
    layer = LabelClusters(8, [10, 20], 40)
    layer(torch.randn(3, 8), pad([[1], [], [15]])).backward()
    assert layer.tails[1].output.weight.grad is None
    assert layer.tails[1].project.weight.grad is None
    assert layer.tails[0].output.weight.grad is not None
    assert layer.head.weight.grad[-1].abs().sum() > 0  # released: its root is a negative


def test_empty_batch_gives_zero():
    layer = LabelClusters(8, [10], 40)
    loss = layer(torch.randn(0, 8), torch.zeros(0, 3, dtype=torch.int64))
    loss.backward()
    assert loss.item() == 0
    assert layer.head.weight.grad.abs().sum() == 0
    assert layer.topk(torch.randn(0, 8)).ids.shape == (0, 5)


def test_label_order_and_repeats_do_not_matter():
    torch.manual_seed(0)
    layer, hidden = LabelClusters(8, [10, 20], 40), torch.randn(2, 8)
    once = layer(hidden, pad([[30, 2, 15], [7]]))
    assert layer(hidden, pad([[15, 2, 30, 2, 15], [7, 7]])).item() == once.item()


@pytest.mark.parametrize("chunk_size", [1, 7, 64])
def test_chunks_do_not_change_the_loss(chunk_size, monkeypatch):
    monkeypatch.setattr(native, "library", lambda: None)  # compiled code ignores chunk_size
    torch.manual_seed(0)
    whole = LabelClusters(8, [50], 100)
    chunked = LabelClusters(8, [50], 100, chunk_size=chunk_size)
    chunked.load_state_dict(whole.state_dict())
    hidden, labels = torch.randn(4, 8), torch.randint(0, 100, (4, 5))
    torch.testing.assert_close(chunked(hidden, labels), whole(hidden, labels), rtol=1e-6, atol=0)


def test_gradients_add_up_until_they_are_zeroed():
    layer, hidden, labels = make()
    weight = layer.head.weight
    layer(hidden, labels).backward()
    once = weight.grad.clone()

    layer(hidden, labels).backward()
    torch.testing.assert_close(weight.grad, 2 * once)
    for set_to_none in (False, True):
        layer.zero_grad(set_to_none=set_to_none)
        layer(hidden, labels).backward()
        torch.testing.assert_close(weight.grad, once)


def test_a_gradient_that_somebody_holds_is_never_overwritten():
    """The layer may use gradients' memory again, but not while a tensor, a view or a NumPy array still shows it."""
    layer, hidden, labels = make()
    layer(hidden, labels).backward()
    tails = [tail.output.weight for tail in layer.tails]
    held, view, array = layer.head.weight.grad, tails[0].grad[3], tails[1].grad.numpy()
    expected, expected_view, expected_array = held.clone(), view.clone(), array.copy()
    for factor in (2, 3):
        layer.zero_grad()
        layer(factor * hidden, labels).backward()
    assert torch.equal(held, expected)
    assert torch.equal(view, expected_view)
    assert (array == expected_array).all()


def test_two_losses_before_one_backward_pass_add_up():
    layer, hidden, labels = make()
    other = torch.randn(6, 16)
    singles = []
    for h in (hidden, other):
        layer.zero_grad()
        layer(h, labels).backward()
        singles.append(layer.head.weight.grad.clone())
    layer.zero_grad()
    first, second = layer(hidden, labels), layer(other, labels)
    (first + second).backward()
    torch.testing.assert_close(layer.head.weight.grad, singles[0] + singles[1])


def test_scaled_losses_and_a_second_backward_pass_scale_the_gradients():
    layer, hidden, labels = make()
    hidden.requires_grad_()
    expected = gradients(layer(hidden, labels), layer, hidden)
    loss = layer(hidden, labels)
    inputs = [hidden, *layer.parameters()]
    first = torch.autograd.grad(3 * loss, inputs, retain_graph=True)
    second = torch.autograd.grad(0.5 * loss, inputs)
    assert_same(first, [3 * g.double() for g in expected], 1e-6)
    assert_same(second, [0.5 * g.double() for g in expected], 1e-6)


def pickled(layer):
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    return buffer.getvalue()


def test_copies_pickles_and_state_dict_carry_weights_only():
    layer, hidden, labels = make()
    empty = pickled(layer)
    loss = layer(hidden, labels)
    loss.backward()
    names = {"head.weight"} | {
        f"tails.{t}.{name}" for t in (0, 1) for name in ("project.weight", "norm.weight", "norm.bias", "output.weight")
    }
    assert set(layer.state_dict()) == names
    assert layer.state_dict()["tails.1.output.weight"].shape == (40, 4)
    saved = pickled(layer)
    assert len(saved) == len(empty)  # no gradients
    clone = copy.deepcopy(layer)
    for other in (clone, torch.load(io.BytesIO(saved), weights_only=False)):
        other.zero_grad()
        again = other(hidden, labels)
        again.backward()
        assert again.item() == loss.item()
        torch.testing.assert_close(other.head.weight.grad, layer.head.weight.grad)


def test_frozen_weights_get_no_gradient_and_no_grad_builds_no_graph():
    layer, hidden, labels = make(bias=True)
    hidden.requires_grad_()
    expected = gradients(layer(hidden, labels), layer, hidden)
    layer.head.weight.requires_grad_(False)
    layer.tails[0].requires_grad_(False)
    loss = layer(hidden, labels)
    loss.backward()
    torch.testing.assert_close(hidden.grad, expected[0])
    assert layer.head.weight.grad is None
    assert layer.tails[0].output.weight.grad is None
    with torch.no_grad():
        assert layer(hidden, labels).item() == pytest.approx(loss.item(), rel=1e-6)
        assert not layer(hidden, labels).requires_grad


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_bfloat16_autocast_is_close_to_float32(objective):
    layer, hidden, labels = make(objective=objective)
    hidden.requires_grad_()
    expected = layer(hidden, labels)
    expected_gradients = gradients(expected, layer, hidden)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(hidden, labels)
        probs, _ = layer.topk(hidden, k=3)
    assert found.dtype == probs.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=0)
    for a, b in zip(gradients(found, layer, hidden), expected_gradients, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() <= 4e-2 * b.norm()


def test_weights_in_bfloat16_are_close_to_float32():
    layer, hidden, labels = make()
    expected = layer(hidden, labels)
    half = copy.deepcopy(layer).bfloat16()
    loss = half(hidden.bfloat16(), labels)
    loss.backward()
    assert half.head.weight.grad.dtype == torch.bfloat16
    torch.testing.assert_close(loss, expected, rtol=2e-2, atol=0)


def test_dropout_acts_only_in_training():
    layer, hidden, labels = make(tail_dropout=[0.5, 0.1])
    assert layer(hidden, labels).item() != layer(hidden, labels).item()
    layer.eval()
    assert layer(hidden, labels).item() == layer(hidden, labels).item()


def test_logits_are_those_of_the_probabilities():
    layer, hidden = LabelClusters(12, [5, 9], 20, added=[3]), torch.randn(4, 12)
    head, *others = layer.logits(hidden)
    assert [part.shape[1] for part in (head, *others)] == [5 + 2, 4, 8, 3]
    roots = [*head[:, 5:].sigmoid().unbind(1), torch.ones(4)]
    parts = [part.sigmoid() * root[:, None] for part, root in zip(others, roots, strict=True)]
    torch.testing.assert_close(torch.cat([head[:, :5].sigmoid(), *parts], 1), layer.probabilities(hidden))


def test_init_bias_gives_the_training_frequencies():
    layer = LabelClusters(4, [2], 5, tail="linear", bias=True)
    layer.init_bias([100, 50, 20, 10, 0], n_documents=100, tail_documents=[25])
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.endswith("weight"):
                parameter.zero_()
    probabilities = layer.probabilities(torch.zeros(1, 4))[0]
    torch.testing.assert_close(probabilities[[1, 2, 3]], torch.tensor([0.5, 0.2, 0.1]))
    assert probabilities[0] > 0.99  # every document: still finite
    assert 0 < probabilities[4] < 0.01  # no document: still finite
    with pytest.raises(ValueError, match="bias"):
        LabelClusters(4, [2], 5).init_bias([1] * 5, 10, [3])
    with pytest.raises(ValueError, match=r"tail_documents has shape \(2,\)"):
        layer.init_bias([1] * 5, 10, [3, 4])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_features": 0}, "in_features is 0, .* at least 1"),
        ({"n_labels": 0}, "n_labels is 0, .* at least 1"),
        ({"cutoffs": [20, 10]}, r"cutoffs is \[20, 10\], .* 10 follows 20"),
        ({"cutoffs": [10, 10]}, "10 follows 10"),
        ({"cutoffs": [0]}, r"cutoffs is \[0\], .* at least 1"),
        ({"cutoffs": [40]}, r"cutoffs is \[40\], .* below n_labels \(40\)"),
        ({"div_value": 0.5}, "div_value is 0.5, .* at least 1"),
        ({"objective": "other"}, "objective is 'other', .* 'released', 'paper'"),
        ({"tail": "other"}, "tail is 'other', .* 'norm-relu', 'linear'"),
        ({"tail_dropout": 1.0}, "tail_dropout of tail 0 is 1.0, .* below 1"),
        ({"tail_dropout": [0.1, 0.1]}, "tail_dropout has 2 entries, .* 1 tails"),
        ({"min_tail_width": 0}, "min_tail_width is 0, .* at least 1"),
        ({"chunk_size": 0}, "chunk_size is 0, .* at least 1"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        LabelClusters(**{"in_features": 8, "cutoffs": [10], "n_labels": 40, **options})


@pytest.mark.parametrize(
    ("hidden", "labels", "message"),
    [
        ((2, 7), [[1], [2]], r"hidden has shape \(2, 7\), .* \(B, 8\)"),
        ((2, 3, 8), [[1], [2]], r"hidden has shape \(2, 3, 8\)"),
        ((2, 8), [[1], [40]], "id 40, .* from 0 to 39"),
        ((2, 8), [[1], [-1]], "id -1, .* from 0 to 39"),
        ((2, 8), [[1]], r"labels has shape \(1, 1\), .* \(2, P\)"),
        ((2, 8), [[1.0], [2.0]], r"labels has dtype torch\.float32, .*int64"),
    ],
)
def test_bad_inputs_are_refused(hidden, labels, message):
    layer = LabelClusters(8, [10], 40)
    with pytest.raises(ValueError, match=message):
        layer(torch.randn(hidden), torch.tensor(labels))
