"""C code of ours, compiled by this machine's own compiler at first use, and kept in the cache.

On a CPU in float32, sweep.c takes the place of the sweep in PyTorch's operations (`nn/fused.py`), product.c that of
SciPy's sparse product (`words/ridge.py`). Those are the reference, and are used for everything else: GPUs, other types,
machines without a compiler.
"""

import ctypes
import os
import platform
import shlex
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from aplc.files import cache_root, cached, digest

SOURCES = [Path(__file__).with_name(name) for name in ("sweep.c", "product.c")]
FLAGS = ["-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC", "-fopenmp"]
LEAST_WORK = 2**21
"""Multiplications for which one more thread pays off."""

_SIZES = ["n_labels", "n_rows", "width", "n_positives"]
_TENSORS = [
    *["weight", "bias", "rows", "row_weight", "root", "label", "row"],
    *["loss", "grad_weight", "grad_bias", "grad_rows", "grad_root"],
]


class _Sweep(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in _SIZES] + [(name, ctypes.c_void_p) for name in _TENSORS]


class _Product(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in ("n_rows", "width")] + [
        (name, ctypes.c_void_p) for name in ("start", "column", "value", "dense", "out")
    ]


@cache
def library() -> ctypes.CDLL | None:
    """None where there is no compiler, or none that can. The cache should be its owner's alone: it holds code."""
    try:
        compiler = shlex.split(os.environ.get("CC") or "cc")
        code = [source.read_text("utf-8") for source in SOURCES]
        folder = cache_root() / "native" / digest(*code, FLAGS, compiler, _processor())
        return ctypes.CDLL(str(cached(folder, lambda temporary: _compile(compiler, temporary)) / "native.so"))
    except (OSError, RuntimeError, ValueError, subprocess.CalledProcessError):
        return None


def _compile(compiler: list[str], folder: Path) -> None:
    command = [*compiler, *FLAGS, "-o", str(folder / "native.so"), *map(str, SOURCES), "-lm"]
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
    threads = _threads(n_labels * n_rows * width)
    if compiled.aplc_sweep(ctypes.byref(call), threads):
        raise MemoryError(f"no memory for {threads} sums of the gradients of {n_rows} x {width} hidden states")


def product(x: sparse.csr_array, dense: Tensor, out: Tensor) -> None:
    """x @ dense, all float32, tensors contiguous, with PyTorch's number of threads at most."""
    compiled = library()
    assert compiled is not None
    assert x.dtype == np.float32
    for tensor, n_rows in (dense, x.shape[1]), (out, x.shape[0]):
        assert (tensor.dtype, tensor.device.type) == (torch.float32, "cpu")
        assert tensor.is_contiguous()
        assert tensor.shape == (n_rows, dense.shape[1])
    start, column = x.indptr.astype(np.int64, copy=False), x.indices.astype(np.int32, copy=False)
    arrays = (start.ctypes.data, column.ctypes.data, x.data.ctypes.data, dense.data_ptr(), out.data_ptr())
    call = _Product(*out.shape, *arrays)
    compiled.aplc_product(ctypes.byref(call), _threads(x.nnz * dense.shape[1]))


def _threads(multiplications: int) -> int:
    return min(torch.get_num_threads(), 1 + multiplications // LEAST_WORK)
