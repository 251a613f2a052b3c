"""Tagging: texts in, top-k label ids and probabilities out, in the order they came.

Documents are taken in blocks; within a block batches are formed by length, so that padding is rare and memory stays
constant however long the input is. Probabilities are calibrated where the model is: `calibration.Ranking` says what the
best k labels are then, and `decide` how many of them a document gets.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aplc.data.batches import by_length, prefetch
from aplc.data.cache import blocks
from aplc.data.formats import Document
from aplc.files import output_stream
from aplc.models.base import Ids, LabelModel, PartTopK, Probs
from aplc.models.calibration import DEPTH, Calibration, Ranking
from aplc.models.trained import TrainedTagger
from aplc.nn.distributed import world
from aplc.predict.decide import Decision, Rule
from aplc.predict.writers import LabelsAs, Naming, writer_for

DOCUMENTS_AT_ONCE = 2_048
"""Documents held at a time."""
SPARE = 16
"""Candidates beyond k that are looked at first: after calibration a label may move up."""

Bools = NDArray[np.bool_]


def predict_texts(
    model: LabelModel, texts: Sequence[str], k: int, *, ranking: Ranking | None = None, allowed: Bools | None = None
) -> tuple[Ids, Probs]:
    """(ids, probs) of shape (n, k); -1 and 0 where there are fewer than k labels.

    Without a `ranking` the probabilities are the model's own. Labels that are not `allowed` are passed over.
    """
    batches = by_length([len(text) for text in texts], model.batch_size)
    return predict_batches(
        model, batches, lambda members: model.prepare([texts[i] for i in members]), k, ranking=ranking, allowed=allowed
    )


def predict_batches(
    model: LabelModel,
    batches: Sequence[NDArray[np.int64]],
    prepare: Callable[[NDArray[np.int64]], Any],
    k: int,
    *,
    ranking: Ranking | None = None,
    allowed: Bools | None = None,
) -> tuple[Ids, Probs]:
    """The same for batches of document numbers, which together count from 0.

    Under `torchrun` the batches are shared out among the ranks, and every rank gets all results.
    """
    return _each(model, batches, prepare, k, [lambda states: _search(model, states, k, ranking, allowed)])[0]


def predict_parts(
    model: LabelModel, texts: Sequence[str], k: int, *, allowed: Bools | None = None
) -> tuple[tuple[Ids, Probs], dict[str, tuple[Ids, Probs]]]:
    """`predict_texts` of the whole model and of each of its parts by name; every text is read once."""
    batches = by_length([len(text) for text in texts], model.batch_size)
    searches = [partial(_best, topk, k, allowed) for topk in (model.topk, *model.parts.values())]
    whole, *parts = _each(model, batches, lambda members: model.prepare([texts[i] for i in members]), k, searches)
    return whole, dict(zip(model.parts, parts, strict=True))


def _each(
    model: LabelModel,
    batches: Sequence[NDArray[np.int64]],
    prepare: Callable[[NDArray[np.int64]], Any],
    k: int,
    searches: Sequence[Callable[[Any], tuple[Ids, Probs]]],
) -> list[tuple[Ids, Probs]]:
    """What each of the searches finds in the states of all batches."""
    n = sum(map(len, batches))
    found = [(np.full((n, k), -1, dtype=np.int64), np.zeros((n, k), dtype=np.float32)) for _ in searches]
    own = world().share(batches)
    for members, batch in zip(own, prefetch(prepare, own), strict=True):
        states = model.read(batch)
        for (ids, probs), search in zip(found, searches, strict=True):
            best_ids, best_probs = search(states)
            ids[members, : best_ids.shape[1]] = best_ids
            probs[members, : best_probs.shape[1]] = best_probs
    mine = np.concatenate(own) if own else np.empty(0, dtype=np.int64)
    for ids, probs in found:
        for members, their_ids, their_probs in world().gather((mine, ids[mine], probs[mine])):
            ids[members], probs[members] = their_ids, their_probs
    return found


def _best(topk: PartTopK, k: int, allowed: Bools | None, states: Any) -> tuple[Ids, Probs]:
    return topk(states, k, allowed)


def _search(
    model: LabelModel, states: Any, k: int, ranking: Ranking | None, allowed: Bools | None
) -> tuple[Ids, Probs]:
    """The best k of each text. With a ranking: of more and more candidates, until no other label can be better."""
    if ranking is None or ranking.is_plain:
        return model.topk(states, k, allowed)
    width = min(k + max(k, SPARE), model.n_labels)
    while True:
        best_ids, best_probs, sure = ranking.settle(*model.topk(states, width, allowed), k)
        if sure.all() or width == model.n_labels:
            return best_ids, best_probs
        width = min(4 * width, model.n_labels)


def predict_documents(
    trained: TrainedTagger,
    documents: Iterable[Document],
    k: int,
    *,
    allowed: Bools | None = None,
) -> Iterator[tuple[list[Document], Ids, Probs]]:
    """Blocks of (documents, ids, probs), calibrated where the model is. `allowed`: which ids may be predicted."""
    allowed = trained.allowed if allowed is None else allowed
    for block in blocks(documents, DOCUMENTS_AT_ONCE):
        texts = [document.text for document in block]
        yield block, *predict_texts(trained.model, texts, k, ranking=trained.ranking, allowed=allowed)


class Found(NamedTuple):
    """What a model that is not calibrated says of some documents, and what is true."""

    ids: Ids
    probs: Probs
    truth: list[list[int]]


def calibrate(trained: TrainedTagger, found: Sequence[Found]) -> Calibration:
    """Calibrate the model's probabilities on documents it was not trained on."""
    ids, probs = (np.concatenate([getattr(part, name)[:, :DEPTH] for part in found]) for name in ("ids", "probs"))
    truth = [own for part in found for own in part.truth]
    hit = np.array([np.isin(row, own) for row, own in zip(ids, truth, strict=True)])
    return Calibration.fit(ids, probs, hit, bounds=trained.ranking.bounds, n_true=sum(map(len, truth)))


