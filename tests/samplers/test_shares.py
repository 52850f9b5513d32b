"""Shares of rules: the law of the texts on enumerated worlds, counts of exact shares, and what cannot be reached."""

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from guardwrap import Budget, GuardedGenerator, Keyword, Masked, Regex, Repair, Twisted
from guardwrap.constraints import Constraint, Share, parse
from guardwrap.errors import CheckFailed, ConstraintError, GenerationFailed, UsageError
from guardwrap.outcomes import Closeness, Distribution, Draw, Estimate
from guardwrap.samplers import Attempt, Sampler, imh, qrs, rejection
from guardwrap.samplers.shares import needed, with_shares
from guardwrap.testing import World, goodness_of_fit, table_world

shares_module = sys.modules["guardwrap.samplers.shares"]

FITS, FAILS = 1e-3, 1e-6
TEXTS = 8
G = np.random.default_rng(5).dirichlet(np.ones(TEXTS))
FEATURES = np.random.default_rng(1).random((TEXTS, 5)) < 0.5
"""A world of eight texts, with five rules of which some hold in each."""

RULES = [Share(Keyword(word), 0.5) for word in ("one", "two", "three", "four", "five")]
Text = tuple[int, ...]


def attempts(seed: int, count: int = 1, proposal: np.ndarray = G) -> Iterator[Attempt]:
    """Yield attempts of a proposal, some of which satisfy the constraint, with ``count`` features."""
    chance = np.random.default_rng(seed)
    while True:
        texts = chance.choice(TEXTS, 10_000, p=proposal).tolist()
        for text, (fails, uniform) in zip(texts, chance.random((10_000, 2)).tolist(), strict=True):
            satisfied = fails < 0.8
            weight = math.log(G[text] / proposal[text]) if satisfied else -math.inf
            features = tuple(FEATURES[text, :count].tolist()) if satisfied else ()
            yield Attempt(Draw("", (text,), ""), satisfied, weight, uniform, features=features)


def texts_of(sampler: Sampler, source: Iterator[Attempt], texts: int) -> tuple[list[int], Any]:
    state = sampler.init()
    returned: list[int] = []
    while len(returned) < texts:
        state, draws = sampler.returned(state, next(source))
        returned += [draw.token_ids[0] for draw in draws]
        assert sampler.needs is None or sampler.needs(state, 1) < math.inf, sampler.report(state)
    return returned[:texts], state


def law_of(state: Any, count: int) -> dict[int, float]:
    """Return p of a fixed λ."""
    factors = [math.exp(state.tilt(tuple(row[:count]))) for row in FEATURES.tolist()]
    p = G * factors
    return dict(enumerate((p / p.sum()).tolist()))


OWN = G @ FEATURES
POSSIBLE = G * np.exp(FEATURES @ np.array([0.8, -0.6, 0.4, 0.5, -0.7]))
POSSIBLE = (POSSIBLE / POSSIBLE.sum()) @ FEATURES

SETS: dict[str, list[Share]] = {
    "one": [replace(RULES[0], share=0.8)],
    "two": [replace(RULES[0], share=0.3), replace(RULES[1], share=0.6)],
    "five": [replace(rule, share=share) for rule, share in zip(RULES, POSSIBLE.tolist(), strict=True)],
    "limits": [
        replace(RULES[0], share=None, at_most=float(OWN[0] / 2)),
        replace(RULES[1], share=None, at_least=float((OWN[1] + 1) / 2)),
        replace(RULES[2], share=None, at_least=float(OWN[2] / 3), at_most=0.99),
    ],
}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("base", [rejection, qrs(beta=1e-6), imh(steps=30)], ids=lambda base: base.name)
def test_texts_follow_the_law_of_lambda(name: str, base: Sampler) -> None:
    shares = SETS[name]
    proposal = G if base is rejection else np.full(TEXTS, 1 / TEXTS)
    if base.name == "qrs":  # exact for a β above all weights
        base = qrs(beta=float((G / proposal).max()))
    many = 8_000 if base.name != "imh" else 1_500
    texts, state = texts_of(with_shares(base, shares, 100), attempts(3, len(shares), proposal), many)
    law = law_of(state, len(shares))
    assert goodness_of_fit(texts, law) > FITS
    assert goodness_of_fit(texts, dict(enumerate(G.tolist()))) < FAILS


@pytest.mark.parametrize("name", SETS)
def test_a_long_pilot_reaches_the_shares(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares_module, "PILOT", 5_000)
    monkeypatch.setattr(shares_module, "LONGEST", 5_000)
    shares = SETS[name]
    _, state = texts_of(with_shares(rejection, shares, 100), attempts(4, len(shares)), 1)
    law = np.array(list(law_of(state, len(shares)).values()))
    for number, share in enumerate(shares):
        reached, own = law @ FEATURES[:, number], G @ FEATURES[:, number]
        assert share.low - 0.03 < reached < share.high + 0.03
        if share.share is None and share.low < own < share.high:
            assert state.tilt.lambdas[number] == 0 or abs(reached - own) > 0.01


def test_it_is_the_nearest_law_with_these_shares() -> None:
    """Any other law with the same shares is farther from g in KL(p‖g)."""
    shares = SETS["two"]
    lambdas = np.array(shares_module.fitted(FEATURES[:, :2].astype(float), np.log(G), shares, 10**9))
    p = G * np.exp(FEATURES[:, :2] @ lambdas)
    p /= p.sum()
    assert p @ FEATURES[:, :2] == pytest.approx([0.3, 0.6], abs=1e-6)
    same = np.linalg.svd(np.vstack([np.ones(TEXTS), FEATURES[:, :2].T]))[2][3:]  # changes that keep sum and shares
    for direction in same:
        other = p + 1e-3 * direction
        assert (other * np.log(other / G)).sum() > (p * np.log(p / G)).sum()


def test_negative_control_texts_of_the_pilot_are_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    """λ depends on the pilot's texts, so accepting them by it gives another law than accepting later ones."""
    monkeypatch.setattr(shares_module, "PILOT", 6)
    monkeypatch.setattr(shares_module, "SEEN", 1)
    shares = [replace(RULES[0], share=0.8)]
    sampler, source = with_shares(rejection, shares, 1), attempts(6)
    counts: dict[str, Counter[int]] = {"later": Counter(), "pilot": Counter()}
    expected: dict[str, np.ndarray] = {"later": np.zeros(TEXTS), "pilot": np.zeros(TEXTS)}
    for _ in range(2_000):
        state, pilot = sampler.init(), []
        while state.tilt is None:
            attempt = next(source)
            state, draws = sampler.returned(state, attempt)
            assert not draws
            pilot += [attempt] * attempt.satisfied
        law = np.array(list(law_of(state, 1).values()))
        accepted = [each for each in pilot if each.uniform < math.exp(state.tilt(each.features) - state.tilt.most)]
        (text,), _ = texts_of(sampler._replace(init=lambda: state), source, 1)  # noqa: B023
        for name, texts in (("later", [text]), ("pilot", [each.draw.token_ids[0] for each in accepted])):
            counts[name].update(texts)
            expected[name] += len(texts) * law
    p_values = {}
    for name, seen in counts.items():
        size = seen.total()
        p_values[name] = goodness_of_fit(seen.elements(), dict(enumerate((expected[name] / size).tolist())))
    assert p_values["later"] > FITS
    assert p_values["pilot"] < FAILS


def test_negative_control_lambda_that_follows_the_texts_is_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    """If λ moves with the texts that it accepts, their shares come too near their targets."""
    misses: dict[bool, list[float]] = {}
    for moves in (False, True):
        source = attempts(8)
        misses[moves] = []
        for _ in range(300):
            lambdas = 0.0
            texts: list[bool] = []
            own = math.log(G @ FEATURES[:, 0] / (1 - G @ FEATURES[:, 0]))
            while len(texts) < 40:
                attempt = next(source)
                if not attempt.satisfied:
                    continue
                share = sum(texts) / len(texts) if texts else 0.5
                lambdas = -own + (8 * (0.5 - share) if moves else 0.0)
                if attempt.uniform < math.exp((lambdas if attempt.features[0] else 0.0) - max(lambdas, 0.0)):
                    texts.append(attempt.features[0])
            misses[moves].append(sum(texts) / 40 - 0.5)
    assert np.var(misses[False]) == pytest.approx(0.25 / 40, rel=0.25)
    assert np.var(misses[True]) < 0.5 * 0.25 / 40


@pytest.mark.parametrize("texts", [2, 7, 40])
@pytest.mark.parametrize("name", ["one", "two"])
def test_exact_shares_count(texts: int, name: str) -> None:
    shares = [replace(share, exact=True) for share in SETS[name]]
    if texts == 2:
        shares = [replace(share, share=limit) for share, limit in zip(shares, (0.5, 0.45), strict=False)]
    for seed in range(20):
        returned, _ = texts_of(with_shares(rejection, shares, texts), attempts(seed, len(shares)), texts)
        counts = FEATURES[returned, : len(shares)].sum(axis=0).tolist()
        assert counts == [round(share.low * texts) for share in shares]


def exact_draws(sampler: Sampler, source: Iterator[Attempt], requests: int, texts: int) -> Mapping[bool, list[int]]:
    """Return all texts of many requests by whether the first rule holds."""
    cells: dict[bool, list[int]] = {True: [], False: []}
    for _ in range(requests):
        for text in texts_of(sampler, source, texts)[0]:
            cells[bool(FEATURES[text, 0])].append(text)
    return cells


def within(holds: bool) -> dict[int, float]:
    inside = {text: float(G[text]) for text in range(TEXTS) if FEATURES[text, 0] == holds}
    return {text: p / sum(inside.values()) for text, p in inside.items()}


def test_exact_shares_draw_g_within_each_cell() -> None:
    sampler = with_shares(rejection, [replace(RULES[0], share=0.25, exact=True)], 4)
    cells = exact_draws(sampler, attempts(11), 2_000, 4)
    assert {holds: len(texts) for holds, texts in cells.items()} == {True: 2_000, False: 6_000}
    assert all(goodness_of_fit(texts, within(holds)) > FITS for holds, texts in cells.items())


def test_several_exact_shares_draw_g_within_each_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares_module, "PILOT", 40)
    monkeypatch.setattr(shares_module, "SEEN", 1)
    shares = [replace(RULES[0], share=0.4, exact=True), replace(RULES[1], share=0.35, exact=True)]
    sampler, source = with_shares(rejection, shares, 5), attempts(12, 2)
    cells: dict[tuple[bool, ...], list[int]] = {}
    for _ in range(1_000):
        for text in texts_of(sampler, source, 5)[0]:
            cells.setdefault(tuple(FEATURES[text, :2].tolist()), []).append(text)
    for cell, texts in cells.items():
        inside = {text: float(G[text]) for text in range(TEXTS) if tuple(FEATURES[text, :2].tolist()) == cell}
        law = {text: p / sum(inside.values()) for text, p in inside.items()}
        assert len(law) == 1 or goodness_of_fit(texts, law) > FITS


PARTS = [Share(Keyword(word), share, exact=True) for word, share in (("one", 0.2), ("two", 0.3), ("three", 0.5))]


def test_shares_that_add_up_to_one_need_no_pilot() -> None:
    def source() -> Iterator[Attempt]:
        for attempt in attempts(14):
            part = attempt.draw.token_ids[0] % 4  # of which the last one is in none of the parts
            features = tuple(part == number for number in range(3))
            yield replace(attempt, features=features if attempt.satisfied else ())

    returned: list[int] = []
    drawn = source()
    for _ in range(500):
        returned += (texts := texts_of(with_shares(rejection, PARTS, 10), drawn, 10)[0])
        assert Counter(text % 4 for text in texts) == {0: 2, 1: 3, 2: 5}
    for part in range(3):
        inside = {text: float(G[text]) for text in range(TEXTS) if text % 4 == part}
        law = {text: p / sum(inside.values()) for text, p in inside.items()}
        assert goodness_of_fit([text for text in returned if text % 4 == part], law) > FITS


def end_of(sampler: Sampler, source: Iterator[Attempt]) -> str:
    """Return why a sampler will return no further text."""
    state = sampler.init()
    assert sampler.needs is not None
    while sampler.needs(state, 1) < math.inf:
        state, _ = sampler.returned(state, next(source))
    described = sampler.report(state)[0]
    assert isinstance(described, Distribution)
    return described.detail


