"""Ridge regression of many labels on many words.

With X the documents' TF-IDF (N x V), Y their labels less each label's frequency (N x L) and r = words.ridge,

    (XX' + r I) A = Y,     W = X'A = (X'X + r I)^-1 X'Y.

Up to `words.limit` documents, one inverse matrix serves all labels. Beyond, its memory and time would be too much, and
conjugate gradients solve the same equations, preconditioned by F, the `words.limit` words of the largest sums of
squares, and a diagonal for the others, R. These seldom meet, so that XX' + r I is close to

    P = X_F X_F' + diag(q),     q = |x_R|^2 + r,
    P^-1 = diag(q)^-1/2 (I - S (I + S'S)^-1 S') diag(q)^-1/2,     S = diag(q)^-1/2 X_F,

and a few iterations are enough (bench/LOG.md).

Leave-one-out scores come for free: how a model fitted without a document would score it (but for the words' weights and
the labels' frequencies, which still know it). With y the document's row of Y and a its row of A,

    leave-one-out score = y - a / c,     c = diagonal of (XX' + r I)^-1,

and c is estimated as the mean of z * (XX' + r I)^-1 z over vectors z of random signs.

Shapes: N documents, V words (word pairs count as words here), F words of the largest sums of squares (D of them kept
dense, E sparse), R other words, L labels, C labels of a block, M documents with leave-one-out scores.
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
from aplc.console import Screen
from aplc.errors import RunError
from aplc.machine import free_bytes
from aplc.words.curves import Curves

LABELS_AT_ONCE, LARGEST = 512, 1 << 27
"""Labels solved for at a time; fewer where an array would have more elements."""
PANEL = 128
"""Columns that product.c takes at a time; a few more cost nearly as much again."""
INVERSE_BYTES = 8
"""Memory for each element of the matrix: itself and its factor, then that and the inverse."""
TOLERANCE, MOST_ITERATIONS = 0.1, 100
"""Conjugate gradients end where each label's residual is this share of it; leave-one-out scores need it so small."""
DENSE = 0.3
"""Words of more than this share of the documents are kept as a dense matrix, which is faster."""
FEW = 16
"""Words of at most so many documents are sorted behind the others."""
SIGNS = 512
"""Vectors of random signs in the estimate of the diagonal (Hutchinson)."""

Floats = NDArray[np.floating]


def solve(
    x_NV: sparse.csr_array,
    y_NL: sparse.csr_array,
    learn_from: NDArray[np.int64],
    *,
    limit: int,
    ridge: float,
    prune: float,
    screen: Screen,
) -> tuple[sparse.csr_array, Floats, Curves]:
    """Weights (V x L) without the small ones, each label's share of the documents (L,), and scores for the curves."""
    n_documents, n_labels = y_NL.shape
    size = equations(x_NV.shape, limit)
    available = free_bytes()
    if (need := INVERSE_BYTES * size**2) > available:
        raise RunError(
            f"ridge regression with {size:,} equations needs {need / 1e9:.1f} GB, {available / 1e9:.1f} GB are free; "
            f"invert fewer, e.g. --set words.limit={max(1, int((max(0, available) / INVERSE_BYTES / 2) ** 0.5))}"
        )
    mean_L = np.asarray(y_NL.sum(axis=0), dtype=np.float32).ravel() / n_documents
    x_VN, y_NL = Product(x_NV.T.tocsr()), y_NL.tocsc()
    block, curves, columns = block_size(x_NV.shape), Curves(len(learn_from)), []
    with screen.bar("solving", n_labels, unit="labels") as advance:
        inverse = Direct(x_NV, ridge) if size == n_documents else Conjugate(x_NV, size, ridge)
        c_M1 = _bounded(inverse.diagonal(block).numpy(), x_NV, ridge)[learn_from]
        for start in range(0, n_labels, block):
            y_NC = y_NL[:, start : start + block].toarray(order="C")
            hit_MC = y_NC[learn_from] > 0
            a_NC = inverse(torch.from_numpy(y_NC - mean_L[start : start + block]))
            curves.add(start, hit_MC - a_NC[learn_from].numpy() / c_M1, hit_MC)
            columns.append(large(x_VN(a_NC).numpy(), prune).tocsc())  # as CSR, each block would count all words
            advance(y_NC.shape[1])
    return sparse.hstack(columns, format="csc").tocsr(), mean_L, curves


def leave_one_out(x_NV: sparse.csr_array, y_NL: sparse.csr_array, ridge: float) -> Curves:
    """Leave-one-out scores of all documents, where these are few enough for one inverse."""
    n_documents, n_labels = y_NL.shape
    mean_L = np.asarray(y_NL.sum(axis=0), dtype=np.float32).ravel() / n_documents
    inverse, curves, y_NL = Direct(x_NV, ridge), Curves(n_documents), y_NL.tocsc()
    c_N1 = _bounded(inverse.diagonal(LABELS_AT_ONCE).numpy(), x_NV, ridge)
    for start in range(0, n_labels, LABELS_AT_ONCE):
        y_NC = y_NL[:, start : start + LABELS_AT_ONCE].toarray(order="C")
        a_NC = inverse(torch.from_numpy(y_NC - mean_L[start : start + LABELS_AT_ONCE]))
        curves.add(start, (y_NC > 0) - a_NC.numpy() / c_N1, y_NC > 0)
    return curves


def _bounded(c_N: Floats, x_NV: sparse.csr_array, ridge: float) -> Floats:
    """The diagonal of (XX' + r I)^-1, (N, 1), within what it can be: an estimate may be off."""
    square_N = np.asarray((x_NV**2).sum(axis=1)).ravel()
    return np.clip(c_N, 1 / (square_N + ridge), 1 / ridge).astype(np.float32)[:, None]


