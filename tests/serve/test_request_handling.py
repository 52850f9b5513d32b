"""One request in the batch, without a network: a disconnect is noticed at once."""

import asyncio
import json
import threading
from collections import deque
from contextlib import AsyncExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from transformers.pipelines import TextGenerationPipeline

from guardwrap import GuardedGenerator
from guardwrap.engine.refill.decode import RefillBackend
from guardwrap.errors import PromptError
from guardwrap.outcomes import Draw
from guardwrap.serve.error_responses import ErrorResponse
from guardwrap.serve.parsed_request import ANYTHING, parse_request
from guardwrap.serve.request_handling import Accepted, Deliveries, Gate, LivePiece, _joined, streamed
from guardwrap.serve.routes import create_app
from guardwrap.serve.server_settings import ServerLimits, ServerSettings
from tests.serve.fixtures_server import world

PLAIN = partial(parse_request, chat=False)
NEVER = {
    "model": "local",
    "prompt": "ab",
    "max_tokens": 12,
    "guided_regex": "[^a-z]{300}",
    "temperature": 5,
    "top_k": -1,
}
SCOPE = {
    "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST",
    "path": "/v1/completions", "raw_path": b"/v1/completions", "query_string": b"", "root_path": "", "scheme": "http",
    "headers": [(b"content-type", b"application/json")], "client": None, "server": None,
}  # fmt: skip


@pytest.fixture
def app():
    limits = ServerLimits(attempts=10**9, seconds=20)
    return create_app(GuardedGenerator(world().pipeline(), ANYTHING), ServerSettings(limits=limits))


async def go_away(app, *, stream):
    """Send a request, disconnect when it is in the batch, and wait until the server has ended it."""
    gate = app.state.service.gate
    body = json.dumps({**NEVER, "stream": stream, "guardwrap": {"budget": {"max_attempts": None}}}).encode()
    given = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive():
        message = next(given, None)
        while message is None and not gate.running:
            await asyncio.sleep(0.01)
        return message or {"type": "http.disconnect"}

    async def send(message):
        pass

    await asyncio.wait_for(app(dict(SCOPE), receive, send), 3)
    return gate.inside, gate.running


@pytest.mark.parametrize("stream", [False, True])
def test_who_goes_is_missed_at_once(app, stream):
    assert asyncio.run(go_away(app, stream=stream)) == (0, 0)


def test_who_goes_in_the_middle_of_a_step_is_counted_until_its_end(app, monkeypatch):
    """Otherwise clients that connect and disconnect would keep any number of threads busy."""
    inside, released, advance = threading.Event(), threading.Event(), RefillBackend.advance

    def slowly(self):
        inside.set()
        released.wait(20)
        return advance(self)

    monkeypatch.setattr(RefillBackend, "advance", slowly)
    gate = app.state.service.gate

    async def run():
        body = json.dumps({**NEVER, "guardwrap": {"budget": {"max_attempts": None}}}).encode()
        given = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive():
            message = next(given, None)
            if message is None:
                await asyncio.to_thread(inside.wait)
            return message or {"type": "http.disconnect"}

        async def send(message):
            pass

        request = asyncio.create_task(app(dict(SCOPE), receive, send))
        await asyncio.to_thread(inside.wait)
        for _ in range(50):
            await asyncio.sleep(0.001)
            assert (gate.inside, gate.running, request.done()) == (1, 1, False)
        released.set()
        await request
        assert (gate.inside, gate.running) == (0, 0)

    asyncio.run(run())


@pytest.mark.slow
def test_long_requests_are_read_where_no_other_one_waits(app, monkeypatch):
    """While 24 of them are tokenized, a short one is parsed; the long ones have a separate tokenizer."""
    model, held, asked = app.state.service.model, threading.Event(), []
    tokenizer, preprocess = model.session.tokenizer, TextGenerationPipeline.preprocess

    def slowly(self, prompt, **options):
        asked.append(self.tokenizer is tokenizer)
        if self.tokenizer is not tokenizer:
            held.wait(20)
        return preprocess(self, prompt, **options)

    monkeypatch.setattr(TextGenerationPipeline, "preprocess", slowly)
    # Without a known length of the prompt, the tokenizer is always called.
    long = {"model": "local", "prompt": "a" * 100_000}
    short = {"model": "local", "prompt": "ab", "max_tokens": 2}

    async def run():
        waiting = [asyncio.create_task(model.read(dict(long), PLAIN, long=True)) for _ in range(24)]
        await asyncio.sleep(0)  # the long ones start first
        parsed, _ = await model.read(short, PLAIN, long=False)
        assert parsed.prompts == ["ab"]
        assert not any(task.done() for task in waiting)
        held.set()
        return await asyncio.gather(*waiting, return_exceptions=True)

    assert all(isinstance(error, PromptError) for error in asyncio.run(run()))
    assert asked.count(True) == 1


