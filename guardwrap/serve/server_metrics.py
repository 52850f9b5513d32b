"""Metrics of the server, for Prometheus and for its page."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from guardwrap.outcomes import Report

__all__ = ["ServerMetrics"]

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


_LIVE = {
    "running": "Requests in the batch.",
    "queued": "Requests that wait for the model or for a place in its batch.",
    "rows_busy": "Rows of the batch that hold an attempt.",
    "loaded": "Whether the model is loaded.",
}


class ServerMetrics:
    """Counters and gauges of one server, by model, in a separate registry.

    Parameters
    ----------
    live
        For each model, functions that return the number of requests in the batch (``running``), of waiting requests
        (``queued``), of busy batch rows (``rows_busy``), and 1 if it is ``loaded``, otherwise 0.
    """

    def __init__(self, live: Mapping[str, Mapping[str, Callable[[], float]]]) -> None:
        self._registry = CollectorRegistry()
        self._attempts = self._counter("attempts", "Attempts that were accepted or rejected.")
        self._accepted = self._counter("accepted", "Texts that were accepted.")
        self._tokens = self._counter("tokens", "Tokens of all attempts.")
        self._requests = self._counter("requests", "Requests, by HTTP status.", "status")
        self._seconds = Histogram(
            "guardwrap_request_seconds",
            "Seconds from a request to its reply.",
            ["model"],
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._loads = self._counter("loads", "Times that the model was loaded.")
        self._failed_loads = self._counter("failed_loads", "Times that loading the model failed.")
        self._load_seconds = self._counter("load_seconds", "Seconds of loading the model.")
        self._live = live
        gauges = {
            name: Gauge(f"guardwrap_{name}", words, ["model"], registry=self._registry) for name, words in _LIVE.items()
        }
        for each, values in live.items():
            for name, value in values.items():
                gauges[name].labels(each).set_function(value)
            for counter in (self._attempts, self._accepted, self._tokens, self._loads, self._failed_loads):
                counter.labels(each)  # it is 0 from the start

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(f"guardwrap_{name}", words, ["model", *labels], registry=self._registry)

    def drawn(self, model: str, report: Report) -> None:
        """Add the attempts, accepted texts and tokens of one prompt."""
        self._attempts.labels(model).inc(report.usage.attempts)
        self._accepted.labels(model).inc(report.accepted)
        self._tokens.labels(model).inc(report.usage.tokens)

    def served(self, model: str, status: int, seconds: float) -> None:
        """Add a finished request; status 499 means that the client disconnected before the reply.

        ``model`` is empty if the request ended before it was known.
        """
        self._requests.labels(model, str(status)).inc()
        self._seconds.labels(model).observe(seconds)

    def loaded(self, model: str, seconds: float | None) -> None:
        """Add the loading of a model, and the time in seconds that it took; None if it failed."""
        if seconds is None:
            self._failed_loads.labels(model).inc()
        else:
            self._loads.labels(model).inc()
            self._load_seconds.labels(model).inc(seconds)

    def now(self) -> dict[str, float]:
        """Return the totals and current values of all models, which the page shows."""
        counters = {"attempts": self._attempts, "accepted": self._accepted, "tokens": self._tokens}
        totals = {name: self._total(name, counter) for name, counter in counters.items()}
        return {**totals, **{name: sum(float(each[name]()) for each in self._live.values()) for name in _LIVE}}

    def _total(self, name: str, counter: Counter) -> float:
        samples = (sample for metric in counter.collect() for sample in metric.samples)
        return sum(sample.value for sample in samples if sample.name == f"guardwrap_{name}_total")

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)
