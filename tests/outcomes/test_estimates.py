"""Estimates in words and as plain JSON."""

import json
import math

import pytest

from guardwrap.outcomes import Estimate, bounded, estimate_of, exactly, heavy_tail, plain, tail_and_limit, without_end

UNKNOWN = Estimate(math.nan, math.nan, math.nan)


@pytest.mark.parametrize(
    "estimate", [Estimate(0.5, 0.1, math.inf), Estimate(0.0, -math.inf, 2.0), Estimate(math.inf, 3.0, math.inf)]
)
def test_estimates_are_strict_json_and_are_read_again(estimate: Estimate) -> None:
    written = json.loads(json.dumps(plain(estimate), allow_nan=False))
    assert estimate_of(written) == estimate


def test_figures_within_lists_and_mappings_are_plain() -> None:
    figures = {1: (exactly(2.0), math.nan), "steps": [3, None]}
    assert plain(figures) == {"1": [{"value": 2.0, "low": 2.0, "high": 2.0}, None], "steps": [3, None]}


def test_estimates_in_words() -> None:
    assert str(Estimate(0.5, 0.1, math.inf)) == "0.5 [0.1, ∞]"
    assert bounded(Estimate(1790.4, 12.0, 2000.0)) == "1790 [12, 2000]"
    assert bounded(Estimate(math.inf, 12.0, math.inf)) == "at least 12 (95 %)"
    assert bounded(Estimate(0.5, 0.1, math.inf)) == "0.5 [0.1, ∞]"
    assert bounded(Estimate(math.inf, -math.inf, math.inf)) == "unknown"


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (Estimate(3.68e-9, 9.19e-11, 0.0183), "between 9.19e-11 and 0.0183 (95 %)"),
        (Estimate(4.05e7, 8.14, 1.62e9), "between 8.14 and 1.62e+09 (95 %)"),
        (Estimate(0.01, 0.0, 0.3), "between 0 and 0.3 (95 %)"),
        (Estimate(2.0, 0.01, 10.0), "2 [0.01, 10]"),
        (Estimate(0.0, 0.0, 0.0), "0 [0, 0]"),
        (Estimate(0.5, -0.1, 2.0), "0.5 [-0.1, 2]"),
    ],
)
def test_a_value_is_shown_only_if_its_interval_spans_no_factor_above_1000(estimate: Estimate, words: str) -> None:
    assert bounded(estimate) == words


@pytest.mark.parametrize(
    ("k", "words", "tail"),
    [
        (Estimate(0.8, 0.7, 0.9), "0.8 [0.7, 0.9], above the limit of 0.6", 0.8),
        (Estimate(0.6, 0.5, 0.7), "0.6 [0.5, 0.7], at most the limit of 0.6", None),
        (exactly(-math.inf), "none: all weights are equal", None),
        (UNKNOWN, "unknown: too few weights", math.nan),
        (Estimate(0.65, 0.5, 0.8), "0.65 [0.5, 0.8], above the limit of 0.6", math.nan),  # not with more texts
    ],
)
def test_a_tail_is_heavy_above_its_limit(k: Estimate, words: str, tail: float | None) -> None:
    assert tail_and_limit(k, 0.6) == words
    assert heavy_tail({"pareto_k": k, "pareto_k_limit": 0.6}) == pytest.approx(tail, nan_ok=True)
    assert heavy_tail({"pareto_k": k}) is None


@pytest.mark.parametrize(("k", "tail"), [(Estimate(0.9, 0.2, 1.6), math.nan), (Estimate(1.5, 0.8, 2.2), 1.5)])
def test_few_weights_tell_of_a_heavy_tail_only_if_all_of_the_interval_does(k: Estimate, tail: float) -> None:
    assert heavy_tail({"pareto_k": k, "pareto_k_limit": 0.3}) == pytest.approx(tail, nan_ok=True)


def test_a_distance_without_an_upper_end_has_a_lower_one() -> None:
    heavy = "the weights' tail is too heavy (Pareto k 0.8)"
    assert without_end(Estimate(0.2, 0.1, 1.0), 0.8) == f"at least 0.1 (95 %), upper end unknown: {heavy}"
    assert without_end(Estimate(0.2, 0.0, 1.0), 0.8) == f"unknown: {heavy}"
