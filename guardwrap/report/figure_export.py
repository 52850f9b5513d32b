"""Export of matplotlib figures to PNG files and inline SVG, without changes to matplotlib's global state."""

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


def new_figure(width: float, height: float) -> Figure:
    """Return a figure with one pair of axes, without pyplot, which would set a backend for the whole process."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.subplots()
    return figure


def lay_out(figure: Figure) -> None:
    """Run the layout once and remove its engine, which would otherwise draw each file twice."""
    figure.get_layout_engine().execute(figure)  # type: ignore[union-attr]
    figure.set_layout_engine(None)


def as_png(figure: Figure) -> bytes:
    """Return a PNG file on white. Call it inside ``drawing``."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=200, facecolor="white")
    return file.getvalue()


def as_svg(figure: Figure, name: str, kind: str) -> str:
    """Return an ``<svg>`` element for a page. Call it inside ``drawing``."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]
    start, rest = svg.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', start)
    # Metadata and namespaces refer to other sites, and inline SVG does not require them.
    rest = re.sub(r"<metadata>.*?</metadata>", "", rest, flags=re.DOTALL).replace("xlink:href=", "href=")
    rest = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", rest)
    rest = rest.replace(INK, "currentColor")
    return f'<svg class="{kind}" {box.group() if box else ""} aria-hidden="true" focusable="false">{rest.rstrip()}'
