"""Ridge regression of rare labels: what a label of few documents needs of the others, and no more.

Of the equations (XX' + r I) a = y (`ridge.py`) the frequent words F tie all documents together; rare words R tie a
document to a few others. So for a label of few documents, R is taken into account among its *neighbourhood* J alone:
its own documents and the `NEIGHBOURS` that share most of R with them, found by their rarest words. For all others R
counts by its diagonal only:

    K = P + E O E',     P = X_F X_F' + diag(q),     O = X_J X_J' without its diagonal, in the words R,

where E puts the numbers of J among all documents. Conjugate gradients solve K a = y with P as the preconditioner. They
begin at P^-1 y, and from there on what is left of y is O times something: zero outside J. So every vector of an
iteration has as many numbers as J has documents, and one of F for what P^-1 does to the rest:

    P^-1 y = (y - X_F u) / q,     u = (I + S'S)^-1 S' y / q^1/2,     S = diag(q)^-1/2 X_F,

and the weights of F are X_F' P^-1 y = u. The cost of a label is a product with the inverse matrix of F at each of one
or two iterations, however many documents there are. (The first, P^-1 y, is nearly free: a label's own documents have
few of F's words.) The price is what R says of documents outside J: on TIBKAT's records 0.1 of a point with 100
neighbours, nothing with 300 (bench/LOG.md).

Scores for the curves are those of documents left out for good: they are nobody's neighbours, and labels that some of
them have are solved for a second time without. What F still knows of such a document i, as one without the label, is
taken out of its score: X_F u there is divided by 1 - h, h = s'(I + S'S)^-1 s with s its row of S. (Leave-one-out scores
y - a / c made rare labels look too good: neighbourhoods of a label and of its documents alone are not the same.)

Shapes: N documents, F and R words, C labels of a block, J documents of their neighbourhoods, one after the other, M
left-out documents.
"""

from abc import ABC, abstractmethod
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
import torch
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
    weight_CF: Floats


class Neighbourhoods(ABC):
    """J of a block of labels, and products with its documents' rows of X in the words R, and of S."""

    def __init__(
        self, x_NR: sparse.csr_array, s_NF: sparse.csr_array, start: NDArray[np.int64], document: NDArray[np.int32]
    ) -> None:
        self.x_NR, self.s_NF, self.start, self.document = x_NR, s_NF, start, document
        self.label = np.repeat(np.arange(len(start) - 1), np.diff(start))

    def only(self, on_C: NDArray[np.bool_], on_J: NDArray[np.bool_]) -> Self:
        """Those of some of the labels."""
        if on_C.all():
            return self
        start = np.concatenate([[0], np.cumsum(np.diff(self.start)[on_C])])
        return type(self)(self.x_NR, self.s_NF, start, self.document[on_J])

    def dot(self, one_J: Floats, other_J: Floats) -> Floats:
        """(C,): the product of each label's numbers."""
        return np.add.reduceat(one_J * other_J, self.start[:-1], dtype=np.float32)

    @abstractmethod
    def gather(self, value_J: Floats) -> Floats:
        """(C, F): the sum of a label's rows of S, times a number each."""

    @abstractmethod
    def spread(self, value_CF: Floats) -> Floats:
        """(J,): a document's row of S times its label's numbers."""

    @abstractmethod
    def meet(self, value_J: Floats) -> Floats:
        """(J,): X X' times a label's numbers."""


