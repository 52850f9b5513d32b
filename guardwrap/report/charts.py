"""Charts: drawings for pages and files, their description for screen readers, and their figures as a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from guardwrap.outcomes import Estimate, exactly
from guardwrap.report.blocks import (
    Bar,
    Bars,
    Cell,
    Chart,
    Cloud,
    Curve,
    Curves,
    Heap,
    Points,
    Spots,
    Table,
    in_line,
    in_words,
)
from guardwrap.report.figure_export import COLOURS, INK, LINES, MARKERS, as_png, as_svg, drawing, lay_out, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# Inches. One point of the slim drawing is about one pixel on a phone; of the broad one, 1.7 pixels on a screen.
_WIDTHS = (("slim", 4.3), ("broad", 7.6))
_MOST = 1e100  # larger numbers are treated as infinite
_DESCRIBED = 12  # most points of a curve in its description
_CROWDED = 25  # above this number of points, intervals are drawn as a band
_RASTER = 2000  # above this number of points, a cloud is embedded as a bitmap
_NAME, _AXIS = 40, 46  # characters


def svg_of(block: Chart, name: str, methods: Sequence[str] = ()) -> str:
    """Draw a chart for a page, twice: for a phone (class ``slim``) and for a screen (``broad``).

    ``methods``: all methods of the page, from ``methods_of``; each has one color and one marker. By default the
    chart's.
    """
    with drawing():
        slim, broad = (as_svg(_figure(block, methods, width), f"{name}{kind[0]}", kind) for kind, width in _WIDTHS)
    return slim + broad


def png_of(block: Chart, methods: Sequence[str] = ()) -> bytes:
    """Draw a chart as a PNG file; raise UsageError if matplotlib is not installed."""
    with drawing():
        return as_png(_figure(block, methods, _WIDTHS[0][1]))


def methods_of(blocks: Iterable[Chart]) -> list[str]:
    """Return the methods of charts that are shown together, in order of appearance; each has its own color."""
    return list(dict.fromkeys(_method(one) for block in blocks for one in block.series))


def _method(one: Curve | Spots | Bar | Heap) -> str:
    return one.name if one.method is None else one.method


def can_be_drawn(block: Chart) -> bool:
    """Return whether a chart has any finite point."""
    if isinstance(block, Cloud):
        return any(one.points for one in block.series)
    return any(_known(pair) for one in _pairs(block) for pair in one)


def edges_of(block: Chart) -> str:
    """Return a remark on points and bars that the drawing cuts off, or an empty string."""
    if isinstance(block, Cloud):
        return ""
    pairs = [pair for one in _pairs(block) for pair in one]
    left_out = sum(not _known(pair) for pair in pairs)
    remarks = []
    if left_out:
        remarks.append(f"{left_out} of {len(pairs)} points are not drawn because they have no finite value.")
    if any(not _finite(end) for pair in pairs if _known(pair) for figure in pair for end in figure[1:]):
        remarks.append("A bar without a cap extends beyond the edge.")
    if isinstance(block, Curves) and any(
        (block.log_y and y.value <= 0) or (block.log_x and x.value <= 0) for x, y in filter(_known, pairs)
    ):
        remarks.append("A point at the lower or left edge may lie beyond it.")
    return " ".join(remarks)


def alt_of(block: Chart) -> str:
    """Describe a chart with its figures, for screen readers."""
    title = in_line(block.title).rstrip(".")
    if isinstance(block, Cloud):
        series = [f"{in_line(one.name)}, {len(one.points)} points" for one in block.series]
        return f"{title}: a cloud of points. {'; '.join(series)}."
    x, y = in_line(block.x), in_line(block.y)
    if isinstance(block, Bars):
        series = [
            f"{in_line(one.name)}: "
            + ", ".join(f"{in_words(value)} at {in_line(of)}" for of, value in zip(block.bins, one.values, strict=True))
            for one in block.series
        ]
        return f"{title}: {y} by {x}{_with_intervals(block)}. {'; '.join(series)}."
    names = [in_line(one.name) for one in block.series]
    series = [f"{name}: {_described(pairs)}" for name, pairs in zip(names, _pairs(block), strict=True)]
    scale = ""
    if isinstance(block, Curves):
        series += [f"{in_line(level.name)}: constant at {in_words(level.y)}" for level in block.levels]
        logs = [name for name, log in ((x, block.log_x), (y, block.log_y)) if log]
        scale = f", {' and '.join(logs)} logarithmic" if logs else ""
    return f"{title}: {y} against {x}{scale}{_with_intervals(block)}. {'; '.join(series)}."


def chart_table(block: Chart) -> Table | None:
    """Return the figures of a chart as a table; None for a cloud, whose axes have no meaning."""
    caption = f"Figures: {block.title}"
    if isinstance(block, Cloud):
        return None
    rows: list[tuple[Cell, ...]]
    if isinstance(block, Bars):
        rows = [(of, *(one.values[i] for one in block.series)) for i, of in enumerate(block.bins)]
        return Table(caption, (block.x, *(one.name for one in block.series)), tuple(rows))
    if isinstance(block, Curves):
        rows = [(one.name, point.x, point.y) for one in block.series for point in one.points]
        rows += [(level.name, "constant", level.y) for level in block.levels]
        return Table(caption, ("", block.x, block.y), tuple(rows))
    rows = [
        (one.name if point.label is None else f"{one.name}, {point.label}", point.x, point.y)
        for one in block.series
        for point in one.points
    ]
    return Table(caption, ("", block.x, block.y), tuple(rows))


def _with_intervals(block: Curves | Points | Bars) -> str:
    figures = (figure for one in _pairs(block) for pair in one for figure in pair)
    return ", with 95 % intervals" if any(figure.low < figure.high for figure in figures) else ""


def _described(pairs: Sequence[tuple[Estimate, Estimate]]) -> str:
    """Describe a curve's points; if there are many, the first, the last and some in between."""
    if not pairs:
        return "no points"
    every = max(1, math.ceil((len(pairs) - 1) / (_DESCRIBED - 1)))
    picked = [pair for i, pair in enumerate(pairs) if i % every == 0 or i == len(pairs) - 1]
    points = ", ".join(f"{in_words(y)} at {in_words(_or_number(x))}" for x, y in picked)
    return points if len(picked) == len(pairs) else f"{len(picked)} of {len(pairs)} points: {points}"


