"""Spans, counters and contexts by OpenTelemetry's API, which does nothing unless the process has configured an SDK."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from opentelemetry import context, metrics, propagate, trace
from opentelemetry.trace import Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The environment variable that allows prompts and returned texts in spans."""

_ON = ("true", "1", "span_only", "span_and_event")
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""The buckets that the semantic conventions recommend for durations."""


def start_span(name: str, **options: Any) -> Any:
    """Start a span of guardwrap. Unless the process has configured an SDK, it records nothing."""
    return trace.get_tracer("guardwrap").start_span(name, **options)


def captures_text() -> bool:
    """Whether spans may contain prompts and returned texts."""
    return os.environ.get(CAPTURE, "").strip().lower() in _ON


def failed_span(span: Any, kind: type[BaseException], message: str | None) -> None:
    """Record an error in a span, without its traceback, which may quote texts."""
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    span.set_attribute("error.type", name)
    span.add_event("exception", {"exception.type": name} | ({} if message is None else {"exception.message": message}))
    span.set_status(Status(StatusCode.ERROR, message))


@contextmanager
def attached(traced: Any) -> Iterator[None]:
    """Use a context of OpenTelemetry in this thread or task: further spans become children of its current span."""
    token = context.attach(context.get_current() if traced is None else traced)
    try:
        yield
    finally:
        context.detach(token)


def trace_headers(traced: Any) -> dict[str, str]:
    """Return the headers ``traceparent`` and ``tracestate`` (W3C Trace Context) of a context's current span.

    Baggage is never in them: an application may keep there what another server must not see.
    """
    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers, traced)
    return headers


def remote_context(headers: Mapping[str, str]) -> Any:
    """Return the context of a request: that of its ``traceparent`` header, unless a span is current already."""
    return None if trace.get_current_span().get_span_context().is_valid else propagate.extract(headers)


def instruments() -> Mapping[str, Any]:
    """Return the counters of attempts, texts, tokens and prompts, and the histogram of durations, by name."""
    return _instruments(metrics.get_meter_provider())


@lru_cache(maxsize=1)  # a provider keeps every instrument, so they are made once
def _instruments(provider: Any) -> Mapping[str, Any]:
    meter = provider.get_meter("guardwrap")
    counters = {
        "attempts": ("{attempt}", "Attempts that were accepted or rejected."),
        "accepted": ("{text}", "Texts that were accepted."),
        "tokens": ("{token}", "Tokens of all attempts."),
        "exhausted": ("{prompt}", "Prompts without all of their texts."),
    }
    named = {name: meter.create_counter(f"guardwrap.{name}", *about) for name, about in counters.items()}
    name, about = "gen_ai.client.operation.duration", ("s", "Duration of calls.")
    return {**named, "duration": meter.create_histogram(name, *about, explicit_bucket_boundaries_advisory=_SECONDS)}
