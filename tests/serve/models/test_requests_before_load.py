"""Requests to a model that is not loaded: what is known to be invalid without the model does not load it.

Covers ``serve/parsed_request.py`` and ``serve/routes.py`` too.
"""

import threading
from typing import Any

import pytest

from guardwrap.serve import routes
from tests.serve.models.fixtures_models import SECONDS, App, run, settings_of, until

TEXT, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
MESSAGES = [{"role": "user", "content": "ab"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
INVALID: dict[str, tuple[str, dict[str, Any]]] = {
    "unknown field": (TEXT, {"prompt": "ab", "temprature": 1}),
    "bad value": (TEXT, {"prompt": "ab", "temperature": "hot"}),
    "no prompt": (TEXT, {}),
    "too many texts": (TEXT, {"prompt": [[1]] * 2, "n": 10**6}),
    "bad constraint": (TEXT, {"prompt": "ab", "guardwrap": {"constraint": {"kind": "regex", "pattern": "("}}}),
    "unknown constraint": (TEXT, {"prompt": "ab", "guardwrap": {"constraint": "rude"}}),
    "unknown adapter": (CHAT, {"messages": MESSAGES, "guardwrap": {"adapter": "none"}}),
    "bad schema": (CHAT, {"messages": MESSAGES, "response_format": {"type": "json_schema"}}),
    "no messages": (CHAT, {"messages": []}),
    "an image": (CHAT, {"messages": [{"role": "user", "content": [PICTURE]}]}),
    "bad input": (RESPONSES, {"input": 3}),
    "a long one": (TEXT, {"prompt": "ab" * 40_000, "stop": [""]}),
}


@pytest.mark.parametrize("case", INVALID)
def test_an_invalid_request_loads_no_model(case: str) -> None:
    """Its error is the one that the loaded model gives."""
    app, (route, fields) = App(settings_of(a={}, b={})), INVALID[case]

    async def test() -> None:
        replies = []
        for loads in ([], ["also-a"]):
            reply = await app.http.post(route, json={**fields, "model": "a"})
            assert reply.status_code == 400
            assert app.models.loads == loads
            replies.append({**reply.json()["error"], "request_id": None})
            await app.ask("a")
        assert replies[0] == replies[1]
        assert app.shelf.slots[0].gate.inside == 0

    run(test)


def test_what_only_the_model_knows_loads_it() -> None:
    async def test() -> None:
        for route, fields, status in (
            (TEXT, {"prompt": [[5, 6]], "max_tokens": 4}, 200),
            (TEXT, {"prompt": [10**6]}, 400),
            (CHAT, {"messages": MESSAGES, "tools": [TOOL]}, 400),
        ):
            app = App(settings_of(a={}))
            assert (await app.http.post(route, json={**fields, "model": "a"})).status_code == status
            assert app.models.loads == ["also-a"]

    run(test)


def test_a_client_that_leaves_before_its_request_is_read_loads_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    read, left = threading.Event(), threading.Event()

    def slowly(*arguments: Any, **options: Any) -> None:
        read.set()
        left.wait(SECONDS)

    monkeypatch.setattr(routes, "parsed_without_model", slowly)
    app = App(settings_of(a={}))

    async def test() -> None:
        reply, leave = app.send("a", {"prompt": "ab"})
        await until(read.is_set)
        leave.set()
        await reply
        left.set()
        assert app.models.loads == []

    run(test)
