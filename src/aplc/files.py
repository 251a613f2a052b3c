"""Files: written so that a crash never leaves half of one, read so that a bad one is named, and a cache.

Everything is written under a temporary name beside its final one, flushed to disk, and renamed when complete. Files
that a user names (`output_stream`) may be links, which are followed, or `-`, standard output. Files of our own folders
(`atomic_write`) replace a link: what it leads to, such as the hub's cache, belongs to others as well.
"""

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from safetensors import SafetensorError

from aplc.errors import AplcError, ModelError
from aplc.machine import is_main_process

MB = 1_000_000
STDOUT = Path("-")
"""Standard output, where a command writes one stream."""


@contextlib.contextmanager
def atomic_path(path: Path, *, by_every_process: bool = False) -> Iterator[Path]:
    """A temporary name beside `path` to write to; renamed to it when the block ends without an exception.

    Of several processes under `torchrun`, only the first one's file is kept, because all of them come to the same
    result; unless each has files of its own.
    """
    _check_replaceable(path)
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _beside(path)
        try:
            temporary.touch(exist_ok=False)
            mode = temporary.stat().st_mode
        except OSError as error:  # such as a read-only folder; nobody knows the temporary name
            raise OSError(error.errno, error.strerror, str(path)) from None
        try:
            yield temporary
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.chmod(mode)  # safetensors puts a private file in its place
            if by_every_process or is_main_process():
                os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """A new temporary name in the same folder. Made by `touch` or `mkdir`, it has the permissions of any new file.

    `tempfile` would make it private, and the umask, which says what others may, can be read only by changing it for a
    moment, in all threads.
    """
    return path.parent / f".{path.name}.{secrets.token_hex(8)}.tmp"


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears under `path` only when the block ends without an exception."""
    with atomic_path(path) as temporary, temporary.open("wb") as out:
        yield out


@contextlib.contextmanager
def output_stream(path: Path) -> Iterator[BinaryIO]:
    """Where a user asked for output: standard output for `-`, else a file that appears when whole. Links are followed.

    What is written to standard output can be read as soon as it is flushed; there is no way to take it back.
    """
    if path == STDOUT:
        with naming(Path("standard output")):
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        return
    check_output(path)
    with atomic_write(Path(os.path.realpath(path))) as out:
        yield out


def check_output(path: Path) -> None:
    """Refuse an output that exists and is not a file; call it before the work that leads to the output."""
    _check_replaceable(path)
    with contextlib.suppress(OSError):  # no such file yet, or no standard output
        if os.path.samestat(path.stat(), os.fstat(1)):  # /dev/stdout, where it leads to a file
            raise AplcError(f"{path}: is standard output already; write - instead")
    if os.path.islink(os.path.realpath(path)):
        raise AplcError(f"{path}: is a link to itself; give the name of a file, or - for standard output")


def messages(*outputs: Path | None, reads: Mapping[Path, str] | None = None) -> TextIO:
    """Check a command's outputs; returns the stream for messages: standard error if data goes to standard output.

    `reads`: files that no output may replace, and what each of them is. Links are followed on both sides.
    """
    kept = {os.path.realpath(path): what for path, what in (reads or {}).items()}
    to_stdout = [output for output in outputs if output == STDOUT]
    if len(to_stdout) > 1:
        raise AplcError("only one output can be - (standard output); give the other one the name of a file")
    for output in outputs:
        if output and output != STDOUT:
            check_output(output)
            if what := kept.get(os.path.realpath(output)):
                raise AplcError(f"{output}: is {what}, and would be replaced; give the output another name")
    return sys.stderr if to_stdout else sys.stdout


def _check_replaceable(path: Path) -> None:
    if path.exists() and not path.is_file():
        kind = "folder" if path.is_dir() else "device or a pipe"
        raise AplcError(f"{path}: is a {kind}; give the name of a file, or - for standard output")


@contextlib.contextmanager
def naming(path: Path, cure: str = "make room and try again") -> Iterator[None]:
    """A full disk is reported with the file that found no room: the system doesn't name it when a write fails.

    Nor does safetensors name the file, whatever it was that went wrong.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        found = re.search(r"os error (\d+)", str(error))  # safetensors' way to pass on the system's error
        number = error.errno if isinstance(error, OSError) else int(found[1]) if found else None
        if number is None and re.search(r"\d+ requested and \d+ written", str(error)):  # NumPy's words for a full disk
            number = errno.ENOSPC
        if number not in _NO_ROOM:
            if isinstance(error, SafetensorError):
                raise ModelError(f"{path}: can't be written ({error})") from None
            raise
        kept = "; what was there before is intact" if path.exists() else ""
        raise OSError(number, f"{os.strerror(number)}{kept}; {cure}", str(path)) from None


