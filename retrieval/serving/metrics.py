"""What a server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters of one server, in a registry of its own.

    Args:
        items: how many there are.
        waiting: queries that wait.
    """

    def __init__(self, items: Callable[[], int], waiting: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        self.requests = Counter("simzoo_requests", "Requests answered.", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "simzoo_request_seconds",
            "From a request's head to its answer.",
            ["path"],
            buckets=SECONDS,
            registry=registry,
        )
        self.batches = Histogram("simzoo_batch_queries", "Queries a batch.", buckets=BATCHES, registry=registry)
        self.calls = Counter("simzoo_similarity_calls", "Pairs scored by the similarity.", registry=registry)
        Gauge("simzoo_items", "Items in the index.", registry=registry).set_function(items)
        Gauge("simzoo_waiting_queries", "Queries that wait.", registry=registry).set_function(waiting)

    content_type = CONTENT_TYPE_LATEST
    """Of `text`."""

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)
