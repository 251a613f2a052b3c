"""Virtual environments of the peers, made once from exact versions, and processes in them with a time limit."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from aplc.files import cache_root, cached, digest

VERSIONS = Path(__file__).parent / "versions"


class PeerError(Exception):
    """A peer that could not be installed or run; the others go on."""


def requirements(library: str) -> list[Path]:
    """Files with exact versions of all that a library needs: one for each part of its name, as in pecos+minilm."""
    return [VERSIONS / f"{part}.txt" for part in library.split("+")]


def versions(library: str | None) -> str:
    return "".join(path.read_text("utf-8") for path in requirements(library)) if library else ""


def python_of(library: str | None) -> Path:
    """The interpreter of a library's environment, which is made if there is none; this one for None."""
    if library is None:
        return Path(sys.executable)
    name = f"{library}-{digest(versions(library), sys.version)}"
    # A renamed environment keeps working as long as only its bin/python is called.
    folder = cached(cache_root() / "peers" / name, lambda aside: _install(aside, library))
    if not (python := folder / "bin" / "python").exists():
        raise PeerError(f"its environment is damaged; delete {folder}")
    return python


def _install(folder: Path, library: str) -> None:
    wanted = [argument for path in requirements(library) for argument in ("-r", str(path))]
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *wanted],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()[-1:]
            raise PeerError(f"can't be installed: {' '.join(lines)}")


def run_limited(command: list[str], limit: float, log: Path) -> None:
    """Run `command`, its output to `log`; PeerError if it fails or takes longer than `limit` seconds."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise PeerError(f"stopped after the limit of {limit:g} s") from None
        finally:
            if process.poll() is None:  # also when the user interrupts
                os.killpg(process.pid, signal.SIGKILL)  # a group of its own: with whatever it has started
                process.wait()
    if code:
        last = log.read_text("utf-8", errors="replace").strip().splitlines()[-1:] or ["no output"]
        raise PeerError(f"failed with {code}: {last[0]} (see {log})")
