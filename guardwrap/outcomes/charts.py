"""Charts: drawings by matplotlib for pages and files, their description for screen readers, and their figures.

matplotlib's global state stays as it is.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from guardwrap.errors import UsageError
from guardwrap.outcomes import Estimate, exactly
from guardwrap.outcomes.blocks import (
    Bar,
    Bars,
    Cell,
    Chart,
    Cloud,
    Curves,
    Points,
    Series,
    Table,
    in_line,
    in_words,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Pair = tuple[Estimate, Estimate]
Ends = tuple[float, float]

# Okabe and Ito's colors for color-blind readers, as far as they are visible on white and on black; then others, which
# differ by their markers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8A63D2", "#A87900", "#00939E", "#7A8288")
MARKERS = ("o", "s", "D", "^", "v", "P")
LINES = ("-", "-.", (0, (5, 2)))
INK = "#010203"
"""Color of text and axes: nearly black in a PNG file; in SVG it is replaced by the page's text color."""

_STYLE: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.unicode_minus": False,
    "font.size": 9.0,
    "grid.alpha": 0.15,
    "grid.color": INK,
    "legend.frameon": False,
    "svg.fonttype": "none",  # keep text as text, not as paths
    "svg.hashsalt": "guardwrap",  # the same chart gives the same bytes
    "text.color": INK,
    "text.parse_math": False,  # a name may contain a $
    "xtick.color": INK,
    "ytick.color": INK,
}

# Inches. One point of the slim drawing is about one pixel on a phone; of the broad one, 1.7 pixels on a screen.
_WIDTHS = (("slim", 4.3), ("broad", 7.6))
_MOST = 1e100  # larger numbers are treated as infinite
_CROWDED = 25  # above this number of points, intervals are drawn as a band
_RASTER = 2000  # above this number of points, a cloud is embedded as a bitmap
_NAME, _AXIS = 40, 46  # characters


