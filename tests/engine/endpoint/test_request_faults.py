"""Temporary faults are retried as the same attempt; others give a one-line error with a way out and without the key."""

import logging
import re
import threading
import time

import pytest

from guardwrap import Endpoint, GuardedGenerator, Regex
from guardwrap.engine.endpoint import request_faults
from guardwrap.errors import ContextExceeded, EndpointError
from guardwrap.testing import table_world
from tests.engine.endpoint.fixtures_server import Server, endpoint, of_world

WORLD = table_world(3, letters="ab", max_new_tokens=5)
KEY = "sk-very-secret-7"
BUSY = {"error": {"message": "busy", "code": None}}


@pytest.fixture
def server():
    with Server(of_world(WORLD)).running() as running:
        yield running


def test_as_many_tries_as_the_docstring_says(monkeypatch):
    """Eight waits take a minute and a half, or a little less, as they are randomized."""
    monkeypatch.setattr(request_faults, "_FIRST", 0.5)
    assert Endpoint("http://localhost/v1", model="m").max_retries == 8
    assert 65 < sum(request_faults.waiting(request_faults.Fault("", again=True), tries) for tries in range(1, 9)) < 92


def drawn(at, count=1, prompt="a", **options):
    guarded = GuardedGenerator(at, Regex(""), seed=1, batch_size=4)
    return guarded.run(prompt, num_return_sequences=count, temperature=1.0, max_new_tokens=5, **options)[0]


def message(error):
    """Return an error's message, after checking that it is one line and that the error does not contain the key."""
    line = str(error.value)
    assert "\n" not in line
    assert KEY not in line
    assert KEY not in repr(error.value)
    assert error.value.__cause__ is None
    return line


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_tried_again(server, status):
    server.refusals = [(status, {}, BUSY)] * 3
    outcome = drawn(endpoint(server))
    assert outcome.report.usage.attempts == 1
    assert len({asked["seed"] for asked in server.seen}) == 1
    assert len(server.seen) == 4


def test_no_more_often_than_allowed(server):
    server.refusals = [(503, {}, BUSY)] * 3
    with pytest.raises(EndpointError) as error:
        drawn(endpoint(server, max_retries=2))
    assert re.fullmatch(
        r"http://127\.0\.0\.1:\d+/v1 answers HTTP 503, 3 times in a row; try again later", message(error)
    )


def test_retry_after_is_waited_for(server):
    server.refusals = [(429, {"Retry-After": "1"}, BUSY)]
    begun = time.monotonic()
    drawn(endpoint(server))
    assert time.monotonic() - begun > 0.9


def test_how_long_is_waited(monkeypatch):
    monkeypatch.setattr(request_faults, "_FIRST", 0.5)
    again = request_faults.Fault("", again=True)
    waits = [request_faults.waiting(again, tries) for tries in range(1, 9)]
    assert all(0.375 * 2**i <= wait <= 0.5 * 2**i for i, wait in enumerate(waits[:6]))
    assert max(waits) <= 30.0
    assert request_faults.waiting(request_faults.Fault("", again=True, wait=1e9), 1) == 600.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "-1e308"}, None),
        ({"retry-after": "1e308"}, 1e308),
        ({"retry-after": "Mon, 01 Jan 0001 00:00:00 +2359"}, 0.0),
        ({"retry-after": "Mon, 99 Jan 99999999999999999999 00:00:00 GMT"}, None),
        ({"retry-after": "9" * 5000}, float("inf")),
        ({}, None),
    ],
)
def test_retry_after_in_all_its_forms(headers, seconds):
    assert request_faults._retry_after(headers) == seconds


