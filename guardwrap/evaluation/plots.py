"""The plots of an evaluation: cost against distance, places in texts, and what samplers make of both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from guardwrap.draws import Estimate
from guardwrap.evaluation.drawing import COLOURS, INK, MARKERS, Plot, drawing, new_figure, rendered
from guardwrap.evaluation.figures import PromptFigures, ProposalFigures
from guardwrap.evaluation.reach import PAPER
from guardwrap.evaluation.tradeoff import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plots_of"]

_BASE = "the model itself"
_SAMPLERS = {"qrs": ("QRS", COLOURS[0], "o"), "imh": ("IMH", COLOURS[1], "s")}


def plots_of(prompt: PromptFigures, suffix: str = "") -> list[Plot]:
    """Draw what there is to draw of one prompt.

    Parameters
    ----------
    prompt
        Its figures.
    suffix
        Ends the plots' names, so that they differ from those of other prompts.

    Returns
    -------
    list of Plot
        Cost against KL; where texts are compared by a place in them, its histogram; and for each proposal the curve
        of its samplers. Without figures about g there is none.

    Raises
    ------
    UsageError
        If matplotlib is not installed.
    """
    known = {name: found for name, found in prompt.proposals.items() if found.samplers}
    with drawing():
        plots = [_cost(prompt, known, f"cost{suffix}")] if known else []
        if prompt.base.histogram and any(found.histogram for found in known.values()):
            plots.append(_places(prompt, known, f"positions{suffix}"))
        if known:
            plots.append(_tradeoff(known, f"tradeoff{suffix}"))
    return plots


def _cost(prompt: PromptFigures, known: dict[str, ProposalFigures], name: str) -> Plot:
    """Draw KL(g‖g') over -log AR: by Theorem 2 they add up to KL(g‖a'), the same along a diagonal."""
    figure = new_figure(3.9)
    axes: Axes = figure.axes[0]
    points = [(_BASE, prompt.base.figures["kl_gold_base"], Estimate(0, 0, 0))]
    points += [
        (label, _minus_log(found.figures["acceptance_rate"]), found.figures["kl_gold_guarded"])
        for label, found in known.items()
    ]
    points = [point for point in points if math.isfinite(point[1].value)]
    right = 1.15 * max(0.5, *(_end(cost) for _, cost, _ in points))
    top = 1.15 * max(0.5, *(_end(kl) for _, _, kl in points))
    step = _nice((right + top) / 7)
    for i in range(1, math.ceil((right + top) / step)):
        total = i * step
        axes.plot([0, total], [total, 0], color=INK, alpha=0.35, linewidth=0.7, linestyle=":", zorder=1)
        # Along the upper and right edges, where no point stands.
        where = (total - 0.97 * top, 0.97 * top) if total > top else (0.01 * right, total - 0.01 * top)
        if where[0] < 0.95 * right:
            axes.text(*where, f"{total:g}", fontsize=8, alpha=0.8, ha="left", va="center")
    nearer = points[0][1].value if points[0][0] == _BASE else 0.0
    axes.plot([0, nearer], [nearer, 0], color=INK, alpha=0.5, linewidth=1, linestyle="--", zorder=2)
    for i, (label, cost, kl) in enumerate(points):
        colour = INK if label == _BASE else COLOURS[(i - 1) % len(COLOURS)]
        axes.errorbar(
            [cost.value], [kl.value], xerr=_bars([cost], right), yerr=_bars([kl], top), capsize=2.5, markersize=6,
            fmt=MARKERS[i % len(MARKERS)], color=colour, label=label, zorder=3, clip_on=False,
        )  # fmt: skip
    axes.set(xlim=(0, right), ylim=(0, top), xlabel="cost: -log acceptance rate [nats]", ylabel="KL(g‖g') [nats]")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2)
    told = "; ".join(f"{label} at cost {cost} and KL {kl}" for label, cost, kl in points)
    alt = f"Cost, minus log acceptance rate, against KL(g‖g'), in nats with 95 % intervals: {told}."
    title = (
        "Cost against distance. Along a dotted diagonal KL(g‖a') is the same (Theorem 2): the number at it, in nats."
    )
    return rendered(figure, name, title, alt)


def _places(prompt: PromptFigures, known: dict[str, ProposalFigures], name: str) -> Plot:
    histograms = {"g": prompt.base.histogram}
    histograms |= {f"g' of {label}": found.histogram for label, found in known.items()}
    figure = new_figure(3.5)
    axes: Axes = figure.axes[0]
    told = []
    shown = [(label, bins) for label, bins in histograms.items() if bins]
    for i, (label, bins) in enumerate(shown):
        values = [share.value for share in bins]
        width = 1 / len(bins)
        # Side by side in the bin, so that intervals do not hide each other.
        centres = [(j + (i + 1) / (len(shown) + 1)) * width for j in range(len(bins))]
        colour = INK if i == 0 else COLOURS[(i - 1) % len(COLOURS)]
        axes.stairs(values, [j * width for j in range(len(bins) + 1)], color=colour, alpha=0.8)
        axes.errorbar(
            centres, values, yerr=_bars(bins, 1.0), fmt=MARKERS[i % len(MARKERS)], markersize=4, capsize=2,
            color=colour, label=label,
        )  # fmt: skip
        told.append(f"{label}: {', '.join(f'{100 * value:.1f} %' for value in values)}")
    axes.set(xlim=(0, 1), ylim=(0, None), xlabel="relative position in the text", ylabel="share of texts")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2)
    alt = f"Share of texts by relative position, in {len(shown[0][1])} bins from first to last. {'; '.join(told)}."
    return rendered(figure, name, "Where in the text the place is, in g and in what rejection gives.", alt)


def _tradeoff(known: dict[str, ProposalFigures], name: str) -> Plot:
    figure = new_figure(3.9 * len(known), len(known))
    told = []
    for axes, (label, found) in zip(figure.axes, known.items(), strict=True):
        told.append(f"{label}: {_curves(axes, label, found)}")
    by_place = any(point.projected_kl for found in known.values() for point in found.samplers)
    what = "projected KL to g" if by_place else "KL to g (QRS only: IMH needs a place in texts to be compared by)"
    for axes in figure.axes:
        axes.set_ylabel("projected KL to g [nats]" if by_place else "KL to g [nats]")
    # Above all curves, where it hides none of them.
    shown = {label: line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    if shown:
        figure.legend(shown.values(), shown.keys(), loc="outside upper left", ncols=4)
    stars = "Stars: the costs at which half, and a tenth, is left in the paper."
    edge = "A point at the lower edge is as low as that or lower."
    title = f"What samplers cost over rejection, and the {what}. {stars} {edge}"
    alt = f"Cost over rejection against {what}, in nats with 95 % intervals, on logarithmic axes. {' '.join(told)}"
    return rendered(figure, name, title, alt)


def _curves(axes: Axes, label: str, found: ProposalFigures) -> str:
    """Draw the curves of one proposal; say what they show."""
    start = _distance(found.samplers[0]) or found.figures["kl_gold_guarded"]
    curves = {
        sampler: [
            (p.relative_cost, kl) for p in found.samplers if p.sampler == sampler and p.texts and (kl := _distance(p))
        ]
        for sampler in _SAMPLERS
    }
    positive = [kl.value for curve in curves.values() for _, kl in curve if kl.value > 0]
    bottom = 0.5 * min([start.value / 20, *positive]) or 1e-3
    told = [f"rejection at {start}"]
    for sampler, curve in curves.items():
        if not curve:
            continue
        title, colour, marker = _SAMPLERS[sampler]
        costs, values = [1.0, *(cost for cost, _ in curve)], [start, *(kl for _, kl in curve)]
        shown = [max(value.value, bottom) for value in values]
        most = 10 * max(shown)
        bars = _bars([Estimate(y, max(v.low, bottom), v.high) for y, v in zip(shown, values, strict=True)], most)
        axes.errorbar(
            costs, shown, yerr=bars, color=colour, marker=marker, markersize=4, capsize=2, linewidth=1, label=title
        )
        told.append(f"{title} " + ", ".join(f"{kl} at {cost:.3g}" for cost, kl in curve))
    if start.value > 0:
        for sampler, share, cost in PAPER:
            title, colour, _ = _SAMPLERS[sampler]
            axes.plot(
                cost, share * start.value, marker="*", markersize=10, markerfacecolor="none", color=colour,
                linestyle="none", label=f"{title}, paper" if share == 0.5 else None,
            )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="cost over rejection", title=label)
    axes.set_ylim(bottom=bottom)
    for axis in (axes.xaxis, axes.yaxis):
        _log_ticks(axis)
    return "; ".join(told) + "."


def _distance(point: Point) -> Estimate | None:
    """Return the distance that the curve shows: projected, or without a place in texts what QRS says of itself."""
    kl = point.projected_kl or point.figures.get("kl")
    return kl if isinstance(kl, Estimate) else None


def _log_ticks(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def _minus_log(rate: Estimate) -> Estimate:
    value, low, high = (-math.log(x) if x > 0 else math.inf for x in (rate.value, rate.high, rate.low))
    return Estimate(value, low, high)


def _end(estimate: Estimate) -> float:
    return estimate.high if estimate.high < 3 * estimate.value + 1 else estimate.value


def _bars(estimates: Sequence[Estimate], most: float) -> list[list[float]]:
    """Return the lengths of intervals down and up, cut where the axis ends."""
    return [
        [max(e.value - e.low, 0.0) for e in estimates],
        [max(min(e.high, most) - e.value, 0.0) for e in estimates],
    ]


def _nice(step: float) -> float:
    """Round up to 1, 2 or 5 times a power of ten."""
    power: float = 10.0 ** math.floor(math.log10(step))
    return next(x * power for x in (1, 2, 5, 10) if x * power >= step * (1 - 1e-9))
