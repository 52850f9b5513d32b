"""A server in a process of its own, driven by the official client, and by those who mean it no good."""

import asyncio
import contextlib
import json
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from guardwrap import GuardedGenerator, JSONSchema, Masked, Regex
from guardwrap.serve.wishes import ANYTHING
from tests.serve.small import LETTERS, Server, furnish

MESSAGES: list[Any] = [{"role": "user", "content": "ab"}]
ASKED: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "seed": 1}
HAS_A = {"guardwrap": {"constraint": "has-a"}}
ENDLESS = {"guardwrap": {"constraint": "endless"}}
MASKED = {"guardwrap": {"proposal": "masked"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return furnish(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def server(folder):
    running = Server(folder)
    yield running
    running.end()


@pytest.fixture(scope="module")
def guarded(folder):
    return GuardedGenerator(str(folder / "model"), ANYTHING)


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=60) as made:
        yield made


@pytest.fixture(scope="module")
def http(server):
    with httpx.Client(base_url=server.url, timeout=60) as made:
        yield made


def figures(http):
    lines = http.get("/metrics").text.splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def wait_until(http, **wanted):
    """Wait until figures are so."""
    for _ in range(400):
        found = figures(http)
        if all(found[f"guardwrap_{name}"] == value for name, value in wanted.items()):
            return found
        time.sleep(0.05)
    raise AssertionError(f"{wanted} never came; {found}")


def test_a_chat_is_what_the_wrapper_gives_in_process(client, guarded):
    reply = client.chat.completions.create(**ASKED, n=2, extra_body=HAS_A)
    law = {"num_return_sequences": 2, "max_new_tokens": 12, "seed": 1}
    (expected,) = guarded.run([MESSAGES], constraints=Regex("a"), **law)
    assert [choice.message.content for choice in reply.choices] == list(expected.texts)
    assert [choice.index for choice in reply.choices] == [0, 1]
    ended = ["stop" if draw.finished else "length" for draw in expected.draws]
    assert [choice.finish_reason for choice in reply.choices] == ended
    assert reply.usage.prompt_tokens == 2
    assert reply.usage.completion_tokens == sum(len(draw.token_ids) for draw in expected.draws)
    assert reply.guardwrap["usage"]["attempts"] == expected.report.usage.attempts
    assert reply.guardwrap["drawn_from"] == "exactly g"
    assert (reply.object, reply.model) == ("chat.completion", "tiny")


def test_plain_completions_of_several_prompts(client, guarded):
    reply = client.completions.create(
        model="gpt-tiny", prompt=["ab", "cd"], n=2, seed=3, max_tokens=6, temperature=1.5, top_p=0.9, extra_body=HAS_A
    )
    law = {"num_return_sequences": 2, "max_new_tokens": 6, "temperature": 1.5, "top_p": 0.9, "seed": 3}
    expected = guarded.run(["ab", "cd"], constraints=Regex("a"), **law)
    assert [choice.text for choice in reply.choices] == [text for outcome in expected for text in outcome.texts]
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert [report["accepted"] for report in reply.guardwrap] == [2, 2]


def test_greedy_search(client, guarded):
    reply = client.completions.create(model="tiny", prompt="ab", max_tokens=6, temperature=0, top_p=0.5)
    (expected,) = guarded.run(["ab"], max_new_tokens=6, do_sample=False)
    assert reply.choices[0].text == expected.texts[0]


def test_calls_side_by_side_get_the_texts_that_they_get_alone(server, client):
    def alone(seed):
        return client.chat.completions.create(**{**ASKED, "seed": seed}, extra_body=HAS_A).choices[0].message.content

    async def together():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=5) as made:
            calls = (made.chat.completions.create(**{**ASKED, "seed": seed}, extra_body=HAS_A) for seed in range(3))
            return [reply.choices[0].message.content for reply in await asyncio.gather(*calls)]

    assert asyncio.run(together()) == [alone(seed) for seed in range(3)]


def test_a_stream_has_the_text_of_the_reply_in_one_piece(client):
    whole = client.chat.completions.create(**ASKED, n=2, extra_body=HAS_A)
    chunks = list(
        client.chat.completions.create(
            **ASKED, n=2, extra_body=HAS_A, stream=True, stream_options={"include_usage": True}
        )
    )
    for choice in whole.choices:
        its = [chunk.choices[0] for chunk in chunks if chunk.choices and chunk.choices[0].index == choice.index]
        assert [each.delta.role for each in its] == ["assistant", None, None]
        assert "".join(each.delta.content or "" for each in its) == choice.message.content
        assert [each.finish_reason for each in its] == [None, None, choice.finish_reason]
    assert chunks[-1].usage == whole.usage
    assert chunks[-1].choices == []
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert chunks[2].guardwrap["accepted"] == 2
    texts = list(client.completions.create(model="tiny", prompt="ab", seed=1, max_tokens=6, stream=True))
    plain = client.completions.create(model="tiny", prompt="ab", seed=1, max_tokens=6)
    assert "".join(chunk.choices[0].text for chunk in texts) == plain.choices[0].text


def test_a_stream_as_it_goes_over_the_wire(http):
    body = {**ASKED, "stream": True, **HAS_A}
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert len([line for line in lines if line.startswith("data: {")]) == 3


def test_a_stream_that_waits_says_so_and_one_that_fails_ends_with_an_error(http):
    budget = {"guardwrap": {"constraint": "endless", "budget": {"max_seconds": 4}}}
    with http.stream("POST", "/v1/chat/completions", json={**ASKED, **budget, "stream": True}) as response:
        assert response.status_code == 200
        first, *others = [line for line in response.iter_lines() if line]
    assert first == ": waiting"
    error = json.loads(others[-1].removeprefix("data: "))["error"]
    assert error["code"] == "max_seconds"
    assert error["guardwrap"]["accepted"] == 0
    assert not [line for line in others if "choices" in line or "DONE" in line]


def test_a_stream_that_fails_at_once_has_its_status(client):
    never = {"guardwrap": {"constraint": "never", "budget": {"max_attempts": 5}}}
    with pytest.raises(openai.UnprocessableEntityError):
        client.chat.completions.create(**ASKED, stream=True, extra_body=never)


class Letter(BaseModel):
    a: int


def test_parse_with_a_pydantic_model(client):
    reply = client.chat.completions.parse(**ASKED, response_format=Letter, extra_body=MASKED)
    assert isinstance(reply.choices[0].message.parsed, Letter)
    assert reply.guardwrap["proposal"].endswith("masked")


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"structured_outputs": {"choice": ["ab", "c"]}}, Regex("ab|c", match="fullmatch")),
        ({"structured_outputs": {"regex": "[ab]{1,3}"}}, Regex("[ab]{1,3}", match="fullmatch")),
        ({"structured_outputs": {"grammar": 'start: "a"+ | "b"'}}, Regex("a+|b", match="fullmatch")),
        ({"structured_outputs": {"json": {"type": "integer"}}}, JSONSchema({"type": "integer"})),
        ({"guided_choice": ["ab", "c"]}, Regex("ab|c", match="fullmatch")),
        ({"guided_regex": "[ab]{1,3}"}, Regex("[ab]{1,3}", match="fullmatch")),
        ({"guided_grammar": 'start: "a"+ | "b"'}, Regex("a+|b", match="fullmatch")),
        ({"guided_json": {"type": "integer"}}, JSONSchema({"type": "integer"})),
        ({"response_format": {"type": "json_object"}}, JSONSchema({"type": "object"})),
    ],
    ids=str,
)
def test_structured_output(client, guarded, fields, constraint):
    reply = client.chat.completions.create(**ASKED, extra_body={**MASKED, **fields})
    text = reply.choices[0].message.content
    assert constraint.accepts(text)
    (expected,) = guarded.run([MESSAGES], constraints=constraint, proposal=Masked(), max_new_tokens=12, seed=1)
    assert text == expected.texts[0]


