"""A page as plain data, as ``page.json`` holds it: sections of blocks, figures and texts without HTML or drawings.

In JSON an ``Estimate`` is ``{"value", "low", "high"}``, and a bound that is null is no bound. A block names its
``kind``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, InstanceOf, PlainValidator

from guardwrap.errors import UsageError
from guardwrap.outcomes import Estimate

__all__ = [
    "Bar",
    "Bars",
    "Block",
    "Cell",
    "Chart",
    "Cloud",
    "Curve",
    "CurvePoint",
    "Curves",
    "Heap",
    "Level",
    "Note",
    "Page",
    "Points",
    "SampleText",
    "Section",
    "Spot",
    "Spots",
    "Table",
    "Text",
    "Texts",
]


def _cell(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float | Estimate | None):
        raise ValueError("a cell is text, a number, null or {value, low, high}, each a number or null")
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
    """Read by pydantic: a field that nobody knows is refused."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


@dataclass(frozen=True)
class Text(_Strict):
    """Running text; line breaks stay."""

    text: str
    caption: str | None = None
    kind: Literal["text"] = "text"


@dataclass(frozen=True)
class Note(_Strict):
    """What a reader should beware of."""

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
    """A line with its name; ``method`` has one colour throughout a page, by default the name."""

    name: str
    points: tuple[CurvePoint, ...]
    method: str | None = None


@dataclass(frozen=True)
class Level(_Strict):
    """A horizontal line to compare with."""

    name: str
    y: _Number


@dataclass(frozen=True)
class Curves(_Strict):
    """Curves with intervals; ``x`` and ``y`` say what the axes are, with units."""

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
    """A point with an interval each way."""

    x: InstanceOf[Estimate]
    y: InstanceOf[Estimate]
    label: str | None = None


@dataclass(frozen=True)
class Spots(_Strict):
    """Points of one kind; ``method`` has one colour throughout a page, by default the name."""

    name: str
    points: tuple[Spot, ...]
    method: str | None = None


@dataclass(frozen=True)
class Points(_Strict):
    """Points in a plane; along a diagonal x + y is the number it is given by (Theorem 2)."""

    title: str
    x: str
    y: str
    series: tuple[Spots, ...]
    diagonals: tuple[_Number, ...] = ()
    caption: str | None = None
    kind: Literal["points"] = "points"


@dataclass(frozen=True)
class Bar(_Strict):
    """A value for each bin; ``method`` has one colour throughout a page, by default the name."""

    name: str
    values: tuple[InstanceOf[Estimate], ...]
    method: str | None = None


@dataclass(frozen=True)
class Bars(_Strict):
    """Bars side by side in bins.

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
    """Places of one kind in a cloud; ``method`` has one colour throughout a page, by default the name."""

    name: str
    points: tuple[tuple[_Number, _Number], ...]
    method: str | None = None


@dataclass(frozen=True)
class Cloud(_Strict):
    """Places whose axes mean nothing, such as UMAP's."""

    title: str
    series: tuple[Heap, ...]
    caption: str | None = None
    kind: Literal["cloud"] = "cloud"


@dataclass(frozen=True)
class SampleText(_Strict):
    """A text that satisfies its constraint, and what of it is highlighted: begin and end, in characters.

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
                raise UsageError(f"the span [{begin}, {end}] is not inside the text, of {len(self.text)} characters")


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
    """A part of a page."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Page(_Strict):
    """Everything that a page says."""

    title: str
    sections: tuple[Section, ...]
