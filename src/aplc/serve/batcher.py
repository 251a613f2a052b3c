"""Dynamic micro-batching: texts of many callers share one call of the model.

A thread takes what is in the queue, up to a batch, and calls the model with it. While the model works, the next batch
gathers in the queue, so the busier the server, the fuller its batches. An idle server waits `wait` seconds for a second
text, which is what a single text pays. The queue is bounded in texts: when it is full, `submit` raises `QueueFullError`
at once, so that no caller waits longer and longer.

A job keeps the model it was submitted with, and a batch has jobs of one model: when the server replaces its model, the
texts of a call are still tagged by one of the two.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

Tags = list[tuple[str, float]]
"""(label, probability), best first."""
TagTexts = Callable[[Any, list[str], int], list[Tags]]
"""A model, texts and k to the k best labels of each text."""

STUCK = 300.0
"""Seconds of work on one batch after which the model counts as hung: who waited for it was refused after a minute."""


class QueueFullError(Exception):
    """The queue has no room for these texts."""


class ClosedError(Exception):
    """The queue takes no more work: the server is shutting down."""


@dataclass(frozen=True)
class Job:
    texts: Sequence[str]
    top_k: int = 0
    model: Any = None
    alone: Callable[[], Any] | None = None
    """Work other than tagging, which runs between two batches."""
    future: "Future[Any]" = field(default_factory=Future)


class Batcher:
    """`submit` may be called from any thread; its future holds the tags of each text, in the texts' order."""

    def __init__(self, tag: TagTexts, *, batch_size: int = 32, wait: float = 0.002, capacity: int = 4096) -> None:
        self.tag, self.batch_size, self.wait, self.capacity = tag, batch_size, wait, capacity
        self.waiting = 0
        """Texts in the queue."""
        self._began: float | None = None
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="aplc-batcher", daemon=True)
        self._thread.start()

    def submit(self, model: Any, texts: Sequence[str], top_k: int) -> "Future[list[Tags]]":
        """Tag these texts with this model, in a batch with those of other callers."""
        return self._put(Job(texts, top_k, model))

    def submit_alone(self, work: Callable[[], Any], size: int) -> "Future[Any]":
        """Run `work`, which costs as much as `size` texts, between two batches."""
        return self._put(Job([""] * size, alone=work))

    @property
    def busy(self) -> float:
        """Seconds that the model has been working on a batch; 0 if it has none."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def close(self) -> None:
        """Accept no more work, finish what was accepted, and stop the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _put(self, job: Job) -> "Future[Any]":
        with self._changed:
            if self._closed:
                raise ClosedError
            # A job larger than the whole queue is accepted when the queue is empty: the guard limits the size of calls.
            if self.waiting and self.waiting + len(job.texts) > self.capacity:
                raise QueueFullError
            self._jobs.append(job)
            self.waiting += len(job.texts)
            self._changed.notify_all()
        return job.future

    def _work(self) -> None:
        while jobs := self._take():
            jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            self._began = time.monotonic()
            if jobs and jobs[0].alone:
                _fulfil(jobs[0], jobs[0].alone)
            elif jobs:
                self._tag(jobs)
            self._began = None

    def _take(self) -> list[Job]:
        """The next batch: the first job, and those after it until the batch is full or `wait` is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            if not self._jobs:
                return []
            jobs = [self._jobs.popleft()]
            size, deadline = len(jobs[0].texts), time.monotonic() + self.wait
            while size < self.batch_size and not jobs[0].alone:
                left = 0.0 if self._closed else deadline - time.monotonic()
                if not self._changed.wait_for(lambda: self._jobs, max(left, 0.0)):
                    break
                following = self._jobs[0]
                if following.alone or following.model is not jobs[0].model:
                    break
                if size + len(following.texts) > self.batch_size:
                    break
                jobs.append(self._jobs.popleft())
                size += len(jobs[-1].texts)
            self.waiting -= size
            return jobs

    def _tag(self, jobs: list[Job]) -> None:
        texts = [text for job in jobs for text in job.texts]
        try:
            tags = self.tag(jobs[0].model, texts, max(job.top_k for job in jobs))
        except BaseException as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(_as_exception(error))
                return
            for job in jobs:  # a text that breaks the model must not fail the other texts of its batch
                self._tag([job])
            return
        start = 0
        for job in jobs:
            stop = start + len(job.texts)
            job.future.set_result([best[: job.top_k] for best in tags[start:stop]])
            start = stop


def _fulfil(job: Job, work: Callable[[], Any]) -> None:
    try:
        job.future.set_result(work())
    except BaseException as error:
        job.future.set_exception(_as_exception(error))


def _as_exception(error: BaseException) -> Exception:
    """A panic in Rust (tokenizers) is a `BaseException`, which would end this thread, and the loop of who waits."""
    if isinstance(error, Exception):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
