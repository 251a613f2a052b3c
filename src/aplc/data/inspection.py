"""`aplc inspect`: the columns of the paper's Table 1, the label distribution, and warnings about the corpus.

Each part is read once. Texts and words are kept as 64-bit hashes in arrays, eight bytes each: some tens of megabytes
for a corpus of two million documents. Labels are kept by name.
"""

import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from aplc.data.by_name import ByName
from aplc.data.cache import blocks
from aplc.data.checks import PartCheck, label_warnings
from aplc.data.corpus import Corpus, Part
from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.data.source import describe_vocabulary, vocabulary_warnings
from aplc.data.tokenizer import Tokenizer
from aplc.data.vocabulary import Vocabulary
from aplc.errors import CorpusError

PICTURE_WIDTH, PICTURE_HEIGHT = 64, 10
MUCH_CUT = 0.25
"""If the length limit cuts off more than this share of the text, there is a warning."""
DOCUMENTS_AT_ONCE = 1_024


@dataclass
class PartStatistics(PartCheck):
    words: int = 0
    cut: int = 0
    """Texts longer than the limit."""
    units: int = 0
    """Length of all texts, in words or tokens."""
    units_cut: int = 0
    """The part of it beyond the limit."""
    unseen: int = 0
    """Label assignments whose label is not in the training part."""


@dataclass(frozen=True)
class Length:
    """How the length of a text is measured, and where it would be cut."""

    limit: int | None
    """Tokens of a text, special tokens included; None for no limit."""
    tokenizer: Tokenizer | None = None
    """Without one, words are counted. A word has at least one token, so the shares reported are lower bounds."""

    @property
    def room(self) -> float:
        if self.limit is None:
            return math.inf
        return max(self.limit - (self.tokenizer.template.size if self.tokenizer else 2), 0)

    def measure(self, texts: list[str], n_words: list[int]) -> list[int]:
        return [len(ids) for ids in self.tokenizer.encode(texts)] if self.tokenizer else n_words


@dataclass
class Inspection:
    length: Length
    parts: dict[Part, PartStatistics] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    """Documents of each label in the training part (or the only file)."""
    n_words: int = 0
    """Distinct words of the training part, in lower case."""
    unseen: set[str] = field(default_factory=set)
    """Labels of other parts that the training part does not have."""
    shared: dict[Part, int] = field(default_factory=dict)
    """Documents of other parts whose text is in the training part."""
    vocabulary: Vocabulary | None = None
    by_name: ByName | None = None
    """What documents carry instead of its labels."""

    @property
    def first(self) -> PartStatistics:
        return next(iter(self.parts.values()))

    def render(self) -> str:
        first = self.first
        rows = [(f"documents in {part} (N_{part})", f"{s.documents:,}") for part, s in self.parts.items()]
        rows += [
            ("distinct words (D)", f"{self.n_words:,}"),
            ("labels (L)", f"{len(self.counts):,}"),
            ("labels a document", f"{first.labels / first.documents:.2f}"),
            ("documents a label", f"{first.labels / max(1, len(self.counts)):.2f}"),
        ]
        if first.partial:
            rows += [
                ("partly reviewed documents (feedback)", f"{first.partial:,}"),
                ("labels that these reject", f"{first.rejected:,}"),
            ]
        rows += [(f"words a document in {part}", f"{s.words / s.documents:,.2f}") for part, s in self.parts.items()]
        least = "" if self.length.tokenizer else ">= "
        if self.length.limit is not None:
            rows += [
                (f"texts cut at {self.length.limit} tokens", f"{least}{first.cut / first.documents:.1%}"),
                ("share of the text lost", f"{least}{first.units_cut / max(first.units, 1):.1%}"),
            ]
        if self.unseen:
            rows.append(("labels that the training part lacks", f"{len(self.unseen):,}"))
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:<{width}}  {value:>12}" for name, value in rows]
        if self.vocabulary:
            lines += ["", describe_vocabulary(self.vocabulary, self.counts)]
            lines += self.by_name.describe() if self.by_name else []
        if self.counts:
            lines += ["", *self._picture()]
        if warnings := self.warnings():
            lines += ["", *(f"warning: {warning}" for warning in warnings)]
        return "\n".join(lines)

    def warnings(self) -> list[str]:
        """What may spoil training or evaluation, and what to do about it."""
        found = []
        for part, n in self.shared.items():
            if n:
                share = f"{n:,} of {self.parts[part].documents:,} documents of {part}"
                found.append(f"{share} have a text that is in train too: figures will be too high; remove them")
        for part, s in self.parts.items():
            found += s.warnings(part)
            if s.unseen:
                share = f"{s.unseen:,} of {s.labels:,} label assignments ({s.unseen / s.labels:.1%})"
                found.append(f"{share} of {part} are of labels never seen in training: {self._unseen()}")
        found += label_warnings(self.counts, self.first)
        if self.vocabulary:
            found += vocabulary_warnings(self.vocabulary, self.counts)
        lost = self.first.units_cut / max(self.first.units, 1)
        if lost > MUCH_CUT:
            found.append(
                f"{'' if self.length.tokenizer else 'at least '}{lost:.0%} of the text lies beyond {self.length.limit} "
                "tokens: raise data.max_length, or read it all with data.long_text=memory"
            )
        return found

    def _unseen(self) -> str:
        """Whether labels without training documents can be predicted."""
        if self.vocabulary is None:
            return "no model can predict them without a vocabulary (docs/vocabulary.md)"
        lacking = sum(label not in self.vocabulary.entries for label in self.unseen)
        return f"{len(self.unseen) - lacking:,} of these {len(self.unseen):,} are in the vocabulary"

    def _picture(self) -> list[str]:
        labels = LabelSet.from_counter(self.counts)
        share = labels.counts[: math.ceil(len(labels) / 5)].sum() / labels.counts.sum()
        return [
            f"documents of each label, most frequent first; the top fifth of labels carries {share:.1%} of the mass",
            *zipf_picture(labels.counts),
        ]


