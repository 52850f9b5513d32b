"""Seeds belong to attempts, not to batches."""

from typing import Any

import pytest
import torch

from guardwrap import Budget, GuardedGenerator, Keyword, Regex
from guardwrap.testing import World

PROMPTS = ["ab", "a", "cde a b", "ab", "e. d"]
JUDGED = Keyword("a", whole_words=False) & ~Regex("c")
SETTINGS: dict[str, Any] = {"max_new_tokens": 6, "num_return_sequences": 3, "temperature": 1.5}


def texts(world: World, batch_size: int, **options: Any) -> list[tuple[str, ...]]:
    guarded = GuardedGenerator(world.pipeline(), JUDGED, batch_size=batch_size, budget=Budget(max_attempts=None))
    return [outcome.texts for outcome in guarded.run(PROMPTS, **{**SETTINGS, "seed": 11, **options})]


@pytest.mark.slow
def test_same_seed_same_texts_whatever_the_batch_size(world: World) -> None:
    one = texts(world, 1)
    assert texts(world, 7) == one
    assert texts(world, 64) == one
    assert texts(world, 64, seed=12) != one
    assert one[0] != one[3], "two equal prompts of a call must get different texts"


def test_same_usage_whatever_the_batch_size(world: World) -> None:
    def usages(batch_size: int) -> list[tuple[int, int, dict[str, int]]]:
        guarded = GuardedGenerator(world.pipeline(), JUDGED, batch_size=batch_size, seed=3)
        budget = Budget(max_attempts=40, max_tokens=90)
        reports = [outcome.report for outcome in guarded.run(PROMPTS, budget=budget, **SETTINGS)]
        return [(r.usage.attempts, r.usage.tokens, dict(r.rejections)) for r in reports]

    assert usages(1) == usages(7) == usages(64)


@pytest.mark.slow
def test_processors_see_rows_as_if_they_were_alone(world: World) -> None:
    options: dict[str, Any] = {"repetition_penalty": 2.0, "no_repeat_ngram_size": 2, "min_new_tokens": 3}
    together = texts(world, 64, **options)
    assert together == texts(world, 1, **options)
    guarded = GuardedGenerator(world.pipeline(), JUDGED, budget=Budget(max_attempts=None))
    for number, prompt in enumerate(PROMPTS):
        (alone,) = guarded.stream([prompt], first=number, seed=11, **SETTINGS, **options)
        assert alone.texts == together[number]


def test_a_run_goes_on_where_it_stopped(world: World) -> None:
    guarded = GuardedGenerator(world.pipeline(), JUDGED, budget=Budget(max_attempts=None))
    whole = list(guarded.stream(PROMPTS, seed=4, **SETTINGS))
    rest = list(guarded.stream(PROMPTS[2:], first=2, seed=4, **SETTINGS))
    assert [outcome.texts for outcome in rest] == [outcome.texts for outcome in whole[2:]]


def test_seeds_of_calls(world: World) -> None:
    def calls(seed: int | None) -> list[Any]:
        guarded = GuardedGenerator(world.pipeline(), JUDGED, seed=seed)
        return [guarded.run("ab", **SETTINGS)[0] for _ in range(3)]

    first, again = calls(7), calls(7)
    assert [o.texts for o in first] == [o.texts for o in again]
    assert len({o.texts for o in first}) == 3, "calls of one wrapper must differ"
    replayed = GuardedGenerator(world.pipeline(), JUDGED).run("ab", seed=first[2].report.seed, **SETTINGS)
    assert replayed[0].texts == first[2].texts

    # Without a seed, torch's global generator decides, as for generate.
    torch.manual_seed(5)
    one = calls(None)
    torch.manual_seed(5)
    assert [o.texts for o in calls(None)] == [o.texts for o in one]


def test_a_plan_uses_up_no_seed_of_a_call(world: World) -> None:
    guarded = GuardedGenerator(world.pipeline(), JUDGED, seed=7)
    options: dict[str, Any] = {**SETTINGS, "pilot": 8}
    plans = [guarded.plan("ab", **options), guarded.plan("ab", **options)]
    runs = [guarded.run("ab", **SETTINGS)[0] for _ in range(2)]
    unplanned = GuardedGenerator(world.pipeline(), JUDGED, seed=7)
    assert [run.report.seed for run in runs] == [unplanned.run("ab", **SETTINGS)[0].report.seed for _ in range(2)]
    assert runs[0].report.seed == 7
    assert plans[0].forecasts[0].acceptance == plans[1].forecasts[0].acceptance
    assert guarded.session.plan_seed() not in {run.report.seed for run in runs}, "a plan must not draw a run's attempts"


