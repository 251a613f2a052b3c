"""NumPy's, SciPy's and PyTorch's arrays as C takes them: where their numbers are, if they are what C takes them for."""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aplc.native import loader

if TYPE_CHECKING:  # words models predict without torch
    from torch import Tensor


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def array_at(name: str, array: NDArray[Any], dtype: type, shape: Sequence[int]) -> int:
    """Where a NumPy array's numbers are, if it is what C takes it for."""
    fits = array.dtype == dtype and array.shape == tuple(shape) and array.flags.c_contiguous and array.flags.aligned
    if not fits:
        raise ValueError(f"{name}: {array.dtype} {array.shape} is not a contiguous {np.dtype(dtype)} {tuple(shape)}")
    return array.ctypes.data


def tensor_at(name: str, tensor: "Tensor | None", dtype: str, shape: tuple[int, ...]) -> int | None:
    """The same of a tensor."""
    if tensor is None:
        return None
    kind = kind_of(tensor.dtype)
    if not (tensor.is_cpu and kind == dtype and tensor.shape == shape and tensor.is_contiguous()):
        where = "the CPU" if tensor.is_cpu else "another device"
        raise ValueError(f"{name}: {kind} {tuple(tensor.shape)} on {where} is not a contiguous {dtype} {shape}")
    address = tensor.data_ptr()
    if not address and tensor.numel():
        raise ValueError(f"{name}: has no memory")
    return address


@cache
def kind_of(dtype: object) -> str:
    """A type of tensors as NumPy names it."""
    return str(dtype).removeprefix("torch.")


class Matrix:
    """A sparse matrix in float32 as C takes it: a struct, and the arrays it points to."""

    def __init__(self, x: sparse.csr_array) -> None:
        require(sparse.issparse(x) and x.format == "csr" and x.ndim == 2, "not a sparse matrix by rows")
        require(max(x.shape) < 2**31, f"a matrix of {x.shape} is too large")
        self.arrays = np.ascontiguousarray(x.indptr, np.int64), np.ascontiguousarray(x.indices, np.int32), x.data
        start, column, value = self.arrays
        places = (
            array_at("indptr", start, np.int64, (x.shape[0] + 1,)),
            array_at("indices", column, np.int32, value.shape),
            array_at("data", value, np.float32, (value.size,)),
        )
        self.struct = loader.Rows(*x.shape, len(value), *places)


def is_rising(x: sparse.csr_array) -> bool:
    """Whether each row ends where the next begins, and the last within the entries."""
    start = x.indptr
    return (
        len(start) == x.shape[0] + 1
        and start[0] >= 0
        and start[-1] <= len(x.indices)
        and not (np.diff(start) < 0).any()
    )