def test_parts_that_overlap_are_refused() -> None:
    assert "let each rule exclude the others" in end_of(with_shares(rejection, PARTS, 10), attempts(15, 3))


def test_negative_control_the_shortest_of_a_cell_are_biased() -> None:
    """Texts of a cell by another order than that of their launch, here by their number, are not draws of g in it."""
    share = replace(RULES[0], share=0.25, exact=True)
    sampler, source = with_shares(rejection, [share], 4), attempts(13)
    texts: list[int] = []
    for _ in range(1_000):
        satisfied = [attempt for attempt in (next(source) for _ in range(60)) if attempt.satisfied]
        satisfied.sort(key=lambda attempt: attempt.draw.token_ids)
        texts += texts_of(sampler, iter(satisfied), 4)[0]
    assert goodness_of_fit([text for text in texts if not FEATURES[text, 0]], within(False)) < FAILS


def test_the_interval_of_a_share_covers_what_the_law_gives_it() -> None:
    covered, requests = [], 200
    source = attempts(21)
    for target in (0.2, 0.5, 0.8):
        sampler = with_shares(rejection, [replace(RULES[0], share=target)], 60)
        for _ in range(requests // 2):
            _, state = texts_of(sampler, source, 60)
            figure = sampler.report(state)[1][f"share({RULES[0].title})"]
            assert isinstance(figure, Estimate)
            truth = sum(p for text, p in law_of(state, 1).items() if FEATURES[text, 0])
            covered.append(figure.low <= truth <= figure.high)
    assert binomtest(sum(covered), len(covered), 0.95).pvalue > FITS


def test_the_interval_of_kl_covers_it() -> None:
    covered, source = [], attempts(22, 2)
    sampler = with_shares(rejection, SETS["two"], 100)
    for _ in range(300):
        _, state = texts_of(sampler, source, 100)
        law = np.array(list(law_of(state, 2).values()))
        figure = sampler.report(state)[1]["kl_to_g"]
        assert isinstance(figure, Estimate)
        covered.append(figure.low <= (law * np.log(law / G)).sum() <= figure.high)
    assert 0.9 < np.mean(covered) < 0.985


def test_attempts_are_as_many_as_theory_says() -> None:
    """A text takes max w / E w attempts that satisfy the rules."""
    sampler, source = with_shares(rejection, [replace(RULES[0], share=0.8)], 100), attempts(23)
    state = sampler.init()
    while state.tilt is None:
        state, _ = sampler.returned(state, next(source))
    factors = np.exp([state.tilt(tuple(row[:1])) for row in FEATURES.tolist()])
    _, after = texts_of(sampler._replace(init=lambda: state), source, 10_000)
    assert after.seen.attempts / 10_000 == pytest.approx(factors.max() / (G @ factors), rel=0.05)


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        ([Share(Keyword("one"), 0.5)], "held in none of the pilot's"),
        ([Share(~Keyword("one"), 0.5)], "held in all of the pilot's"),
        ([Share(Keyword("one"), 0.7), Share(~Keyword("one"), 0.7)], "contradict each other"),
    ],
)
def test_what_cannot_be_reached_is_named(shares: list[Share], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares_module, "LONGEST", 200)
    source = attempts(31)

    def labeled() -> Iterator[Attempt]:
        for attempt in source:
            holds = len(shares) == 2 and bool(attempt.features and attempt.features[0])
            features = tuple(holds is not isinstance(share.of, type(~Keyword("x"))) for share in shares)
            if len(shares) == 1:
                features = (says.startswith("held in all"),)
            yield replace(attempt, features=features if attempt.satisfied else ())

    assert says in end_of(with_shares(rejection, shares, 10), labeled())


@pytest.mark.parametrize("texts", [1, 3])
def test_a_share_of_too_few_texts_is_refused(texts: int) -> None:
    with pytest.raises(UsageError, match="ask for more texts, or omit exact"):
        with_shares(rejection, [replace(RULES[0], share=0.1, exact=True)], texts)


