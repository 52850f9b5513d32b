"""The tail index of weights is recovered, and a tail that is too heavy costs a distance its upper end."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from guardwrap import metrics
from guardwrap.errors import NoAcceptance, UsageError
from guardwrap.metrics import weights as tails
from guardwrap.metrics.weights import LEAST_WEIGHTS, too_heavy

KNOWN = (0, 0.3, 0.7, 1)
REPETITIONS = 400


def pareto(k: float, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return log-weights of tail index k: 1 plus an exponential for 0, otherwise of a Pareto distribution."""
    scaled = rng.exponential(size=size)
    return k * scaled if k else np.log1p(scaled)


def estimates(k: float, size: int) -> np.ndarray:
    """Return value and interval of each repetition, ``[REPETITIONS, 3]``."""
    return np.array([metrics.pareto_k(pareto(k, size, rng)) for rng in np.random.default_rng(0).spawn(REPETITIONS)])


@pytest.mark.parametrize("k", KNOWN)
def test_k_is_recovered_within_its_standard_error(k: float) -> None:
    value, low, high = estimates(k, 5_000).T
    error = (high - low).mean() / (2 * 1.96)
    assert abs(value.mean() - k) < error / 2, "the prior moves the mean by less than the error of one estimate"
    assert value.std() == pytest.approx(error, rel=0.15)
    assert ((low <= k) & (k <= high)).mean() > 0.92


def test_negative_control_hardly_any_weight_is_in_the_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit to the body of the distribution, here to the smallest weights, says nothing about the tail."""
    monkeypatch.setattr(tails, "_exceedances", lambda weights: np.sort(weights[-1] - weights[:-1])[:200] + 1e-9)
    value, _, _ = estimates(1, 5_000).T
    assert abs(value.mean() - 1) > 0.3


def test_negative_control_without_the_prior_a_short_tail_is_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    before = estimates(0.7, 50)[:, 0].std()
    monkeypatch.setattr(tails, "_PRIOR_WEIGHTS", 0)
    assert estimates(0.7, 50)[:, 0].std() > 1.5 * before


QUANTILES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exponential": lambda u: np.log(-np.log1p(-u)),
    "pareto, 0.7": lambda u: -0.7 * np.log1p(-u),
    "pareto, 1.5": lambda u: -1.5 * np.log1p(-u),
    "uniform": np.log,
}

ARVIZ = {
    ("exponential", 100): 0.20327184095696796,
    ("pareto, 0.7", 100): 0.6062891118970053,
    ("pareto, 1.5", 100): 1.0646752698863482,
    ("uniform", 100): -0.40462148035522866,
    ("exponential", 225): 0.11854314702515575,
    ("pareto, 1.5", 225): 1.2522789893140625,
    ("exponential", 10_000): 0.02145804077282622,
    ("pareto, 0.7", 10_000): 0.689982034898979,
    ("pareto, 1.5", 10_000): 1.4536287400294732,
    ("uniform", 10_000): -0.9235340185477373,
}
"""k of arviz-stats 0.8.0, ``base.array_stats.psislw``, of as many quantiles of a distribution."""


@pytest.mark.parametrize(("name", "size"), ARVIZ, ids=str)
def test_it_is_the_k_of_psis(name: str, size: int) -> None:
    quantiles = (np.arange(size) + 0.5) / size
    assert metrics.pareto_k(QUANTILES[name](quantiles)).value == pytest.approx(ARVIZ[name, size], abs=1e-9)


@pytest.mark.parametrize("shift", [-5_000.0, -3.0, 900.0])
def test_the_scale_of_weights_does_not_matter(shift: float) -> None:
    log_weights = pareto(0.7, 500, np.random.default_rng(1))
    assert metrics.pareto_k(log_weights + shift) == pytest.approx(metrics.pareto_k(log_weights), abs=1e-8)


def test_neither_order_nor_violations_matter() -> None:
    log_weights = pareto(0.7, 500, np.random.default_rng(1))
    with_violations = np.concatenate([np.full(300, -math.inf), log_weights[::-1]])
    assert metrics.pareto_k(with_violations) == metrics.pareto_k(log_weights)


def test_bounded_weights_have_a_small_k() -> None:
    """A mask's weight is a product of shares of probability, so at most 1."""
    rng = np.random.default_rng(2)
    masked = np.log(rng.beta(5, 1, size=(300, 4))).sum(axis=1)
    k = metrics.pareto_k(masked)
    assert k.high < metrics.pareto_k_limit(300)
    assert not too_heavy(masked)
    heavy = pareto(1, 300, rng)
    assert too_heavy(heavy), "the same is not said of a tail that is heavy"


def test_the_limit_of_the_literature() -> None:
    """Vehtari et al. (2024): 0.7 from about 2200 weights on, 0.5 for 100."""
    assert metrics.pareto_k_limit(100) == 0.5
    assert metrics.pareto_k_limit(2_100) < 0.7 == metrics.pareto_k_limit(2_200) == metrics.pareto_k_limit(10**6)
    assert metrics.pareto_k_limit(1) == -math.inf


def test_too_few_weights_have_no_k() -> None:
    log_weights = pareto(0.3, 1_000, np.random.default_rng(3))
    few = np.concatenate([log_weights[: LEAST_WEIGHTS - 1], np.full(500, -math.inf)])
    assert math.isnan(metrics.pareto_k(few).value)
    assert metrics.pareto_k(few)[1:] == (-math.inf, math.inf)
    assert too_heavy(few), "what is not known is not taken for light"
    assert too_heavy(np.zeros(LEAST_WEIGHTS - 1)), "equal ones may be those of texts with a common beginning"
    assert math.isfinite(metrics.pareto_k(log_weights[:LEAST_WEIGHTS]).value)


@pytest.mark.parametrize("count", [LEAST_WEIGHTS, 500])
def test_equal_weights_have_no_tail(count: int) -> None:
    """As those of the model itself, which rounding separates by up to a thousandth of a nat."""
    rounded = 1e-3 * np.random.default_rng(4).standard_cauchy(count).clip(-3, 3)
    assert metrics.pareto_k(rounded).value == -math.inf
    assert not too_heavy(rounded)


def test_texts_that_repeat() -> None:
    """Few different weights, each of a text that was drawn many times: bounded, unless one of them is rare."""
    assert metrics.pareto_k(np.log(np.repeat([0.5, 1, 2], 40))).value < 0
    assert metrics.pareto_k([0.0, 3.0] * 500).value < 0
    seldom = metrics.pareto_k(np.log([1.0] * 97 + [50.0] * 3)).value
    assert 0 < seldom < metrics.pareto_k(np.log([1.0] * 97 + [50.0, 500.0, 5_000.0])).value


def test_a_tail_that_is_too_heavy_has_no_upper_end() -> None:
    light, heavy = (pareto(k, 400, np.random.default_rng(5)) for k in (0, 1.2))
    beta = 0.5
    for figure, most in ((metrics.qrs_tvd, 1.0), (metrics.qrs_kl, math.inf)):
        assert figure(light, beta).high < most
        assert figure(heavy, beta).high == most
        assert 0 < figure(heavy, beta).low < figure(heavy, beta).value < most
    assert metrics.tvd_gold_guarded(heavy).high == 1
    assert metrics.kl_gold_guarded(heavy).high == metrics.kl_gold_proposal(heavy).high == math.inf


def test_bad_weights() -> None:
    with pytest.raises(UsageError, match="NaN"):
        metrics.pareto_k([0.0, math.nan])
    with pytest.raises(NoAcceptance):
        metrics.pareto_k([-math.inf] * 30)
