"""Spans and metrics of calls, received by the SDK of OpenTelemetry as a user configures it."""

import asyncio
import gzip
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from guardwrap import Budget, Endpoint, Fallback, GuardedGenerator, Length, Regex
from guardwrap.constraints.stop_strings import StopAt
from guardwrap.errors import BudgetExhausted, PromptError
from guardwrap.support.opentelemetry_api import CAPTURE
from guardwrap.testing import llama_world
from tests.engine.endpoint.fixtures_server import Server

sdk = pytest.importorskip("opentelemetry.sdk.trace")

from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.trace import SpanKind, StatusCode  # noqa: E402

WORLD = llama_world(letters="abcd", max_new_tokens=3)
NEVER = Regex("never", name="says never")
FEW = Budget(max_attempts=5)
CHAT = [{"role": "user", "content": "ab"}]


def made(rule: Any, **options: Any) -> GuardedGenerator:
    world = llama_world(letters="abcd", max_new_tokens=3)
    world.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return GuardedGenerator(world.pipeline(), rule, **options)


def drained(guarded: GuardedGenerator, prompt: Any, **options: Any) -> Any:
    return list(guarded.stream([prompt], **options))


def awaited(guarded: GuardedGenerator, prompt: Any, **options: Any) -> Any:
    return asyncio.run(guarded.arun(prompt, **options))


def generated(guarded: GuardedGenerator, prompt: Any, **options: Any) -> Any:
    return guarded.generate(guarded.tokenizer(prompt, return_tensors="pt")["input_ids"], **options)


WAYS: dict[str, Callable[..., Any]] = {
    "call": lambda guarded, prompt, **options: guarded(prompt, **options),
    "lazy call": lambda guarded, prompt, **options: list(guarded((each for each in [prompt]), **options)),
    "run": lambda guarded, prompt, **options: guarded.run(prompt, **options),
    "stream": drained,
    "arun": awaited,
    "generate": generated,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_call_is_a_span_by_the_conventions(received: Any, way: str) -> None:
    guarded = made(Regex("^a", name="begins with a"))
    settings: dict[str, Any] = {
        "temperature": 0.9,
        "top_p": 0.95,
        "top_k": 0,
        "num_return_sequences": 2,
        "do_sample": True,
    }
    (expected,) = guarded.run("ab", seed=3, max_new_tokens=3, **settings)
    before = len(received.spans())
    WAYS[way](guarded, "ab", seed=3, max_new_tokens=3, **settings)
    (span,) = received.spans()[before:]
    use, rejected = expected.report.usage, expected.report.rejections["begins with a"]
    assert span.name == f"text_completion {guarded.session.model_name}"
    assert (span.kind, span.status.status_code) == (SpanKind.INTERNAL, StatusCode.UNSET)
    attributes = dict(span.attributes)
    assert attributes.pop("guardwrap.computed_tokens") > 0  # it depends on what earlier calls have left
    assert attributes == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "huggingface",
        "gen_ai.request.model": guarded.session.model_name,
        "gen_ai.request.temperature": 0.9,
        "gen_ai.request.top_p": 0.95,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.seed": 3,
        "gen_ai.usage.input_tokens": len(guarded.tokenizer("ab")["input_ids"]),
        "gen_ai.usage.output_tokens": sum(len(draw.token_ids) for draw in expected.draws),
        "gen_ai.response.finish_reasons": tuple("stop" if draw.finished else "length" for draw in expected.draws),
        "guardwrap.prompts": 1,
        "guardwrap.requested": 2,
        "guardwrap.accepted": 2,
        "guardwrap.attempts": use.attempts,
        "guardwrap.tokens": use.tokens,
        "guardwrap.acceptance_rate": (use.attempts - rejected) / use.attempts,
        "guardwrap.rejected_most_by": "begins with a",
        "guardwrap.rejected_most": rejected,
        "guardwrap.sampler": "rejection",
        "guardwrap.ended_by": "complete",
        "guardwrap.fallback": "none",
    }


