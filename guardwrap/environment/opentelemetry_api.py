"""OpenTelemetry's API, if the process uses it: spans, counters and the context of a remote caller.

An application that exports telemetry has imported ``opentelemetry`` to configure its SDK, so guardwrap never imports it
by itself. In all other processes each function here costs a dictionary lookup.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
"""The environment variable that allows prompts and returned texts in spans."""

_ON = ("true", "1", "span_only", "span_and_event")
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""The buckets that the semantic conventions recommend for durations."""


def tracer() -> Any:
    """Return guardwrap's tracer; None if the process does not use OpenTelemetry."""
    api = sys.modules.get("opentelemetry.trace")
    return None if api is None else api.get_tracer("guardwrap")


def captures_text() -> bool:
    """Whether spans may contain prompts and returned texts."""
    return os.environ.get(CAPTURE, "").strip().lower() in _ON


def failed_span(span: Any, kind: type[BaseException], message: str | None) -> None:
    """Record an error in a span, without its traceback, which may quote texts."""
    from opentelemetry.trace import Status, StatusCode

    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    span.set_attribute("error.type", name)
    span.add_event("exception", {"exception.type": name} | ({} if message is None else {"exception.message": message}))
    span.set_status(Status(StatusCode.ERROR, message))


def current_context() -> Any:
    """Return the context of this thread or task, with its span; None if the process does not use OpenTelemetry."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import context

    return context.get_current()


def context_with(span: Any) -> Any:
    """Return the context of this thread or task, in which a span is the current one."""
    from opentelemetry import trace

    return trace.set_span_in_context(span)


@contextmanager
def attached(traced: Any) -> Iterator[None]:
    """Use a context of OpenTelemetry in this thread or task: further spans become children of its current span."""
    if traced is None:
        yield
        return
    from opentelemetry import context

    token = context.attach(traced)
    try:
        yield
    finally:
        context.detach(token)


def trace_headers(traced: Any) -> dict[str, str]:
    """Return the headers ``traceparent`` and ``tracestate`` (W3C Trace Context) of a context's current span.

    Baggage is never in them: an application may keep there what another server must not see.
    """
    headers: dict[str, str] = {}
    if traced is not None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(headers, traced)
    return headers


def remote_context(headers: Mapping[str, str]) -> Any:
    """Return the context of a request: that of its ``traceparent`` header, unless a span is current already."""
    from opentelemetry import propagate, trace

    return None if trace.get_current_span().get_span_context().is_valid else propagate.extract(headers)


class Instruments(NamedTuple):
    """guardwrap's counters and histograms."""

    attempts: Any
    accepted: Any
    tokens: Any
    exhausted: Any
    duration: Any


def instruments() -> Instruments | None:
    """Return the counters and histograms; None if the process does not use OpenTelemetry's metrics."""
    api = sys.modules.get("opentelemetry.metrics")
    return None if api is None else _instruments(api.get_meter_provider())


@lru_cache(maxsize=1)  # a provider keeps every instrument, so they are made once
def _instruments(provider: Any) -> Instruments:
    meter = provider.get_meter("guardwrap")
    return Instruments(
        meter.create_counter("guardwrap.attempts", "{attempt}", "Attempts that were accepted or rejected."),
        meter.create_counter("guardwrap.accepted", "{text}", "Texts that were accepted."),
        meter.create_counter("guardwrap.tokens", "{token}", "Tokens of all attempts."),
        meter.create_counter("guardwrap.exhausted", "{prompt}", "Prompts without all of their texts."),
        meter.create_histogram(
            "gen_ai.client.operation.duration",
            "s",
            "Duration of calls.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        ),
    )
