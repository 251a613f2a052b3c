"""Guards training in bfloat16 as GPUs do it, by the CPU's own autocast: gradients near float32's, losses finite."""

import math

import pytest
import torch

from aplc import LabelClusters
from aplc.config import Config
from aplc.nn.encoder import build_encoder
from aplc.train import loop
from helpers import SAME_STEPS, aplc, as_options, ok, topic_rows, weights, write_rows
from rehearsal.compared import read_log


def layer_and_batch(objective, tail):
    """16 rows with 3 labels each of 2,000 in a head and two tails; every tail is touched, and an addition."""
    torch.manual_seed(0)
    layer = LabelClusters(64, [200, 800], 2000, objective=objective, tail=tail, bias=True, added=[20], chunk_size=256)
    rows, n_labels = torch.randn(16, 64), torch.tensor([200, 600, 1180])
    first = torch.tensor([0, 200, 800])
    labels = first + (torch.rand(16, 3) * n_labels).long()
    labels[:, 2] = torch.where(torch.arange(16) % 4 == 0, 1985, labels[:, 2])
    return layer, rows, labels


def gradients(layer, rows, labels, enabled, **partial):
    hidden = rows.clone().requires_grad_()
    layer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        loss = layer(hidden, labels, **partial)
    loss.backward()
    return loss.item(), {"hidden": hidden.grad} | {name: p.grad.clone() for name, p in layer.named_parameters()}


@pytest.mark.parametrize("partly", [False, True])
@pytest.mark.parametrize("tail", ["norm-relu", "linear"])
@pytest.mark.parametrize("objective", ["released", "paper"])
def test_gradients_of_clusters_are_within_a_hundredth_of_float32s(objective, tail, partly):
    """`partly`: some rows are only partly reviewed."""
    layer, rows, labels = layer_and_batch(objective, tail)
    given = {"partial": torch.arange(16) < 5, "rejected": labels.roll(1, 0)} if partly else {}
    loss, exact = gradients(layer, rows, labels, enabled=False, **given)
    rounded_loss, rounded = gradients(layer, rows, labels, enabled=True, **given)
    assert rounded_loss != loss
    assert rounded_loss == pytest.approx(loss, rel=1e-2)
    for name, gradient in exact.items():
        assert rounded[name].dtype == torch.float32, name
        assert (rounded[name] - gradient).norm() <= 1e-2 * gradient.norm(), name


@pytest.mark.parametrize("size", [1e-4, 1.0, 100.0])
def test_losses_are_finite_at_any_size(size):
    layer, rows, labels = layer_and_batch("released", "norm-relu")
    loss, found = gradients(layer, size * rows, labels, enabled=True)
    assert math.isfinite(loss)
    assert all(gradient.isfinite().all() for gradient in found.values())


def test_an_encoder_with_padding_and_memory_is_finite():
    """Masks are large negative numbers, and must not become infinite, or hide a whole row."""
    settings = ["model.dropout=0.0", "model.width=16", "model.heads=2", "model.layers=2", "model.inner_width=32"]
    config = Config.from_preset("tiny").with_settings(settings)
    torch.manual_seed(0)
    encoder = build_encoder(config.model, vocab_size=50, long_text="memory", max_length=8)
    ids, mask = torch.randint(0, 50, (3, 20)), torch.ones(3, 20, dtype=torch.int64)
    mask[0, :15] = mask[1, :3] = 0
    exact = encoder(ids, mask)
    with torch.autocast("cpu", torch.bfloat16):
        found = encoder(ids, mask)
    found.sum().backward()
    assert (found - exact).norm() <= 0.05 * exact.norm()
    assert all(p.grad.isfinite().all() for p in encoder.parameters() if p.grad is not None)


def test_a_run_in_bfloat16_follows_one_in_float32(tmp_path, monkeypatch):
    write_rows(tmp_path / "train.jsonl", topic_rows(60, seed=1))
    settings = [*SAME_STEPS, "clusters.cutoffs=2,4", "train.epochs=3", "train.patience=0", "data.validation=0.2"]
    losses = {}
    for name in ("float32", "bfloat16"):
        monkeypatch.setattr(loop, "uses_bfloat16", lambda *_, name=name: name == "bfloat16")
        done = aplc("train", tmp_path, "--preset", "tiny", *as_options(settings), "--out", tmp_path / name)
        ok(done)
        assert f"in {name}" in done.stderr
        losses[name] = [row["mean_loss"] for row in read_log(tmp_path / name)]
        assert all(tensor.dtype == torch.float32 for tensor in weights(tmp_path / name).values())
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=1e-2)
    assert losses["bfloat16"] != losses["float32"]
