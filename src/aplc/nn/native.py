"""sweep.c, compiled by this machine's own C compiler at first use, and kept in the cache.

On a CPU in float32 it takes the place of the sweep in PyTorch's operations, which is its twin and stays for everything
else: GPUs, other types, machines without a compiler.
"""

import ctypes
import os
import platform
import shlex
import subprocess
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from aplc.files import cache_root, cached, digest

SOURCE = Path(__file__).with_name("sweep.c")
FLAGS = ["-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC", "-fopenmp"]
LEAST_WORK = 2**21
"""Multiplications of one product that are worth a thread."""

_SIZES = ["n_labels", "n_rows", "width", "n_positives"]
_TENSORS = [
    *["weight", "bias", "rows", "row_weight", "root", "label", "row"],
    *["loss", "grad_weight", "grad_bias", "grad_rows", "grad_root"],
]


class _Sweep(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in _SIZES] + [(name, ctypes.c_void_p) for name in _TENSORS]


@cache
def library() -> ctypes.CDLL | None:
    """None where there is no compiler, or none that can. The cache should be its owner's alone: it holds code."""
    try:
        compiler = shlex.split(os.environ.get("CC") or "cc")
        folder = cache_root() / "native" / digest(SOURCE.read_text("utf-8"), FLAGS, compiler, _processor())
        return ctypes.CDLL(str(cached(folder, lambda aside: _compile(compiler, aside)) / "sweep.so"))
    except (OSError, RuntimeError, ValueError, subprocess.CalledProcessError):
        return None


def _compile(compiler: list[str], folder: Path) -> None:
    command = [*compiler, *FLAGS, "-o", str(folder / "sweep.so"), str(SOURCE), "-lm"]
    subprocess.run(command, check=True, capture_output=True)


def _processor() -> str:
    """What `-march=native` depends on: a cache may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return f"{platform.machine()} {platform.processor()}"


def sweep(sizes: tuple[int, int, int, int], *tensors: Tensor | None) -> None:
    """The sweep over a cluster, with PyTorch's number of threads at most. Arguments are those of `Sweep` in sweep.c.

    Tensors are contiguous and on the CPU: float32, ids int64, `row_weight` float64.
    """
    compiled = library()
    assert compiled is not None
    n_labels, n_rows, width, _ = sizes
    call = _Sweep(*sizes, *(None if x is None else x.data_ptr() for x in tensors))
    threads = min(torch.get_num_threads(), 1 + n_labels * n_rows * width // LEAST_WORK)
    if compiled.aplc_sweep(ctypes.byref(call), threads):
        raise MemoryError(f"no memory for {threads} sums of the gradients of {n_rows} x {width} hidden states")
