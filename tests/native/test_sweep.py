"""Guards the compiled sweep: the same as its twin in PyTorch for every shape, and not missed where there is none."""

import pytest
import torch

from aplc import native
from aplc.native import loader
from aplc.nn import fused
from aplc.nn.clusters import LabelClusters
from aplc.nn.fused import Inputs, KeptGradients, Settings

pytestmark = pytest.mark.skipif(native.library() is None, reason="compiled code is not used: see aplc info")


def make(n_labels, n_rows, width, *, tail, bias, n_positives, n_roots=0):
    generator = torch.Generator().manual_seed(n_labels + n_rows + width)
    random = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    pair_P = torch.randperm(n_labels * n_rows, generator=generator)[:n_positives].sort().values
    return Inputs(
        rows=random(n_rows, width),
        roots=3 * random(n_rows) if tail else None,
        weight=random(n_labels + n_roots, width) / width**0.5,
        bias=random(n_labels + n_roots) if bias else None,
        label=pair_P // n_rows,
        row=pair_P % n_rows,
        row_weight=torch.rand(n_rows, generator=generator, dtype=torch.float64),
    )


def run(sweep, inputs, n_labels):
    settings = Settings(n_labels, 256, inputs.weight.dtype, True, True, KeptGradients(), 0)
    grad_weight = torch.full_like(inputs.weight, torch.nan)
    grad_bias = None if inputs.bias is None else torch.full_like(inputs.bias, torch.nan)
    loss, grad_rows, grad_roots = sweep(inputs, settings, grad_weight, grad_bias)
    found = {"loss": loss, "rows": grad_rows, "weight": grad_weight[:n_labels]}
    if grad_roots is not None:
        found["roots"] = grad_roots
    if grad_bias is not None:
        found["bias"] = grad_bias[:n_labels]
    return found


def assert_twins(inputs, n_labels):
    double = Inputs(*(x.double() if x is not None and x.is_floating_point() else x for x in inputs))
    expected = run(fused.chunked_sweep, double, n_labels)
    found = run(fused.native_sweep, inputs, n_labels)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        tolerance = 1e-6 if name == "loss" else 1e-5
        assert (value.double() - expected[name]).norm() <= tolerance * expected[name].norm() + 1e-30, name
    again = run(fused.native_sweep, inputs, n_labels)
    assert all(torch.equal(found[name], again[name]) for name in found)


@pytest.mark.parametrize("width", [1, 7, 8, 15, 16, 24, 37, 520])
@pytest.mark.parametrize("n_rows", [1, 4, 7, 8, 9, 17, 33])
@pytest.mark.parametrize("tail", [False, True])
def test_every_width_and_number_of_rows(n_rows, width, tail):
    assert_twins(make(101, n_rows, width, tail=tail, bias=True, n_positives=2 * n_rows), 101)


@pytest.mark.parametrize("n_labels", [1, 5, 71, 72, 73, 144, 6000])
@pytest.mark.parametrize("n_threads", [1, 2, 3])
def test_every_number_of_labels_and_threads(n_labels, n_threads, threads, monkeypatch):
    threads(n_threads)
    monkeypatch.setattr(native, "LEAST_WORK", 1)
    assert_twins(make(n_labels, 6, 24, tail=True, bias=False, n_positives=min(40, n_labels)), n_labels)


@pytest.mark.parametrize("n_positives", [0, 1, 97 * 40])
@pytest.mark.parametrize("tail", [False, True])
def test_no_positive_one_and_all(n_positives, tail):
    assert_twins(make(97, 40, 16, tail=tail, bias=False, n_positives=n_positives), 97)


def test_rows_of_other_clusters_roots_are_left_alone():
    inputs = make(100, 5, 16, tail=False, bias=True, n_positives=9, n_roots=3)
    assert_twins(inputs, 100)
    grad_weight = torch.full_like(inputs.weight, 7.0)
    settings = Settings(100, 256, torch.float32, True, True, KeptGradients(), 0)
    fused.native_sweep(inputs, settings, grad_weight, torch.empty(103))
    assert (grad_weight[100:] == 7.0).all()


def test_the_layer_uses_it_and_a_number_that_is_none_shows():
    layer = LabelClusters(16, [20], 40)
    hidden = torch.randn(3, 16)
    calls, sweep = [], native.sweep
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "sweep", lambda *given: calls.append(1) or sweep(*given))
        layer(hidden, torch.tensor([[1], [25], [3]]))
    assert len(calls) == 2
    hidden[1, 3] = torch.nan
    assert layer(hidden, torch.tensor([[1], [25], [3]])).isnan()


def test_what_does_not_fit_is_pytorchs_to_refuse_or_to_do():
    layer, hidden, labels = LabelClusters(16, [20], 40, bias=True), torch.randn(3, 16), torch.tensor([[1], [25], [3]])
    expected = layer(hidden, labels)
    bias = torch.zeros(42)
    bias[::2] = layer.head.bias.detach()
    found = torch.func.functional_call(layer, {"head.bias": bias[::2]}, (hidden, labels))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    with pytest.raises(RuntimeError, match="shape"):
        torch.func.functional_call(layer, {"tails.0.output.weight": torch.randn(20, 3)}, (hidden, labels))


def test_the_default_dtype_does_not_matter():
    layer, hidden, labels = LabelClusters(16, [20], 40), torch.randn(3, 16), torch.tensor([[1], [25], [3]])
    expected = layer(hidden, labels).item()
    torch.set_default_dtype(torch.float64)
    try:
        assert layer(hidden, labels).item() == expected
    finally:
        torch.set_default_dtype(torch.float32)


def test_without_it_pytorch_does_the_same(monkeypatch):
    torch.manual_seed(0)
    layer, hidden, labels = LabelClusters(16, [20], 40), torch.randn(3, 16), torch.tensor([[1], [25], [3]])
    expected = layer(hidden, labels)
    monkeypatch.setattr(native, "library", lambda: None)
    torch.testing.assert_close(layer(hidden, labels), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("vector", native.found().variants if native.library() else [])
def test_every_vector_code_gives_the_same_to_rounding(vector, monkeypatch):
    chosen = loader.load(loader.PATH, vector)
    monkeypatch.setattr(native, "library", lambda: chosen)
    assert_twins(make(500, 17, 37, tail=True, bias=True, n_positives=60), 500)


def test_what_python_gets_wrong_is_refused():
    inputs = make(50, 4, 16, tail=True, bias=True, n_positives=6)
    for field, wrong in [
        ("rows", inputs.rows.double()),
        ("rows", inputs.rows[:, :8].contiguous()),
        ("weight", inputs.weight[:40].contiguous()),
        ("bias", inputs.bias[:49]),
        ("row_weight", inputs.row_weight.float()),
        ("label", inputs.label.flip(0)),
        ("label", inputs.label + 50),
        ("row", inputs.row - 4),
        ("row", inputs.row.int()),
    ]:
        with pytest.raises(ValueError, match=r"weight|rows|bias|label|row"):
            run(fused.native_sweep, inputs._replace(**{field: wrong}), 50)
