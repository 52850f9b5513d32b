"""A server's texts are distributed as g, whatever faults happen, and unneeded texts are not drawn."""

import gc
import itertools
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

import guardwrap.calls.source
from guardwrap import Budget, GuardedGenerator, JSONSchema, Prompt, Regex, constraint
from guardwrap.engine.endpoint.attempt_stream import AttemptRestarted
from guardwrap.engine.endpoint.endpoint_backend import EndpointBackend
from guardwrap.engine.scheduling.backend import Launch
from guardwrap.errors import CheckFailed
from guardwrap.testing import World, goodness_of_fit, table_world
from tests.engine.endpoint.fixtures_server import Server, endpoint, of_world

WORLD = table_world(3, letters="ab", max_new_tokens=5)
RULE = ~Regex("bb")
LAW: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 5}
NO_LIMIT = Budget(max_attempts=None)


@pytest.fixture
def server():
    with Server(of_world(WORLD)).running() as running:
        yield running


def gold(world: World = WORLD) -> dict[Any, float]:
    """Return g of each pair of a text and whether it ended by itself."""
    end = world.tokenizer.eos_token_id
    found: dict[Any, float] = defaultdict(float)
    for ids, p in world.gold(RULE).items():
        found[world.draw(ids).text, ids[-1] == end] += p
    return found


def fit(server, count, world=WORLD, **options):
    """Return the p-value of texts under g, and the report."""
    guarded = GuardedGenerator(endpoint(server), RULE, budget=NO_LIMIT, seed=5)
    (outcome,) = guarded.run("a", num_return_sequences=count, **LAW, **options)
    assert outcome.report.accepted == len(outcome.texts) == count
    return goodness_of_fit([(draw.text, draw.finished) for draw in outcome.draws], gold(world)), outcome.report


@contextmanager
def counting():
    """Count how often each attempt is launched, and how often it ends: by itself, or because it is no longer needed."""
    launched: Counter[int] = Counter()
    ended: Counter[int] = Counter()
    given: Any = vars(guardwrap.calls.source)["EndpointBackend"]  # maybe a negative control's

    class Counting(given):
        def launch(self, launches):
            launched.update(each.attempt for each in launches)
            return super().launch(launches)

        def _removed(self, numbers):
            gone = super()._removed(numbers)
            ended.update(each.launch.attempt for each in gone)
            return gone

    with patch.object(guardwrap.calls.source, "EndpointBackend", Counting):
        yield launched, ended


@pytest.mark.slow
def test_texts_follow_g_through_faults(server):
    """Streams break off at random, requests are rejected at random, and the server restarts."""
    server.breaks, server.fails = 0.1, 0.1
    with counting() as (launched, ended):
        p, report = fit(server, 1500)
    assert p > 1e-3
    assert report.drawn_from == "exactly your model's own distribution, given the constraint (g)"
    assert server.count["broken"] > 200
    assert server.count["failed"] > 150  # about 215, with a standard deviation of 14
    # No attempt is lost or duplicated: each has ended once, and no broken stream counts as a rejection.
    usage = report.usage
    assert usage.attempts == 1500 + sum(report.rejections.values())
    assert report.rejections.keys() == {RULE.title}
    assert launched == ended == Counter(range(usage.attempts + usage.surplus_attempts))
    # Attempts that are no longer needed may be cancelled before they are sent.
    assert usage.attempts <= len({asked["seed"] for asked in server.seen}) <= len(launched)
    assert any("broke off in mid-stream" in note and "promises the same text" in note for note in report.notes)


class Drops(EndpointBackend):
    """Counts an attempt whose stream breaks off as rejected."""

    def _take(self, attempt, event):
        super()._take(attempt, event)
        if isinstance(event, AttemptRestarted):
            attempt.status, attempt.blame = "aborted", "the network"


def test_negative_control_broken_attempts_are_dropped(server, monkeypatch):
    monkeypatch.setattr(guardwrap.calls.source, "EndpointBackend", Drops)
    server.breaks = 0.4
    p, report = fit(server, 400)
    assert p < 1e-9
    assert report.rejections["the network"] > 100


@pytest.mark.slow
def test_what_is_left_where_seeds_do_not_repeat_is_said(server):
    server.breaks, server.honours_seeds = 0.4, False
    p, report = fit(server, 600)
    assert p < 1e-9  # as the docstring says: long texts get rarer
    (note,) = (note for note in report.notes if "broke" in note)
    assert "long texts get rarer" in note
    assert any("the same seed may give other texts" in note for note in report.notes)


def test_the_same_seed_gives_the_same_texts_through_faults(server):
    def texts():
        return GuardedGenerator(endpoint(server), RULE, seed=5).run("a", num_return_sequences=50, **LAW)[0].texts

    before = texts()
    server.breaks, server.fails, server.usage = 0.1, 0.1, False
    assert texts() == before


