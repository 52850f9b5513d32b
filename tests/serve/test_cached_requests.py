"""A server that answers equal requests from a file."""

import json

import httpx
import pytest

from tests.serve.fixtures_server import Server, figures, furnish

ASKED = {"model": "tiny", "messages": [{"role": "user", "content": "ab"}], "max_tokens": 8, "temperature": 1.0}
RULE = {"constraint": "has-a"}


@pytest.fixture(scope="module")
def http(tmp_path_factory):
    folder = furnish(tmp_path_factory.mktemp("cached"))
    with (folder / "serve.yaml").open("a") as file:
        file.write("cache: answers.sqlite\n")
    server = Server(folder)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client
    server.end()


def replies(http, **more):
    """Return two replies to one request, and how many attempts the second one took."""
    first = http.post("/v1/chat/completions", json={**ASKED, **more})
    before = figures(http)["guardwrap_attempts_total"]
    second = http.post("/v1/chat/completions", json={**ASKED, **more})
    taken = figures(http)["guardwrap_attempts_total"] - before
    assert (first.status_code, second.status_code) == (200, 200), first.text
    return first.json(), second.json(), taken


def test_the_same_request_is_not_drawn_again(http):
    first, second, taken = replies(http, seed=3, guardwrap=RULE)
    assert first["choices"] == second["choices"]
    assert (first["guardwrap"]["cached"], second["guardwrap"]["cached"], taken) == (False, True, 0)


def test_another_one_is(http):
    for more in ({"seed": 4}, {"seed": 3, "temperature": 0.9}, {"seed": 3, "max_tokens": 7}):
        reply = http.post("/v1/chat/completions", json={**ASKED, "guardwrap": RULE, **more}).json()
        assert reply["guardwrap"]["cached"] is False


def test_requests_without_a_seed_are_drawn(http):
    _, second, taken = replies(http, guardwrap=RULE)
    assert second["guardwrap"]["cached"] is False
    assert taken > 0
    assert "not cached: the call has no seed" in second["guardwrap"]["notes"]


def test_a_stream_has_the_text(http):
    first, _, _ = replies(http, seed=5, guardwrap=RULE)
    wish = {**ASKED, "seed": 5, "guardwrap": RULE, "stream": True}
    with http.stream("POST", "/v1/chat/completions", json=wish) as stream:
        lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: {")]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert text == first["choices"][0]["message"]["content"]