def block_size(shape: tuple[int, int]) -> int:
    size = max(1, min(LABELS_AT_ONCE, LARGEST // max(shape)))
    return size if size < PANEL else size // PANEL * PANEL


def equations(shape: tuple[int, int], limit: int) -> int:
    """Rows of the matrix to invert: one a document, or one a frequent word."""
    n_documents, n_words = shape
    return n_documents if n_documents <= limit else min(n_words, limit)


class Direct:
    """(XX' + r I)^-1, itself."""

    def __init__(self, x_NV: sparse.csr_array, ridge: float) -> None:
        self.inverse_NN = _inverse(x_NV, x_NV.T.tocsr(), ridge)

    def __call__(self, y_NC: Tensor) -> Tensor:
        return self.inverse_NN @ y_NC

    def diagonal(self, _block: int) -> Tensor:
        return self.inverse_NN.diagonal()


class Conjugate:
    """(XX' + r I)^-1, by conjugate gradients. XX' + r I is P and X_R X_R' without its diagonal."""

    def __init__(self, x_NV: sparse.csr_array, size: int, ridge: float) -> None:
        self.ridge = ridge
        count_V = np.bincount(x_NV.indices, minlength=x_NV.shape[1])
        order_V = np.argsort(-np.bincount(x_NV.indices, x_NV.data**2, minlength=x_NV.shape[1]), kind="stable")
        order_V[:size] = order_V[:size][np.argsort(-count_V[order_V[:size]], kind="stable")]  # the dense ones first
        first_V = np.zeros(x_NV.shape[1], dtype=np.int64)
        first_V[x_NV.indices[::-1]] = np.repeat(np.arange(x_NV.shape[0]), np.diff(x_NV.indptr))[::-1]
        others_R = order_V[size:]  # neighbours share documents, so that a product asks for less memory
        x_NR = x_NV[:, others_R[np.lexsort((first_V[others_R], count_V[others_R] <= FEW))]]
        x_NR.sort_indices()
        self.others_N1 = torch.from_numpy((x_NR**2).sum(axis=1).astype(np.float32))[:, None]
        self.root_N1 = (self.others_N1 + ridge).sqrt()
        s_NF = sparse.csr_array(x_NV[:, order_V[:size]] / self.root_N1.numpy())
        self.inverse_FF = _inverse(s_NF.T.tocsr(), s_NF, 1.0)
        self.n_dense = int((count_V[order_V[:size]] > DENSE * x_NV.shape[0]).sum())
        self.s_ND, s_NE = torch.from_numpy(s_NF[:, : self.n_dense].toarray()), s_NF[:, self.n_dense :]
        self.s_NE, self.s_EN = Product(s_NE), Product(s_NE.T.tocsr())
        self.x_NR, self.x_RN = Product(x_NR), Product(x_NR.T.tocsr())

    def __call__(self, y_NC: Tensor) -> Tensor:
        rest_NC, p_step_NC, a_NC = y_NC.clone(), y_NC.clone(), torch.zeros_like(y_NC)  # p_step is P times step
        near_NC, room_NC = torch.empty_like(y_NC), torch.empty_like(y_NC)  # new ones at each iteration would cost more

        def dot(one_NC: Tensor, other_NC: Tensor) -> Tensor:
            return torch.mul(one_NC, other_NC, out=room_NC).sum(0)

        enough_C = TOLERANCE**2 * dot(rest_NC, rest_NC)
        step_NC = self._nearly(rest_NC, near_NC).clone()
        rho_C = dot(rest_NC, step_NC)
        for _ in range(MOST_ITERATIONS):
            image_NC = self.x_NR(self.x_RN(step_NC)).add_(p_step_NC).addcmul_(step_NC, self.others_N1, value=-1)
            length_C = _ratio(rho_C, dot(step_NC, image_NC))
            a_NC.addcmul_(step_NC, length_C)
            rest_NC.addcmul_(image_NC, length_C, value=-1)
            if bool((dot(rest_NC, rest_NC) <= enough_C).all()):
                return a_NC
            self._nearly(rest_NC, near_NC)
            before_C, rho_C = rho_C, dot(rest_NC, near_NC)
            more_C = _ratio(rho_C, before_C)
            step_NC.mul_(more_C).add_(near_NC)
            p_step_NC.mul_(more_C).add_(rest_NC)
        raise RunError(
            f"ridge regression does not converge in {MOST_ITERATIONS} iterations; raise words.limit, or words.ridge, "
            f"e.g. --set words.ridge={4 * self.ridge:g}"
        )

    def _nearly(self, y_NC: Tensor, out_NC: Tensor) -> Tensor:
        """P^-1 y."""
        torch.div(y_NC, self.root_N1, out=out_NC)
        inner_FC = self.inverse_FF @ torch.cat([self.s_ND.T @ out_NC, self.s_EN(out_NC)])
        out_NC.addmm_(self.s_ND, inner_FC[: self.n_dense], alpha=-1)
        return out_NC.sub_(self.s_NE(inner_FC[self.n_dense :])).div_(self.root_N1)

    def diagonal(self, block: int) -> Tensor:
        """Estimated, `block` random signs at a time."""
        generator, sum_N = torch.Generator().manual_seed(0), torch.zeros(len(self.root_N1))
        for start in range(0, SIGNS, block):
            size = (len(sum_N), min(block, SIGNS - start))
            sign_NC = torch.empty(size).bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
            sum_N += (sign_NC * self(sign_NC)).sum(1)
        return sum_N / SIGNS


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
    for start in range(0, size, LABELS_AT_ONCE):
        gram[start : start + LABELS_AT_ONCE] = torch.from_numpy((x_SR[start : start + LABELS_AT_ONCE] @ x_RS).toarray())
    gram.diagonal().add_(diagonal)
    factor, failed = torch.linalg.cholesky_ex(gram)
    del gram  # twice its memory is enough
    if failed:
        raise RunError("words.ridge is too small for these documents; try --set words.ridge=0.1")
    return torch.cholesky_inverse(factor)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """Zero where a label is solved exactly."""
    return torch.where(below > 0, above / below, 0)