def decide_documents(
    trained: TrainedTagger, documents: Iterable[Document], rule: Rule
) -> Iterator[tuple[list[Document], list[list[tuple[str, float]]]]]:
    """Blocks of documents and the labels that `rule` gives them: (label, probability) pairs, best first.

    A text of whitespace alone gets no label: the model could only guess the most frequent ones.
    """
    decision = Decision.of(rule, trained.labels, trained.calibration, trained.vocabulary)
    for block, ids, probs in predict_documents(trained, documents, decision.depth, allowed=decision.allowed):
        has_text = np.array([bool(document.text.strip()) for document in block])
        counts = np.where(has_text, decision.counts(ids, probs), 0)
        yield block, [name_tags(trained, ids[i, :n], probs[i, :n]) for i, n in enumerate(counts)]


def name_tags(trained: TrainedTagger, ids: NDArray, probs: NDArray) -> list[tuple[str, float]]:
    """One document's (label, probability) pairs, best first."""
    names = trained.labels.names
    return [(names[i], float(p)) for i, p in zip(ids, probs, strict=True) if i >= 0]


def predict_file(
    trained: TrainedTagger,
    documents: Iterable[Document],
    out: Path,
    rule: Rule,
    advance: Callable[[int], None] = lambda _: None,
    *,
    separator: str | None = None,
    labels_as: LabelsAs = "label",
) -> tuple[int, int]:
    """Stream predictions to a file that appears when complete, or block by block to standard output (`-`).

    JSON Lines, or by the file's ending CSV or TSV with `separator` between labels; `labels_as`: labels, what the
    vocabulary calls them, or both.

    Returns how many documents it has, and in how many of them no label qualified; these rows say `"abstained": true`.
    """
    n = n_abstained = 0
    naming = Naming(labels_as, trained.vocabulary)
    rows = writer_for(out, trained.labels.names, separator=separator, naming=naming)
    with output_stream(out) as stream:
        for block, tags_of_block in decide_documents(trained, documents, rule):
            for document, tags in zip(block, tags_of_block, strict=True):
                stream.write(rows.row(document, tags))
                n_abstained += not tags
            stream.flush()  # whoever reads a pipe gets each block as it is done
            n += len(block)
            advance(len(block))
        stream.write(rows.end())
    return n, n_abstained