@pytest.mark.parametrize("batch_size", [2, pytest.param(64, marks=pytest.mark.slow)])
def test_negative_control_a_stream_shared_by_the_batch_depends_on_it(
    world: World, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import random

    from guardwrap.engine import token_sampling

    one = texts(world, 1)
    shared = random.Random(0)

    class Shared:
        def __next__(self) -> float:
            return shared.random()

    monkeypatch.setattr(token_sampling, "uniforms", lambda *_: Shared())
    first = texts(world, 1)
    shared.seed(0)
    assert texts(world, batch_size) != first
    assert first != one


def overhead(world: World, monkeypatch: pytest.MonkeyPatch, *, shared: bool = False) -> tuple[float, list[Any]]:
    """Return the texts, and row-steps divided by the tokens of the needed attempts, first tokens excluded."""
    from guardwrap.engine import prefix_cache
    from guardwrap.engine.refill import decode

    decoders = []
    init = decode.RefillBackend.__init__

    def kept(self: decode.RefillBackend, *args: Any) -> None:
        decoders.append(self)
        init(self, *args)

    monkeypatch.setattr(decode.RefillBackend, "__init__", kept)
    if not shared:
        monkeypatch.setattr(prefix_cache.PrefixTree, "root", lambda self, launch: None)
    guarded = GuardedGenerator(world.pipeline(), ~Regex("c"), batch_size=32, budget=Budget(max_attempts=None))
    tokens, texts = 0, []
    for seed in range(6):
        options: dict[str, Any] = {"num_return_sequences": 32, "max_new_tokens": 40, "temperature": 2.0, "seed": seed}
        (outcome,) = guarded.run("ab", **options)
        assert outcome.report.usage.attempts > 40
        tokens += outcome.report.usage.tokens - outcome.report.usage.attempts
        texts.append(outcome.texts)
    return sum(decoder.row_steps for decoder in decoders) / tokens, texts


def test_little_more_is_drawn_than_launch_order_needs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 < overhead(world, monkeypatch)[0] < 1.15


def test_negative_control_launching_blindly_draws_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from guardwrap.engine.refill import decode

    monkeypatch.setattr(decode.RefillBackend, "lengths", lambda self: {})
    assert overhead(world, monkeypatch)[0] > 1.3


def test_attempts_with_the_same_tokens_are_computed_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    shared, texts = overhead(world, monkeypatch, shared=True)
    alone, same = overhead(world, monkeypatch)
    assert texts == same
    assert shared < 0.8 * alone


def test_who_waits_for_an_attempt_that_is_stopped_goes_on(world: World) -> None:
    """Two prompts with the same tokens share rows; when the first has its text, the second must not hang or change."""
    from guardwrap.engine.refill.decode import RefillBackend
    from guardwrap.engine.refill.slots import Slots
    from guardwrap.engine.scheduling.backend import Launch
    from guardwrap.models.task_calls import call_of

    options = {
        "do_sample": True,
        "num_return_sequences": 2,
        "max_new_tokens": 12,
        "min_new_tokens": 12,
        "temperature": 0.05,
    }
    prompts = list(call_of(world.pipeline(), options).prompts(enumerate(["ab"]), 1))

    def drawn(cancelled: bool) -> tuple[int, list[int]]:
        decoder = RefillBackend(lambda: Slots(world.model), 2)
        decoder.launch([Launch(prompts[0].law, 0, number, 0) for number in ((0, 1) if cancelled else (1,))])
        ended: list[Any] = []
        for _ in range(4):
            decoder.advance()
        if cancelled:
            assert (len(decoder._running), len(decoder._waiting)) == (1, 1), "the prompts do not share a row"
            first = decoder._running[0].launch.prompt
            decoder.cancel(lambda launch: launch.prompt == first)
            assert (len(decoder._running), len(decoder._waiting)) == (0, 1)
        while decoder.running:
            ended += decoder.advance()
        (attempt,) = ended
        return attempt.launch.prompt, attempt.token_ids

    assert drawn(cancelled=True) == drawn(cancelled=False)
