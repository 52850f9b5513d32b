"""Charts: one color per method on a page, labels that do not overlap; and claims with their verdicts."""

import math
import re
from typing import Any

import pytest
from matplotlib.text import Annotation

from guardwrap.outcomes import Estimate, charts
from guardwrap.outcomes.blocks import Bar, Bars, Curve, CurvePoint, Curves, Points, Spot, Spots, Table
from guardwrap.outcomes.charts import COLOURS, drawing
from guardwrap.outcomes.claims import Answer, Claim, above, below, cost_against_distance, table_of, worst

EXACT = Estimate(1.0, 1.0, 1.0)


def around(value, half=0.05):
    return Estimate(value, value - half, value + half)


def curves(*names, **methods):
    return Curves("c", "x", "y", tuple(Curve(name, (CurvePoint(1, around(1)),), methods.get(name)) for name in names))


def colours(svg):
    """Return which of guardwrap's colors a drawing uses."""
    return {colour for colour in COLOURS if colour.lower() in svg.lower()}


def test_methods_in_the_order_they_are_shown_in():
    bars = Bars("b", "x", "y", ("1",), (Bar("g", (EXACT,), "model"), Bar("new", (EXACT,))))
    assert charts.methods_of([curves("model", "QRS"), bars]) == ["model", "QRS", "new"]


def test_a_method_has_the_same_colour_in_each_chart():
    methods = charts.methods_of([curves("model", "hint"), curves("QRS", "IMH"), curves("IMH")])
    assert colours(charts.svg_of(curves("model", "hint"), "a", methods)) == set(COLOURS[:2])
    assert colours(charts.svg_of(curves("QRS", "IMH"), "a", methods)) == set(COLOURS[2:4])
    assert colours(charts.svg_of(curves("IMH"), "a", methods)) == {COLOURS[3]}
    named = curves("IMH, in the paper", **{"IMH, in the paper": "IMH"})
    assert colours(charts.svg_of(named, "a", methods)) == {COLOURS[3]}


def test_negative_control_charts_that_do_not_know_of_each_other():
    assert colours(charts.svg_of(curves("IMH"), "a")) == {COLOURS[0]}


def test_two_drawings_and_no_id_twice():
    svg = charts.svg_of(curves("a"), "c1")
    assert re.findall(r'<svg class="(\w+)"', svg) == ["slim", "broad"]
    ids = re.findall(r'\bid="([^"]*)"', svg)
    assert len(ids) == len(set(ids)) > 10
    widths = [float(width) for width in re.findall(r'viewBox="0 0 ([\d.]+)', svg)]
    assert widths[1] > 1.5 * widths[0]


def boxes(block, width=4.3):
    """Return the boxes of all texts inside the axes, and those of the points' labels alone."""
    with drawing():
        figure: Any = charts._figure(block, (), width)
    renderer = figure.canvas.get_renderer()
    texts = figure.axes[0].texts
    found = [text.get_window_extent(renderer) for text in texts]
    return found, [text.get_text() for text in texts if isinstance(text, Annotation)]


def overlapping(found):
    return [(i, j) for i, one in enumerate(found) for j in range(i) if one.overlaps(found[j])]


def crowd(count):
    spots = {"hint": [Spot(around(0.5 + 0.01 * i), around(0.5 + 0.02 * (i % 3)), f"prompt {i}") for i in range(count)]}
    return cost_against_distance(spots)


@pytest.mark.parametrize("count", [1, 2, 5, 30])
@pytest.mark.parametrize("width", [4.3, 7.6])
def test_labels_of_points_do_not_overlap(count, width):
    found, shown = boxes(crowd(count), width)
    assert overlapping(found) == []
    assert len(shown) >= min(count, 5), "there is room for some"
    assert len(shown) == len(set(shown))


def test_negative_control_labels_where_they_fall(monkeypatch):
    monkeypatch.setattr("guardwrap.outcomes.charts.spread_labels", lambda figure, points: None)
    assert overlapping(boxes(crowd(5))[0])


def test_a_label_without_room_is_left_out_and_the_figures_have_it():
    same = Points("p", "x", "y", (Spots("a", tuple(Spot(EXACT, EXACT, f"prompt {i}") for i in range(40))),))
    assert 0 < len(boxes(same)[1]) <= len(charts._PLACES)
    table = charts.chart_table(same)
    assert table is not None
    assert len(table.rows) == 40


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