def test_a_text_ends_before_its_stop_string(client, guarded):
    own = {"guardwrap": {"constraint": {"kind": "regex", "pattern": "^[^b]{2,4}$"}}}
    reply = client.chat.completions.create(**ASKED, n=3, stop=["b"], extra_body=own)
    for choice in reply.choices:
        assert re.fullmatch("[^b]{2,4}", choice.message.content)
    assert "stop" in {choice.finish_reason for choice in reply.choices}
    # Drawn as the pipeline draws with stop strings, and judged without them.
    (expected,) = guarded.run([MESSAGES], constraints=Regex("^[^b]{2,4}b?$"), stop_strings=["b"], max_new_tokens=12,
                              num_return_sequences=3, seed=1)  # fmt: skip
    assert [c.message.content for c in reply.choices] == [text.removesuffix("b") for text in expected.texts]


def test_a_spent_budget_is_an_error_with_the_report(client):
    never = {"guardwrap": {"constraint": "never", "budget": {"max_attempts": 5}}}
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.chat.completions.create(**ASKED, extra_body=never)
    body: Any = caught.value.body
    assert (body["code"], body["guardwrap"]["usage"]["attempts"]) == ("max_attempts", 5)
    assert "has a z" in body["message"]
    with pytest.raises(openai.UnprocessableEntityError) as caught:
        client.chat.completions.create(**ASKED, temperature=0, extra_body={"guided_regex": "z"})
    assert caught.value.body["code"] == "deterministic"  # type: ignore[index]


