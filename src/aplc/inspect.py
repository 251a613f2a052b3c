"""What is in a corpus: the columns of the paper's Table 1, and the label distribution of its Figure 2 as a picture."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from aplc.data.corpus import Corpus, Part
from aplc.data.labels import LabelSet
from aplc.errors import CorpusError

PICTURE_WIDTH, PICTURE_HEIGHT = 64, 10


@dataclass
class PartStatistics:
    documents: int = 0
    words: int = 0
    labels: int = 0
    """Label assignments."""
    unlabelled: int = 0
    empty: int = 0
    """Texts of nothing but space."""


@dataclass
class Inspection:
    parts: dict[Part, PartStatistics] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    """Documents of each label in the training part (or the only file)."""
    vocabulary: set[str] = field(default_factory=set)
    """Distinct words of the training part, in lower case."""
    unseen: set[str] = field(default_factory=set)
    """Labels of other parts that the training part does not have."""

    def render(self) -> str:
        first = next(iter(self.parts.values()))
        rows = [(f"documents in {part} (N_{part})", f"{s.documents:,}") for part, s in self.parts.items()]
        rows += [
            ("distinct words (D)", f"{len(self.vocabulary):,}"),
            ("labels (L)", f"{len(self.counts):,}"),
            ("labels a document", f"{first.labels / first.documents:.2f}"),
            ("documents a label", f"{first.labels / max(1, len(self.counts)):.2f}"),
        ]
        rows += [(f"words a document in {part}", f"{s.words / s.documents:,.2f}") for part, s in self.parts.items()]
        for part, s in self.parts.items():
            rows += [(f"documents without labels in {part}", f"{s.unlabelled:,}")] if s.unlabelled else []
            rows += [(f"empty texts in {part}", f"{s.empty:,}")] if s.empty else []
        if self.unseen:
            rows.append(("labels that the training part lacks", f"{len(self.unseen):,}"))
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:<{width}}  {value:>12}" for name, value in rows]
        if self.counts:
            lines += ["", *self._picture()]
        return "\n".join(lines)

    def _picture(self) -> list[str]:
        labels = LabelSet.from_counter(self.counts)
        share = labels.counts[: math.ceil(len(labels) / 5)].sum() / labels.counts.sum()
        return [
            f"documents of each label, most frequent first; the top fifth of the labels carries {share:.1%} of the mass",
            *zipf_picture(labels.counts),
        ]


def zipf_picture(counts: np.ndarray) -> list[str]:
    """Label counts in falling order as columns of blocks, on a logarithmic scale."""
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


def inspect_corpus(corpus: Corpus, advance: Callable[[int], None] = lambda _: None) -> Inspection:
    """Read every part once."""
    inspection = Inspection()
    parts: list[Part] = ["train"] if corpus.is_file else list(corpus.parts)
    for part in parts:
        statistics = PartStatistics()
        for document in corpus.documents(part):
            words = document.text.lower().split()
            statistics.documents += 1
            statistics.words += len(words)
            statistics.labels += len(document.labels)
            statistics.unlabelled += not document.labels
            statistics.empty += not words
            if part == parts[0]:
                inspection.counts.update(document.labels)
                inspection.vocabulary.update(words)
            else:
                inspection.unseen.update(label for label in document.labels if label not in inspection.counts)
            advance(1)
        if statistics.documents == 0:
            raise CorpusError(f"{corpus.file(part)}: no documents")
        inspection.parts[part] = statistics
    return inspection
