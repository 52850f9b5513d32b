"""Traces beyond the span of a call: servers join it, and plans, pilots and learning have spans in it."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from guardwrap import Budget, GuardedGenerator, Keyword, Length, Prompt, Twisted, qrs
from guardwrap.calls.job import Job
from guardwrap.errors import UsageError
from guardwrap.testing import llama_world, table_world
from tests.engine.endpoint.fixtures_server import Server, of_world
from tests.engine.endpoint.fixtures_server import endpoint as fixed_endpoint

pytest.importorskip("opentelemetry.sdk.trace")

from opentelemetry import baggage, context, trace
from opentelemetry.trace import StatusCode, TraceState

TABLE = table_world(5, letters="ab", max_new_tokens=3)
SMALL = llama_world(letters="abc", max_new_tokens=4)
RULE = Keyword("ab", whole_words=False)
ANY = Length(min=0)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(of_world(TABLE), worlds={"table": TABLE}).running() as running:
        yield running


def over(server: Server, **options: Any) -> GuardedGenerator:
    return GuardedGenerator(fixed_endpoint(server), ANY, budget=Budget(max_attempts=100), seed=1, **options)


def awaited(guarded: GuardedGenerator, **options: Any) -> Any:
    return asyncio.run(guarded.arun("a", **options))


WAYS: dict[str, Callable[..., Any]] = {
    "call": lambda guarded, **options: guarded("a", **options),
    "lazy call": lambda guarded, **options: list(guarded((each for each in ["a"]), **options)),
    "run": lambda guarded, **options: guarded.run("a", **options),
    "stream": lambda guarded, **options: list(guarded.stream(["a"], **options)),
    "arun": awaited,
}


def header(span: Any) -> str:
    of = span.get_span_context()
    return f"00-{of.trace_id:032x}-{of.span_id:016x}-{of.trace_flags:02x}"


def sent(server: Server) -> set[str | None]:
    return {headers.get("traceparent") for headers in server.headers}


@pytest.mark.parametrize("way", WAYS)
def test_a_server_joins_the_trace_of_the_call(received: Any, server: Server, way: str) -> None:
    guarded = over(server, proposal=Prompt("{prompt}b"), sampler=qrs(3.0))
    server.fails = 0.1
    tracer = trace.get_tracer("an app")
    with tracer.start_as_current_span("app") as app:
        WAYS[way](guarded, num_return_sequences=4, max_new_tokens=3, temperature=1.0)
    (call,) = [span for span in received.spans() if span.name != "app"]
    assert call.parent.span_id == app.get_span_context().span_id
    assert server.count["failed"], "retries have the header, too"
    assert server.count["scored"], "the requests that weigh texts have it, too"
    assert sent(server) == {header(call)}


def test_calls_in_one_batch_have_headers_of_their_own(received: Any, server: Server) -> None:
    guarded = over(server)

    async def both() -> None:
        await asyncio.gather(*(guarded.arun(["a"] * 3, max_new_tokens=3) for _ in range(2)))

    asyncio.run(both())
    spans = received.spans()
    assert len(spans) == 2
    assert sent(server) == {header(span) for span in spans}


def test_the_state_of_a_trace_is_sent_and_baggage_is_not(received: Any, server: Server) -> None:
    remote = trace.SpanContext(5, 7, True, trace.TraceFlags(1), TraceState([("vendor", "x")]))
    within = baggage.set_baggage("user", "secret", trace.set_span_in_context(trace.NonRecordingSpan(remote)))
    token = context.attach(within)
    try:
        over(server).run("a", max_new_tokens=3)
    finally:
        context.detach(token)
    (call,) = received.spans()
    (headers,) = server.headers
    assert (headers["traceparent"], headers["tracestate"]) == (header(call), "vendor=x")
    assert "secret" not in str(headers)


def test_instrumented_clients_see_the_span_of_the_call(
    received: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instrumentation replaces the header with that of a span of its own, which must be in the same trace."""
    import openai

    library: Any = openai.DefaultAsyncHttpxClient.__mro__[1]  # httpx or its successor
    current, right = [], library.send

    async def send(*args: Any, **options: Any) -> Any:
        current.append(trace.get_current_span().get_span_context().span_id)
        return await right(*args, **options)

    monkeypatch.setattr(library, "send", send)
    awaited(over(server), max_new_tokens=3)
    (call,) = received.spans()
    assert set(current) == {call.context.span_id}


