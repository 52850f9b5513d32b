"""One request in the batch, without a network: who goes is missed at once, by being watched for."""

import asyncio
import json

import pytest

from guardwrap import GuardedGenerator
from guardwrap.serve.admission import Gate
from guardwrap.serve.app import create_app
from guardwrap.serve.refusals import Refused
from guardwrap.serve.settings import Limits, Settings
from guardwrap.serve.wishes import ANYTHING
from tests.serve.small import world

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
    limits = Limits(attempts=10**9, seconds=20)
    return create_app(GuardedGenerator(world().pipeline(), ANYTHING), Settings(limits=limits))


async def go_away(app, *, stream):
    """Send a request, go when it is in the batch, and wait until the server has done with it."""
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


def test_negative_control_who_is_not_watched_for_is_served_on(app, monkeypatch):
    async def never(request):
        await asyncio.Event().wait()

    monkeypatch.setattr("guardwrap.serve.serving.gone", never)
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
        with pytest.raises(Refused) as caught, gate.place():
            pass
        assert caught.value.status == 429
        tasks[2].cancel()  # it waits
        await asyncio.sleep(0)
        assert (gate.inside, gate.running) == (2, 2)
        gate.draining = True
        with pytest.raises(Refused) as caught, gate.place():
            pass
        assert (caught.value.status, caught.value.headers["Connection"]) == (503, "close")
        leave.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (gate.inside, gate.running) == (0, 0)
        assert entered == [1, 2]

    asyncio.run(run())
