"""Evaluating a model on a corpus part, beside a baseline that always predicts the most frequent labels.

Documents stream through the model; only `Metrics`, `Findings` and a fingerprint are kept. At 30,000 documents and
670,091 labels they take some 200 MB, most of it counts per label; 300 MB where a model has two parts.
"""

import hashlib
import json
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from aplc.data.by_name import ByName
from aplc.data.cache import blocks
from aplc.data.formats import Document
from aplc.data.labels import LabelSet
from aplc.data.vocabulary import Vocabulary
from aplc.errors import CorpusError
from aplc.evaluate.bands import Band, LabelScore, best_and_worst, by_cluster, by_examples, by_frequency
from aplc.evaluate.bootstrap import Difference, Interval, compare, intervals
from aplc.evaluate.findings import Example, Findings
from aplc.evaluate.hierarchy import Near, NearCounter, by_scheme, names_of
from aplc.evaluate.metrics import Metrics
from aplc.models.calibration import DEPTH, depths
from aplc.models.trained import TrainedTagger
from aplc.predict.search import DOCUMENTS_AT_ONCE, predict_parts
from aplc.version import __version__

AT = 5
"""The k of results by band and of the reliability diagram."""
KS = (1, 3, AT)
"""Lengths of lists that are always measured at."""


@dataclass(frozen=True)
class Evaluation:
    metrics: Metrics
    baseline: Metrics
    """Of always predicting the most frequent labels."""
    labels: LabelSet
    unseen: list[str]
    """True labels that the model does not have, in the order of their ids from `len(labels)` on."""
    cutoffs: tuple[int, ...]
    findings: Findings
    fingerprint: str
    """Hash of the documents and their labels, in order: `aplc compare` refuses runs on different documents."""
    config: dict[str, Any]
    """Settings of the training run."""
    label_set_version: int = 1
    n_added: int = 0
    """Number of clusters, the last ones, with labels that were added after training."""
    before: dict[str, float] | None = None
    """ECE@k before calibration; None if the model is not calibrated."""
    parts: dict[str, Metrics] = field(default_factory=dict)
    """Of a model of several parts: what each of them finds alone, before calibration."""
    vocabulary: Vocabulary | None = None
    near: list[Near] = field(default_factory=list)
    """Predictions next to a true label in the hierarchy, at each k; empty without a hierarchy."""
    n_by_name: int = 0
    """True labels that documents give by their names."""

    def __str__(self) -> str:
        """What `aplc evaluate` prints."""
        from aplc.evaluate.table import render

        return render(self)

    @property
    def n_unseen(self) -> int:
        return len(self.unseen)

    @property
    def notes(self) -> list[str]:
        """What a reader of the figures should know about the documents."""
        found = []
        if self.metrics.n_unlabelled:
            found.append(f"Documents without labels, which count as 0: {self.metrics.n_unlabelled:,}.")
        if self.n_by_name:
            found.append(f"Names that documents carry stand for the model's labels: {self.n_by_name:,} of them.")
        if self.unseen:
            found.append(f"{self.n_unseen:,} true labels are not among the model's; they count as missed.")
        true = self.metrics.label_stats(AT).true[: len(self.labels)]
        if retired := int((true[~self.labels.active] > 0).sum()):
            found.append(f"{retired:,} true labels are retired; they count as missed.")
        return found

    def shown(self, label: str) -> str:
        """A label for people: with its name, where the vocabulary has another one."""
        return self.vocabulary.shown(label) if self.vocabulary else label

    @property
    def longer(self) -> list[int]:
        """Lengths of lists beyond `AT` that were asked for."""
        return [k for k in self.metrics.ks if k > AT]

    def bands_at(self, k: int) -> list[Band]:
        return by_frequency(self.metrics.label_stats(k))

    def by_examples_at(self, k: int) -> list[Band]:
        return by_examples(self.metrics.label_stats(k))

    @cached_property
    def schemes(self) -> list[Band]:
        """Results by scheme of the vocabulary; none where it has no schemes."""
        return by_scheme(self.metrics.label_stats(AT), self.labels, self.vocabulary) if self.vocabulary else []

    @property
    def examples(self) -> list[Example]:
        return self.findings.examples

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """95 % intervals of the metrics that have one."""
        return intervals(self.metrics.document_scores())

    @cached_property
    def gains(self) -> dict[str, dict[str, Difference]]:
        """What the whole model has above each of its parts, by part and metric, with 95 % intervals."""
        whole = self.metrics.document_scores()
        return {name: compare(whole, part.document_scores()) for name, part in self.parts.items()}

    @property
    def best_part(self) -> str:
        """The part that ranks best alone."""
        return max(self.parts, key=lambda name: self.parts[name].result()["nDCG@5"])

    @cached_property
    def bands(self) -> list[Band]:
        return self.bands_at(AT)

    @cached_property
    def clusters(self) -> list[Band]:
        """Results by cluster of the output layer; none where it has only one."""
        if not self.cutoffs:
            return []
        stats = self.metrics.label_stats(AT)
        return by_cluster(stats, cutoffs=self.cutoffs, n_labels=len(self.labels), n_added=self.n_added)

    @cached_property
    def by_examples(self) -> list[Band]:
        return self.by_examples_at(AT)

    @cached_property
    def best_and_worst(self) -> tuple[list[LabelScore], list[LabelScore]]:
        """Labels by F1 at the threshold."""
        stats = self.metrics.threshold_stats()
        true = stats.true.copy()
        true[: len(self.labels)][~self.labels.active] = 0  # retired ones are no news
        return best_and_worst(replace(stats, true=true), self.labels.names)

    def to_dict(self) -> dict[str, Any]:
        reliability = self.metrics.reliability(AT)
        return {
            "documents": self.metrics.n_evaluated,
            "documents_without_labels": self.metrics.n_unlabelled,
            "labels": len(self.labels),
            "unseen_labels": self.n_unseen,
            "fingerprint": self.fingerprint,
            "propensity": list(self.metrics.propensity),
            "threshold": self.metrics.threshold,
            "metrics": self.metrics.result(),
            "uncalibrated": self.before,
            "label_set_version": self.label_set_version,
            "intervals": {name: [interval.low, interval.high] for name, interval in self.intervals.items()},
            "baseline": self.baseline.result(),
            "parts": {name: part.result() for name, part in self.parts.items()},
            "gains": {
                name: {metric: [gain.difference, gain.low, gain.high] for metric, gain in gains.items()}
                for name, gains in self.gains.items()
            },
            "bands": [asdict(band) for band in self.bands],
            "clusters": [asdict(band) for band in self.clusters],
            "by_examples": [asdict(band) for band in self.by_examples],
            "at": {
                str(k): {
                    "bands": [asdict(band) for band in self.bands_at(k)],
                    "by_examples": [asdict(band) for band in self.by_examples_at(k)],
                }
                for k in self.longer
            },
            "schemes": [asdict(band) for band in self.schemes],
            "near": [asdict(near) | {"share": near.share} for near in self.near],
            "reliability": {
                "k": reliability.k,
                **{name: getattr(reliability, name).tolist() for name in ("edges", "pairs", "confidence", "accuracy")},
            },
            "best_labels": [asdict(score) for score in self.best_and_worst[0]],
            "worst_labels": [asdict(score) for score in self.best_and_worst[1]],
            "confusions": [asdict(confusion) for confusion in self.findings.confusions()],
            "candidates": [asdict(candidate) for candidate in self.findings.candidates],
            "names": names_of(self.vocabulary, self._listed()),
            "config": self.config,
            "versions": versions(),
        }

    def _listed(self) -> Iterator[str]:
        """Labels that are named in the figures."""
        for score in (*self.best_and_worst[0], *self.best_and_worst[1]):
            yield score.name
        for confusion in self.findings.confusions():
            yield from (confusion.missed, confusion.predicted)
        for candidate in self.findings.candidates:
            yield from (candidate.label, *candidate.true)


