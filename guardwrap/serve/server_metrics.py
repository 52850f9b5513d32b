"""Metrics of the server, for Prometheus and for its page."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from guardwrap.outcomes import SAMPLER, Outcome

__all__ = ["OTHER_RULES", "ServerMetrics"]

OTHER_RULES = "other"
"""The label ``rule`` of rules that requests bring: clients choose their names, which would have no limit."""

_STATUSES = ("200", "400", "422", "429", "499", "500", "503")
_ENDS = ("complete", "max_attempts", "max_tokens", "max_seconds", "deterministic", "impossible")
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_ATTEMPTS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)


class ServerMetrics:
    """Counters and gauges of one server, in a separate registry.

    Parameters
    ----------
    running, queued, rows
        Functions that return the number of requests in the batch, of waiting requests, and of busy batch rows.
    most_running, most_queued
        The limits of the first two.
    rules
        Titles of the server's rules. Rejections by other rules are counted together, as ``OTHER_RULES``.
    """

    def __init__(
        self,
        *,
        running: Callable[[], int],
        queued: Callable[[], int],
        rows: Callable[[], int],
        most_running: int,
        most_queued: int,
        rules: Collection[str],
    ) -> None:
        self._registry = registry = CollectorRegistry()
        self._rules = {*rules, SAMPLER}
        self._attempts = Counter("guardwrap_attempts", "Attempts that were accepted or rejected.", registry=registry)
        self._accepted = Counter("guardwrap_accepted", "Texts that were accepted.", registry=registry)
        self._tokens = Counter("guardwrap_tokens", "Tokens of all attempts.", registry=registry)
        self._computed = Counter(
            "guardwrap_computed_tokens", "Tokens for which the model was run, without prompts.", registry=registry
        )
        self._returned = Counter("guardwrap_returned_tokens", "Tokens of accepted texts.", registry=registry)
        self._rejected = Counter(
            "guardwrap_rejected",
            "Attempts that were rejected, by the first rule that did.",
            ["rule"],
            registry=registry,
        )
        self._prompts = Counter(
            "guardwrap_prompts", "Prompts, by what ended them: complete, or a limit.", ["ended"], registry=registry
        )
        self._per_text = Histogram(
            "guardwrap_attempts_per_text",
            "Attempts of a prompt per accepted text, of prompts with at least one.",
            buckets=_ATTEMPTS,
            registry=registry,
        )
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
        Gauge("guardwrap_running_max", "The most requests in the batch.", registry=registry).set(most_running)
        Gauge("guardwrap_queued_max", "The most requests that wait; more get 429.", registry=registry).set(most_queued)
        # Rates miss the first event of a series that begins with it, so frequent ones begin at zero.
        for counter, labels in (
            (self._rejected, [*self._rules, OTHER_RULES]),
            (self._prompts, _ENDS),
            (self._requests, _STATUSES),
        ):
            for label in labels:
                counter.labels(label)
        ProcessCollector(registry=registry)  # memory, processor seconds, open files

    def drawn(self, outcome: Outcome) -> None:
        """Add the attempts, rejections, accepted texts and tokens of one prompt."""
        report = outcome.report
        self._attempts.inc(report.usage.attempts)
        self._accepted.inc(report.accepted)
        self._tokens.inc(report.usage.tokens)
        self._computed.inc(report.usage.computed_tokens)
        self._returned.inc(sum(len(draw.token_ids) for draw in outcome.draws))
        self._prompts.labels(report.ended).inc()
        for rule, count in report.rejections.items():
            self._rejected.labels(rule if rule in self._rules else OTHER_RULES).inc(count)
        if report.accepted:
            self._per_text.observe(report.usage.attempts / report.accepted)

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
