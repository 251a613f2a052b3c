"""The paper's optimizer: AdamW with a learning rate for each of the three modules (Section 4.1), slanted triangular
schedule (Equation 15). The clusters may be left to plain SGD, which keeps no moments of their many weights."""

from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from aplc.config import StepsConfig, TrainConfig
from aplc.models.network import TaggingModel
from aplc.models.sharding import cut_whole


def slanted_triangular(step: int, *, warmup: int, total: int) -> float:
    """Equation 15 as a factor of the original rate; `step` counts the steps taken before this one."""
    if step < warmup:
        return step / warmup
    return max(0.0, (total - step) / max(1, total - warmup))


class Optimizers:
    """Optimizers that step together, each group of weights at its own rate times a common factor."""

    def __init__(self, *optimizers: Optimizer) -> None:
        self.all = optimizers

    @classmethod
    def for_tagging(cls, model: TaggingModel, config: TrainConfig) -> Self:
        """Three modules, three rates: encoder (eta_x), hidden layer (eta_h), clusters (eta_a)."""
        encoder, hidden = group(model.encoder, config.lr_encoder), group(model.hidden, config.lr_hidden)
        clusters = group(model.clusters, config.lr_clusters)
        if config.clusters_optimizer == "sgd":
            sgd = SGD([clusters], weight_decay=config.weight_decay, fused=True)
            return cls(adamw([encoder, hidden], config), sgd)
        return cls(adamw([encoder, hidden, clusters], config))

    def zero_grad(self) -> None:
        for optimizer in self.all:
            optimizer.zero_grad()

    def step(self, factor: float) -> None:
        """One step at `factor` times each group's original rate."""
        for optimizer in self.all:
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor
            optimizer.step()

    def state(self, model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
        """What the optimizers remember: (parameter, kind, tensor), e.g. ("hidden.weight", "exp_avg", ...)."""
        for name, parameter in model.named_parameters():
            for optimizer in self.all:
                for kind, value in optimizer.state.get(parameter, {}).items():
                    if value is not None:  # SGD's momentum, which we don't use
                        yield name, kind, torch.as_tensor(value)

    def load_state(self, model: nn.Module, tensors: dict[str, Tensor]) -> None:
        """Put back what `state` gave, from whole tensors under `parameter.kind`."""
        owners = {p: o for o in self.all for group in o.param_groups for p in group["params"]}
        parameters = dict(model.named_parameters())
        for key, value in tensors.items():
            name, _, kind = key.rpartition(".")
            parameter = parameters[name]
            state = owners[parameter].state.setdefault(parameter, {})
            own = cut_whole(model, name, value, parameter) if value.ndim else value
            state[kind] = own.to(parameter.device)  # fused AdamW keeps its count of steps on the device, too


def adamw(groups: list[dict[str, Any]], config: StepsConfig) -> AdamW:
    # foreach and fused round differently; one choice keeps runs reproducible.
    return AdamW(groups, weight_decay=config.weight_decay, eps=config.adam_epsilon, fused=True)


def group(module: nn.Module, rate: float) -> dict[str, Any]:
    return {"params": [p for p in module.parameters() if p.requires_grad], "lr": rate, "initial_lr": rate}