def test_another_prompt_is_a_proposal(server):
    """For chats and strings: attempts are drawn from the proposal's prompt, and records contain the user's prompt."""
    proposal = Prompt("{prompt}b")
    guarded = GuardedGenerator(endpoint(server), RULE, proposal=proposal, seed=1)
    for prompt in ("a", [{"role": "user", "content": "a"}]):
        (outcome,) = guarded.run([prompt], **LAW)
        assert (
            outcome.report.drawn_from
            == "not your model's own distribution: attempts came from the prompt '{prompt}b' (g')"
        )
        assert outcome.prompt == prompt
    sent = {asked["prompt"] if "prompt" in asked else asked["messages"][-1]["content"] for asked in server.seen}
    assert sent == {"ab"}
    assert guarded("a", **LAW)[0]["generated_text"].startswith("a")
    plan = guarded.plan("a", pilot=20, **LAW)
    assert [way.sampler for way in plan.ways] == ["rejection", "rejection"]


@pytest.mark.parametrize("arguments", [{"city": "Köln"}, '{"city": "Köln"}'])
def test_calls_in_a_chat_are_sent_as_the_protocol_has_them(server, arguments):
    """Frameworks give arguments as chat templates read them; servers refuse objects."""
    function = {"name": "weather", "arguments": arguments}
    chat = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "a"},
    ]
    guarded = GuardedGenerator(endpoint(server), Regex(""), seed=1)
    assert guarded([chat], temperature=1.0, max_new_tokens=5)
    assert server.seen[-1]["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"city": "Köln"}'
    assert function["arguments"] == arguments


def test_tokens_are_the_servers_or_pieces(server):
    """The end-of-sequence token is not sent as a piece."""
    none = Regex("")
    (outcome,) = GuardedGenerator(endpoint(server), none, seed=2).run("a", num_return_sequences=20, **LAW)
    assert outcome.report.usage.tokens == sum(len(draw.text) + draw.finished for draw in outcome.draws)
    assert not any("pieces" in note for note in outcome.report.notes)
    server.usage = False
    (outcome,) = GuardedGenerator(endpoint(server), none, seed=2).run("a", num_return_sequences=20, **LAW)
    assert outcome.report.usage.tokens == sum(len(draw.text) for draw in outcome.draws)
    written = sum(bool(draw.text) for draw in outcome.draws)
    assert f"the server did not count the tokens of {written} attempts" in "\n".join(outcome.report.notes)


def endless(prompt, chance):
    return itertools.repeat("b"), "length", 1


def closed(server, number):
    """Wait until the server has seen ``count`` streams close."""
    for _ in range(500):
        if server.count["closed"] >= number:
            return True
        time.sleep(0.01)
    return False


def test_early_abort_closes_the_stream(server):
    """These texts never end, so streams end only if they are closed."""
    server.text = endless
    guarded = GuardedGenerator(endpoint(server), RULE, budget=Budget(max_attempts=6), seed=1)
    (outcome,) = guarded.run("a", **LAW)
    assert outcome.report.usage.attempts == 6
    assert outcome.report.rejections == {RULE.title: 6}
    assert closed(server, server.count["begun"])
    assert server.count["whole"] == 0


def test_the_place_of_a_violation_is_counted(server):
    guarded = GuardedGenerator(endpoint(server), JSONSchema({}), budget=Budget(max_attempts=6), seed=1)
    (outcome,) = guarded.run("a", **LAW)
    assert outcome.report.places == {"JSONSchema(schema={})": {"not JSON": 6}}


def test_surplus_and_interrupted_attempts_are_closed(server):
    server.text = endless
    never = EndpointBackend(endpoint(server), 3)
    law = GuardedGenerator(endpoint(server), RULE).session.job(LAW)
    (request,) = law.requests(["a"])
    never.launch([Launch(request.prompt.law, 1, 0, attempt, None, None, request) for attempt in range(3)])
    assert never.room == 0
    while server.count["begun"] < 3:
        never.advance()
    assert len(never.cancel(lambda launch: launch.attempt == 0)) == 1
    assert closed(server, 1)
    del never
    gc.collect()
    assert closed(server, 3)


def test_a_deadline_abandons(server):
    server.slow = 5.0
    server.text = endless
    guarded = GuardedGenerator(endpoint(server), RULE, budget=Budget(deadline=0.2), seed=1)
    (outcome,) = guarded.run("a", **LAW)
    assert outcome.report.ended == "deadline"
    assert outcome.report.drawn_from == "biased by a deadline"


def test_a_constraint_that_crashes_ends_its_request(server):
    @constraint
    def crash(text):
        raise ZeroDivisionError

    guarded = GuardedGenerator(endpoint(server), crash, seed=1)
    with pytest.raises(CheckFailed):
        guarded("a", **LAW)


def test_each_attempt_has_a_seed_of_its_own(server):
    fit(server, 100)
    seeds = [asked["seed"] for asked in server.seen]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**53 for seed in seeds)
