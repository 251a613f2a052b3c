"""What a running server counts, for Prometheus.

Each service has a registry of its own, not prometheus_client's global one, so that several services in one process
(the tests) count apart. With several workers, prometheus_client keeps all numbers in files of a temporary folder,
`PROMETHEUS_MULTIPROC_DIR`, and whichever worker is asked adds them up; the figures of a worker that has died stay in
the sums.
"""

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from aplc.serve.settings import METRICS_FOLDER

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram of request times."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)


class ServerMetrics:
    """Counters and gauges of one service. They may be changed from any thread, but for `in_flight`."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()
        self.folder = os.environ.get(METRICS_FOLDER)
        self.queue_texts = Gauge("aplc_queue_texts", "Texts waiting.", registry=own, multiprocess_mode="livesum")
        self.texts = Counter("aplc_texts_total", "Texts tagged.", registry=own)
        self.batches = Counter("aplc_batches_total", "Batches tagged.", registry=own)
        self.batch_texts = Histogram("aplc_batch_texts", "Texts in a batch.", buckets=SIZES, registry=own)
        self.top = Histogram(
            "aplc_top_probability", "Probability of a text's best label.", buckets=SHARES, registry=own
        )
        self.abstentions = Counter(
            "aplc_abstentions_total", "Texts without a label of at least the caller's threshold.", registry=own
        )
        self.corrections = Counter("aplc_corrections_total", "Corrections stored.", registry=own)
        self.judged = {
            what: Counter(f"aplc_labels_{what}_total", f"Labels {what} in corrections.", registry=own)
            for what in ("accepted", "rejected", "added")
        }
        self.accepted_share = Histogram(
            "aplc_accepted_share",
            "Of the labels accepted or rejected in a correction, the share accepted.",
            buckets=SHARES,
            registry=own,
        )
        self.reloads = Counter("aplc_reloads_total", "Times that the model was replaced.", registry=own)
        self.drift = {
            name: Gauge(
                f"aplc_drift_{name}",
                "Of the last 1,000 texts, the share outside the range of held-out training documents.",
                registry=own,
                multiprocess_mode="livemax",
            )
            for name in ("top_probability", "unknown_words")
        }
        self._requests = Counter("aplc_requests_total", "Requests answered.", ["path", "status"], registry=own)
        self._seconds = Histogram(
            "aplc_request_seconds",
            "Seconds from a request's headers to the end of its answer.",
            buckets=SECONDS,
            registry=own,
        )
        self._in_flight = Gauge("aplc_in_flight", "Requests under way.", registry=own, multiprocess_mode="livesum")
        self._requests_now = 0
        Gauge("aplc_workers", "Processes that answer.", registry=own, multiprocess_mode="livesum").set(1)
        if not self.folder:
            ProcessCollector(registry=own)

    @property
    def in_flight(self) -> int:
        """Requests under way in this process. A plain number, because the guard decides by it."""
        return self._requests_now

    @in_flight.setter
    def in_flight(self, requests: int) -> None:
        self._requests_now = requests
        self._in_flight.set(requests)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, str(status)).inc()
        self._seconds.observe(seconds)

    def count_correction(self, *, accepted: int, rejected: int, added: int) -> None:
        self.corrections.inc()
        for what, n in {"accepted": accepted, "rejected": rejected, "added": added}.items():
            self.judged[what].inc(n)
        if accepted + rejected:
            self.accepted_share.observe(accepted / (accepted + rejected))

    def render(self) -> bytes:
        """Everything in Prometheus' text format, version 0.0.4; of all workers, where there are several."""
        if not self.folder:
            return generate_latest(self.registry)
        together = CollectorRegistry()
        MultiProcessCollector(together, self.folder)
        return generate_latest(together)
