"""How often a model was right, by what reviewers said: `aplc evaluate MODEL FEEDBACK`.

Two questions, both of reviewed labels only; a label that nobody looked at is neither right nor wrong.

- What had been proposed when the person looked (`proposed` of the feedback line, by whatever model served then): how
  much of it was accepted, by week or day, by frequency band, by probability and by label.
- What this model says of the same documents now: which reviewed labels it gives a probability of at least the
  threshold.
"""

import datetime
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aplc.data.by_name import ByName
from aplc.data.cache import blocks
from aplc.data.columns import BadRow
from aplc.data.corpus import Corpus, Part
from aplc.data.feedback import PROPOSED, TIME, read_day, read_proposals
from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.data.vocabulary import Vocabulary
from aplc.errors import CorpusError
from aplc.evaluate.bands import TAIL, TORSO
from aplc.evaluate.run import versions
from aplc.models.calibration import DEPTH
from aplc.models.trained import TrainedTagger
from aplc.predict.search import DOCUMENTS_AT_ONCE, name_tags, predict_documents

BANDS = ("head", "torso", "tail", "unseen")
EDGES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
"""Where intervals of probability begin."""
DAYS = 31
"""Feedback of a longer time is shown by week."""
SHOWN = 15
"""Labels shown."""


@dataclass
class Tally:
    """Reviewed labels: those given and right, given and wrong, and not given although right."""

    right: int = 0
    wrong: int = 0
    missing: int = 0
    documents: int = 0

    @property
    def accepted(self) -> float | None:
        """Share of the labels given that are right; None where none was."""
        return self.right / (self.right + self.wrong) if self.right + self.wrong else None

    @property
    def found(self) -> float | None:
        """Share of the right labels that were given."""
        return self.right / (self.right + self.missing) if self.right + self.missing else None

    def add(self, *, given: bool, right: bool) -> None:
        self.right += given and right
        self.wrong += given and not right
        self.missing += right and not given

    def to_dict(self) -> dict[str, float | int | None]:
        return {**vars(self), "accepted": self.accepted, "found": self.found}


Pair = tuple[Tally, Tally]
"""What had been proposed, and what this model says now."""


