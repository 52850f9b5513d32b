"""Metrics of the server, for Prometheus and for its page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from guardwrap.outcomes import Report

__all__ = ["ServerMetrics"]

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class ServerMetrics:
    """Counters and gauges of one server, in a separate registry.

    Parameters
    ----------
    running, queued, rows
        Functions that return the number of requests in the batch, of waiting requests, and of busy batch rows.
    """

    def __init__(self, *, running: Callable[[], int], queued: Callable[[], int], rows: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()
        self._attempts = Counter("guardwrap_attempts", "Attempts that were accepted or rejected.", registry=registry)
        self._accepted = Counter("guardwrap_accepted", "Texts that were accepted.", registry=registry)
        self._tokens = Counter("guardwrap_tokens", "Tokens of all attempts.", registry=registry)
        self._requests = Counter("guardwrap_requests", "Requests, by HTTP status.", ["status"], registry=registry)
        self._seconds = Histogram(
            "guardwrap_request_seconds", "Seconds from a request to its reply.", buckets=_SECONDS, registry=registry
        )
        live = {
            "running": (running, "Requests in the batch."),
            "queued": (queued, "Requests that wait for a place in the batch."),
            "rows_busy": (rows, "Rows of the batch that hold an attempt."),
        }
        self._live = {name: value for name, (value, _) in live.items()}
        for name, (value, words) in live.items():
            Gauge(f"guardwrap_{name}", words, registry=registry).set_function(value)

    def drawn(self, report: Report) -> None:
        """Add the attempts, accepted texts and tokens of one prompt."""
        self._attempts.inc(report.usage.attempts)
        self._accepted.inc(report.accepted)
        self._tokens.inc(report.usage.tokens)

    def served(self, status: int, seconds: float) -> None:
        """Add a finished request; status 499 means that the client disconnected before the reply."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)

    def now(self) -> dict[str, float]:
        """Return the totals and current values that the page shows."""
        names: Sequence[str] = ("attempts", "accepted", "tokens")
        totals = {name: self._registry.get_sample_value(f"guardwrap_{name}_total") or 0.0 for name in names}
        return {**totals, **{name: float(value()) for name, value in self._live.items()}}

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)
