"""The server without HTTP: the current model, its queue of texts, what is counted, and where corrections go."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from aplc import native
from aplc.models.base import KINDS, SLOWER, device_line
from aplc.models.trained import TrainedTagger
from aplc.serve.batcher import Batcher, Tags
from aplc.serve.drift import Drift
from aplc.serve.feedback import FeedbackFile, Rate
from aplc.serve.guard import Limits
from aplc.serve.metrics import ServerMetrics
from aplc.serve.review import ReviewQueue
from aplc.serve.served import ServedModel
from aplc.serve.settings import Settings

log = logging.getLogger(__name__)

PROPOSED = 20
"""Labels that a line of feedback keeps of what the model proposes."""
SAMPLED = 4
"""Texts of a batch whose unknown words are counted: reading words again takes time."""


class Service:
    """`model` may be replaced at any time: take it once for a request, and pass it on."""

    def __init__(
        self,
        tagger: TrainedTagger | ServedModel,
        name: str = "",
        *,
        limits: Limits | None = None,
        feedback: FeedbackFile | None = None,
        review: ReviewQueue | None = None,
    ) -> None:
        self.model = tagger if isinstance(tagger, ServedModel) else ServedModel(tagger, name)
        self.limits, self.feedback, self.review = limits or Limits(), feedback, review
        self.reload: Callable[[], Awaitable[dict[str, Any]]] | None = None
        """Replaces the model here, and in the other workers if there are any; set by who starts the server."""
        self.metrics = ServerMetrics()
        self.drift = Drift(self.model.tagger)
        self.rate = Rate(self.limits.feedback)
        self.batcher = Batcher(self._tag, batch_size=self.model.tagger.model.batch_size, capacity=self.limits.queue)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="aplc-feedback")
        self._warned: list[str] = []

    @classmethod
    def load(cls, model: Path, **options: Any) -> Self:
        return cls(ServedModel.load(model), **options)

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """Load the model, and open what corrections need."""
        feedback = None if settings.feedback is None else FeedbackFile(settings.feedback)
        review = ReviewQueue(settings.review, settings.feedback) if settings.review and settings.feedback else None
        return cls.load(settings.model, limits=settings.limits, feedback=feedback, review=review)

    def close(self) -> None:
        """Finish what was accepted."""
        self.batcher.close()
        self._writer.shutdown()

    async def take(self, folder: Path) -> dict[str, Any]:
        """Load the model of a folder and use it from now on; if that fails the current one stays, and it raises."""
        model = await asyncio.to_thread(ServedModel.load, folder)
        if model.version != self.model.version:
            self.drift = Drift(model.tagger)
            self.model = model
            self.batcher.batch_size = model.tagger.model.batch_size
            self.metrics.reloads.inc()
        return self.about()

    def about(self) -> dict[str, Any]:
        """What /health and /admin/reload say of the current model."""
        model = self.model
        return {
            "model": model.name,
            "labels": model.tagger.labels.n_in_use,
            "model_version": model.version,
            "label_set_version": model.tagger.labels.version,
        }

    @property
    def device(self) -> str:
        """On where the model's network computes, and whether compiled code is missing; empty if there is nothing."""
        kind = self.model.tagger.model.kind
        missing = native.missing(SLOWER) if "words" in KINDS[kind].sections else []
        return "\n".join(filter(None, [device_line(kind), *missing]))

    async def store(self, model: ServedModel, entry: dict[str, Any], proposed: Tags) -> None:
        """Add time, model and proposals to a correction, and wait until it is on the disk. Raises OSError."""
        assert self.feedback is not None
        entry["time"] = datetime.now(UTC).isoformat(timespec="seconds")
        entry["model"] = model.about
        entry["proposed"] = [[label, round(p, 6)] for label, p in proposed]
        await asyncio.get_running_loop().run_in_executor(self._writer, self.feedback.append, entry)
        counts = {what: len(entry[what]) for what in ("accepted", "rejected", "added")}
        self.metrics.count_correction(**counts)

    def _tag(self, model: ServedModel, texts: list[str], k: int) -> list[Tags]:
        tags = model.tag(texts, k)
        metrics = self.metrics
        metrics.batches.inc()
        metrics.texts.inc(len(texts))
        metrics.batch_texts.observe(len(texts))
        metrics.queue_texts.set(self.batcher.waiting)
        top = [best[0][1] if best else 0.0 for best in tags]
        for probability in top:
            metrics.top.observe(probability)
        if model is self.model:
            self._watch(model, texts, top)
        return tags

    def _watch(self, model: ServedModel, texts: list[str], top: list[float]) -> None:
        drift = self.drift
        drift.add("top_probability", top)
        if "unknown_words" in drift.ranges:
            unknown = model.tagger.model.unknown_words(texts[:SAMPLED])
            drift.add("unknown_words", [] if unknown is None else unknown.tolist())
        for name, gauge in self.metrics.drift.items():
            gauge.set(drift.share(name))
        warnings = drift.warnings()
        if len(warnings) > len(self._warned):
            log.warning("drift: %s", " ".join(warnings))
        self._warned = warnings
