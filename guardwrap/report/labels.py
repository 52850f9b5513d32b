"""Placement of labels in a drawing, so that they do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