def require_matplotlib() -> None:
    """Raise UsageError that names the package to install if matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError("plots need matplotlib: pip install 'guardwrap[plots]'") from None


@contextmanager
def drawing() -> Iterator[None]:
    """Set guardwrap's style within a ``with`` block; restore matplotlib's settings afterwards."""
    require_matplotlib()
    import matplotlib as mpl

    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # The font may lack the script of a name; the browser still shows it.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing|Matplotlib currently does not support")
        yield


def svg_of(block: Chart, name: str, methods: Sequence[str] = ()) -> str:
    """Draw a chart for a page, twice: for a phone (class ``slim``) and for a screen (``broad``).

    ``methods``: all methods of the page, from ``methods_of``; each has one color and one marker. By default the
    chart's.
    """
    with drawing():
        return "".join(_svg(_figure(block, methods, width), f"{name}{kind[0]}", kind) for kind, width in _WIDTHS)


def _svg(figure: Figure, name: str, kind: str) -> str:
    file = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = file.getvalue()
    start, rest = svg[svg.index("<svg") :].split(">", 1)
    box = re.search(r'viewBox="[^"]*"', start)
    # Metadata and namespaces refer to other sites, and inline SVG does not require them.
    rest = re.sub(r"<metadata>.*?</metadata>", "", rest, flags=re.DOTALL).replace("xlink:href=", "href=")
    rest = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", rest)
    rest = rest.replace(INK, "currentColor")
    return f'<svg class="{kind}" {box.group() if box else ""} aria-hidden="true" focusable="false">{rest.rstrip()}'


def png_of(block: Chart, methods: Sequence[str] = ()) -> bytes:
    """Draw a chart as a PNG file on white; raise UsageError if matplotlib is not installed."""
    file = io.BytesIO()
    with drawing():
        _figure(block, methods, _WIDTHS[0][1]).savefig(file, format="png", dpi=200, facecolor="white")
    return file.getvalue()


def methods_of(blocks: Iterable[Chart]) -> list[str]:
    """Return the methods of charts that are shown together, in order of appearance; each has its own color."""
    return list(dict.fromkeys(_method(series) for block in blocks for series in block.series))


def _method(series: Series[Any] | Bar) -> str:
    return series.name if series.method is None else series.method


def can_be_drawn(block: Chart) -> bool:
    """Return whether a chart has any finite point."""
    return any(_known(pair) for pairs in _pairs(block) for pair in pairs)


def edges_of(block: Chart) -> str:
    """Return a remark on points and bars that the drawing cuts off, or an empty string."""
    pairs = [pair for pairs in _pairs(block) for pair in pairs]
    known = [pair for pair in pairs if _known(pair)]
    remarks = []
    if left_out := len(pairs) - len(known):
        remarks.append(f"{left_out} of {len(pairs)} points are not drawn because they have no finite value.")
    if any(not _finite(end) for pair in known for figure in pair for end in figure[1:]):
        remarks.append("A bar without a cap extends beyond the edge.")
    if isinstance(block, Curves) and any(
        (block.log_y and y.value <= 0) or (block.log_x and x.value <= 0) for x, y in known
    ):
        remarks.append("A point at the lower or left edge may lie beyond it.")
    return " ".join(remarks)


def alt_of(block: Chart) -> str:
    """Describe a chart for screen readers. Its figures are in the table below it, from ``chart_table``."""
    title = in_line(block.title).rstrip(".")
    names = "; ".join(in_line(each.name) for each in (*block.series, *getattr(block, "levels", ())))
    if isinstance(block, Cloud):
        return f"{title}: a cloud of points. {names}."
    return f"{title}: {in_line(block.y)} against {in_line(block.x)}. {names}. The figures are in the table below."


def chart_table(block: Chart) -> Table | None:
    """Return the figures of a chart as a table; None for a cloud, whose axes have no meaning."""
    if isinstance(block, Cloud):
        return None
    columns: tuple[str, ...] = ("", block.x, block.y)
    rows: list[tuple[Cell, ...]]
    if isinstance(block, Bars):
        columns = (block.x, *(one.name for one in block.series))
        rows = [(of, *(one.values[i] for one in block.series)) for i, of in enumerate(block.bins)]
    elif isinstance(block, Curves):
        rows = [(one.name, point.x, point.y) for one in block.series for point in one.points]
        rows += [(level.name, "constant", level.y) for level in block.levels]
    else:
        rows = [
            (one.name if point.label is None else f"{one.name}, {point.label}", point.x, point.y)
            for one in block.series
            for point in one.points
        ]
    return Table(f"Figures: {block.title}", columns, tuple(rows))


def _pairs(block: Chart) -> list[list[Pair]]:
    """Return the points of each series as pairs of estimates."""
    if isinstance(block, Bars):
        return [[(exactly(i), value) for i, value in enumerate(one.values)] for one in block.series]
    if isinstance(block, Curves):
        return [[(exactly(point.x), point.y) for point in one.points] for one in block.series]
    if isinstance(block, Cloud):
        return [[(exactly(x), exactly(y)) for x, y in one.points] for one in block.series]
    return [[(point.x, point.y) for point in one.points] for one in block.series]


def _finite(number: float) -> bool:
    return abs(number) < _MOST  # False for NaN


def _known(pair: Pair) -> bool:
    return _finite(pair[0].value) and _finite(pair[1].value)


def _figure(block: Chart, methods: Sequence[str], width: float) -> Figure:
    """Draw a chart, without pyplot, which would set a backend for the whole process."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = [one.name for one in block.series] + [level.name for level in getattr(block, "levels", ())]
    columns = round(width / 4) * (2 if all(len(in_line(name, _NAME)) <= 18 for name in names) else 1)
    height = 2.4 + 0.12 * width + 0.17 * math.ceil(len(names) / columns)
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    known = list(dict.fromkeys([*methods, *methods_of([block])]))
    looks = [_look(known.index(_method(one))) for one in block.series]
    series = [[pair for pair in pairs if _known(pair)] for pairs in _pairs(block)]
    handles = _drawn(axes, block, series, looks)
    # matplotlib leaves labels that begin with an underscore out of the legend.
    labels = [f" {label}" if label.startswith("_") else label for label in (in_line(name, _NAME) for name in names)]
    shown = [(handle, label) for handle, label in zip(handles, labels, strict=True) if handle is not None]
    if shown:
        figure.legend(*zip(*shown, strict=True), loc="outside upper left", ncols=columns)
    # The layout runs once; its engine would otherwise draw each file twice.
    figure.get_layout_engine().execute(figure)  # type: ignore[union-attr]
    figure.set_layout_engine(None)
    if isinstance(block, Points):
        spread_labels(figure, [(x.value, y.value) for pairs in series for x, y in pairs])
    return figure


