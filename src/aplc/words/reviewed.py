"""Ridge regression with partly reviewed documents: a document counts only for the labels that its reviewer listed.

For a label, the documents of the corpus D and those reviewed documents J count that list it, as right or as wrong; the
others say nothing of it. The equations are the same for all labels but for J, which is small. So labels are solved for
with D alone (`ridge.py`), and then corrected, with G = (X_D X_D' + r I)^-1 and e what the listed targets are off:

    alpha = (X_J X_J' - X_J X_D' G X_D X_J' + r I)^-1 e,     W = W_D + X_J' alpha - X_D' G X_D X_J' alpha.

That is exactly the solution with D and J (a block of the inverse of the joint equations). The price is a right-hand
side for each reviewed document, and an array of documents times reviewed documents.

Shapes: N documents, P reviewed documents, V words, L labels, C labels of a block.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from aplc.words.matrices import LARGEST, some_columns, with_columns
from aplc.words.systems import cross, large

Floats = NDArray[np.floating]


class System(Protocol):
    """Solves (XX' + r I) A = Y."""

    def __call__(self, y_NC: Tensor, tolerance: float | None = None) -> Tensor: ...


@dataclass(frozen=True)
class Reviewed:
    x_PV: sparse.csr_array
    listed_LP: sparse.csr_array
    """1 where a reviewed document has a label, -1 where it was rejected."""

    @classmethod
    def of(cls, x_PV: sparse.csr_array, has_PL: sparse.csr_array, rejected_PL: sparse.csr_array, n: int) -> "Reviewed":
        """The latest documents, as many as there is room for beside `n` others; a label that is both is right."""
        wrong_PL = rejected_PL - rejected_PL * has_PL
        first = max(0, x_PV.shape[0] - max(1, LARGEST // n))
        return cls(x_PV[first:], sparse.csr_array((has_PL - wrong_PL)[first:].T))

    @property
    def counts(self) -> NDArray[np.int64]:
        """Documents that have each label."""
        return np.asarray((self.listed_LP > 0).sum(axis=1)).ravel().astype(np.int64)

    def correct(
        self,
        weight_VL: sparse.csr_array,
        mean_L: Floats,
        x_NV: sparse.csr_array,
        system: System,
        *,
        ridge: float,
        tolerance: float,
        prune: float,
    ) -> sparse.csr_array:
        """The weights that the reviewed documents make of those of `x_NV` alone."""
        x_VP = self.x_PV.T.tocsr()
        k_NP = cross(x_NV, x_VP)
        documents = some_columns(np.arange(k_NP.shape[1]), k_NP.shape[0])
        solved_NP = np.concatenate(
            [system(torch.from_numpy(np.ascontiguousarray(k_NP[:, p])), tolerance).numpy() for p in documents], 1
        )
        rest_PP = cross(self.x_PV, x_VP) - k_NP.T @ solved_NP
        rest_PP[np.diag_indices_from(rest_PP)] += ridge
        labels = np.flatnonzero(np.diff(self.listed_LP.indptr))
        by_label, parts = weight_VL.tocsc(), []
        for some in some_columns(labels, x_VP.shape[0]):
            score_PC = (self.x_PV @ by_label[:, some]).toarray() + mean_L[some]
            alpha_PC = self._alpha(some, score_PC, rest_PP)
            weight_VC = by_label[:, some].toarray(order="C") + x_VP @ alpha_PC
            weight_VC -= x_NV.T @ (solved_NP @ alpha_PC)
            parts.append(large(weight_VC.astype(np.float32, copy=False), prune).tocsc())
        return with_columns(by_label, labels, parts)

    def _alpha(self, labels: NDArray[np.int64], score_PC: Floats, rest_PP: Floats) -> Floats:
        """(P, C), zero where a document does not list the label."""
        alpha_PC = np.zeros_like(score_PC)
        for column, label in enumerate(labels):
            listed = slice(*self.listed_LP.indptr[label : label + 2])
            own = self.listed_LP.indices[listed]
            off = (self.listed_LP.data[listed] > 0) - score_PC[own, column]
            alpha_PC[own, column] = np.linalg.solve(rest_PP[np.ix_(own, own)], off)
        return alpha_PC
