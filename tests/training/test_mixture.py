"""Weights of samples from several distributions, and branches, compared with enumerated worlds."""

import collections
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guardwrap import GuardedGenerator, Regex
from guardwrap.testing import World, goodness_of_fit, llama_world, table_world
from guardwrap.training import mixture as module
from guardwrap.training import training_state
from guardwrap.training.mixture import branches, pivots
from guardwrap.training.task import Sample, Task
from guardwrap.training.training_state import Buffer, read_state, state_to_json
from tests.training.fixtures_training import DOUBLED, trainer_of

WORLDS = {"table": lambda: table_world(letters="abc"), "llama": lambda: llama_world(letters="abc", temperature=0.8)}
PIVOT = 3  # the letter c
CONSTRAINT = Regex("c.|b$")  # a pivot is neither sufficient nor necessary


def task_of(world: World) -> Task:
    return Task(GuardedGenerator(world.pipeline(), CONSTRAINT, batch_size=64), [world.prompt], world.settings)


def drawn(world: World, count: int, seed: int) -> tuple[list[tuple[int, ...]], float, list[tuple[int, ...]]]:
    """Return the branches' texts, the number of attempts they are worth, and the accepted texts."""
    task = task_of(world)
    (attempts,) = task.draw(count, seed)
    (begun,) = branches(task, [[attempt.draw.token_ids for attempt in attempts]], [PIVOT], 400, seed)
    found = task.continued([(i, 0, ids) for i, ids in enumerate(begun.token_ids)], seed)
    return begun.token_ids, begun.attempts, [sample.token_ids for sample, _ in found if sample is not None]


