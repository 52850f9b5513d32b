"""Positions within a text."""

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from guardwrap import Keyword, Regex
from guardwrap.errors import CheckFailed, ConstraintError, UsageError
from guardwrap.metrics import position_bins, position_histogram, positivity_by_sentence, relative_position, spans
from guardwrap.outcomes import Estimate
from tests.metrics.fixtures_enumerated import covered, repeat


def test_relative_position() -> None:
    texts = ["amazing!!!", "So Amazing", "amazingly amazing", "none", ""]
    assert relative_position(texts, "amazing") == pytest.approx([0, 0.3, 10 / 17, math.nan, math.nan], nan_ok=True)
    assert relative_position(texts[2:3], Keyword("amazing", whole_words=False)) == pytest.approx([0])
    assert relative_position(["b a", "a b"], Keyword(["a", "b"], match="all")) == pytest.approx([0, 0])
    assert relative_position(["call 555-1234"], Regex(r"\d{3}-\d{4}")) == pytest.approx([5 / 13])
    assert relative_position(["1 4242424242424241 4242424242424242"], Regex(r"\b\d+\b", checksum="luhn")) == (
        pytest.approx([19 / 35])
    )
    assert relative_position(["ab"], Regex("$"))[0] < 1  # an empty match at the end stays in the last bin


def test_spans() -> None:
    assert spans("Amazing, amazingly amazing", Keyword("amazing")) == [(0, 7), (19, 26)]
    assert sorted(spans("b a b", Keyword(["a", "b"], match="all"))) == [(0, 1), (2, 3), (4, 5)]
    assert spans("1-2 34", Regex(r"\d+")) == [(0, 1), (2, 3), (4, 6)]
    assert spans("4242424242424241 4242424242424242", Regex(r"\b\d+\b", checksum="luhn")) == [(17, 33)]
    assert spans("none", Keyword("amazing")) == []
    with pytest.raises(CheckFailed, match="took more than"):
        spans("a" * 60, Regex("(?:a|aa)+b", timeout=0.01))


def test_relative_position_errors() -> None:
    with pytest.raises(ConstraintError):
        relative_position(["a"], "")
    with pytest.raises(CheckFailed, match="took more than"):
        relative_position(["a" * 60], Regex("(?:a|aa)+b", timeout=0.01))


def test_bins() -> None:
    assert position_bins([0, 0.0999, 0.1, 0.95, 1]).tolist() == [0, 0, 1, 9, 9]
    assert position_bins([0, 0.5, 1], bins=2).tolist() == [0, 1, 1]


@pytest.mark.parametrize("figure", [position_bins, position_histogram])
@pytest.mark.parametrize("positions", [[], [1.2], [-0.1]])
def test_positions_that_are_none(figure: Any, positions: list[float]) -> None:
    with pytest.raises(UsageError, match="positions"):
        figure(positions)


def test_a_text_without_a_match_has_no_bin() -> None:
    with pytest.raises(UsageError, match="NaN at index 1"):
        position_bins([0.1, math.nan])
    with pytest.raises(UsageError, match="bins=0"):
        position_bins([0.1], bins=0)


def test_histogram() -> None:
    shares = position_histogram([0.05, 0.07, 0.5, math.nan])
    assert [share.value for share in shares] == pytest.approx([2 / 3, 0, 0, 0, 0, 1 / 3, 0, 0, 0, 0])
    assert all(share.low <= share.value <= share.high for share in shares)
    assert shares[1].high > 0.5


def test_histogram_covers() -> None:
    estimates = repeat(lambda rng: position_histogram(rng.beta(2, 2, size=1_000))[2])
    assert 0.92 <= covered(estimates, 0.216 - 0.104) <= 0.98


def scored(sentences: list[str]) -> list[float]:
    return [float(sentence.strip(".")) for sentence in sentences]


def test_positivity() -> None:
    texts = ["0.1. 0.9.", "0.3. 0.7. 1.0.", "0.2."]
    first, second, third = positivity_by_sentence(texts, scored)
    assert first.value == pytest.approx(0.2)
    assert second.value == pytest.approx(0.8)
    assert third == (1.0, 0.0, 1.0)  # from a single text


def test_positivity_covers() -> None:
    def estimate(rng: np.random.Generator) -> Estimate:
        scores = np.round(rng.beta(0.5, 1.5, size=100), 6)
        return positivity_by_sentence([f"0.5. {score:.6f}." for score in scores], scored)[1]

    estimates = repeat(estimate)
    assert 0.92 <= covered(estimates, 0.25) <= 0.98
    half = [Estimate(e.value, (e.value + e.low) / 2, (e.value + e.high) / 2) for e in estimates]
    assert covered(half, 0.25) < 0.92


@pytest.mark.parametrize("scores", [[0.5], [0.5, 1.5], [0.5, -0.1], [0.5, math.nan]])
def test_scores_that_are_no_probabilities(scores: list[float]) -> None:
    with pytest.raises(UsageError, match="score"):
        positivity_by_sentence(["One. Two."], lambda sentences: scores)


def test_no_sentence() -> None:
    with pytest.raises(UsageError, match="no text has a sentence"):
        positivity_by_sentence(["", " "], scored)


def test_importing_metrics_imports_no_torch() -> None:
    code = "import sys, guardwrap.metrics; assert not {'torch', 'transformers', 'sacrebleu'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
