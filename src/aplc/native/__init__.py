"""C code of ours, compiled by this machine's own compiler at first use, and kept in the cache.

On a CPU in float32, sweep.c takes the place of the sweep in PyTorch's operations (`nn/fused.py`), product.c that of
SciPy's sparse product (`words/systems.py`), local.c that of a loop over rare labels (`words/local.py`), score.c that of
SciPy's and NumPy's way to a document's best labels (`words/index.py`). Those are the reference, and are used for
everything else: GPUs, other types, machines without a compiler.
"""

import ctypes
import os
import platform
import shlex
import subprocess
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from aplc.files import cache_root, cached, digest

SOURCES = [Path(__file__).with_name(name) for name in ("sweep.c", "product.c", "local.c", "score.c")]
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


class _Rows(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("start", "column", "value")]


class _Choice(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("n_labels", "n_documents", "n_words", "most")),
        *((name, _Rows) for name in ("by_document", "by_word")),
        *((name, ctypes.c_void_p) for name in ("own_start", "own", "place", "document", "count")),
    ]


class _Neighbourhoods(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("n_labels", "n_columns")),
        ("rows", _Rows),
        *((name, ctypes.c_void_p) for name in ("start", "document", "in", "out")),
    ]


class _Weights(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("n_labels", "n_columns")),
        ("rows", _Rows),
        *((name, ctypes.c_void_p) for name in ("start", "document", "number", "share", "less")),
        ("least", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("out_start", "word", "weight")),
    ]


class _Cross(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("n_rows", "width")),
        *((name, _Rows) for name in ("first", "second")),
        ("out", ctypes.c_void_p),
    ]


class _Logits(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("n_documents", "n_words", "n_labels", "n_weights")),
        ("documents", _Rows),
        *((name, ctypes.c_void_p) for name in ("word_start", "label", "weight")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("bias", "curve", "out")),
    ]


class _Best(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("n_rows", "n_columns", "k")),
        *((name, ctypes.c_void_p) for name in ("value", "column")),
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


class _Matrix:
    """A sparse matrix in float32 as local.c takes it: a struct, and the arrays it points to."""

    def __init__(self, x: sparse.csr_array) -> None:
        assert x.dtype == np.float32
        self.arrays = x.indptr.astype(np.int64, copy=False), x.indices.astype(np.int32, copy=False), x.data
        self.struct = _Rows(*(array.ctypes.data for array in self.arrays))


def cross(x: sparse.csr_array, y: sparse.csr_array) -> NDArray[np.float32]:
    """x @ y as a dense matrix."""
    compiled = library()
    assert compiled is not None
    assert x.shape[1] == y.shape[0]
    first, second, out = _Matrix(x), _Matrix(y), np.empty((x.shape[0], y.shape[1]), dtype=np.float32)
    call = _Cross(*out.shape, first.struct, second.struct, out.ctypes.data)
    compiled.aplc_cross(ctypes.byref(call), torch.get_num_threads())
    return out


def choose(x: sparse.csr_array, by_word: sparse.csr_array, own: sparse.csr_array, most: int) -> tuple[NDArray, NDArray]:
    """Neighbourhoods of labels from their own documents, (labels, documents): where each begins, and the documents."""
    compiled = library()
    assert compiled is not None
    assert (own.shape[1], *x.shape) == (x.shape[0], *by_word.shape[::-1])
    rows, columns = _Matrix(x), _Matrix(by_word)
    own_start, ids = own.indptr.astype(np.int64), own.indices.astype(np.int32)
    place = own_start + most * np.arange(len(own_start))
    document, count = np.empty(place[-1], dtype=np.int32), np.empty(own.shape[0], dtype=np.int64)
    arrays = (array.ctypes.data for array in (own_start, ids, place, document, count))
    call = _Choice(own.shape[0], *x.shape, most, rows.struct, columns.struct, *arrays)
    if compiled.aplc_choose(ctypes.byref(call), torch.get_num_threads()):
        raise MemoryError(f"no memory to choose neighbours among {own.shape[1]:,} documents")
    start = np.concatenate([[0], np.cumsum(count)])
    return start, document[np.repeat(place[:-1] - start[:-1], count) + np.arange(start[-1])]


