"""Judges on a server: what is sent, what counts as an answer, faults, and the law of what is drawn with one."""

from __future__ import annotations

import json
import math
import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from guardwrap import Budget, Endpoint, GuardedGenerator, Judge, Keyword
from guardwrap.constraints import dump, parse
from guardwrap.errors import CheckFailed, ConstraintError, EndpointError, SpecError
from guardwrap.outcomes import Draw
from guardwrap.rules import judge as judge_module
from guardwrap.testing import goodness_of_fit, table_world

FITS = 1e-3
SECRET = "sk-secret"
SHARES = {" Yes": 0.5, "y": 0.1, "NO": 0.2, "maybe": 0.1, "": 0.05}


class Server(ThreadingHTTPServer):
    """A server; ``reply`` maps the question to a status and a body."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[Any, Any, str]] = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        self.piece, self.pause, self.missing = 2**20, 0.0, 0
        self.reply: Any = lambda question: (200, reply_of(SHARES))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def judge(self, question: str = "{text}?", **options: Any) -> Judge:
        endpoint = Endpoint(self.url, model="judge", api_key=SECRET, max_retries=2, timeout=5)
        return Judge(question, endpoint, **options)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        with self.server.lock:
            self.server.at_once += 1
            self.server.most_at_once = max(self.server.most_at_once, self.server.at_once)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((self.path, body, self.headers["Authorization"]))
        status, answer = self.server.reply(body["messages"][0]["content"])
        with self.server.lock:
            self.server.at_once -= 1
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", "http://127.0.0.1:1/v1")
        self.send_header("Content-Length", str(len(answer) + self.server.missing))
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):
            for start in range(0, len(answer), self.server.piece):
                self.wfile.write(answer[start : start + self.server.piece])
                time.sleep(self.server.pause)

    def log_message(self, *arguments: Any) -> None:
        pass


def reply_of(shares: dict[str, float]) -> bytes:
    top = [{"token": token, "logprob": math.log(share)} for token, share in shares.items()]
    return json.dumps({"choices": [{"logprobs": {"content": [{"top_logprobs": top}]}}]}).encode()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(judge_module, "_FIRST_WAIT", 0.001)
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_the_probability_is_the_share_of_the_tokens_that_begin_the_answer(server: Server) -> None:
    judge = server.judge("Is {text} good?")
    assert judge.probabilities(["{text} tea"]) == pytest.approx([0.6 / 0.8])
    ((path, body, key),) = server.seen
    assert (path, key) == ("/v1/chat/completions", f"Bearer {SECRET}")
    assert body.pop("messages") == [{"role": "user", "content": "Is {text} tea good?"}]
    assert body == {"model": "judge", "max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": 20}


def test_answers_are_kept_and_requests_run_in_parallel(server: Server) -> None:
    together = threading.Barrier(8, timeout=5)

    def wait(question: str) -> Any:
        together.wait()
        return 200, reply_of(SHARES)

    server.reply = wait
    judge = server.judge()
    judge.probabilities([*"abcdefgh", *"abcdefgh"])
    assert (len(server.seen), server.most_at_once) == (8, 8)
    assert judge.probabilities(["a", "b"]) == pytest.approx([0.75] * 2)
    assert (len(server.seen), judge.usage.asked, judge.usage.kept) == (8, 8, 10)  # type: ignore[attr-defined]


def test_more_questions_than_fit_wait(server: Server) -> None:
    assert len(server.judge().probabilities([str(number) for number in range(30)])) == 30
    assert server.most_at_once <= 8


def test_texts_drawn_with_a_judge_on_a_server_follow_g(server: Server) -> None:
    world = table_world(letters="abc", max_new_tokens=3)
    server.reply = lambda question: (200, reply_of({"yes": 0.9} if question.count("a") == 1 else {"no": 0.9}))
    rule = server.judge("{text}?")
    guarded = GuardedGenerator(world.pipeline(), rule, budget=Budget(max_attempts=None), seed=1)
    (outcome,) = guarded.run(world.prompt, num_return_sequences=1_000, **world.settings)
    gold = world.gold(rule)
    assert 3 < len(gold) < len(world.law())
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], gold) > FITS
    assert SECRET not in json.dumps(outcome.report.to_dict())


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_temporary_faults_are_retried_and_then_an_error(server: Server, status: int) -> None:
    faults = [status, status]
    server.reply = lambda question: (faults.pop(), b"") if faults else (200, reply_of(SHARES))
    assert server.judge().probabilities(["a"]) == pytest.approx([0.75])
    server.reply = lambda question: (status, b"")
    server.seen.clear()
    with pytest.raises(EndpointError, match=f"HTTP {status}, 3 times in a row; try again later"):
        server.judge().accepts("a")
    assert len(server.seen) == 3


@pytest.mark.parametrize("status", [302, 307, 400, 401, 403, 404, 501])
def test_other_faults_end_the_run_at_once_and_are_no_rejection(server: Server, status: int) -> None:
    server.reply = lambda question: (status, f"{SECRET} {question}".encode())
    for rule in (server.judge(), ~server.judge(), server.judge(side="below")):
        server.seen.clear()
        with pytest.raises(EndpointError, match=f"HTTP {status}") as caught:
            rule.accepts("private")
        assert len(server.seen) == 1, "neither retried nor redirected"
        assert SECRET not in str(caught.value)
        assert "private" not in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"<html>",
        b"[" * 100_000,
        b"null",
        b'{"choices": []}',
        b'{"choices": [{"logprobs": null}]}',
        b'{"choices": [{"logprobs": {"content": []}}]}',
        b'{"choices": [{"logprobs": {"content": [{"top_logprobs": 5}]}}]}',
        b'{"choices": [{"logprobs": {"content": [{"top_logprobs": [{"token": 5, "logprob": 0}]}]}}]}',
        b'{"choices": [{"logprobs": {"content": [{"top_logprobs": [{"token": "yes", "logprob": "0"}]}]}}]}',
        b'{"choices": [{"logprobs": {"content": [{"top_logprobs": [{"token": "yes", "logprob": %s}]}]}}]}'
        % (b"9" * 400),
        b"\xff\xfe",
        b" " * (2**20 + 1),
    ],
    ids=lambda answer: str(answer[-40:]),
)
def test_an_answer_that_is_none_is_an_error(server: Server, answer: bytes) -> None:
    server.reply = lambda question: (200, answer)
    with pytest.raises(EndpointError, match=r"no log-probabilities|too large") as caught:
        server.judge().probabilities(["private"])
    assert "private" not in str(caught.value)


@pytest.mark.parametrize("shares", [{"<think>": 0.99}, {"": 1.0}, {"y": 1e-9}])
def test_a_judge_that_does_not_answer_decides_nothing(server: Server, shares: dict[str, float]) -> None:
    server.reply = lambda question: (200, reply_of(shares))
    for rule in (server.judge(side="below"), ~server.judge()):
        with pytest.raises(CheckFailed, match="gave its answers"):
            rule.accepts("a")


def test_not_a_number_decides_nothing(server: Server) -> None:
    server.reply = lambda question: (200, reply_of({"yes": 0.5}).replace(str(math.log(0.5)).encode(), b"NaN"))
    with pytest.raises(CheckFailed, match="gave its answers"):
        (~server.judge()).accepts("a")


@pytest.mark.parametrize("text", ["\ud800", "\x00", "<|im_end|>", "{prompt}", '"}]', ""])
def test_any_text_is_sent_as_it_is(server: Server, text: str) -> None:
    assert server.judge("{text}{prompt}").check([Draw("{text}", (), text)]) == [True]
    assert server.seen[0][1]["messages"][0]["content"] == text.replace("\ud800", "\ufffd") + "{text}"


def test_without_a_server_the_run_ends(server: Server) -> None:
    closed = Endpoint("http://127.0.0.1:1/v1", model="judge", max_retries=0)
    with pytest.raises(EndpointError, match="no server answers at"):
        Judge("{text}?", closed).accepts("a")


@pytest.mark.parametrize("key", ["a\nb", "a\r\nX: y"])
def test_a_key_that_cannot_be_sent_is_not_shown(server: Server, key: str) -> None:
    judge = Judge("{text}?", Endpoint(server.url, model="judge", api_key=key, max_retries=0))
    with pytest.raises(EndpointError, match="cannot be sent") as caught:
        judge.accepts("a")
    assert key not in str(caught.value)


def test_the_key_is_in_no_form_of_the_judge(server: Server) -> None:
    judge = server.judge()
    assert judge.spec()["model"] == f"judge@{server.url}"
    assert judge.digest == Judge("{text}?", Endpoint(server.url, model="judge")).digest
    assert judge.digest != Judge("{text}?", Endpoint(server.url, model="other")).digest
    assert SECRET not in repr(judge) + judge.title
    assert SECRET.encode() not in pickle.dumps(judge)
    with pytest.raises(ConstraintError, match="object in memory"):
        dump(judge)


def test_an_answer_that_never_ends_is_given_up(server: Server) -> None:
    server.piece, server.pause = 1, 0.02
    endpoint = Endpoint(server.url, model="judge", max_retries=0, timeout=0.2)
    with pytest.raises(EndpointError, match="did not finish an answer"):
        Judge("{text}?", endpoint).accepts("a")


def test_an_answer_that_breaks_off_is_asked_for_again(server: Server) -> None:
    server.missing = 5
    with pytest.raises(EndpointError, match=r"the connection to .* broke, 3 times in a row"):
        server.judge().accepts("a")
    assert len(server.seen) == 3


def test_other_calls_continue_while_a_server_is_asked(server: Server) -> None:
    assert not (server.judge() & Keyword("a")).interruptible
    assert Judge("{text}?", "some/model").interruptible


def test_a_host_that_does_not_exist_is_not_asked_again() -> None:
    missing = Endpoint("http://judge.invalid/v1", model="judge", max_retries=50)
    with pytest.raises(EndpointError, match="no server answers at"):
        Judge("{text}?", missing).accepts("a")


def test_answers_that_begin_alike(server: Server) -> None:
    with pytest.raises(ConstraintError, match="'yesterday' begins with 'yes'"):
        server.judge(answers=["yes", "yesterday"])


# ------------------------------------------------------------------------------------------------ a server, by a string


def test_a_string_names_a_server_with_the_key_of_the_environment(server: Server, monkeypatch: Any) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    named = Judge("{text}?", f"org/judge@2@{server.url}/")
    assert named.probabilities(["a"]) == pytest.approx([0.6 / 0.8])
    path, body, key = server.seen[0]
    assert (path, body["model"], key) == ("/v1/chat/completions", "org/judge@2", f"Bearer {SECRET}")
    assert SECRET not in dump(named) + repr(named)
    server.reply = lambda question: (404, b"")
    with pytest.raises(EndpointError, match="HTTP 404"):
        named.check([Draw("", (), "b")])


def test_a_file_names_a_server_only_if_it_is_trusted(server: Server) -> None:
    named = Judge("{text}?", f"judge@{server.url}")
    with pytest.raises(SpecError, match=r"names a server \(.*; pass allow_code=True if you trust the file"):
        parse(dump(named))
    with pytest.raises(SpecError, match="names a server"):
        parse(dump(Keyword("a") | ~named))
    read = parse(dump(named), allow_code=True).constraint
    assert read == named
    assert read.digest == named.digest == Judge("{text}?", Endpoint(server.url, model="judge")).digest
    assert read.check([Draw("", (), "a")]) == [True]
    assert pickle.loads(pickle.dumps(read)) == named


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("@http://localhost/v1", "in front of '@'"),
        ("judge@http://", "is not a valid URL"),
        ("judge@http://localhost:x/v1", "is not a valid URL"),
        (f"judge@http://user:{SECRET}@localhost/v1", "more than a host and a path"),
        (f"judge@http://localhost/v1?key={SECRET}", "more than a host and a path"),
    ],
)
def test_a_string_that_names_no_server(model: str, message: str) -> None:
    with pytest.raises(ConstraintError, match=message) as caught:
        Judge("{text}?", model)
    assert SECRET not in str(caught.value)
