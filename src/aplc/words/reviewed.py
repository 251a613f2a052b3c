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

from aplc.words.systems import cross, large

AT_ONCE = 256
"""Labels corrected, and reviewed documents solved for, at a time."""
LARGEST = 1 << 28
"""Elements that documents times reviewed documents may have: 1 GB."""

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
        x_VP, x_VN = self.x_PV.T.tocsr(), x_NV.T.tocsr()
        k_NP = cross(x_NV, x_VP)
        parts = [slice(i, i + AT_ONCE) for i in range(0, k_NP.shape[1], AT_ONCE)]
        solved_NP = np.concatenate(
            [system(torch.from_numpy(np.ascontiguousarray(k_NP[:, p])), tolerance).numpy() for p in parts], 1
        )
        rest_PP = cross(self.x_PV, x_VP) - k_NP.T @ solved_NP
        rest_PP[np.diag_indices_from(rest_PP)] += ridge
        labels = np.flatnonzero(np.diff(self.listed_LP.indptr))
        by_label = weight_VL.tocsc()
        kept = [by_label[:, np.setdiff1d(np.arange(by_label.shape[1]), labels)]]
        for start in range(0, len(labels), AT_ONCE):
            some = labels[start : start + AT_ONCE]
            score_PC = (self.x_PV @ by_label[:, some]).toarray() + mean_L[some]
            alpha_PC = self._alpha(some, score_PC, rest_PP)
            from_documents = x_VN @ (solved_NP @ alpha_PC)
            weight_VC = by_label[:, some].toarray() + x_VP @ alpha_PC - from_documents
            kept.append(large(np.ascontiguousarray(weight_VC, dtype=np.float32), prune).tocsc())
        order = np.argsort(np.concatenate([np.setdiff1d(np.arange(by_label.shape[1]), labels), labels]))
        return sparse.hstack(kept, format="csc")[:, order].tocsr()

    def _alpha(self, labels: NDArray[np.int64], score_PC: Floats, rest_PP: Floats) -> Floats:
        """(P, C), zero where a document does not list the label."""
        alpha_PC = np.zeros_like(score_PC)
        for column, label in enumerate(labels):
            listed = slice(*self.listed_LP.indptr[label : label + 2])
            own = self.listed_LP.indices[listed]
            off = (self.listed_LP.data[listed] > 0) - score_PC[own, column]
            alpha_PC[own, column] = np.linalg.solve(rest_PP[np.ix_(own, own)], off)
        return alpha_PC