def _or_number(x: Estimate) -> Estimate | float:
    return x.value if x.value == x.low == x.high else x


def _pairs(block: Curves | Points | Bars) -> list[list[tuple[Estimate, Estimate]]]:
    """Return the points of each series as pairs of estimates."""
    if isinstance(block, Bars):
        return [[(exactly(i), value) for i, value in enumerate(one.values)] for one in block.series]
    if isinstance(block, Curves):
        return [[(exactly(point.x), point.y) for point in one.points] for one in block.series]
    return [[(point.x, point.y) for point in one.points] for one in block.series]


def _finite(number: float) -> bool:
    return abs(number) < _MOST  # False for NaN


def _known(pair: tuple[Estimate, Estimate]) -> bool:
    return _finite(pair[0].value) and _finite(pair[1].value)


def _figure(block: Chart, methods: Sequence[str], width: float) -> Any:
    names = [one.name for one in block.series] + [level.name for level in getattr(block, "levels", ())]
    columns = round(width / 4) * (2 if all(len(in_line(name, _NAME)) <= 18 for name in names) else 1)
    figure = new_figure(width, 2.4 + 0.12 * width + 0.17 * math.ceil(len(names) / columns))
    axes: Axes = figure.axes[0]
    known = list(dict.fromkeys([*methods, *methods_of([block])]))
    looks = [_look(known.index(_method(one))) for one in block.series]
    draw: dict[type, Callable[[Axes, Any, list[dict[str, Any]]], list[Any]]]
    draw = {Curves: _curves, Points: _points, Bars: _bars, Cloud: _cloud}
    handles = draw[type(block)](axes, block, looks)
    if not isinstance(block, Cloud):
        axes.set(xlabel=in_line(block.x, _AXIS), ylabel=in_line(block.y, _AXIS))
    # matplotlib leaves labels that begin with an underscore out of the legend.
    labels = [f" {label}" if label.startswith("_") else label for label in (in_line(name, _NAME) for name in names)]
    shown = [(handle, label) for handle, label in zip(handles, labels, strict=True) if handle is not None]
    if shown:
        figure.legend(*zip(*shown, strict=True), loc="outside upper left", ncols=columns)
    lay_out(figure)
    if isinstance(block, Points):
        drawn = [pair for pairs in _pairs(block) for pair in pairs if _known(pair)]
        spread_labels(figure, [(x.value, y.value) for x, y in drawn])
    return figure


