"""Claims: what an interval says, and what it does not."""

import math

import pytest

from guardwrap.outcomes import Estimate
from guardwrap.report.blocks import Table
from guardwrap.report.claims import Claim, above, below, table_of, worst


@pytest.mark.parametrize(
    ("interval", "is_above", "is_below"),
    [
        ((3.1, 2.5, 3.9), "holds", "does not hold"),
        ((0.5, 0.2, 0.9), "does not hold", "holds"),
        ((3.1, 0.9, 9.0), "cannot be told", "cannot be told"),  # far above, and yet not told
        ((0.5, 0.2, 1.1), "cannot be told", "cannot be told"),
        ((2.0, 1.0, 3.0), "cannot be told", "cannot be told"),  # at the limit is not above it
        ((0.5, 0.2, 1.0), "does not hold", "holds"),
        ((math.inf, 1.5, math.inf), "holds", "does not hold"),
        ((0.5, 0.2, math.inf), "cannot be told", "cannot be told"),
        ((math.nan, math.nan, math.nan), "cannot be told", "cannot be told"),
        ((math.nan, -math.inf, math.inf), "cannot be told", "cannot be told"),
    ],
)
def test_the_whole_interval_has_to_be_on_one_side(interval, is_above, is_below):
    assert above(Estimate(*interval), 1) == is_above
    assert below(Estimate(*interval), 1) == is_below


def test_all_of_them():
    assert worst(["holds", "holds"]) == "holds"
    assert worst(["holds", "cannot be told"]) == "cannot be told"
    assert worst(["cannot be told", "does not hold", "holds"]) == "does not hold"


def test_a_table_says_what_was_read():
    table = table_of([Claim("It is near", "cannot be told", Estimate(0.04, 0.01, 0.2), "at most 0.05")])
    assert isinstance(table, Table)
    assert table.rows == (("It is near", "? cannot be told", Estimate(0.04, 0.01, 0.2), "at most 0.05"),)
