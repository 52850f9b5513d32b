"""A page as plain data: sections of blocks with figures and texts, without HTML or drawings.

``page.json`` holds it. In JSON an ``Estimate`` is ``{"value", "low", "high"}``; a null bound is infinite. Each block
has a ``kind``.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, InstanceOf, PlainValidator

from guardwrap.errors import UsageError
from guardwrap.formatting import digits
from guardwrap.outcomes import Estimate


def _cell(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float | Estimate | None):
        raise ValueError("a cell is a text, a number, null, or {value, low, high} with numbers or nulls")
    return value


def _number(value: Any) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise ValueError("give a finite number")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("give a whole number")
    return value


Cell = Annotated[str | int | float | Estimate | None, PlainValidator(_cell)]
_Number = Annotated[float, PlainValidator(_number)]
_Whole = Annotated[int, PlainValidator(_whole)]


class _Strict:
    """Base of all blocks: pydantic rejects unknown fields."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


@dataclass(frozen=True)
class Text(_Strict):
    """A paragraph; line breaks are kept."""

    text: str
    caption: str | None = None
    kind: Literal["text"] = "text"


@dataclass(frozen=True)
class Note(_Strict):
    """A warning to the reader."""

    text: str
    caption: str | None = None
    kind: Literal["note"] = "note"


@dataclass(frozen=True)
class Table(_Strict):
    """A table; the first cell of a row names it.

    Raises
    ------
    UsageError
        If a row has another number of cells than there are columns.
    """

    caption: str | None
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    kind: Literal["table"] = "table"

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise UsageError(f"row {number} has {len(row)} cells for {len(self.columns)} columns")


@dataclass(frozen=True)
class CurvePoint(_Strict):
    """A point of a curve."""

    x: _Number
    y: InstanceOf[Estimate]


@dataclass(frozen=True)
class Curve(_Strict):
    """A named line; all series with the same ``method`` (default: the name) share one color on a page."""

    name: str
    points: tuple[CurvePoint, ...]
    method: str | None = None


@dataclass(frozen=True)
class Level(_Strict):
    """A named horizontal line for comparison."""

    name: str
    y: _Number


@dataclass(frozen=True)
class Curves(_Strict):
    """Curves with intervals; ``x`` and ``y`` are the axis titles, with units."""

    title: str
    x: str
    y: str
    series: tuple[Curve, ...]
    log_x: bool = False
    log_y: bool = False
    levels: tuple[Level, ...] = ()
    caption: str | None = None
    kind: Literal["curves"] = "curves"


@dataclass(frozen=True)
class Spot(_Strict):
    """A point with an interval in each direction."""

    x: InstanceOf[Estimate]
    y: InstanceOf[Estimate]
    label: str | None = None


@dataclass(frozen=True)
class Spots(_Strict):
    """A named series of points; all series with the same ``method`` (default: the name) share one color on a page."""

    name: str
    points: tuple[Spot, ...]
    method: str | None = None


@dataclass(frozen=True)
class Points(_Strict):
    """A scatter plot; each of ``diagonals`` is the line x + y = that number (Theorem 2)."""

    title: str
    x: str
    y: str
    series: tuple[Spots, ...]
    diagonals: tuple[_Number, ...] = ()
    caption: str | None = None
    kind: Literal["points"] = "points"


@dataclass(frozen=True)
class Bar(_Strict):
    """A named value per bin; all series with the same ``method`` (default: the name) share one color on a page."""

    name: str
    values: tuple[InstanceOf[Estimate], ...]
    method: str | None = None


@dataclass(frozen=True)
class Bars(_Strict):
    """Grouped bars in bins.

    Raises
    ------
    UsageError
        If a series has another number of values than there are bins.
    """

    title: str
    x: str
    y: str
    bins: tuple[str, ...]
    series: tuple[Bar, ...]
    caption: str | None = None
    kind: Literal["bars"] = "bars"

    def __post_init__(self) -> None:
        for number, one in enumerate(self.series):
            if len(one.values) != len(self.bins):
                raise UsageError(f"series {number} has {len(one.values)} values for {len(self.bins)} bins")


