"""The server's counters, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300)
TEXTS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The counters of one server, in their own registry."""

    def __init__(self, waiting: Callable[[], int]) -> None:
        """Begin to count; `waiting` returns the number of waiting requests."""
        self._registry = own = CollectorRegistry()
        self.requests = Counter("sira_requests", "Requests by HTTP status.", ["status"], registry=own)
        self.tokens = Counter("sira_output_tokens", "Tokens of finished texts.", registry=own)
        to_end = "Seconds from a request to the end of its answer."
        self.seconds = Histogram("sira_request_seconds", to_end, buckets=SECONDS, registry=own)
        Gauge("sira_waiting_requests", "Requests that wait for their turn.", registry=own).set_function(waiting)
        together = "Texts decoded together, counted when they begin."
        self.batch = Histogram("sira_batch_texts", together, buckets=TEXTS, registry=own)

    def text(self) -> str:
        """Return the counters in Prometheus' format."""
        return generate_latest(self._registry).decode()
