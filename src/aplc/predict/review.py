"""`aplc review`: which documents a person should look at first.

A label's calibrated probability p says how sure the model is: a decision for or against it is wrong with probability p
or 1 - p, whichever is smaller, its doubt. A document is worth what the doubts of its candidates add up to: the mistakes
that a review is expected to find. To ask about one label again and again teaches less each time, so a doubt is divided
by one more than what was asked about the label already, and documents are chosen one after another, the best first:

    value(document) = sum over its candidates of doubt / (1 + asked(label))
    asked(label)    = sum over the documents chosen so far of 2 doubt, which is 1 where p is 1/2

Texts wait in a temporary file, so memory is for numbers only: some 24 bytes a candidate, and a hundred a document to
leave out repeats and what was reviewed before.
"""

import json
import tempfile
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from scipy import sparse

from aplc.data.feedback import key_of
from aplc.data.formats import Document
from aplc.files import output_stream
from aplc.models.trained import TrainedTagger
from aplc.predict.search import name_tags, predict_documents

LEAST = 0.01
"""Smaller doubts don't count, and are not kept."""
SPREAD = 10_000
"""Documents chosen one after another; the others follow by the value they have then."""
DIGITS = 4
"""Of probabilities and priorities in the file."""


@dataclass
class Queued:
    """What became of the documents."""

    written: int = 0
    done: int = 0
    """Reviewed before."""
    repeated: int = 0
    empty: int = 0


def reviewed_keys(documents: Iterable[Document]) -> set[bytes]:
    """What tells that a document is among these, by its id or by its text."""
    return {key for d in documents for key in (key_of(d.id, d.text), key_of(None, d.text))}


def write_queue(
    trained: TrainedTagger,
    documents: Iterable[Document],
    out: Path,
    *,
    top_k: int,
    limit: int | None = None,
    done: Collection[bytes] = (),
    advance: Callable[[int], None] = lambda _: None,
) -> Queued:
    """Write the queue, JSON Lines, the document worth most first; it appears when complete."""
    queued, k = Queued(), min(top_k, len(trained.labels))
    ids, doubts, ends, places = array("i"), array("f"), array("q", [0]), array("q")
    with tempfile.TemporaryFile() as spool:
        fresh = _fresh(documents, done, queued)
        for block, found_ids, found_probs in predict_documents(trained, fresh, k):
            for document, own_ids, own_probs in zip(block, found_ids, found_probs, strict=True):
                doubt = np.minimum(own_probs, 1 - own_probs)
                counts = (own_ids >= 0) & (doubt >= LEAST)
                ids.extend(own_ids[counts].tolist())
                doubts.extend(doubt[counts].tolist())
                ends.append(len(ids))
                places.append(spool.tell())
                spool.write(_line(document, name_tags(trained, own_ids, own_probs)))
            advance(len(block))
        shape = (len(places), len(trained.labels))
        matrix = sparse.csr_array((np.array(doubts), np.array(ids), np.array(ends)), shape=shape)
        with output_stream(out) as stream:
            for i, value in most_valuable(matrix, limit):
                stream.write(_with_priority(spool, places[i], value))
                queued.written += 1
    return queued


def most_valuable(doubt_NL: sparse.csr_array, limit: int | None = None) -> Iterator[tuple[int, float]]:
    """(document, its value when it was chosen), of N documents x L labels with their doubts; best first."""
    n = doubt_NL.shape[0] if limit is None else min(limit, doubt_NL.shape[0])
    by_label, asked_L = doubt_NL.tocsc(), np.zeros(doubt_NL.shape[1])
    value_N = np.asarray(doubt_NL.sum(axis=1), dtype=np.float64)
    for _ in range(min(n, SPREAD)):
        best = int(value_N.argmax())
        yield best, max(float(value_N[best]), 0.0)
        own = slice(doubt_NL.indptr[best], doubt_NL.indptr[best + 1])
        for label, doubt in zip(doubt_NL.indices[own], doubt_NL.data[own], strict=True):
            before = 1 / (1 + asked_L[label])
            asked_L[label] += 2 * float(doubt)
            having = slice(by_label.indptr[label], by_label.indptr[label + 1])
            value_N[by_label.indices[having]] -= by_label.data[having] * (before - 1 / (1 + asked_L[label]))
        value_N[best] = -np.inf
    for i in np.argsort(-value_N, kind="stable")[: max(n - SPREAD, 0)]:
        yield int(i), max(float(value_N[i]), 0.0)


def _fresh(documents: Iterable[Document], done: Collection[bytes], queued: Queued) -> Iterator[Document]:
    """Documents with a text, each once, that were not reviewed before."""
    seen: set[bytes] = set()
    for document in documents:
        key, by_text = key_of(document.id, document.text), key_of(None, document.text)
        if not document.text.strip():
            queued.empty += 1
        elif key in done or by_text in done:
            queued.done += 1
        elif key in seen:
            queued.repeated += 1
        else:
            seen.add(key)
            yield document


def _line(document: Document, tags: list[tuple[str, float]]) -> bytes:
    """A line of the queue without its end, where the priority will be."""
    own = {} if document.id is None else {"id": document.id}
    proposed = [[name, round(p, DIGITS)] for name, p in tags]
    return json.dumps({**own, "text": document.text, "proposed": proposed}, ensure_ascii=False).encode()[:-1] + b"\n"


def _with_priority(spool: BinaryIO, place: int, value: float) -> bytes:
    spool.seek(place)
    return spool.readline().removesuffix(b"\n") + f', "priority": {round(value, DIGITS)}}}\n'.encode()
