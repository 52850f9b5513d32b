"""What is learned for twists: within bounds, and without delaying other callers."""

import asyncio
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from guardwrap import Budget, GuardedGenerator, Keyword, Length, Masked, Regex, Twisted
from guardwrap.calls import job, sessions, twisting
from guardwrap.calls.twisting import rounds_of
from guardwrap.constraints.files.constraint_file import PerPromptOptions
from guardwrap.errors import UsageError
from guardwrap.models.calls import Call
from guardwrap.testing import table_world

RULE = Keyword("ab", whole_words=False)
WORLD = table_world(letters="abc", max_new_tokens=4, temperature=0.8)


def guarded_of(rule=RULE, **options):
    return GuardedGenerator(WORLD.pipeline(), rule, **{"proposal": Twisted(), "seed": 3, **options})


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(twisting, "rounds_of", lambda attempts: (32,) * 6)


def learned(guarded):
    return [twisted for twisted, _ in guarded.session._learned.values()]


def test_learning_leaves_the_event_loop_free(monkeypatch):
    right, threads = twisting.TwistedConstraint.learn, []

    def learn(self, *arguments):
        threads.append(threading.current_thread().name)
        time.sleep(0.5)
        return right(self, *arguments)

    monkeypatch.setattr(twisting.TwistedConstraint, "learn", learn)
    guarded = guarded_of(budget=Budget(max_attempts=None))
    busy: list[bool] = []

    async def plain():
        await asyncio.sleep(0.1)  # the other call is learning now
        began = time.monotonic()
        (outcome,) = await guarded.arun(WORLD.prompt, proposal=False, constraints=Regex("a"), **WORLD.settings)
        assert outcome.ok
        return time.monotonic() - began

    async def twisted():
        return [each async for each in guarded.astream(WORLD.prompt, on_busy=busy.append, **WORLD.settings)]

    async def both():
        return await asyncio.gather(twisted(), plain())

    (outcome,), seconds = asyncio.run(both())
    assert outcome.ok
    assert "ab" in outcome.texts[0]
    assert seconds < 0.35, "it did not wait for the twist of another caller"
    assert len(threads) == 1
    assert threads[0].startswith("guardwrap-learner")
    # While it learns, a server keeps its place, should the client disconnect. The last step may end after the call.
    assert busy[:3] == [True, False, True]


def test_only_the_last_constraints_are_kept(monkeypatch):
    monkeypatch.setattr(sessions, "TWISTS", 3)
    guarded = guarded_of(budget=Budget(max_attempts=500))
    for words in ("a", "b", "ab", "a", "ca", "bc"):
        guarded.run(WORLD.prompt, constraints=Keyword(words, whole_words=False), **WORLD.settings)
    assert [twisted.title for twisted in learned(guarded)] == [
        Keyword(words, whole_words=False).title for words in ("a", "ca", "bc")
    ]


def test_a_time_limit_cuts_learning_short_and_the_next_call_learns_on():
    guarded = guarded_of(batch_size=1)
    assert guarded.run(WORLD.prompt, budget=Budget(max_seconds=1e-6), **WORLD.settings)
    (twisted,) = learned(guarded)
    assert twisted.rounds < 6
    assert twisted.spent.attempts < 192
    (outcome,) = guarded.run(WORLD.prompt, **WORLD.settings)
    assert outcome.ok
    assert twisted.learned
    assert learned(guarded) == [twisted]


def test_rounds_grow_and_have_all_attempts_together():
    assert rounds_of(768) == (64, 64, 64, 64, 128, 128, 256)
    assert rounds_of(100) == (64, 36)
    assert sum(rounds_of(5_000)) == 5_000
    assert len(rounds_of(1_000_000)) < 40, "each round fits the tilt to all attempts so far"


def test_other_numbers_of_attempts_are_learned_apart(monkeypatch):
    monkeypatch.setattr(twisting, "rounds_of", lambda attempts: (attempts,))
    guarded = guarded_of()
    notes = []
    for attempts in (64, 80, 64):
        outcome = guarded.run(WORLD.prompt, proposal=Twisted(attempts=attempts), **WORLD.settings)[0]
        notes += outcome.report.notes
    assert [note.split(" attempts")[0] for note in notes] == [
        f"the twist was learned from {attempts}" for attempts in (64, 80, 64)
    ]
    assert [twisted.spent.attempts for twisted in learned(guarded)] == [80, 64]


def test_a_part_of_the_time_is_for_each_round(monkeypatch):
    """Learning takes at most the time of the call, of which each round has its share of the attempts."""
    limits = []

    def made(count, **options):
        limits.append((count, options["max_seconds"]))
        return Budget(count, **options)

    monkeypatch.setattr(job, "Budget", made)
    monkeypatch.setattr(twisting, "ENOUGH", 2.0)
    monkeypatch.setattr(twisting, "rounds_of", lambda attempts: (32, 32, 64))
    guarded_of(budget=Budget(max_seconds=600)).run([WORLD.prompt] * 2, **WORLD.settings)
    assert limits == [(16, 150.0), (16, 150.0), (32, 300.0)]


