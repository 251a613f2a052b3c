"""Dynamic micro-batching: many callers, one model, as few calls of it as possible.

A thread takes what has queued up, to a batch's size, and gives it to the model at once. While the model works the next
batch gathers by itself, so the busier the server, the fuller the batches; only an idle server waits, for `wait`
seconds, whether a second text comes. The price of a text alone is that wait. The queue is bounded in texts: beyond its
capacity callers hear `QueueFullError` at once instead of waiting longer and longer.
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
TagTexts = Callable[[list[str], int], list[Tags]]
"""The model: texts and k to the k best labels of each text."""


class QueueFullError(Exception):
    """More texts are waiting than the queue may hold."""


class ClosedError(Exception):
    """The queue takes no more work: the server is shutting down."""


@dataclass(frozen=True)
class Job:
    texts: Sequence[str]
    top_k: int = 0
    alone: Callable[[], Any] | None = None
    """Work that is not tagging and shares no batch."""
    future: "Future[Any]" = field(default_factory=Future)


class Batcher:
    """`submit` from any thread; the future gets the texts' tags in their order."""

    def __init__(self, tag: TagTexts, *, batch_size: int = 32, wait: float = 0.002, capacity: int = 4096) -> None:
        self.tag, self.batch_size, self.wait, self.capacity = tag, batch_size, wait, capacity
        self.waiting = 0
        """Texts in the queue."""
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="aplc-batcher", daemon=True)
        self._thread.start()

    def submit(self, texts: Sequence[str], top_k: int) -> "Future[list[Tags]]":
        """Tag these texts, in a batch with others'."""
        return self._put(Job(texts, top_k))

    def submit_alone(self, work: Callable[[], Any], size: int) -> "Future[Any]":
        """Run `work`, which costs as much as `size` texts, between two batches."""
        return self._put(Job([""] * size, alone=work))

    def close(self) -> None:
        """Take no more work, finish what was taken, and stop the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _put(self, job: Job) -> "Future[Any]":
        with self._changed:
            if self._closed:
                raise ClosedError
            # A job larger than the whole queue passes when it is the only one: limits of a call are not ours.
            if self.waiting and self.waiting + len(job.texts) > self.capacity:
                raise QueueFullError
            self._jobs.append(job)
            self.waiting += len(job.texts)
            self._changed.notify_all()
        return job.future

    def _work(self) -> None:
        while jobs := self._take():
            jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            if jobs and jobs[0].alone:
                _fulfil(jobs[0], jobs[0].alone)
            elif jobs:
                self._tag(jobs)

    def _take(self) -> list[Job]:
        """The next batch: at least one job, and those behind it until the batch is full or `wait` is over."""
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
                if self._jobs[0].alone or size + len(self._jobs[0].texts) > self.batch_size:
                    break
                jobs.append(self._jobs.popleft())
                size += len(jobs[-1].texts)
            self.waiting -= size
            return jobs

    def _tag(self, jobs: list[Job]) -> None:
        texts = [text for job in jobs for text in job.texts]
        try:
            tags = self.tag(texts, max(job.top_k for job in jobs))
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            for job in jobs:  # one text that the model can't read must not cost the others their answers
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
    except Exception as error:
        job.future.set_exception(error)
