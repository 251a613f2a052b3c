"""From documents to everything training needs: label set, tokenizer, token caches, and the held-out rows."""

import contextlib
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aplc.config import WORDS, Config, TextsConfig
from aplc.console import Screen
from aplc.data.corpus import Corpus
from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.data.tokenizer import TOKENIZER_VERSION as TOKENIZER
from aplc.data.tokenizer import Tokenizer
from aplc.data.tokens import VERSION, TokenCache
from aplc.errors import CorpusError
from aplc.files import cache_root, cached, digest
from aplc.nn.weights import encoder_folder
from aplc.pretrain.config import PretrainConfig

CHARACTERS_PER_PIECE = 500
"""Text a tokenizer is trained on, for each piece it will have; more changes the pieces little and costs minutes."""

SAMPLE = 2_000
"""Characters drawn at a time."""


@dataclass(frozen=True)
class Source:
    """Training data that can be read again and again."""

    train: Callable[[], Iterator[Document]]
    dev: Callable[[], Iterator[Document]] | None
    key: str
    """A hash of the content."""
    cache: Path
    """Where derived files go."""

    @classmethod
    def from_corpus(cls, corpus: Corpus) -> "Source":
        dev = (lambda: corpus.documents("dev")) if "dev" in corpus.parts else None
        key = digest(corpus.fingerprint("train"), corpus.fingerprint("dev") if dev else None, corpus.bad_rows.mode)
        return cls(lambda: corpus.documents("train"), dev, key, cache_root())

    @classmethod
    @contextlib.contextmanager
    def from_memory(cls, documents: list[Document]) -> Iterator["Source"]:
        """Documents at hand; derived files live as long as the block."""
        with tempfile.TemporaryDirectory(prefix="aplc-") as folder:
            yield cls(lambda: iter(documents), None, "memory", Path(folder))


@dataclass(frozen=True)
class Prepared:
    labels: LabelSet
    tokenizer: Tokenizer
    n_documents: int
    train: TokenCache
    train_rows: NDArray[np.int64]
    valid: TokenCache
    valid_rows: NDArray[np.int64]
    """Rows of `valid` held out of training; none in a corpus too small for it."""


def prepare(source: Source, config: Config, screen: Screen) -> Prepared:
    counter: Counter[str] = Counter()
    n_documents = n_characters = 0
    with screen.bar("counting labels") as advance:
        for document in source.train():
            counter.update(document.labels)
            n_documents += 1
            n_characters += len(document.text)
            advance()
    if n_documents == 0:
        raise CorpusError("the training part has no documents")
    labels = LabelSet.from_counter(counter, config.data.min_count)
    left_out = len(counter) - len(labels)
    screen.say(
        f"corpus: {n_documents:,} training documents, {len(labels):,} labels"
        + (f" ({left_out:,} rarer than data.min_count = {config.data.min_count} left out)" if left_out else "")
    )
    tokenizer = choose_tokenizer(source, config, n_characters, screen)

    train = tokenize(source, "train", tokenizer, labels, screen, n_documents)
    if source.dev:
        valid = tokenize(source, "dev", tokenizer, labels, screen)
        train_rows, valid_rows = np.arange(len(train)), np.arange(len(valid))
        screen.say(f"validation: the corpus' dev part, {len(valid_rows):,} documents")
    else:
        valid = train
        train_rows, valid_rows = hold_out(len(train), config.data, config.train.seed)
        screen.say(
            f"validation: {len(valid_rows):,} documents held out (data.validation = {config.data.validation})"
            if len(valid_rows)
            else f"validation: none (data.validation = {config.data.validation} of {len(train):,} documents)"
        )
    return Prepared(labels, tokenizer, n_documents, train, train_rows, valid, valid_rows)


def tokenize(
    source: Source,
    part: Literal["train", "dev"],
    tokenizer: Tokenizer,
    labels: LabelSet,
    screen: Screen,
    total: int | None = None,
) -> TokenCache:
    documents = source.train if part == "train" else source.dev
    assert documents is not None
    key = digest(VERSION, source.key, part, tokenizer.fingerprint, labels.names)
    with screen.bar(f"tokenizing {part}", total) as advance:
        return TokenCache.build(source.cache / "tokens" / key, documents(), tokenizer, labels, advance)


def hold_out(n: int, config: TextsConfig, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(training rows, held-out rows) of n, both in rising order."""
    size = min(int(n * config.validation), config.validation_limit)
    shuffled = np.random.default_rng([seed, 0x5EED]).permutation(n)
    return np.sort(shuffled[size:]), np.sort(shuffled[:size])


def choose_tokenizer(source: Source, config: Config | PretrainConfig, n_characters: int, screen: Screen) -> Tokenizer:
    if config.data.tokenizer:
        tokenizer = Tokenizer.load(Path(config.data.tokenizer))
        screen.say(f"tokenizer: {config.data.tokenizer}, {tokenizer.vocab_size:,} pieces")
        return tokenizer
    if config.model.encoder not in ("new", WORDS):
        tokenizer = Tokenizer.load(encoder_folder(config.model.encoder))
        screen.say(f"tokenizer: the encoder's own, {tokenizer.vocab_size:,} pieces")
        return tokenizer

    vocab_size = config.data.vocab_size
    share = CHARACTERS_PER_PIECE * vocab_size / max(1, n_characters)

    def build(aside: Path) -> None:
        with screen.bar("training the tokenizer"):
            Tokenizer.train(_sample(source.train(), share), vocab_size).save(aside)

    folder = source.cache / "tokenizers" / digest(source.key, vocab_size, CHARACTERS_PER_PIECE, TOKENIZER)
    tokenizer = Tokenizer.load(cached(folder, build))
    screen.say(f"tokenizer: Unigram, {tokenizer.vocab_size:,} pieces, trained on the corpus")
    return tokenizer


def _sample(documents: Iterator[Document], share: float) -> Iterator[str]:
    """About this share of the text, in pieces drawn from all over the corpus and from the start of it."""
    rng = random.Random(0)
    first = True
    for document in documents:
        for start in range(0, len(document.text), SAMPLE):
            if first or rng.random() < share:
                first = False
                yield document.text[start : start + SAMPLE]
