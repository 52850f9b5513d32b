"""Metrics of the server, for Prometheus and for its page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from guardwrap.outcomes import SAMPLER, Outcome

OTHER_RULES = "other"
"""The label ``rule`` of rules that requests bring: clients choose their names, which would have no limit."""

_STATUSES = ("200", "400", "422", "429", "499", "500", "503")
_ENDS = ("complete", "max_attempts", "max_tokens", "max_seconds", "deterministic", "impossible")
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_ATTEMPTS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)

_LIVE = {
    "running": "Requests in the batch.",
    "queued": "Requests that wait for the model or for a place in its batch.",
    "rows_busy": "Rows of the batch that hold an attempt.",
    "loaded": "Whether the model is loaded.",
}


class WatchedModel(NamedTuple):
    """What is known of a model before its first request."""

    # functions that return the number of requests in the batch (``running``), of waiting requests (``queued``), of busy
    # batch rows (``rows_busy``), and 1 if it is ``loaded``, otherwise 0
    live: Mapping[str, Callable[[], float]]
    most_running: int  # the limits of the first two
    most_queued: int
    # Titles of the server's rules. Rejections by other rules are counted together, as ``OTHER_RULES``.
    rules: Collection[str]


class ServerMetrics:
    """Counters and gauges of one server, by model, in a separate registry."""

    def __init__(self, models: Mapping[str, WatchedModel]) -> None:
        self._registry = CollectorRegistry()
        self._models = models
        self._rules = {name: {*model.rules, SAMPLER} for name, model in models.items()}
        self._attempts = self._counter("attempts", "Attempts that were accepted or rejected.")
        self._accepted = self._counter("accepted", "Texts that were accepted.")
        self._tokens = self._counter("tokens", "Tokens of all attempts.")
        self._computed = self._counter("computed_tokens", "Tokens for which the model was run, without prompts.")
        self._returned = self._counter("returned_tokens", "Tokens of accepted texts.")
        self._rejected = self._counter("rejected", "Attempts that were rejected, by the first rule that did.", "rule")
        self._prompts = self._counter("prompts", "Prompts, by what ended them: complete, or a limit.", "ended")
        about = "Attempts of a prompt per accepted text, of prompts with at least one."
        self._per_text = self._histogram("attempts_per_text", about, _ATTEMPTS)
        self._requests = self._counter("requests", "Requests, by HTTP status.", "status")
        self._seconds = self._histogram("request_seconds", "Seconds from a request to its reply.", _SECONDS)
        self._loads = self._counter("loads", "Times that the model was loaded: at the start, or by a request.")
        self._failed_loads = self._counter("failed_loads", "Times that loading the model failed.")
        self._load_seconds = self._counter("load_seconds", "Seconds of loading the model.")
        live = {name: self._gauge(name, words) for name, words in _LIVE.items()}
        most_running = self._gauge("running_max", "The most requests in the batch.")
        most_queued = self._gauge("queued_max", "The most requests that wait; more get 429.")
        for name, model in models.items():
            for each, value in model.live.items():
                live[each].labels(name).set_function(value)
            most_running.labels(name).set(model.most_running)
            most_queued.labels(name).set(model.most_queued)
            self._begin_at_zero(name)
        ProcessCollector(registry=self._registry)  # memory, processor seconds, open files

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(f"guardwrap_{name}", words, ["model", *labels], registry=self._registry)

    def _gauge(self, name: str, words: str) -> Gauge:
        return Gauge(f"guardwrap_{name}", words, ["model"], registry=self._registry)

    def _histogram(self, name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"guardwrap_{name}", words, ["model"], buckets=buckets, registry=self._registry)

    def _begin_at_zero(self, model: str) -> None:
        """Begin the frequent series of a model: rates miss the first event of a series that begins with it."""
        for counter in (self._attempts, self._accepted, self._tokens, self._computed, self._returned):
            counter.labels(model)
        for counter in (self._loads, self._failed_loads, self._load_seconds):
            counter.labels(model)
        for histogram in (self._per_text, self._seconds):
            histogram.labels(model)
        for counter, labels in (
            (self._rejected, [*self._rules[model], OTHER_RULES]),
            (self._prompts, _ENDS),
            (self._requests, _STATUSES),
        ):
            for label in labels:
                counter.labels(model, label)

    def drawn(self, model: str, outcome: Outcome) -> None:
        """Add the attempts, rejections, accepted texts and tokens of one prompt."""
        report = outcome.report
        self._attempts.labels(model).inc(report.usage.attempts)
        self._accepted.labels(model).inc(report.accepted)
        self._tokens.labels(model).inc(report.usage.tokens)
        self._computed.labels(model).inc(report.usage.computed_tokens)
        self._returned.labels(model).inc(sum(len(draw.token_ids) for draw in outcome.draws))
        self._prompts.labels(model, report.ended).inc()
        for rule, count in report.rejections.items():
            self._rejected.labels(model, rule if rule in self._rules[model] else OTHER_RULES).inc(count)
        if report.accepted:
            self._per_text.labels(model).observe(report.usage.attempts / report.accepted)

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
        return {**totals, **{name: sum(float(each.live[name]()) for each in self._models.values()) for name in _LIVE}}

    def _total(self, name: str, counter: Counter) -> float:
        samples = (sample for metric in counter.collect() for sample in metric.samples)
        return sum(sample.value for sample in samples if sample.name == f"guardwrap_{name}_total")

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)
