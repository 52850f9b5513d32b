"""API keys: required for every route except the page and ``/health``."""

import asyncio
from dataclasses import replace

import httpx
import pytest

from guardwrap import GuardedGenerator
from guardwrap.errors import CheckFailed
from guardwrap.serve.parsed_request import ANYTHING
from guardwrap.serve.routes import create_app
from guardwrap.serve.server_settings import Keys, ServerSettings
from tests.serve.fixtures_server import world

ASKED = {"model": "local", "prompt": "ab", "max_tokens": 4}


@pytest.fixture
def app(tmp_path):
    (tmp_path / "keys").write_text("first-key\nsecond-key\n")
    guarded = GuardedGenerator(world().pipeline(), ANYTHING)
    made = create_app(guarded, ServerSettings(keys=Keys(file=str(tmp_path / "keys"))))
    with asyncio.Runner() as made.state.runner:  # a server has one event loop
        yield made


def ask(app, method, path, **options):
    async def send():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **options)

    return app.state.runner.run(send())


@pytest.mark.parametrize("key", ["first-key", "second-key"])
def test_a_key_opens_everything(app, key):
    headers = {"Authorization": f"Bearer {key}"}
    for path in ("/v1/models", "/metrics", "/v1/guardwrap/about"):
        assert ask(app, "GET", path, headers=headers).status_code == 200
    assert ask(app, "POST", "/v1/completions", json=ASKED, headers=headers).status_code == 200


@pytest.mark.parametrize("given", [None, "Bearer", "Bearer first", "Basic first-key", b"Bearer \xff"])
def test_without_a_key_two_routes_are_open(app, given):
    headers = {} if given is None else {"Authorization": given}
    for path in ("/", "/health"):
        assert ask(app, "GET", path, headers=headers).status_code == 200
    for path in ("/v1/models", "/v1/models/local", "/metrics", "/v1/guardwrap/about"):
        assert ask(app, "GET", path, headers=headers).status_code == 401
    reply = ask(app, "POST", "/v1/completions", json=ASKED, headers=headers)
    assert reply.status_code == 401
    assert reply.json()["error"]["code"] == "invalid_api_key"
    assert reply.headers["www-authenticate"] == "Bearer"
    assert "first" not in reply.text


@pytest.mark.parametrize(
    ("error", "status"),
    [(CheckFailed("mine", "raised KeyError"), 422), (RuntimeError("a text that nobody may see"), 500)],
)
def test_errors_in_the_batch_say_nothing_of_texts(app, monkeypatch, caplog, error, status):
    async def fails(*_, **__):
        if error is not None:
            raise error
        yield

    monkeypatch.setattr(GuardedGenerator, "astream", fails)
    headers = {"Authorization": "Bearer first-key"}
    for stream in (False, True):
        reply = ask(app, "POST", "/v1/completions", json={**ASKED, "stream": stream}, headers=headers)
        assert reply.status_code == status
        assert "nobody" not in reply.text + caplog.text
    gate = app.state.service.gate
    assert (gate.inside, gate.running) == (0, 0)


def test_every_route_names_its_methods_and_heads_are_answered(app):
    headers = {"Authorization": "Bearer first-key"}
    for path in ("/", "/health", "/metrics", "/v1/models", "/v1/models/local", "/v1/guardwrap/about"):
        assert ask(app, "HEAD", path, headers=headers).status_code == 200
        wrong = ask(app, "POST", path, headers=headers)
        assert (wrong.status_code, {*wrong.headers["allow"].split(", ")}) == (405, {"GET", "HEAD"})
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        wrong = ask(app, "GET", path, headers=headers)
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
        assert "takes POST" in wrong.json()["error"]["message"]


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd, gzip", "x" * 500])
def test_a_content_encoding_that_is_not_supported_is_named(app, coding):
    headers = {"Authorization": "Bearer first-key", "Content-Encoding": coding}
    reply = ask(app, "POST", "/v1/completions", json=ASKED, headers=headers)
    assert (reply.status_code, reply.headers["accept-encoding"]) == (415, "identity")
    assert coding[:40] in reply.json()["error"]["message"]
    assert len(reply.text) < 500
    plain = ask(app, "POST", "/v1/completions", json=ASKED, headers={**headers, "Content-Encoding": "identity"})
    assert plain.status_code == 200


def test_a_server_can_lower_a_length_beyond_the_context(app):
    model = app.state.service.model
    model.policy = replace(model.policy, limits=model.policy.limits.model_copy(update={"clamp": True}))
    headers = {"Authorization": "Bearer first-key"}
    long = {**ASKED, "prompt": "ab" * 30, "max_tokens": 10**6}
    reply = ask(app, "POST", "/v1/completions", json=long, headers=headers)
    assert reply.status_code == 200
    assert reply.json()["usage"]["completion_tokens"] <= 4


def test_texts_fit_into_the_models_context(app):
    headers = {"Authorization": "Bearer first-key"}

    def told(**more):
        return ask(app, "POST", "/v1/completions", json={**ASKED, "prompt": "ab" * 30, **more}, headers=headers)

    assert told(max_tokens=4).status_code == 200
    for refused in (told(max_tokens=5), told(guardwrap={"proposal": {"prompt": "ab{prompt}"}})):
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded", refused.text
    left_out = told(max_tokens=None)
    assert left_out.status_code == 200
    assert left_out.json()["usage"]["completion_tokens"] <= 4
    assert "context" in told(prompt="ab" * 50).json()["error"]["message"]