@dataclass
class FeedbackEvaluation:
    labels: LabelSet
    threshold: float
    vocabulary: Vocabulary | None = None
    documents: int = 0
    reviewed: int = 0
    """Labels that were accepted, rejected or added, over all documents."""
    without_proposals: int = 0
    """Documents whose line does not say what had been proposed."""
    proposed: Tally = field(default_factory=Tally)
    now: Tally = field(default_factory=Tally)
    by_day: dict[datetime.date, Tally] = field(default_factory=dict)
    by_band: dict[str, tuple[Tally, Tally]] = field(
        default_factory=lambda: {name: (Tally(), Tally()) for name in BANDS}
    )
    """What had been proposed, and what this model says now."""
    by_probability: list[Tally] = field(default_factory=lambda: [Tally() for _ in EDGES])
    by_label: dict[str, tuple[Tally, Tally]] = field(default_factory=dict)

    @property
    def over_time(self) -> dict[str, Tally]:
        """By day, or by week, which is named by its Monday, where the feedback is of more than `DAYS` days."""
        days = sorted(self.by_day)
        weekly = bool(days) and (days[-1] - days[0]).days > DAYS
        found: dict[str, Tally] = {}
        for day in days:
            start = day - datetime.timedelta(days=day.weekday() if weekly else 0)
            total, part = found.setdefault(start.isoformat(), Tally()), self.by_day[day]
            for name, n in vars(part).items():
                setattr(total, name, getattr(total, name) + n)
        return found

    @property
    def most_wrong(self) -> list[tuple[str, Tally, Tally]]:
        """Labels that cost reviewers most: rejected or added most often."""
        ordered = sorted(self.by_label.items(), key=lambda item: (-item[1][0].wrong - item[1][0].missing, item[0]))
        return [(name, then, now) for name, (then, now) in ordered[:SHOWN] if then.wrong or then.missing]

    def update(self, document: Document, proposed: Mapping[str, float], now: Mapping[str, float]) -> None:
        """Add a document: what had been proposed for it, and what this model gives it, with probabilities."""
        self.documents += 1
        self.without_proposals += not proposed
        day = read_day(document.kept or {})
        daily = self.by_day.setdefault(day, Tally()) if day and proposed else Tally()
        for tally in (self.proposed, daily) if proposed else ():
            tally.documents += 1
        self.now.documents += 1
        for name, right in [
            *((name, True) for name in document.labels),
            *((name, False) for name in document.rejected),
        ]:
            self.reviewed += 1
            known = self._known(name)
            bands, own = self.by_band[self._band(known)], self.by_label.setdefault(known, (Tally(), Tally()))
            if proposed:
                for tally in (self.proposed, daily, bands[0], own[0]):
                    tally.add(given=name in proposed, right=right)
                if name in proposed:
                    self.by_probability[_interval(proposed[name])].add(given=True, right=right)
            for tally in (self.now, bands[1], own[1]):
                tally.add(given=now.get(known, 0.0) >= self.threshold, right=right)

    def shown(self, label: str) -> str:
        """A label for people: with its name, where the vocabulary has another one."""
        return self.vocabulary.shown(label) if self.vocabulary else label

    def _known(self, name: str) -> str:
        """The model's name for a label that was renamed or merged."""
        index = self.labels.index
        return self.labels.names[index[name]] if name in index else name

    def _band(self, name: str) -> str:
        index = self.labels.index
        n = int(self.labels.counts[index[name]]) if name in index else 0
        return BANDS[0 if n > TORSO else 1 if n > TAIL else 2 if n else 3]

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "feedback",
            "documents": self.documents,
            "reviewed_labels": self.reviewed,
            "documents_without_proposals": self.without_proposals,
            "threshold": self.threshold,
            "proposed": self.proposed.to_dict(),
            "now": self.now.to_dict(),
            "over_time": {start: tally.to_dict() for start, tally in self.over_time.items()},
            "bands": {name: _pair(pair) for name, pair in self.by_band.items()},
            "by_probability": [
                {"from": low, "to": high, **tally.to_dict()}
                for low, high, tally in zip(EDGES, (*EDGES[1:], 1.0), self.by_probability, strict=True)
            ],
            "labels": {name: _pair(pair) for name, pair in sorted(self.by_label.items())},
            "label_set_version": self.labels.version,
            "versions": versions(),
        }


def evaluate_feedback(
    trained: TrainedTagger,
    corpus: Corpus,
    part: Part,
    *,
    threshold: float = 0.5,
    advance: Callable[[int], None] = lambda _: None,
) -> FeedbackEvaluation:
    """Stream a feedback file through the model. `corpus.columns` must keep `KEPT`."""
    found, vocabulary = FeedbackEvaluation(trained.labels, threshold, trained.vocabulary), trained.vocabulary
    by_name = ByName(vocabulary, trained.labels.index.keys() | trained.labels.retired) if vocabulary else None
    reviews = _reviews(corpus, part)
    named = ((by_name(document), proposed) for document, proposed in reviews) if by_name else reviews
    for block in blocks(named, DOCUMENTS_AT_ONCE):
        texts = [document for document, _ in block]
        for documents, ids, probs in predict_documents(trained, texts, min(DEPTH, len(trained.labels))):
            for i, document in enumerate(documents):
                found.update(document, block[i][1], dict(name_tags(trained, ids[i], probs[i])))
            advance(len(documents))
    if not found.documents:
        raise CorpusError(f"{corpus.file(part)}: no feedback to evaluate")
    return found


KEPT = (PROPOSED, TIME)
"""Keys of a feedback line that an evaluation reads, beside those of a document."""


def _reviews(corpus: Corpus, part: Part) -> Iterable[tuple[Document, dict[str, float]]]:
    """Reviewed documents, and what had been proposed for them."""
    for document in corpus.documents(part):
        row = document.kept or {}
        try:
            if not document.partial:
                raise BadRow("not feedback, as the first line is: it has none of accepted, rejected and added")
            read_day(row)
            yield document, read_proposals(row)
        except BadRow as bad:
            corpus.bad_rows.handle(corpus.file(part), document.line, str(bad), row)


def _interval(probability: float) -> int:
    return max(i for i, low in enumerate(EDGES) if probability >= low)


def _pair(pair: Pair) -> dict[str, Any]:
    return {"proposed": pair[0].to_dict(), "now": pair[1].to_dict()}
