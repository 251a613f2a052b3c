"""Tagging: token rows or documents in, top-k label ids and probabilities out, in the order they came.

Documents are taken in blocks; within a block batches are formed by length, so that padding is rare and memory stays
constant however long the input is. Probabilities are calibrated where the model is; what the best k labels are then is
said in `calibration.Ranking`, and how many of them a document gets in `decide`.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from aplc.calibration import DEPTH, Calibration, Ranking
from aplc.data.batches import Batch, Collator, by_length, prefetch
from aplc.data.formats import Document
from aplc.data.tokens import blocks
from aplc.decide import Decision, Rule
from aplc.distributed import world
from aplc.files import atomic_write
from aplc.folder import ModelFolder
from aplc.nn.model import TaggingModel

BLOCK = 2_048
"""Documents held at a time."""
BATCH = 32

SPARE = 16
"""Candidates beyond k that are looked at first: after calibration a label may move up."""

Ids = NDArray[np.int64]
Probs = NDArray[np.float32]


@torch.inference_mode()
def predict_rows(
    model: TaggingModel,
    collate: Collator,
    rows: Sequence[Sequence[int] | NDArray],
    k: int,
    *,
    ranking: Ranking | None = None,
    allowed: NDArray[np.bool_] | None = None,
) -> tuple[Ids, Probs]:
    """(ids, probs) of shape (n, k) for token rows; -1 and 0 where there are fewer than k labels.

    Without a `ranking` the probabilities are the model's own. Labels that are not `allowed` are passed over.
    Under `torchrun` the batches are shared out among the ranks, and every rank gets all results.
    """
    device = next(model.parameters()).device
    ids = np.full((len(rows), k), -1, dtype=np.int64)
    probs = np.zeros((len(rows), k), dtype=np.float32)
    mask = None if allowed is None else torch.from_numpy(allowed).to(device)
    training = model.training
    model.eval()
    batches = world().share(by_length([min(len(row), collate.max_length) for row in rows], BATCH))
    for members, batch in zip(
        batches, prefetch(lambda m: collate([rows[i] for i in m], [[]] * len(m)), batches), strict=True
    ):
        best_ids, best_probs = _search(model, batch.to(device), k, ranking, mask)
        ids[members, : best_ids.shape[1]] = best_ids
        probs[members, : best_probs.shape[1]] = best_probs
    model.train(training)
    mine = np.concatenate(batches) if batches else np.empty(0, dtype=np.int64)
    for members, their_ids, their_probs in world().gather((mine, ids[mine], probs[mine])):
        ids[members], probs[members] = their_ids, their_probs
    return ids, probs


def _search(
    model: TaggingModel, batch: Batch, k: int, ranking: Ranking | None, allowed: torch.Tensor | None
) -> tuple[Ids, Probs]:
    """The best k of each row of a batch. With a ranking: of more and more candidates, until no other can be better."""
    hidden_BD, n_labels = model.represent(batch), model.clusters.n_labels
    is_plain = ranking is None or ranking.is_plain
    width = k if is_plain else min(k + max(k, SPARE), n_labels)
    while True:
        found = model.clusters.topk(hidden_BD, width, allowed=allowed)
        ids, probs = found.ids.cpu().numpy(), found.probs.float().clamp_min(0).cpu().numpy()
        if ranking is None or is_plain:
            return ids, probs
        best_ids, best_probs, sure = ranking.settle(ids, probs, k)
        if sure.all() or width == n_labels:
            return best_ids, best_probs
        width = min(4 * width, n_labels)


def predict_documents(
    folder: ModelFolder,
    documents: Iterable[Document],
    k: int,
    *,
    allowed: NDArray[np.bool_] | None = None,
    plain: bool = False,
) -> Iterator[tuple[list[Document], Ids, Probs]]:
    """Blocks of (documents, ids, probs), calibrated where the model is.

    `allowed`: which ids may be predicted. `plain`: the model's own probabilities, with merged labels apart.
    """
    allowed = folder.allowed if allowed is None else allowed
    ranking = None if plain else folder.ranking
    for block in blocks(documents, BLOCK):
        rows = folder.tokenizer.encode([document.text for document in block])
        yield block, *predict_rows(folder.model, folder.collator, rows, k, ranking=ranking, allowed=allowed)


def calibrate(
    folder: ModelFolder, rows: Sequence[Sequence[int] | NDArray], labels: Sequence[Sequence[int] | NDArray]
) -> Calibration:
    """Learn what the model's probabilities are worth from token rows and true label ids it was not trained on."""
    ids, probs = predict_rows(folder.model, folder.collator, rows, min(DEPTH, len(folder.labels)))
    hit = np.array([np.isin(found, true) for found, true in zip(ids, labels, strict=True)])
    bounds = folder.ranking.bounds
    return Calibration.fit(ids, probs, hit, bounds=bounds, n_true=sum(map(len, labels)))


def decide_documents(
    folder: ModelFolder, documents: Iterable[Document], rule: Rule
) -> Iterator[tuple[list[Document], list[list[tuple[str, float]]]]]:
    """Blocks of documents and the labels that `rule` gives them: (label, probability) pairs, best first."""
    decision = Decision.of(rule, folder.labels, folder.calibration)
    for block, ids, probs in predict_documents(folder, documents, decision.depth, allowed=decision.allowed):
        counts = decision.counts(ids, probs)
        yield block, [name_tags(folder, ids[i, :n], probs[i, :n]) for i, n in enumerate(counts)]


def name_tags(folder: ModelFolder, ids: NDArray, probs: NDArray) -> list[tuple[str, float]]:
    """One document's (label, probability) pairs, best first."""
    names = folder.labels.names
    return [(names[i], float(p)) for i, p in zip(ids, probs, strict=True) if i >= 0]


def predict_file(
    folder: ModelFolder,
    documents: Iterable[Document],
    out: Path,
    rule: Rule,
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[int, int]:
    """Stream predictions to a JSON Lines file that appears when whole.

    Returns how many documents it has, and in how many of them no label qualified; these rows say `"abstained": true`.
    """
    n = n_abstained = 0
    with atomic_write(out) as stream:
        for block, tags_of_block in decide_documents(folder, documents, rule):
            for document, tags in zip(block, tags_of_block, strict=True):
                row = {
                    **({"line": document.line} if document.id is None else {"id": document.id}),
                    "labels": [name for name, _ in tags],
                    "probabilities": [round(probability, 6) for _, probability in tags],
                    **({} if tags else {"abstained": True}),
                }
                stream.write((json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8"))
                n_abstained += not tags
            n += len(block)
            advance(len(block))
    return n, n_abstained