def _look(i: int) -> dict[str, Any]:
    return {
        "color": COLOURS[i % len(COLOURS)],
        "marker": MARKERS[i % len(MARKERS)],
        "markersize": 4.5,
        "linestyle": LINES[i // len(COLOURS) % len(LINES)],
    }


def _drawn(axes: Axes, block: Chart, series: list[list[Pair]], looks: list[dict[str, Any]]) -> list[Any]:
    """Draw axes and series; return what the legend shows of each series and level, None for one without points."""
    if isinstance(block, Cloud):
        axes.set(xticks=[], yticks=[], xmargin=0.05, ymargin=0.05)
        axes.spines[["top", "right"]].set_visible(True)
        many = sum(map(len, series)) > _RASTER
        return [_dots(axes, pairs, look, many) if pairs else None for pairs, look in zip(series, looks, strict=True)]
    levels = [exactly(level.y) for level in getattr(block, "levels", ()) if _finite(level.y)]
    xs, log_x = _range([x for pairs in series for x, _ in pairs], getattr(block, "log_x", False))
    ys, log_y = _range([*(y for pairs in series for _, y in pairs), *levels], getattr(block, "log_y", False))
    axes.set(xlabel=in_line(block.x, _AXIS), ylabel=in_line(block.y, _AXIS), xlim=xs, ylim=ys,
             xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")  # fmt: skip
    for axis, log, (low, high) in ((axes.xaxis, log_x, xs), (axes.yaxis, log_y, ys)):
        if log:
            _ticks(axis, high / low)
    handles: list[Any] = []
    if isinstance(block, Points):
        for total in block.diagonals:
            _diagonal(axes, total, xs, ys)
    if isinstance(block, Bars):
        _name_bins(axes, block.bins)
    for i, pairs in enumerate(series):
        if not pairs:
            handles.append(None)
        elif isinstance(block, Bars):
            width = 0.8 / len(block.series)
            handles.append(_bars(axes, [(x.value + (i + 0.5) * width - 0.4, y) for x, y in pairs], ys, width, looks[i]))
        elif isinstance(block, Points):
            labels = [point.label for point in block.series[i].points if _known((point.x, point.y))]
            handles.append(_points(axes, pairs, labels, xs, ys, looks[i]))
        else:
            handles.append(_curve(axes, pairs, xs, ys, looks[i]))
    for i, level in enumerate(getattr(block, "levels", ())):
        style = (0, (1, 1 + i % 4))
        shown = _finite(level.y) and ys[0] <= level.y <= ys[1]
        handles.append(axes.axhline(level.y, color=INK, linewidth=1, linestyle=style) if shown else None)
    return handles


def _dots(axes: Axes, pairs: Sequence[Pair], look: dict[str, Any], many: bool) -> Any:
    look = {**look, "markersize": 3.5, "linestyle": "none", "alpha": 0.75, "markeredgewidth": 0}
    return axes.plot([x.value for x, _ in pairs], [y.value for _, y in pairs], **look, rasterized=many)[0]


def _curve(axes: Axes, pairs: Sequence[Pair], xs: Ends, ys: Ends, look: dict[str, Any]) -> Any:
    at = _cut([x for x, _ in pairs], xs)[0]
    values, bars = _cut([y for _, y in pairs], ys)
    look = {**look, "linewidth": 1.2}
    if all(y.low == y.high for _, y in pairs):  # without intervals
        return axes.plot(at, values, **{**look, "linestyle": "--"}, markerfacecolor="none")[0]
    if len(pairs) > _CROWDED:
        axes.fill_between(at, values - bars[0], values + bars[1], color=look["color"], alpha=0.2, linewidth=0)
        return axes.plot(at, values, **{**look, "marker": ""})[0]
    return axes.errorbar(at, values, yerr=bars, capsize=2.5, elinewidth=0.9, **look)


def _points(
    axes: Axes, pairs: Sequence[Pair], labels: Sequence[str | None], xs: Ends, ys: Ends, look: dict[str, Any]
) -> Any:
    across, across_bars = _cut([x for x, _ in pairs], xs)
    up, up_bars = _cut([y for _, y in pairs], ys)
    axes.errorbar(across, up, xerr=across_bars, yerr=up_bars, color=look["color"], fmt="none", elinewidth=0.9,
                  capsize=2.5, zorder=3)  # fmt: skip
    for label, x, y in zip(labels, across, up, strict=True):
        if label is not None:
            axes.annotate(in_line(label, 24), (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8)
    # Markers on an axis are drawn whole; only bars are clipped at the edge.
    return axes.plot(across, up, **(look | {"linestyle": "none"}), clip_on=False, zorder=3)[0]


def _diagonal(axes: Axes, total: float, xs: Ends, ys: Ends) -> None:
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


def _bars(axes: Axes, bars: Sequence[tuple[float, Estimate]], ys: Ends, width: float, look: dict[str, Any]) -> Any:
    at = [x for x, _ in bars]
    values, lengths = _cut([y for _, y in bars], ys)
    axes.bar(at, values, width=0.9 * width, color=look["color"], alpha=0.45)
    look = look | {"linestyle": "none", "elinewidth": 0.9, "capsize": 2, "markersize": 3.5}
    return axes.errorbar(at, values, yerr=lengths, **look)


def _name_bins(axes: Axes, bins: Sequence[str]) -> None:
    labels = [in_line(name, 18) for name in bins]
    inches = axes.get_figure(root=True).get_figwidth()  # type: ignore[union-attr]
    ticks = range(0, len(labels), math.ceil(len(labels) / (5 * inches)) or 1)  # rotated labels fit 5 per inch
    crowded = sum(len(label) + 1 for label in labels) > 10 * inches
    axes.set_xticks(list(ticks), [labels[i] for i in ticks], rotation=90 if crowded else 0)
    axes.grid(visible=False, axis="x")
    axes.set(xlim=(-0.6, max(len(labels), 1) - 0.4))


def _range(figures: Sequence[Estimate], log: bool) -> tuple[Ends, bool]:
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


def _cut(figures: Sequence[Estimate], ends: Ends) -> tuple[Any, Any]:
    """Return values ``[n]`` and the lengths of their intervals down and up ``[2, n]``, clipped to the axis."""
    low, high = ends
    # Clipped intervals end past the edge, so that their cap is not visible.
    beyond = (low - (high - low) if low <= 0 else low / 10, high + (high - low))
    values, lows, highs = np.array(figures, float).T
    values = values.clip(low, high)
    return values, np.fmax([values - lows.clip(beyond[0]), highs.clip(max=beyond[1]) - values], 0.0)


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