def test_without_an_sdk_no_header_is_sent(server: Server) -> None:
    awaited(over(server), max_new_tokens=3)
    assert sent(server) == {None}
    assert not any("tracestate" in headers for headers in server.headers)


def tree(spans: Any) -> dict[str, set[str]]:
    """Return the names of spans by that of their parent."""
    names = {span.context.span_id: span.name for span in spans}
    found: dict[str, set[str]] = {}
    for span in spans:
        found.setdefault(names[span.parent.span_id] if span.parent else "", set()).add(span.name)
    return found


def test_a_plan_has_a_span_with_its_pilots_and_what_it_learned(received: Any) -> None:
    guarded = GuardedGenerator(SMALL.pipeline(), RULE, seed=3)
    plan = guarded.plan("secret", pilot=64, **SMALL.settings)
    spans = received.spans()
    assert tree(spans) == {
        "": {"guardwrap.plan"},
        "guardwrap.plan": {"guardwrap.pilot"},
        "guardwrap.pilot": {"guardwrap.learn_twist"},
    }
    (whole,) = [span for span in spans if span.name == "guardwrap.plan"]
    assert dict(whole.attributes) == {
        "gen_ai.provider.name": "huggingface",
        "gen_ai.request.model": guarded.session.model_name,
        "guardwrap.prompts": 1,
        "guardwrap.attempts": plan.spent[0],
        "guardwrap.sampler": plan.sampler,
    }
    parts = [span for span in spans if span.name != "guardwrap.plan"]
    assert sum(span.attributes["guardwrap.attempts"] for span in parts) == plan.spent[0]
    assert not any("secret" in span.to_json() for span in spans)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["call", "lazy call", "stream", "arun"])
def test_learning_is_a_part_of_the_call_that_learned(received: Any, way: str) -> None:
    guarded = GuardedGenerator(SMALL.pipeline(), RULE, seed=3, proposal=Twisted())
    for _ in range(2):
        WAYS[way](guarded, **SMALL.settings)
    learning, first, second = received.spans()
    twists = guarded.session.job(SMALL.settings).source.twists
    assert twists is not None
    spent = twists.constraint.spent
    assert learning.name == "guardwrap.learn_twist"
    assert spent.attempts > 0
    assert learning.parent.span_id == first.context.span_id != second.context.span_id
    assert dict(learning.attributes) == {
        "guardwrap.prompts": 1,
        "guardwrap.attempts": spent.attempts,
        "guardwrap.computed_tokens": spent.computed_tokens,
    }


@pytest.mark.parametrize("way", ["run", "arun"])
def test_the_plan_of_a_chosen_sampler_is_a_part_of_its_call(received: Any, way: str) -> None:
    WAYS[way](GuardedGenerator(SMALL.pipeline(), ANY, seed=3, sampler="auto"), **SMALL.settings)
    names = tree(received.spans())
    (call,) = names[""]
    assert call.startswith("text_completion ")
    assert names[call] == {"guardwrap.plan"}
    assert names["guardwrap.plan"] == {"guardwrap.pilot"}


def test_the_requests_of_a_pilot_have_its_header(received: Any, server: Server) -> None:
    over(server).plan("a", pilot=8, max_new_tokens=3)
    pilot, _ = received.spans()
    assert (pilot.name, pilot.attributes["guardwrap.attempts"]) == ("guardwrap.pilot", 8)
    assert sent(server) == {header(pilot)}


def test_a_plan_that_fails_has_an_error_without_its_message(received: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise UsageError("about secret")

    monkeypatch.setattr(Job, "served", fails)
    with pytest.raises(UsageError):
        GuardedGenerator(SMALL.pipeline(), ANY).plan("a", **SMALL.settings)
    assert [span.status.status_code for span in received.spans()] == [StatusCode.ERROR] * 2
    assert not any("secret" in span.to_json() for span in received.spans())
