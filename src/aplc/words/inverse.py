"""The inverse of a large symmetric, positive definite matrix, by halves.

A symmetric matrix of four quarters P, Q, Q' and R has the inverse

    [ P^-1 + U T'   -U   ]     T = P^-1 Q,     S = R - Q' T,     U = T S^-1,
    [ -U'           S^-1 ]

with P^-1 and S^-1 made in the same way, down to matrices that LAPACK inverts at once. All the rest is products, which
several processes share out by blocks of rows; LAPACK's own inverse can't be shared out, and with one process takes as
long (bench/LOG.md). Blocks do not depend on the number of processes, so that the bits of the result don't either.
"""

import torch
from torch import Tensor

from aplc.errors import RunError
from aplc.nn.distributed import world
from aplc.words.blocks import shared_out

AT_ONCE = 2_048
"""Rows of a matrix that is inverted by LAPACK."""
ROWS = 1_024
"""Of a block of a product."""


def invert(a_SS: Tensor) -> None:
    """Put the inverse in the matrix' place. Beside it, three quarters of its memory are needed."""
    if len(a_SS) <= AT_ONCE:
        factor_SS, failed = torch.linalg.cholesky_ex(a_SS)
        if failed:
            raise RunError("words.ridge is too small for these documents; try --set words.ridge=0.1")
        a_SS.copy_(torch.cholesky_inverse(factor_SS))
        return
    half = len(a_SS) // 2
    p, q, r = a_SS[:half, :half], a_SS[:half, half:], a_SS[half:, half:]
    invert(p)
    t = _product(p, q)
    r -= _product(q.T, t)
    invert(r)
    u = _product(t, r)
    a_SS[:half, half:], a_SS[half:, :half] = -u, -u.T
    p += _product(u, t.T)


def _product(x: Tensor, y: Tensor) -> Tensor:
    """x @ y, of which each process makes some of the rows."""
    made = x.new_zeros(x.shape[0], y.shape[1])
    for start in ROWS * shared_out(-(-len(x) // ROWS)):
        torch.matmul(x[start : start + ROWS], y, out=made[start : start + ROWS])
    return world().sum(made)
