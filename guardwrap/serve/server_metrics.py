"""Metrics of the server, for Prometheus and for its page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from guardwrap.outcomes import SAMPLER, Outcome
from guardwrap.serve.server_settings import ServerLimits

OTHER_RULES = "other"
"""The label ``rule`` of rules that requests bring: clients choose their names, which would have no limit."""

_STATUSES = ("200", "400", "422", "429", "499", "500", "503")
_ENDS = ("complete", "max_attempts", "max_tokens", "max_seconds", "deterministic", "impossible")
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_ATTEMPTS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)

_LIVE = {
    "running": "Requests in the batch.",
    "queued": "Requests that wait for a place in the batch.",
    "rows_busy": "Rows of the batch that hold an attempt.",
}


class ServerMetrics:
    """Counters and gauges of one server, with the name of its model as a label, in a separate registry.

    ``live`` has functions that return the number of requests in the batch (``running``), of waiting requests
    (``queued``), and of busy batch rows (``rows_busy``). ``rules`` are the titles of the server's rules: rejections by
    other rules are counted together, as ``OTHER_RULES``.
    """

    def __init__(
        self, model: str, live: Mapping[str, Callable[[], float]], limits: ServerLimits, rules: Collection[str]
    ) -> None:
        self._registry = CollectorRegistry()
        self._model, self._live, self._rules = model, live, {*rules, SAMPLER}
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
        for name, words in _LIVE.items():
            self._gauge(name, words).labels(model).set_function(live[name])
        self._gauge("running_max", "The most requests in the batch.").labels(model).set(limits.running)
        self._gauge("queued_max", "The most requests that wait; more get 429.").labels(model).set(limits.queue)
        self._begin_at_zero()
        ProcessCollector(registry=self._registry)  # memory, processor seconds, open files

    def _counter(self, name: str, words: str, *labels: str) -> Counter:
        return Counter(f"guardwrap_{name}", words, ["model", *labels], registry=self._registry)

    def _gauge(self, name: str, words: str) -> Gauge:
        return Gauge(f"guardwrap_{name}", words, ["model"], registry=self._registry)

    def _histogram(self, name: str, words: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"guardwrap_{name}", words, ["model"], buckets=buckets, registry=self._registry)

    def _begin_at_zero(self) -> None:
        """Begin the frequent series: rates miss the first event of a series that begins with it."""
        for counter in (self._attempts, self._accepted, self._tokens, self._computed, self._returned):
            counter.labels(self._model)
        for histogram in (self._per_text, self._seconds):
            histogram.labels(self._model)
        for counter, labels in (
            (self._rejected, [*self._rules, OTHER_RULES]),
            (self._prompts, _ENDS),
            (self._requests, _STATUSES),
        ):
            for label in labels:
                counter.labels(self._model, label)

    def drawn(self, outcome: Outcome) -> None:
        """Add the attempts, rejections, accepted texts and tokens of one prompt."""
        model, report = self._model, outcome.report
        self._attempts.labels(model).inc(report.usage.attempts)
        self._accepted.labels(model).inc(report.accepted)
        self._tokens.labels(model).inc(report.usage.tokens)
        self._computed.labels(model).inc(report.usage.computed_tokens)
        self._returned.labels(model).inc(sum(len(draw.token_ids) for draw in outcome.draws))
        self._prompts.labels(model, report.ended).inc()
        for rule, count in report.rejections.items():
            self._rejected.labels(model, rule if rule in self._rules else OTHER_RULES).inc(count)
        if report.accepted:
            self._per_text.labels(model).observe(report.usage.attempts / report.accepted)

    def served(self, model: str, status: int, seconds: float) -> None:
        """Add a finished request; ``model`` is empty if the request ended before its field ``model`` was read."""
        self._requests.labels(model, str(status)).inc()
        self._seconds.labels(model).observe(seconds)

    def now(self) -> dict[str, float]:
        """Return the totals and current values, which the page shows."""
        counters = {"attempts": self._attempts, "accepted": self._accepted, "tokens": self._tokens}
        totals = {name: self._total(name, counter) for name, counter in counters.items()}
        return {**totals, **{name: float(value()) for name, value in self._live.items()}}

    def _total(self, name: str, counter: Counter) -> float:
        samples = (sample for metric in counter.collect() for sample in metric.samples)
        return sum(sample.value for sample in samples if sample.name == f"guardwrap_{name}_total")

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self._registry)
