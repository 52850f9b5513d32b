"""A server of several small models in this process, whose loads a test counts, holds up or lets fail."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from guardwrap import GuardedGenerator
from guardwrap.serve.models.model_shelf import ModelShelf
from guardwrap.serve.parsed_request import ANYTHING
from guardwrap.serve.routes import create_app
from guardwrap.serve.server_settings import ModelSettings, ServerSettings
from tests.serve.fixtures_server import world

SECONDS = 20.0
ASKED: dict[str, Any] = {"prompt": "ab", "max_tokens": 12, "seed": 1}
NEVER: dict[str, Any] = {
    **ASKED, "guided_regex": "[^a-z]{300}", "temperature": 5, "top_k": -1,
    "guardwrap": {"budget": {"max_attempts": None}},
}  # fmt: skip
"""A request that runs until its client disconnects."""


class Models:
    """Loads models on behalf of a server. ``held`` are those whose load waits, ``broken`` those whose load fails."""

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.held: set[str] = set()
        self.broken: dict[str, BaseException] = {}
        self.released = threading.Event()

    def load(self, settings: ModelSettings) -> GuardedGenerator:
        name = settings.aliases[0]
        self.loads.append(name)
        if name in self.held:
            self.released.wait(SECONDS)
        if name in self.broken:
            raise self.broken[name]
        return GuardedGenerator(world().pipeline(), ANYTHING, batch_size=settings.batch_size)


def settings_of(limits: dict[str, Any] | None = None, **models: dict[str, Any]) -> ServerSettings:
    """Return settings of models, each with the alias ``also-`` and its name."""
    named = {name: {"aliases": [f"also-{name}"], **fields} for name, fields in models.items()}
    data = {"models": named, "limits": {"attempts": 10**9, "seconds": 60, **(limits or {})}}
    return ServerSettings.model_validate_json(json.dumps(data))


class App:
    """An application of several models, and a client for it. Use it in one event loop.

    ``load`` loads those models at once that the settings want loaded when the server starts.
    """

    def __init__(self, settings: ServerSettings, models: Models | None = None, *, load: bool = False) -> None:
        self.models = models or Models()
        self.shelf = ModelShelf(settings, self.models.load)
        if load:
            self.shelf.load_at_start()
        self.app = create_app(self.shelf, settings)
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://test", timeout=SECONDS)

    async def ask(self, model: str, **fields: Any) -> httpx.Response:
        return await self.http.post("/v1/completions", json={**ASKED, "model": model, **fields})

    async def loaded(self) -> dict[str, bool]:
        reply = await self.http.get("/v1/guardwrap/about")
        return {each["model"]: each["loaded"] for each in reply.json()["models"]}

    def send(self, model: str, fields: dict[str, Any]) -> tuple["asyncio.Task[list[Any]]", asyncio.Event]:
        """Send a request whose client disconnects when the event is set; the task returns the messages it got."""
        body = json.dumps({**fields, "model": model}).encode()
        leave, parts, messages = asyncio.Event(), iter([body]), list[Any]()
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": "/v1/completions", "raw_path": b"/v1/completions", "query_string": b"", "root_path": "",
            "headers": [(b"content-type", b"application/json")], "client": None, "server": None,
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            part = next(parts, None)
            if part is not None:
                return {"type": "http.request", "body": part, "more_body": False}
            await leave.wait()
            return {"type": "http.disconnect"}

        async def note(message: Any) -> None:
            messages.append(message)

        async def served() -> list[Any]:
            await self.app(scope, receive, note)
            return messages

        return asyncio.create_task(served()), leave


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run an asynchronous test, for a limited time."""

    async def limited() -> None:
        async with asyncio.timeout(3 * SECONDS):
            await test()

    asyncio.run(limited())


def write_rule(folder: Path, name: str, pattern: str) -> None:
    folder.mkdir(exist_ok=True)
    text = f"guardwrap: 1\nconstraint: {{kind: regex, pattern: {json.dumps(pattern)}}}\n"
    (folder / f"{name}.yaml").write_text(text)