def test_negative_control_who_is_not_watched_for_is_served_on(app, monkeypatch):
    async def never(request):
        await asyncio.Event().wait()

    monkeypatch.setattr("guardwrap.serve.request_handling.gone", never)
    with pytest.raises(TimeoutError):
        asyncio.run(go_away(app, stream=False))


def test_a_gate_has_so_many_places_and_so_many_slots():
    async def enter(gate, entered, leave):
        with gate.place():
            async with gate.slot():
                entered.append(gate.running)
                await leave.wait()

    async def run():
        gate, leave = Gate(running=2, queue=1), asyncio.Event()
        entered: list[int] = []
        tasks = [asyncio.create_task(enter(gate, entered, leave)) for _ in range(3)]
        await asyncio.sleep(0)
        assert (gate.inside, gate.running, gate.queued) == (3, 2, 1)
        with pytest.raises(ErrorResponse) as caught, gate.place():
            pass
        assert caught.value.status == 429
        tasks[2].cancel()  # it waits
        await asyncio.sleep(0)
        assert (gate.inside, gate.running) == (2, 2)
        gate.draining = True
        with pytest.raises(ErrorResponse) as caught, gate.place():
            pass
        assert (caught.value.status, caught.value.headers["Connection"]) == (503, "close")
        leave.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (gate.inside, gate.running) == (0, 0)
        assert entered == [1, 2]

    asyncio.run(run())


def test_what_raises_in_a_stream_ends_its_drawing_at_once():
    """The place of a request is free when its error is sent, and not when Python collects the garbage."""
    ended = []

    async def items():
        try:
            yield SimpleNamespace(report=None, texts=())
            yield None
        finally:
            ended.append("drawing")

    async def answered():
        reply: Any = SimpleNamespace(begins=lambda: iter(()), ends=lambda *_: [])
        source = items()  # kept, so that it is not collected
        with pytest.raises(ZeroDivisionError):
            async for _ in streamed(source, reply, 0, lambda _: 1 / 0):  # type: ignore[arg-type, return-value]
                pass
        assert ended == ["drawing"]
        assert source.ag_frame is None

    asyncio.run(answered())


FREE = {"model": "local", "prompt": "ab", "max_tokens": 40, "temperature": 3, "top_k": -1, "seed": 2, "stream": True}


def asked(app, send, then_receive, body=FREE):
    """Return a task that sends a request to an app, and what it receives later."""
    given = iter([{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}])

    async def receive():
        message = next(given, None)
        return await then_receive() if message is None else message

    return asyncio.create_task(app(dict(SCOPE), receive, send))


def pieces_in(sent):
    lines = b"".join(sent).decode().split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    return [chunk["choices"][0]["text"] for chunk in chunks if "choices" in chunk and chunk["choices"][0]["text"]]


def test_pieces_are_sent_while_a_text_is_drawn_and_a_disconnect_stops_it(app, monkeypatch):
    reached, released, advance, steps = threading.Event(), threading.Event(), RefillBackend.advance, []

    def stopping(self):
        steps.append(1)
        if len(steps) == 5:
            reached.set()
            released.wait(20)
        return advance(self)

    monkeypatch.setattr(RefillBackend, "advance", stopping)
    gate, sent = app.state.service.gate, []

    async def run():
        async def send(message):
            sent.append(message.get("body", b""))

        async def disconnect():
            await asyncio.to_thread(reached.wait)
            while len(pieces_in(sent)) < 4:
                await asyncio.sleep(0.01)
            return {"type": "http.disconnect"}

        request = asked(app, send, disconnect)
        await asyncio.to_thread(reached.wait)
        while len(pieces_in(sent)) < 4:
            await asyncio.sleep(0.01)
        assert not request.done()
        released.set()
        await asyncio.wait_for(request, 5)

    asyncio.run(asyncio.wait_for(run(), 30))
    assert (gate.inside, gate.running) == (0, 0)
    assert len(steps) < 30
    assert b"[DONE]" not in b"".join(sent)


