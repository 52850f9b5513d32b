"""From a matplotlib figure to a PNG file and to SVG that a page can hold; matplotlib's global state stays as it is."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from guardwrap.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "INK", "MARKERS", "Plot", "drawing", "new_figure", "rendered", "require_matplotlib"]

# Of Okabe and Ito's colours, which colour-blind people can tell apart, those that show on white and on black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
MARKERS = ("o", "s", "D", "^", "v", "P")
INK = "#010203"
"""Text and axes: nearly black in a PNG file, the page's own colour of text in SVG."""

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
    "svg.fonttype": "none",  # text stays text
    "text.color": INK,
    "text.parse_math": False,  # a name may hold a $
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True)
class Plot:
    """A plot in two forms.

    Parameters
    ----------
    name
        Of its file, without the ending.
    title
        What it shows.
    alt
        The same with its figures, for those who cannot see it.
    svg
        An ``<svg>`` element for a page: ids of its own, colours of the page, no reference to anything outside.
    png
        A file, on white.
    """

    name: str
    title: str
    alt: str
    svg: str
    png: bytes


def require_matplotlib() -> None:
    """Raise UsageError, with what to install, where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError("plots need matplotlib: pip install 'guardwrap[plots]'") from None


@contextmanager
def drawing() -> Iterator[None]:
    """Set our style; afterwards matplotlib's settings are as they were."""
    require_matplotlib()
    import matplotlib as mpl

    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing")  # a name in a script that the font has not
        yield


def new_figure(height: float, rows: int = 1) -> Figure:
    """Return a figure of axes below each other; no window and no pyplot, which would choose a backend for all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.subplots(rows, squeeze=False)
    return figure


def rendered(figure: Figure, name: str, title: str, alt: str) -> Plot:
    """Render a figure, inside ``drawing``."""
    png, svg = io.BytesIO(), io.StringIO()
    figure.savefig(png, format="png", dpi=160, facecolor="white")
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(svg, format="svg", transparent=True, metadata=nothing)
    return Plot(name, title, alt, _embedded(svg.getvalue(), name), png.getvalue())


def _embedded(svg: str, name: str) -> str:
    """Turn a file into an element of a page that has others of its kind."""
    svg = svg[svg.index("<svg") :]
    start, rest = svg.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', start)
    # Names of other sites that only say what SVG is, and that no HTML page needs.
    rest = re.sub(r"<metadata>.*?</metadata>", "", rest, flags=re.DOTALL).replace("xlink:href=", "href=")
    rest = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", rest)
    rest = rest.replace(INK, "currentColor")
    return f'<svg {box.group() if box else ""} aria-hidden="true" focusable="false">{rest.rstrip()}'
