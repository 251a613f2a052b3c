"""What training reads: documents that can be read again and again, the label set, and which documents are held out."""

import contextlib
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aplc.config import DataConfig, TextsConfig
from aplc.console import Screen
from aplc.data.by_name import ByName
from aplc.data.cache import VERSION, DocumentCache, Encode
from aplc.data.checks import PartCheck, count, label_warnings, named, shorten
from aplc.data.corpus import Corpus, Part
from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.data.more import More
from aplc.data.vocabulary import Vocabulary
from aplc.errors import CorpusError
from aplc.files import cache_root, digest


@dataclass(frozen=True)
class Source:
    """Documents that can be read again and again."""

    read_train: Callable[[], Iterator[Document]]
    """Documents as they are in the file; `train` has the vocabulary's labels where they carry names."""
    read_dev: Callable[[], Iterator[Document]] | None
    key: str
    """A hash of the content and of how it is read."""
    cache: Path
    """Where derived files go."""
    name: str = "the training part"
    """For messages: the file that is read."""
    read_vocabulary: Callable[[], Vocabulary | None] = lambda: None
    """Called when it is needed first: pretraining has no use for it."""
    more: More | None = None
    """Documents that are trained on, too, and never held out."""
    match_names: bool = True
    """Whether documents may carry names of labels instead of labels (`by_name.py`)."""

    @classmethod
    def from_corpus(
        cls, corpus: Corpus, vocabulary: Path | None = None, language: str | None = None, more: Sequence[Path] = ()
    ) -> "Source":
        """A corpus with its own vocabulary, or with that of a file; `language` is for `Vocabulary.read`."""
        file = vocabulary or corpus.vocabulary_file
        dev = (lambda: corpus.documents("dev")) if "dev" in corpus.parts else None
        hashes = corpus.fingerprint("train"), corpus.fingerprint("dev") if dev else None
        key = digest(*hashes, corpus.bad_rows.mode, *corpus.columns.key)
        return cls(
            *(lambda: corpus.documents("train"), dev, key, cache_root(), str(corpus.file("train"))),
            read_vocabulary=lambda: Vocabulary.read(file, language) if file else None,
            more=More.open(more, corpus),
        )

    @classmethod
    @contextlib.contextmanager
    def from_memory(
        cls, documents: list[Document], vocabulary: Vocabulary | None = None, *, match_names: bool = True
    ) -> Iterator["Source"]:
        """Documents at hand; derived files live as long as the block."""
        with tempfile.TemporaryDirectory(prefix="aplc-") as folder:
            yield cls(
                *(lambda: iter(documents), None, "memory", Path(folder)),
                read_vocabulary=lambda: vocabulary,
                match_names=match_names,
            )

    @cached_property
    def vocabulary(self) -> Vocabulary | None:
        return self.read_vocabulary()

    @cached_property
    def by_name(self) -> ByName | None:
        return ByName(self.vocabulary) if self.match_names and self.vocabulary else None

    def train(self) -> Iterator[Document]:
        return self._matched(self.read_train())

    @property
    def dev(self) -> Callable[[], Iterator[Document]] | None:
        read = self.read_dev
        return None if read is None else lambda: self._matched(read())

    def more_documents(self) -> Iterator[Document]:
        return self._matched(self.more.documents() if self.more else iter(()))

    def _matched(self, documents: Iterator[Document]) -> Iterator[Document]:
        return map(self.by_name, documents) if self.by_name else documents

    @property
    def files(self) -> dict[str, Any]:
        """The part of `identity` that is known before a document is read."""
        return {"corpus": self.key, "more": self.more.key if self.more else None}

    @property
    def identity(self) -> dict[str, Any]:
        """What a run on it is started with, and must be resumed with; known when the documents were read."""
        vocabulary = self.vocabulary.key if self.vocabulary else None
        by_name = self.by_name is not None and bool(self.by_name.found)
        return self.files | {"vocabulary": digest(vocabulary, "by name") if by_name else vocabulary}

    def more_labels(self, config: DataConfig) -> Collection[str]:
        """Labels that the vocabulary adds to those of the documents."""
        return self.vocabulary.entries.keys() if self.vocabulary and config.vocabulary_labels == "all" else ()

    def training(self) -> Iterator[Document]:
        """All documents to train on or hold out: of the training part, then those of `more`."""
        yield from self.train()
        yield from self.more_documents()

    @property
    def training_key(self) -> str:
        """`key` for what is made of all of them."""
        return digest(self.key, self.more.key) if self.more else self.key

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
        names = [self.by_name.vocabulary.key] if self.by_name else []  # it says which labels names stand for
        folder = self.cache / "encoded" / digest(VERSION, key, part, name, labels.names, *names)
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

    @property
    def vocabulary(self) -> Vocabulary | None:
        return self.source.vocabulary

    def with_seen_labels(self) -> "TrainingData":
        """Without the labels that only the vocabulary has."""
        return replace(self, labels=self.labels.seen)

    def held_out(self) -> Iterator[Document]:
        """The held-out documents, read again."""
        part = self.source.dev or self.source.train
        wanted = set(self.valid_rows.tolist())
        if wanted:
            yield from (document for i, document in enumerate(part()) if i in wanted)


