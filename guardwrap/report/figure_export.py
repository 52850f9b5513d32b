"""From a matplotlib figure to a PNG file and to SVG that a page can hold; matplotlib's global state stays as it is."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from guardwrap.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS",
    "INK",
    "LINES",
    "MARKERS",
    "as_png",
    "as_svg",
    "drawing",
    "lay_out",
    "new_figure",
    "require_matplotlib",
]

# Of Okabe and Ito's colours, which colour-blind people can tell apart, those that show on white and on black; then
# others that do, whose markers tell them apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8A63D2", "#A87900", "#00939E", "#7A8288")
MARKERS = ("o", "s", "D", "^", "v", "P")
LINES = ("-", "-.", (0, (5, 2)))
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
    "svg.hashsalt": "guardwrap",  # the same figures give the same file
    "text.color": INK,
    "text.parse_math": False,  # a name may hold a $
    "xtick.color": INK,
    "ytick.color": INK,
}


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
        # A name in a script that the font has not; a page shows it all the same.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing|Matplotlib currently does not support")
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return a figure with one pair of axes; no window and no pyplot, which would choose a backend for all.

    Parameters
    ----------
    width, height
        In inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.subplots()
    return figure


def lay_out(figure: Figure) -> None:
    """Give everything its final place, once: as long as a figure has a layout engine, a file of it is drawn twice."""
    figure.get_layout_engine().execute(figure)  # type: ignore[union-attr]
    figure.set_layout_engine(None)


def as_png(figure: Figure) -> bytes:
    """Return a file, on white. Inside ``drawing``."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=200, facecolor="white")
    return file.getvalue()


def as_svg(figure: Figure, name: str, kind: str) -> str:
    """Return an ``<svg>`` element for a page. Inside ``drawing``.

    Parameters
    ----------
    figure
        What to show.
    name
        Begins the element's ids, so that they differ from those of others on the page.
    kind
        Its class.

    Returns
    -------
    str
        Colours of the page, no reference to anything outside.
    """
    file = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    start, rest = svg.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', start)
    # Names of other sites that only say what SVG is, and that no HTML page needs.
    rest = re.sub(r"<metadata>.*?</metadata>", "", rest, flags=re.DOTALL).replace("xlink:href=", "href=")
    rest = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", rest)
    rest = rest.replace(INK, "currentColor")
    return f'<svg class="{kind}" {box.group() if box else ""} aria-hidden="true" focusable="false">{rest.rstrip()}'
