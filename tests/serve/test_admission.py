"""Hostile clients, and too many clients."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.serve.fixtures_server import ASKED, ENDLESS, HAS_A, wait_until


def raw(server, head, body=b""):
    made = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    lines = (f"{head}\r\nHost: x\r\nContent-Type: application/json\r\n").encode()
    made.sendall(lines + (b"" if not body else f"Content-Length: {len(body)}\r\n\r\n".encode() + body))
    return made


@pytest.mark.slow
def test_bodies_that_are_too_large(client, http):
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**{**ASKED, "messages": [{"role": "user", "content": "a" * 10_000_000}]})
    assert (caught.value.status_code, caught.value.code) == (413, "too_large")

    def chunks():
        for _ in range(100):
            yield b" " * 100_000

    reply = http.post("/v1/chat/completions", content=chunks(), headers={"content-type": "application/json"})
    assert reply.status_code == 413


@pytest.mark.slow
def test_requests_that_do_not_end(server, http):
    head = raw(server, "POST /v1/chat/completions HTTP/1.1")
    half = raw(server, "POST /v1/chat/completions HTTP/1.1", b"")
    half.sendall(b"Content-Length: 1000\r\n\r\n{")
    gone = raw(server, "POST /v1/chat/completions HTTP/1.1")
    gone.sendall(b"Content-Length: 1000\r\n\r\n{")
    gone.close()
    nonsense = raw(server, "\x00\x01 HTTP/9")
    assert half.recv(4096).startswith(b"HTTP/1.1 408")
    assert http.get("/health").status_code == 200
    for each in (head, half, nonsense):
        each.close()
    assert wait_until(http, running=0, queued=0)


@pytest.mark.slow
def test_who_goes_frees_the_batch(server, http):
    body = json.dumps({**ASKED, **ENDLESS}).encode()
    quiet = raw(server, "POST /v1/chat/completions HTTP/1.1", body)
    with http.stream("POST", "/v1/chat/completions", json={**ASKED, **ENDLESS, "stream": True}) as streamed:
        assert streamed.status_code == 200
        wait_until(http, running=2)
        quiet.close()
        wait_until(http, running=1)
    wait_until(http, running=0, queued=0, rows_busy=0)


@pytest.mark.slow
def test_a_full_house(server, http, client):
    body = json.dumps({**ASKED, **ENDLESS}).encode()
    there = [raw(server, "POST /v1/chat/completions HTTP/1.1", body) for _ in range(3)]
    wait_until(http, running=2, queued=1)
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(**ASKED)
    assert caught.value.response.headers["retry-after"] == "1"
    assert caught.value.code == "queue_full"
    there[2].close()  # it waits
    wait_until(http, running=2, queued=0)
    there[0].close()  # it is served
    wait_until(http, running=1)
    assert client.chat.completions.create(**ASKED, extra_body=HAS_A).choices
    there[1].close()
    wait_until(http, running=0, queued=0, rows_busy=0)


DEEP: Any = {"type": "array"}
for _ in range(25):
    DEEP = {"anyOf": [DEEP, {"type": "array", "items": DEEP}], "minItems": 1}
HOSTILE = [
    ({"guided_regex": "(a{1000}){1000}"}, 400),
    ({"guided_regex": "((((a{9}){9}){9}){9}){9}"}, None),
    ({"guided_regex": "(" * 3000 + ")" * 3000}, 400),
    ({"guided_json": {"pattern": "(a{1000}){1000}"}}, 400),
    ({"guided_json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}}, None),
    ({"guided_choice": [f"{'a' * 40}{i}" for i in range(200)]}, None),
    ({"guided_grammar": "start: start start | \"a\" start | start \"b\" | "}, None),
    ({"guardwrap": {"constraint": {"kind": "regex", "pattern": "(a|a)*(a|a)*(a|a)*c$"}}}, None),
    ({"guided_json": {"enum": list(range(9000))}}, None),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("fields", "status"), HOSTILE, ids=lambda value: str(value)[:50])
def test_hostile_schemas_and_patterns_hold_nobody_up(http, fields, status):
    budget = {"guardwrap": {**fields.get("guardwrap", {}), "budget": {"max_attempts": 20}}}
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(http.post, "/v1/chat/completions", json={**ASKED, **fields, **budget})
        while not asked.done():
            assert http.get("/health").status_code == 200
            time.sleep(0.02)
    reply = asked.result()
    assert reply.status_code in ((200, 400, 422) if status is None else (status,)), reply.text
    wait_until(http, running=0)


@pytest.mark.slow
def test_a_checker_that_hangs_ends_its_request_alone(http):
    reply = http.post("/v1/chat/completions", json={**ASKED, "guardwrap": {"constraint": "hanging"}})
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "check_failed")
    assert "took more than 1.5 s" in reply.json()["error"]["message"]
    assert http.post("/v1/chat/completions", json={**ASKED, **HAS_A}).status_code == 200
