"""Which words mattered for a label: leave each one out and see how much the label's log-odds fall.

Occlusion needs nothing but predictions, so it works for every encoder, for long texts in segments or windows, and for
exported models, and it means what it says; gradients at the embeddings would be one backward pass instead of a forward
pass a word, but stop at Transformer-XL's memory and at ONNX. The price is bounded: beyond `MAX_PARTS` words neighbours
are left out together.
"""

import re
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from aplc.data.batches import by_length
from aplc.data.scripts import UNSPACED, WORD
from aplc.models.base import LabelModel
from aplc.models.trained import TrainedTagger
from aplc.predict.search import predict_texts

MAX_PARTS = 128
LONGEST = 1 << 15
"""Characters that are looked at, or a long text would be read 128 times."""
_WORD = re.compile(rf"(?:{WORD})(?:['’-][^\W{UNSPACED}]+)*|[^\w\s]+|_+")
"""A word, also with a hyphen or an apostrophe in it, or punctuation."""


@dataclass(frozen=True)
class Part:
    """Characters start to stop of the text, and what they add to the label's log-odds; below 0, they speak against."""

    start: int
    stop: int
    effect: float


@dataclass(frozen=True)
class Explanation:
    probability: float
    """Of the label in the text, calibrated as in tagging; `effect` is about the model's own log-odds."""
    read: int
    """Characters of the text that were looked at: those that the model reads, and at most `LONGEST`."""
    parts: list[Part]


def explain(trained: TrainedTagger, text: str, label: str, *, max_parts: int = MAX_PARTS) -> Explanation:
    """How much each word of `text` speaks for `label`, which must be of the label set.

    One that others were merged into is explained as the one of them that it owes its probability to.
    """
    text = text[:LONGEST]
    read = trained.model.characters_read(text)
    spans = parts_of(text[:read], max_parts)
    variants = [text[:read], *(text[:start] + " " + text[stop:read] for start, stop in spans)]
    member = _member(trained, text[:read], trained.labels.index[label])
    probs = _probabilities(trained.model, variants, member)
    nearly_1 = 1 - np.finfo(probs.dtype).eps  # the type cannot tell higher ones apart
    odds = np.clip(probs, 1e-30, nearly_1).astype(np.float64)
    log_odds = np.log(odds) - np.log1p(-odds)
    effects = log_odds[0] - log_odds[1:]
    parts = [Part(start, stop, float(effect)) for (start, stop), effect in zip(spans, effects, strict=True)]
    return Explanation(float(trained.ranking.final(np.array([member]), probs[:1])[0]), read, parts)


def parts_of(text: str, max_parts: int) -> list[tuple[int, int]]:
    """(start, stop) of each word; of groups of neighbours, as even as can be, where there are more than `max_parts`."""
    words = [match.span() for match in _WORD.finditer(text)]
    n = min(len(words), max_parts)
    edges = [round(i * len(words) / n) for i in range(n + 1)] if n else []
    return [(words[first][0], words[last - 1][1]) for first, last in pairwise(edges)]


def _member(trained: TrainedTagger, text: str, label: int) -> int:
    members = trained.labels.stands_for == label
    if members.sum() == 1:
        return label
    apart = replace(trained.ranking, merged=None)
    return int(predict_texts(trained.model, [text], 1, ranking=apart, allowed=members)[0][0, 0])


def _probabilities(model: LabelModel, texts: list[str], label: int) -> np.ndarray:
    """The label's probability for each text."""
    batches = by_length([len(text) for text in texts], model.batch_size)
    parts = [model.probability_of(model.read(model.prepare([texts[i] for i in own])), label) for own in batches]
    return np.concatenate(parts)[np.argsort(np.concatenate(batches))]
