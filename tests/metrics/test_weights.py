"""Invalid weights, and estimates that can be calculated by hand."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from guardwrap import metrics
from guardwrap.errors import NoAcceptance, UsageError
from guardwrap.metrics.intervals import combine, jackknife, mean_interval
from guardwrap.outcomes import Estimate

OF_WEIGHTS: dict[str, Callable[[Any], Any]] = {
    "partition": metrics.partition,
    "kl_gold_proposal": metrics.kl_gold_proposal,
    "kl_gold_guarded": metrics.kl_gold_guarded,
    "tvd_gold_guarded": metrics.tvd_gold_guarded,
    "effective_sample_size": metrics.effective_sample_size,
    "qrs_acceptance": lambda lw: metrics.qrs_acceptance(lw, -1.0),
    "qrs_tvd": lambda lw: metrics.qrs_tvd(lw, -1.0),
    "qrs_kl": lambda lw: metrics.qrs_kl(lw, -1.0),
    "log_beta_for_tvd": lambda lw: metrics.log_beta_for_tvd(lw, 0.1),
    "log_beta_for_acceptance": lambda lw: metrics.log_beta_for_acceptance(lw, 0.1),
}
ESTIMATES = {name: figure for name, figure in OF_WEIGHTS.items() if not name.startswith("log_beta")}

REJECTED = -math.inf


@pytest.mark.parametrize("name", OF_WEIGHTS)
@pytest.mark.parametrize(
    ("log_weights", "error", "says"),
    [
        ([0.0, math.nan, 1.0], UsageError, "log_weights contains NaN at index 1"),
        ([0.0, REJECTED, math.inf], UsageError, "log_weights contains +inf at index 2"),
        ([REJECTED, REJECTED], NoAcceptance, "none of 2 attempts satisfies the constraint"),
        ([], UsageError, "log_weights is empty"),
        ([[0.0]], UsageError, "has 2 dimensions; give an array of one"),
        (["a"], UsageError, "array of numbers"),
    ],
)
def test_errors(name: str, log_weights: list[float], error: type[Exception], says: str) -> None:
    with pytest.raises(error) as caught:
        OF_WEIGHTS[name](log_weights)
    assert type(caught.value) is error
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_by_hand() -> None:
    """Four attempts, weights 1, 3, 0, 0: Z = 1, g = (1/4, 3/4), g' = (1/2, 1/2)."""
    log_weights = [0.0, math.log(3), REJECTED, REJECTED]
    kl_guarded = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)

    def plain(figure):
        """Avoid the correction for bias by repeating the four attempts very often."""
        return figure(np.tile(log_weights, 50_000)).value

    assert plain(metrics.partition) == pytest.approx(1)
    assert plain(metrics.tvd_gold_guarded) == pytest.approx(0.25, abs=1e-4)
    assert plain(metrics.kl_gold_guarded) == pytest.approx(kl_guarded, abs=1e-4)
    assert plain(metrics.kl_gold_proposal) == pytest.approx(kl_guarded - math.log(0.5), abs=1e-4)
    assert metrics.effective_sample_size(log_weights).value == pytest.approx(1.6)
    # β = 2: accepted with probability 1/2 and 1, so p_β = (1/3, 2/3).
    assert metrics.qrs_acceptance(log_weights, math.log(2)).value == pytest.approx(3 / 8)
    assert plain(lambda lw: metrics.qrs_tvd(lw, math.log(2))) == pytest.approx(3 / 4 - 2 / 3, abs=1e-4)
    assert plain(lambda lw: metrics.qrs_kl(lw, math.log(2))) == pytest.approx(
        0.25 * math.log(3 / 4) + 0.75 * math.log(9 / 8), abs=1e-4
    )


@pytest.mark.parametrize("name", ESTIMATES)
def test_weights_far_from_1_are_handled_in_log_space(name: str) -> None:
    rng = np.random.default_rng(0)
    log_weights = np.where(rng.random(500) < 0.3, rng.normal(size=500), REJECTED)
    shift = 2_000.0
    low, high = ESTIMATES[name](log_weights - shift), ESTIMATES[name](log_weights + shift)
    assert not any(math.isnan(x) for x in (*low, *high))
    if not name.startswith(("partition", "qrs")):  # the others do not depend on a factor in a(y)
        assert low == pytest.approx(ESTIMATES[name](log_weights))
        assert high == pytest.approx(ESTIMATES[name](log_weights))


@pytest.mark.parametrize("name", ESTIMATES)
@pytest.mark.parametrize("gap", [1.0, 50.0, 5_000.0])
def test_one_weight_that_outweighs_all_others_gives_no_false_certainty(name: str, gap: float) -> None:
    estimate = ESTIMATES[name]([-1.0, -1.0 - gap, -1.2 - gap, REJECTED, REJECTED])
    assert estimate.low <= estimate.value <= estimate.high
    assert not any(math.isnan(x) for x in estimate)
    if name == "kl_gold_guarded":
        assert estimate.high - estimate.low > 1


@pytest.mark.parametrize("name", ESTIMATES)
def test_one_acceptance_says_nothing_of_the_spread(name: str) -> None:
    for log_weights in ([-0.5], [-0.5, REJECTED, REJECTED]):
        estimate = ESTIMATES[name](log_weights)
        assert estimate.low == 0
        assert estimate.high in (1, len(log_weights), math.inf)