def test_a_client_that_reads_slowly_holds_up_nobody(app):
    """The first client reads nothing after its first piece until the text of the second is complete."""

    async def run():
        slow, fast, first, free = [], [], asyncio.Event(), asyncio.Event()

        async def slowly(message):
            slow.append(message.get("body", b""))
            if pieces_in(slow):
                first.set()
                await free.wait()

        async def send(message):
            fast.append(message.get("body", b""))

        async def never():
            await asyncio.Event().wait()

        waiting = asked(app, slowly, never)
        await asyncio.wait_for(first.wait(), 10)
        await asyncio.wait_for(asked(app, send, never), 10)
        assert b"[DONE]" in fast[-2] + fast[-1]
        assert not waiting.done()
        while app.state.service.gate.running:  # its text is drawn meanwhile
            await asyncio.sleep(0.01)
        free.set()
        await asyncio.wait_for(waiting, 10)
        assert "".join(pieces_in(slow)) == "".join(pieces_in(fast))
        assert len(pieces_in(fast)) > 3

    asyncio.run(run())


def test_a_request_whose_time_is_over_does_not_wait_for_a_slot():
    async def run():
        gate = Gate(running=1, queue=2)
        async with gate.slot():
            async with gate.slot(0.05):
                assert gate.running == 1
            with pytest.raises(TimeoutError):  # a request with time left waits
                await asyncio.wait_for(gate.slot(60).__aenter__(), 0.05)
        async with gate.slot(0.05):
            assert gate.running == 1

    asyncio.run(run())


@pytest.mark.parametrize("rounds", range(4))
def test_who_goes_as_its_slot_comes_frees_it(rounds):
    async def serve(gate):
        async with gate.slot(60):
            await asyncio.sleep(60)

    async def run():
        gate = Gate(running=1, queue=2)
        async with gate.slot():
            waiting = asyncio.create_task(serve(gate))
            await asyncio.sleep(0.01)
        for _ in range(rounds):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting], timeout=1)
        assert waiting.cancelled()
        async with gate.slot(0.01):
            assert gate.running == 1

    asyncio.run(run())


def test_the_time_in_the_queue_counts(app):
    """The answer comes although the slot is never free; nothing is drawn for it."""

    async def run():
        service = app.state.service
        body = {**NEVER, "guardwrap": {"budget": {"timeout": 0.2}}}
        async with AsyncExitStack() as stack:
            for _ in range(service.settings.limits.running):
                await stack.enter_async_context(service.gate.slot())
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await client.post("/v1/completions", json=body)

    answer = asyncio.run(run())
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (422, "timeout")
    assert "before the first attempt was complete" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_one_event_loop_after_the_other_is_served(app, stream):
    """Clients within the process may call ``asyncio.run`` for each request."""

    async def run():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/v1/completions", json={**FREE, "stream": stream})

    for _ in range(2):
        reply = asyncio.run(asyncio.wait_for(run(), 30))
        assert reply.status_code == 200, reply.text
        assert asyncio.run(go_away(app, stream=stream)) == (0, 0)


async def delivered(count, deliveries, wakes):
    """Have a thread add calls while the loop is held up; return what they said, in order."""
    loop: Any = asyncio.get_running_loop()
    said: list[int] = []
    soon = loop.call_soon_threadsafe
    loop.call_soon_threadsafe = lambda *call: (wakes.append(call), soon(*call))
    thread = threading.Thread(target=lambda: [deliveries.add(loop, partial(said.append, i)) for i in range(count)])
    thread.start()
    thread.join()  # the loop waits as long, as for a step of the batch
    for _ in range(3):
        await asyncio.sleep(0)
    return said


def test_what_a_step_delivers_wakes_the_loop_once():
    """The second time shows that calls that were added after the first wake-up are not forgotten."""
    deliveries = Deliveries()
    wakes: list[Any] = []
    for _ in range(2):
        assert asyncio.run(delivered(50, deliveries, wakes)) == [*range(50)]
    assert len(wakes) == 2


def test_negative_control_a_wake_up_for_each_delivery():
    class Each(Deliveries):
        _woken = property(lambda self: False, lambda self, _: None)

    wakes: list[Any] = []
    assert asyncio.run(delivered(50, Each(), wakes)) == [*range(50)]
    assert len(wakes) == 50


def test_a_delivery_to_a_loop_that_is_closed_is_dropped():
    loop = asyncio.new_event_loop()
    loop.close()
    Deliveries().add(loop, lambda: None)


def test_pieces_of_a_text_that_wait_are_sent_together():
    others = [LivePiece(0, 1, "d"), LivePiece(0, 0, "e")]
    results: deque[Any] = deque([LivePiece(0, 0, "b"), LivePiece(0, 0, "c"), *others])
    assert _joined(LivePiece(0, 0, "a"), results) == LivePiece(0, 0, "abc")
    assert [*results] == others
    draw = Draw(text="a", prompt="", token_ids=(1,), finished=True)
    results = deque([Accepted(0, 0, draw), LivePiece(0, 1, "b")])
    assert _joined(LivePiece(0, 0, "a"), results) == LivePiece(0, 0, "a")
    assert len(results) == 2
