"""The page of an evaluation: reads ``evaluation.json`` and turns its figures into blocks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from guardwrap.errors import UsageError
from guardwrap.evaluation.evaluation_claims import claims_of_evaluation, next_step
from guardwrap.evaluation.evaluation_settings import BASE
from guardwrap.evaluation.figures import LABELS, Evaluation, PromptFigures, ProposalFigures, mean_over_prompts
from guardwrap.evaluation.tradeoff import CURVES, Point
from guardwrap.outcomes import FEW, Estimate, exactly
from guardwrap.report.blocks import (
    UNKNOWN,
    Bar,
    Bars,
    Block,
    Cell,
    Chart,
    Curve,
    CurvePoint,
    Curves,
    Note,
    Page,
    SampleText,
    Section,
    Spot,
    Table,
    Text,
    Texts,
    in_words,
)
from guardwrap.report.claims import cost_against_distance, minus_log, table_of
from guardwrap.report.result_files import loads, text_of, validated_as

_MODEL = "the model itself"
_UNKNOWN = "unknown"
_SAMPLERS = {"qrs": "QRS", "imh": "IMH"}


def read_evaluation(path: str | Path) -> Evaluation:
    """Read an ``evaluation.json``."""
    data = loads(text_of(path), str(path))
    if isinstance(data, dict):
        data.pop("mean", None)  # it is computed from the prompts again
    found = validated_as(data, Evaluation, str(path), "an evaluation of this version")
    if not found.prompts:
        raise UsageError(f"{str(path)!r} is not an evaluation of this version: it has no prompt")
    return found


def page_of(evaluation: Evaluation) -> Page:
    """Return the page of an evaluation. All sample texts on it satisfy the constraint."""
    found: list[Block] = [Text(next_step(evaluation), "What to do next"), table_of(claims_of_evaluation(evaluation))]
    sections = [Section("Results", (*found, *_overview(evaluation.prompts)))]
    several = len(evaluation.prompts) > 1
    if several:
        mean = _figures_table(mean_over_prompts(evaluation.prompts), evaluation.how.get("mean", ""))
        sections.append(Section(f"Mean over {len(evaluation.prompts)} prompts", (mean,)))
    for i, prompt in enumerate(evaluation.prompts, start=1):
        sections.append(Section(f"Prompt {i}" if several else "Prompt", tuple(_prompt(prompt))))
    sections += [
        Section("How figures are computed", (_how(evaluation),)),
        Section("Settings", (_settings(evaluation),)),
    ]
    return Page(f"Proposals and samplers for {evaluation.constraint}", tuple(sections))


def evaluation_charts(prompt: PromptFigures) -> dict[str, Chart]:
    """Return the charts of one prompt."""
    known = {name: found for name, found in prompt.proposals.items() if found.samplers}
    if not known:
        return {}
    charts: dict[str, Chart] = {"cost": cost_against_distance(_spots(prompt))}
    if prompt.base.histogram and any(found.histogram for found in known.values()):
        charts["positions"] = _places(prompt, known)
    for i, (name, found) in enumerate(known.items()):
        charts["tradeoff" if i == 0 else f"tradeoff-of-{i + 1}"] = _tradeoff(name, found)
    return charts


def _spots(prompt: PromptFigures, label: str | None = None) -> dict[str, list[Spot]]:
    """Return cost and distance to g for the model and for each proposal."""
    spots = {_MODEL: [Spot(minus_log(prompt.base.figures["acceptance_rate"]), exactly(0), label)]}
    for name, found in prompt.proposals.items():
        if found.samplers:
            of = found.figures
            spots[name] = [Spot(minus_log(of["acceptance_rate"]), of["kl_gold_guarded"], label)]
    return spots


def _overview(prompts: Sequence[PromptFigures]) -> list[Chart]:
    """Return the chart of cost against distance over all prompts, which their own sections leave out."""
    found: dict[str, list[Spot]] = {}
    for i, prompt in enumerate(prompts, start=1):
        if any(proposal.samplers for proposal in prompt.proposals.values()):
            for name, spots in _spots(prompt, f"{i}" if len(prompts) > 1 else None).items():
                found.setdefault(name, []).extend(spots)
    return [cost_against_distance(found)] if found else []


def _prompt(prompt: PromptFigures) -> list[Block]:
    blocks: list[Block] = [Text(prompt.prompt or "The prompt is empty.")]
    figures = {BASE: prompt.base.figures} | {name: found.figures for name, found in prompt.proposals.items()}
    counts = [f"{BASE} {prompt.base.accepted} of {prompt.base.attempts}"]
    counts += [f"{name} {found.accepted} of {found.attempts}" for name, found in prompt.proposals.items()]
    blocks.append(_figures_table(figures, f"Attempts that satisfy the constraint: {', '.join(counts)}."))
    blocks += [Note(f"{name}: {note}.") for name, found in prompt.proposals.items() for note in found.notes]
    blocks += [chart for name, chart in evaluation_charts(prompt).items() if name != "cost"]
    for name, found in prompt.proposals.items():
        blocks += _samplers(name, found)
    spans = prompt.base.spans or [()] * len(prompt.base.samples)
    samples = [SampleText(text, tuple(found)) for text, found in zip(prompt.base.samples, spans, strict=True)]
    none = None if samples else "No attempt of the model satisfies the constraint."
    blocks.append(Texts("Texts of g", tuple(samples), none))
    if prompt.base.self_bleu:
        row: tuple[Cell, ...] = ("texts of g", *prompt.base.self_bleu.values())
        blocks.append(
            Table("Self-BLEU (higher is more alike)", ("", *(f"n = {n}" for n in prompt.base.self_bleu)), (row,))
        )
    return blocks


def _figures_table(figures: Mapping[str, Mapping[str, Estimate]], caption: str) -> Table:
    names = [*LABELS, *(key for of in figures.values() for key in of if key not in LABELS)]
    rows = [
        (LABELS.get(key, key), *(of.get(key) for of in figures.values()))
        for key in dict.fromkeys(names)
        if any(key in of for of in figures.values())
    ]
    return Table(caption, ("", *figures), tuple(rows))


def _samplers(name: str, found: ProposalFigures) -> list[Block]:
    if not found.samplers:
        return []
    with_it = f"proposal {name}"
    head: tuple[str, ...] = (
        "sampler",
        "attempts per text",
        "relative to rejection",
        "texts",
        "projected KL [nats]",
        "KL [nats]",
        "TVD",
    )
    rows = [
        (
            _setting(point),
            point.cost,
            point.relative_cost,
            f"{point.texts}{' (resampled)' if point.resampled else ''}",
            _projected(point) or (None if point.projected_kl is None else _UNKNOWN),
            found.figures.get("kl_gold_guarded") if point.sampler == "rejection" else point.figures.get("kl"),
            found.figures.get("tvd_gold_guarded") if point.sampler == "rejection" else point.figures.get("tvd"),
        )
        for point in found.samplers
    ]
    blocks: list[Block] = [Table(f"Cost and distance to g of every setting: {with_it}", head, tuple(rows))]
    if found.reach:
        paper = any(reach.paper for reach in found.reach)
        reached: list[tuple[Cell, ...]] = [
            (
                reach.sampler.upper(),
                f"{100 * reach.share:g} %",
                f"{in_words(reach.cost)} [{in_words(reach.low)}, {in_words(reach.high)}]",
                *((reach.paper,) if paper else ()),
            )
            for reach in found.reach
        ]
        head = (
            "sampler",
            "remaining projected KL",
            "cost relative to rejection",
            *(("in the paper",) if paper else ()),
        )
        blocks.append(Table(f"Cost of a smaller distance: {with_it}", head, tuple(reached)))
    diverse = [
        (_setting(point), *(point.self_bleu.get(n) for n in "2345")) for point in found.samplers if point.self_bleu
    ]
    if diverse:
        head = ("sampler", *(f"n = {n}" for n in "2345"))
        blocks.append(Table(f"Self-BLEU (higher is more alike): {with_it}", head, tuple(diverse)))
    moves: list[tuple[Cell, ...]] = [
        (_setting(point), *(point.figures.get(key) for key in ("move_acceptance", "autocorrelation", "r_hat")))
        for point in found.samplers
        if point.sampler == "imh"
    ]
    head = ("sampler", "accepted moves", "autocorrelation of log-weights, lag 1", "R-hat")
    return [*blocks, Table(f"Mixing of the chains: {with_it}", head, tuple(moves))]


def _setting(point: Point) -> str:
    if point.setting is None:
        return point.sampler
    if point.sampler == "qrs":
        return f"QRS, β = {point.setting:.3g}"
    return f"IMH, {point.setting:g} step{'s' if point.setting > 1 else ''}"


def _places(prompt: PromptFigures, known: Mapping[str, ProposalFigures]) -> Bars:
    histograms = {"g": prompt.base.histogram} | {f"g' of {name}": found.histogram for name, found in known.items()}
    shown = {name: tuple(shares) for name, shares in histograms.items() if shares}
    methods = {"g": _MODEL} | {f"g' of {name}": name for name in known}  # the same colors as in the other charts
    count = len(shown["g"])
    return Bars(
        "Position of the match in texts of g and of rejection sampling from each proposal",
        "relative position in the text, from",
        "share of texts",
        tuple(f"{i / count:.2g}" for i in range(count)),
        tuple(Bar(name, shares, methods[name]) for name, shares in shown.items()),
    )


def _tradeoff(name: str, found: ProposalFigures) -> Curves:
    """Return the curves of one proposal's samplers, which begin at rejection, and the paper's figures if requested."""
    start = _distance(found.samplers[0]) or found.figures["kl_gold_guarded"]
    by_place = any(point.projected_kl for point in found.samplers)
    series = []
    for sampler, title in _SAMPLERS.items():
        points = [
            CurvePoint(point.relative_cost, kl)
            for point in found.samplers
            if point.sampler == sampler and point.texts and (kl := _distance(point))
        ]
        if points:
            series.append(Curve(title, (CurvePoint(1.0, start), *points)))
    beside = [reach for reach in found.reach if reach.paper]
    for sampler, title in _SAMPLERS.items() if beside else ():
        left = [(1.0, 1.0), *((reach.paper, reach.share) for reach in beside if reach.sampler == sampler)]
        points = [CurvePoint(cost, exactly(share * start.value)) for cost, share in left if cost]
        series.append(Curve(f"{title}, in the paper", tuple(points), title))
    series += [
        Curve(point.sampler, (CurvePoint(point.relative_cost, kl),))
        for point in found.samplers
        if point.sampler not in CURVES and (kl := _distance(point))
    ]
    what = "projected KL to g" if by_place else "KL to g"
    dashed = " Dashed: the paper's costs for half and a tenth of it." if beside else ""
    only = "" if by_place else " KL to g is known for QRS only: IMH requires a position to compare texts by."
    return Curves(
        f"Cost of samplers relative to rejection, and {what}: proposal {name}",
        "cost relative to rejection",
        f"{what} [nats]",
        tuple(series),
        log_x=True,
        log_y=True,
        caption=f"Curves begin at rejection.{dashed}{only}",
    )


def _projected(point: Point) -> Estimate | None:
    """Return the projected KL, or None if there are too few texts to estimate it."""
    return point.projected_kl if point.texts >= FEW else None


def _distance(point: Point) -> Estimate | None:
    """Return the distance for the curve: the projected KL or, if texts have no position, QRS's own estimate of KL."""
    if point.projected_kl is not None:
        return _projected(point)
    kl = point.figures.get("kl")
    return kl if isinstance(kl, Estimate) else None


def _settings(evaluation: Evaluation) -> Table:
    settings = evaluation.settings.model_dump()
    named = {name: settings[name] for name in settings if name != "prompts"}
    rows = {
        **{name: json.dumps(value, ensure_ascii=False) for name, value in named.items()},
        "constraint digest": evaluation.digest,
        "position that texts are compared by": evaluation.place or "none",
        "versions": _versions(evaluation.versions),
        **{f"versions, attempts from {name}": _versions(used) for name, used in evaluation.recorded_with.items()},
    }
    return Table(None, ("setting", "value"), tuple(rows.items()))


def _how(evaluation: Evaluation) -> Table:
    rows = [(name.replace("_", " "), text) for name, text in evaluation.how.items()]
    return Table(None, ("figure", "method"), tuple(rows))


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or UNKNOWN