def local(
    what: Literal["gather", "spread", "meet"],
    x: sparse.csr_array,
    start: NDArray[np.int64],
    document: NDArray[np.int32],
    given: NDArray[np.float32],
) -> NDArray[np.float32]:
    """A product of local.c over the neighbourhoods that `start` and `document` say."""
    compiled = library()
    assert compiled is not None
    rows, n_labels, n_columns = _Matrix(x), len(start) - 1, x.shape[1]
    expected = (n_labels, n_columns) if what == "spread" else document.shape
    assert given.shape == expected
    assert [array.dtype.name for array in (given, start, document)] == ["float32", "int64", "int32"]
    given = np.ascontiguousarray(given)
    out = np.empty((n_labels, n_columns) if what == "gather" else document.shape, dtype=np.float32)
    arrays = (array.ctypes.data for array in (start, document, given, out))
    call = _Neighbourhoods(n_labels, n_columns, rows.struct, *arrays)
    if getattr(compiled, f"aplc_{what}")(ctypes.byref(call), torch.get_num_threads()):
        raise MemoryError(f"no memory for {n_columns:,} sums of a thread")
    return out


def collect(
    own: sparse.csr_array, x: sparse.csr_array, share: NDArray[np.float32], less: NDArray[np.float32], least: float
) -> sparse.csr_array:
    """own @ x, less the outer product of `share` and `less`, without what is smaller than `least`."""
    compiled = library()
    assert compiled is not None
    assert (*own.shape, x.shape[1]) == (len(share), x.shape[0], len(less))
    rows = _Matrix(x)
    start, document, number = own.indptr.astype(np.int64), own.indices.astype(np.int32), own.data
    arrays = [array.ctypes.data for array in (start, document, number, share, less)]
    assert {number.dtype, share.dtype, less.dtype} == {np.dtype(np.float32)}
    out_start, word, weight = np.zeros(len(start), dtype=np.int64), np.empty(0, np.int32), np.empty(0, np.float32)
    for filling in False, True:
        if filling:
            out_start = np.cumsum(out_start)
            word, weight = np.empty(out_start[-1], dtype=np.int32), np.empty(out_start[-1], dtype=np.float32)
        found = (word.ctypes.data, weight.ctypes.data) if filling else (None, None)
        call = _Weights(len(share), x.shape[1], rows.struct, *arrays, least, out_start.ctypes.data, *found)
        if compiled.aplc_collect(ctypes.byref(call), torch.get_num_threads()):
            raise MemoryError(f"no memory for {x.shape[1]:,} sums of a thread")
    return sparse.csr_array((weight, word, out_start), shape=(len(share), x.shape[1]))


def logits(
    documents: sparse.csr_array,
    start: NDArray[np.int64],
    label: NDArray[np.int32],
    weight: NDArray[np.int16],
    scale: np.float32,
    bias: NDArray[np.float32],
    curve: NDArray[np.float32],
) -> NDArray[np.float32] | None:
    """documents @ weights + bias, bent, from an index of labels by words; None if it points beyond the labels.

    `curve` is (5, labels), as `Logits` in score.c has it.
    """
    compiled = library()
    assert compiled is not None
    arrays = start, label, weight, bias, curve
    assert [array.dtype.name for array in arrays] == ["int64", "int32", "int16", "float32", "float32"]
    assert all(array.flags.c_contiguous for array in arrays)
    assert (len(start), len(label), curve.shape) == (documents.shape[1] + 1, len(weight), (5, len(bias)))
    rows, out = _Matrix(documents), np.empty((documents.shape[0], len(bias)), dtype=np.float32)
    places = [array.ctypes.data for array in (*arrays, out)]
    call = _Logits(*documents.shape, len(bias), len(label), rows.struct, *places[:3], scale, *places[3:])
    damaged = compiled.aplc_logits(ctypes.byref(call), torch.get_num_threads())
    return None if damaged else out


def best(x: NDArray[np.float32], k: int) -> NDArray[np.int32]:
    """The k largest of each row, largest first; of equal ones the lower column first."""
    compiled = library()
    assert compiled is not None
    assert x.dtype == np.float32
    assert 0 < k <= x.shape[1] < 2**31
    x, column = np.ascontiguousarray(x), np.empty((len(x), k), dtype=np.int32)
    call = _Best(*x.shape, k, x.ctypes.data, column.ctypes.data)
    compiled.aplc_best(ctypes.byref(call), torch.get_num_threads())
    return column


def _threads(multiplications: int) -> int:
    return min(torch.get_num_threads(), 1 + multiplications // LEAST_WORK)