@pytest.mark.parametrize("field", [{"tools": [{}]}, {"logprobs": True}, {"temprature": 1}, {"guided_regex": "("}])
def test_what_is_refused(client, field):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**ASKED, extra_body=field)
    assert caught.value.param == next(iter(field))


def test_what_is_served(client, http):
    assert [model.id for model in client.models.list()] == ["tiny", "gpt-tiny"]
    assert client.models.retrieve("tiny").owned_by == "guardwrap"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**{**ASKED, "model": "gpt-5"})
    about = http.get("/v1/guardwrap/about").json()
    assert {"name": "has-a", "description": "It has an a."} in about["constraints"]
    assert "catalogue:no-urls" in {each["name"] for each in about["catalogue"]}
    assert about["limits"]["queue"] == 1
    assert about["figures"]["accepted"] > 0
    assert http.get("/health").json() == {"status": "ok"}
    assert http.get("/").headers["content-type"].startswith("text/html")
    for path in ("/docs", "/openapi.json", "/v1/embeddings"):
        reply = http.get(path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "no_route")


def test_a_page_of_another_site_cannot_ask(http):
    """A browser sends text/plain unasked; for JSON it asks first, and is told no."""
    reply = http.post("/v1/chat/completions", content=json.dumps(ASKED), headers={"content-type": "text/plain"})
    assert reply.status_code == 415
    asked = {"origin": "https://example.com", "access-control-request-method": "POST"}
    assert http.options("/v1/chat/completions", headers=asked).status_code == 405
    assert "access-control-allow-origin" not in http.get("/health", headers=asked).headers


def raw(server, head, body=b""):
    made = socket.create_connection(("127.0.0.1", server.port), timeout=30)
    lines = (f"{head}\r\nHost: x\r\nContent-Type: application/json\r\n").encode()
    made.sendall(lines + (b"" if not body else f"Content-Length: {len(body)}\r\n\r\n".encode() + body))
    return made


def test_bodies_that_are_too_large(client, http):
    with pytest.raises(openai.APIStatusError) as caught:
        client.chat.completions.create(**{**ASKED, "messages": [{"role": "user", "content": "a" * 10_000_000}]})
    assert (caught.value.status_code, caught.value.code) == (413, "too_large")

    def chunks():
        for _ in range(100):
            yield b" " * 100_000

    reply = http.post("/v1/chat/completions", content=chunks(), headers={"content-type": "application/json"})
    assert reply.status_code == 413


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


def test_who_goes_frees_the_batch(server, http):
    body = json.dumps({**ASKED, **ENDLESS}).encode()
    quiet = raw(server, "POST /v1/chat/completions HTTP/1.1", body)
    with http.stream("POST", "/v1/chat/completions", json={**ASKED, **ENDLESS, "stream": True}) as streamed:
        assert streamed.status_code == 200
        assert wait_until(http, running=2)["guardwrap_rows_busy"] > 0
        quiet.close()
        wait_until(http, running=1)
    wait_until(http, running=0, queued=0, rows_busy=0)


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


def test_a_checker_that_hangs_ends_its_request_alone(http):
    reply = http.post("/v1/chat/completions", json={**ASKED, "guardwrap": {"constraint": "hanging"}})
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "check_failed")
    assert "took more than 1.5 s" in reply.json()["error"]["message"]
    assert http.post("/v1/chat/completions", json={**ASKED, **HAS_A}).status_code == 200


def test_the_log_has_no_text_and_no_prompt(server, http):
    secret = "acbdfeacbdfe"
    reply = http.post(
        "/v1/completions",
        json={"model": "tiny", "prompt": secret, "max_tokens": 12, "seed": 2, "user": "someone"},
        headers={"authorization": "Bearer hidden"},
    )
    text = reply.json()["choices"][0]["text"]
    http.get("/v1/" + secret)
    log = server.log.read_text()
    assert "POST /v1/completions 200" in log
    assert all(hidden not in log for hidden in (secret, text, "hidden", "someone"))
    assert "Traceback" not in log
    assert len(text) > 5
    assert set(text) <= set(LETTERS)
    with contextlib.suppress(StopIteration):
        line = next(line for line in log.splitlines() if "completions 200" in line)
        assert re.search(r" POST /v1/\S+ 200 \d+\.\d\d s \d+ attempts$", line)
