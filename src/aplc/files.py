"""Writing files so that a crash never leaves half of one: write aside, flush, rename."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears under `path` only when the block ends without an exception."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as out:
            yield cast(BinaryIO, out)
            out.flush()
            os.fsync(out.fileno())
        Path(name).chmod(0o666 & ~_umask())  # mkstemp makes it private
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, value: Any) -> None:
    with atomic_write(path) as out:
        out.write((json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8"))


def digest(*parts: object) -> str:
    """A short stable name for anything JSON can say."""
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def cache_root() -> Path:
    """Where derived files live: `$APLC_CACHE`, else `aplc` in the user's cache folder. Safe to delete at any time."""
    root = os.environ.get("APLC_CACHE")
    if root:
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aplc"


def cached(folder: Path, build: Callable[[Path], None]) -> Path:
    """`folder`, made by `build` in a folder beside it and renamed when whole, unless it is there already."""
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".tmp"))
    try:
        build(aside)
        aside.chmod(0o777 & ~_umask())
        with contextlib.suppress(OSError):  # another process was first; its content is the same
            os.rename(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder
