"""Cached prefixes cost nothing, and texts, attempts and rates are the same as without the cache."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor

from guardwrap import Budget, GuardedGenerator, Length, Regex, Twisted, constraint
from guardwrap.calls import source
from guardwrap.engine import prefix_cache, token_sampling
from guardwrap.engine.generation_law import inverse_cdf
from guardwrap.engine.refill.row_states import Plain, Wave
from guardwrap.engine.refill.slots import Slots
from guardwrap.engine.scheduling.backend import AttemptState
from guardwrap.outcomes import Outcome
from guardwrap.testing import World, goodness_of_fit, llama_world, table_world

BANNED = ~Regex("b|^.{0,2}d")  # judged while drawn, and satisfied by about one text in ten
FITS, FAILS = 1e-3, 1e-9


def small() -> World:
    return llama_world(letters="abcd ", max_new_tokens=8, temperature=1.5)


def attempts(world: World, batch_size: int, count: int = 300, **options: Any) -> list[tuple[Any, ...]]:
    """Every attempt of two prompts that are equal and one that is not."""
    guarded = GuardedGenerator(world.pipeline(), BANNED, batch_size=batch_size, seed=5)
    found = guarded.attempts(["a", "ab", "a"], count, **{**world.settings, **options})
    return [(each.draw.token_ids, each.satisfied, each.draw.finished) for prompt in found for each in prompt]


def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the cache."""
    monkeypatch.setattr(prefix_cache.PrefixTree, "root", lambda self, launch: None)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("kind", [Slots, Wave, Plain])
def test_attempts_are_those_of_drawing_everything_anew(
    kind: Any, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "select_rows", lambda model, separate: kind)
    with_it = attempts(small(), batch_size)
    anew(monkeypatch)
    assert attempts(small(), 32) == with_it


