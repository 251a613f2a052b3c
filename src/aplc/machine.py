"""This process and its machine, without importing torch: rank and number of processes, and memory."""

import math
import os
from pathlib import Path

_rank = 0


def set_rank(rank: int) -> None:
    """`nn.distributed.launched` says which of the processes that have joined this one is."""
    global _rank  # noqa: PLW0603
    _rank = rank


def is_main_process() -> bool:
    """False in all but the first of the processes that have joined (`nn.distributed.launched`).

    A script that `torchrun` starts has not joined: each of its processes works alone, and keeps its own files.
    """
    return _rank == 0


def n_processes() -> int:
    """Processes that `torchrun` or `accelerate launch` has started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def resident_bytes() -> int:
    """Memory of this process now."""
    statm = Path("/proc/self/statm")
    if statm.is_file():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS: the peak so far, in bytes


def free_bytes() -> int:
    """Memory that this process may still get, whatever GPUs there are."""
    return int(min(_available(), _cgroup_limit() - resident_bytes()))


def _available() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_limit() -> float:
    """A container's limit; infinity where there is none."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return float(Path(path).read_text())
        except (OSError, ValueError):
            continue
    return math.inf