class Local:
    """Answers for labels of few documents."""

    def __init__(self, system: Conjugate) -> None:
        self.x_NR, self.x_RN, self.s_NF = system.x_NR.x, system.x_RN.x, system.s_NF
        self.inverse_FF, self.root_N = system.inverse_FF, system.root_N1.numpy().ravel()
        self.others_N = system.others_N1.numpy().ravel()

    def neighbourhoods(self, own_CN: sparse.csr_array, may_N: NDArray[np.bool_]) -> Neighbourhoods:
        """J of some labels."""
        slow = native.library() is None
        choose, kind = (choose_slowly, SlowNeighbourhoods) if slow else (native.choose, _Compiled)
        return kind(self.x_NR, self.s_NF, *choose(self.x_NR, self.x_RN, own_CN, may_N, NEIGHBOURS, REACH))

    def answer(
        self, own_CN: sparse.csr_array, may_N: NDArray[np.bool_], tolerance: float, most_iterations: int
    ) -> Answer | None:
        """Solve for labels by their own documents. None if iterations do not suffice.

        `may_N` says which documents may become neighbours.
        """
        near = self.neighbourhoods(own_CN, may_N)
        document, start = near.document, near.start
        y_J = _is_own(near, own_CN).astype(np.float32)
        a_J, weight_CF = self._first(near, y_J, own_CN)
        a_CN = sparse.csr_array((a_J, document, start), shape=own_CN.shape)
        rest_J, enough_C = -self._meet(near, a_J), tolerance**2 * near.dot(y_J, y_J)
        left_C = np.arange(own_CN.shape[0])  # labels that are not solved for yet
        left_J = np.arange(len(document))
        step_J, p_step_J, step_CF = np.zeros_like(a_J), np.zeros_like(a_J), np.zeros_like(weight_CF)
        before_C = np.zeros(len(left_C), dtype=np.float32)
        for _ in range(most_iterations + 1):
            on_C = near.dot(rest_J, rest_J) > enough_C[left_C]
            if not on_C.any():
                return Answer(a_CN, weight_CF)
            on_J = on_C[near.label]
            near, left_C, left_J = near.only(on_C, on_J), left_C[on_C], left_J[on_J]
            rest_J, step_J, p_step_J = rest_J[on_J], step_J[on_J], p_step_J[on_J]
            step_CF, before_C = step_CF[on_C], before_C[on_C]
            near_J, near_CF = self._nearly(near, rest_J)
            rho_C = near.dot(rest_J, near_J)
            more_C = _ratio(rho_C, before_C)
            step_J, p_step_J = near_J + more_C[near.label] * step_J, rest_J + more_C[near.label] * p_step_J
            step_CF = near_CF + more_C[:, None] * step_CF
            image_J = p_step_J + self._meet(near, step_J)
            length_C = _ratio(rho_C, near.dot(step_J, image_J))
            a_CN.data[left_J] += length_C[near.label] * step_J
            weight_CF[left_C] += length_C[:, None] * step_CF
            rest_J, before_C = rest_J - length_C[near.label] * image_J, rho_C
        return None

    def _first(self, near: Neighbourhoods, y_J: Floats, own_CN: sparse.csr_array) -> tuple[Floats, Floats]:
        """P^-1 y, as `_nearly`. A label's own documents have few of F's words: most of the inverse is not read."""
        scaled_CN = sparse.csr_array((1 / self.root_N[own_CN.indices], own_CN.indices, own_CN.indptr), own_CN.shape)
        weight_CF = Product(sparse.csr_array(scaled_CN @ self.s_NF))(self.inverse_FF).numpy()
        return self._spread(near, y_J / self.root_N[near.document], weight_CF), weight_CF

    def _nearly(self, near: Neighbourhoods, value_J: Floats) -> tuple[Floats, Floats]:
        """P^-1 of it, in J and as the weights of F."""
        scaled_J = value_J / self.root_N[near.document]
        weight_CF = (torch.from_numpy(near.gather(scaled_J)) @ self.inverse_FF).numpy()
        return self._spread(near, scaled_J, weight_CF), weight_CF

    def _spread(self, near: Neighbourhoods, scaled_J: Floats, weight_CF: Floats) -> Floats:
        return (scaled_J - near.spread(weight_CF)) / self.root_N[near.document]

    def _meet(self, near: Neighbourhoods, value_J: Floats) -> Floats:
        """O times it."""
        return near.meet(value_J) - self.others_N[near.document] * value_J

    def leverage(self, document_M: NDArray[np.int64]) -> Floats:
        """h of some documents."""
        s_MF = self.s_NF[document_M]
        return np.asarray((s_MF * (s_MF @ self.inverse_FF.numpy())).sum(axis=1), dtype=np.float32).ravel()


def _ratio(above: Floats, below: Floats) -> Floats:
    """Zero where a label is solved exactly."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _is_own(near: Neighbourhoods, own_CN: sparse.csr_array) -> NDArray[np.bool_]:
    """(J,): whether a document is the label's own."""
    own_label = np.repeat(np.arange(own_CN.shape[0]), np.diff(own_CN.indptr))
    n = own_CN.shape[1]
    return np.isin(n * near.label + near.document, n * own_label + own_CN.indices)


class _Compiled(Neighbourhoods):
    """By local.c."""

    def gather(self, value_J: Floats) -> Floats:
        return native.local("gather", self.s_NF, self.start, self.document, value_J)

    def spread(self, value_CF: Floats) -> Floats:
        return native.local("spread", self.s_NF, self.start, self.document, value_CF)

    def meet(self, value_J: Floats) -> Floats:
        return native.local("meet", self.x_NR, self.start, self.document, value_J)


class SlowNeighbourhoods(Neighbourhoods):
    """By SciPy, a label at a time."""

    @cached_property
    def parts(self) -> list[tuple[slice, sparse.csr_array, sparse.csr_array]]:
        spans = [slice(*ends) for ends in pairwise(self.start)]
        return [(span, self.x_NR[self.document[span]], self.s_NF[self.document[span]]) for span in spans]

    def gather(self, value_J: Floats) -> Floats:
        return np.stack([s.T @ value_J[span] for span, _, s in self.parts])

    def spread(self, value_CF: Floats) -> Floats:
        return np.concatenate([s @ value_F for (_, _, s), value_F in zip(self.parts, value_CF, strict=True)])

    def meet(self, value_J: Floats) -> Floats:
        return np.concatenate([x @ (x.T @ value_J[span]) for span, x, _ in self.parts])


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
