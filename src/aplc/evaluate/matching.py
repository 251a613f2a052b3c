"""Predictions matched with the truth: both are checked, repeats removed, and each prediction marked true or not."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Matches:
    """n documents with `width` predictions each, and their true (document, label) pairs."""

    pred: Ints
    """(n, width) Label ids, -1 where a list is shorter."""
    prob: Floats
    """(n, width) Probabilities, 0 where there is no prediction."""
    valid: Bools
    """(n, width) Is there a prediction?"""
    hit: Bools
    """(n, width) Is it among the document's true labels?"""
    row: Ints
    """(pairs,) Document of each true pair, rising."""
    true: Ints
    """(pairs,) Label of each true pair, rising within a document."""
    n_true: Ints
    """(n,) Number of true labels."""


def match(pred_ids: ArrayLike, pred_probs: ArrayLike, indptr: ArrayLike, ids: ArrayLike) -> Matches:
    """Arguments as in `Metrics.update`."""
    pred, prob = _checked_predictions(pred_ids, pred_probs)
    row, true = _checked_truth(indptr, ids, n_rows=len(pred))
    valid = pred >= 0
    # A pair is one number, document x span + label, so that isin can look it up.
    span = 1 + max(int(true.max(initial=0)), int(pred.max(initial=0)))
    hit = valid & np.isin(np.arange(len(pred))[:, None] * span + pred, row * span + true)
    return Matches(pred, prob, valid, hit, row, true, n_true=np.bincount(row, minlength=len(pred)))


def _checked_predictions(pred_ids: ArrayLike, pred_probs: ArrayLike) -> tuple[Ints, Floats]:
    pred = np.asarray(pred_ids, dtype=np.int64)
    prob = np.asarray(pred_probs, dtype=np.float64)
    if pred.ndim != 2 or pred.shape != prob.shape:
        raise ValueError(f"pred_ids {pred.shape} and pred_probs {prob.shape} should both be (documents, k)")
    prob = np.where(pred >= 0, prob, 0.0)
    if prob.size and not (prob.min() >= 0 and prob.max() <= 1):  # written so that NaN fails too
        raise ValueError("pred_probs has a value that is not a probability (below 0, above 1 or NaN)")
    ranked = np.sort(pred, axis=1)
    if ((ranked[:, 1:] == ranked[:, :-1]) & (ranked[:, 1:] >= 0)).any():
        raise ValueError("pred_ids has a label twice for one document; it would count twice")
    return pred, prob


def _checked_truth(indptr: ArrayLike, ids: ArrayLike, *, n_rows: int) -> tuple[Ints, Ints]:
    """Documents and labels of the true pairs, sorted by both, each pair once."""
    starts = np.asarray(indptr, dtype=np.int64)
    if starts.shape != (n_rows + 1,):
        raise ValueError(f"indptr has shape {starts.shape}, expected ({n_rows + 1},) for {n_rows} rows of predictions")
    length = np.diff(starts)
    if starts[0] < 0 or (length < 0).any() or starts[-1] > np.size(ids):
        raise ValueError(f"indptr must rise from 0 or above to at most {np.size(ids)}, the number of ids")
    true = np.asarray(ids)[starts[0] : starts[-1]].astype(np.int64)  # slice first: ids may be a large memory map
    if true.size and true.min() < 0:
        raise ValueError("ids has a negative label id; remove padding from the truth")
    row = np.repeat(np.arange(n_rows), length)
    span = int(true.max(initial=0)) + 1
    pair = np.unique(row * span + true)
    return pair // span, pair % span