@pytest.mark.parametrize(
    ("texts", "share", "count"), [(5, 0.1, 1), (5, 0.9, 4), (2, 0.4, 1), (10, 0.25, 3), (10, 0.75, 7)]
)
def test_half_a_text_is_rounded_towards_the_middle(texts: int, share: float, count: int) -> None:
    returned, _ = texts_of(
        with_shares(rejection, [replace(RULES[0], share=share, exact=True)], texts), attempts(16), texts
    )
    assert FEATURES[returned, 0].sum() == count


# --- with a model -------------------------------------------------------------------------------------------------


WORLD = table_world(0)
BOTH, START = Regex("bb"), Regex("^a")


def outcome(rules: Sequence[Constraint], texts: int, *, seed: int = 1, world: World = WORLD, **options: Any) -> Any:
    guarded = GuardedGenerator(world.model, list(rules), tokenizer=world.tokenizer, budget=Budget(200_000), seed=seed)
    settings: dict[str, Any] = {"max_new_tokens": 4, "do_sample": True, "top_k": 0, "temperature": 1.0}
    return guarded.run(world.prompt, num_return_sequences=texts, **settings, **options)[0]


def enumerated(report: Any, rule: Constraint, *features: Constraint) -> dict[tuple[int, ...], float]:
    """Return p of the λ of a report."""
    gold = WORLD.gold(rule)
    factors = {
        ids: sum(
            report.evidence[f"lambda({feature.title})"] for feature in features if feature.check([WORLD.draw(ids)])[0]
        )
        for ids in gold
    }
    total = sum(p * math.exp(factors[ids]) for ids, p in gold.items())
    return {ids: p * math.exp(factors[ids]) / total for ids, p in gold.items()}


@pytest.mark.parametrize(
    ("sampler", "proposal"),
    [("rejection", None), (qrs(beta=1.0), Masked()), (qrs(beta=20.0), Twisted(attempts=64))],
    ids=["rejection", "mask", "twist"],
)
def test_texts_of_a_model_follow_the_law(sampler: Any, proposal: Any) -> None:
    """QRS is exact here: no weight of a mask is above 1, none of a twist above 20, and no factor above 1."""
    rules = [Regex("b"), Share(BOTH, 0.6), Share(START, at_most=0.2)]
    result = outcome(rules, 600 if isinstance(proposal, Twisted) else 2_000, sampler=sampler, proposal=proposal)
    draws = [draw.token_ids for draw in result.draws]
    assert goodness_of_fit(draws, enumerated(result.report, Regex("b"), BOTH, START)) > FITS
    assert goodness_of_fit(draws, WORLD.gold(Regex("b"))) < FAILS
    assert result.report.distribution.closeness is Closeness.OTHER


def test_exact_shares_of_a_model() -> None:
    result = outcome([Regex("b"), Share(BOTH, 0.3, exact=True)], 50)
    assert sum("bb" in text for text in result.texts) == 15
    assert result.report.evidence[f"share({BOTH.title})"] == 0.3


@pytest.mark.parametrize("shares", [(0.4, 0.4, 0.4, 0.4), (0.6, 0.6, 0.6), (0.3, 0.3)])
@pytest.mark.parametrize("texts", [5, 20])
def test_several_exact_shares_have_their_counts(shares: tuple[float, ...], texts: int) -> None:
    letters = table_world(0, letters="abcd", max_new_tokens=4)
    rules = [Share(Regex(letter), share, exact=True) for letter, share in zip("abcd", shares, strict=False)]
    for seed in range(4):
        drawn = outcome(rules, texts, seed=seed, world=letters).texts
        counts = [sum(letter in text for text in drawn) for letter, _ in zip("abcd", shares, strict=False)]
        assert counts == [shares_module._count(share, texts) for share in rules]


def test_a_budget_that_ends_returns_what_there_is() -> None:
    result = outcome([Share(BOTH, 0.9, exact=True)], 50, budget=Budget(30), on_exhausted="none")
    texts = [text for text in result.texts if text is not None]
    assert 5 < len(texts) < 30
    assert sum("bb" not in text for text in texts) <= 5


