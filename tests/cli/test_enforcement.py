"""``guardwrap doctor --endpoint``: servers that enforce fields, ignore them or refuse them."""

import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from guardwrap.cli.enforcement import PROBES, STOP, Answer, Result, Server, findings
from guardwrap.errors import EndpointError
from tests.cli.fixtures_commands import assert_one_line, run

pytestmark = pytest.mark.usefixtures("command_line")

POEM = "The sea is deep"
TEMPORARY = (408, 409, 425, 429, 500, 503)
KEY = "sk-very-secret-7"
PICKED = '{"kind": "zebra", "count": 5}'


@contextmanager
def serving(answer, other="", encoding="identity"):
    """Serve chats by a function that returns a status, and the texts of an answer or its message.

    ``other``: where redirects lead to. ``encoding``: how answers are said to be compressed.
    """

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "text/event-stream" if body.startswith(b"data") else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Retry-After-Ms", "1")
            self.send_header("Location", other)
            self.send_header("Content-Encoding", encoding)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.send(200, b'{"object": "list", "data": [{"id": "tiny", "object": "model"}]}')

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert asked["model"] == "tiny"
            status, choices = answer(asked)
            if status in (307, 401, 422):  # quotes the key, as some servers do
                message = f"no: {self.headers['Authorization']}"
                self.send(status, json.dumps({"error": {"message": message}}).encode())
                return
            kind = "delta" if asked.get("stream") else "message"
            numbered = [{"index": i, "finish_reason": "stop", **choice} for i, choice in enumerate(choices)]
            for choice in numbered:
                choice[kind] = {"role": "assistant", "content": None, **choice.pop("message")}
            body = json.dumps({"id": "1", "object": "x", "created": 1, "model": "tiny", "choices": numbered}).encode()
            self.send(status, b"data: %s\n\ndata: [DONE]\n\n" % body if asked.get("stream") else body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def obeying(asked):
    call = {"id": "1", "type": "function", "function": {"name": "weigh", "arguments": PICKED}}
    message: dict[str, Any] = {"content": "The sky is a sky"[: None if "stop" not in asked else 2]}
    structured = asked.get("structured_outputs", {})
    if asked.get("tool_choice"):
        message = {"tool_calls": [call]}
    elif "response_format" in asked or "json" in structured:
        message = {"content": PICKED, "reasoning_content": POEM}
    elif structured:
        ways = {"regex": "2026-01-31", "choice": "quartz", "grammar": "ab-34"}
        message = {"content": next(text for way, text in ways.items() if way in structured)}
    choice: dict[str, Any] = {"message": message}
    if asked.get("logprobs"):
        top = [{"token": "a", "logprob": -0.6931471805599453, "bytes": None}] * 2
        choice["logprobs"] = {"content": [{**top[0], "top_logprobs": top}], "refusal": None}
    return 200, [choice] * asked.get("n", 1)


def ignoring():
    texts = iter(f"{POEM} {number}" for number in range(1000))
    return lambda asked: (200, [{"message": {"content": next(texts)}}])


def by_name(answer, names=()):
    """Return the findings by the names of their fields: all, or only those with these names."""
    with serving(answer) as url:
        if not names:
            return {finding.name: finding for finding in findings(url, None, 2)}
        server = Server(url, None)
        return {probe.name: server.found(probe, 2) for probe in PROBES if probe.name in names}


def test_a_server_that_enforces_everything():
    findings = by_name(obeying)
    assert {finding.result for finding in findings.values()} == {Result.ENFORCED}
    assert len(findings) == len(PROBES)
    assert findings["logprobs"].detail == "of what is sampled"


def test_a_server_that_ignores_everything():
    findings = by_name(ignoring())
    assert {finding.result for finding in findings.values()} == {Result.IGNORED}
    assert findings["n with json_schema"].detail == "2 of 2: 1 texts instead of 3"
    assert POEM not in repr(findings)


@pytest.mark.parametrize(
    ("field", "change", "names"),
    [
        ("n", lambda asked: {**asked, "n": 2}, {"n with json_schema"}),
        ("stop", lambda asked: {k: v for k, v in asked.items() if k != "stop"}, {"stop"}),
        ("stream", lambda asked: {"stream": True, "n": 1}, {"stream with json_schema"}),
        ("logprobs", lambda asked: {**asked, "logprobs": False}, {"logprobs"}),
    ],
)
def test_a_server_that_ignores_one_field(field, change, names):
    findings = by_name(lambda asked: obeying(change(asked) if asked.get(field) else asked))
    assert {name for name, finding in findings.items() if finding.result is Result.IGNORED} == names


def test_a_strict_tool_and_a_named_one():
    def answer(asked):
        status, choices = obeying(asked)
        for choice in choices:
            for call in choice["message"].get("tool_calls", ()):
                call["function"] = {"name": "pick", "arguments": '{"kind": "lion"}'}
        return status, choices

    findings = by_name(answer)
    ignored = {name: each.detail for name, each in findings.items() if each.result is Result.IGNORED}
    assert ignored == {
        "tool_choice: a tool": "2 of 2: another tool was called",
        "tools: strict": "2 of 2: arguments that break the schema",
    }


def thinking(content, reasoning="reasoning", ended="stop"):
    """Serve a model that reasons if it may take long."""

    def answer(asked):
        status, choices = obeying(asked)
        if asked["max_tokens"] > 64:
            choices = [{"message": {"content": content, reasoning: POEM}, "finish_reason": ended}]
        return status, choices

    return answer


@pytest.mark.parametrize(
    ("answer", "result", "detail"),
    [
        (thinking(PICKED), Result.ENFORCED, ""),
        (thinking(POEM), Result.IGNORED, "2 of 2: a text that breaks it"),
        (thinking(POEM, "reasoning_content"), Result.IGNORED, "2 of 2: a text that breaks it"),
        (thinking(f"<think>{POEM}</think>{PICKED}", "other"), Result.IGNORED, "2 of 2: a text that breaks it"),
        (thinking(PICKED, "other"), Result.UNKNOWN, "the model did not reason"),
        (thinking(None, ended="length"), Result.UNKNOWN, "cut off at 1024 tokens"),
        (thinking(PICKED[:9], ended="length"), Result.ENFORCED, "2 of 2 were cut off at 1024 tokens, and right so far"),
    ],
)
def test_a_schema_after_reasoning(answer, result, detail):
    """Servers that drop the schema once the model has reasoned enforce it on all models that do not reason."""
    findings = by_name(answer)
    finding = findings.pop("json_schema after reasoning")
    assert (finding.result, finding.detail) == (result, detail)
    assert {each.result for each in findings.values()} == {Result.ENFORCED}


def test_log_probabilities_of_something_else():
    (probe,) = (probe for probe in PROBES if probe.name == "logprobs")
    whole, impossible = [Answer("a", top=((-1.0, -2.0),))], [Answer("a", top=((-0.1, -0.2),))]
    assert probe.fault(whole) is None
    assert probe.note(whole) == "of the whole vocabulary, not of top_k: they sum to 0.503"
    assert probe.fault(impossible) == "they sum to 1.724"


def test_what_is_cut_off_shows_something_if_no_poem_begins_like_that():
    def cut_off(text):
        return lambda asked: (200, [{"message": {"content": text}, "finish_reason": "length"}] * asked.get("n", 1))

    begun = by_name(cut_off('{"kind": "ze'))
    names = ("response_format: json_schema", "tool_choice: required", "structured_outputs: regex")
    assert [begun[name].result for name in names] == [Result.ENFORCED, Result.UNKNOWN, Result.IGNORED]
    assert begun[names[0]].detail == "2 of 2 were cut off at 64 tokens, and right so far"
    empty, poem = by_name(cut_off(" ")), by_name(cut_off(POEM))
    assert [empty[name].result for name in names] == [Result.UNKNOWN] * 3
    assert [poem[name].result for name in names] == [Result.IGNORED] * 3


def test_reasoning_that_is_cut_off_shows_nothing():
    """Its text is empty: equal to any other one, and without a stop string."""
    reasoning = {"message": {"content": None, "reasoning": POEM}, "finish_reason": "length"}
    findings = by_name(lambda asked: (200, [reasoning] * asked.get("n", 1)))
    names = ("seed", "top_k", "min_p", "stop", "response_format: json_schema")
    assert {(findings[name].result, findings[name].detail) for name in names} == {
        (Result.UNKNOWN, "cut off at 64 tokens")
    }


@pytest.mark.parametrize(
    ("status", "result"), [(400, Result.REFUSED), (501, Result.REFUSED)] + [(n, Result.UNKNOWN) for n in TEMPORARY]
)
def test_errors_that_may_go_away_show_nothing(status, result):
    findings = by_name(lambda asked: (status, []), names=("seed",))
    assert findings["seed"].result is result


def test_a_proven_fault_remains_one_whatever_comes_next():
    answers = iter([(200, [{"message": {"content": POEM}}])])
    finding = by_name(lambda asked: next(answers, (429, [])), names=("structured_outputs: regex",)).popitem()[1]
    assert (finding.result, finding.tries) == (Result.IGNORED, 2)
    assert finding.detail == "1 of 1: a text that breaks it"


def test_the_key_is_not_shown(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    finding = by_name(lambda asked: (422, []), names=("seed",))["seed"]
    assert (finding.result, finding.detail) == (Result.REFUSED, "422 no: Bearer ***")
    with (
        serving(lambda asked: (401, [])) as url,
        pytest.raises(EndpointError, match=r"asked: no: Bearer \*\*\*; check"),
    ):
        next(findings(url, None, 1))


def test_no_prompt_follows_a_redirect():
    asked_elsewhere = []

    def noted(asked):
        asked_elsewhere.append(asked)
        return obeying(asked)

    with (
        serving(noted) as other,
        serving(lambda asked: (307, []), f"{other}/chat/completions") as url,
    ):
        done = run("doctor", "--endpoint", url)
    assert_one_line(done, "redirects to another address (HTTP 307), to which prompts are not sent")
    assert not asked_elsewhere


def test_a_compressed_answer_is_not_read():
    with serving(obeying, encoding="gzip") as url:
        assert_one_line(run("doctor", "--endpoint", url, "--model", "tiny"), "compresses its answers")


@pytest.mark.parametrize("choices", [[], [{"message": {"content": ["a"]}}]], ids=["none", "no text"])
def test_a_malformed_answer_shows_nothing(choices):
    findings = by_name(lambda asked: (200, choices))
    assert {(each.result, each.detail) for each in findings.values()} == {
        (Result.UNKNOWN, "an answer is not OpenAI protocol")
    }


def test_a_malformed_call_shows_nothing():
    call = {"id": "1", "type": "function", "function": {"name": "weigh", "arguments": {"kind": "zebra"}}}
    finding = by_name(lambda asked: (200, [{"message": {"tool_calls": [call]}}]), names=("tools: strict",)).popitem()[1]
    assert finding.result is Result.UNKNOWN


def test_exit_codes():
    with serving(obeying) as url:
        done = run("doctor", "--endpoint", url, "--tries", 1)
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "no field is ignored")
    with serving(ignoring()) as url:
        done = run("doctor", "--endpoint", url, "--model", "tiny", "--tries", 1)
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (1, f"{len(PROBES)} fields are accepted and not enforced")
    assert STOP in POEM
    with serving(lambda asked: (400, [])) as url:
        done = run("doctor", "--endpoint", url)
    assert done.exit_code == 0
    assert done.stdout.count(" refused ") == len(PROBES)
    assert re.search(r"^seed +refused +1 try +400 BadRequestError$", done.stdout, re.M)
    assert_one_line(run("doctor", "--endpoint", url), "lists no model (APIConnectionError); name one with --model")
    assert run("doctor", "--endpoint", url, "--model", "tiny").exit_code == 2
    assert_one_line(run("doctor", "--model", "tiny"), "--model names a model of --endpoint")
