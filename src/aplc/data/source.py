"""What training reads: documents that can be read again and again, the label set, and which documents are held out."""

import contextlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aplc.config import DataConfig, TextsConfig
from aplc.console import Screen
from aplc.data.cache import VERSION, DocumentCache, Encode
from aplc.data.checks import PartCheck, label_warnings
from aplc.data.corpus import Corpus, Part
from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.errors import CorpusError
from aplc.files import cache_root, digest


@dataclass(frozen=True)
class Source:
    """Documents that can be read again and again."""

    train: Callable[[], Iterator[Document]]
    dev: Callable[[], Iterator[Document]] | None
    key: str
    """A hash of the content and of how it is read."""
    cache: Path
    """Where derived files go."""
    name: str = "the training part"
    """For messages: the file that `train` reads."""

    @classmethod
    def from_corpus(cls, corpus: Corpus) -> "Source":
        dev = (lambda: corpus.documents("dev")) if "dev" in corpus.parts else None
        hashes = corpus.fingerprint("train"), corpus.fingerprint("dev") if dev else None
        key = digest(*hashes, corpus.bad_rows.mode, *corpus.columns.key)
        return cls(lambda: corpus.documents("train"), dev, key, cache_root(), str(corpus.file("train")))

    @classmethod
    @contextlib.contextmanager
    def from_memory(cls, documents: list[Document]) -> Iterator["Source"]:
        """Documents at hand; derived files live as long as the block."""
        with tempfile.TemporaryDirectory(prefix="aplc-") as folder:
            yield cls(lambda: iter(documents), None, "memory", Path(folder))

    def encoded(
        self,
        part: Part,
        encode: Encode,
        dtype: np.dtype,
        labels: LabelSet,
        *,
        name: str,
        screen: Screen,
        total: int | None = None,
    ) -> DocumentCache:
        """A part through an encoding function, from the cache if it is there. `name` must tell encodings apart."""
        documents = self.train if part == "train" else self.dev
        assert documents is not None
        folder = self.cache / "encoded" / digest(VERSION, self.key, part, name, labels.names)
        with screen.bar(f"reading {part}", total) as advance:
            return DocumentCache.build(folder, documents(), encode, dtype, labels, advance)


@dataclass(frozen=True)
class TrainingData:
    """A source, read once: what every kind of model needs to know before it is trained."""

    source: Source
    labels: LabelSet
    n_documents: int
    """In the training part, held-out ones included."""
    n_characters: int
    train_rows: NDArray[np.int64]
    """Numbers of the training part's documents that are trained on."""
    valid_rows: NDArray[np.int64]
    """Numbers of the documents held out: of the dev part where there is one, else of the training part."""

    def held_out(self) -> Iterator[Document]:
        """The held-out documents, read again."""
        if self.source.dev:
            yield from self.source.dev()
            return
        wanted = set(self.valid_rows.tolist())
        if wanted:
            yield from (document for i, document in enumerate(self.source.train()) if i in wanted)


def read_training_data(source: Source, config: DataConfig, seed: int, screen: Screen) -> TrainingData:
    """Count labels, say what looks wrong, and choose the documents to hold out."""
    counter: Counter[str] = Counter()
    check, n_characters = PartCheck(), 0
    with screen.bar("counting labels") as advance:
        for document in source.train():
            counter.update(document.labels)
            check.add(document)
            n_characters += len(document.text)
            advance()
    n_documents = check.documents
    if n_documents == 0:
        raise CorpusError(f"{source.name}: no documents to train on")
    labels = LabelSet.from_counter(counter, config.min_count, name=source.name)
    left_out = len(counter) - len(labels)
    screen.say(
        f"corpus: {n_documents:,} training documents, {len(labels):,} labels"
        + (f" ({left_out:,} rarer than data.min_count = {config.min_count} left out)" if left_out else "")
    )
    for warning in [*check.warnings("train"), *label_warnings(counter, check)]:
        screen.say(f"warning: {warning}")
    train_rows, valid_rows = split_rows(source, n_documents, config, seed)
    if source.dev:
        screen.say(f"validation: the corpus' dev part, {len(valid_rows):,} documents")
    elif len(valid_rows):
        screen.say(f"validation: {len(valid_rows):,} documents held out (data.validation = {config.validation})")
    else:
        screen.say(f"validation: none (data.validation = {config.validation} of {n_documents:,} documents)")
    return TrainingData(source, labels, n_documents, n_characters, train_rows, valid_rows)


def split_rows(
    source: Source, n_documents: int, config: TextsConfig, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(training rows, held-out rows); the latter count in the dev part where there is one."""
    if source.dev:
        return np.arange(n_documents), np.arange(sum(1 for _ in source.dev()))
    return hold_out(n_documents, config, seed)


def hold_out(n: int, config: TextsConfig, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(training rows, held-out rows) of n, both in rising order."""
    size = min(int(n * config.validation), config.validation_limit)
    shuffled = np.random.default_rng([seed, 0x5EED]).permutation(n)
    return np.sort(shuffled[size:]), np.sort(shuffled[:size])
