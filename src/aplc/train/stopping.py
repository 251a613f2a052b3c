"""Stopping a run without losing a step: Ctrl-C (SIGINT), and SIGTERM, which schedulers send before they kill.

The first of either lets the step end and its checkpoint be written. Ctrl-C again stops at once; a second SIGTERM is
ignored, since a scheduler may send it to torchrun, who passes it on, and to the workers as well.

When a worker dies, torchrun also sends SIGTERM to the others, and kills them 30 seconds later if they are still there.
They can't end their step without the dead one, and may wait for it in code that no signal handler interrupts. So a
thread ends the process if the workers don't come to agree on stopping: restarts must not wait for what can't happen.
"""

import os
import signal
import socket
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from aplc.console import Screen
from aplc.nn.distributed import world

TERMINATED = 128 + signal.SIGTERM
"""The exit code by which shells and schedulers know a process that SIGTERM ended."""
GRACE_SECONDS = 5.0
"""In which the workers must end their step after SIGTERM."""


class Stopping:
    """While it is open, signals are noted, to be acted on between two steps."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.interrupted = self.terminated = False
        self.settled = threading.Event()
        """Set when all workers have ended the step, or the run has ended."""
        self.before: dict[int, Any] = {}
        self.wakeup: socket.socket | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self.before[signal.SIGINT] = signal.signal(signal.SIGINT, self._interrupt)
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # else the application has its own way to end
                self.before[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._terminate)
                if world().size > 1:
                    self._watch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.settled.set()
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if self.wakeup:
            signal.set_wakeup_fd(-1)
            self.wakeup.close()

    def agreed(self) -> BaseException | None:
        """What to raise after the checkpoint, once any of the processes was asked to stop; the same on all of them."""
        interrupted, terminated = world().any(self.interrupted, self.terminated)
        if not interrupted and not terminated:
            return None
        self.settled.set()
        return SystemExit(TERMINATED) if terminated else KeyboardInterrupt()

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self.screen.say("finishing this step and writing a checkpoint; Ctrl-C again stops at once")

    def _terminate(self, _number: int, _frame: FrameType | None) -> None:
        self.terminated = True

    def _watch(self) -> None:
        """Python's handlers wait for the main thread; the byte that the system writes here does not."""
        self.wakeup, reader = socket.socketpair()
        self.wakeup.setblocking(False)
        signal.set_wakeup_fd(self.wakeup.fileno(), warn_on_full_buffer=False)

        def wait() -> None:
            with reader:
                while number := reader.recv(1):  # nothing, once the other end is closed
                    if signal.SIGTERM in number and not self.settled.wait(GRACE_SECONDS):
                        os._exit(TERMINATED)

        threading.Thread(target=wait, daemon=True).start()
