"""The equations (XX' + r I) A = Y of ridge regression (`ridge.py`), by one inverse or by conjugate gradients.

Shapes: N documents, V words (word pairs count as words here), F words of the largest sums of squares (D of them kept
dense, E sparse), R other words, C labels of a block.
"""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from aplc import native
from aplc.errors import RunError
from aplc.words.matrices import by_columns, count_of, parts_of, squares, stacked

TOLERANCE, MOST_ITERATIONS = 0.1, 100
"""Conjugate gradients end where each label's residual is this share of it; leave-one-out scores need it so small."""
ROWS_AT_ONCE = 512
"""Of a matrix that is made."""
DENSE = 0.3
"""Words of more than this share of the documents are kept as a dense matrix, which is faster."""
FEW = 16
"""Words of at most so many documents are sorted behind the others."""

Floats = NDArray[np.floating]


class Direct:
    """(XX' + r I)^-1, itself."""

    def __init__(self, x_NV: sparse.csr_array, ridge: float) -> None:
        self.x_VN = Product(x_NV.T.tocsr())
        self.inverse_NN = _inverse(x_NV, self.x_VN.x, ridge)
        self.ones_N, self.a_NC = self.inverse_NN.sum(1), self.inverse_NN.new_empty(0, 0)

    def __call__(self, y_NC: Tensor, tolerance: float | None = None) -> Tensor:  # exact, whatever is asked for
        return self.inverse_NN @ y_NC

    def answer(self, y_CN: sparse.csr_array, mean_C: Floats) -> Tensor:
        """A (N x C) of labels less their means. Y is sparse: most of the inverse is not even read."""
        a_CN = Product(y_CN)(self.inverse_NN).addr_(torch.from_numpy(mean_C), self.ones_N, alpha=-1)
        if self.a_NC.shape != a_CN.T.shape:
            self.a_NC = a_CN.new_empty(a_CN.T.shape)
        return self.a_NC.copy_(a_CN.T)  # new memory would take longer than the copy

    def weights(self, a_NC: Tensor, least: float) -> sparse.csr_array:
        """X'A (C x V), without what is smaller than `least`."""
        return large(self.x_VN(a_NC).numpy(), least).T.tocsr()

    @property
    def diagonal(self) -> Floats:
        return self.inverse_NN.diagonal().numpy()