def test_an_unreachable_share_ends_its_own_prompt_alone() -> None:
    """The others have their texts, and whoever asked for no error gets none."""
    guarded = GuardedGenerator(WORLD.model, Regex("b"), tokenizer=WORLD.tokenizer, seed=1, budget=Budget(20_000))
    each = [None, Share(Regex("nowhere"), 0.5), Share(BOTH, 0.5)]
    settings: dict[str, Any] = {"max_new_tokens": 4, "do_sample": True, "num_return_sequences": 4}
    outcomes = guarded.run([WORLD.prompt] * 3, constraint_each=each, on_exhausted="none", **settings)
    assert [len([text for text in outcome.texts if text]) for outcome in outcomes] == [4, 0, 4]
    report = outcomes[1].report
    assert report.ended == "impossible"
    assert "cannot be reached: the rule held in none of the pilot's 1000 texts" in report.headline()
    assert "weaken the constraint" in report.advice()
    with pytest.raises(GenerationFailed, match=r"cannot be reached") as raised:
        guarded([WORLD.prompt] * 3, constraint_each=each, **settings)
    assert [outcome.ok for outcome in raised.value.outcomes] == [True, False, True]


def test_a_budget_that_ends_within_the_pilot_says_what_it_waited_for() -> None:
    report = outcome([Share(Regex("nowhere", name="nowhere"), 0.5)], 4, budget=Budget(330), on_exhausted="none").report
    assert report.ended == "max_attempts"
    assert "20 with and 20 without each rule or 1,000 in all: of 330, 'nowhere' held in 0" in report.advice()
    report = outcome([Share(BOTH, 0.5)], 4, budget=Budget(50), on_exhausted="none").report
    assert "shares first need 100 attempts that satisfy the constraint, and had 50" in report.advice()
    rules = [Share(BOTH, 0.5, exact=True), Share(START, 0.4, exact=True)]
    report = outcome(rules, 4, budget=Budget(50), on_exhausted="none").report
    assert report.distribution.closeness is Closeness.NOTHING


def test_a_budget_that_ends_says_which_part_is_missing() -> None:
    rare = Share(Regex("nowhere", name="nowhere"), 0.5, exact=True)
    report = outcome([rare], 10, budget=Budget(60), on_exhausted="none").report
    assert report.accepted == 5
    assert "5 texts lacked, where 'nowhere' held: 0 of 60 were" in report.drawn_from


def test_texts_of_a_mask_are_not_said_to_be_near_to_g() -> None:
    report = outcome([Regex("b"), Share(BOTH, 0.6)], 40, proposal=Masked()).report
    assert "tokens were masked (g'), with shares of 0.6 for" in report.drawn_from
    assert "kl_to_g" not in report.evidence
    assert "kl_to_g" in outcome([Regex("b"), Share(BOTH, 0.6)], 40).report.evidence


def test_figures_of_few_texts_are_those_of_the_pilot() -> None:
    for seed in range(5):
        kl = outcome([Regex("b"), Share(BOTH, 0.6)], 1, seed=seed).report.evidence["kl_to_g"]
        assert 0 < kl.low < kl.high


@pytest.mark.parametrize("exact", [False, True])
def test_few_attempts_are_left_over(exact: bool) -> None:
    """Also with a sampler that does not say how many it needs."""
    shares = [Share(BOTH, 0.4, exact=exact), Share(START, 0.4, exact=exact)]
    report = outcome([Regex("b"), *shares], 40, sampler=qrs(beta=1.0), proposal=Masked(), batch_size=64).report
    assert report.usage.surplus_attempts < 0.5 * report.usage.attempts


def test_the_time_of_slow_rules_of_shares_is_counted() -> None:
    class Slow(Regex):
        cost = 2

    usage = outcome([Share(Slow("bb"), 0.5, exact=True)], 4).report.usage
    assert usage.model_checks == usage.attempts + usage.surplus_attempts
    assert usage.model_seconds > 0


def test_two_shares_of_one_rule_are_refused() -> None:
    with pytest.raises(ConstraintError, match="two shares are of the rule"):
        outcome([Share(BOTH, 0.5), Share(Regex("bb"), 0.6)], 4)


