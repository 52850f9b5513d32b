"""Weights of samples from several distributions, compared with exact sums over a small world."""

import numpy as np
import pytest

from guardwrap.training.samples import Buffer, Sample

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


def test_shares_give_each_prompt_as_much() -> None:
    samples = [Sample(prompt, (i,), 1) for i, prompt in enumerate([0] * 30 + [1] * 10)]
    buffer = Buffer(2)
    buffer.log_laws, buffer.drawn = [[]], [[60, 60]]
    buffer.extend(samples, 0, [0.0] * 40, [[-float(i % 3) for i in range(40)]])
    for side in (False, True):
        shares = buffer.shares(held_out=side)
        which = np.array([sample.prompt for sample in samples])
        assert shares[which == 0].sum() == pytest.approx(0.5)
        assert shares[which == 1].sum() == pytest.approx(0.5)
    assert not (buffer.shares(held_out=True) * buffer.shares(held_out=False)).any()