class Conjugate:
    """(XX' + r I)^-1, by conjugate gradients. XX' + r I is P and X_R X_R' without its diagonal.

    `order_V` says which words F and R are, one after the other.
    """

    def __init__(self, x_NV: sparse.csr_array, size: int, ridge: float) -> None:
        self.ridge = ridge
        count_V = count_of(x_NV)
        order_V = np.argsort(-squares(x_NV, axis=0), kind="stable")
        order_V[:size] = order_V[:size][np.argsort(-count_V[order_V[:size]], kind="stable")]  # the dense ones first
        others_R = order_V[size:]  # neighbours share documents, so that a product asks for less memory
        order_V[size:] = others_R[np.lexsort((_first_rows(x_NV)[others_R], count_V[others_R] <= FEW))]
        x_NR = _columns(x_NV, order_V[size:], count_V)
        self.others_N1 = torch.from_numpy(squares(x_NR, axis=1))[:, None]
        self.root_N1 = (self.others_N1 + ridge).sqrt()
        self.size, self.order_V = size, order_V
        s_NF = self.s_NF = _columns(x_NV, order_V[:size], count_V)
        s_NF.data /= np.repeat(self.root_N1.numpy(), np.diff(s_NF.indptr))
        s_FN = by_columns(s_NF)
        self.inverse_FF = _inverse(s_FN, s_NF, 1.0)
        self.n_dense = int((count_V[order_V[:size]] > DENSE * x_NV.shape[0]).sum())
        self.s_ND, s_EN = torch.from_numpy(s_NF[:, : self.n_dense].toarray()), s_FN[self.n_dense :]
        self.s_NE, self.s_EN = Product(by_columns(s_EN)), Product(s_EN)
        self.x_NR, self.x_RN = Product(x_NR), Product(by_columns(x_NR))

    def answer(self, y_CN: sparse.csr_array, mean_C: Floats) -> Tensor:
        """A (N x C) of labels less their means."""
        return self(torch.from_numpy(np.ascontiguousarray(y_CN.T.toarray() - mean_C)))

    def weights(self, a_NC: Tensor, least: float) -> sparse.csr_array:
        """X'A (C x V), without what is smaller than `least`."""
        scaled_NC = a_NC * self.root_N1  # X_F is S times the root
        parts = self.s_ND.T @ scaled_NC, self.s_EN(scaled_NC), self.x_RN(a_NC)
        return self.in_order(sparse.vstack([large(part.numpy(), least) for part in parts]).T.tocsr())

    def in_order(self, weight_CV: sparse.csr_array) -> sparse.csr_array:
        """Weights of F and R as those of X's words."""
        word = self.order_V[weight_CV.indices].astype(weight_CV.indptr.dtype)
        weight_CV = sparse.csr_array((weight_CV.data, word, weight_CV.indptr), shape=weight_CV.shape)
        weight_CV.sort_indices()
        return weight_CV

    def __call__(self, y_NC: Tensor, tolerance: float | None = None) -> Tensor:
        a_NC, residual_NC = torch.zeros_like(y_NC), y_NC.clone()
        p_direction_NC = y_NC.clone()  # P times direction; z is P^-1 times residual
        z_NC, room_NC = torch.empty_like(y_NC), torch.empty_like(y_NC)  # new ones at each iteration would cost more

        def dot(one_NC: Tensor, other_NC: Tensor) -> Tensor:
            return torch.mul(one_NC, other_NC, out=room_NC).sum(0)

        enough_C = (tolerance or TOLERANCE) ** 2 * dot(residual_NC, residual_NC)
        direction_NC = self._precondition(residual_NC, z_NC).clone()
        rho_C = dot(residual_NC, direction_NC)
        for _ in range(MOST_ITERATIONS):
            product_NC = self.x_NR(self.x_RN(direction_NC)).add_(p_direction_NC)
            product_NC.addcmul_(direction_NC, self.others_N1, value=-1)
            alpha_C = _ratio(rho_C, dot(direction_NC, product_NC))
            a_NC.addcmul_(direction_NC, alpha_C)
            residual_NC.addcmul_(product_NC, alpha_C, value=-1)
            if bool((dot(residual_NC, residual_NC) <= enough_C).all()):
                return a_NC
            self._precondition(residual_NC, z_NC)
            before_C, rho_C = rho_C, dot(residual_NC, z_NC)
            beta_C = _ratio(rho_C, before_C)
            direction_NC.mul_(beta_C).add_(z_NC)
            p_direction_NC.mul_(beta_C).add_(residual_NC)
        raise self.not_converged()

    def not_converged(self) -> RunError:
        return RunError(
            f"ridge regression does not converge in {MOST_ITERATIONS} iterations; raise words.limit, or words.ridge, "
            f"e.g. --set words.ridge={4 * self.ridge:g}"
        )

    def _precondition(self, y_NC: Tensor, out_NC: Tensor) -> Tensor:
        """P^-1 y."""
        torch.div(y_NC, self.root_N1, out=out_NC)
        inner_FC = self.inverse_FF @ torch.cat([self.s_ND.T @ out_NC, self.s_EN(out_NC)])
        out_NC.addmm_(self.s_ND, inner_FC[: self.n_dense], alpha=-1)
        return out_NC.sub_(self.s_NE(inner_FC[self.n_dense :])).div_(self.root_N1)


