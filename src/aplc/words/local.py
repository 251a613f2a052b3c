"""Ridge regression of rare labels: what a label of few documents needs of the others, and no more.

Of the equations (XX' + r I) a = y (`ridge.py`) the frequent words F tie all documents together; rare words R tie a
document to a few others. So for a label of few documents, R is taken into account among its *neighbourhood* J alone:
its own documents and the `NEIGHBOURS` that share most of R with them, found by their rarest words.

First F is solved for over all documents, with R counting by its diagonal only:

    P a = y,     P = X_F X_F' + diag(q),     q = |x_R|^2 + r,
    P^-1 y = (y - X_F u) / q,     u = (I + S'S)^-1 S' y / q^1/2,     S = diag(q)^-1/2 X_F,

where u = X_F' P^-1 y are the weights of F. A label's own documents have few of F's words, so that most of the inverse
matrix is not even read. The residual is then -O a, where O is X_J X_J' over the words R without its diagonal, and zero
outside J. In J, R is solved for, while F keeps its weights:

    (diag(q) + O) c = -O a,     a + c instead of a,

by conjugate gradients over some hundred documents. So the cost of a label does not depend on how many documents there
are. The price is what R says of documents outside J (on TIBKAT's records 0.1 of a point with 100 neighbours, nothing
with 300), and what c would change of F's weights: nothing that a metric shows, for half of the time (bench/LOG.md).

Scores for the curves are those of documents left out for good: they are nobody's neighbours, and labels that some of
them have are solved for a second time without. What F still knows of such a document i, as one without the label, is
taken out of its score: X_F u there is divided by 1 - h, h = s'(I + S'S)^-1 s with s its row of S. (Leave-one-out scores
y - a / c made rare labels look too good: neighbourhoods of a label and of its documents alone are not the same.)

Shapes: N documents, F and R words, C labels of a block, J documents of their neighbourhoods, one after the other, M
left-out documents.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aplc import native
from aplc.words.systems import Conjugate, Product

NEIGHBOURS = 300
"""Documents of a neighbourhood beside the label's own."""
REACH = 1 << 15
"""Documents' entries by which a label's neighbours are found, those of the rarest words first. In a large corpus words
of R have thousands of documents; looking at all of them took half of the time and changed nothing (bench/LOG.md)."""

Floats = NDArray[np.floating]


class Answer(NamedTuple):
    """Of a block of labels; zeros of `a` outside the neighbourhoods stand for what F alone says."""

    a_CN: sparse.csr_array
    change_CN: sparse.csr_array
    """c: what solving for R has added to a."""
    weight_CF: Floats


class Neighbourhoods(NamedTuple):
    """J of a block of labels, one after the other."""

    start: NDArray[np.int64]
    """A label's documents are those from here to where the next label's begin, its own first."""
    document: NDArray[np.int32]


class Local:
    """Answers for labels of few documents."""

    def __init__(self, system: Conjugate) -> None:
        self.x_NR, self.x_RN, self.s_NF = system.x_NR.x, system.x_RN.x, system.s_NF
        self.inverse_FF, self.root_N = system.inverse_FF, system.root_N1.numpy().ravel()
        self.q_N = self.root_N**2

    def neighbourhoods(self, own_CN: sparse.csr_array, may_N: NDArray[np.bool_]) -> Neighbourhoods:
        """J of some labels."""
        choose = choose_slowly if native.library() is None else native.choose
        return Neighbourhoods(*choose(self.x_NR, self.x_RN, own_CN, may_N, NEIGHBOURS, REACH))

    def answer(
        self, own_CN: sparse.csr_array, may_N: NDArray[np.bool_], tolerance: float, most_iterations: int
    ) -> Answer | None:
        """Solve for labels by their own documents. None if iterations do not suffice.

        `may_N` says which documents may become neighbours.
        """
        near = self.neighbourhoods(own_CN, may_N)
        n_own_C = np.diff(own_CN.indptr)
        first_J, weight_CF = self._first(near, own_CN, n_own_C)
        enough_C = (tolerance**2 * n_own_C).astype(np.float32)
        settle = settle_slowly if native.library() is None else native.settle
        a_J, solved_C = settle(self.x_NR, *near, self.q_N, enough_C, first_J, most_iterations)
        a_CN, change_CN = (
            sparse.csr_array((value_J, near.document, near.start), shape=own_CN.shape)
            for value_J in (a_J, a_J - first_J)
        )
        return Answer(a_CN, change_CN, weight_CF) if solved_C.all() else None

    def own_part(self, own_CN: sparse.csr_array, found: Answer) -> Floats:
        """y'K^-1 y of each label, K = P + O in J, as f'y - f'O a with f = P^-1 y: of our a, O a is -q c."""
        first_CN = found.a_CN - found.change_CN
        change_CN = found.change_CN.copy()
        change_CN.data *= self.q_N[change_CN.indices]
        return (first_CN * (own_CN + change_CN)).sum(axis=1)

    def _first(
        self, near: Neighbourhoods, own_CN: sparse.csr_array, n_own_C: NDArray[np.int64]
    ) -> tuple[Floats, Floats]:
        """P^-1 y in J, and the weights of F."""
        scaled_CN = sparse.csr_array((1 / self.root_N[own_CN.indices], own_CN.indices, own_CN.indptr), own_CN.shape)
        weight_CF = Product(sparse.csr_array(scaled_CN @ self.s_NF))(self.inverse_FF).numpy()
        spread = spread_slowly if native.library() is None else native.spread
        size_C, root_J = np.diff(near.start), self.root_N[near.document]
        is_own_J = np.arange(len(near.document)) < np.repeat(near.start[:-1] + n_own_C, size_C)
        return (is_own_J / root_J - spread(self.s_NF, *near, weight_CF)) / root_J, weight_CF

    def leverage(self, document_M: NDArray[np.int64]) -> Floats:
        """h of some documents."""
        s_MF = self.s_NF[document_M]
        return np.asarray((s_MF * Product(s_MF)(self.inverse_FF).numpy()).sum(axis=1), dtype=np.float32).ravel()


