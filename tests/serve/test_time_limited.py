"""Time limits for the server's own functions."""

import threading
import time

import pytest

from guardwrap import CheckFailed, Regex, Share, Verdict, constraint
from guardwrap.constraints.files.constraint_file import parse
from guardwrap.constraints.kinds.function import runs_code
from guardwrap.constraints.kinds.share import shares_of
from guardwrap.serve.request_policy import LEFT_BEHIND, RequestPolicy, TimeLimited, time_limited
from guardwrap.serve.server_settings import ServerLimits


@constraint
def has_a(text: str) -> bool:
    return "a" in text


@constraint
def hangs(text: str) -> bool:
    time.sleep(5)
    return True


@constraint
def crashes(text: str) -> bool:
    raise KeyError("a text that nobody may see")


def test_it_judges_as_the_constraint_does():
    timed = TimeLimited(has_a, 5)
    assert [timed.accepts(text) for text in ("a", "b")] == [True, False]
    assert (timed.title, timed.digest, timed.cost) == (has_a.title, has_a.digest, has_a.cost)
    assert timed.verdict("a") is Verdict.UNDECIDED


def test_the_rule_of_a_share_is_limited_and_stays_one():
    policy = RequestPolicy(models=("tiny",), limits=ServerLimits(checker_seconds=0.05))
    limited = time_limited(Regex("a") & Share(hangs, 0.5), policy)
    (share,) = shares_of(limited)
    assert limited.accepts("a")
    with pytest.raises(CheckFailed, match=r"took more than 0\.05 s"):
        share.of.accepts("a")


def test_a_function_that_hangs_is_left_behind():
    with pytest.raises(CheckFailed, match=r"took more than 0\.05 s"):
        TimeLimited(hangs, 0.05).accepts("a")


@pytest.mark.slow
def test_a_function_that_hangs_gets_so_many_threads_and_no_more():
    released, calls = threading.Event(), []

    @constraint
    def waits(text: str) -> bool:
        calls.append(text)
        return released.wait(30)

    timed = [TimeLimited(waits, 0.001) for _ in range(LEFT_BEHIND + 3)]  # one per request
    for each in timed:
        with pytest.raises(CheckFailed, match=r"took more than 0\.001 s"):
            each.accepts("a")
    assert len(calls) == LEFT_BEHIND
    released.set()
    while any(thread.name == "guardwrap-checker" for thread in threading.enumerate()):
        time.sleep(0.001)
    assert TimeLimited(waits, 5).accepts("a")


RELEASED = threading.Event()
FIELDS = """\
guardwrap: 1
fields: [word]
constraint:
  kind: any
  of: [{kind: python, function: 'tests.serve.test_time_limited:waits'}, {kind: keyword, words: '{word}'}]
"""


def waits(text: str) -> bool:
    return RELEASED.wait(30)


def test_the_values_of_fields_bring_no_more_threads():
    file, earlier = parse(FIELDS, allow_code=True), threading.enumerate()
    for number in range(LEFT_BEHIND + 3):
        filled = file.filled({"word": f"word {number}"}).constraint
        with pytest.raises(CheckFailed, match=r"took more than 0\.001 s"):
            TimeLimited(filled, 0.001).accepts("a")
    waiting = [thread for thread in threading.enumerate() if thread not in earlier]
    RELEASED.set()
    assert len(waiting) == LEFT_BEHIND


def test_a_function_that_raises_says_nothing_of_the_text():
    with pytest.raises(CheckFailed) as caught:
        TimeLimited(crashes, 5).accepts("a")
    assert "KeyError" in str(caught.value)
    assert "nobody" not in str(caught.value)


def test_what_runs_code():
    assert runs_code(has_a)
    assert runs_code(~(Regex("a") & has_a))
    assert not runs_code(~(Regex("a") & Regex("b")))