@pytest.mark.slow
@pytest.mark.parametrize("kind", WORLDS)
def test_branches_are_draws_of_g_among_the_texts_with_a_pivot(kind: str) -> None:
    world = WORLDS[kind]()
    gold = {ids: p for ids, p in world.gold(CONSTRAINT).items() if PIVOT in ids}
    law = {ids: p / sum(gold.values()) for ids, p in gold.items()}
    texts, rates = [], []
    for seed in range(12):
        begun, attempts, satisfied = drawn(world, 400, seed)
        assert all(ids.index(PIVOT) == len(ids) - 1 for ids in begun)
        texts += satisfied
        rates.append(len(satisfied) / attempts)
    # Draws of one call share attempts, so only a quarter is compared with the distribution.
    rng = np.random.default_rng(0)
    some = [texts[i] for i in rng.choice(len(texts), len(texts) // 4, replace=False)]
    assert goodness_of_fit(some, law) > 1e-3
    z = sum(p for ids, p in world.law().items() if PIVOT in ids and ids in world.gold(CONSTRAINT))
    assert abs(np.mean(rates) - z) < 4 * np.std(rates) / len(rates) ** 0.5


def test_negative_control_a_step_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    world = WORLDS["table"]()
    whole = module._chances

    def every(task: Task, samples: Any, tokens: Any) -> Any:
        return [np.vstack([each, each[-1:]]) for each in whole(task, samples, tokens)]

    monkeypatch.setattr(module, "_chances", every)
    rates = []
    for seed in range(6):
        _, attempts, satisfied = drawn(world, 400, seed)
        rates.append(len(satisfied) / attempts)
    z = sum(p for ids, p in world.law().items() if PIVOT in ids and ids in world.gold(CONSTRAINT))
    assert abs(np.mean(rates) - z) > 4 * np.std(rates) / len(rates) ** 0.5


def test_pivots_are_tokens_that_decide() -> None:
    gold = [Sample(0, (1, 2, 7), 3), Sample(0, (1, 7, 0), 3), Sample(0, (2, 8, 1), 3)]
    shares = np.array([0.6, 0.3, 0.1])
    everywhere = collections.Counter({(1, 2, 3): 900, (2, 3, 0): 95, (1, 2, 7): 5})
    texts = [ids for ids, count in everywhere.items() for _ in range(count)]
    assert pivots(gold, shares, 0.006, texts, frozenset({0})) == [7, 8]
    assert pivots(gold, np.array([0.68, 0.3, 0.02]), 0.006, texts, frozenset({0})) == [7], "8 is hardly in g"
    assert pivots(gold, shares, 0.0006, texts, frozenset({0})) == [8], "7 stands elsewhere nine times in ten"


# Weights of samples from several distributions, compared with exact sums over a small world.

BASE = np.array([0.5, 0.3, 0.15, 0.05])  # a over four texts, of which the last two satisfy b
INSIDE = (2, 3)
LAWS = np.array([BASE, [0.1, 0.1, 0.7, 0.1], [0.05, 0.05, 0.2, 0.7]])
DRAWN = (50, 30, 20)


def filled(rng: np.random.Generator, laws: tuple[int, ...] = (0, 1, 2)) -> Buffer:
    buffer = Buffer(1, log_laws=[[] for _ in laws], drawn=[[DRAWN[k]] for k in laws])
    for place, k in enumerate(laws):
        texts = [int(y) for y in rng.choice(4, DRAWN[k], p=LAWS[k]) if y in INSIDE]
        columns = [[float(np.log(LAWS[other][y])) for y in texts] for other in laws]
        buffer.extend([Sample(0, (y,), 1) for y in texts], place, [float(np.log(BASE[y])) for y in texts], columns)
    return buffer


def test_z_is_unbiased_and_no_weight_is_boundless() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(2000):
        buffer = filled(rng)
        found.append(buffer.partition()[0])
        assert np.exp(buffer.log_weights()).max() <= sum(DRAWN) / DRAWN[0] + 1e-12
    error = np.std(found) / len(found) ** 0.5
    assert abs(np.mean(found) - BASE[list(INSIDE)].sum()) < 4 * error


def test_negative_control_weights_of_the_wrong_mixture_are_biased() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(2000):
        buffer = filled(rng)
        buffer.drawn = buffer.drawn[::-1]
        found.append(buffer.partition()[0])
    error = np.std(found) / len(found) ** 0.5
    assert abs(np.mean(found) - BASE[list(INSIDE)].sum()) > 10 * error


@pytest.mark.slow
@pytest.mark.parametrize("law", [0, 1, 2])
def test_without_a_law_the_rest_is_a_sample_of_the_rest(law: int) -> None:
    rest = tuple(k for k in (0, 1, 2) if k != law)
    buffer = filled(np.random.default_rng(1))
    kept = [sample for sample, origin in zip(buffer.samples, buffer.origin, strict=True) if origin != law]
    buffer.forget(law)
    assert buffer.samples == kept
    texts = [sample.token_ids[0] for sample in kept]
    mixture = sum(DRAWN[k] * LAWS[k] for k in rest) / sum(DRAWN[k] for k in rest)
    np.testing.assert_allclose(np.exp(buffer.log_weights()), BASE[texts] / mixture[texts])
    rng = np.random.default_rng(2)
    found = [_without(law, rng) for _ in range(2000)]
    assert abs(np.mean(found) - BASE[list(INSIDE)].sum()) < 4 * np.std(found) / len(found) ** 0.5


def _without(law: int, rng: np.random.Generator) -> float:
    buffer = filled(rng)
    buffer.forget(law)
    return float(buffer.partition()[0])


def test_shares_give_each_prompt_with_many_draws_as_much() -> None:
    samples = [Sample(prompt, (i,), 1) for i, prompt in enumerate([0] * 3000 + [1] * 1000)]
    buffer = Buffer(2)
    buffer.log_laws, buffer.drawn = [[]], [[6000, 6000]]
    buffer.extend(samples, 0, [0.0] * 4000, [[-float(i % 3) for i in range(4000)]])
    for side in (False, True):
        shares = buffer.shares(held_out=side)
        which = np.array([sample.prompt for sample in samples])
        assert shares[which == 0].sum() == pytest.approx(0.5, abs=0.01)
        assert shares[which == 1].sum() == pytest.approx(0.5, abs=0.01)
    assert not (buffer.shares(held_out=True) * buffer.shares(held_out=False)).any()


def test_few_light_samples_of_a_prompt_have_a_small_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """As white space after a complete object, which a mask draws and the model does not."""
    samples = [Sample(prompt, (0,), 1) for prompt in (0, 1, 1, 2)]
    buffer = Buffer(3, log_laws=[[]], drawn=[[3, 3, 3]])
    buffer.extend(samples, 0, [-1.0] * 4, [[-1.0] * 4], corrections=[0.0, -100.0, -120.0, -9.0])
    assert buffer.shares(held_out=True) == pytest.approx([1, 0, 0, 0], abs=1e-30)
    assert buffer.shares(held_out=False) == pytest.approx([0, 0, 0, 1], abs=1e-30)
    # Z is the mean of the draw's own and twice that of all prompts.
    buffer.corrections = [0.0, math.log(0.5), -np.inf, math.log(4)]
    monkeypatch.setattr(training_state, "_HELD_OUT", 1)
    mean = (1 + 0.5 + 4) / 3
    parts = [1 / (1 + 2 * mean), 0.5 / (0.5 + 2 * mean), 0, 4 / (4 + 2 * mean)]
    assert buffer.shares(held_out=True) == pytest.approx(np.array(parts) / sum(parts))
    monkeypatch.setattr(training_state, "_PRIOR", 0.0)
    assert buffer.shares(held_out=True) == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])


