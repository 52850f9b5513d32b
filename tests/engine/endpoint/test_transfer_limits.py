"""However a server answers or redirects, nothing hangs, fills memory, or is sent to another host."""

import gzip
import itertools

import pytest

from guardwrap import GuardedGenerator, Prompt, Regex
from guardwrap.engine.endpoint import request_faults
from guardwrap.errors import EndpointError
from guardwrap.testing import table_world
from tests.engine.endpoint.fixtures_server import Server, endpoint, of_world, raw_text

WORLD = table_world(3, letters="ab", max_new_tokens=5)
KEY = "sk-very-secret-7"
END = {"text": "", "finish_reason": "stop"}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


@pytest.fixture
def server():
    with Server(of_world(WORLD)).running() as running:
        yield running


def drawn(at, prompt="a", **options):
    return GuardedGenerator(at, Regex(""), seed=1, batch_size=2).run(
        prompt, temperature=1.0, max_new_tokens=5, **options
    )[0]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("prompt", ["a", [{"role": "user", "content": "a"}]])
def test_no_prompt_follows_a_redirect(server, status, prompt):
    with Server(of_world(WORLD)).running() as other:
        to = other.url + ("/completions" if prompt == "a" else "/chat/completions")
        server.refusals = [(status, {"Location": to}, {})] * 2
        with pytest.raises(EndpointError) as error:
            drawn(endpoint(server, api_key=KEY), [prompt])
        assert not other.seen
    assert f"redirects to another address (HTTP {status}), to which prompts are not sent" in str(error.value)
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "drop",
    [
        b": still here\n\n",
        b"data",
        b'data: {"choices": [{"index": 0, "text": ""}]}\n\n',
        b'data: {"choices": []}\n\n',
        b"event: ping\n",
    ],
)
def test_what_is_no_text_is_not_waited_for(server, drop):
    server.raw = lambda _: itertools.chain([HEAD], itertools.repeat(drop))
    server.slow = 0.02
    with pytest.raises(EndpointError, match=r"sent nothing for 0\.3 s"):
        drawn(endpoint(server, timeout=0.3, max_retries=0))


def test_a_reply_that_drips_is_not_waited_for(server, monkeypatch):
    monkeypatch.setattr(request_faults, "CONNECT", 0.1)
    server.raw = lambda _: itertools.chain([b"HTTP/1.1 200 OK\r\n"], itertools.repeat(b"X-Here: 1\r\n"))
    server.slow = 0.02
    with pytest.raises(EndpointError, match="sent nothing for"):
        drawn(endpoint(server, timeout=0.3, max_retries=0))


def test_a_whole_text_is_kept_though_the_stream_goes_on(server):
    whole = raw_text({"text": "ab", "finish_reason": "stop"})[:2]
    server.raw = lambda _: itertools.chain(whole, itertools.repeat(b"6\r\n: on\n\n\r\n"))
    server.slow = 0.02
    assert drawn(endpoint(server, timeout=0.3, max_retries=0)).texts == ("ab",)


@pytest.mark.parametrize("piece", [b"x" * 2**16, b"data: x\n" * 2**13])
def test_an_event_without_end_is_found_out(server, monkeypatch, piece):
    monkeypatch.setattr(request_faults, "_EVENT", 2**20)
    server.raw = lambda _: itertools.chain([HEAD], itertools.repeat(piece))
    with pytest.raises(EndpointError, match="sends an answer that is too large"):
        drawn(endpoint(server, max_retries=0))
    assert server.count["sent"] < 2**24


def test_many_small_events_are_none_the_worse(server, monkeypatch):
    monkeypatch.setattr(request_faults, "_EVENT", 2**10)
    server.raw = lambda _: raw_text(*[{"text": "a"}] * 100, END)
    assert drawn(endpoint(server)).texts == ("a" * 100,)


@pytest.mark.parametrize("status", [b"200 OK", b"400 X", b"503 X"])
def test_a_reply_without_end_is_found_out(server, monkeypatch, status):
    monkeypatch.setattr(request_faults, "_ANSWER", 2**20)
    head = b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\n\r\n"
    server.raw = lambda _: itertools.chain([head], itertools.repeat(b"[" * 2**16))
    with pytest.raises(EndpointError, match=r"sends an answer that is too large|does not stream"):
        drawn(endpoint(server, max_retries=0))
    assert server.count["sent"] < 2**24


def test_weights_are_not_waited_for_either(server, monkeypatch):
    monkeypatch.setattr(request_faults, "CONNECT", 0.1)
    server.worlds = {"table": WORLD}
    server.slow = 0.02
    head = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{"choices": ['
    server.raw = lambda asked: None if asked.get("stream") else itertools.chain([head], itertools.repeat(b" "))
    guarded = GuardedGenerator(
        endpoint(server, timeout=0.3, max_retries=0), Regex(""), sampler="qrs", proposal=Prompt("{prompt}b")
    )
    with pytest.raises(EndpointError, match="sent nothing for"):
        guarded.run("a", temperature=1.0, max_new_tokens=5)


def test_compressed_answers_are_refused(server):
    bomb = gzip.compress(b"x" * 2**20)
    head = HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    server.raw = lambda _: [head, bomb]
    with pytest.raises(EndpointError, match="compresses its answers, which was not requested"):
        drawn(endpoint(server, max_retries=3))