class Evaluator:
    """Makes an `Evaluation` from predictions, block by block; it needs no model."""

    def __init__(
        self,
        labels: LabelSet,
        *,
        n_documents: int,
        cutoffs: Sequence[int] = (),
        n_added: int = 0,
        propensity: str | tuple[float, float] = "default",
        threshold: float = 0.5,
        n_examples: int = 0,
        config: dict[str, Any] | None = None,
        parts: Iterable[str] = (),
        at: Iterable[int] = (),
        vocabulary: Vocabulary | None = None,
    ) -> None:
        self.labels, self.vocabulary, ks = labels, vocabulary, sorted({*KS, *at})
        self.cutoffs, self.n_added = tuple(cutoffs), n_added
        self.config = config or {}
        names = list(parts)
        self.metrics, self.baseline, self.before, *alone = (
            Metrics(labels.counts, n_documents=n_documents, ks=ks, propensity=propensity, threshold=threshold)
            for _ in range(3 + len(names))
        )
        self.parts = dict(zip(names, alone, strict=True))
        in_use = np.flatnonzero(labels.active & (labels.stands_for == np.arange(len(labels))))
        self.frequent = in_use[np.argsort(-labels.counts[in_use], kind="stable")][:DEPTH]
        # Labels added after training were counted on other documents, perhaps on more than n_documents.
        self.prior = np.minimum(labels.counts[self.frequent] / n_documents, 1.0)
        self.unseen: dict[str, int] = {}
        self.findings = Findings(labels.names, sure=threshold, n_examples=n_examples)
        self.hash = hashlib.blake2b(digest_size=16)
        has_hierarchy = vocabulary is not None and bool(vocabulary.narrower)
        known = labels.index.keys() | labels.retired
        self.by_name = ByName(vocabulary, known) if vocabulary else None
        self.near = NearCounter(labels, vocabulary, ks) if vocabulary and has_hierarchy else None

    def update(
        self,
        block: Sequence[Document],
        ids: np.ndarray,
        probs: np.ndarray,
        before: tuple[np.ndarray, np.ndarray] | None = None,
        parts: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
    ) -> None:
        """Add a block of predictions: `before` calibration, and of the model's `parts`, too."""
        raw, block = block, [self.by_name(document) for document in block] if self.by_name else block
        truth = [self.labels.encode_all(document.labels, self.unseen) for document in block]
        self.metrics.update_lists(ids, probs, truth)
        if self.near:
            self.near.update(ids, truth)
        for name, found in (parts or {}).items():
            self.parts[name].update_lists(*found, truth)
        if before is not None:
            self.before.update_lists(*before, truth)
        shape = (len(block), len(self.prior))
        self.baseline.update_lists(np.broadcast_to(self.frequent, shape), np.broadcast_to(self.prior, shape), truth)
        self.findings.update([self._as_known(document) for document in block], ids, probs, truth)
        for document in raw:  # whatever a model calls its labels
            self.hash.update(json.dumps([document.text, sorted(document.labels)]).encode())

    def _as_known(self, document: Document) -> Document:
        """The document with the model's names for renamed and merged labels, as in its predictions."""
        names, index = self.labels.names, self.labels.index
        labels = (names[index[name]] if name in index else name for name in document.labels)
        return replace(document, labels=list(dict.fromkeys(labels)))

    def finish(self) -> Evaluation:
        if self.metrics.n_evaluated == 0:
            raise CorpusError("no documents to evaluate")
        if self.metrics.n_unlabelled == self.metrics.n_evaluated:
            raise CorpusError(
                f"none of the {self.metrics.n_evaluated:,} documents has a label, so there is nothing to compare with; "
                "is the column of labels called `labels`? Another name is given with --labels-column"
            )
        before = None
        if self.before.n_evaluated:
            before = {f"ECE@{k}": self.before.reliability(k).ece for k in self.before.ks}
        return Evaluation(
            metrics=self.metrics,
            baseline=self.baseline,
            labels=self.labels,
            unseen=list(self.unseen),
            cutoffs=self.cutoffs,
            findings=self.findings,
            fingerprint=self.hash.hexdigest(),
            config=self.config,
            label_set_version=self.labels.version,
            n_added=self.n_added,
            before=before,
            parts=self.parts,
            vocabulary=self.vocabulary,
            near=self.near.finish() if self.near else [],
            n_by_name=len(self.by_name.found) if self.by_name else 0,
        )


