"""Autocorrelation and R-hat."""

import math

import numpy as np
import pytest

from guardwrap.errors import UsageError
from guardwrap.metrics import autocorrelation, r_hat
from guardwrap.outcomes import Estimate
from tests.metrics.fixtures_enumerated import covered, repeat


def autoregressive(rng: np.random.Generator, chains: int, steps: int, rho: float) -> np.ndarray:
    """Return stationary chains whose autocorrelation at lag t is rho^t."""
    states = [rng.normal(size=chains)]
    for _ in range(steps - 1):
        states.append(rho * states[-1] + math.sqrt(1 - rho**2) * rng.normal(size=chains))
    return np.stack(states, axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("lag", [1, 5])
def test_autocorrelation_covers(lag: int, rho: float) -> None:
    estimates = repeat(lambda rng: autocorrelation(autoregressive(rng, 30, 60, rho), lag))
    assert 0.92 <= covered(estimates, rho**lag) <= 0.98
    half = [Estimate(e.value, (e.value + e.low) / 2, (e.value + e.high) / 2) for e in estimates]
    assert covered(half, rho**lag) < 0.92


def test_autocorrelation_by_hand() -> None:
    chains = [[1.0, -1.0, 1.0, -1.0]]
    assert autocorrelation(chains, 0).value == 1
    assert autocorrelation(chains, 1) == (-1, -1, 1)
    assert autocorrelation(chains, 2).value == 1


def test_chains_that_stand_at_different_states_are_fully_correlated() -> None:
    assert autocorrelation([[1.0] * 8, [2.0] * 8, [5.0] * 8], 3) == pytest.approx((1, 1, 1))


def test_r_hat_by_hand() -> None:
    """Halves (0, 2) and (1, 3): W = 2, B / n = 1/2, so sqrt(1/2 + 1/4)."""
    assert r_hat([[0.0, 2.0, 1.0, 3.0]]).value == pytest.approx(math.sqrt(0.75))
    assert r_hat([[0.0, 2.0, 99.0, 1.0, 3.0]]).value == pytest.approx(math.sqrt(0.75))


def test_r_hat_of_chains_that_agree_and_that_do_not() -> None:
    rng = np.random.default_rng(0)
    chains = rng.normal(size=(8, 400))
    assert r_hat(chains).value == pytest.approx(1, abs=0.01)
    assert r_hat(chains).low < 1.01 < r_hat(chains + 2 * rng.normal(size=(8, 1))).low
    # Splitting shows a drift that all chains share.
    assert r_hat(chains + np.linspace(0, 5, 400)).value > 1.3


def test_r_hat_covers() -> None:
    """Chains of 20 steps about means that are normal themselves."""

    def chains(rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.normal(size=(count, 20)) + 0.7 * rng.normal(size=(count, 1))

    truth = math.sqrt(9 / 10 + 0.49 + 1 / 10)  # W = 1, and the means of halves vary by 0.49 + 1/10
    assert r_hat(chains(np.random.default_rng(0), 20_000)).value == pytest.approx(truth, rel=0.01)
    estimates = repeat(lambda rng: r_hat(chains(rng, 25)))
    assert 0.92 <= covered(estimates, truth) <= 0.98


def test_no_chain_moves() -> None:
    value, low, high = r_hat(np.ones((4, 10)))
    assert math.isnan(value)
    assert (low, high) == (0, math.inf)
    value, low, high = autocorrelation(np.ones((4, 10)), 1)
    assert math.isnan(value)
    assert (low, high) == (-1, 1)
    assert r_hat(np.arange(4.0)[:, None] * np.ones((4, 10))) == (math.inf, math.inf, math.inf)


def test_one_chain_alone_has_no_interval() -> None:
    chains = np.random.default_rng(0).normal(size=(1, 100))
    assert autocorrelation(chains, 1)[1:] == (-1, 1)
    assert r_hat(chains)[1:] == (0, math.inf)
    alone = np.zeros((3, 100))
    alone[0] = chains
    assert r_hat(alone)[1:] == (0, math.inf)  # one chain moves


@pytest.mark.parametrize(
    ("chains", "says"),
    [
        (np.empty((0, 5)), "empty chains: 0 chains of 5 steps"),
        (np.empty((3, 0)), "empty chains: 3 chains of 0 steps"),
        (np.ones(5), r"\[chains, steps\]"),
        (np.full((2, 5), np.nan), "not finite"),
        (np.full((2, 5), np.inf), "not finite"),
    ],
)
def test_errors(chains: np.ndarray, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        r_hat(chains)
    with pytest.raises(UsageError, match=says):
        autocorrelation(chains, 1)


def test_a_move_in_the_middle_that_is_left_out() -> None:
    assert math.isnan(r_hat([[1.0, 1.0, 5.0, 1.0, 1.0]]).value)


def test_too_short() -> None:
    with pytest.raises(UsageError, match="at least 4"):
        r_hat(np.ones((2, 3)))
    with pytest.raises(UsageError, match="lag=3: chains of 3 steps have lags from 0 to 2"):
        autocorrelation(np.ones((2, 3)), 3)
