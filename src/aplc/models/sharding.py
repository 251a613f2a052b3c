"""Models that are spread over processes: cutting them up, and putting them together again to be saved.

Two parts can be cut. The encoder: each of its layers is sharded with FSDP (`train.shard_encoder`). The clusters: each
rank holds a slice of the labels (`train.shard_labels`). Everything else is the same on every rank. A saved model or
checkpoint is always whole, so that it can be used by any number of processes.

`gather_*`, `clip_gradients` and `sum_gradients` are collective: all ranks call them, in the same order.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from aplc.config import Config
from aplc.errors import RunError
from aplc.nn.distributed import world

CLUSTERS = "clusters."


def shard_model(model: Any, config: Config) -> None:
    """Cut up what the configuration asks for, nothing where there is only one process, and move it to the device."""
    if config.train.shard_labels and world().size > 1:
        from aplc.nn.sharded import ShardedLabelClusters

        whole = model.clusters
        options: Any = whole.options
        try:
            clusters = ShardedLabelClusters(**options)
        except ValueError as error:
            raise RunError(f"train.shard_labels: {error}; use fewer processes") from None
        parts = {name: clusters.slice_of(name, tensor) for name, tensor in whole.state_dict().items()}
        clusters.load_state_dict(parts)
        model.clusters = clusters
    model.to(world().device)
    if config.train.shard_encoder and world().size > 1:
        _shard_encoder(model.encoder)


def _shard_encoder(encoder: nn.Module) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = init_device_mesh(world().device.type, (world().size,))
    for stack in [module for module in encoder.modules() if isinstance(module, nn.ModuleList)]:
        for layer in stack:
            fully_shard(layer, mesh=mesh)
    fully_shard(encoder, mesh=mesh)
    for module in encoder.modules():
        if isinstance(module, FSDPModule):  # sums, as our losses are shares of one; gloo knows no other
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def own_rows(model: nn.Module, name: str, tensor: Tensor) -> int:
    """How many of a tensor's first rows only this rank holds; the others are the same on every rank."""
    if isinstance(tensor, DTensor):
        return len(tensor.to_local())
    clusters: Any = getattr(model, "clusters", None)
    return clusters.own_rows(name.removeprefix(CLUSTERS)) if clusters and name.startswith(CLUSTERS) else 0


def gather_whole(model: nn.Module, name: str, tensor: Tensor) -> Tensor:
    """The whole of the parameter `name`, or of a moment of it. Of one that is cut up, only the first rank keeps it."""
    if isinstance(tensor, DTensor):
        whole = world().join_rows(tensor.to_local(), len(tensor))
    elif tensor.ndim and own_rows(model, name, tensor):
        clusters: Any = model.clusters
        whole = clusters.join(name.removeprefix(CLUSTERS), world().gather(tensor.detach().cpu()))
    else:
        return tensor
    return whole.cpu() if world().is_main else torch.empty(0)


def cut_whole(model: nn.Module, name: str, whole: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor: `gather_whole` backwards."""
    if isinstance(like, DTensor):
        part = world().rows_of(whole.contiguous()).to(like.device)
        return DTensor.from_local(
            part, like.device_mesh, like.placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )
    if whole.ndim and own_rows(model, name, like):
        clusters: Any = model.clusters
        return clusters.slice_of(name.removeprefix(CLUSTERS), whole)
    return whole


def gather_state(model: nn.Module) -> dict[str, Tensor]:
    """The whole model's weights, for the first rank."""
    return {name: gather_whole(model, name, tensor).contiguous() for name, tensor in model.state_dict().items()}


def load_state(model: nn.Module, state: dict[str, Tensor]) -> None:
    own = model.state_dict()
    model.load_state_dict({name: cut_whole(model, name, whole, own[name]) for name, whole in state.items()})


def sum_gradients(model: nn.Module) -> None:
    """Add up the ranks' gradients, but for those that FSDP has added up and those of labels only one rank holds."""
    if world().size == 1:
        return
    shared, views = [], []
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            continue
        own = own_rows(model, name, parameter)
        if own == 0:
            shared.append(parameter)
        elif parameter.grad is not None and own < len(parameter):
            views.append(parameter.grad[own:])
    world().sum_gradients(shared)
    for view in views:
        view.copy_(world().sum(view.contiguous()))


def clip_gradients(model: nn.Module, max_norm: float) -> float:
    """Scale gradients down to `max_norm` at most; returns the norm they had, over all ranks' parts."""
    pairs = [(name, parameter) for name, parameter in model.named_parameters() if parameter.grad is not None]
    squares = torch.zeros(2, dtype=torch.float64, device=world().device)  # of this rank's alone, of all ranks'
    gradients = []
    for name, parameter in pairs:
        gradient = parameter.grad.to_local() if isinstance(parameter.grad, DTensor) else parameter.grad
        assert gradient is not None
        own = own_rows(model, name, parameter)
        for i, part in enumerate((gradient[:own], gradient[own:]) if own else (gradient[:0], gradient)):
            if part.numel():
                squares[i] += torch.linalg.vector_norm(part).double() ** 2
        gradients.append(gradient)
    norm = float((world().sum(squares[:1].clone())[0] + squares[1]).sqrt())
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / (norm + 1e-6))
    return norm
