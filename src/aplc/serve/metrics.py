"""Counters of a running server in Prometheus' text format (version 0.0.4), without a dependency."""

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Requests by path and status, and how long they took. Only the event loop's thread writes."""

    def __init__(self) -> None:
        self.in_flight = 0
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets = [0] * (len(SECONDS) + 1)
        self._seconds = 0.0

    def count(self, path: str, status: int, seconds: float) -> None:
        self._requests[path, status] += 1
        self._buckets[bisect_left(SECONDS, seconds)] += 1
        self._seconds += seconds

    def render(self, **gauges: float) -> str:
        """The page; `gauges` are further numbers of this moment, counters where they end in _total."""
        return "\n".join(self._lines(gauges)) + "\n"

    def _lines(self, gauges: dict[str, float]) -> Iterator[str]:
        yield "# HELP aplc_requests_total Requests answered."
        yield "# TYPE aplc_requests_total counter"
        for (path, status), n in sorted(self._requests.items()):
            yield f'aplc_requests_total{{path="{path}",status="{status}"}} {n}'
        yield "# HELP aplc_request_seconds Time from a request's head to its answer."
        yield "# TYPE aplc_request_seconds histogram"
        total = 0
        for bound, n in zip((*map(str, SECONDS), "+Inf"), self._buckets, strict=True):
            total += n
            yield f'aplc_request_seconds_bucket{{le="{bound}"}} {total}'
        yield f"aplc_request_seconds_sum {self._seconds:.6f}"
        yield f"aplc_request_seconds_count {total}"
        for name, value in {"in_flight": self.in_flight, **gauges}.items():
            yield f"# TYPE aplc_{name} {'counter' if name.endswith('_total') else 'gauge'}"
            yield f"aplc_{name} {value}"
        if (memory := resident_memory()) is not None:
            yield "# TYPE process_resident_memory_bytes gauge"
            yield f"process_resident_memory_bytes {memory}"


def resident_memory(pid: int | str = "self") -> int | None:
    """Bytes of memory a process has in use, where the system tells (Linux)."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