def zipf_picture(counts: np.ndarray) -> list[str]:
    """Label counts, most frequent first, as text columns on a logarithmic scale."""
    eighths = " ▁▂▃▄▅▆▇█"
    places = np.unique(np.linspace(0, len(counts) - 1, min(PICTURE_WIDTH, len(counts))).astype(int))
    top = math.log10(counts[0] + 1)
    heights = np.log10(counts[places] + 1) / top * PICTURE_HEIGHT
    lines = []
    for level in reversed(range(PICTURE_HEIGHT)):
        filled = np.clip((heights - level) * 8, 0, 8).astype(int)
        mark = f"{10 ** (top * (level + 1) / PICTURE_HEIGHT) - 1:>10,.0f}"
        lines.append(f"{mark} │{''.join(eighths[i] for i in filled)}")
    lines.append(f"{'':>10} └{'─' * len(places)}")
    lines.append(f"{'':>12}1{f'{len(counts):,}':>{max(len(places) - 1, 1)}}")
    return lines


class Distinct:
    """Counts distinct hashes in eight bytes each."""

    buffer_size = 1 << 20
    """New hashes, repeats included, that are collected before they are merged into the sorted array."""

    def __init__(self) -> None:
        self.known: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.new = array("q")

    def update(self, hashes: Iterable[int]) -> None:
        self.new.extend(hashes)
        if len(self.new) > max(self.buffer_size, len(self.known)):
            self._merge()

    def _merge(self) -> None:
        self.known = np.union1d(self.known, np.frombuffer(self.new, dtype=np.int64))
        self.new = array("q")

    def __len__(self) -> int:
        if self.new:
            self._merge()
        return len(self.known)


def inspect_corpus(
    corpus: Corpus,
    length: Length | None = None,
    advance: Callable[[int], None] = lambda _: None,
    *,
    vocabulary: Vocabulary | None = None,
) -> Inspection:
    """Read each part once. `length`: where texts would be cut, by default at 512 tokens as in the paper."""
    by_name = ByName(vocabulary) if vocabulary else None
    inspection = Inspection(length or Length(limit=512), vocabulary=vocabulary, by_name=by_name)
    parts: list[Part] = ["train"] if corpus.is_file else list(corpus.parts)
    words = Distinct()
    seen: NDArray[np.int64] = np.empty(0, dtype=np.int64)
    for part in parts:
        statistics, first = PartStatistics(), part == parts[0]
        documents = corpus.documents(part)
        for block in blocks(map(by_name, documents) if by_name else documents, DOCUMENTS_AT_ONCE):
            _count(statistics, block, inspection, words if first else None)
            advance(len(block))
        if statistics.documents == 0:
            raise CorpusError(f"{corpus.file(part)}: no documents in it; is it the right file?")
        inspection.parts[part] = statistics
        if first:
            seen = np.unique(statistics.text_hashes)
        else:
            inspection.shared[part] = int(np.isin(statistics.text_hashes, seen).sum())
    inspection.n_words = len(words)
    return inspection


def _count(
    statistics: PartStatistics, block: list[Document], inspection: Inspection, words_seen: Distinct | None
) -> None:
    """`words_seen` is given for the training part."""
    n_words = []
    for document in block:
        words = document.text.lower().split()
        n_words.append(len(words))
        statistics.add(document)
        if words_seen is not None:
            inspection.counts.update(document.labels)
            words_seen.update(map(hash, words))
        else:
            unseen = [label for label in document.labels if label not in inspection.counts]
            inspection.unseen.update(unseen)
            statistics.unseen += len(unseen)
    statistics.words += sum(n_words)
    room = inspection.length.room
    for n in inspection.length.measure([document.text for document in block], n_words):
        statistics.cut += n > room
        statistics.units += n
        statistics.units_cut += int(n - min(n, room))
