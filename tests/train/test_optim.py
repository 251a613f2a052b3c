"""Guards Equation 15 and the three learning rates."""

import pytest

from aplc.train.optim import slanted_triangular


@pytest.mark.parametrize(
    ("step", "warmup", "total", "factor"),
    [
        (0, 0, 10, 1.0),
        (5, 0, 10, 0.5),
        (9, 0, 10, 0.1),
        (10, 0, 10, 0.0),
        (1, 4, 10, 0.25),
        (4, 4, 10, 1.0),
        (7, 4, 10, 0.5),
    ],
)
def test_schedule_equals_equation_15(step, warmup, total, factor):
    assert slanted_triangular(step, warmup=warmup, total=total) == pytest.approx(factor)
