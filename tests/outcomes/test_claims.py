"""Verdicts on claims, and their table."""

import math

import pytest

from guardwrap.outcomes import Estimate
from guardwrap.outcomes.blocks import Table
from guardwrap.outcomes.claims import Answer, Claim, above, below, table_of, worst

HOLDS, UNDECIDED, FAILS = Answer


@pytest.mark.parametrize(
    ("interval", "is_above", "is_below"),
    [
        ((3.1, 2.5, 3.9), "holds", "does not hold"),
        ((0.5, 0.2, 0.9), "does not hold", "holds"),
        ((3.1, 0.9, 9.0), "undecided", "undecided"),  # far above, but the interval crosses the limit
        ((0.5, 0.2, 1.1), "undecided", "undecided"),
        ((2.0, 1.0, 3.0), "undecided", "undecided"),  # at the limit is not above it
        ((0.5, 0.2, 1.0), "does not hold", "holds"),
        ((math.inf, 1.5, math.inf), "holds", "does not hold"),
        ((0.5, 0.2, math.inf), "undecided", "undecided"),
        ((math.nan, math.nan, math.nan), "undecided", "undecided"),
        ((math.nan, -math.inf, math.inf), "undecided", "undecided"),
    ],
)
def test_the_whole_interval_has_to_be_on_one_side(interval, is_above, is_below):
    assert above(Estimate(*interval), 1) == is_above
    assert below(Estimate(*interval), 1) == is_below


def test_all_of_them():
    assert worst([HOLDS, HOLDS]) is HOLDS
    assert worst([HOLDS, UNDECIDED]) is UNDECIDED
    assert worst([UNDECIDED, FAILS, HOLDS]) is FAILS


def test_a_table_says_what_was_read():
    table = table_of([Claim("It is near", UNDECIDED, Estimate(0.04, 0.01, 0.2), "at most 0.05")])
    assert isinstance(table, Table)
    assert table.rows == (("It is near", "? undecided", Estimate(0.04, 0.01, 0.2), "at most 0.05"),)
