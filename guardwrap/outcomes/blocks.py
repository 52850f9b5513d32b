"""A page as plain data: sections of blocks with figures and texts, without HTML or drawings.

``page.json`` holds it. In JSON an ``Estimate`` is ``{"value", "low", "high"}``; a null bound is infinite. Each block
has a ``kind``.
"""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import Discriminator, InstanceOf, PlainValidator

from guardwrap.errors import UsageError
from guardwrap.outcomes import Estimate
from guardwrap.support.formatting import digits


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
_Point = TypeVar("_Point")


class Strict:
    """Base of dataclasses that are read from files: pydantic rejects unknown fields."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


@dataclass(frozen=True)
class Text(Strict):
    """A paragraph; line breaks are kept."""

    text: str
    caption: str | None = None
    kind: Literal["text"] = "text"


@dataclass(frozen=True)
class Note(Strict):
    """A warning to the reader."""

    text: str
    caption: str | None = None
    kind: Literal["note"] = "note"


@dataclass(frozen=True)
class Table(Strict):
    """A table; the first cell of a row names it."""

    caption: str | None
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    kind: Literal["table"] = "table"

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise UsageError(f"row {number} has {len(row)} cells for {len(self.columns)} columns")


@dataclass(frozen=True)
class Series(Strict, Generic[_Point]):
    """Named points; all series with the same ``method`` (default: the name) share one color on a page."""

    name: str
    points: tuple[_Point, ...]
    method: str | None = None


@dataclass(frozen=True)
class CurvePoint(Strict):
    """A point of a curve."""

    x: _Number
    y: InstanceOf[Estimate]


Curve = Series[CurvePoint]


@dataclass(frozen=True)
class Level(Strict):
    """A named horizontal line for comparison."""

    name: str
    y: _Number


@dataclass(frozen=True)
class Curves(Strict):
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
class Spot(Strict):
    """A point with an interval in each direction."""

    x: InstanceOf[Estimate]
    y: InstanceOf[Estimate]
    label: str | None = None


Spots = Series[Spot]


@dataclass(frozen=True)
class Points(Strict):
    """A scatter plot; each of ``diagonals`` is the line x + y = that number (Theorem 2)."""

    title: str
    x: str
    y: str
    series: tuple[Spots, ...]
    diagonals: tuple[_Number, ...] = ()
    caption: str | None = None
    kind: Literal["points"] = "points"


@dataclass(frozen=True)
class Bar(Strict):
    """Named values, one per bin; otherwise like ``Series``."""

    name: str
    values: tuple[InstanceOf[Estimate], ...]
    method: str | None = None


@dataclass(frozen=True)
class Bars(Strict):
    """Grouped bars in bins."""

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


Heap = Series[tuple[_Number, _Number]]


@dataclass(frozen=True)
class Cloud(Strict):
    """A scatter plot without axes, such as a UMAP projection."""

    title: str
    series: tuple[Heap, ...]
    caption: str | None = None
    kind: Literal["cloud"] = "cloud"


@dataclass(frozen=True)
class SampleText(Strict):
    """A text that satisfies its constraint, with highlighted spans: begin and end in characters."""

    text: str
    spans: tuple[tuple[_Whole, _Whole], ...] = ()

    def __post_init__(self) -> None:
        for begin, end in self.spans:
            if not 0 <= begin <= end <= len(self.text):
                raise UsageError(f"the span [{begin}, {end}] is not inside the text of {len(self.text)} characters")


@dataclass(frozen=True)
class Texts(Strict):
    """Sample texts."""

    title: str
    texts: tuple[SampleText, ...]
    caption: str | None = None
    kind: Literal["texts"] = "texts"


Chart = Curves | Points | Bars | Cloud
Block = Annotated[Text | Note | Table | Curves | Points | Bars | Cloud | Texts, Discriminator("kind")]


@dataclass(frozen=True)
class Section(Strict):
    """A titled part of a page."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Page(Strict):
    """The content of a page."""

    title: str
    sections: tuple[Section, ...]


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
