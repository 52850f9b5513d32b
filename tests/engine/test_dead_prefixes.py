"""Skipping attempts known to be rejected leaves the distributions of texts and of attempt numbers unchanged."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from guardwrap import Budget, GuardedGenerator, Regex, constraint, imh
from guardwrap.engine import dead_prefixes
from guardwrap.engine.dead_prefixes import Branch, without_dead_prefixes
from guardwrap.engine.scheduling import all_rejected, request_state
from guardwrap.engine.scheduling.randomness import skipped
from guardwrap.errors import CheckFailed
from guardwrap.outcomes import Outcome
from guardwrap.support.transformers_internals import CACHE_NAMES
from guardwrap.testing import World, goodness_of_fit, llama_world, table_world

RARE = Regex("abca|dd", match="fullmatch")
FITS, FAILS = 1e-3, 1e-9


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make rounds short."""
    monkeypatch.setattr(all_rejected, "FIRST", 20)
    monkeypatch.setattr(all_rejected, "LATER", 8)


def world() -> World:
    return llama_world(letters="abcd", max_new_tokens=4, temperature=1.0)


def served(world: World, rule: Any, prompts: int = 20, texts: int = 100, **options: Any) -> list[Outcome]:
    """Serve equal prompts, each with its own seed."""
    guarded = GuardedGenerator(world.pipeline(), rule, seed=3, batch_size=options.pop("batch_size", 64))
    budget = options.pop("budget", Budget(max_attempts=None))
    settings = {**world.settings, **options}
    return guarded.run([world.prompt] * prompts, num_return_sequences=texts, budget=budget, **settings)


def rate_of(world: World, rule: Any) -> float:
    return sum(p for ids, p in world.law().items() if rule.check([world.draw(ids)])[0])


def fits(outcomes: list[Outcome], world: World, rule: Any) -> tuple[float, float]:
    """How well the texts fit g, and the attempts that they took the law of waiting for so many: p-values."""
    texts = [draw.token_ids for each in outcomes for draw in each.draws]
    rate, count = rate_of(world, rule), len(texts)
    attempts = sum(each.report.usage.attempts for each in outcomes)
    score = (attempts - count / rate) / (math.sqrt(count * (1 - rate)) / rate)
    return goodness_of_fit(texts, world.gold(rule)), math.erfc(abs(score) / math.sqrt(2))


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("sampler", ["rejection", imh(steps=0)])
def test_texts_are_of_g_and_attempts_as_many_as_without_it(sampler: Any) -> None:
    outcomes = served(world(), RARE, sampler=sampler)
    usage = [each.report.usage for each in outcomes]
    assert sum(each.skipped_attempts for each in usage) > sum(each.attempts for each in usage) / 2
    assert min(fits(outcomes, world(), RARE)) > FITS


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
def test_one_text_each() -> None:
    """Most of these end in a round that is drawn from the full distribution, or in the first one after it."""
    assert min(fits(served(world(), RARE, 400, texts=1), world(), RARE)) > FITS


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("batch_size", [1, 7])
def test_the_batch_size_does_not_matter(batch_size: int) -> None:
    def texts(size: int) -> list[Any]:
        found = served(world(), RARE, 20, texts=3, batch_size=size)
        return [(each.texts, each.report.usage.attempts, each.report.usage.skipped_attempts) for each in found]

    assert texts(batch_size) == texts(64)


def too_many(before: Branch | None, ended: Any, law_after: Callable[[tuple[int, ...]], Any], mask: Any) -> Branch:
    """Leave out a text that does satisfy the constraint: "abca"."""
    root = without_dead_prefixes(before, ended, law_after, mask)
    root.leave_out({world().tokenizer.convert_tokens_to_ids("a")})
    root.weigh()
    return root


@pytest.mark.usefixtures("soon")
def test_negative_control_a_dead_mark_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guardwrap.engine.refill.decode.without_dead_prefixes", too_many)
    texts, _ = fits(served(world(), RARE), world(), RARE)
    assert texts < FAILS


