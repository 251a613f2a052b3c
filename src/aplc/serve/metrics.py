"""What a running server counts, for Prometheus.

Each service has a registry of its own, not prometheus_client's global one, so that several services in one process
(the tests) count apart.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram of request times."""


class ServerMetrics:
    """Counters and gauges of one service. They may be changed from any thread, but for `in_flight`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.in_flight = 0
        """Requests under way. A plain number, because the guard decides by it; only the event loop changes it."""
        self.queue_texts = Gauge("aplc_queue_texts", "Texts waiting for the model.", registry=self.registry)
        self.texts = Counter("aplc_texts_total", "Texts tagged.", registry=self.registry)
        self.batches = Counter("aplc_batches_total", "Batches tagged.", registry=self.registry)
        self._requests = Counter(
            "aplc_requests_total", "Requests answered.", ["path", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "aplc_request_seconds",
            "Seconds from a request's headers to the end of its answer.",
            buckets=SECONDS,
            registry=self.registry,
        )
        in_flight = Gauge("aplc_in_flight", "Requests under way.", registry=self.registry)
        in_flight.set_function(lambda: self.in_flight)
        ProcessCollector(registry=self.registry)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, str(status)).inc()
        self._seconds.observe(seconds)

    def render(self) -> bytes:
        """Everything in Prometheus' text format, version 0.0.4."""
        return generate_latest(self.registry)
