"""Loads a SentencePiece Unigram model, such as XLNet's `spiece.model`, as a `tokenizers.Tokenizer`.

`transformers` splits text at symbols like "-" before the model sees it, and turns "<sep>" inside a text into a control
token; SentencePiece does neither. Here the model's own pieces, scores and normalisation go into `tokenizers`' Unigram
model, without added tokens. So the ids are SentencePiece's, and can be saved as `tokenizer.json` and used without the
`sentencepiece` package. The model file is a protocol buffer; `_fields` reads the few fields that matter.

One difference is left: SentencePiece sums scores in float32 over the whole text. Far into a long text it may therefore
choose another of two splits of a word whose scores agree to four digits. Figures are in `docs/encoder.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from aplc.data.template import set_xlnet_template
from aplc.errors import ModelError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM = 1
_NEVER = -1e6  # score of a piece that must not be chosen; far below any path of normal pieces


@dataclass(frozen=True)
class SpieceModel:
    """The fields of sentencepiece_model.proto that decide how text is split."""

    pieces: list[tuple[str, float, int]]  # piece, score, type
    model_type: int
    byte_fallback: bool
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool


def load_spiece(path: str | Path) -> Tokenizer:
    """A tokenizer that gives SentencePiece's ids, with XLNet's `text <sep> <cls>` (segments 0, 0, 2) around them."""
    path = Path(path)
    model = read_spiece(path)
    if model.model_type != UNIGRAM:
        raise ModelError(f"{path} is not a Unigram model, as XLNet's is; its model_type is {model.model_type}")
    unknown = next((i for i, (_, _, kind) in enumerate(model.pieces) if kind == UNKNOWN), None)
    if unknown is None:
        raise ModelError(f"{path} has no unknown piece; is it a SentencePiece model?")
    tokenizer = Tokenizer(models.Unigram(_scored(model), unk_id=unknown, byte_fallback=model.byte_fallback))
    tokenizer.normalizer = _normalizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always" if model.add_dummy_prefix else "never")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always" if model.add_dummy_prefix else "never")
    if None not in map(tokenizer.token_to_id, ("<sep>", "<cls>")):
        set_xlnet_template(tokenizer)
    return tokenizer


def _scored(model: SpieceModel) -> list[tuple[str, float]]:
    """Pieces with the scores that SentencePiece's search uses."""
    best = max(score for _, score, kind in model.pieces if kind == NORMAL)
    scored = []
    for piece, score, kind in model.pieces:
        if kind == USER_DEFINED:  # it wins against any other split (unigram_model.cc)
            scored.append((piece, len(piece.encode()) * best - 0.1))
        else:
            scored.append((piece, score if kind == NORMAL else _NEVER))
    return scored


def _normalizer(model: SpieceModel) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = []
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    if model.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(" +"), " "), normalizers.Replace(Regex("^ | $"), "")]
    return normalizers.Sequence(steps)


def read_spiece(path: Path) -> SpieceModel:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"can't read {path}: {error.strerror}; put the model's spiece.model there") from error
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, int | bytes] = {}
    rules: dict[int, int | bytes] = {}
    try:
        for number, value in _fields(content):
            if number == 1 and isinstance(value, bytes):
                piece = dict(_fields(value))
                (score,) = struct.unpack("<f", _bytes(piece, 2, bytes(4)))
                pieces.append((_bytes(piece, 1).decode(), score, _int(piece, 3, NORMAL)))
            elif number == 2 and isinstance(value, bytes):
                trainer = dict(_fields(value))
            elif number == 3 and isinstance(value, bytes):
                rules = dict(_fields(value))
        if not pieces:
            raise ValueError("no pieces")
    except (ValueError, IndexError, struct.error) as error:
        raise ModelError(f"{path} is not a SentencePiece model ({error}): copy it again") from error
    return SpieceModel(
        pieces=pieces,
        model_type=_int(trainer, 3, UNIGRAM),
        byte_fallback=bool(_int(trainer, 35, 0)),
        charsmap=_bytes(rules, 2),
        add_dummy_prefix=bool(_int(rules, 3, 1)),
        remove_extra_whitespaces=bool(_int(rules, 4, 1)),
    )


def _int(fields: dict[int, int | bytes], number: int, default: int) -> int:
    value = fields.get(number, default)
    if not isinstance(value, int):
        raise ValueError(f"field {number} is not a number")
    return value


def _bytes(fields: dict[int, int | bytes], number: int, default: bytes = b"") -> bytes:
    value = fields.get(number, default)
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} is not a string")
    return value


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Fields of a protocol buffer message: (number, value); fixed-width numbers and submessages stay bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        number, wire = key >> 3, key & 7
        if wire == 0:
            yield number, varint()
            continue
        size = {1: 8, 5: 4}.get(wire) if wire != 2 else varint()
        if size is None or at + size > len(message):
            raise ValueError(f"broken field {number}")
        yield number, message[at : at + size]
        at += size
