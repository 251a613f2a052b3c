"""Ridge regression of many labels on many words.

With X the documents' TF-IDF (N x V), Y their labels less each label's frequency (N x L) and r = words.ridge,

    (XX' + r I) A = Y,     W = X'A = (X'X + r I)^-1 X'Y.

Up to twice `words.limit` documents, one inverse matrix serves all labels. Beyond, its memory and time would be too
much, and conjugate gradients solve the same equations, preconditioned by F, the `words.limit` words of the largest sums
of squares, and a diagonal for the others, R. These seldom meet, so that XX' + r I is close to

    P = X_F X_F' + diag(q),     q = |x_R|^2 + r,
    P^-1 = diag(q)^-1/2 (I - S (I + S'S)^-1 S') diag(q)^-1/2,     S = diag(q)^-1/2 X_F,

and a few iterations are enough. Labels of few documents, nearly all of them in a large corpus, are solved for among
their neighbours only (`local.py`), so that the work grows with the entries of Y and not with documents times labels.

Leave-one-out scores come for free: how a model fitted without a document would score it (but for the words' weights and
the labels' frequencies, which still know it). With y the document's row of Y and a its row of A,

    leave-one-out score = y - a / c,     c = diagonal of (XX' + r I)^-1.

(Rare labels among neighbours have scores of documents that were left out for good instead.)

Labels are independent of each other. So they are solved for in blocks, which several processes share out, and finished
blocks are kept on disk (`blocks.py`): a run that was killed goes on with the next.

Shapes: N documents, V words (word pairs count as words here), F frequent words, R other words, L labels, C labels of a
block, M documents with leave-one-out scores.
"""

from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from torch import from_numpy

from aplc.console import Screen
from aplc.errors import RunError
from aplc.machine import free_bytes
from aplc.nn.distributed import world
from aplc.words.blocks import Blocks, Finished, shared_out
from aplc.words.curves import Curves
from aplc.words.local import Answer, Local
from aplc.words.reviewed import Reviewed
from aplc.words.systems import MOST_ITERATIONS, TOLERANCE, Conjugate, Direct, collect, cross, large

LABELS_AT_ONCE, LARGEST = 512, 1 << 27
"""Labels solved for at a time; fewer where an array would have more elements."""
RARE = 50
"""Labels of at most so many documents are solved for among their neighbours."""
PANEL = 128
"""Columns that product.c takes at a time; a few more cost nearly as much again."""
INVERSE_BYTES = 8
"""Memory for each element of the matrix: itself and its factor, then that and the inverse."""
DIAGONAL = 0.01
"""Residual of the equations for c, by which leave-one-out scores divide."""
EXACT = 1e-4
"""Residual of the equations whose answer all rare labels share."""

Floats = NDArray[np.floating]


class Solved(NamedTuple):
    """A block of labels: weights without small ones, and scores of left-out documents for the curves."""

    weight_CV: sparse.csr_array
    score_MC: Floats
    n_MC: NDArray[np.int64]
    """Documents of the label that a score was learned from."""


class Solver(Protocol):
    """Solves for blocks of labels."""

    def __call__(self, y_CN: sparse.csr_array, mean_C: Floats) -> Solved: ...


def solve(
    x_NV: sparse.csr_array,
    y_NL: sparse.csr_array,
    learn_from: NDArray[np.int64],
    *,
    limit: int,
    ridge: float,
    prune: float,
    screen: Screen,
    blocks: Blocks | None = None,
    mentions_ML: sparse.csc_array | None = None,
    reviewed: Reviewed | None = None,
) -> tuple[sparse.csr_array, Floats, Curves]:
    """Weights (V x L) without the small ones, each label's share of the documents (L,), and scores for the curves.

    `mentions_ML` are the labels that documents of `learn_from` mention (`names.py`): their scores are kept, too.
    `reviewed` documents count for the labels they list (`reviewed.py`).
    """
    n_documents, n_labels = y_NL.shape
    size = n_equations(x_NV.shape, limit)
    available = free_bytes()
    if (need := INVERSE_BYTES * size**2) > available:
        raise RunError(
            f"ridge regression with {size:,} equations needs {need / 1e9:.1f} GB, {available / 1e9:.1f} GB are free; "
            f"invert fewer, e.g. --set words.limit={max(1, int((max(0, available) / INVERSE_BYTES) ** 0.5 / 2))}"
        )
    blocks = blocks or Blocks()
    y_LN = y_NL.T.tocsr()
    count_L = np.diff(y_LN.indptr)
    mean_L = (count_L / n_documents).astype(np.float32)
    direct = size == n_documents
    parts, is_rare = cuts(count_L, block_size(x_NV.shape, direct=direct), rare=-1 if direct else RARE)
    left = world().gather([number for number in range(len(parts)) if not blocks.has(number)])[0]
    curves = Curves(len(learn_from), mentions_ML)
    system: Direct | Conjugate | None = None
    solvers: dict[bool, Solver] = {}
    if reviewed or left:
        system, solvers = _solvers(x_NV, learn_from, size, ridge, prune, screen)
    if left:
        blocks.begin()
    done = n_labels - sum(parts[number][1] - parts[number][0] for number in left)
    with screen.bar("solving", n_labels, unit="labels", done=done) as advance:
        for number in world().claim(left):
            part = slice(*parts[number])
            weight_CV, score_MC, n_MC = solvers[is_rare[number]](y_LN[part], mean_L[part])
            hit_MC = y_LN[part][:, learn_from].toarray().T > 0
            blocks.save(number, Finished(weight_CV, curves.add(part.start, score_MC, hit_MC, n_MC)))
            advance(world().size * (part.stop - part.start))
    world().barrier()
    if world().size > 1 or len(left) < len(parts):
        curves = Curves(len(learn_from), mentions_ML)
        for number in range(len(parts)):
            curves.take(blocks.candidates(number))
    weight_VL = blocks.join(len(parts), x_NV.shape[1])
    if reviewed and system:
        with screen.bar("learning from reviewed documents"):
            weight_VL = reviewed.correct(
                weight_VL, mean_L, x_NV, system, ridge=ridge, tolerance=EXACT, prune=prune
            )  # fmt: skip
    return weight_VL, mean_L, curves


