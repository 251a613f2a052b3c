"""Guards Equation 15 and the three learning rates."""

import pytest
import torch

from aplc.config import Config
from aplc.data.tokenizer import Tokenizer
from aplc.models.network import TaggingModel
from aplc.nn.encoder import build_encoder
from aplc.train.optim import Optimizers, slanted_triangular
from helpers import SMALL, TOPICS


@pytest.mark.parametrize(
    ("step", "warmup", "total", "factor"),
    [
        (0, 0, 10, 1.0),
        (5, 0, 10, 0.5),
        (9, 0, 10, 0.1),
        (10, 0, 10, 0.0),
        (1, 4, 10, 0.25),
        (4, 4, 10, 1.0),
        (7, 4, 10, 0.5),
    ],
)
def test_schedule_equals_equation_15(step, warmup, total, factor):
    assert slanted_triangular(step, warmup=warmup, total=total) == pytest.approx(factor)


@pytest.mark.parametrize("clusters_optimizer", ["adamw", "sgd"])
def test_each_module_is_trained_at_its_own_rate(clusters_optimizer):
    """Where every gradient is 1: AdamW's first step is the rate, SGD's the rate times the gradient."""
    rates = {"encoder": 1e-3, "hidden": 2e-3, "clusters": 4e-3}
    config = Config.from_preset("tiny").with_settings(
        [
            *SMALL,
            f"train.clusters_optimizer={clusters_optimizer}",
            *(f"train.lr_{name}={rate}" for name, rate in rates.items()),
        ]
    )
    tokenizer = Tokenizer.train([*TOPICS.values()], 50)
    model = TaggingModel(build_encoder(config.model, vocab_size=50), tokenizer, config, n_labels=20, cutoffs=(10,))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    Optimizers.for_tagging(model, config.train).step(0.5)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        moved = before[name] - parameter.detach()
        assert torch.allclose(moved, torch.full_like(moved, 0.5 * rates[name.split(".")[0]]), atol=1e-6), name
