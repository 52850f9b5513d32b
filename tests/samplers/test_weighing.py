"""QRS and IMH: the distribution of returned texts compared with the exact one, on a world of 1 093 texts."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
import pytest

from guardwrap.errors import ModelError, UsageError
from guardwrap.outcomes import Draw
from guardwrap.samplers import Attempt, Sampler, imh, qrs, rejection, sampler_named
from guardwrap.testing import goodness_of_fit, table_world
from tests.fixtures_laws import Text, by_text, imh_law, normal, qrs_law

DRAWS = 10_000
FEW = 5_000  # for chains of many moves and for negative controls, which only have to detect large differences
FITS, FAILS = 1e-3, 1e-9


@dataclass(frozen=True)
class Pair:
    """A model and a proposal over the same texts, enumerated."""

    a: dict[Text, float]
    proposal: dict[Text, float]
    end: int

    def satisfied(self, text: Text) -> bool:
        return text.count(1) >= 1 and text[0] != 2

    def weight(self, text: Text) -> float:
        """P / a'."""
        return self.a.get(text, 0.0) / self.proposal[text] if self.satisfied(text) else 0.0

    @property
    def inside(self) -> list[Text]:
        return [text for text in self.proposal if self.satisfied(text)]

    def gold(self) -> dict[Text, float]:
        return by_text(normal, {text: p for text, p in self.a.items() if self.satisfied(text)})

    def law(self, sampler: Callable[..., np.ndarray], **settings: Any) -> dict[Text, float]:
        """Return the exact distribution of a sampler's texts: ``qrs_law`` or ``imh_law``."""
        inside = {text: self.proposal[text] for text in self.inside}
        return by_text(sampler, inside, {text: self.weight(text) for text in inside}, **settings)

    def attempts(self, seed: int) -> Iterator[Attempt]:
        """Yield attempts from the proposal forever."""
        texts, p = list(self.proposal), np.array(list(self.proposal.values()))
        logs = [math.log(self.weight(text)) if self.weight(text) else -math.inf for text in texts]
        known = [(Draw("", text, ""), self.satisfied(text), log) for text, log in zip(texts, logs, strict=True)]
        chance = np.random.default_rng(seed)
        while True:
            size = 50_000
            for number, uniform in zip(
                chance.choice(len(texts), size, p=p).tolist(), chance.random(size).tolist(), strict=True
            ):
                draw, satisfied, log = known[number]
                yield Attempt(draw, satisfied, log, uniform)


def pair(top_k: int = 0) -> Pair:
    worlds = [table_world(seed, letters="abc", max_new_tokens=6, temperature=0.8, top_k=top_k) for seed in (0, 2)]
    a, other = (world.law() for world in worlds)
    # Nearer to a than in the other world, so that 20 000 draws contain the largest weights often enough.
    near = {text: a.get(text, p / 10) ** 0.7 * p**0.3 for text, p in other.items()}
    return Pair(a, by_text(normal, near), worlds[0].tokenizer.eos_token_id)


WORLDS = {"whole": pair(), "top-k": pair(top_k=3)}


def returned(sampler: Sampler, attempts: Iterator[Attempt], draws: int = DRAWS) -> list[Text]:
    state, texts = sampler.init(), []
    for attempt in attempts:
        state, returned = sampler.returned(state, attempt)
        texts += [draw.token_ids for draw in returned]
        if len(texts) >= draws:
            break
    return texts[:draws]