def evaluate(
    trained: TrainedTagger,
    documents: Iterable[Document],
    *,
    n_examples: int = 0,
    propensity: str | tuple[float, float] = "default",
    threshold: float = 0.5,
    at: Iterable[int] = (),
    advance: Callable[[int], None] = lambda _: None,
) -> Evaluation:
    """Stream `documents` through the model. Labels that it does not have count as true labels that were missed.

    `at`: lengths of lists to measure at, besides 1, 3 and 5.
    """
    evaluator = Evaluator(
        trained.labels,
        n_documents=trained.n_documents,
        cutoffs=trained.cutoffs,
        n_added=trained.model.n_added if trained.cutoffs else 0,
        propensity=propensity,
        threshold=threshold,
        n_examples=n_examples,
        config=trained.config.to_dict(),
        parts=trained.model.parts,
        at=at,
        vocabulary=trained.vocabulary,
    )
    depth, width = depths(len(trained.labels))  # predict once, without calibration, and rank with and without it
    raw = replace(trained.ranking, calibration=None)
    for block in blocks(documents, DOCUMENTS_AT_ONCE):
        if partial := next((document for document in block if document.partial), None):
            raise CorpusError(
                f"line {partial.line} is feedback, which says nothing of most labels; evaluate it as a file of its own"
            )
        texts = [document.text for document in block]
        whole, parts = predict_parts(trained.model, texts, width, allowed=trained.allowed)
        before = raw.settle(*whole, depth)[:2] if trained.calibration else None
        alone = {name: raw.settle(*found, depth)[:2] for name, found in parts.items()}
        evaluator.update(block, *trained.ranking.settle(*whole, depth)[:2], before, alone)
        advance(len(block))
    return evaluator.finish()


def versions() -> dict[str, str]:
    """Versions of the software that made the figures."""
    return {
        "aplc": __version__,
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