def leave_one_out(x_NV: sparse.csr_array, y_NL: sparse.csr_array, ridge: float) -> Curves:
    """Leave-one-out scores of all documents, where these are few enough for one inverse."""
    n_documents, n_labels = y_NL.shape
    system, curves, y_LN = Direct(x_NV, ridge), Curves(n_documents), y_NL.T.tocsr()
    mean_L, c_N1 = y_LN.mean(axis=1).astype(np.float32), _bounded(system.diagonal, x_NV, ridge)
    for start in range(0, n_labels, LABELS_AT_ONCE):
        part = slice(start, start + LABELS_AT_ONCE)
        y_NC = y_LN[part].toarray().T
        score_NC = y_NC - system.answer(y_LN[part], mean_L[part]).numpy() / c_N1
        curves.add(start, score_NC, y_NC > 0, np.diff(y_LN[part].indptr) - (y_NC > 0))
    return curves


def block_size(shape: tuple[int, int], *, direct: bool) -> int:
    """Labels that are solved for at a time with all documents. Conjugate gradients hold eight arrays for them."""
    size = max(1, min(LABELS_AT_ONCE if direct else PANEL, LARGEST // max(shape)))
    return size if size < PANEL else size // PANEL * PANEL


def cuts(count_L: NDArray[np.int64], at_once: int, rare: int) -> tuple[list[tuple[int, int]], list[bool]]:
    """Blocks of labels, (first, last + 1) each, and whether all of a block have few documents.

    Label sets begin with the frequent ones, so that this cuts them once.
    """
    is_rare_L = count_L <= rare
    edges = [0, *(np.flatnonzero(is_rare_L[1:] != is_rare_L[:-1]) + 1), len(count_L)]
    parts = []
    for first, end in pairwise(edges):
        step = LABELS_AT_ONCE if is_rare_L[first] else at_once
        parts += [(start, min(start + step, int(end))) for start in range(int(first), int(end), step)]
    return parts, [bool(is_rare_L[start]) for start, _ in parts]


def n_equations(shape: tuple[int, int], limit: int) -> int:
    """Rows of the matrix to invert: one a document, or one a frequent word."""
    n_documents, n_words = shape
    return n_documents if n_documents <= 2 * limit else min(n_words, limit)


def _solvers(
    x_NV: sparse.csr_array,
    learn_from: NDArray[np.int64],
    size: int,
    ridge: float,
    prune: float,
    screen: Screen,
) -> tuple[Direct | Conjugate, dict[bool, Solver]]:
    """The equations, and who solves them for labels that are frequent (False), and for rare ones (True)."""
    if size == x_NV.shape[0]:
        direct = Direct(x_NV, ridge)
        c_M1 = _bounded(direct.diagonal[learn_from], x_NV[learn_from], ridge)
        return direct, {False: _Whole(direct, c_M1, learn_from, prune)}
    system = Conjugate(x_NV, size, ridge)
    among = _Among(system, x_NV, learn_from, prune)
    c_M1 = _bounded(among.diagonal(screen), x_NV[learn_from], ridge)
    return system, {False: _Whole(system, c_M1, learn_from, prune), True: among}


def _bounded(c_M: Floats, x_MV: sparse.csr_array, ridge: float) -> Floats:
    """The diagonal of (XX' + r I)^-1, (M, 1), within what it can be: an estimate may be off."""
    square_M = np.asarray((x_MV**2).sum(axis=1)).ravel()
    return np.clip(c_M, 1 / (square_M + ridge), 1 / ridge).astype(np.float32)[:, None]


class _Whole:
    """Labels solved for with all documents."""

    def __init__(self, system: Direct | Conjugate, c_M1: Floats, learn_from: NDArray[np.int64], prune: float) -> None:
        self.system, self.c_M1, self.learn_from, self.prune = system, c_M1, learn_from, prune

    def __call__(self, y_CN: sparse.csr_array, mean_C: Floats) -> Solved:
        a_NC, y_MC = self.system.answer(y_CN, mean_C), y_CN[:, self.learn_from].toarray().T
        score_MC = y_MC - a_NC.numpy()[self.learn_from] / self.c_M1
        return Solved(self.system.weights(a_NC, self.prune), score_MC, np.diff(y_CN.indptr) - (y_MC > 0))


class _Among:
    """Rare labels, solved for among their neighbours (`local.py`)."""

    def __init__(self, system: Conjugate, x_NV: sparse.csr_array, learn_from: NDArray[np.int64], prune: float) -> None:
        self.system, self.learn_from, self.prune = system, learn_from, prune
        self.local = Local(system)
        ones_N1 = system(from_numpy(np.ones((x_NV.shape[0], 1), dtype=np.float32)), EXACT).numpy()
        ones_V = (x_NV.T @ ones_N1).ravel()[system.order_V]
        self.ones_F, self.ones_R = ones_V[: system.size], ones_V[system.size :]
        self.kept_N = np.ones(x_NV.shape[0], dtype=bool)  # False: left out for good, to learn the curves from
        self.kept_N[learn_from] = False
        self.x_VM = x_NV[learn_from].T.tocsr()
        is_frequent_V = np.isin(np.arange(x_NV.shape[1]), system.order_V[: system.size])
        without_M = 1 / (1 - self.local.leverage(learn_from))
        self.x_VM.data *= np.where(np.repeat(is_frequent_V, np.diff(self.x_VM.indptr)), without_M[self.x_VM.indices], 1)

    def diagonal(self, screen: Screen) -> Floats:
        """c of the documents that curves are learned from, (M,), each as the answer of a label that it alone has.

        Processes share them out.
        """
        n, c_M = len(self.learn_from), np.zeros(len(self.learn_from), dtype=np.float32)
        with screen.bar("leaving documents out", n) as advance:
            for start in LABELS_AT_ONCE * shared_out(-(-n // LABELS_AT_ONCE)):
                document_C = self.learn_from[start : start + LABELS_AT_ONCE]
                shape = len(document_C), len(self.kept_N)
                own_CN = sparse.csr_array(
                    (np.ones(shape[0], dtype=np.float32), document_C, np.arange(shape[0] + 1)), shape=shape
                )
                everyone_N = np.ones_like(self.kept_N)
                found = self._answer(own_CN, everyone_N, DIAGONAL)
                c_M[start : start + shape[0]] = self.local.own_part(own_CN, found)
                advance(world().size * shape[0])
        return np.sum(world().gather(c_M), axis=0)

    def __call__(self, y_CN: sparse.csr_array, mean_C: Floats) -> Solved:
        weight_CV, count_C = self._weights(y_CN, mean_C), np.diff(y_CN.indptr)
        score_CM = cross(weight_CV, self.x_VM)
        rest_CN = y_CN.copy()
        rest_CN.data *= self.kept_N[y_CN.indices]
        rest_CN.eliminate_zeros()
        left_C = np.diff(rest_CN.indptr)
        again = np.flatnonzero((left_C > 0) & (left_C < count_C))
        if len(again):
            score_CM[again] = cross(self._weights(rest_CN[again], mean_C[again]), self.x_VM)
        score_MC = np.ascontiguousarray(score_CM.T) + mean_C
        return Solved(weight_CV, score_MC, np.broadcast_to(left_C, score_MC.shape))

    def _answer(self, own_CN: sparse.csr_array, may_N: NDArray[np.bool_], tolerance: float) -> Answer:
        found = self.local.answer(own_CN, may_N, tolerance, MOST_ITERATIONS)
        if found is None:
            raise self.system.not_converged()
        return found

    def _weights(self, own_CN: sparse.csr_array, mean_C: Floats) -> sparse.csr_array:
        """The large weights, C x V, words in the order of X. Labels without documents have none."""
        shape, has_C = (own_CN.shape[0], len(self.system.order_V)), np.diff(own_CN.indptr) > 0
        if not has_C.any():
            return sparse.csr_array(shape, dtype=np.float32)
        if not has_C.all():
            found, size_C = self._weights(own_CN[has_C], mean_C[has_C]), np.zeros(len(has_C), dtype=np.int64)
            size_C[has_C] = np.diff(found.indptr)
            ends = np.concatenate([[0], np.cumsum(size_C)]).astype(found.indptr.dtype)
            return sparse.csr_array((found.data, found.indices, ends), shape=shape)
        a_CN, _, weight_CF = self._answer(own_CN, self.kept_N, TOLERANCE)
        frequent = large(weight_CF - np.outer(mean_C, self.ones_F), self.prune)
        others = collect(a_CN, self.local.x_NR, mean_C, self.ones_R, self.prune)
        return self.system.in_order(sparse.hstack([frequent, others], "csr"))
