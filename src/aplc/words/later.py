"""Labels and documents that come later to a words model, without its training documents.

With X the new documents and r the penalty, the weights that are nearest to the old ones and suit the new documents are

    W' = W + X' (XX' + r I)^-1 (Y - X W),

ridge regression that is pulled towards W instead of zero. Only the labels that new documents carry are changed; scores
of all others stay as they are, to the bit. A new label gets the curve of an old one with as many documents. Where a
text mentions its name, it is treated like a label without documents, because nobody knows yet how far to trust its
words; if training saw too few mentions to learn from, a mention changes nothing for a label with documents. (To hold
each word down as the old documents would, by the diagonal of their X'X, was worse: bench/LOG.md.) The price: a label
learned in this way is worse than after a full training, words that no training document had stay unknown, and
calibration is not learned again.

Shapes: P new documents, V words, L labels, C labels that change.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve

from aplc.config import Config
from aplc.data.examples import Examples
from aplc.errors import RunError
from aplc.machine import free_bytes
from aplc.words.curves import PLAIN
from aplc.words.index import Index
from aplc.words.matrices import some_columns, with_columns
from aplc.words.model import WordsModel
from aplc.words.names import NO_DOCUMENTS, Known, Names, is_plain, mention_worth
from aplc.words.systems import cross, large
from aplc.words.text import STARTS, count_split, words_of

MOST_OTHERS = 1_000
"""New documents without a new label that are used: the old ones are known already."""
SYSTEM_BYTES = 12
"""Memory for each element of XX' + r I: itself in 32 bits, as it is made, and its factor in 64."""

Floats = NDArray[np.floating]


class Correction:
    """X' (XX' + r I)^-1 of new documents, factored once for all labels."""

    def __init__(self, x_PV: sparse.csr_array, ridge: float) -> None:
        n_documents, available = x_PV.shape[0], free_bytes()
        if (need := SYSTEM_BYTES * n_documents**2) > available:
            raise RunError(
                f"learning from {n_documents:,} documents at once needs {need / 1e9:.1f} GB, {available / 1e9:.1f} GB "
                f"are free; give at most {int((max(0, available) / SYSTEM_BYTES) ** 0.5):,} at a time, or train again "
                "with all of them (aplc train CORPUS --more FILE)"
            )
        gram_PP = cross(x_PV, x_PV.T.tocsr()).astype(np.float64)
        gram_PP[np.diag_indices_from(gram_PP)] += ridge
        self.x_PV, self.factor = x_PV, cho_factor(gram_PP.T, overwrite_a=True, check_finite=False)

    def __call__(self, off_PC: Floats) -> Floats:
        """What is added to the weights, (V, C), if scores of the new documents are off by this much."""
        return self.x_PV.T @ cho_solve(self.factor, off_PC, check_finite=False).astype(np.float32)


def add_labels(
    model: WordsModel, _config: Config, examples: Examples, advance: Callable[[int], None] = lambda _: None
) -> tuple[WordsModel, dict[int, float]]:
    """The words model with more labels, from examples, from their names, or from both."""
    carrying = [i for i, own in enumerate(examples.truth) if own]
    others = [i for i, own in enumerate(examples.truth) if not own][:MOST_OTHERS]
    used, n_new = [*carrying, *others], len(examples.names)
    x_PV = model.prepare([examples.texts[i] for i in used] or [""]).x
    y_PC = _matrix_of([examples.truth[i] for i in used] or [[]], n_new)
    n_C = np.diff(y_PC.indptr).astype(np.int64)
    share_C = (n_C / (examples.n_documents + len(used))).astype(np.float32)
    parts, correction = [], Correction(x_PV, model.ridge)
    for some in some_columns(np.arange(n_new), x_PV.shape[1]):
        parts.append(_kept(correction(y_PC[:, some].toarray() - share_C[some]), model.prune))
        advance(len(some))
    weight_VL = sparse.hstack([model.index.matrix, *parts], format="csr")
    like_3C = np.stack([_curve_of(model, int(n), examples.counts) for n in n_C], 1)
    none_C = np.zeros_like(n_C)
    known = Known(n_C if is_plain(model.learned) else none_C, none_C, _chance_mentions(model, examples))
    worth_3C = mention_worth(model.learned, known) if len(model.learned) else np.zeros((3, n_new), np.float32)
    names = model.names.joined(Names.of([[name] for name in examples.names]), model.n_labels)
    unseen_31 = np.array([[NO_DOCUMENTS], [1], [0]], dtype=np.float32)
    grown = replace(
        model,
        index=Index.of(weight_VL, _scale(model)),
        bias_L=np.concatenate([model.bias_L, share_C]),
        curve_3L=np.concatenate([model.curve_3L, np.where(n_C > 0, like_3C, unseen_31)], 1),
        names=names if len(model.learned) else model.names,
        worth_3L=np.concatenate([model.worth_3L, worth_3C], 1),
    )
    return grown, {}  # leave-one-out probabilities of the examples are not computed