def _look(i: int) -> dict[str, Any]:
    return {
        "color": COLOURS[i % len(COLOURS)],
        "marker": MARKERS[i % len(MARKERS)],
        "markersize": 4.5,
        "linestyle": LINES[i // len(COLOURS) % len(LINES)],
    }


def _curves(axes: Axes, block: Curves, looks: list[dict[str, Any]]) -> list[Any]:
    series = [[pair for pair in pairs if _known(pair)] for pairs in _pairs(block)]
    levels = [exactly(level.y) for level in block.levels if _finite(level.y)]
    xs, log_x = _range([x for pairs in series for x, _ in pairs], block.log_x)
    ys, log_y = _range([*(y for pairs in series for _, y in pairs), *levels], block.log_y)
    handles: list[Any] = []
    for i, pairs in enumerate(series):
        at = [min(max(x.value, xs[0]), xs[1]) for x, _ in pairs]
        values, bars = _cut([y for _, y in pairs], ys)
        look = {**looks[i], "linewidth": 1.2}
        if not pairs:
            handles.append(None)
        elif all(y.low == y.high for _, y in pairs):  # without intervals
            handles += axes.plot(at, values, **{**look, "linestyle": "--"}, markerfacecolor="none")
        elif len(pairs) > _CROWDED:
            handles += axes.plot(at, values, **{**look, "marker": ""})
            lows = [value - down for value, down in zip(values, bars[0], strict=True)]
            highs = [value + up for value, up in zip(values, bars[1], strict=True)]
            axes.fill_between(at, lows, highs, color=look["color"], alpha=0.2, linewidth=0)
        else:
            handles.append(axes.errorbar(at, values, yerr=bars, capsize=2.5, elinewidth=0.9, **look))
    for i, level in enumerate(block.levels):
        style = (0, (1, 1 + i % 4))
        shown = _finite(level.y) and ys[0] <= level.y <= ys[1]
        handles.append(axes.axhline(level.y, color=INK, linewidth=1, linestyle=style) if shown else None)
    axes.set(xlim=xs, ylim=ys, xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
    for axis, log, (low, high) in ((axes.xaxis, log_x, xs), (axes.yaxis, log_y, ys)):
        if log:
            _ticks(axis, high / low)
    return handles


def _points(axes: Axes, block: Points, looks: list[dict[str, Any]]) -> list[Any]:
    series = [[pair for pair in pairs if _known(pair)] for pairs in _pairs(block)]
    xs, _ = _range([x for pairs in series for x, _ in pairs], False)
    ys, _ = _range([y for pairs in series for _, y in pairs], False)
    axes.set(xlim=xs, ylim=ys)
    for total in block.diagonals:
        _diagonal(axes, total, xs, ys)
    handles: list[Any] = []
    for i, (one, pairs) in enumerate(zip(block.series, series, strict=True)):
        across, across_bars = _cut([x for x, _ in pairs], xs)
        up, up_bars = _cut([y for _, y in pairs], ys)
        if not pairs:
            handles.append(None)
            continue
        look: dict[str, Any] = {
            "color": looks[i]["color"],
            "fmt": "none",
            "elinewidth": 0.9,
            "capsize": 2.5,
            "zorder": 3,
        }
        axes.errorbar(across, up, xerr=across_bars, yerr=up_bars, **look)
        # Markers on an axis are drawn whole; only bars are clipped at the edge.
        handles += axes.plot(across, up, **(looks[i] | {"linestyle": "none"}), clip_on=False, zorder=3)
        for point, x, y in zip((p for p in one.points if _known((p.x, p.y))), across, up, strict=True):
            if point.label is not None:
                label = in_line(point.label, 24)
                axes.annotate(label, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8)
    return handles


def _diagonal(axes: Axes, total: float, xs: tuple[float, float], ys: tuple[float, float]) -> None:
    """Draw the line x + y = total, labeled near the upper or right edge."""
    left, right = max(xs[0], total - ys[1]), min(xs[1], total - ys[0])
    if not left < right:
        return
    axes.plot([left, right], [total - left, total - right], color=INK, alpha=0.5, linewidth=0.8, linestyle=":")
    inset = 0.03 * (ys[1] - ys[0])
    width = xs[1] - xs[0]
    x = max(left + 0.01 * width, total - ys[1] + inset)
    if x < xs[1] - 0.06 * width:
        axes.text(x, total - x, in_words(total), fontsize=8, alpha=0.85, ha="left", va="center")


def _bars(axes: Axes, block: Bars, looks: list[dict[str, Any]]) -> list[Any]:
    every = [pair for pairs in _pairs(block) for pair in pairs if _known(pair)]
    low, high = _range([y for _, y in every], False)[0]
    handles: list[Any] = []
    width = 0.8 / max(1, len(block.series))
    for i, pairs in enumerate(_pairs(block)):
        known = [pair for pair in pairs if _known(pair)]
        at = [x.value + (i + 0.5) * width - 0.4 for x, _ in known]
        values, bars = _cut([y for _, y in known], (low, high))
        look = looks[i]
        axes.bar(at, values, width=0.9 * width, color=look["color"], alpha=0.45)
        look = look | {"linestyle": "none", "elinewidth": 0.9, "capsize": 2, "markersize": 3.5}
        handles.append(axes.errorbar(at, values, yerr=bars, **look) if known else None)
    labels = [in_line(of, 18) for of in block.bins]
    figure: Any = axes.figure
    inches = figure.get_figwidth()
    every_nth = math.ceil(len(labels) / (5 * inches))  # rotated labels fit 5 per inch
    crowded = sum(len(label) + 1 for label in labels) > 10 * inches
    ticks = range(0, len(labels), every_nth)
    axes.set_xticks(list(ticks), [labels[i] for i in ticks], rotation=90 if crowded else 0)
    axes.grid(visible=False, axis="x")
    axes.set(xlim=(-0.6, max(len(labels), 1) - 0.4), ylim=(low, high))
    return handles


def _cloud(axes: Axes, block: Cloud, looks: list[dict[str, Any]]) -> list[Any]:
    handles: list[Any] = []
    many = sum(len(one.points) for one in block.series) > _RASTER
    for i, one in enumerate(block.series):
        places = [place for place in one.points if _finite(place[0]) and _finite(place[1])]
        look = {**looks[i], "markersize": 3.5, "linestyle": "none", "alpha": 0.75, "markeredgewidth": 0}
        handles += axes.plot(*zip(*places, strict=True), **look, rasterized=many) if places else [None]
    axes.set(xticks=[], yticks=[], xmargin=0.05, ymargin=0.05)
    axes.spines[["top", "right"]].set_visible(True)
    return handles


def _range(figures: Sequence[Estimate], log: bool) -> tuple[tuple[float, float], bool]:
    """Return the limits of an axis, and whether it is logarithmic.

    The ends of intervals are inside the limits unless that would squeeze the values.
    """
    values = [figure.value for figure in figures]
    positive = [value for value in values if value > 1 / _MOST]
    if log and positive:
        low, high = min(positive), max(positive)
        ends = [end for figure in figures for end in figure if low / 10 <= end <= high * 10]
        return (0.8 * min([low, *ends]), 1.25 * max([high, *ends])), True
    low, high = min([0.0, *values]), max([0.0, *values])
    reach = 1.5 * (high - low)
    ends = [end for figure in figures for end in figure if low - reach <= end <= high + reach]
    top, bottom = max([high, *ends]), min([low, *ends])
    margin = 0.06 * (top - bottom) or 1.0
    return (bottom - margin if bottom < 0 else 0.0, top + margin), False


def _cut(figures: Sequence[Estimate], ends: tuple[float, float]) -> tuple[list[float], list[list[float]]]:
    """Return values and the lengths of their intervals down and up, clipped to the axis."""
    low, high = ends
    values = [min(max(figure.value, low), high) for figure in figures]
    # Clipped intervals end past the edge, so that their cap is not visible.
    beyond = (low - (high - low) if low <= 0 else low / 10, high + (high - low))
    lows = [max(figure.low, beyond[0]) for figure in figures]
    highs = [min(figure.high, beyond[1]) for figure in figures]
    return values, [
        [max(value - end, 0.0) for value, end in zip(values, lows, strict=True)],
        [max(end - value, 0.0) for value, end in zip(values, highs, strict=True)],
    ]


def _ticks(axis: Any, ratio: float) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if ratio < 1e3 else (1,), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: in_words(float(value))))
    axis.set_minor_locator(NullLocator())