@pytest.mark.parametrize(
    ("name", "shown"),
    [("", "LlamaForCausalLM"), ("org/model", "org/model"), ("/home/someone/secret/model", "model")],
)
def test_a_model_is_named_without_its_folder(received: Any, name: str, shown: str) -> None:
    world = llama_world(max_new_tokens=1)
    world.model.config.name_or_path = world.model.name_or_path = name
    GuardedGenerator(world.pipeline(), Length(min=0)).run("a")
    (span,) = received.spans()
    assert span.name == f"text_completion {shown}"


def test_metrics_add_up(received: Any) -> None:
    guarded = made(NEVER & Regex("."), budget=FEW)
    outcomes = guarded.run(["ab", "b"], max_new_tokens=3)
    (once,) = guarded.run("ab", constraints=Length(min=0), max_new_tokens=3)
    every = [*outcomes, once]
    wanted = {
        "attempts": sum(each.report.usage.attempts for each in every),
        "accepted": 1,
        "tokens": sum(each.report.usage.tokens for each in every),
        "exhausted": 2,
    }
    for name, value in wanted.items():
        (point,) = received.points(f"guardwrap.{name}")
        assert point.value == value, name
        assert point.attributes["gen_ai.operation.name"] == "text_completion"
    (duration,) = received.points("gen_ai.client.operation.duration")
    assert duration.count == 2
    assert duration.sum > 0


def test_a_call_without_texts_is_an_error_if_it_raises(received: Any) -> None:
    guarded = made(NEVER, budget=FEW)
    guarded.run("ab", max_new_tokens=3, seed=1)
    with pytest.raises(BudgetExhausted) as caught:
        guarded("ab", max_new_tokens=3, seed=1)
    with pytest.raises(BudgetExhausted):
        list(guarded((each for each in ["ab"]), max_new_tokens=3, seed=1))
    ran, *raised = received.spans()
    assert (ran.status.status_code, ran.attributes["guardwrap.ended_by"]) == (StatusCode.UNSET, "max_attempts")
    for span in raised:
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, str(caught.value))
        assert span.attributes["error.type"] == "guardwrap.errors.BudgetExhausted"
        assert span.attributes["guardwrap.attempts"] == 5
        (event,) = span.events
        assert set(event.attributes) == {"exception.type", "exception.message"}, "no traceback, which may quote texts"
    labels = [point.attributes.get("error.type") for point in received.points("gen_ai.client.operation.duration")]
    assert sorted(labels, key=str) == ["BudgetExhausted", None]


def test_the_messages_of_other_errors_are_left_out(received: Any) -> None:
    """They may quote a prompt, or a text that was not checked."""

    def broken(prompt: str) -> str:
        raise ValueError(f"cannot answer {prompt}: secret")

    with pytest.raises(ValueError, match="secret"):
        made(NEVER, budget=FEW, on_exhausted=Fallback(broken))("ab", max_new_tokens=3)
    with pytest.raises(PromptError):
        made(NEVER).run("a\ud800secret")
    for span in received.spans():
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description is None
        assert "secret" not in span.to_json()
    kinds = [span.attributes["error.type"] for span in received.spans()]
    assert kinds == ["ValueError", "guardwrap.errors.PromptError"]


def test_fallbacks(received: Any) -> None:
    made(NEVER, budget=FEW, on_exhausted=Fallback("never"))("ab", max_new_tokens=3)
    made(NEVER, budget=FEW, on_exhausted=Fallback(lambda prompt: "x")).run("ab", max_new_tokens=3)
    assert [span.attributes["guardwrap.fallback"] for span in received.spans()] == ["used", "withheld"]


