from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The finished spans, and a function that returns the points of a metric."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    spans, meters = sdk.TracerProvider(), MeterProvider([reader])
    spans.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: spans)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: meters)

    def points(name: str) -> list[Any]:
        data = reader.get_metrics_data()
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
        return [
            point for scope in scopes for each in scope.metrics if each.name == name for point in each.data.data_points
        ]

    yield SimpleNamespace(spans=exporter.get_finished_spans, points=points)
    meters.shutdown()
    spans.shutdown()
