"""The picture of samplers.md: what a text with a word costs at every distance from g, by each way to draw it.

``python docs/cost_picture.py`` draws ``docs/images/cost.svg`` from the figures of ``benchmarks/rare_ways.py``.
"""

import json
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

ROOT = Path(__file__).parent.parent
FIGURES = ROOT / "benchmarks" / "results" / "rare-ways.jsonl"
PICTURE = ROOT / "docs" / "images" / "cost.svg"

# On a transparent ground, and of middling lightness: legible on white and on black.
INK, FAINT = "#7b7b7b", "#8a8a8a55"
COLORS = {"rejection": INK, "hint": "#c2640a", "twist": "#2a74c4"}
LINES = {"QRS": "-", "IMH": "--"}


def draw(axes: Any, line: dict[str, Any]) -> None:
    """Draw the ways of one word."""
    for way, points in line["ways"].items():
        source, _, sampler = way.partition(", ")
        attempts, distances = zip(*points, strict=True)
        look = {"linestyle": LINES[sampler]} if sampler else {"linestyle": "none", "marker": "o", "clip_on": False}
        axes.plot(attempts, distances, color=COLORS[source], label=way, **look)
    axes.set(xscale="log", ylim=(0, 1), xlim=(1, 2000), title=f"“{line['word']}”, one text in {1 / line['Z']:.0f}")
    axes.set_xlabel("attempts for each text")
    axes.grid(color=FAINT, linewidth=0.5)


def main() -> None:
    matplotlib.use("Agg")
    colors = ("text.color", "axes.labelcolor", "axes.titlecolor", "axes.edgecolor", "xtick.color", "ytick.color")
    matplotlib.rcParams.update({"svg.hashsalt": "guardwrap", "svg.fonttype": "none", **dict.fromkeys(colors, INK)})
    lines = [json.loads(line) for line in FIGURES.read_text(encoding="utf-8").splitlines()]
    figure, every = pyplot.subplots(1, len(lines), figsize=(4 * len(lines), 3.4), sharey=True)
    for axes, line in zip(every, lines, strict=True):
        draw(axes, line)
    every[0].set_ylabel("distance from g (TVD)")
    every[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(PICTURE, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