@pytest.mark.parametrize(
    ("prompts", "attempts", "least", "most"), [(300, 8, 0.3, 0.55), (30, 8, 0.6, 0.9), (30, 200, 0.9, 1.05)]
)
def test_shrinking_z_brings_samples_closer_to_g(
    prompts: int, attempts: int, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the attempts pass; the error is the TVD between the samples by their shares and g, over all prompts."""
    monkeypatch.setattr(training_state, "_HELD_OUT", 1)
    errors: dict[float, list[float]] = {prior: [] for prior in (2.0, 1e-9)}
    for seed in range(20):
        chance = np.random.default_rng(seed)
        alike = chance.dirichlet(np.full(12, 0.7))
        g = np.array([chance.dirichlet(20 * alike + 1e-3) for _ in range(prompts)])
        proposal = chance.dirichlet(np.ones(12), prompts)
        log_z = chance.normal(size=prompts)
        drawn = [(p, text) for p in range(prompts) for text in chance.choice(12, attempts, p=proposal[p])]
        passed = [each for each, passes in zip(drawn, chance.random(len(drawn)) < 0.5, strict=True) if passes]
        buffer = Buffer(prompts, log_laws=[[]], drawn=[[attempts] * prompts])
        log_base = [log_z[p] + math.log(max(2 * g[p, text], 1e-300)) for p, text in passed]
        log_laws = [math.log(proposal[p, text]) for p, text in passed]
        buffer.extend([Sample(p, (int(text),), 1) for p, text in passed], 0, log_base, [log_laws])
        for prior, each in errors.items():
            monkeypatch.setattr(training_state, "_PRIOR", prior)
            shares = np.bincount([text for _, text in passed], buffer.shares(held_out=True), 12)
            each.append(np.abs(shares - g.mean(axis=0)).sum() / 2)
    assert least < np.mean(errors[2.0]) / np.mean(errors[1e-9]) < most


PROMPTS = ["a", "ba"]


def worst_error(folder: Path, **others: Any) -> float:
    """Draw the samples of a training, and return the largest error of g's share of any text, in standard errors."""
    world = llama_world()
    given = {"prompts": PROMPTS, "samples": 9000, "warm_samples": 8000, "base_share": 0.1,
             "rounds": 1, "updates": 2, "look": 2, **others}  # fmt: skip
    trainer = trainer_of(folder, world, **given)
    trainer.run()
    buffer = trainer.state.buffer
    assert {*trainer.state.laws} >= {*others["hints"], "base", "policy 1"}
    tensors, data = state_to_json(trainer.state)
    assert read_state(tensors, json.loads(json.dumps(data))).log_z == trainer.state.log_z != {}
    weights, errors = np.exp(buffer.log_weights()), []
    attempts = np.array(buffer.drawn).sum(axis=0)
    for prompt, given_prompt in enumerate(PROMPTS):
        law = replace(world, prompt=given_prompt).law()
        for ids in law:
            if DOUBLED.accepts(world.draw(ids).text):
                own = weights[[sample == Sample(prompt, ids, sample.decided) for sample in buffer.samples]]
                if len(own) > 20:
                    share = own.sum() / attempts[prompt]
                    errors.append((share - law[ids]) / np.sqrt((own**2).sum() / attempts[prompt] ** 2))
    assert len(errors) > 10
    return float(np.abs(errors).max())


@pytest.mark.parametrize("hint", ["masked", "twisted"])
def test_samples_of_proposals_that_look_ahead_are_weighed(
    tmp_path: Path, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together with samples of other distributions they give each text its share of g."""
    assert worst_error(tmp_path / "right", hints=[hint]) < 5
    extend = Buffer.extend
    monkeypatch.setattr(Buffer, "extend", lambda self, *given: extend(self, *given[:-1]))
    assert worst_error(tmp_path / "wrong", hints=[hint]) > 10, "the factors are left out"