@dataclass(frozen=True)
class Heap(_Strict):
    """A named series of points in a cloud; all series with the same ``method`` (default: the name) share one color."""

    name: str
    points: tuple[tuple[_Number, _Number], ...]
    method: str | None = None


@dataclass(frozen=True)
class Cloud(_Strict):
    """A scatter plot without axes, such as a UMAP projection."""

    title: str
    series: tuple[Heap, ...]
    caption: str | None = None
    kind: Literal["cloud"] = "cloud"


@dataclass(frozen=True)
class SampleText(_Strict):
    """A text that satisfies its constraint, with highlighted spans: begin and end in characters.

    Raises
    ------
    UsageError
        If a span is not inside the text.
    """

    text: str
    spans: tuple[tuple[_Whole, _Whole], ...] = ()

    def __post_init__(self) -> None:
        for begin, end in self.spans:
            if not 0 <= begin <= end <= len(self.text):
                raise UsageError(f"the span [{begin}, {end}] is not inside the text of {len(self.text)} characters")


@dataclass(frozen=True)
class Texts(_Strict):
    """Sample texts."""

    title: str
    texts: tuple[SampleText, ...]
    caption: str | None = None
    kind: Literal["texts"] = "texts"


Chart = Curves | Points | Bars | Cloud
Block = Annotated[Text | Note | Table | Curves | Points | Bars | Cloud | Texts, Discriminator("kind")]


@dataclass(frozen=True)
class Section(_Strict):
    """A titled part of a page."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Page(_Strict):
    """The content of a page."""

    title: str
    sections: tuple[Section, ...]


def cost_against_distance(found: Mapping[str, Sequence[Spot]]) -> Points:
    """Return the chart of proposals by their cost and the distance of their texts to g.

    Parameters
    ----------
    found
        For each proposal by name, its spots: x is -log AR from ``minus_log``, y is KL(g‖g'), both in nats.
    """
    shown = [spot for spots in found.values() for spot in spots]
    shown = [spot for spot in shown if math.isfinite(spot.x.value) and math.isfinite(spot.y.value)]
    most = max([spot.x.value for spot in shown], default=0) + max([spot.y.value for spot in shown], default=0)
    step = _nice(max(most, 0.5) / 5)
    return Points(
        "Cost against distance",
        "cost: -log acceptance rate [nats]",
        "KL(g‖g') [nats]",
        tuple(Spots(name, tuple(spots)) for name, spots in found.items()),
        tuple(i * step for i in range(1, 9)),
        "KL(g‖a') is constant along each dotted diagonal (Theorem 2); the label is its value in nats.",
    )


def minus_log(rate: Estimate) -> Estimate:
    """Return -log of an acceptance rate, in nats."""
    value, low, high = (-math.log(x) if x > 0 else math.inf for x in (rate.value, rate.high, rate.low))
    return Estimate(max(value, 0.0), max(low, 0.0), high)


def _nice(step: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power: float = 10.0 ** math.floor(math.log10(step))
    return next(x * power for x in (1, 2, 5, 10) if x * power >= step * (1 - 1e-9))


UNKNOWN = "–"


def in_words(figure: Estimate | float | str | None) -> str:
    """Format a figure, an estimate with its 95 % interval; return text unchanged."""
    if figure is None or (isinstance(figure, float) and math.isnan(figure)):
        return UNKNOWN
    if isinstance(figure, str):
        return figure
    if isinstance(figure, Estimate):
        return f"{in_words(float(figure.value))} [{in_words(float(figure.low))}, {in_words(float(figure.high))}]"
    if isinstance(figure, int):
        return str(figure)
    return digits(figure)


def in_line(text: str, width: int | None = None) -> str:
    """Put a name on one line, shortened to ``width`` characters."""
    line = " ".join(visible(text).split())
    return line if width is None or len(line) <= width else f"{line[: width - 1]}…"


def visible(text: str) -> str:
    """Replace each control character and lone surrogate, which HTML cannot hold, with U+FFFD."""
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) not in ("Cc", "Cs") else "\ufffd" for char in text
    )