@pytest.mark.parametrize("value", [None, "", "false", "NO_CONTENT", "true", "SPAN_ONLY"])
def test_texts_are_recorded_only_on_request(received: Any, monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    """And even then no rejected text, and nothing after a stop string, which was not checked."""
    if value is not None:
        monkeypatch.setenv(CAPTURE, value)
    guarded = made(Regex("^a", name="begins with a"))
    (outcome,) = guarded.run(CHAT, seed=3, max_new_tokens=3, num_return_sequences=2)
    stop = StopAt(Length(min=0), ("b",))
    (cut,) = guarded.run("ab", constraints=stop, seed=3, max_new_tokens=3, num_return_sequences=9)
    assert any("b" in text for text in cut.texts)
    span, stopped = received.spans()
    assert span.name.startswith("chat ")
    if value not in ("true", "SPAN_ONLY"):
        assert not [name for each in (span, stopped) for name in each.attributes if "messages" in name]
        return
    (asked,) = json.loads(span.attributes["gen_ai.input.messages"])
    assert asked == {"role": "user", "parts": [{"type": "text", "content": "ab"}]}
    answers = json.loads(span.attributes["gen_ai.output.messages"])
    assert [each["parts"][0]["content"] for each in answers] == list(outcome.texts)
    assert {each["finish_reason"] for each in answers} <= {"stop", "length"}
    shown = [each["parts"][0]["content"] for each in json.loads(stopped.attributes["gen_ai.output.messages"])]
    assert shown == [text.partition("b")[0] for text in cut.texts]


def test_spans_within_a_call_are_its_children(received: Any) -> None:
    tracer = trace.get_tracer("an app")

    def answer(prompt: str) -> str:
        with tracer.start_as_current_span("looks up an answer"):
            return "never"

    with tracer.start_as_current_span("app"):
        made(NEVER, budget=FEW, on_exhausted=Fallback(answer))("ab", max_new_tokens=3)
        drained(made(NEVER, budget=FEW), "ab", max_new_tokens=3)
        awaited(made(NEVER, budget=FEW), "ab", max_new_tokens=3)
        inside = trace.get_current_span()
    inner, call, streamed, run, app = received.spans()
    assert inner.parent.span_id == call.context.span_id
    assert {each.parent.span_id for each in (call, streamed, run)} == {app.context.span_id}
    assert inside.get_span_context() == app.context, "the app's own span is the current one again"


def test_a_span_is_not_the_current_one_of_who_consumes_a_stream(received: Any) -> None:
    guarded = made(Length(min=0))

    async def consumed() -> list[Any]:
        return [trace.get_current_span() async for _ in guarded.astream(["ab", "b"], max_new_tokens=3)]

    seen = [trace.get_current_span() for _ in guarded.stream(["ab", "b"], max_new_tokens=3)]
    assert [each.get_span_context().is_valid for each in (*seen, *asyncio.run(consumed()))] == [False] * 4


def test_a_stream_that_is_closed_early_is_no_error(received: Any) -> None:
    guarded = made(Length(min=0))
    stream: Any = guarded.stream(["ab", "b"], max_new_tokens=3)
    next(stream)
    assert received.spans() == ()
    stream.close()

    async def first() -> None:
        drawn = guarded.astream(["ab", "b"], max_new_tokens=3)
        await anext(drawn)
        await drawn.aclose()

    asyncio.run(first())
    assert [(span.status.status_code, span.attributes["guardwrap.prompts"]) for span in received.spans()] == [
        (StatusCode.UNSET, 1),
        (StatusCode.UNSET, 1),
    ]


def test_the_span_of_an_endpoint(received: Any) -> None:
    with Server(lambda prompt, _: ([" tea"], "stop", 5), model="m").running() as server:
        GuardedGenerator(Endpoint(server.url, model="m"), Length(min=0)).run(CHAT, max_new_tokens=5)
    (span,) = received.spans()
    assert (span.name, span.kind) == ("chat m", SpanKind.CLIENT)
    assert span.attributes["gen_ai.provider.name"] == "openai"
    assert "gen_ai.usage.input_tokens" not in span.attributes, "only the server knows it"


def test_a_collector_receives_spans_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    otlp = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    bodies: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            bodies.append(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    serving = threading.Thread(target=collector.serve_forever)
    serving.start()
    provider = sdk.TracerProvider()
    exporter = otlp.OTLPSpanExporter(endpoint=f"http://127.0.0.1:{collector.server_port}/v1/traces")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    made(Length(min=0)).run("ab", max_new_tokens=3)
    provider.shutdown()
    collector.shutdown()
    collector.server_close()
    serving.join()
    (body,) = bodies
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    (span,) = resource.scope_spans[0].spans
    names = {each.key for each in span.attributes}
    assert span.name.startswith("text_completion ")
    assert {"gen_ai.usage.input_tokens", "guardwrap.attempts"} <= names