def read_training_data(source: Source, config: DataConfig, seed: int, screen: Screen) -> TrainingData:
    """Count labels, say what looks wrong, and choose the documents to hold out."""
    added = source.more_labels(config)  # reads the vocabulary: its errors come before minutes of reading a corpus
    with screen.bar("counting labels") as advance:
        train = _Count.of(source.train(), advance)
        more = _Count.of(source.more_documents(), advance)
    if train.check.documents == 0:
        raise CorpusError(f"{source.name}: no documents to train on")
    counter, n_documents = train.counter + more.counter, train.check.documents + more.check.documents
    say_names(source, screen)
    labels = LabelSet.from_counter(counter, config.min_count, more=added, name=source.name)
    left_out = len(counter) - labels.n_seen
    screen.say(
        f"corpus: {count(train.check.documents, 'training document')}, {count(labels.n_seen, 'label')}"
        + (f" ({left_out:,} rarer than data.min_count = {config.min_count} left out)" if left_out else "")
    )
    warnings = [*train.check.warnings("train"), *label_warnings(train.counter, train.check)]
    if source.vocabulary:
        screen.say(describe_vocabulary(source.vocabulary, counter, all_labels=bool(added)))
        warnings += vocabulary_warnings(source.vocabulary, counter)
    for warning in warnings:
        screen.say(f"warning: {warning}")
    if source.more:
        _say_more(source.more.name, train, more, screen)
    if source.dev and any(document.partial for document in source.dev()):
        raise CorpusError(
            "the dev part holds feedback, which says nothing of most labels, and can't be held out; give it as --more"
        )
    train_rows, valid_rows = split_rows(source, train.check.documents, config, seed, partial=train.partial)
    if source.dev:
        limit = config.validation_limit
        limited = f" (data.validation_limit = {limit:,})" if len(valid_rows) == limit else ""
        screen.say(f"validation: {count(len(valid_rows), 'document')} of the corpus' dev part{limited}")
    elif len(valid_rows):
        screen.say(f"validation: {count(len(valid_rows), 'document')} held out (data.validation = {config.validation})")
    else:
        screen.say(
            f"validation: none (data.validation = {config.validation} of {count(train.check.documents, 'document')})"
        )
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


def say_names(source: Source, screen: Screen) -> None:
    """Once documents were read: which of their labels were names."""
    for line in source.by_name.describe() if source.by_name else ():
        screen.say(line)


def _say_more(name: str, train: _Count, more: _Count, screen: Screen) -> None:
    """What `--more` brings, and what may be wrong with it."""
    n, new = more.check.documents, len(more.counter.keys() - train.counter.keys())
    partly = f", {len(more.partial):,} of them partly reviewed" if more.partial else ""
    screen.say(f"more: {count(n, 'document')}{partly}, {count(new, 'label')} that the training part lacks ({name})")
    if n == 0:
        raise CorpusError(f"{name}: no documents in it; is it the right file?")
    for warning in more.check.warnings("--more"):
        screen.say(f"warning: {warning}")
    if shared := int(np.isin(more.check.text_hashes, train.check.text_hashes).sum()):
        screen.say(
            f"warning: {shared:,} documents of --more have a text that is in train too: both are learned from, and "
            "held-out figures are too high if such a document is held out"
        )


def describe_vocabulary(vocabulary: Vocabulary, counter: Counter[str], *, all_labels: bool = True) -> str:
    """A line: how many entries, how many labels of the corpus have none, how many labels have no training document."""
    lacking = [label for label in counter if label not in vocabulary.entries]
    without = len(vocabulary.entries) - (len(counter) - len(lacking))
    parts = [f"vocabulary: {len(vocabulary.entries):,} entries in {vocabulary.file}"]
    if lacking:
        examples = named([shorten(label) for label in lacking])
        parts.append(f"{len(lacking):,} of the corpus' {len(counter):,} labels have none ({examples})")
    if without:
        left_out = "" if all_labels else ", and are left out (data.vocabulary_labels = seen)"
        parts.append(f"{count(without, 'label')} {'has' if without == 1 else 'have'} no training document{left_out}")
    return "; ".join(parts)


def vocabulary_warnings(vocabulary: Vocabulary, labels: Collection[str]) -> list[str]:
    """What looks wrong with a vocabulary for a corpus with these labels."""
    found = vocabulary.warnings()
    if labels and not any(label in vocabulary.entries for label in labels):
        (label, *_), (first, *_) = labels, vocabulary.entries
        found.append(
            f"{vocabulary.file}: none of the documents' labels, such as {shorten(label)!r}, is a label or a name in "
            f"it; its first is {shorten(vocabulary.shown(first))!r}. Is it the right file, --labels-column, "
            "--label-separator or --language? Fine if all of its labels are new ones"
        )
    return found


def split_rows(
    source: Source, n_documents: int, config: TextsConfig, seed: int, *, partial: Sequence[int] = ()
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(training rows, held-out rows); the latter count in the dev part where there is one.

    Documents that are only partly reviewed (`partial`) can teach, but not judge: they are never held out.
    """
    if source.dev:
        n = sum(1 for _ in source.dev())
        return np.arange(n_documents), _drawn(n, min(n, config.validation_limit), seed)[1]
    if not partial:
        return hold_out(n_documents, config, seed)
    whole = np.setdiff1d(np.arange(n_documents), partial)
    train, valid = hold_out(len(whole), config, seed)
    return np.union1d(whole[train], np.array(partial, dtype=np.int64)), whole[valid]


def hold_out(n: int, config: TextsConfig, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(training rows, held-out rows) of n, both in rising order."""
    return _drawn(n, min(int(n * config.validation), config.validation_limit), seed)


def _drawn(n: int, size: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(the others, `size` numbers drawn of n), both in rising order."""
    shuffled = np.random.default_rng([seed, 0x5EED]).permutation(n)
    return np.sort(shuffled[size:]), np.sort(shuffled[:size])
