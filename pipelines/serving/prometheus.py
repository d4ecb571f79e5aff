"""What the service counts, in Prometheus' form."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Counts:
    """Counters of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests by wire and HTTP status", "wire", "status")
        self.answers = self._counter(
            "answers", "Images by metric, and whether scored, cached or null", "metric", "outcome"
        )
        self.deaths = self._counter("replica_deaths", "Batches whose replica died before it answered")
        self.seconds = Histogram(
            "plumbline_request_seconds", "Seconds from a request to its reply", ["wire"], registry=self.registry
        )
        sizes = (1, 2, 4, 8, 16, 32, 64, 128, 256)
        self.batches = Histogram("plumbline_batch_images", "Images of a batch", buckets=sizes, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"plumbline_{name}", text, labels, registry=self.registry)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A number that is looked up whenever it is asked for."""
        Gauge(f"plumbline_{name}", text, registry=self.registry).set_function(value)

    def sent(self, images: int) -> None:
        self.batches.observe(images)

    def answered(self, metric: str, outcome: str) -> None:
        self.answers.labels(metric, outcome).inc()

    def died(self) -> None:
        self.deaths.inc()

    def page(self) -> bytes:
        """All of it as text."""
        return generate_latest(self.registry)
