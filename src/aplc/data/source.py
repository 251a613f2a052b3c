"""What training reads: documents that can be read again and again, the label set, and which documents are held out."""

import contextlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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
from aplc.data.more import More
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
    more: More | None = None
    """Documents that are trained on, too, and never held out."""

    @classmethod
    def from_corpus(cls, corpus: Corpus, more: Sequence[Path] = ()) -> "Source":
        dev = (lambda: corpus.documents("dev")) if "dev" in corpus.parts else None
        hashes = corpus.fingerprint("train"), corpus.fingerprint("dev") if dev else None
        key = digest(*hashes, corpus.bad_rows.mode, *corpus.columns.key)
        name = str(corpus.file("train"))
        return cls(lambda: corpus.documents("train"), dev, key, cache_root(), name, More.open(more, corpus))

    @classmethod
    @contextlib.contextmanager
    def from_memory(cls, documents: list[Document]) -> Iterator["Source"]:
        """Documents at hand; derived files live as long as the block."""
        with tempfile.TemporaryDirectory(prefix="aplc-") as folder:
            yield cls(lambda: iter(documents), None, "memory", Path(folder))

    def training(self) -> Iterator[Document]:
        """All documents to train on or hold out: of the training part, then those of `more`."""
        yield from self.train()
        if self.more:
            yield from self.more.documents()

    @property
    def training_key(self) -> str:
        """`key` for what is made of all of them."""
        return digest(self.key, self.more.key) if self.more else self.key

    @property
    def identity(self) -> dict[str, str | None]:
        """What a run on it must be resumed with."""
        return {"corpus": self.key, "more": self.more.key if self.more else None}

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
        documents, key = (self.training, self.training_key) if part == "train" else (self.dev, self.key)
        assert documents is not None
        folder = self.cache / "encoded" / digest(VERSION, key, part, name, labels.names)
        with screen.bar(f"reading {part}", total) as advance:
            return DocumentCache.build(folder, documents(), encode, dtype, labels, advance)


@dataclass(frozen=True)
class TrainingData:
    """A source, read once: what every kind of model needs to know before it is trained."""

    source: Source
    labels: LabelSet
    n_documents: int
    """In the training part and in what `--more` adds to it, held-out ones included."""
    n_characters: int
    train_rows: NDArray[np.int64]
    """Numbers of the documents that are trained on, as `source.training` counts them.

    Which of these are only partly reviewed, and what they reject, is in the cache that `source.encoded` makes."""
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
    with screen.bar("counting labels") as advance:
        train = _Count.of(source.train(), advance)
        more = _Count.of(source.more.documents() if source.more else (), advance)
    if train.check.documents == 0:
        raise CorpusError(f"{source.name}: no documents to train on")
    counter, n_documents = train.counter + more.counter, train.check.documents + more.check.documents
    labels = LabelSet.from_counter(counter, config.min_count, name=source.name)
    left_out = len(counter) - len(labels)
    screen.say(
        f"corpus: {train.check.documents:,} training documents, {len(labels):,} labels"
        + (f" ({left_out:,} rarer than data.min_count = {config.min_count} left out)" if left_out else "")
    )
    for warning in [*train.check.warnings("train"), *label_warnings(train.counter, train.check)]:
        screen.say(f"warning: {warning}")
    if source.more:
        _say_more(source.more.name, train, more, screen)
    if source.dev and any(document.partial for document in source.dev()):
        raise CorpusError(
            "the dev part holds feedback, which says nothing of most labels, and can't be held out; give it as --more"
        )
    train_rows, valid_rows = split_rows(source, train.check.documents, config, seed, partial=train.partial)
    if source.dev:
        screen.say(f"validation: the corpus' dev part, {len(valid_rows):,} documents")
    elif len(valid_rows):
        screen.say(f"validation: {len(valid_rows):,} documents held out (data.validation = {config.validation})")
    else:
        screen.say(f"validation: none (data.validation = {config.validation} of {train.check.documents:,} documents)")
    train_rows = np.concatenate([train_rows, np.arange(train.check.documents, n_documents)])
    return TrainingData(source, labels, n_documents, train.characters + more.characters, train_rows, valid_rows)


@dataclass
class _Count:
    """What a pass over documents to train on finds."""

    counter: Counter[str] = field(default_factory=Counter)
    check: PartCheck = field(default_factory=PartCheck)
    characters: int = 0
    partial: list[int] = field(default_factory=list)
    """Numbers of the partly reviewed ones."""

    @classmethod
    def of(cls, documents: Iterable[Document], advance: Callable[[], None]) -> "_Count":
        found = cls()
        for i, document in enumerate(documents):
            found.counter.update(document.labels)
            found.check.add(document)
            found.characters += len(document.text)
            if document.partial:
                found.partial.append(i)
            advance()
        return found


def _say_more(name: str, train: _Count, more: _Count, screen: Screen) -> None:
    """What `--more` brings, and what may be wrong with it."""
    n, new = more.check.documents, len(more.counter.keys() - train.counter.keys())
    partly = f", {len(more.partial):,} of them partly reviewed" if more.partial else ""
    screen.say(f"more: {n:,} documents{partly}, {new:,} labels that the training part lacks ({name})")
    if n == 0:
        raise CorpusError(f"{name}: no documents in it; is it the right file?")
    for warning in more.check.warnings("--more"):
        screen.say(f"warning: {warning}")
    if shared := int(np.isin(more.check.text_hashes, train.check.text_hashes).sum()):
        screen.say(
            f"warning: {shared:,} documents of --more have a text that is in train too: both are learned from, and "
            "held-out figures are too high if such a document is held out"
        )


def split_rows(
    source: Source, n_documents: int, config: TextsConfig, seed: int, *, partial: Sequence[int] = ()
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(training rows, held-out rows); the latter count in the dev part where there is one.

    Documents that are only partly reviewed (`partial`) can teach, but not judge: they are never held out.
    """
    if source.dev:
        return np.arange(n_documents), np.arange(sum(1 for _ in source.dev()))
    if not partial:
        return hold_out(n_documents, config, seed)
    whole = np.setdiff1d(np.arange(n_documents), partial)
    train, valid = hold_out(len(whole), config, seed)
    return np.union1d(whole[train], np.array(partial, dtype=np.int64)), whole[valid]


def hold_out(n: int, config: TextsConfig, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(training rows, held-out rows) of n, both in rising order."""
    size = min(int(n * config.validation), config.validation_limit)
    shuffled = np.random.default_rng([seed, 0x5EED]).permutation(n)
    return np.sort(shuffled[size:]), np.sort(shuffled[:size])
