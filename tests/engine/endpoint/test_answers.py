"""Whatever a server's answers contain, a request ends with a text or with an error of one line, and none hangs."""

import itertools
import json
import math

import pytest

from guardwrap import GuardedGenerator, Prompt, Regex
from guardwrap.engine.endpoint.attempt_stream import count_of, ids_of, log_probabilities_of
from guardwrap.engine.endpoint.request_faults import printable_line
from guardwrap.errors import EndpointError
from guardwrap.testing import table_world
from tests.engine.endpoint.fixtures_server import Server, endpoint, of_world, raw_text

WORLD = table_world(3, letters="ab", max_new_tokens=5)
END = {"text": "", "finish_reason": "stop"}
SECRET = "unchecked-text"


@pytest.fixture
def server():
    with Server(of_world(WORLD)).running() as running:
        yield running


def drawn(server, **options):
    guarded = GuardedGenerator(endpoint(server, max_retries=0, timeout=5), Regex(""), seed=1, batch_size=2)
    return guarded.run("a", temperature=1.0, max_new_tokens=5, **options)[0]


def endless(*choices):
    """A stream that repeats these events forever."""
    begin, *pieces = raw_text(*choices)[: 1 + len(choices)]
    return itertools.chain([begin], itertools.cycle(pieces))


@pytest.mark.slow
@pytest.mark.parametrize("choice", [{"text": "a"}, {"text": "a" * 5000}, {"text": "ab", "finish_reason": "stop"}])
def test_an_endless_text_is_found_out(server, choice):
    server.raw = lambda _: endless(choice)
    with pytest.raises(EndpointError, match="ignores max_tokens=5: a text is far longer") as error:
        drawn(server)
    assert server.count["sent"] < 2**24
    assert "aaa" not in str(error.value)


def test_more_tokens_than_asked_for_are_found_out_at_once(server):
    pieces = [{"text": "a", "token_ids": [1], "logprobs": {"token_logprobs": [-1.0]}}] * 6
    server.worlds = {"table": WORLD}
    server.raw = lambda _: raw_text(*pieces, END, usage={"completion_tokens": 6})
    guarded = GuardedGenerator(endpoint(server, max_retries=0), Regex(""), sampler="qrs", proposal=Prompt("{prompt}b"))
    with pytest.raises(EndpointError, match="ignores max_tokens=5"):
        guarded.run("a", temperature=1.0, max_new_tokens=5)


def test_a_text_in_many_small_pieces_is_none_the_worse(server):
    server.raw = lambda _: raw_text(*[{"text": "a"}] * 60, END, usage={"completion_tokens": 5})
    assert drawn(server).texts == ("a" * 60,)


@pytest.mark.parametrize(
    "count", [-1, -(10**30), 10**400, 1.5, True, "12", [], {}, float("nan"), 10**9], ids=lambda each: str(each)[:12]
)
def test_a_count_of_tokens_that_is_none_is_not_counted(server, count):
    server.raw = lambda _: raw_text({"text": "a"}, {"text": "b"}, END, usage={"completion_tokens": count})
    report = drawn(server, num_return_sequences=3).report
    assert report.usage.tokens == 6
    assert any("the server did not count the tokens" in note for note in report.notes)


def test_a_true_count_is_taken(server):
    server.raw = lambda _: raw_text({"text": "ab"}, END, usage={"completion_tokens": 3})
    assert drawn(server, num_return_sequences=3).report.usage.tokens == 9


@pytest.mark.parametrize(
    "choice",
    [
        {"text": {"no": SECRET}},
        {"text": [SECRET]},
        {"text": 1e308},
        {"text": SECRET + "\ud800"},
        {"text": SECRET, "finish_reason": [SECRET]},
        {"text": SECRET, "finish_reason": {"no": SECRET}},
        {"text": SECRET, "finish_reason": SECRET},
    ],
)
def test_fields_of_another_kind_end_the_request_in_one_line(server, choice):
    server.raw = lambda _: raw_text(choice, *([] if "finish_reason" in choice else [END]))
    with pytest.raises(EndpointError) as error:
        drawn(server)
    assert SECRET not in repr(error.value)
    assert "\n" not in str(error.value)
    assert error.value.__cause__ is None


@pytest.mark.parametrize("ids", [[-1], [2**31], ["x"], [1.5], [[1]], [True], "1", 10**30, {"1": 1}])
def test_token_ids_of_another_kind_end_the_request(server, ids):
    server.worlds = {"table": WORLD}
    piece = {"text": "a", "token_ids": ids, "logprobs": {"token_logprobs": [-1.0]}}
    server.raw = lambda _: raw_text(piece, END, usage={"completion_tokens": 1})
    guarded = GuardedGenerator(endpoint(server, max_retries=0), Regex(""), sampler="qrs", proposal=Prompt("{prompt}b"))
    with pytest.raises(EndpointError, match="does not return token ids"):
        guarded.run("a", temperature=1.0, max_new_tokens=5)


@pytest.mark.parametrize(
    "logprob", [math.nan, -math.inf, math.inf, 10**400, "x", None, [-1.0]], ids=lambda each: str(each)[:12]
)
def test_log_probabilities_that_are_none_end_the_request(server, logprob):
    server.worlds = {"table": WORLD}
    piece = {"text": "a", "token_ids": [1], "logprobs": {"token_logprobs": [logprob]}}
    server.raw = lambda _: raw_text(piece, END, usage={"completion_tokens": 1})
    guarded = GuardedGenerator(endpoint(server, max_retries=0), Regex(""), sampler="qrs", proposal=Prompt("{prompt}b"))
    with pytest.raises(EndpointError, match="does not return log-probabilities"):
        guarded.run("a", temperature=1.0, max_new_tokens=5)


def test_values_that_are_taken():
    assert count_of(0, 5) == 0
    assert count_of(6, 5) is None
    assert ids_of((0, 2**31 - 1)) == [0, 2**31 - 1]
    assert log_probabilities_of([-1, -0.5]) == [-1.0, -0.5]
    assert log_probabilities_of(["-1"]) is log_probabilities_of([True]) is log_probabilities_of("-1") is None
    assert log_probabilities_of([json.loads("1e999")]) is None


def test_what_a_server_says_can_be_shown():
    assert printable_line("no\r\n such\x1b[31m \u202ething\0", 300) == "no such [31m thing"
    assert printable_line("x" * 10**6, 300) == "x" * 300
    assert printable_line(["x"], 300) == ""