class Product:
    """A sparse matrix, to be multiplied with dense ones on all cores: by product.c, or by SciPy.

    The next product takes the memory of the one before: new memory costs as much as multiplying.
    """

    def __init__(self, x: sparse.csr_array) -> None:
        self.x, self.out = x, torch.empty(x.shape[0], 0)
        cuts = np.searchsorted(x.indptr, np.linspace(0, x.nnz, torch.get_num_threads() + 1)[1:-1])
        self.spans = list(pairwise([0, *cuts.tolist(), x.shape[0]]))

    def __call__(self, dense: Tensor) -> Tensor:
        dense = dense.contiguous()  # or SciPy copies it, once for each part
        if self.out.shape[1] != dense.shape[1]:
            self.out = dense.new_empty(len(self.out), dense.shape[1])
        if native.library() is not None:
            native.product(self.x, dense, self.out)
            return self.out

        def multiply(span: tuple[int, int]) -> None:
            self.out.numpy()[slice(*span)] = self.x[slice(*span)] @ dense.numpy()

        list(_threads().map(multiply, self.spans))
        return self.out


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(torch.get_num_threads())


def cross(x: sparse.csr_array, y: sparse.csr_array) -> Floats:
    """x @ y as a dense matrix."""
    return (x @ y).toarray() if native.library() is None else native.cross(x, y)


def collect(
    a_CN: sparse.csr_array, x_NR: sparse.csr_array, mean_C: Floats, ones_R: Floats, least: float
) -> sparse.csr_array:
    """a @ x less the outer product of `mean_C` and `ones_R`, without what is smaller than `least`."""
    if native.library() is not None:
        return native.collect(a_CN, x_NR, mean_C, ones_R, least)
    weight_CR = sparse.csr_array(a_CN @ x_NR)
    weight_CR.data -= np.repeat(mean_C, np.diff(weight_CR.indptr)) * ones_R[weight_CR.indices]
    weight_CR.data[np.abs(weight_CR.data) < least] = 0
    if least:
        weight_CR.eliminate_zeros()
    return weight_CR


def large(weight_VC: Floats, least: float) -> sparse.csr_array:
    """The weights of at least `least`."""
    n_words, n_labels = weight_VC.shape
    place = np.flatnonzero((weight_VC >= least) | (weight_VC <= -least))  # np.abs would double the memory
    ends = np.searchsorted(place, np.arange(n_words + 1) * n_labels)
    return sparse.csr_array((weight_VC.ravel()[place], place % n_labels, ends), shape=weight_VC.shape)


def _inverse(x_SR: sparse.csr_array, x_RS: sparse.csr_array, diagonal: float) -> Tensor:
    """(X X' + diagonal I)^-1, (S, S); the product in blocks, because as a sparse matrix it is larger."""
    size = x_SR.shape[0]
    gram = torch.empty(size, size)
    for start in range(0, size, ROWS_AT_ONCE):
        gram[start : start + ROWS_AT_ONCE] = torch.from_numpy(cross(x_SR[start : start + ROWS_AT_ONCE], x_RS))
    gram.diagonal().add_(diagonal)
    factor, failed = torch.linalg.cholesky_ex(gram)
    del gram  # twice its memory is enough
    if failed:
        raise RunError("words.ridge is too small for these documents; try --set words.ridge=0.1")
    return torch.cholesky_inverse(factor).T.contiguous()  # symmetric, and by columns: this copies nothing


def _columns(x: sparse.csr_array, column: NDArray[np.int64], count: NDArray[np.int64]) -> sparse.csr_array:
    """Some columns of x, of which each has `count` entries, in this order."""
    return stacked((part[:, column] for part in parts_of(x)), len(column), int(count[column].sum()))


def _first_rows(x: sparse.csr_array) -> NDArray[np.int64]:
    """The first row that has each column."""
    first, n_rows = np.full(x.shape[1], x.shape[0], dtype=np.int64), 0
    for part in parts_of(x):
        row = n_rows + np.repeat(np.arange(part.shape[0]), np.diff(part.indptr))
        np.minimum.at(first, part.indices, row)
        n_rows += part.shape[0]
    return first


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """Zero where a label is solved exactly."""
    return torch.where(below > 0, above / below, 0)
