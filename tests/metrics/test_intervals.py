"""Intervals contain the true value as often as they should."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from guardwrap.metrics import acceptance_rate
from guardwrap.outcomes import Estimate

REPETITIONS = 4_000


@pytest.mark.parametrize("p", [0.01, 0.2, 0.5, 0.93])
def test_fixed_number_of_attempts(p: float) -> None:
    accepted = np.random.default_rng(0).binomial(200, p, REPETITIONS)
    assert covered([acceptance_rate(int(k), 200, stopped_on_acceptance=False) for k in accepted], p) >= 0.945


@pytest.mark.parametrize("attempts", [1, 7, 40])
def test_it_is_clopper_and_pearsons_interval(attempts: int) -> None:
    for accepted in range(attempts + 1):
        exact = binomtest(accepted, attempts).proportion_ci(method="exact")
        rate = acceptance_rate(accepted, attempts, stopped_on_acceptance=False)
        assert rate[1:] == pytest.approx((exact.low, exact.high))


@pytest.mark.parametrize("p", [0.01, 0.2, 0.5, 0.93])
@pytest.mark.parametrize("wanted", [1, 5])
def test_stopped_on_acceptance(p: float, wanted: int) -> None:
    attempts = wanted + np.random.default_rng(1).negative_binomial(wanted, p, REPETITIONS)
    rates = [acceptance_rate(wanted, int(n), stopped_on_acceptance=True) for n in attempts]
    assert covered(rates, p) >= 0.945
    if wanted > 1:
        assert np.mean([rate.value for rate in rates]) == pytest.approx(p, rel=0.05)


def test_negative_control_the_wrong_design_does_not_cover() -> None:
    """Treating a run that stopped at its first acceptance as a fixed number of attempts is biased."""
    attempts = 1 + np.random.default_rng(2).negative_binomial(1, 0.2, REPETITIONS)
    plain = np.mean([1 / n for n in attempts])
    assert plain > 0.35
    swapped = [acceptance_rate(1, int(n), stopped_on_acceptance=True, level=0.5) for n in attempts]
    assert covered(swapped, 0.2) < 0.9


def test_ends() -> None:
    assert acceptance_rate(0, 10, stopped_on_acceptance=False)[:2] == (0.0, 0.0)
    assert acceptance_rate(10, 10, stopped_on_acceptance=False).high == 1.0
    certain: tuple[Any, ...] = (1.0, pytest.approx(0.025), 1.0)
    assert acceptance_rate(1, 1, stopped_on_acceptance=True) == certain
    assert acceptance_rate(0, 0, stopped_on_acceptance=False)[1:] == (0.0, 1.0)


def covered(rates: list[Estimate], p: float) -> float:
    return float(np.mean([rate.low <= p <= rate.high for rate in rates]))
