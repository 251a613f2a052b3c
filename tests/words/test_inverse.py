"""The inverse by halves is the inverse, at sizes that are cut once, twice, unevenly and not at all."""

import numpy as np
import pytest
import torch

from aplc.errors import RunError
from aplc.words import inverse


def positive_definite(size: int) -> torch.Tensor:
    x = torch.from_numpy(np.random.default_rng(size).normal(size=(size, size // 2 + 1)))
    return (x @ x.T / size + torch.eye(size)).float()


@pytest.mark.parametrize("size", [1, 7, 8, 9, 21, 64])
def test_inverse_by_halves_matches_numpy(size, monkeypatch):
    monkeypatch.setattr(inverse, "AT_ONCE", 8)
    monkeypatch.setattr(inverse, "ROWS", 5)
    matrix = positive_definite(size)
    made = matrix.clone()
    inverse.invert(made)
    np.testing.assert_allclose(made, np.linalg.inv(matrix.double().numpy()), atol=2e-6)


def test_a_matrix_that_is_not_positive_definite_is_refused(monkeypatch):
    monkeypatch.setattr(inverse, "AT_ONCE", 2)
    with pytest.raises(RunError, match=r"words\.ridge is too small"):
        inverse.invert(-torch.eye(5))