@pytest.mark.usefixtures("soon")
def test_negative_control_what_is_left_below_is_left_out_of_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """As masks do, let live tokens keep their full probability, whatever share of the texts after them is live."""
    weigh = Branch.weigh

    def as_masks_do(self: Branch) -> None:
        weigh(self)
        for child in self.children.values():
            child.log_live = -math.inf if child.log_live == -math.inf else 0.0
        below, self.children = self.children, {}
        weigh(self)
        self.children = below

    monkeypatch.setattr(Branch, "weigh", as_masks_do)
    monkeypatch.setattr(all_rejected, "WORTH", 0.99)
    assert min(fits(served(world(), RARE), world(), RARE)) < FAILS


@pytest.mark.usefixtures("soon")
def test_negative_control_the_number_is_of_another_law(monkeypatch: pytest.MonkeyPatch) -> None:
    def halved(seed: int, prompt: int, attempt: int, log_live: float) -> int:
        return skipped(seed, prompt, attempt, min(0.0, math.log(2) + log_live))

    monkeypatch.setattr(request_state, "skipped", halved)
    texts, attempts = fits(served(world(), RARE), world(), RARE)
    assert texts > FITS
    assert attempts < FAILS


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
def test_negative_control_a_snapshot_of_attempts_that_are_drawn_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Excluding tokens before a round is over depends on which attempts ended first, and so on the batch size."""
    monkeypatch.setattr(all_rejected.Rounds, "over", lambda self, decided: decided > self._begin + 4)

    def attempts(size: int) -> list[int]:
        return [each.report.usage.attempts for each in served(world(), RARE, 40, texts=3, batch_size=size)]

    assert attempts(7) != attempts(64)


def seldom(power: float) -> World:
    """A world in which a text of one letter only has so little probability."""
    made = table_world(letters="abcdef", max_new_tokens=6, temperature=1.0)
    with torch.no_grad():
        for table in made.model.parameters():
            if table.shape[-1] == len(made.tokenizer):
                table[..., made.tokenizer.convert_tokens_to_ids("f")] -= power
    return made


@pytest.mark.slow
def test_so_little_that_no_attempt_would_meet_it() -> None:
    """A text with probability 10⁻⁹ is found at the cost of a few thousand attempts."""
    made, rule = seldom(4.0), Regex("f{5}", match="fullmatch")
    rate = rate_of(made, rule)
    assert rate < 1e-9
    outcomes = served(made, rule, 12, texts=1)
    assert all(each.texts == ("fffff",) for each in outcomes)
    attempts = [each.report.usage.attempts for each in outcomes]
    assert 0.5 < np.mean(attempts) * rate < 2
    assert max(each.report.usage.attempts - each.report.usage.skipped_attempts for each in outcomes) < 11_000
    report = outcomes[0].report
    assert report.drawn_from == "exactly your model's own distribution, given the constraint (g)"
    assert report.rejections[request_state.SKIPPED] == report.usage.skipped_attempts
    assert "known to be rejected and not drawn" in str(report)


def test_what_can_never_be_is_said() -> None:
    outcomes = served(seldom(0.0), Regex("f{3}", match="fullmatch"), 2, top_k=2)
    for each in outcomes:
        assert each.report.ended == "impossible"
        assert not each.texts
        assert each.report.usage.attempts < 11_000


def test_budgets_count_those_that_are_skipped() -> None:
    (outcome,) = served(seldom(4.0), Regex("f{5}", match="fullmatch"), 1, 1, budget=Budget(max_attempts=1_000_000))
    assert outcome.report.ended == "max_attempts"
    assert outcome.report.usage.attempts == 1_000_000
    assert sum(outcome.report.rejections.values()) == 1_000_000
    assert outcome.report.usage.tokens < 100_000


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("most", [25, 100])
def test_budgets_in_attempts_are_exact(most: int) -> None:
    outcomes = served(world(), RARE, 400, texts=1, budget=Budget(max_attempts=most))
    assert {each.report.usage.attempts for each in outcomes if not each.ok} == {most}
    assert all(each.report.usage.attempts <= most for each in outcomes)
    expected = 1 - (1 - rate_of(world(), RARE)) ** most
    share = np.mean([each.ok for each in outcomes])
    assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / len(outcomes))


def test_no_other_request_has_other_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that end within a thousand attempts get the same texts as without skipping."""
    rule = ~Regex("b")
    with_it = served(world(), rule, 20, texts=4)
    monkeypatch.setattr(request_state.RequestState, "round_is_over", False)
    assert [each.texts for each in served(world(), rule, 20, texts=4)] == [each.texts for each in with_it]