def test_the_worlds_are_what_they_should_be() -> None:
    whole, cut = WORLDS["whole"], WORLDS["top-k"]
    assert len(whole.a) >= 1000
    assert {len(text) for text in whole.a} == {1, 2, 3, 4, 5, 6}
    assert any(cut.weight(text) == 0 for text in cut.inside), (
        "the proposal's top-k holds texts that the model's does not"
    )
    weights = [whole.weight(text) for text in whole.inside]
    assert max(weights) / min(weights) > 50
    assert goodness_of_fit(returned(rejection, whole.attempts(0)), whole.gold()) < FAILS, "g' is g"


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("share", [1e-300, 0.3, 1.0, 3.0, math.inf])
def test_qrs_draws_from_the_law_of_its_beta(name: str, share: float) -> None:
    """β → 0 is g', β of at least the largest weight is g."""
    world = WORLDS[name]
    z = sum(p for text, p in world.a.items() if world.satisfied(text))
    most = max(world.weight(text) for text in world.inside)
    beta = most if share == math.inf else share * z
    law = world.law(qrs_law, beta=beta)
    if share == math.inf and name == "whole":  # the other proposal does not cover g
        assert max(abs(law[text] - p) for text, p in world.gold().items() if text in law) < 1e-12
    texts = returned(qrs(beta), world.attempts(1))
    assert goodness_of_fit(texts, law) > FITS


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize(
    ("steps", "move"), [(0, "accepted"), (1, "accepted"), (5, "accepted"), (5, "raw"), (50, "raw")]
)
def test_imh_draws_from_the_law_of_its_steps(name: str, steps: int, move: Literal["accepted", "raw"]) -> None:
    world = WORLDS[name]
    texts = returned(imh(steps, move=move), world.attempts(2), FEW if steps == 50 else DRAWS)
    assert goodness_of_fit(texts, world.law(imh_law, steps=steps, move=move)) > FITS
    if steps:  # the distribution of a chain that has not moved would be wrong
        assert goodness_of_fit(texts, world.law(imh_law, steps=0)) < FAILS


def test_imh_of_many_steps_draws_from_g() -> None:
    world = WORLDS["whole"]
    only = replace(world, proposal=by_text(normal, {text: world.proposal[text] for text in world.inside}))
    texts = returned(imh(50), only.attempts(3), FEW)
    assert goodness_of_fit(texts, world.law(imh_law, steps=50)) > FITS
    assert goodness_of_fit(texts, world.gold()) > FITS


@pytest.mark.parametrize("chains", [1, 3])
def test_texts_of_a_thinned_chain(chains: int) -> None:
    """The j-th text of a chain has the distribution after steps + j × thinning moves; chains take turns."""
    world = WORLDS["whole"]
    sampler = imh(1, thinning=2, chains=chains)
    attempts = world.attempts(4)
    by_turn: list[list[Text]] = [[], []]
    while len(by_turn[0]) < DRAWS:
        state, texts = sampler.init(), list[Text]()
        while len(texts) < 2 * chains:
            state, draws = sampler.returned(state, next(attempts))
            texts += [draw.token_ids for draw in draws]
        by_turn[0] += texts[:chains]
        by_turn[1] += texts[chains:]
    for turn, texts in enumerate(by_turn):
        assert goodness_of_fit(texts, world.law(imh_law, steps=1 + 2 * turn)) > FITS


# Negative controls: with broken weights the same test fails.


def without_end(world: Pair) -> Callable[[Attempt], Attempt]:
    """As if the end-of-sequence token were the padding, and its log-probability were left out of a."""

    @cache
    def dropped(text: Text) -> float:
        """Return log a of the end-of-sequence token after these tokens."""
        return math.log(world.a[text] / sum(p for other, p in world.a.items() if other[: len(text) - 1] == text[:-1]))

    def broken(attempt: Attempt) -> Attempt:
        text = attempt.draw.token_ids
        if text[-1] != world.end or attempt.log_weight in (None, -math.inf):
            return attempt
        return replace(attempt, log_weight=attempt.log_weight - dropped(text))

    return broken


def inverted(world: Pair) -> Callable[[Attempt], Attempt]:
    return lambda attempt: replace(attempt, log_weight=-attempt.log_weight if attempt.satisfied else -math.inf)  # type: ignore[operator]


@pytest.mark.parametrize("broken", [without_end, inverted])
@pytest.mark.parametrize("kind", ["qrs", "imh"])
def test_negative_control_broken_weights(broken: Any, kind: str) -> None:
    world = WORLDS["whole"]
    z = sum(p for text, p in world.a.items() if world.satisfied(text))
    sampler, law = (
        (qrs(3 * z), world.law(qrs_law, beta=3 * z)) if kind == "qrs" else (imh(5), world.law(imh_law, steps=5))
    )
    texts = returned(sampler, map(broken(world), world.attempts(1)), FEW)
    assert goodness_of_fit(texts, law) < FAILS


