"""From a corpus to segments: which files, which tokenizer, which documents are held out."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aplc.console import Screen
from aplc.data.cache import DocumentCache
from aplc.data.columns import Columns
from aplc.data.corpus import PARTS, Corpus
from aplc.data.formats import SUFFIXES, BadRows
from aplc.data.labels import LabelSet
from aplc.data.source import Source, split_rows
from aplc.data.tokenizer import Tokenizer
from aplc.errors import CorpusError
from aplc.files import cache_root, digest
from aplc.pretrain.config import PretrainConfig
from aplc.pretrain.segments import Segments
from aplc.train.prepare import choose_tokenizer, tokenize

COUNTED = 1 << 22
"""Tokens counted at a time."""
NO_LABELS = LabelSet((), np.empty(0, dtype=np.int64))


def open_texts(path: Path, bad_rows: BadRows, columns: Columns | None = None) -> Source:
    """A corpus (its test part is left alone), or a folder of files in any of our formats, which are all read."""
    columns = columns or Columns()
    if path.is_dir() and not any((path / f"{part}{suffix}").is_file() for part in PARTS for suffix in SUFFIXES):
        files = sorted(file for file in path.iterdir() if file.name.lower().endswith(SUFFIXES) and file.is_file())
        if not files:
            raise CorpusError(f"{path}: no text there; known are {', '.join(SUFFIXES)}")
        corpora = [Corpus.open(file, bad_rows, columns) for file in files]
        key = digest([corpus.fingerprint("train") for corpus in corpora], bad_rows.mode, *columns.key)
        return Source(lambda: (d for corpus in corpora for d in corpus.documents("train")), None, key, cache_root())
    return replace(Source.from_corpus(Corpus.open(path, bad_rows, columns)), match_names=False)


@dataclass(frozen=True)
class PretrainingData:
    tokenizer: Tokenizer
    train: Segments
    valid: Segments | None
    """None where too little text is held out for one segment."""
    unigram: NDArray[np.float64]
    """Log-probability of each piece by its frequency in the training text, the baseline of any language model."""


def prepare(source: Source, config: PretrainConfig, screen: Screen) -> PretrainingData:
    n_documents = n_characters = 0
    with screen.bar("reading") as advance:
        for document in source.train():
            n_documents += 1
            n_characters += len(document.text)
            advance()
    if n_characters == 0:
        raise CorpusError("the corpus has no text")
    screen.say(f"corpus: {n_documents:,} documents, {n_characters:,} characters")
    tokenizer = choose_tokenizer(source, config.data, config.model, n_characters, screen)
    trained_here = not config.data.tokenizer and config.model.encoder == "new"
    if trained_here and tokenizer.vocab_size < config.data.vocab_size:
        raise CorpusError(
            f"data.vocab_size = {config.data.vocab_size}, but this text has only enough for {tokenizer.vocab_size} "
            f"pieces; pass --set data.vocab_size={tokenizer.vocab_size}, or bring more text"
        )
    train = valid = tokenize(source, "train", tokenizer, NO_LABELS, screen, n_documents)
    if source.dev:
        valid = tokenize(source, "dev", tokenizer, NO_LABELS, screen)
    train_rows, valid_rows = split_rows(source, len(train), config.data, config.train.seed)

    def segments(cache: DocumentCache, rows: NDArray[np.int64], batch_size: int) -> Segments:
        length, seed = config.data.max_length, config.train.seed
        return Segments(cache, rows, tokenizer, config.objective, length, batch_size, seed)

    training = segments(train, train_rows, config.train.batch_size)
    _check_size(training, config)
    fitting = segments(valid, valid_rows, 1)
    held_out = None
    if len(fitting):
        held_out = segments(valid, valid_rows, min(config.train.batch_size, len(fitting)))
        part = "of the corpus' dev part" if source.dev else f"held out (data.validation = {config.data.validation})"
        screen.say(f"validation: {len(valid_rows):,} documents, {held_out.n_tokens:,} tokens, {part}")
    else:
        screen.say("validation: none, what is held out is shorter than a segment; the last state is kept")
    return PretrainingData(tokenizer, training, held_out, _unigram(training))


def _check_size(training: Segments, config: PretrainConfig) -> None:
    possible = training.n_tokens // training.length
    if possible == 0:
        raise CorpusError(
            f"the corpus has {training.n_tokens:,} tokens to train on, fewer than one segment of data.max_length = "
            f"{training.length}; bring more text, or pass --set data.max_length={max(2, training.n_tokens // 4)}"
        )
    if possible < config.train.batch_size:
        raise CorpusError(
            f"the corpus has {possible:,} segments of data.max_length = {training.length} tokens to train on, fewer "
            f"than train.batch_size = {config.train.batch_size}; pass --set train.batch_size={possible}"
        )


def _unigram(training: Segments) -> NDArray[np.float64]:
    """With one added to every count, so that no piece is impossible."""
    cache, pieces = training.cache, training.tokenizer.vocab_size
    counts = np.ones(pieces)
    for start in range(0, len(cache.items), COUNTED):
        counts += np.bincount(cache.items[start : start + COUNTED], minlength=pieces)
    for row in np.setdiff1d(np.arange(len(cache)), training.rows):  # the few that are held out
        counts -= np.bincount(cache.document(row)[0], minlength=pieces)
    return np.log(counts / counts.sum())