@pytest.mark.usefixtures("soon")
def test_a_constraint_that_raises_ends_its_own_request() -> None:
    """Unlikely texts, which attempts would hardly draw, are judged too."""

    @constraint
    def breaks(text: str) -> bool:
        if text == "c":
            raise ValueError("no c, please")
        return False

    with pytest.raises(CheckFailed, match="breaks"):
        served(seldom(0.0), breaks & ~Regex("[abde]"), 1, 1, budget=Budget(max_attempts=200))


@pytest.mark.usefixtures("soon")
def test_what_is_added_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_prefixes, "ENTRIES", 12)
    sizes: list[int] = []

    def counted(*given: Any) -> Branch:
        root = without_dead_prefixes(*given)
        sizes.append(sum(len(branch.tokens) for branch, _ in root.below()))
        return root

    monkeypatch.setattr("guardwrap.engine.refill.decode.without_dead_prefixes", counted)
    assert min(fits(served(world(), RARE, 5), world(), RARE)) > FITS
    assert max(sizes) <= 12 + len(world().tokenizer)


@pytest.mark.usefixtures("soon")
def test_what_is_computed_to_leave_texts_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    # So that longer prefixes are added later, after shorter ones were dropped.
    monkeypatch.setattr(dead_prefixes, "NEW", 1)
    made, computed = world(), 0

    def count(model: Any, given: Any, options: dict[str, Any]) -> None:
        nonlocal computed
        past = next((options[name] for name in CACHE_NAMES if name in options), None)
        if past is not None and past.get_seq_length():  # otherwise it is a prompt
            computed += options["input_ids"].numel()

    guarded = GuardedGenerator(made.pipeline(), RARE, seed=3, budget=Budget(max_attempts=None))
    guarded.run(made.prompt, **made.settings)  # tests the classes of rows
    made.model.register_forward_pre_hook(count, with_kwargs=True)
    (outcome,) = guarded.run(made.prompt, num_return_sequences=60, **made.settings)
    assert outcome.report.usage.skipped_attempts
    assert outcome.report.usage.computed_tokens == computed


@pytest.mark.usefixtures("soon")
def test_a_text_rarer_than_any_float_is_served() -> None:
    """Nine letters of probability 1e-43 each, 1e-391 together. Attempts are counted, and the figures are finite."""
    rare = table_world(letters="ab", max_new_tokens=9)
    with torch.no_grad():
        rare.model.table.fill_(-1e4)
        rare.model.table[..., 1], rare.model.table[..., 2] = 0.0, -100.0
    guarded = GuardedGenerator(rare.pipeline(), Regex("b{9}", match="fullmatch"), seed=1, batch_size=8)
    (outcome,) = guarded.run("a", num_return_sequences=20, budget=Budget(max_attempts=None), **rare.settings)
    usage = outcome.report.usage
    assert outcome.texts == ("b" * 9,) * 20
    mean = usage.attempts // 20
    assert 390 < len(str(mean)) < 393
    assert outcome.report.acceptance is not None
    assert 0 <= outcome.report.acceptance.low <= outcome.report.acceptance.high < 1e-290
    assert str(outcome.report)
    assert outcome.report.advice()
    assert outcome.report.to_dict()["usage"]["attempts"] == usage.attempts


@pytest.mark.parametrize("log_live", [math.log(0.3), -30.0, -43.0, -800.0])
def test_how_many_are_skipped_is_geometric(log_live: float) -> None:
    """n log(1 - L) is exponential with mean 1, up to rounding n down."""
    rate = -math.log1p(-math.exp(log_live)) if log_live > -30 else None
    values = []
    for attempt in range(2_000):
        n = skipped(5, 0, attempt, log_live)
        values.append((n + 0.5) * rate if rate else math.exp(math.log(n) + log_live))
    assert abs(np.mean(values) - 1.0) < 5 / math.sqrt(2_000)
    assert abs(np.std(values) - 1.0) < 0.15
