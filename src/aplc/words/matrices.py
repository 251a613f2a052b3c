"""Sparse matrices that may be larger than memory: made a part at a time, large ones in files.

The files have no name: the operating system reads and writes them as it has memory to spare, and drops them when the
process ends, however it ends. The price of a matrix that does not fit is the wait for the disk.
"""

import os
import tempfile
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy import sparse

from aplc import native
from aplc.files import CACHE_CURE, cache_root, naming

IN_MEMORY = 1 << 26
"""Bytes up to which an array needs no file."""
COLUMNS_AT_ONCE, LARGEST = 256, 1 << 28
"""Columns of a dense array that are made at a time; fewer where it would have more elements than LARGEST, 1 GB."""
ROWS_AT_ONCE = 1 << 14
ENTRIES_AT_ONCE = 1 << 23
"""Entries transposed at a time. Each time all of the result is written to: to the disk, where it lies in a file."""


def room(n: int, dtype: DTypeLike) -> NDArray:
    """An array for n numbers."""
    if n * np.dtype(dtype).itemsize <= IN_MEMORY:
        return np.empty(n, dtype=dtype)
    with naming(cache_root(), CACHE_CURE):
        cache_root().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache_root()) as file:  # mapped memory outlives it
            if hasattr(os, "posix_fallocate"):  # else a disk that fills up later would end the process
                os.posix_fallocate(file.fileno(), 0, n * np.dtype(dtype).itemsize)
            return np.asarray(np.memmap(file, dtype=dtype, mode="w+", shape=(n,)))


def parts_of(x: sparse.csr_array) -> Iterator[sparse.csr_array]:
    """Blocks of its rows."""
    for start in range(0, x.shape[0], ROWS_AT_ONCE):
        yield x[start : start + ROWS_AT_ONCE]


def stacked(parts: Iterable[sparse.csr_array], n_columns: int, most: int) -> sparse.csr_array:
    """The parts stacked to one matrix, the columns of each row rising. Together they have at most `most` entries."""
    index = np.int32 if most < 2**31 else np.int64  # C takes 32 bits: others would be copied for every product
    column, value, ends = room(most, index), room(most, np.float32), [np.zeros(1, dtype=index)]
    n = 0
    for part in parts:
        part.sort_indices()
        column[n : n + part.nnz], value[n : n + part.nnz] = part.indices, part.data
        ends.append((n + part.indptr[1:]).astype(index))
        n += part.nnz
    start = np.concatenate(ends)
    return sparse.csr_array((value[:n], column[:n], start), shape=(len(start) - 1, n_columns))


def transposed(parts: Iterable[sparse.csr_array], count: NDArray[np.int64]) -> sparse.csr_array:
    """The transpose of the stacked parts, by rows. `count` says how many entries each of their columns has."""
    ends = np.concatenate([[0], np.cumsum(count)])
    index = np.int32 if ends[-1] < 2**31 else np.int64
    column, value, after, n_rows = room(ends[-1], index), room(ends[-1], np.float32), ends[:-1].copy(), 0
    transpose = transpose_slowly if native.library() is None or index != np.int32 else native.transpose
    for part in _together(parts):
        transpose(part, n_rows, after, column, value)
        n_rows += part.shape[0]
    return sparse.csr_array((value, column, ends.astype(index)), shape=(len(count), n_rows))


def transpose_slowly(
    x: sparse.csr_array, first: int, after: NDArray[np.int64], row: NDArray, value: NDArray[np.float32]
) -> None:
    """`native.transpose` by SciPy."""
    by_column = x.tocsc()
    size = np.diff(by_column.indptr)
    place = np.repeat(after - by_column.indptr[:-1], size) + np.arange(by_column.nnz)
    row[place], value[place] = by_column.indices + first, by_column.data
    after += size


def _together(parts: Iterable[sparse.csr_array]) -> Iterator[sparse.csr_array]:
    """The parts, stacked until there are `ENTRIES_AT_ONCE`."""
    held: list[sparse.csr_array] = []
    for part in parts:
        held.append(part)
        if sum(one.nnz for one in held) >= ENTRIES_AT_ONCE:
            yield sparse.vstack(held, "csr")
            held = []
    if held:
        yield sparse.vstack(held, "csr")


def some_columns(column: NDArray[np.int64], n_rows: int) -> Iterator[NDArray[np.int64]]:
    """So many of these columns at a time as a dense array of `n_rows` rows has room for."""
    step = max(1, min(COLUMNS_AT_ONCE, LARGEST // max(n_rows, 1)))
    for start in range(0, len(column), step):
        yield column[start : start + step]


def with_columns(x: sparse.csc_array, column: NDArray[np.int64], parts: Iterable[sparse.csc_array]) -> sparse.csr_array:
    """x by rows, with these columns in place of its own; the parts hold them side by side."""
    others = np.setdiff1d(np.arange(x.shape[1]), column)
    joined = sparse.hstack([x[:, others], *parts], format="csc")
    return joined[:, np.argsort(np.concatenate([others, column]))].tocsr()


def by_columns(x: sparse.csr_array) -> sparse.csr_array:
    """The transpose of x, by rows."""
    return transposed(parts_of(x), count_of(x))


def count_of(x: sparse.csr_array) -> NDArray[np.int64]:
    """Entries of each column."""
    return sum((np.bincount(part.indices, minlength=x.shape[1]) for part in parts_of(x)), np.zeros(x.shape[1], int))


def squares(x: sparse.csr_array, *, axis: int) -> NDArray[np.float32]:
    """Sums of squares, of each column (0) or row (1)."""
    found = (np.asarray((part**2).sum(axis=axis, dtype=np.float64)).ravel() for part in parts_of(x))
    total = np.concatenate(list(found)) if axis else sum(found, np.zeros(x.shape[1]))
    return total.astype(np.float32)
