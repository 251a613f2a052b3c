"""Guards the compiled sparse product: the same as SciPy's for every shape and number of threads."""

import numpy as np
import pytest
import torch
from scipy import sparse

from aplc import native
from aplc.words.systems import Product


def draw(n_rows, n_inner, density):
    return sparse.random_array((n_rows, n_inner), density=density, format="csr", dtype=np.float32, rng=n_rows)


@pytest.mark.parametrize("width", [1, 7, 32, 33, 128, 150])
@pytest.mark.parametrize(("n_rows", "n_inner"), [(1, 1), (200, 30), (30, 400), (0, 5), (5, 0)])
@pytest.mark.usefixtures("compiled_or_not")
def test_product_is_that_of_dense_matrices(n_rows, n_inner, width):
    x = draw(n_rows, n_inner, 0.1)
    dense = torch.randn(n_inner, width, generator=torch.Generator().manual_seed(0))
    expected = x.toarray().astype(np.float64) @ dense.double().numpy()
    assert np.allclose(Product(x)(dense).numpy(), expected, atol=1e-5)
    wide = torch.randn(width, n_inner, generator=torch.Generator().manual_seed(0))
    assert np.allclose(Product(x)(wide.t()).numpy(), x.toarray() @ wide.t().numpy(), atol=1e-5)


@pytest.mark.usefixtures("compiled_or_not")
def test_number_of_threads_changes_no_bit(threads, monkeypatch):
    monkeypatch.setattr(native, "LEAST_WORK", 1)
    x, dense = draw(500, 300, 0.05), torch.randn(300, 40, generator=torch.Generator().manual_seed(0))
    threads(1)
    alone = Product(x)(dense)
    threads(2)
    assert Product(x)(dense).equal(alone)


@pytest.mark.usefixtures("compiled_or_not")
def test_the_default_dtype_does_not_matter():
    x, dense = draw(20, 10, 0.5), torch.ones(10, 3)
    expected = Product(x)(dense)
    torch.set_default_dtype(torch.float64)
    try:
        assert Product(x)(dense).equal(expected)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.skipif(native.library() is None, reason="compiled code is not used: see aplc info")
def test_compiled_code_is_used(monkeypatch):
    calls, product = [], native.product
    monkeypatch.setattr(native, "product", lambda *given: calls.append(1) or product(*given))
    Product(draw(20, 10, 0.5))(torch.ones(10, 3))
    assert calls == [1]
    wrong = draw(20, 10, 0.5).astype(np.float64)
    with pytest.raises(ValueError, match="contiguous"):
        native.product(wrong, torch.ones(10, 3), torch.empty(20, 3))
    with pytest.raises(ValueError, match="contiguous"):
        native.product(draw(20, 10, 0.5), torch.ones(10, 3), torch.empty(19, 3))


@pytest.mark.usefixtures("compiled_or_not")
def test_memory_of_the_last_product_serves_the_next():
    x = draw(20, 10, 0.5)
    product = Product(x)
    first = product(torch.ones(10, 3))
    assert product(torch.full((10, 3), 2.0)).data_ptr() == first.data_ptr()
    assert np.allclose(first.numpy(), x.toarray().sum(axis=1, keepdims=True) * 2, atol=1e-5)
    assert product(torch.ones(10, 4)).shape == (20, 4)