_PLACES = (
    (4, 4, "left", "bottom"), (4, -4, "left", "top"), (-4, 4, "right", "bottom"), (-4, -4, "right", "top"),
    (0, 7, "center", "bottom"), (0, -7, "center", "top"), (8, 0, "left", "center"), (-8, 0, "right", "center"),
    (4, 14, "left", "bottom"), (4, -14, "left", "top"), (-4, 14, "right", "bottom"), (-4, -14, "right", "top"),
    (4, 24, "left", "bottom"), (4, -24, "left", "top"), (-4, 24, "right", "bottom"), (-4, -24, "right", "top"),
)  # fmt: skip
"""Offsets from the point, in typographic points, and the alignment of the label there."""

_MARKER = 3.5  # radius of a marker, in typographic points


def spread_labels(figure: Figure, points: Sequence[tuple[float, float]]) -> None:
    """Move labels of points away from each other, from markers and from the edge; remove those without room.

    The table below a chart has all labels. Labels of points have priority over numbers at lines.
    """
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox

    axes = figure.axes[0]
    renderer: Any = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    half = _MARKER * figure.dpi / 72
    taken = [
        Bbox.from_extents(x - half, y - half, x + half, y + half)
        for x, y in axes.transData.transform(points or [(0, 0)])
    ]
    taken += [label.get_window_extent(renderer) for axis in (axes.xaxis, axes.yaxis) for label in axis.get_ticklabels()]
    labels = [text for text in axes.texts if isinstance(text, Annotation)]
    numbers = [text for text in axes.texts if not isinstance(text, Annotation)]
    for text in [*labels, *numbers]:
        for place in _PLACES if isinstance(text, Annotation) else (None,):
            if place is not None:
                text.set(position=place[:2], horizontalalignment=place[2], verticalalignment=place[3])
            box = text.get_window_extent(renderer)
            inside = figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and box.y1 <= axes.bbox.y1 + 2 * half
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
        else:
            text.remove()