def test_the_same_seed_gives_the_same_texts_whatever_the_batch() -> None:
    rules = [Regex("b"), Share(BOTH, 0.5)]
    assert outcome(rules, 40, batch_size=1).texts == outcome(rules, 40, batch_size=64).texts


def test_a_rule_that_crashes_ends_its_request() -> None:
    def crash(text: str) -> bool:
        raise RuntimeError

    from guardwrap import constraint

    with pytest.raises(CheckFailed):
        outcome([Share(constraint(crash), 0.5)], 4)


@pytest.mark.parametrize(
    "rule",
    [~Share(BOTH, 0.5), Share(BOTH, 0.5) | Regex("a")],
)
def test_a_share_within_another_rule_is_refused(rule: Constraint) -> None:
    with pytest.raises(ConstraintError, match="put it beside the other rules"):
        outcome([rule], 4)


def test_exact_and_other_shares_do_not_mix() -> None:
    with pytest.raises(ConstraintError, match="some shares are exact"):
        outcome([Share(BOTH, 0.5), Share(START, 0.5, exact=True)], 4)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"do_sample": False}, "do_sample=True"), ({"on_exhausted": Repair()}, "repair turn")],
)
def test_what_draws_no_texts_has_no_shares(options: dict[str, Any], says: str) -> None:
    guarded = GuardedGenerator(WORLD.model, Share(BOTH, 0.5), tokenizer=WORLD.tokenizer)
    with pytest.raises(UsageError, match=says):
        guarded.run(WORLD.prompt, **{"max_new_tokens": 4, "do_sample": True, **options})


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("proposal", [G, np.full(TEXTS, 1 / TEXTS)], ids=["of the model", "of a proposal"])
def test_what_shares_take_is_told_by_attempts(name: str, proposal: np.ndarray) -> None:
    """It is the largest p/g in the law, and the scarcest cell in the set, also where attempts are weighed."""
    for exact in (False, True) if name == "one" else (False,):
        shares = [replace(share, exact=exact) for share in SETS[name]]
        source = attempts(21, len(shares), proposal)
        first, each, *_ = needed(shares, 40, [next(source) for _ in range(30_000)])
        assert first == (0 if exact else 200 if name == "five" else 100)  # one of five rules holds in less than a fifth
        if exact:
            of_cells = {True: 0.8 / OWN[0], False: 0.2 / (1 - OWN[0])}
            truth = max(of_cells.values())
        else:
            lambdas = shares_module.fitted(FEATURES[:, : len(shares)].astype(float), np.log(G), shares, 10**9)
            p = G * np.exp(FEATURES[:, : len(shares)] @ np.array(lambdas))
            truth = float((p / p.sum() / G).max())
        assert each.value == pytest.approx(truth, rel=0.1)
        assert each.low < truth < each.high


@pytest.mark.parametrize("texts", [10, 1_000])
def test_exact_shares_whose_pilot_is_returned_take_at_least_its_attempts(texts: int) -> None:
    shares = [replace(RULES[0], share=0.4, exact=True), replace(RULES[1], share=0.3, exact=True)]
    source = attempts(22, 2)
    first, each, *_ = needed(shares, texts, [next(source) for _ in range(10_000)])
    expected = first + texts * each.value
    assert expected == pytest.approx(100) if texts == 10 else first == 0  # a pilot may be longer, if a rule is rare
    passing = []
    for seed in range(20):
        _, state = texts_of(with_shares(rejection, shares, texts), attempts(seed, 2), texts)
        passing.append(sum(state.accepted.values()))
    assert 0.85 * expected < np.mean(passing) < (1.5 if texts == 10 else 1.15) * expected