@pytest.mark.slow
@pytest.mark.parametrize("top_k", [0, 3])
def test_so_they_are_with_many_tokens_to_choose_from(top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the likeliest tokens of a large vocabulary are cached; the others are drawn with the model."""
    letters = "".join(chr(0x4E00 + i) for i in range(700))
    world = table_world(letters="abcd " + letters, max_new_tokens=5, temperature=0.5)
    with_it = attempts(world, 16, top_k=top_k)
    anew(monkeypatch)
    assert attempts(world, 16, top_k=top_k) == with_it


def test_log_probabilities_are_the_same_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def values() -> list[float]:
        guarded = GuardedGenerator(small().pipeline(), BANNED, batch_size=7, seed=5)
        (outcome,) = guarded.run("a", num_return_sequences=40, budget=Budget(max_attempts=None), **small().settings)
        return [draw.log_proposal or 0.0 for draw in outcome.draws]

    with_it = values()
    anew(monkeypatch)
    assert with_it == pytest.approx(values(), abs=1e-5)


def run(world: World, rule: Any, count: int, **options: Any) -> Outcome:
    guarded = GuardedGenerator(world.pipeline(), rule, seed=1, batch_size=options.pop("batch_size", 32))
    budget = Budget(max_attempts=None)
    (outcome,) = guarded.run(world.prompt, num_return_sequences=count, budget=budget, **world.settings, **options)
    return outcome


def test_less_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = run(small(), BANNED, 40).report.usage
    anew(monkeypatch)
    without = run(small(), BANNED, 40).report.usage
    assert (with_it.attempts, with_it.tokens) == (without.attempts, without.tokens)
    # Every token except the last one of each attempt is computed, and nothing else.
    assert without.computed_tokens <= without.tokens + without.surplus_tokens - without.attempts
    assert with_it.computed_tokens < without.computed_tokens / 3


def broken_marks(attempt: AttemptState) -> None:
    """Negative control: mark one prefix that can continue as ended."""
    learned(attempt)
    if attempt.status == "running" and attempt.token_ids == [5]:
        place = attempt.place
        if place is not None:
            place.end = ("aborted", "by mistake")


learned: Callable[[AttemptState], None] = prefix_cache.learn


def test_negative_control_a_prefix_too_many_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    world = table_world(letters="abcd ", max_new_tokens=4)
    rule = ~Regex("b")
    law = world.gold(rule)
    assert goodness_of_fit([draw.token_ids for draw in run(world, rule, 4_000).draws], law) > FITS
    monkeypatch.setattr(token_sampling, "learn", broken_marks)
    assert goodness_of_fit([draw.token_ids for draw in run(world, rule, 4_000).draws], law) < FAILS


def test_negative_control_a_law_of_another_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: a distribution cached at the wrong prefix gives other texts."""
    with_it = attempts(small(), 7)
    laws: list[prefix_cache.TokenLaw] = []
    drawn = prefix_cache.token_laws

    def mixed_up(*given: Any) -> list[prefix_cache.TokenLaw]:
        laws.extend(drawn(*given))
        return [laws[0] for _ in given[0]]

    monkeypatch.setattr(token_sampling, "token_laws", mixed_up)
    assert attempts(small(), 7) != with_it


@pytest.mark.parametrize("size", [5, 82, 256, 300, 5_000])
def test_a_law_draws_what_the_model_would(size: int) -> None:
    chance = torch.Generator().manual_seed(size)
    scores = 3 * torch.randn(4, size, generator=chance)
    scores[:, 3] = -math.inf
    laws, met = prefix_cache.token_laws(scores, None), 0
    for _ in range(500):
        uniform = torch.rand(4, dtype=torch.float64, generator=chance)
        tokens, values = inverse_cdf(scores, uniform)
        for law, one, token, value in zip(laws, uniform.tolist(), tokens.tolist(), values.tolist(), strict=True):
            column = law.drawn(one)
            if column is not None:
                assert law.tokens[column] == token
                assert law.log_probabilities[column] == pytest.approx(value, abs=1e-12)
                met += 1
    assert met == 2_000 if size <= 256 else met > 100


@pytest.mark.slow
def test_what_was_used_longest_ago_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    trees: list[prefix_cache.PrefixTree] = []
    made = prefix_cache.PrefixTree.__init__

    def few(self: prefix_cache.PrefixTree) -> None:
        made(self, 60)
        trees.append(self)

    def places(tree: prefix_cache.PrefixTree) -> int:
        found = [root for each in tree._roots.values() for root in each.values()]
        for place in found:
            found += place.children.values()
        return len(found)

    usual = attempts(small(), 7, 2_000)
    monkeypatch.setattr(prefix_cache.PrefixTree, "__init__", few)
    sizes = []
    forget = prefix_cache.PrefixTree._forget

    def counted(self: prefix_cache.PrefixTree) -> None:
        forget(self)
        sizes.append(places(self))

    monkeypatch.setattr(prefix_cache.PrefixTree, "_forget", counted)
    assert attempts(small(), 7, 2_000) == usual
    assert len(sizes) > 10
    assert max(sizes) <= 60
    monkeypatch.setattr(prefix_cache.PrefixTree, "_forget", lambda self: sizes.append(places(self)))
    attempts(small(), 7, 2_000)
    assert sizes[-1] > 200, "negative control: without it they grow"


class Counting(LogitsProcessor):
    """A user's function that keeps a state."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += len(input_ids)
        return scores


def test_what_the_users_functions_do_may_be_another_thing_each_time() -> None:
    world = small()
    counting = Counting()
    usage = run(world, BANNED, 20, logits_processor=[counting]).report.usage
    assert counting.calls >= usage.tokens, "it is called for every token of every attempt"
    assert run(world, BANNED, 20, repetition_penalty=1.2).report.usage.computed_tokens < usage.computed_tokens / 2


def test_a_text_is_judged_once() -> None:
    judged: list[str] = []

    @constraint
    def rarely(text: str) -> bool:
        judged.append(text)
        return text.startswith("dd")

    usage = run(table_world(letters="abcd", max_new_tokens=3), rarely, 20).report.usage
    assert len(judged) < usage.attempts / 4
    assert len(judged) < len(set(judged)) + 64, "except those that ended at the same time"


@pytest.mark.slow
def test_a_budget_of_computed_tokens_ends_and_does_not_bias() -> None:
    world = table_world(letters="abcd ", max_new_tokens=4)
    rule = ~Regex("b")
    budget = Budget(max_attempts=None, max_computed_tokens=12)
    drawn, ended = [], set()
    for seed in range(250):
        guarded = GuardedGenerator(world.pipeline(), rule, seed=seed, batch_size=8, budget=budget)
        (outcome,) = guarded.run(world.prompt, num_return_sequences=400, **world.settings)
        ended.add(outcome.report.ended)
        assert outcome.report.usage.computed_tokens < 12 + 8 * world.max_new_tokens
        drawn += [draw.token_ids for draw in outcome.draws]
    assert ended == {"max_computed_tokens"}
    assert len(drawn) > 2_000
    assert goodness_of_fit(drawn, world.gold(rule)) > FITS


def test_equal_prompts_know_the_same_but_each_constraint_its_own() -> None:
    tree = prefix_cache.PrefixTree()
    world = small()
    guarded = GuardedGenerator(world.pipeline(), BANNED)
    calls = guarded.session.job({**world.settings, "num_return_sequences": 2})
    one, other = calls.requests(["a", "a"])
    from guardwrap.engine.scheduling.request_state import RequestState

    first, second = (RequestState(each, "refill").launch(0) for each in (one, other))
    assert tree.root(first) is tree.root(second)
    strict = dataclasses.replace(one, spec=dataclasses.replace(one.spec, constraint=~Regex("a")))
    assert tree.root(RequestState(strict, "refill").launch(0)) is not tree.root(first)


def test_tokens_that_truncation_leaves_out_have_no_weight() -> None:
    """Of a large vocabulary, the cached tokens of a twist may include some with probability 0."""
    world = table_world(letters="".join(map(chr, range(0x4E00, 0x4E00 + 300))), max_new_tokens=3)
    guarded = GuardedGenerator(world.pipeline(), Length(min=2), proposal=Twisted(attempts=64), seed=0)
    (attempts,) = guarded.attempts(world.prompt, 40, **world.settings, top_p=0.05)
    assert all(attempt.log_weight is None or math.isfinite(attempt.log_weight) for attempt in attempts)
