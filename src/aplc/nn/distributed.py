"""Several processes as one: `torchrun` or `accelerate launch` in front of a command, and nothing else changes.

Every rank reads the same stream of batches or documents and works on its share of each; gradients and predictions are
put together again, so that results are those of one process. Rank 0 writes files and messages.

    torchrun --nproc-per-node 2 -m aplc train corpus --out model

The price of sharing out each batch instead of the corpus: every rank collates the whole batch, which takes little.
"""

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from aplc.machine import n_processes, set_rank
from aplc.nn.device import Choice, choose_device

T = TypeVar("T")

_claims = itertools.count()  # every rank claims the same things in the same order

BUCKET = 1 << 25
"""Bytes of gradients reduced at a time: few messages, little extra memory."""
RANK_TIMEOUT = timedelta(hours=12)
"""How long ranks wait for each other: the first may tokenize for hours. When one dies, torchrun ends the others."""


@dataclass(frozen=True)
class World:
    """The processes of this run. With one process every method is free."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    store: Any = None
    """torch.distributed's, where there are several processes."""

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def share(self, items: Sequence[T]) -> list[T]:
        """This rank's part of `items`, every size-th one. All ranks get equally many: the last item fills up."""
        rounds = -(-len(items) // self.size)
        return [items[min(i * self.size + self.rank, len(items) - 1)] for i in range(rounds)]

    def claim(self, items: Sequence[T]) -> Iterator[T]:
        """Those of `items` that this rank comes to first: who is faster gets more. Each goes to one rank."""
        if self.size == 1:
            yield from items
            return
        name = f"claims-{next(_claims)}"
        while (place := self.store.add(name, 1)) <= len(items):
            yield items[place - 1]

    def gather(self, item: T) -> list[T]:
        """Every rank's item, on every rank."""
        if self.size == 1:
            return [item]
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item)
        return items

    def rows_of(self, whole: Tensor) -> Tensor:
        """This rank's rows of a tensor that FSDP cuts up: equally many each, fewer or none for the last ranks."""
        rows = -(-len(whole) // self.size)
        return whole[self.rank * rows : (self.rank + 1) * rows]

    def join_rows(self, part: Tensor, n_rows: int) -> Tensor:
        """`rows_of` backwards. DTensor's own `full_tensor` on gloo was once seen to crash."""
        rows = -(-n_rows // self.size)
        padded = part.new_zeros(rows, *part.shape[1:])
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        return torch.cat(parts)[:n_rows]

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    @contextlib.contextmanager
    def main_first(self) -> Iterator[None]:
        """The first rank of each machine runs the block before the others do, who then find its files."""
        if self.local_rank > 0:
            self.barrier()
        yield
        if self.local_rank == 0:
            self.barrier()

    def any(self, *flags: bool) -> list[bool]:
        """For each flag, whether it is set on any rank."""
        if self.size == 1:
            return list(flags)
        tensor = torch.tensor(flags, dtype=torch.int32, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return [bool(flag) for flag in tensor.tolist()]

    def sum(self, tensor: Tensor) -> Tensor:
        """`tensor` summed over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum gradients over ranks. One that no rank has (a tail nobody touched) stays None on all of them."""
        if self.size == 1:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        present = self.any(*(parameter.grad is not None for parameter in trained))
        bucket: list[Tensor] = []
        for parameter, somewhere in zip(trained, present, strict=True):
            if not somewhere:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            bucket.append(parameter.grad)
            if sum(gradient.nbytes for gradient in bucket) >= BUCKET:
                _reduce(bucket)
                bucket = []
        _reduce(bucket)

    @property
    def choice(self) -> Choice:
        """Where this rank computes, its own GPU or the CPU, and why."""
        return choose_device(self.local_rank)

    @property
    def device(self) -> torch.device:
        return self.choice.device


def _reduce(gradients: list[Tensor]) -> None:
    if not gradients:
        return
    if len(gradients) == 1:
        dist.all_reduce(gradients[0])
        return
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, reduced in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(reduced.view_as(gradient))


_world = World()


def world() -> World:
    """The processes this one belongs to."""
    return _world


@contextlib.contextmanager
def launched() -> Iterator[World]:
    """Join the processes that `torchrun` or `accelerate launch` started; alone otherwise."""
    global _world  # noqa: PLW0603
    if n_processes() == 1:
        yield _world
        return
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device, backend = choose_device(local_rank).device, "gloo"
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)
        # gloo beside nccl carries what is on the CPU: files' parts, random states.
        backend = f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}"
    # torchrun keeps its store over restarts, and in it the addresses of the workers that died.
    store, rank, size = next(rendezvous("env://"))
    store = dist.PrefixStore(f"attempt-{restarts()}", store)  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=RANK_TIMEOUT)
    _world = World(dist.get_rank(), dist.get_world_size(), local_rank, store)
    set_rank(_world.rank)
    try:
        yield _world
        _world.barrier()
    finally:
        _world = World()
        set_rank(_world.rank)
        dist.destroy_process_group()


def restarts() -> int:
    """How often `torchrun --max-restarts` has started this process again after a worker died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
