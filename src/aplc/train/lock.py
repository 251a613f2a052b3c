"""One run or change of labels at a time in a folder: a second one is refused at once, naming the process that holds it.

The system drops the lock with the process that holds it, so that one left by a dead process does not block. Who holds
it is noted in a file beside the lock's own, which locking may empty.
"""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from aplc.errors import RunError
from aplc.files import write_json
from aplc.machine import is_main_process
from aplc.nn.distributed import world

LOCK, HOLDER = ".run.lock", ".run.lock.json"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, or raise `RunError`. The first of several processes holds it for all of them."""
    lock, new = FileLock(folder / LOCK), not folder.exists()
    refused = _acquire(lock, folder) if is_main_process() else None
    if refused := world().gather(refused)[0]:
        raise RunError(refused)
    try:
        yield
    finally:
        if is_main_process():
            for name in (HOLDER, LOCK):  # while it is held: nobody else's may be removed
                (folder / name).unlink(missing_ok=True)
            lock.release()
            if new:
                with contextlib.suppress(OSError):  # it is not empty: the run has left something
                    folder.rmdir()


def _acquire(lock: FileLock, folder: Path) -> str | None:
    """Take the lock; or say why not."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return f"{folder}: {_holder(folder)} is writing to it; wait for its end, or choose another --out"
    now = datetime.now().astimezone().isoformat(" ", timespec="seconds")
    write_json(folder / HOLDER, {"process": os.getpid(), "host": socket.gethostname(), "since": now})
    return None


def _holder(folder: Path) -> str:
    try:
        note = json.loads((folder / HOLDER).read_text("utf-8"))
        return f"process {note['process']} on {note['host']}, since {note['since']},"
    except (OSError, ValueError, KeyError, TypeError):  # it has only just begun
        return "another process"
