"""The β for a target."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from guardwrap import metrics
from guardwrap.errors import UsageError
from guardwrap.metrics import divergence


@pytest.fixture
def log_weights() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.where(rng.random(2_000) < 0.25, rng.normal(size=2_000), -math.inf)


@pytest.mark.parametrize("target", [0.2, 0.1, 0.02, 0.001])
def test_acceptance_is_met(log_weights: np.ndarray, target: float) -> None:
    log_beta = metrics.log_beta_for_acceptance(log_weights, target)
    assert metrics.qrs_acceptance(log_weights, log_beta).value == pytest.approx(target, rel=1e-9)


@pytest.mark.parametrize("target", [0.3, 0.1, 0.01])
def test_tvd_is_met(log_weights: np.ndarray, target: float) -> None:
    log_beta = metrics.log_beta_for_tvd(log_weights, target)
    assert metrics.qrs_tvd(log_weights, log_beta).value == pytest.approx(target, abs=2e-3)  # the correction for bias
    assert metrics.qrs_tvd(log_weights, log_beta - 0.2).value > target


def test_a_target_that_rejection_meets_needs_no_beta(log_weights: np.ndarray) -> None:
    rate = metrics.qrs_acceptance(log_weights, -math.inf).value
    assert metrics.log_beta_for_acceptance(log_weights, rate) == -math.inf
    assert metrics.log_beta_for_tvd(log_weights, 0.9) == -math.inf
    assert metrics.log_beta_for_tvd(np.zeros(10), 0.01) == -math.inf


@pytest.mark.parametrize("target", [0.0, -0.1, 0.9, math.nan])
def test_an_acceptance_that_cannot_be_met(log_weights: np.ndarray, target: float) -> None:
    rate = metrics.qrs_acceptance(log_weights, -math.inf).value
    with pytest.raises(UsageError, match=f"give a rate above 0 and at most {rate:.4g}"):
        metrics.log_beta_for_acceptance(log_weights, target)


@pytest.mark.parametrize("target", [0.0, -0.1, 1.0, math.nan])
def test_a_tvd_that_cannot_be_met(log_weights: np.ndarray, target: float) -> None:
    with pytest.raises(UsageError, match="not above 0 and below 1"):
        metrics.log_beta_for_tvd(log_weights, target)


@pytest.mark.parametrize("log_beta", [math.nan, math.inf])
@pytest.mark.parametrize("figure", [metrics.qrs_acceptance, metrics.qrs_tvd, metrics.qrs_kl])
def test_a_beta_that_is_none(log_weights: np.ndarray, figure: Any, log_beta: float) -> None:
    with pytest.raises(UsageError, match="log_beta"):
        figure(log_weights, log_beta)


def test_the_ends(log_weights: np.ndarray) -> None:
    """β = 0 is g'; at the largest weight and above, the attempts show no distance to g."""
    assert metrics.qrs_kl(log_weights, -math.inf) == metrics.kl_gold_guarded(log_weights)
    assert metrics.qrs_tvd(log_weights, -math.inf) == metrics.tvd_gold_guarded(log_weights)
    draws = metrics.effective_sample_size(log_weights).value
    for log_beta in (float(log_weights.max()), float(log_weights.max()) + 1_000):
        assert metrics.qrs_kl(log_weights, log_beta) == pytest.approx((0, 0, math.inf), abs=1e-9)
        # None of `draws` draws of g: 1 - 0.025^(1/draws).
        nothing_seen = 1 - 0.025 ** (1 / draws)
        assert metrics.qrs_tvd(log_weights, log_beta) == pytest.approx((0, 0, nothing_seen), abs=1e-9)


def test_nearer_costs_more(log_weights: np.ndarray) -> None:
    log_betas = np.linspace(-4, float(log_weights.max()), 30)
    for figure in (metrics.qrs_acceptance, metrics.qrs_tvd, metrics.qrs_kl):
        values = [figure(log_weights, float(log_beta)).value for log_beta in log_betas]
        assert all(later <= earlier + 1e-3 for earlier, later in pairwise(values))


@pytest.mark.parametrize("rejected", [0, 20])
@pytest.mark.parametrize("log_beta", [-5.0, -1.0, 2.0])
def test_weights_that_are_all_alike_do_not_show_that_there_are_no_others(rejected: int, log_beta: float) -> None:
    """25 draws of g bound what was not seen only loosely, and may all be the same text; five do not bound it."""
    tvd = metrics.qrs_tvd([-1.0] * 25 + [-math.inf] * rejected, log_beta)
    assert tvd == pytest.approx((0, 0, 1 - 0.025 ** (1 / 25)), abs=1e-12)
    assert metrics.qrs_tvd([-1.0] * 5 + [-math.inf] * rejected, log_beta) == pytest.approx((0, 0, 1), abs=1e-12)


def test_rounding_does_not_make_weights_that_are_alike_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: if only equal ones count as such, the distance has an upper end near 0."""
    rounded = 1e-4 * np.sin(np.arange(25))
    assert metrics.qrs_tvd(rounded, -5.0).high > 0.1
    monkeypatch.setattr(divergence, "EQUAL", 0.0)
    assert metrics.qrs_tvd(rounded, -5.0).high < 1e-3