@pytest.mark.parametrize("wait", ["1e308", "601", "inf", "9" * 5000, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_a_server_that_is_not_to_be_asked_for_long_is_not_waited_for(server, wait):
    server.refusals = [(429, {"Retry-After": wait}, BUSY)] * 2
    with pytest.raises(EndpointError) as error:
        drawn(endpoint(server))
    assert re.search(r"answers HTTP 429; it asks to retry only after \S+ s$", message(error))
    assert len(server.seen) == 1


def test_waits_between_many_tries_are_numbers():
    assert request_faults.waiting(request_faults.Fault("", again=True), 10_000) <= 30.0


@pytest.mark.parametrize("error", [RuntimeError("unchecked"), OverflowError("unchecked"), RecursionError("unchecked")])
def test_whatever_is_raised_for_an_attempt_ends_it(server, monkeypatch, error):
    async def raising(*_):
        raise error

    monkeypatch.setattr(request_faults, "request_fault", raising)
    server.refusals = [(503, {}, BUSY)]
    with pytest.raises(EndpointError, match=f"a request to .* failed .{type(error).__name__}.") as raised:
        drawn(endpoint(server))
    assert "unchecked" not in message(raised)


@pytest.mark.slow
def test_a_server_that_restarts_loses_nothing(server, monkeypatch):
    monkeypatch.setattr(request_faults, "_FIRST", 0.05)
    server.slow = 0.01
    at, before = endpoint(server), drawn(endpoint(server), 100).texts
    count = server.count["whole"]

    def restart():
        while server.count["whole"] < count + 30:
            time.sleep(0.005)
        server.stop()
        time.sleep(0.3)
        server.start()

    thread = threading.Thread(target=restart)
    thread.start()
    outcome = drawn(at, 100)
    thread.join()
    assert outcome.texts == before
    assert outcome.report.usage.attempts == 100


def test_a_server_that_never_answered_is_not_waited_for(server):
    server.stop()
    with pytest.raises(EndpointError) as error:
        drawn(endpoint(server, api_key=KEY))
    assert re.fullmatch(
        r"no server answers at http://\S+ \(Connect\w+\); start it, or correct base_url", message(error)
    )


def test_silence_is_a_fault(server):
    server.slow = 5.0
    with pytest.raises(
        EndpointError, match=r"sent nothing for 0\.1 s \(Endpoint\(timeout=\.\.\.\)\), 2 times in a row"
    ):
        drawn(endpoint(server, timeout=0.1, max_retries=1))


def test_a_wrong_key(server):
    server.key = "another"
    with pytest.raises(EndpointError) as error:
        drawn(endpoint(server, api_key=KEY))
    assert "rejects the key (HTTP 401); pass api_key=, or set OPENAI_API_KEY" in message(error)
    server.key = KEY
    assert drawn(endpoint(server, api_key=KEY)).ok


def test_the_key_of_the_environment(server, monkeypatch):
    server.key = KEY
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    outcome = drawn(endpoint(server))
    assert outcome.ok
    assert KEY not in str(outcome.to_dict())


def test_the_key_is_in_no_log(server, caplog):
    caplog.set_level(logging.DEBUG)
    server.key, server.refusals = KEY, [(503, {}, BUSY)]
    drawn(endpoint(server, api_key=KEY))
    assert "answers HTTP 503; retrying in" in caplog.text
    assert KEY not in caplog.text


def test_a_wrong_model(server):
    with pytest.raises(EndpointError) as error:
        drawn(endpoint(server, model="tabel", api_key=KEY))
    assert message(error).endswith("has no model 'tabel' (did you mean 'table'?); it has table")


@pytest.mark.parametrize(
    ("lacks", "prompt", "says"),
    [
        ("/v1/completions", "a", "accepts only chats; give lists of messages"),
        ("/v1/chat/completions", [{"role": "user", "content": "a"}], "does not accept chats; give strings"),
    ],
)
def test_a_route_that_is_not_there(server, lacks, prompt, says):
    server.routes = tuple(route for route in server.routes if route != lacks)
    with pytest.raises(EndpointError, match=says):
        drawn(endpoint(server), prompt=[prompt])
    server.routes = ()
    with pytest.raises(
        EndpointError, match=r"has no route \S+ \(HTTP 404\); check base_url, which usually ends in /v1"
    ):
        drawn(endpoint(server), prompt=[prompt])


def test_a_server_that_does_not_take_what_is_not_of_the_protocol(server):
    server.strict = True
    with pytest.raises(EndpointError) as error:
        drawn(endpoint(server))
    assert "Unrecognized request argument supplied: top_k" in message(error)
    assert "pass Endpoint(extra=False)" in message(error)
    outcome = drawn(endpoint(server, extra=False))
    assert any("are the server's defaults" in note for note in outcome.report.notes)


def test_what_a_server_says_is_without_the_key(server):
    server.refusals = [(400, {}, {"error": {"message": f"no\nsuch thing for {KEY}", "code": None}})]
    with pytest.raises(EndpointError) as error:
        drawn(endpoint(server, api_key=KEY, extra=False))
    assert message(error).endswith("rejects the request (HTTP 400: no such thing for ***)")


def test_no_part_of_the_key_is_left_where_what_a_server_says_is_cut(server):
    server.refusals = [(400, {}, {"error": {"message": "x" * 290 + KEY, "code": None}})]
    with pytest.raises(EndpointError) as error:
        drawn(endpoint(server, api_key=KEY, extra=False))
    assert message(error).endswith("xxx***)")


def test_what_a_server_says_is_one_line_without_control_characters(server):
    server.model = "\x1b[31mred\r\ntable"
    with pytest.raises(EndpointError) as error:
        drawn(endpoint(server, model="m"))
    assert message(error).endswith("has no model 'm'; it has [31mred table")


def test_a_quota_that_is_used_up_is_not_waited_for(server):
    server.refusals = [(429, {}, {"error": {"message": "no", "code": "insufficient_quota"}})]
    with pytest.raises(EndpointError, match="quota of the key is used up"):
        drawn(endpoint(server))


def test_no_stream(server):
    server.refusals = [(200, {}, {"choices": []})]
    with pytest.raises(EndpointError, match="does not stream"):
        drawn(endpoint(server))


def test_a_text_that_ends_for_no_good_reason_is_broken(server):
    server.ends = "abort"
    with pytest.raises(EndpointError, match="ended a stream before its text was complete, 2 times in a row"):
        drawn(endpoint(server, max_retries=1))


def test_a_filter_of_the_server_is_not_passed_over(server):
    server.ends = "content_filter"
    with pytest.raises(EndpointError, match="texts are not the model's own"):
        drawn(endpoint(server))


def test_a_text_that_the_context_cuts_is_no_text_of_the_limit(server):
    """A server that lowers max_tokens to the room that is left would leave out longer texts without a word."""
    guarded = GuardedGenerator(endpoint(server), Regex(""), seed=1)
    assert guarded("a", temperature=1.0, max_new_tokens=5)
    server.text = lambda prompt, chance: (["a", "b"], "length", 2)
    with pytest.raises(ContextExceeded, match=r"cut a text after 2 of max_new_tokens=5 tokens, as its context is full"):
        guarded("a", temperature=1.0, max_new_tokens=5)
    assert guarded("a", temperature=1.0, max_new_tokens=2)


@pytest.mark.parametrize(
    "said",
    [
        {"code": "context_length_exceeded", "type": "invalid_request_error"},
        {"code": 400, "type": "BadRequestError", "param": "input_tokens"},
        {"code": 400, "type": "exceed_context_size_error", "n_ctx": 4096},
    ],
)
def test_a_prompt_that_is_too_long_for_a_server(server, said):
    server.refusals = [(400, {}, {"error": {"message": "Too long.", **said}})]
    with pytest.raises(
        ContextExceeded, match=r"\(HTTP 400: Too long\.\); shorten the prompt, or lower max_new_tokens$"
    ):
        drawn(endpoint(server))


def test_an_error_ends_its_request_and_keeps_what_there_is(server):
    server.refusals = [(400, {}, BUSY)]
    guarded = GuardedGenerator(endpoint(server), Regex(""), seed=1, batch_size=1)
    with pytest.raises(EndpointError):
        list(guarded.stream(["a", "a"], temperature=1.0, max_new_tokens=5))
    assert guarded("a", temperature=1.0, max_new_tokens=5)  # the next call works normally