# Targets, reports and errors.


def run(sampler: Sampler, attempts: Iterator[Attempt], count: int) -> Any:
    state = sampler.init()
    for attempt in itertools.islice(attempts, count):
        state, _ = sampler.step(state, attempt)
    return state


def test_beta_is_set_by_a_pilot() -> None:
    world = WORLDS["whole"]
    gold = world.gold()
    for target in (0.05, 0.2):
        sampler = qrs(target_tvd=target, pilot=2000)
        law, figures = sampler.report(run(sampler, world.attempts(5), 20_000))
        true = world.law(qrs_law, beta=figures["beta"])
        tvd = sum(abs(true[text] - gold[text]) for text in gold) / 2
        assert tvd == pytest.approx(target, abs=0.02)
        assert figures["tvd"].low < tvd < figures["tvd"].high  # type: ignore[union-attr]
        assert str(law).startswith("approximately your model's own distribution, given the constraint (g): QRS, β = ")
    sampler = qrs(target_acceptance=0.1, pilot=2000)
    _, figures = sampler.report(run(sampler, world.attempts(5), 20_000))
    assert figures["qrs_acceptance"].value == pytest.approx(0.1, abs=0.01)  # type: ignore[union-attr]


def test_the_pilots_texts_follow_as_many_others() -> None:
    sampler = qrs(target_tvd=0.9, pilot=50)
    state, satisfied, texts = sampler.init(), 0, 0
    pilot, seen = set[int](), list[Draw]()
    for attempt in itertools.islice(WORLDS["whole"].attempts(6), 1000):
        attempt = replace(attempt, draw=replace(attempt.draw))  # a draw of its own
        state, draws = sampler.returned(state, attempt)
        satisfied += attempt.satisfied
        pilot |= {id(attempt.draw)} if satisfied <= 50 else set()
        seen.append(attempt.draw)
        assert not draws or satisfied > 50
        own = [draw for draw in draws if id(draw) in pilot]
        if own:
            assert texts + len(draws) - len(own) == 50
            assert 30 < len(own) == sampler.report(state)[1]["pilot_returned"]
        texts += len(draws)
    assert "pilot_returned" in sampler.report(state)[1]
    assert str(sampler.report(run(sampler, WORLDS["whole"].attempts(6), 20))[0]).startswith(
        "nothing: QRS first needs 50"
    )


def weighed(log_weights: list[float]) -> Iterator[Attempt]:
    return (Attempt(Draw("", (number,), ""), True, log, 0.5) for number, log in enumerate(log_weights))


@pytest.mark.parametrize(
    ("log_weights", "length"),
    [
        ([0.0] * 200, 6),  # all equal: no tail
        (np.log1p(np.random.default_rng(1).random(200)).tolist(), 6),  # bounded, as of a mask
        ((-1.2 * np.log1p(-np.random.default_rng(1).random(200))).tolist(), 100),  # a variance without end
        ([9.0] + [0.0] * 199, 100),  # one weight has all the rest's worth
    ],
)
def test_a_pilot_ends_early_if_its_weights_are_alike(log_weights: list[float], length: int) -> None:
    sampler = qrs(target_tvd=0.05)
    state = run(sampler, weighed(log_weights), 200)
    assert sampler.report(state)[1]["pilot_attempts"] == length
    fixed = qrs(target_tvd=0.05, pilot=30)
    assert fixed.report(run(fixed, weighed(log_weights), 200))[1]["pilot_attempts"] == 30


def test_a_pilot_without_weights_goes_on() -> None:
    """Texts that pass and that the model cannot write: they tell nothing about β."""
    sampler = qrs()
    law, _ = sampler.report(run(sampler, weighed([-math.inf] * 99), 99))
    assert str(law).startswith(
        "nothing: QRS first needs up to 100 attempts that satisfy the constraint, and had 99 in 99"
    )


