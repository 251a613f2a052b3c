"""Tagging: token rows or documents in, top-k label ids and probabilities out, in the order they came.

Documents are taken in blocks; within a block batches are formed by length, so that padding is rare and memory stays
constant however long the input is.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from aplc.data.batches import Collator, by_length, prefetch
from aplc.data.formats import Document
from aplc.data.tokens import blocks
from aplc.distributed import world
from aplc.files import atomic_write
from aplc.folder import ModelFolder
from aplc.nn.model import TaggingModel

BLOCK = 2_048
"""Documents held at a time."""
BATCH = 32

Ids = NDArray[np.int64]
Probs = NDArray[np.float32]


@torch.inference_mode()
def predict_rows(
    model: TaggingModel, collate: Collator, rows: Sequence[Sequence[int] | NDArray], k: int
) -> tuple[Ids, Probs]:
    """(ids, probs) of shape (n, k) for token rows; -1 and 0 where there are fewer than k labels.

    Under `torchrun` the batches are shared out among the ranks, and every rank gets all results.
    """
    device = next(model.parameters()).device
    ids = np.full((len(rows), k), -1, dtype=np.int64)
    probs = np.zeros((len(rows), k), dtype=np.float32)
    training = model.training
    model.eval()
    batches = world().share(by_length([min(len(row), collate.max_length) for row in rows], BATCH))
    for members, batch in zip(
        batches, prefetch(lambda m: collate([rows[i] for i in m], [[]] * len(m)), batches), strict=True
    ):
        best_probs, best_ids = model.topk(batch.to(device), k)
        ids[members, : best_ids.shape[1]] = best_ids.cpu().numpy()
        probs[members, : best_probs.shape[1]] = best_probs.float().cpu().numpy()
    model.train(training)
    mine = np.concatenate(batches) if batches else np.empty(0, dtype=np.int64)
    for members, their_ids, their_probs in world().gather((mine, ids[mine], probs[mine])):
        ids[members], probs[members] = their_ids, their_probs
    return ids, probs


def predict_documents(
    folder: ModelFolder, documents: Iterable[Document], k: int
) -> Iterator[tuple[list[Document], Ids, Probs]]:
    """Blocks of (documents, ids, probs)."""
    for block in blocks(documents, BLOCK):
        rows = folder.tokenizer.encode([document.text for document in block])
        yield block, *predict_rows(folder.model, folder.collator, rows, k)


def name_tags(folder: ModelFolder, ids: NDArray, probs: NDArray, threshold: float = 0.0) -> list[tuple[str, float]]:
    """One document's (label, probability) pairs, best first."""
    names = folder.labels.names
    return [(names[i], float(p)) for i, p in zip(ids, probs, strict=True) if i >= 0 and p >= threshold]


def predict_file(
    folder: ModelFolder,
    documents: Iterable[Document],
    out: Path,
    k: int,
    threshold: float = 0.0,
    advance: Callable[[int], None] = lambda _: None,
) -> int:
    """Stream predictions to a JSON Lines file that appears when whole; returns how many documents it has."""
    n = 0
    with atomic_write(out) as stream:
        for block, ids, probs in predict_documents(folder, documents, min(k, len(folder.labels))):
            for i, document in enumerate(block):
                tags = name_tags(folder, ids[i], probs[i], threshold)
                row = {
                    **({"line": document.line} if document.id is None else {"id": document.id}),
                    "labels": [name for name, _ in tags],
                    "probabilities": [round(probability, 6) for _, probability in tags],
                }
                stream.write((json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8"))
            n += len(block)
            advance(len(block))
    return n
