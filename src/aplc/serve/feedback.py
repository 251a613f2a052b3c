"""The feedback file: one JSON line for each correction, on the disk before the person who made it gets the answer.

Every worker of a server appends to the same file. A lock on it makes them one writer: whoever holds it looks whether
the file ends with a whole line, appends one with a single write, and waits for the disk. A write that fails is taken
back. What a killed process has left of a line, which it never confirmed, is moved to FILE.torn by the next writer. The
price is a wait for the disk with every correction; people correct slower than that.
"""

import contextlib
import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aplc.data.checks import count
from aplc.data.feedback import key_of
from aplc.errors import AplcError

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
BLOCK = 1 << 16


class FeedbackFile:
    """`append` may be called from any thread of any process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: Path) -> tuple["FeedbackFile", str]:
        """The file, made if there is none, its last line mended; and a sentence on what it holds."""
        if path.exists() and not path.is_file():
            raise AplcError(f"--feedback {path}: is not a file; give the name of a file")
        file = cls(path)
        try:
            with file._locked() as (_, mended):
                pass
        except OSError as error:
            raise AplcError(f"--feedback {path}: can't be written ({error.strerror}); choose another file") from None
        entries, bad = 0, 0
        with path.open("rb") as lines:
            for line in lines:
                entries, bad = (entries + 1, bad) if key_of_line(line) else (entries, bad + 1)
        said = f"feedback goes to {path}, which has {count(entries, 'correction')}"
        said += f" and {count(bad, 'line')} that can't be read as one" if bad else ""
        return file, f"{said}; {mended}" if mended else said

    def append(self, entry: dict[str, Any]) -> None:
        """Store a correction; when this returns it is on the disk. Raises OSError, and then nothing was stored."""
        line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        with self._locked() as (file, _):
            before = os.fstat(file).st_size
            try:
                if os.write(file, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                os.fsync(file)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(file, before)
                raise

    @contextlib.contextmanager
    def _locked(self) -> Iterator[tuple[int, str]]:
        """The file, ours alone, ending with a whole line; and what was done to make it so.

        It is opened each time: somebody may have moved it away, to train on it.
        """
        while True:
            is_new = not self.path.exists()
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                if _is_at(file, self.path):
                    if is_new:
                        _flush_folder(self.path.parent)
                    yield file, self._mend(file)
                    return
            finally:
                os.close(file)

    def _mend(self, file: int) -> str:
        size = os.fstat(file).st_size
        if size == 0 or os.pread(file, 1, size - 1) == b"\n":
            return ""
        start = _last_line(file, size)
        torn = os.pread(file, size - start, start)
        if key_of_line(torn):
            os.write(file, b"\n")
            os.fsync(file)
            return "its last line lacked a line break, which was added"
        aside = self.path.with_name(f"{self.path.name}.torn")
        with aside.open("ab") as out:
            out.write(torn + b"\n")
            out.flush()
            os.fsync(out.fileno())
        os.ftruncate(file, start)
        os.fsync(file)
        return f"a line that a crash cut off, never confirmed, was moved to {aside}"


class Reviewed:
    """Which documents the feedback file has; looks only at what was appended since the last time. For any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._keys: set[bytes] = set()
        self._file: tuple[int, int] | None = None
        self._read = 0
        self._one = threading.Lock()

    def keys(self) -> set[bytes]:
        try:
            with self._one, self.path.open("rb") as lines:
                stat = os.fstat(lines.fileno())
                if self._file != (stat.st_dev, stat.st_ino) or stat.st_size < self._read:
                    self._file, self._read, self._keys = (stat.st_dev, stat.st_ino), 0, set()
                lines.seek(self._read)
                for line in lines:
                    if not line.endswith(b"\n"):  # still being written
                        break
                    self._read += len(line)
                    if key := key_of_line(line):
                        self._keys.add(key)
        except FileNotFoundError:
            self._keys = set()
        return self._keys


class Rate:
    """At most so many a minute, in bursts of up to a minute's worth."""

    def __init__(self, a_minute: float) -> None:
        self.a_minute, self._left, self._at = a_minute, max(1.0, a_minute), time.monotonic()

    def take(self) -> float:
        """0 if one more is allowed, which counts it; else the seconds until then."""
        now = time.monotonic()
        self._left = min(max(1.0, self.a_minute), self._left + (now - self._at) * self.a_minute / 60)
        self._at = now
        if self._left < 1:
            return (1 - self._left) * 60 / self.a_minute
        self._left -= 1
        return 0.0


def key_of_line(line: bytes) -> bytes | None:
    """The key of a line's document; None for a line that is no JSON object with a text."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("text"), str):
        return None
    try:
        return key_of(None if entry.get("id") is None else str(entry["id"]), entry["text"])
    except UnicodeEncodeError:  # half of a surrogate pair
        return None


def _is_at(file: int, path: Path) -> bool:
    """Whether the open file is still the one of this name: it may have been moved while we waited for the lock."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _last_line(file: int, size: int) -> int:
    """Where the last line begins, of a file that does not end with a line break."""
    stop = size
    while stop:
        start = max(0, stop - BLOCK)
        at = os.pread(file, stop - start, start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        stop = start
    return 0


def _flush_folder(folder: Path) -> None:
    """A new file's name is on the disk, too."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