_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A copy of `folder` beside it, to change; takes its place, in one step, when the block ends without an exception.

    Files are hard links to the old ones: what is written with `atomic_write` replaces a link and leaves the old file.
    """
    folder = folder.resolve()
    temporary = _beside(folder)
    try:
        shutil.copytree(folder, temporary, copy_function=_link, symlinks=False)
        yield temporary
        _exchange(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # by now the old one


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder`, to fill; renamed to it when the block ends without an exception.

    Its own files are on the disk by then; those of folders in it, such as an environment's thousands, are the system's.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = _beside(folder)
    temporary.mkdir()
    try:
        yield temporary
        flush_files(temporary)
        os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def flush_files(folder: Path) -> None:
    """Wait until a folder's own files are on the disk: before that, a rename may outlive a crash that they don't."""
    for file in filter(Path.is_file, folder.iterdir()):
        with file.open("rb") as written:
            os.fsync(written.fileno())


def _link(source: str, target: str) -> None:
    try:
        os.link(os.path.realpath(source), target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def _exchange(a: Path, b: Path) -> None:
    """Swap two folders: at once where the system can (Linux), else with one moment between two renames."""
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.renameat2(_AT_CWD, os.fsencode(a), _AT_CWD, os.fsencode(b), _EXCHANGE) == 0:
            return
    spare = a.with_suffix(".old")
    os.rename(b, spare)
    try:
        os.rename(a, b)
    except OSError:
        os.rename(spare, b)
        raise
    os.rename(spare, a)


_AT_CWD, _EXCHANGE = -100, 2
"""Linux' names for "relative to where we are" and RENAME_EXCHANGE."""


def write_json(path: Path, value: Any) -> None:
    """A JSON file of a folder of ours."""
    with atomic_write(path) as out:
        out.write(_json(value))


def output_json(path: Path, value: Any) -> None:
    """A JSON file that a user asked for, or - for standard output."""
    with output_stream(path) as out:
        out.write(_json(value))


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object of a model folder."""
    try:
        tree = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not JSON ({error}), so it is damaged; copy the whole folder again") from None
    if not isinstance(tree, dict):
        raise ModelError(f"{path}: must hold one JSON object")
    return tree


def check_file(path: Path, limit: int) -> None:
    """Refuse anything but a regular file of at most `limit` bytes; a pipe or a device would be read forever."""
    if not path.exists():
        return
    if not path.is_file():
        raise ModelError(f"{path}: not a regular file")
    if path.stat().st_size > limit:
        raise ModelError(f"{path}: {path.stat().st_size:,} bytes; aplc reads at most {limit:,}")


def digest(*parts: object) -> str:
    """A short stable name for anything JSON can say."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def cache_root() -> Path:
    """Where derived files live: `$APLC_CACHE`, else `aplc` in the user's cache folder. Safe to delete at any time."""
    root = os.environ.get("APLC_CACHE")
    if root:
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aplc"


CACHE_CURE = "make room, or set APLC_CACHE to a folder on another disk: it says where the cache is"


def cached(folder: Path, build: Callable[[Path], None]) -> Path:
    """`folder`, made by `build` unless it already exists."""
    if folder.is_dir():
        return folder
    try:
        with naming(folder, CACHE_CURE), new_folder(folder) as temporary:
            build(temporary)
    except OSError:
        if not folder.is_dir():  # else another process was first; its content is the same
            raise
    return folder
