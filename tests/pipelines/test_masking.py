"""Masked proposals: a law whose weights are known, and what samplers make of it."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from guardwrap import Budget, GuardedGenerator, Keyword, Masked, Prompt, Regex, Verdict, constraint, imh, qrs
from guardwrap.backends import drawing
from guardwrap.constraints.judge import run_verdict
from guardwrap.errors import UsageError
from guardwrap.samplers import Attempt, Sampler
from guardwrap.scheduling.backend import Decoded
from guardwrap.testing import World, goodness_of_fit, llama_world, table_world
from tests.laws import by_text, imh_law, normal, qrs_law

RULE = ~Regex("b") & Keyword("a", whole_words=False)  # the first is seen at once, the second at the end of a text
FITS, FAILS = 1e-3, 1e-9
DRAWS = 4_000
Texts = dict[tuple[int, ...], float]


def masked_law(world: World, unseen: float = 0.0, at_once: int = 1000) -> tuple[Texts, Texts]:
    """Enumerate a' and log Z of each text, token by token, from a and the constraint's own verdicts."""
    a, end = world.law(), world.tokenizer.eos_token_id
    reach: Texts = {}
    for ids, p in a.items():
        for length in range(len(ids) + 1):
            reach[ids[:length]] = reach.get(ids[:length], 0.0) + p

    def dead(ids: tuple[int, ...]) -> bool:
        if ids[-1] == end or len(ids) == world.max_new_tokens:
            return not RULE.check([world.draw(ids)])[0]
        return run_verdict(RULE, world.draw(ids).text) is Verdict.VIOLATED

    def left_out(steps: Texts) -> set[tuple[int, ...]]:
        """The likeliest first, some at once, until hardly anything is unseen."""
        order = sorted(steps, key=lambda ids: -steps[ids])
        seen: list[tuple[int, ...]] = []
        while len(seen) < len(order):
            left = sum(steps[ids] for ids in seen if not dead(ids))
            if seen and sum(steps[ids] for ids in order[len(seen) :]) <= unseen * left:
                break
            seen += order[len(seen) : len(seen) + at_once]
        return {ids for ids in seen if dead(ids)}

    law: Texts = {(): 1.0}
    left: Texts = {(): 0.0}
    done: Texts = {}
    while law:
        grown: Texts = {}
        for prefix, p in law.items():
            steps = {
                ids: reach[ids] / reach[prefix] for ids in reach if len(ids) == len(prefix) + 1 and ids[:-1] == prefix
            }
            out = left_out(steps)
            out = set() if len(out) == len(steps) else out
            z = sum(step for ids, step in steps.items() if ids not in out)
            for ids in steps.keys() - out:
                over = ids[-1] == end or len(ids) == world.max_new_tokens
                (done if over else grown)[ids] = p * steps[ids] / z
                left[ids] = left[prefix] + math.log(z)
        law = grown
    return done, {ids: left[ids] for ids in done}


def world_of(**more: Any) -> World:
    return table_world(letters="abc", max_new_tokens=4, temperature=0.8, **more)


def drawn(world: World, sampler: str | Sampler, count: int, *, masked: Any = None, **options: Any) -> Any:
    proposal = Masked(unseen=0.0) if masked is None else masked
    budget = Budget(max_attempts=None)
    guarded = GuardedGenerator(world.pipeline(), RULE, sampler=sampler, proposal=proposal, budget=budget, seed=3)
    return guarded.run(world.prompt, num_return_sequences=count, **world.settings, **options)[0]


def test_masks_leave_out_what_is_dead_and_nothing_else() -> None:
    world = world_of()
    law, _ = masked_law(world)
    assert sum(law.values()) == pytest.approx(1)
    inside = by_text(normal, {ids: p for ids, p in law.items() if ids in world.gold(RULE)})
    outcome = drawn(world, "rejection", DRAWS)
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], inside) > FITS
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], world.gold(RULE)) < FAILS, "which is not g"
    assert outcome.report.drawn_from == "g' of the model itself, masked, not g"
    plain = GuardedGenerator(world.pipeline(), RULE, seed=3).run(
        world.prompt, num_return_sequences=200, budget=Budget(max_attempts=None), **world.settings
    )[0]
    rates = [report.acceptance for report in (plain.report, outcome.report)]
    assert rates[0] is not None
    assert rates[1] is not None
    assert rates[0].high < rates[1].low


def weighed(world: World, count: int = 3_000, **options: Any) -> list[Attempt]:
    guarded = GuardedGenerator(world.pipeline(), RULE, seed=7, **{"proposal": Masked(unseen=0.0), **options})
    return guarded.attempts(world.prompt, count, **world.settings)[0]


@pytest.mark.parametrize("unseen", [0.0, 0.4])
@pytest.mark.parametrize("make", [table_world, llama_world])
def test_weights_are_those_of_the_law(
    make: Callable[..., World], unseen: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """log P/a' where the text satisfies the constraint: the sum of log Z, and log a' is that of what was sampled."""
    world = make(letters="abc", max_new_tokens=4, temperature=0.8)
    monkeypatch.setattr(drawing, "LOOKED_AT", 1)
    a, (law, left) = world.law(), masked_law(world, unseen, at_once=1)
    assert (law.keys() == masked_law(world)[0].keys()) == (unseen == 0)
    met = set()
    for attempt in weighed(world, proposal=Masked(unseen=unseen)):
        ids = attempt.draw.token_ids
        if attempt.satisfied:
            assert attempt.log_weight == pytest.approx(left[ids], abs=1e-5)
            assert attempt.log_weight == pytest.approx(math.log(a[ids] / law[ids]), abs=1e-5)
            assert attempt.draw.log_proposal == pytest.approx(math.log(law[ids]), abs=1e-5)
            met.add(ids)
    assert len(met) > 10


def test_the_mean_weight_is_z() -> None:
    """E_{a'}[P/a'] = Z: nothing of g is lost."""
    world = world_of()
    z = sum(p for ids, p in world.law().items() if ids in world.gold(RULE))
    weights = [0.0 if each.log_weight is None else math.exp(each.log_weight) for each in weighed(world, 6_000)]
    assert np.mean(weights) == pytest.approx(z, rel=0.05)


SAMPLERS: dict[str, tuple[Sampler, Any, dict[str, Any]]] = {
    "qrs, exact": (qrs(1.0), qrs_law, {"beta": 1.0}),
    "qrs, less": (qrs(0.3), qrs_law, {"beta": 0.3}),
    "imh": (imh(3), imh_law, {"steps": 3}),
}


def expected(world: World, law: Any, settings: dict[str, Any]) -> Texts:
    proposal, left = masked_law(world)
    inside = {ids: p for ids, p in proposal.items() if ids in world.gold(RULE)}
    return by_text(law, inside, {ids: math.exp(left[ids]) for ids in inside}, **settings)


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_take_it_towards_g(name: str) -> None:
    world = world_of()
    sampler, law, settings = SAMPLERS[name]
    outcome = drawn(world, sampler, DRAWS)
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], expected(world, law, settings)) > FITS
    if name == "qrs, exact":  # no weight is above 1
        assert goodness_of_fit([draw.token_ids for draw in outcome.draws], world.gold(RULE)) > FITS


def test_negative_control_z_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    masked = drawing._masked

    def forgets(scores: torch.Tensor, candidates: Any, attempts: Sequence[Decoded]) -> list[float]:
        before = [attempt.log_left for attempt in attempts]
        masked(scores, candidates, attempts)
        for attempt, value in zip(attempts, before, strict=True):
            attempt.log_left = value
        return [0.0] * len(attempts)

    monkeypatch.setattr(drawing, "_masked", forgets)
    world = world_of()
    outcome = drawn(world, qrs(1.0), DRAWS)
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], world.gold(RULE)) < FAILS


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_seeds_hold(batch_size: int) -> None:
    world = llama_world(letters="abc", max_new_tokens=5)
    texts = [drawn(world, qrs(0.5), 20, batch_size=size).texts for size in (batch_size, 32)]
    assert texts[0] == texts[1]


def test_another_prompt_masked_is_weighed_with_the_model() -> None:
    world = llama_world(letters="abc", max_new_tokens=4, temperature=0.8)
    told = dataclasses.replace(world, prompt="bc" + world.prompt)
    a, (law, _) = world.law(), masked_law(told)
    masked = Masked(Prompt("bc{prompt}"), unseen=0.0)
    found = [each for each in weighed(world, 1_500, proposal=masked) if each.satisfied]
    assert len(found) > 500
    for attempt in found:
        ids = attempt.draw.token_ids
        assert attempt.log_weight == pytest.approx(math.log(a[ids] / law[ids]), abs=1e-4)


def test_an_adapter_masked_is_weighed_with_the_model() -> None:
    world = llama_world(letters="abc", max_new_tokens=4, temperature=0.8)
    other = llama_world(1, letters="abc", max_new_tokens=4, temperature=0.8)
    a, (law, _) = world.law(), masked_law(other)
    found = [each for each in weighed(world, 1_500, adapter=other.model) if each.satisfied]
    assert len(found) > 500
    for attempt in found:
        ids = attempt.draw.token_ids
        assert attempt.log_weight == pytest.approx(math.log(a[ids] / law[ids]), abs=1e-4)


def test_generate_takes_it_too() -> None:
    world = world_of()
    guarded = GuardedGenerator(world.pipeline(), ~Regex("b"), proposal=Masked(unseen=0.0), seed=1)
    ids = world.tokenizer(world.prompt, return_tensors="pt")["input_ids"]
    rows = guarded.generate(ids, num_return_sequences=50, **world.settings)
    assert rows.shape[0] == 50
    assert world.tokenizer.convert_tokens_to_ids("b") not in rows[:, ids.shape[1] :].flatten().tolist()


def test_what_cannot_be_judged_ahead_ends_its_attempt() -> None:
    """A classifier, or a function that knows nothing of prefixes: as without a mask."""

    @constraint
    def odd(text: str) -> bool:
        return len(text) % 2 == 1

    world = world_of()
    guarded = GuardedGenerator(
        world.pipeline(), odd & ~Regex("b"), proposal=Masked(unseen=0.0), sampler=qrs(1.0), seed=2
    )
    (outcome,) = guarded.run(
        world.prompt, num_return_sequences=DRAWS, budget=Budget(max_attempts=None), **world.settings
    )
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], world.gold(odd & ~Regex("b"))) > FITS


def wrapped(**options: Any) -> GuardedGenerator:
    return GuardedGenerator(world_of().pipeline(), RULE, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(Masked, unseen=1.0), "give a share"),
        (partial(Masked, unseen=True), "give a share"),
        (lambda: Masked(Masked()), "masked already"),
        (lambda: wrapped(proposal=Masked("no such model")), "no such model"),
    ],
)
def test_refusals(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        make()


def test_a_tokenizer_that_rewrites_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from guardwrap.pipelines import prefix

    monkeypatch.setattr(prefix.StablePrefix, "_grows_at_the_end", lambda *_: False)
    with pytest.raises(UsageError, match=r"Masked\(\) needs to judge unfinished texts, and there is no early abort"):
        drawn(world_of(), "rejection", 1)
