"""Where networks compute. Chosen here and nowhere else, and said with the reason.

The first of: what `using_device` was given (`--device`, `Tagger(device=...)`), the environment variable APLC_DEVICE,
the accelerator that PyTorch finds, the CPU. Words models always compute on the CPU.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from aplc.errors import AplcError
from aplc.machine import n_processes

VARIABLE = "APLC_DEVICE"
UNFIT = {"mps": "has no float64, in which losses are summed"}
"""Accelerators that PyTorch may find and networks can't use."""

KERNELS = "16"
"""Compiled kernels that oneDNN keeps on a CPU. By default 1,024, with their workspaces; batches have hundreds of
lengths, so that memory would grow for hours."""
for _variable in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # of oneDNN and of PyTorch's layer above it
    os.environ.setdefault(_variable, KERNELS)  # read at the first use, which comes later

_given: tuple[str, str] | None = None
"""(name, who gave it), by `using_device`."""


@dataclass(frozen=True)
class Choice:
    device: torch.device
    reason: str

    def __str__(self) -> str:
        """One line for the log."""
        if self.device.type == "cpu":
            return f"cpu ({self.reason})"
        return f"{self.device}, {module_of(self.device).get_device_name(self.device)} ({self.reason})"


def choose_device(local_rank: int = 0) -> Choice:
    """The device of this machine's process number `local_rank`; a name that is of no use here raises AplcError."""
    name, source = _given or (os.environ.get(VARIABLE) or None, VARIABLE)
    found = torch.accelerator.current_accelerator(check_available=True)
    if name is not None:
        return Choice(_parse(name, source, found, local_rank), f"as {source} says")
    if found is None:
        return Choice(torch.device("cpu"), "no GPU found")
    if found.type in UNFIT:
        return Choice(torch.device("cpu"), f"{found.type} {UNFIT[found.type]}")
    return Choice(_of_rank(found.type, local_rank), f"{_count(found.type)} found")


@contextlib.contextmanager
def using_device(name: str | None, source: str = "--device") -> Iterator[None]:
    """Within the block, networks go to this device; with None, where `choose_device` puts them anyway."""
    global _given  # noqa: PLW0603
    before = _given
    _given = (name, source) if name is not None else before
    try:
        if _given or os.environ.get(VARIABLE):
            choose_device()  # a wrong name is an error also where no network is used
        yield
    finally:
        _given = before


def module_of(device: torch.device) -> Any:
    """`torch.cuda` for "cuda": what `torch.accelerator` does not offer, such as names and random states."""
    return torch.get_device_module(device)


def _parse(name: str, source: str, found: torch.device | None, local_rank: int) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise AplcError(f"{source}: {name!r} is not a device; {_at_hand(found)}") from None
    if device.type in UNFIT:
        raise AplcError(f"{source}: {device.type} {UNFIT[device.type]}; {_at_hand(found)}")
    if device.type == "cpu":
        return torch.device("cpu")
    if found is None or device.type != found.type:
        raise AplcError(f"{source}: {name!r} was not found; {_at_hand(found)}")
    if device.index is None:
        return _of_rank(device.type, local_rank)
    if n_processes() > 1:
        raise AplcError(f"{source}: each process takes a device of its own; give {device.type!r} without a number")
    if device.index >= torch.accelerator.device_count():
        raise AplcError(f"{source}: {name!r} was not found; {_at_hand(found)}")
    return device


def _of_rank(kind: str, local_rank: int) -> torch.device:
    """Each process of a machine has a device of its own."""
    if local_rank >= torch.accelerator.device_count():
        raise AplcError(
            f"process {local_rank + 1} of this machine has no device, {_count(kind)} found: start fewer processes, or "
            f"set {VARIABLE}=cpu"
        )
    return torch.device(kind, local_rank)


def _at_hand(found: torch.device | None) -> str:
    """What can be given instead."""
    if found is None or found.type in UNFIT:
        return "there is only cpu"
    return f"there are cpu and {', '.join(f'{found.type}:{i}' for i in range(torch.accelerator.device_count()))}"


def _count(kind: str) -> str:
    n = torch.accelerator.device_count()
    return f"{n} {kind} device{'s' if n > 1 else ''}"
