"""Ids of requests in headers, bodies and the log, and the spans of the server's requests."""

import asyncio
import json
import re
from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers

from guardwrap import GuardedGenerator
from guardwrap.serve.incoming_requests import request_id_of
from guardwrap.serve.parsed_request import ANYTHING
from guardwrap.serve.routes import create_app
from guardwrap.serve.server_settings import ServerSettings
from tests.serve.fixtures_server import ASKED, world

NEVER = {"guardwrap": {"constraint": "never", "budget": {"max_attempts": 5}}}


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (["job-7.step:3"], True),
        (["Root=1-67891233-abcdef012345678912345678"], True),
        (["x" * 128], True),
        (["x" * 129], False),
        ([""], False),
        (["two words"], False),
        (["a\rb"], False),
        (["ünicode"], False),
        (["a", "b"], False),
        ([], False),
    ],
)
def test_an_id_is_taken_over_only_if_it_is_safe_in_logs(sent: list[str], kept: bool) -> None:
    headers = Headers(raw=[(b"x-request-id", each.encode("latin-1")) for each in sent])
    ident = request_id_of(headers)
    assert (ident == sent[0]) if kept else re.fullmatch("[0-9a-f]{32}", ident)


@pytest.mark.slow
def test_each_response_has_an_id_that_the_log_has_too(server: Any, http: Any) -> None:
    idents = [http.post("/v1/chat/completions", json=ASKED).headers["x-request-id"] for _ in range(2)]
    assert len(set(idents)) == 2
    own = http.post("/v1/chat/completions", json=ASKED, headers={"x-request-id": "mine-1"})
    assert own.headers.get_list("x-request-id") == ["mine-1"]
    for path in ("/health", "/", "/metrics"):
        assert http.get(path).headers["x-request-id"]
    for ident in [*idents, "mine-1"]:
        server.log_with(f"attempts of tiny {ident}\n")


@pytest.mark.slow
def test_the_body_of_an_error_has_it(http: Any) -> None:
    for path, body, status in [
        ("/v1/chat/completions", ASKED | NEVER, 422),
        ("/v1/chat/completions", {"model": "tiny"}, 400),
        ("/v1/nowhere", {}, 404),
    ]:
        reply = http.post(path, json=body)
        assert reply.status_code == status
        assert reply.json()["error"]["request_id"] == reply.headers["x-request-id"]


@pytest.mark.slow
def test_the_last_event_of_a_stream_that_fails_has_it(server: Any, http: Any) -> None:
    few = ASKED | {"stream": True, "n": 4, "guardwrap": {"budget": {"max_attempts": 3}}}
    reply = http.post("/v1/chat/completions", json=few, headers={"x-request-id": "mine-2"})
    assert reply.status_code == 200, "three texts were there before the budget ended"
    last = json.loads(reply.text.splitlines()[-2].removeprefix("data: "))
    assert last["error"]["request_id"] == "mine-2"
    server.log_with("completions 422 .* mine-2\n")


@pytest.mark.parametrize(
    ("route", "field"),
    [("chat/completions", {"messages": [{"role": "user", "content": "ab"}]}), ("responses", {"input": "ab"})],
)
def test_a_chat_with_a_model_that_has_no_template(route: str, field: dict[str, Any]) -> None:
    plain = world()
    plain.tokenizer.chat_template = None
    app = create_app(GuardedGenerator(plain.pipeline(), ANYTHING), ServerSettings(model="local", name="tiny"))

    async def asked() -> list[httpx.Response]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            body = {"model": "tiny", "prompt": "ab", "max_tokens": 2}
            return [
                await client.post(f"/v1/{route}", json={"model": "tiny", **field}),
                await client.post("/v1/completions", json=body),
            ]

    refused, accepted = asyncio.run(asked())
    assert (refused.status_code, accepted.status_code) == (400, 200)
    assert "has no chat template; send a prompt to /v1/completions" in refused.json()["error"]["message"]
    assert refused.json()["error"]["param"] == next(iter(field))


def test_a_request_is_a_span_within_the_clients_and_around_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry import trace
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    made = world()
    app = create_app(GuardedGenerator(made.pipeline(), ANYTHING), ServerSettings(model="local", name="tiny"))
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"traceparent": parent, "x-request-id": "mine"}
    failing = ASKED | {"guided_regex": "z", "guardwrap": {"budget": {"max_attempts": 3}}}

    async def asked() -> None:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await client.get("/health", headers=headers)
            for body in (ASKED, ASKED | {"stream": True}, failing, {"model": "tiny"}):
                await client.post("/v1/chat/completions", json=body, headers=headers)
            current = trace.get_current_span()
            assert not current.get_span_context().is_valid

    asyncio.run(asked())
    provider.shutdown()
    spans = exporter.get_finished_spans()
    requests = [span for span in spans if span.name == "POST /v1/chat/completions"]
    calls = [span for span in spans if span.name == "chat tiny"]
    assert len(spans) == len(requests) + len(calls), "/health has none"
    assert [span.attributes["http.response.status_code"] for span in requests] == [200, 200, 422, 400]
    for span in requests:
        assert f"{span.context.trace_id:032x}-{span.parent.span_id:016x}" == parent[3:-3]
        assert (span.kind.name, span.attributes["http.route"]) == ("SERVER", "/v1/chat/completions")
        assert span.attributes["guardwrap.request_id"] == "mine"
    assert [call.parent.span_id for call in calls] == [span.context.span_id for span in requests[:3]]
    assert calls[2].attributes["guardwrap.ended_by"] == "impossible"
    assert calls[0].attributes["gen_ai.request.max_tokens"] == ASKED["max_tokens"]