@pytest.mark.parametrize("sampler", ["rejection", "auto"])
@pytest.mark.parametrize(("share", "exact"), [(0.5, False), (0.8, False), (0.8, True)])
def test_a_plan_tells_what_shares_take(sampler: str, share: float, exact: bool) -> None:
    rules = [Regex("b"), Share(BOTH, share, exact=exact)]
    guarded = GuardedGenerator(WORLD.model, rules, tokenizer=WORLD.tokenizer, seed=1, sampler=sampler)
    options: dict[str, Any] = {"num_return_sequences": 40, "max_new_tokens": 4, "do_sample": True}
    plan = guarded.plan(WORLD.prompt, pilot=400, **options)
    (forecast,) = plan.forecasts
    outcomes = [guarded.run(WORLD.prompt, seed=seed, **options)[0] for seed in range(20)]
    taken = [outcome.report.usage.attempts for outcome in outcomes]
    assert forecast.attempts.low < np.mean(taken) < forecast.attempts.high
    assert "decide what shares take" in str(plan)
    assert plan.budget is not None
    assert (forecast.before > 0) is not exact
    assert ("the shares' pilot" in str(plan)) is not exact
    if exact:
        assert all(sum("bb" in text for text in outcome.texts) == 32 for outcome in outcomes)
    if sampler == "auto":
        assert any("chose rejection from the model itself" in note for note in outcomes[0].report.notes)


@pytest.mark.parametrize(
    ("rules", "options"),
    [
        ([Share(Regex("^ba"), 0.1)], {}),
        ([Share(Regex("baba"), 0.1)], {}),
        ([Share(BOTH, 0.4, exact=True), Share(Regex("baba"), 0.1, exact=True)], {}),
        ([Regex("b"), Share(BOTH, 0.6)], {"sampler": qrs(target_tvd=0.1), "proposal": Masked()}),
    ],
    ids=["rare", "rarer", "exact", "qrs"],
)
def test_the_budget_of_a_plan_is_enough(rules: list[Constraint], options: dict[str, Any]) -> None:
    """It has the pilot, which goes on until a rare rule has held often enough, and the weights of p."""
    guarded = GuardedGenerator(WORLD.model, rules, tokenizer=WORLD.tokenizer, seed=1, **options)
    settings: dict[str, Any] = {"num_return_sequences": 10, "max_new_tokens": 4, "do_sample": True}
    plan = guarded.plan(WORLD.prompt, pilot=600, **settings)
    assert plan.budget is not None
    outcomes = [
        guarded.run(WORLD.prompt, seed=seed, budget=plan.budget, on_exhausted="none", **settings)[0]
        for seed in range(12)
    ]
    assert sum(outcome.ok for outcome in outcomes) >= 10


def test_a_plan_says_that_its_attempts_cannot_tell_what_shares_take() -> None:
    rules = [Regex("b"), Share(Regex("nowhere"), 0.5, exact=True)]
    guarded = GuardedGenerator(WORLD.model, rules, tokenizer=WORLD.tokenizer, seed=1)
    options: dict[str, Any] = {"num_return_sequences": 40, "max_new_tokens": 4, "do_sample": True}
    plan = guarded.plan(WORLD.prompt, pilot=64, **options)
    (forecast,) = plan.forecasts
    assert forecast.attempts.value == math.inf
    assert plan.budget is None
    assert "64 attempts, which cannot tell what shares take" in str(plan)
    with pytest.raises(UsageError, match="no way within the budget"):
        guarded.run(WORLD.prompt, sampler="auto", **options)


def test_attempts_tell_which_rules_hold() -> None:
    """Calls that share a cache of judgements all have features, so none of them finds one without."""
    guarded = GuardedGenerator(WORLD.model, [Regex("b"), Share(BOTH, 0.5)], tokenizer=WORLD.tokenizer, seed=1)
    (attempts,) = guarded.attempts(WORLD.prompt, 50, max_new_tokens=4, do_sample=True, weigh=False)
    assert {attempt.features for attempt in attempts} == {(), (True,), (False,)}
    assert all(attempt.features == (("bb" in attempt.draw.text),) for attempt in attempts if attempt.satisfied)


def test_a_file_has_shares() -> None:
    file = parse(
        "guardwrap: 1\nconstraint:\n  - {kind: regex, pattern: b}\n"
        "  - {kind: share, of: {kind: regex, pattern: bb}, share: 0.5, exact: true}\n"
    )
    guarded = GuardedGenerator(WORLD.model, file, tokenizer=WORLD.tokenizer, seed=1)
    (result,) = guarded.run(WORLD.prompt, num_return_sequences=6, max_new_tokens=4, do_sample=True)
    assert sum("bb" in text for text in result.texts) == 3
