"""The paper's optimizer: AdamW with a learning rate for each of the three modules (Section 4.1), slanted triangular
schedule (Equation 15)."""

from torch import nn
from torch.optim import AdamW

from aplc.config import TrainConfig
from aplc.nn.model import TaggingModel


def slanted_triangular(step: int, *, warmup: int, total: int) -> float:
    """Equation 15 as a factor of the original rate; `step` counts the steps taken before this one."""
    if step < warmup:
        return step / warmup
    return max(0.0, (total - step) / max(1, total - warmup))


def build_optimizer(model: TaggingModel, config: TrainConfig) -> AdamW:
    """Three groups: encoder (eta_x), hidden layer (eta_h), clusters (eta_a). `initial_lr` keeps each one's eta_0."""
    modules: list[tuple[nn.Module, float]] = [
        (model.encoder, config.lr_encoder),
        (model.hidden, config.lr_hidden),
        (model.clusters, config.lr_clusters),
    ]
    groups = [
        {"params": [p for p in module.parameters() if p.requires_grad], "lr": lr, "initial_lr": lr}
        for module, lr in modules
    ]
    # foreach and fused update tensors in another order of rounding; one choice keeps runs reproducible.
    return AdamW(groups, weight_decay=config.weight_decay, eps=config.adam_epsilon, foreach=False, fused=True)


def set_rates(optimizer: AdamW, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