def choose_slowly(
    x_NR: sparse.csr_array,
    x_RN: sparse.csr_array,
    own_CN: sparse.csr_array,
    may_N: NDArray[np.bool_],
    most: int,
    reach: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """`native.choose` by SciPy, a label at a time."""
    chosen, entries_R = [], np.diff(x_RN.indptr)
    for label in range(own_CN.shape[0]):
        own = own_CN.indices[own_CN.indptr[label] : own_CN.indptr[label + 1]]
        sum_1R = (own_CN[[label]] @ x_NR).tocsr()
        word = np.unique(sum_1R.indices[sum_1R.data > 0])
        word = word[np.argsort(entries_R[word], kind="stable")]
        looked_at = np.cumsum(entries_R[word]) <= reach
        looked_at[:1] = True
        word = np.sort(word[looked_at])
        shared_N = np.asarray((sum_1R[:, word] @ x_RN[word]).toarray()).ravel()
        shared_N[own] = 0
        shared_N[~may_N] = 0
        order = np.argsort(-shared_N, kind="stable")[:most]
        chosen.append(np.concatenate([own, np.sort(order[shared_N[order] > 0])]))
    return np.cumsum([0, *map(len, chosen)]), np.concatenate(chosen).astype(np.int32)


def spread_slowly(
    x: sparse.csr_array, start: NDArray[np.int64], document: NDArray[np.int32], value_CF: Floats
) -> Floats:
    """`native.spread` by SciPy, a label at a time."""
    spans = (slice(*ends) for ends in pairwise(start))
    return np.concatenate([x[document[span]] @ value_F for span, value_F in zip(spans, value_CF, strict=True)])


def settle_slowly(
    x: sparse.csr_array,
    start: NDArray[np.int64],
    document: NDArray[np.int32],
    q_N: Floats,
    enough_C: Floats,
    a_J: Floats,
    most: int,
) -> tuple[Floats, NDArray[np.bool_]]:
    """`native.settle` by SciPy, a label at a time."""
    parts, solved = [], np.zeros(len(start) - 1, dtype=bool)
    for label, span in enumerate(slice(*ends) for ends in pairwise(start)):
        rows, q, a = x[document[span]], q_N[document[span]], a_J[span].copy()
        square = np.asarray(rows.power(2).sum(axis=1)).ravel()
        residual, direction, before = -(rows @ (rows.T @ a) - square * a), np.zeros_like(a), 0.0
        for _ in range(most + 1):
            if residual @ residual <= enough_C[label]:
                solved[label] = True
                break
            rho = residual @ (residual / q)
            direction = residual / q + (rho / before * direction if before else 0)
            product = rows @ (rows.T @ direction) + (q - square) * direction
            alpha = rho / (direction @ product)
            a, residual, before = a + alpha * direction, residual - alpha * product, rho
        parts.append(a)
    return np.concatenate(parts), solved
