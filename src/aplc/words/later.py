"""Labels and documents that come later to a words model, without its training documents.

With X the new documents and r the penalty, the weights that are nearest to the old ones and suit the new documents are

    W' = W + X' (XX' + r I)^-1 (Y - X W),

ridge regression that is pulled towards W instead of zero. Only the labels that new documents carry are changed; scores
of all others stay as they are, to the bit. A new label has the curve of an old one with as many documents; a mention of
its name is worth what it is for a label without documents, since nobody knows yet how far to trust the rest (where
mentions taught little, words are trusted). (To hold
each word down as the old documents would, by the diagonal of their X'X, was worse: bench/LOG.md.) The price: a label
that is learned so is worse than after a full training, words that no training document had stay unknown, and
calibration is not learned again.

Shapes: P new documents, V words, L labels, C labels that change.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aplc.config import Config
from aplc.data.examples import Examples
from aplc.words.curves import PLAIN
from aplc.words.index import Index
from aplc.words.model import WordsModel
from aplc.words.names import NO_DOCUMENTS, Known, Names, is_plain, mention_worth
from aplc.words.text import STARTS, count_split, words_of

MOST_OTHERS = 1_000
"""New documents without a new label that are used: the old ones are known already."""
AT_ONCE = 256
"""Labels changed at a time."""

Floats = NDArray[np.floating]


def moved(x_PV: sparse.csr_array, off_PC: Floats, ridge: float) -> Floats:
    """What is added to the weights, (V, C), if scores of the new documents are off by this much."""
    inner_PP = (x_PV @ x_PV.T).toarray() + ridge * np.eye(x_PV.shape[0])
    return x_PV.T @ np.linalg.solve(inner_PP, off_PC)


def add_labels(
    model: WordsModel, _config: Config, examples: Examples, advance: Callable[[int], None] = lambda _: None
) -> tuple[WordsModel, dict[int, float]]:
    """The words model with more labels, from examples, from their names, or from both."""
    carrying = [i for i, own in enumerate(examples.truth) if own]
    others = [i for i, own in enumerate(examples.truth) if not own][:MOST_OTHERS]
    used, n_new = [*carrying, *others], len(examples.names)
    x_PV = model.prepare([examples.texts[i] for i in used] or [""]).x
    y_PC = np.zeros((x_PV.shape[0], n_new), dtype=np.float32)
    for row, i in enumerate(carrying):
        y_PC[row, examples.truth[i]] = 1
    n_C = y_PC.sum(0).astype(np.int64)
    share_C = (n_C / (examples.n_documents + len(used))).astype(np.float32)
    parts = []
    for start in range(0, n_new, AT_ONCE):
        some = slice(start, start + AT_ONCE)
        weight_VC = moved(x_PV, y_PC[:, some] - share_C[some], model.ridge)
        parts.append(sparse.csr_array(np.where(np.abs(weight_VC) >= model.prune, weight_VC, 0).astype(np.float32)))
        advance(len(n_C[some]))
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
    return grown, {}  # how sure it is of examples left out is not asked


def learn(model: WordsModel, _config: Config, texts: list[str], truth: Sequence[Sequence[int]]) -> WordsModel:
    """The words model after more documents: the labels that they carry have new weights."""
    labels = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *map(np.asarray, truth)]).astype(np.int64))
    x_PV, by_label = model.prepare(texts).x, model.index.matrix.tocsc()
    if not len(labels):
        return model
    row, own = np.repeat(np.arange(len(truth)), list(map(len, truth))), np.concatenate(list(map(np.asarray, truth)))
    y_PL = sparse.csc_array((np.ones(len(own), np.float32), (row, own)), shape=(len(texts), model.n_labels))
    columns: dict[int, sparse.csc_array] = {}
    for start in range(0, len(labels), AT_ONCE):
        some = labels[start : start + AT_ONCE]
        old_VC = by_label[:, some].toarray()
        off_PC = np.minimum(y_PL[:, some].toarray(), 1) - (x_PV @ old_VC + model.bias_L[some])
        new_VC = old_VC + moved(x_PV, off_PC, model.ridge)
        kept = sparse.csc_array(np.where(np.abs(new_VC) >= model.prune, new_VC, 0).astype(np.float32))
        columns |= {int(label): kept[:, [j]] for j, label in enumerate(some)}
    rest = np.setdiff1d(np.arange(model.n_labels), labels)
    joined = sparse.hstack([by_label[:, rest], *(columns[int(label)] for label in labels)], format="csc")
    order = np.argsort(np.concatenate([rest, labels]))
    curve_3L = model.curve_3L.copy()
    first = labels[curve_3L[0, labels] == NO_DOCUMENTS]
    curve_3L[:, first] = _curve_of(model, 1, None)[:, None]  # their first documents
    return replace(model, index=Index.of(joined[:, order].tocsr(), _scale(model)), curve_3L=curve_3L)


def _curve_of(model: WordsModel, n: int, counts: NDArray[np.int64] | None) -> Floats:
    """The curve, (3,), of an old label with about n documents: of equal ones the last, which has none of its own.

    Without `counts`, of the rarest. Labels that the model learned from no document have no curve to give.
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
