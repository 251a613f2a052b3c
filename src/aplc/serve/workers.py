"""Several processes behind one port: starts workers, replaces those that die or hang, and passes on what concerns all.

The first process opens the socket and holds it, so that no connection is lost with a worker; it loads no model and
answers no request. Workers (`worker.py`) accept connections from the same socket, each with a model of its own whose
weights are mapped from the same files. Models are replaced in one worker after the other: where the first refuses a
model, the others are not asked.

A worker that hangs is noticed by a question that it leaves unanswered, `MISSES` times in succession: were the whole
machine asleep for a while, only one question would be late. It is killed; what it had accepted is lost, as with any
worker that dies.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from prometheus_client.multiprocess import mark_process_dead

from aplc.errors import AplcError
from aplc.serve.batcher import STUCK
from aplc.serve.channel import Channel, GoneError, Handler
from aplc.serve.reload import About, Reloader
from aplc.serve.settings import METRICS_FOLDER, Settings

COMMAND = sys.executable, "-m", "aplc.serve.worker"
PAUSES = (0.0, 1.0, 2.0, 5.0, 10.0)
"""Seconds before a dead worker is replaced: longer if its successors die before they are ready."""
MISSES = 3
"""Questions in succession that a worker may leave unanswered; together they take `Settings.worker_timeout`."""


class Worker:
    """The first process' side of a worker."""

    def __init__(self, supervisor: "Supervisor") -> None:
        self.supervisor = supervisor
        self.ready: asyncio.Future[About] = asyncio.get_running_loop().create_future()
        self.channel: Channel | None = None
        self.process: asyncio.subprocess.Process
        self.hung = ""
        """Why it was killed; empty if it was not."""

    async def start(self) -> None:
        supervisor = self.supervisor
        ours, theirs = socket.socketpair()
        files = supervisor.listener.fileno(), theirs.fileno()
        self.process = await asyncio.create_subprocess_exec(
            *(*COMMAND, *map(str, files)),
            pass_fds=files,
            env=supervisor.environment,
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        handlers: dict[str, Handler] = {
            "settings": self._settings,
            "ready": self._ready,
            "failed": self._failed,
            "reload": lambda _: supervisor.reloader.reload(),
        }
        self.channel = await Channel.over(ours, handlers)

    async def run(self) -> int:
        """Until it ends; its exit code."""
        assert self.channel is not None
        watching = asyncio.create_task(self._watch(self.channel))
        await self.channel.run()
        code = await self.process.wait()
        watching.cancel()
        if not self.ready.done():
            self.ready.set_exception(AplcError(f"a worker ended with code {code} before it was ready"))
        mark_process_dead(self.process.pid, self.supervisor.folder)
        return code

    async def _watch(self, channel: Channel) -> None:
        """Kill it when it hangs. From when it is ready: nobody can say how long a model may take to load."""
        await asyncio.wait([self.ready])
        timeout, missed = self.supervisor.settings.worker_timeout, 0
        while not self.hung:
            try:
                busy = await asyncio.wait_for(channel.ask("busy"), timeout / MISSES)
            except TimeoutError:
                missed += 1
                if missed == MISSES:
                    self.hung = f"gave no sign of life for {timeout:g} seconds"
                continue
            except AplcError:  # it has ended, or never got ready
                return
            if busy > STUCK:
                self.hung = f"has had its model busy with one batch for {busy:.0f} seconds"
            missed = 0
            await asyncio.sleep(timeout / MISSES)
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def _settings(self, _: Any) -> Any:
        return self.supervisor.settings.to_json()

    async def _ready(self, about: About) -> None:
        self.ready.set_result(about)

    async def _failed(self, sentence: str) -> None:
        self.ready.set_exception(AplcError(sentence))


class Supervisor:
    def __init__(self, settings: Settings, listener: socket.socket, n: int, say: Callable[[str], None]) -> None:
        share = replace(settings.limits, feedback=max(1, settings.limits.feedback // n))
        self.settings, self.listener, self.n, self.say = replace(settings, limits=share), listener, n, say
        self.folder = tempfile.mkdtemp(prefix="aplc-metrics-")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = {"OMP_NUM_THREADS": str(max(1, cores // n))}  # unless the user has said it
        device = {"APLC_DEVICE": settings.device} if settings.device else {}
        self.environment = {**threads, **os.environ, **device, METRICS_FOLDER: self.folder}
        self.reloader = Reloader(settings.model, self._replace, say)
        self.workers: dict[int, Worker] = {}
        """By number, 0 to n - 1; those that are ready or starting."""
        self._signals, self._started = 0, False
        self._stopping = asyncio.Event()
        self._failure: AplcError | None = None

    async def run(self, started: Callable[[About], None]) -> None:
        """Serve until SIGTERM or Ctrl-C; `started` is called once all workers are ready."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        keeping = [asyncio.create_task(self._keep(number)) for number in range(self.n)]
        watching = None
        try:
            abouts = await self._all_ready()
            if abouts and not self._stopping.is_set():
                self._started = True
                started(abouts[0])
                watching = asyncio.create_task(self.reloader.watch())
            await asyncio.gather(*keeping)
        finally:
            if watching:
                watching.cancel()
            self.listener.close()
            shutil.rmtree(self.folder, ignore_errors=True)
        if self._failure:
            raise self._failure

    async def _all_ready(self) -> list[About]:
        """What each worker says of its model; [] if one failed."""
        while len(self.workers) < self.n:
            await asyncio.sleep(0.01)
        try:
            return list(await asyncio.gather(*(worker.ready for worker in self.workers.values())))
        except AplcError:
            return []  # `_keep` stops all

    async def _keep(self, number: int) -> None:
        """Keep a worker of this number alive until the server stops."""
        failures = 0
        while not self._stopping.is_set():
            worker = self.workers[number] = Worker(self)
            await worker.start()
            if self._stopping.is_set():
                self._ask_to_stop(worker)
            code = await worker.run()
            failure = worker.ready.exception()
            failures = failures + 1 if failure else 0
            if isinstance(failure, AplcError) and not self._started and not self._stopping.is_set():
                self._failure = failure  # the others will fail as well
                self._stop()
            if not self._stopping.is_set():
                reason = f": {failure}" if failure else ""
                ended = f"{worker.hung} and was killed" if worker.hung else f"ended with code {code}{reason}"
                self.say(f"worker {worker.process.pid} {ended}; another takes its place")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), PAUSES[min(failures, len(PAUSES) - 1)])

    async def _replace(self) -> About:
        """Have every worker load the folder, one after the other, until one refuses it."""
        about: About | None = None
        for worker in list(self.workers.values()):
            if worker.channel and worker.ready.done() and not worker.ready.exception():  # others read the folder anyway
                try:
                    about = await worker.channel.ask("reload")
                except GoneError:
                    continue
                except AplcError as error:
                    raise error if about is None else AplcError(f"only some workers took it ({error})") from None
        if about is None:
            raise AplcError("no worker is ready; try again")
        return about

    def _stop(self) -> None:
        """A first signal lets workers answer what they have received, a second one does not."""
        self._signals += 1
        self._stopping.set()
        self.listener.close()  # a worker's is the last, so that it can accept what waits before it closes it
        for worker in self.workers.values():
            self._ask_to_stop(worker)

    def _ask_to_stop(self, worker: Worker) -> None:
        if worker.channel:  # else `_keep` asks it
            asking = asyncio.ensure_future(worker.channel.ask("stop", self._signals > 1))
            asking.add_done_callback(lambda done: done.exception())  # it may have gone already