def test_equal_weights() -> None:
    """With a' = a, g' is g. The interval of the TVD still allows for other weights that were not seen."""
    assert metrics.kl_gold_guarded(np.repeat([0.0, REJECTED], [9, 70])) == (0, 0, math.inf)  # too few to tell
    log_weights = np.repeat([0.0, REJECTED], [30, 70])
    assert metrics.kl_gold_guarded(log_weights) == (0, 0, 0)
    assert metrics.tvd_gold_guarded(log_weights) == pytest.approx((0, 0, 1 - 0.025 ** (1 / 30)))
    assert metrics.partition(log_weights).value == pytest.approx(0.3)
    assert metrics.kl_gold_proposal(log_weights).value == pytest.approx(-math.log(0.3), abs=0.02)
    assert metrics.effective_sample_size(log_weights).value == pytest.approx(30)


def test_a_partition_above_1_is_shown() -> None:
    """Dropping the end-of-sequence term gives weights whose mean exceeds 1, which must stay visible."""
    assert metrics.partition(np.full(100, 0.3)).value == pytest.approx(math.exp(0.3))


# From counts and from draws of g.


def test_kl_gold_base() -> None:
    rate = metrics.acceptance_rate(3, 40, stopped_on_acceptance=False)
    assert metrics.kl_gold_base(3, 40) == pytest.approx((-math.log(3 / 40), -math.log(rate.high), -math.log(rate.low)))
    assert metrics.kl_gold_base(3, 40, stopped_on_acceptance=True).value == pytest.approx(-math.log(2 / 39))
    assert metrics.kl_gold_base(40, 40)[:2] == (0, 0)
    value, low, high = metrics.kl_gold_base(0, 100)
    assert (value, high) == (math.inf, math.inf)
    assert low == pytest.approx(-math.log(1 - 0.025 ** (1 / 100)))


@pytest.mark.parametrize(("accepted", "attempts"), [(3, 2), (-1, 2), (0, 0)])
def test_counts_that_make_no_sense(accepted: int, attempts: int) -> None:
    with pytest.raises(UsageError, match="accepted of"):
        metrics.kl_gold_base(accepted, attempts)


def test_from_gold_takes_counts_or_rates() -> None:
    log_ratios = np.random.default_rng(0).normal(1, 1, size=100)
    rates = [metrics.acceptance_rate(k, 1_000, stopped_on_acceptance=False) for k in (100, 400)]
    assert metrics.kl_gold_guarded_from_gold(log_ratios, (100, 1_000), (400, 1_000)) == (
        metrics.kl_gold_guarded_from_gold(log_ratios, *rates)
    )
    guarded = metrics.kl_gold_guarded_from_gold(log_ratios, *rates)
    assert guarded.value == pytest.approx(log_ratios.mean() + math.log(4))
    assert metrics.kl_gold_proposal_from_gold(log_ratios, rates[0]).value == pytest.approx(
        log_ratios.mean() - math.log(0.1)
    )


@pytest.mark.parametrize(
    ("log_ratios", "base", "error", "says"),
    [
        ([], (1, 2), UsageError, "log_ratios is empty"),
        ([math.nan], (1, 2), UsageError, "NaN"),
        ([0.0, math.inf], (1, 2), UsageError, "inf at index 1"),
        ([0.0], (0, 7), NoAcceptance, "none of 7 attempts"),
        ([0.0], Estimate(0.0, 0.0, 0.1), NoAcceptance, "none of the attempts"),
        ([0.0], (9, 7), UsageError, "base: 9 accepted of 7"),
    ],
)
def test_errors_from_gold(log_ratios: list[float], base: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        metrics.kl_gold_proposal_from_gold(log_ratios, base)
    with pytest.raises(error, match=says):
        metrics.kl_gold_guarded_from_gold(log_ratios, base, (1, 2))


def test_theorem2_residual_of_one_set_of_attempts_is_0() -> None:
    rng = np.random.default_rng(0)
    log_weights = np.where(rng.random(2_000) < 0.3, rng.normal(size=2_000), REJECTED)
    counts = (int(np.isfinite(log_weights).sum()), 2_000)
    both = metrics.kl_gold_proposal(log_weights), metrics.kl_gold_guarded(log_weights)
    assert metrics.theorem2_residual(*both, counts).value == pytest.approx(0, abs=2e-3)  # the correction for bias


# Intervals.


def test_the_jackknife_of_a_mean_is_the_mean() -> None:
    values = np.random.default_rng(0).exponential(size=50)
    assert jackknife(values[None], lambda mean: mean[0]) == pytest.approx(mean_interval(values))


def test_an_interval_without_skewness_is_students() -> None:
    values = np.array([-1.0, 0.0, 1.0])
    assert mean_interval(values).high == pytest.approx(4.3027 / math.sqrt(3), rel=1e-4)
    assert mean_interval(values).low == -mean_interval(values).high


def test_skewness_moves_the_interval() -> None:
    value, low, high = mean_interval(np.random.default_rng(0).exponential(size=50))
    assert high - value > 1.2 * (value - low)


def test_combine() -> None:
    total = combine((1, Estimate(5, 2, 6)), (-1, Estimate(1, 0, 5)))
    assert total == (4, 4 - math.hypot(3, 4), 4 + math.hypot(1, 1))
