"""KL of binned samples."""

import math
from typing import Any

import numpy as np
import pytest

from guardwrap.errors import UsageError
from guardwrap.metrics import position, projected_kl
from guardwrap.outcomes import Estimate
from tests.metrics.fixtures_enumerated import covered, kl, repeat

P = np.array([0.05, 0.2, 0.15, 0.1, 0.1, 0.1, 0.1, 0.08, 0.07, 0.05])


def away(distance: float) -> np.ndarray:
    q = P * np.exp(distance * np.random.default_rng(0).normal(size=10))
    return q / q.sum()


def estimates(q: np.ndarray, sizes: tuple[int, int]) -> list[Estimate]:
    return repeat(lambda rng: projected_kl(rng.choice(10, sizes[0], p=P), rng.choice(10, sizes[1], p=q)))


def coverage(q: np.ndarray, sizes: tuple[int, int]) -> float:
    return covered(estimates(q, sizes), kl(P, q))


@pytest.mark.parametrize("sizes", [(1_000, 1_000), (200, 2_000), (2_000, 200)])
@pytest.mark.parametrize("distance", [0.3, 0.6, 1.2])  # KLs of 0.03, 0.1 and 0.5 nats
def test_coverage(distance: float, sizes: tuple[int, int]) -> None:
    assert 0.92 <= coverage(away(distance), sizes) <= 0.98


def test_equal_laws_are_not_told_apart() -> None:
    assert coverage(P, (1_000, 1_000)) >= 0.95


@pytest.mark.parametrize("size", [3, 7, 20])
def test_a_handful_of_draws_tells_no_small_distance(size: int) -> None:
    """Without this minimum the upper end was below the truth in 55, 15 and 5 of 100 samples, and often 0."""
    found = estimates(away(0.6), (size, 2_000))
    assert min(estimate.high for estimate in found) > 2 / size
    assert covered(found, kl(P, away(0.6))) >= 0.95


def test_values_are_not_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    def off() -> float:
        values = [e.value for e in estimates(away(0.6), (300, 300))]
        return abs(float(np.mean(values)) - kl(P, away(0.6))) / float(np.std(values))

    assert off() < 0.15
    # Negative control: with the bias of the shares' own KL, which for equal laws is (bins - 1)/2 (1/300 + 1/300).
    monkeypatch.setattr(position, "Estimate", lambda *ends: Estimate(*(end + 9 / 300 for end in ends)))
    assert off() > 0.5


def test_negative_control_half_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position, "_Z", position._Z / 2)
    assert coverage(away(0.6), (1_000, 1_000)) < 0.92


def test_negative_control_too_much_smoothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position, "_SMOOTHING", 20.0)
    assert coverage(away(1.2), (200, 2_000)) < 0.92


def test_by_hand() -> None:
    p, q = np.repeat([0, 1], [300_000, 100_000]), np.repeat([0, 1], [200_000, 200_000])
    assert projected_kl(p, q, bins=2).value == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), abs=1e-5)


def test_an_empty_bin_gives_a_number() -> None:
    estimate = projected_kl([0, 1, 1], [0, 0, 0], bins=3)
    assert all(math.isfinite(x) for x in estimate)
    assert estimate.low >= 0


@pytest.mark.parametrize("sample", [[], [0.5], [-1], [10], [[1]], ["a"]])
def test_errors(sample: list[Any]) -> None:
    with pytest.raises(UsageError, match="q_bins"):
        projected_kl([1, 2], sample)
    with pytest.raises(UsageError, match="p_bins"):
        projected_kl(sample, [1, 2])
