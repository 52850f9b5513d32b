"""What the server counts, for Prometheus and for its page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from guardwrap.outcomes import Report

__all__ = ["ServerMetrics"]

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class ServerMetrics:
    """Counters of one server, in a registry of their own.

    Parameters
    ----------
    running, queued, rows
        Say how many requests are in the batch, how many wait, and how many rows of the batch are busy.
    """

    def __init__(self, *, running: Callable[[], int], queued: Callable[[], int], rows: Callable[[], int]) -> None:
        self._registry = registry = CollectorRegistry()
        self._attempts = Counter("guardwrap_attempts", "Attempts that were decided.", registry=registry)
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
        """Count what was drawn for a prompt."""
        self._attempts.inc(report.usage.attempts)
        self._accepted.inc(report.accepted)
        self._tokens.inc(report.usage.tokens)

    def served(self, status: int, seconds: float) -> None:
        """Count a request that has ended; 499 is one whose client had gone."""
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)

    def now(self) -> dict[str, float]:
        """Return what the page shows."""
        names: Sequence[str] = ("attempts", "accepted", "tokens")
        totals = {name: self._registry.get_sample_value(f"guardwrap_{name}_total") or 0.0 for name in names}
        return {**totals, **{name: float(value()) for name, value in self._live.items()}}

    def exposition(self) -> bytes:
        """Return all of it in Prometheus's text format."""
        return generate_latest(self._registry)
