"""One pass over a corpus part, for `aplc plan`: label counts, each document's labels, and a sample of documents.

Each label of a document takes four bytes during the pass; texts are kept of the sample only.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aplc.config import DataConfig
from aplc.console import Screen
from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.data.reservoir import Reservoir
from aplc.data.source import Source, say_names, vocabulary_warnings
from aplc.errors import CorpusError


@dataclass(frozen=True)
class Survey:
    labels: LabelSet
    n_documents: int
    n_characters: int
    label_offsets: NDArray[np.int64]
    label_ids: NDArray[np.int64]
    """Document i has the labels `label_ids[label_offsets[i]:label_offsets[i + 1]]`."""
    sample: list[Document]
    """Drawn uniformly at random."""


def survey_source(source: Source, config: DataConfig, sample_size: int, screen: Screen) -> Survey:
    """`survey` of a source's training part, with a progress bar."""
    with screen.bar("counting labels") as advance:
        found = survey(
            source.train(),
            sample_size=sample_size,
            min_count=config.min_count,
            more=source.more_labels(config),
            name=source.name,
            advance=advance,
        )
    say_names(source, screen)
    if source.vocabulary:
        for warning in vocabulary_warnings(source.vocabulary, found.labels.seen.names):
            screen.say(f"warning: {warning}")
    return found


def survey(
    documents: Iterable[Document],
    *,
    sample_size: int,
    min_count: int = 1,
    more: Iterable[str] = (),
    name: str = "the training part",
    advance: Callable[[], None] = lambda: None,
) -> Survey:
    """Read `documents` once. Labels of fewer than `min_count` documents are left out, and those of `more` that no
    document has come last; `name` is for messages."""
    first_ids: dict[str, int] = {}
    ids, lengths = array("i"), array("i")
    sample = Reservoir[Document](sample_size)
    n_characters = 0
    for document in documents:
        ids.extend(first_ids.setdefault(label, len(first_ids)) for label in document.labels)
        lengths.append(len(document.labels))
        n_characters += len(document.text)
        sample.add(document)
        advance()
    if not lengths:
        raise CorpusError(f"{name}: no documents to train on")
    found = np.array(ids, dtype=np.int64)
    counts = np.bincount(found, minlength=len(first_ids)).tolist()
    counter = Counter(dict(zip(first_ids, counts, strict=True)))
    labels = LabelSet.from_counter(counter, min_count, more=more, name=name)
    rank = np.array([labels.index.get(name, -1) for name in first_ids])[found]
    document_of = np.repeat(np.arange(len(lengths)), lengths)[rank >= 0]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(document_of, minlength=len(lengths)))])
    return Survey(labels, len(lengths), n_characters, offsets, rank[rank >= 0], sample.items)