def test_the_report_of_the_call_that_learned_has_the_cost(monkeypatch):
    seconds = itertools.count()
    monkeypatch.setattr(twisting, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    guarded = guarded_of()
    first = guarded.run([WORLD.prompt] * 6, **WORLD.settings)
    (twisted,) = learned(guarded)
    usages = [outcome.report.usage for outcome in first]
    assert sum(usage.learning_attempts for usage in usages) == twisted.spent.attempts > 0
    assert sum(usage.learning_computed_tokens for usage in usages) == twisted.spent.computed_tokens > 0
    rounds = twisted.spent.attempts / 32  # of one second each
    assert sum(usage.learning_seconds for usage in usages) == twisted.spent.seconds == rounds
    assert [usage.learning_seconds > 0 for usage in usages] == [True] * twisting.PROMPTS + [False] * 2
    row = f"learning {usages[0].learning_attempts} attempts, {usages[0].learning_computed_tokens} computed tokens, "
    assert row in " ".join(str(first[0].report).split())
    (later,) = guarded.run(WORLD.prompt, **WORLD.settings)
    use = later.report.usage
    assert (use.learning_attempts, use.learning_computed_tokens, use.learning_seconds) == (0, 0, 0.0)
    assert "learning" not in str(later.report)


def test_what_another_caller_learned_is_not_in_the_report(monkeypatch):
    guarded, at_once, right = guarded_of(), threading.Barrier(3), Call.stable_prefix

    def stable_prefix(self):
        at_once.wait(30)
        return right(self)

    monkeypatch.setattr(Call, "stable_prefix", stable_prefix)
    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(guarded.run, WORLD.prompt, **WORLD.settings) for _ in range(3)]
    attempts = [run.result()[0].report.usage.learning_attempts for run in runs]
    assert sorted(attempts) == [0, 0, learned(guarded)[0].spent.attempts]


def test_a_call_that_ends_before_anything_is_learned_says_so():
    guarded = guarded_of(on_exhausted="none", budget=Budget(timeout=1e-6))
    (outcome,) = guarded.run(WORLD.prompt, **WORLD.settings)
    assert outcome.report.notes == ("the time was over before the twist had learned anything",)


def test_longer_texts_than_those_of_the_call_that_learned_have_values_of_their_own():
    guarded = guarded_of()
    guarded.run(WORLD.prompt, **{**WORLD.settings, "max_new_tokens": 2})
    (twisted,) = learned(guarded)
    short, spent = twisted.values, twisted.spent
    assert len(short) == 3
    (outcome,) = guarded.run(WORLD.prompt, **WORLD.settings)
    assert outcome.ok
    assert len(twisted.values) == 5
    assert np.array_equal(twisted.values[:3], short)
    assert (twisted.values[4] != twisted.values[2]).any()
    assert twisted.spent == spent
    guarded.run(WORLD.prompt, **{**WORLD.settings, "max_new_tokens": 3})
    assert len(twisted.values) == 5


def test_prompts_may_have_budgets_but_no_constraints_alone():
    prompts = ["a", "b"]
    guarded = guarded_of()
    same = [PerPromptOptions(budget=Budget(max_attempts=400)), None]
    outcomes = guarded.run(prompts, constraint_each=same, **WORLD.settings)
    assert all("ab" in outcome.texts[0] for outcome in outcomes)
    assert all(any("the twist was learned" in note for note in outcome.report.notes) for outcome in outcomes)
    with pytest.raises(UsageError, match="leave out the constraints of single prompts"):
        guarded.run(prompts, constraint_each=[None, Regex("b")], **WORLD.settings)
    guarded = guarded_of()
    with pytest.raises(UsageError, match="leave out the constraints of single prompts"):
        guarded.run(prompts * 9, constraint_each=[*[None] * 17, Regex("b")], **WORLD.settings)
    assert not any(twisted.spent.attempts for twisted in learned(guarded)), "refused before anything is learned"


def test_the_first_prompt_of_a_generator_suffices():
    taken: list[None] = []

    def prompts():
        for _ in range(6):
            taken.append(None)
            yield WORLD.prompt

    guarded = guarded_of()
    job = guarded.session.job(dict(WORLD.settings))
    requests = job.requests(prompts())
    assert len(taken) == 1
    assert len(list(requests)) == 6
    assert learned(guarded)[0].learned


def test_values_beyond_the_limit_are_refused(monkeypatch):
    monkeypatch.setattr(twisting, "MOST_VALUES", 12)
    with pytest.raises(UsageError, match="max_new_tokens to that at most") as caught:
        guarded_of().run(WORLD.prompt, **WORLD.settings)
    assert "\n" not in str(caught.value)
    assert "has 4 states, which Twisted() follows for up to 2 tokens" in str(caught.value)
    assert guarded_of().run(WORLD.prompt, **{**WORLD.settings, "max_new_tokens": 2})


HOSTILE = [
    Length(max=10**6),
    Length(max=15_000, unit="characters") & Length(max=15_000, unit="words"),
    Keyword(tuple(f"{letter}{number}x" for letter in "abcdefghij" for number in range(30)), match="all"),
    Keyword("qwertyuiop asdfghjkl zxcvbnm") & Keyword("the quick brown fox jumps") & Keyword("lazy dogs 12345"),
]


@pytest.mark.slow
@pytest.mark.parametrize("rule", HOSTILE, ids=range(len(HOSTILE)))
def test_constraints_without_a_fair_automaton_are_masked_soon(rule):
    guarded = guarded_of()
    began = time.process_time()
    job = guarded.session.job({"constraints": rule, **WORLD.settings})
    assert time.process_time() - began < 8
    assert job.source.twists is None
    assert job.source.masked == Masked()
    assert not learned(guarded)
