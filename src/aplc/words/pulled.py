"""Logistic regression that is pulled towards what is known already.

    logit = offset + x theta,     theta small

With few examples theta stays near zero, and the answer is the offset.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

Floats = NDArray[np.floating]


def regress(x_NC: Floats, hit_N: NDArray[np.bool_], *, offset: Floats, penalty: float) -> Floats:
    """theta, (C,). `penalty` is of its squares, for columns whose root mean square is 1."""
    scale_C = np.maximum(np.sqrt((x_NC**2).mean(0)), 1e-12)
    x_NC, hit, offset = x_NC / scale_C, hit_N.astype(np.float64), offset.astype(np.float64)

    def loss(theta: Floats) -> tuple[float, Floats]:
        logit = offset + x_NC @ theta
        value = np.logaddexp(0, logit).sum() - logit @ hit + penalty / 2 * theta @ theta
        return value, (expit(logit) - hit) @ x_NC + penalty * theta

    def curvature(theta: Floats) -> Floats:
        p = expit(offset + x_NC @ theta)
        return (x_NC * (p * (1 - p))[:, None]).T @ x_NC + penalty * np.eye(len(scale_C))

    return minimize(loss, np.zeros(len(scale_C)), jac=True, hess=curvature, method="trust-exact").x / scale_C