def learn(model: WordsModel, _config: Config, texts: list[str], truth: Sequence[Sequence[int]]) -> WordsModel:
    """The words model after more documents: the labels that they carry have new weights."""
    y_PL = _matrix_of(truth, model.n_labels)
    labels = np.flatnonzero(np.diff(y_PL.indptr))
    if not len(labels):
        return model
    x_PV, by_label = model.prepare(texts).x, model.index.matrix.tocsc()
    parts, correction = [], Correction(x_PV, model.ridge)
    for some in some_columns(labels, x_PV.shape[1]):
        old_VC = by_label[:, some].toarray(order="C")
        off_PC = y_PL[:, some].toarray() - (x_PV @ old_VC + model.bias_L[some])
        parts.append(_kept(old_VC + correction(off_PC), model.prune).tocsc())
    weight_VL = with_columns(by_label, labels, parts)
    curve_3L = model.curve_3L.copy()
    first = labels[curve_3L[0, labels] == NO_DOCUMENTS]
    curve_3L[:, first] = _curve_of(model, 1, None)[:, None]  # their first documents
    return replace(model, index=Index.of(weight_VL, _scale(model)), curve_3L=curve_3L)


def _matrix_of(truth: Sequence[Sequence[int]], n_labels: int) -> sparse.csc_array:
    """(P, L), 1 where a document has a label."""
    row, label = np.repeat(np.arange(len(truth)), list(map(len, truth))), [label for own in truth for label in own]
    y_PL = sparse.csc_array((np.ones(len(row), np.float32), (row, label)), shape=(len(truth), n_labels))
    y_PL.data[:] = 1  # a label that was given twice has been counted twice
    return y_PL


def _kept(weight_VC: Floats, least: float) -> sparse.csr_array:
    """The weights of at least `least`; no zeros, even if that is 0: most words are in no new document."""
    return large(weight_VC, max(least, float(np.finfo(np.float32).tiny)))


def _curve_of(model: WordsModel, n: int, counts: NDArray[np.int64] | None) -> Floats:
    """The curve, (3,), of an old label with about n documents; of several the last, which has the common curve.

    Without `counts`, that of the rarest label. Labels that the model learned from no document have no curve to give.
    """
    known = np.flatnonzero(model.curve_3L[0, : model.n_seen] != NO_DOCUMENTS)
    if counts is not None:
        known = known[counts[known] > 0]
    if not len(known):
        return np.array(PLAIN, dtype=np.float32)
    gap = np.abs(np.log(counts[known]) - np.log(max(n, 1))) if counts is not None else -known
    return model.curve_3L[:, known[np.flatnonzero(gap == gap.min())[-1]]]


def _scale(model: WordsModel) -> np.float32 | None:
    """That of the weights there are, so that they stay the same."""
    return model.index.scale if len(model.index.label) else None


def _chance_mentions(model: WordsModel, examples: Examples) -> NDArray[np.int64]:
    """How many old documents would have all words of a new label's name if words were independent."""
    found, n = [], examples.n_documents
    for name in examples.names:
        counts = count_split([words_of(name)], runs=False)
        wanted = counts.indices[counts.indices < STARTS[1]]
        at = np.isin(model.features.bucket, wanted)
        share = np.minimum(np.exp(1 - model.features.idf[at].astype(np.float64)), 1)
        found.append(round(n * float(np.prod(share))) if 0 < len(wanted) == at.sum() else 0)  # else a new word is in it
    return np.array(found, dtype=np.int64)
