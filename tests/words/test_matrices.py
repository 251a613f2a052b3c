"""Guards sparse matrices that may be larger than memory: the same as SciPy's, in files or not."""

import errno
import os

import numpy as np
import pytest
from scipy import sparse

from aplc.words import matrices
from aplc.words.matrices import by_columns, count_of, parts_of, room, squares, stacked


@pytest.fixture(params=["in memory", "in files"])
def x(request, monkeypatch):
    """More rows than are taken at once; a row and a column without entries."""
    monkeypatch.setattr(matrices, "ROWS_AT_ONCE", 7)
    monkeypatch.setattr(matrices, "ENTRIES_AT_ONCE", 60)  # two parts together
    if request.param == "in files":
        monkeypatch.setattr(matrices, "IN_MEMORY", 0)
    dense = np.random.default_rng(0).random((40, 30)).astype(np.float32)
    dense[dense < 0.8] = 0
    dense[3], dense[:, 5] = 0, 0
    return sparse.csr_array(dense)


def test_stacked_parts_are_the_matrix(x):
    found = stacked(parts_of(x), x.shape[1], x.nnz + 9)
    assert found.indices.dtype == found.indptr.dtype == np.int32
    assert found.has_sorted_indices
    assert (found.toarray() == x.toarray()).all()


@pytest.mark.usefixtures("compiled_or_not")
def test_rows_become_columns(x):
    found = by_columns(x)
    assert found.indices.dtype == np.int32
    assert found.has_sorted_indices
    assert (found.toarray() == x.toarray().T).all()


def test_columns_are_counted_and_squares_added_up(x):
    dense = x.toarray()
    assert count_of(x).tolist() == (dense > 0).sum(0).tolist()
    for axis in 0, 1:
        assert np.allclose(squares(x, axis=axis), (dense.astype(np.float64) ** 2).sum(axis), rtol=1e-6)


def test_large_arrays_are_in_files_without_a_name(monkeypatch, tmp_path):
    monkeypatch.setenv("APLC_CACHE", str(tmp_path))
    monkeypatch.setattr(matrices, "IN_MEMORY", 100)
    large, small = room(1000, np.float32), room(25, np.float32)
    large[:] = 1
    assert large.sum() == 1000
    assert large.base is not None
    assert small.base is None
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_named(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setenv("APLC_CACHE", str(tmp_path))
    monkeypatch.setattr(matrices, "IN_MEMORY", 0)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="set APLC_CACHE"):
        room(1000, np.float32)