def test_figures_of_imh() -> None:
    world = WORLDS["whole"]
    law, figures = imh(40).report(run(imh(40), world.attempts(7), 20_000))
    assert str(law).startswith(
        "approximately your model's own distribution, given the constraint (g): IMH, 40 moves from"
    )
    assert str(law).endswith("an accepted draw, distance (TVD) unknown")
    assert figures["steps"] == 40
    assert 0 < figures["move_acceptance"].value < 1  # type: ignore[union-attr]
    assert figures["r_hat"].value == pytest.approx(1, abs=0.2)  # type: ignore[union-attr]
    assert "autocorrelation" in figures
    assert str(imh(8).report(imh(8).init())[0]).startswith("nothing: no attempt")


def test_figures_where_the_model_does_not_give_every_text() -> None:
    """Chains that begin at a text of weight zero have no log-weight there."""
    sampler = imh(4)
    law, figures = sampler.report(run(sampler, WORLDS["top-k"].attempts(7), 3_000))
    assert str(law).startswith("approximately")
    assert all(math.isfinite(figures[name].value) for name in ("move_acceptance", "autocorrelation", "r_hat"))  # type: ignore[union-attr]


def test_states_do_not_change() -> None:
    """A state can be used for two steps."""
    attempts = list(itertools.islice(WORLDS["whole"].attempts(8), 400))
    for sampler in (qrs(0.5), qrs(target_tvd=0.2, pilot=5), imh(2), imh(2, thinning=1, chains=2)):
        state = run(sampler, iter(attempts), 200)
        before = sampler.report(state)
        once = [sampler.step(state, attempt)[1] for attempt in attempts[200:]]
        again = [sampler.step(state, attempt)[1] for attempt in attempts[200:]]
        assert once == again
        assert sampler.report(state) == before


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: qrs(0),
        lambda: qrs(-1.0),
        lambda: qrs(math.inf),
        lambda: qrs(math.nan),
        lambda: qrs(1.0, target_tvd=0.1),
        lambda: qrs(target_tvd=0),
        lambda: qrs(target_acceptance=1.5),
        lambda: qrs(target_acceptance=1e-320),
        lambda: qrs(pilot=1),
        lambda: imh(-1),
        lambda: imh(thinning=0),
        lambda: imh(chains=0),
        lambda: imh(move="draw"),  # type: ignore[arg-type]  # an invalid value
    ],
)
def test_settings_that_cannot_work(wrong: Callable[[], Sampler]) -> None:
    with pytest.raises(UsageError, match=r"give|takes only one of"):
        wrong()


@pytest.mark.parametrize("weights", [[900.0, 901.0, 902.0], [800.0, -800.0, 0.0], [-900.0, -910.0, -900.0]])
@pytest.mark.parametrize("target", [{"target_acceptance": 1e-9}, {"target_tvd": 1e-320}, {"beta": 1e308}])
def test_a_report_of_weights_beyond_every_float(weights: list[float], target: dict[str, float]) -> None:
    """β is reported as a logarithm, and no number in JSON is infinite."""
    sampler = qrs(pilot=2, **target)
    state = sampler.init()
    for weight in weights:
        state, _ = sampler.step(state, Attempt(Draw("", (1,), ""), True, weight, 0.5))
    law, figures = sampler.report(state)
    assert str(law).startswith("approximately your model's own distribution, given the constraint (g): QRS, ")
    beta: Any = figures.get("beta", 0.0)
    assert math.isfinite(beta)


def test_weights_that_cannot_be() -> None:
    draw = Draw("", (1,), "")
    for sampler in (qrs(1.0), imh(1)):
        with pytest.raises(ModelError, match="log-weight is nan"):
            sampler.step(sampler.init(), Attempt(draw, True, math.nan))
        with pytest.raises(UsageError, match="needs log-weights"):
            sampler.step(sampler.init(), Attempt(draw, True))


def test_names() -> None:
    assert [sampler_named(name).name for name in ("rejection", "qrs", "imh")] == ["rejection", "qrs", "imh"]
    assert [sampler_named(name).weighs for name in ("rejection", "qrs", "imh")] == [False, True, True]
