"""The page of an evaluation: reads ``evaluation.json``, turns its figures into blocks, and draws conclusions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guardwrap.errors import UsageError
from guardwrap.evaluation.evaluation_settings import BASE
from guardwrap.evaluation.figures import (
    ENOUGH,
    LABELS,
    Evaluation,
    PromptFigures,
    ProposalFigures,
    heavy_in,
    mean_over_prompts,
    sees_all_of_g,
)
from guardwrap.evaluation.tradeoff import CURVES, Point, sampler_in_words
from guardwrap.metrics.intervals import inverse, times_fewer
from guardwrap.outcomes import FEW, Estimate, exactly
from guardwrap.outcomes.blocks import (
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
from guardwrap.outcomes.claims import (
    Answer,
    Claim,
    above,
    below,
    cheaper,
    cost_against_distance,
    minus_log,
    table_of,
    worst,
)
from guardwrap.outcomes.result_files import loads, text_of, validated_as
from guardwrap.samplers.protocol import NEAR
from guardwrap.support.formatting import digits, tail_in_words, upwards

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
    conclusions = (Text(next_step(evaluation), "What to do next"), table_of(claims_of_evaluation(evaluation)))
    sections = [Section("Results", (*conclusions, *_overview(evaluation.prompts)))]
    several = len(evaluation.prompts) > 1
    if several:
        mean = _figures_table(mean_over_prompts(evaluation.prompts), evaluation.how.get("mean", ""))
        sections.append(Section(f"Mean over {len(evaluation.prompts)} prompts", (mean,)))
    for i, prompt in enumerate(evaluation.prompts, start=1):
        sections.append(Section(f"Prompt {i}" if several else "Prompt", tuple(_prompt(prompt))))
    how = tuple((name.replace("_", " "), text) for name, text in evaluation.how.items())
    sections += [
        Section("How figures are computed", (Table(None, ("figure", "method"), how),)),
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
    head: tuple[str, ...] = ("sampler", "attempts per text", "relative to rejection", "texts", "projected KL [nats]",
                             "KL [nats]", "TVD")  # fmt: skip
    rows = [
        (
            _setting(point),
            point.cost,
            point.relative_cost,
            f"{point.texts}{' (resampled)' if point.resampled else ''}",
            _projected(point) or (None if point.projected_kl is None else _UNKNOWN),
            *(
                found.figures.get(f"{name}_gold_guarded") if point.sampler == "rejection" else point.figures.get(name)
                for name in ("kl", "tvd")
            ),
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
        head = ("sampler", "remaining projected KL", "cost relative to rejection")
        head += ("in the paper",) if paper else ()
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


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or UNKNOWN


# Conclusions: claims with verdicts from the intervals of figures, and a recommendation.

_MORE = 4
"""Factor in attempts that halves an interval."""


@dataclass(frozen=True)
class _Way:
    """A way to draw texts, with its figures for each prompt."""

    name: str  # its name at the beginning of a sentence, and inside one
    inside: str
    saved: Sequence[Estimate]  # for each prompt, attempts per text of the model itself divided by those of this way
    distances: Sequence[Estimate]  # for each prompt, the total variation distance to g
    limit: float  # the distance that is close enough
    believed: Sequence[bool]  # for each prompt, whether a small distance is credible
    worth: Sequence[float]  # for each prompt, the effective sample size of the attempts, in draws of g
    promising: bool  # whether for each prompt one attempt is worth more draws of g than one attempt of the model itself
    # the largest Pareto k among prompts where it is above its limit, so that distances have no upper end, NaN if the
    # texts are too few to tell, or None
    heavy: float | None = None

    @property
    def cheap(self) -> Answer:
        return worst(above(figure, 1) for figure in self.saved)

    @property
    def near(self) -> Answer:
        answers = [below(distance, self.limit) for distance in self.distances]
        return worst(
            Answer.UNDECIDED if worth < FEW or (answer == Answer.HOLDS and not believed) else answer
            for believed, worth, answer in zip(self.believed, self.worth, answers, strict=True)
        )

    @property
    def saves(self) -> Estimate:
        """The saving for the prompt where it is smallest."""
        return min(self.saved, key=lambda figure: figure.low)


def claims_of_evaluation(evaluation: Evaluation) -> list[Claim]:
    """Return two claims for each way to draw texts: it costs less than the model itself, and it is close to g."""
    every = f", for each of {len(evaluation.prompts)} prompts" if len(evaluation.prompts) > 1 else ""
    claims = []
    for way in _ways(evaluation):
        claims.append(cheaper(way.name, way.saves, way.cheap, every))
        furthest = max(way.distances, key=lambda figure: figure.high, default=None)
        if furthest is None:
            continue
        rule = f"at most {way.limit:g}"
        if way.near == Answer.UNDECIDED and min(way.worth) < FEW:
            rule += f"; but these attempts are worth only {digits(min(way.worth))} draws of g"
        elif way.near == Answer.UNDECIDED and way.heavy is not None:
            rule += f"; but {tail_in_words(way.heavy)}"
        elif way.near == Answer.UNDECIDED and furthest.high <= way.limit:
            rule += "; but these attempts may miss part of g, see the notes"
        sentence = f"{way.name} comes within a total variation distance of {way.limit:g} of the target{every}"
        claims.append(Claim(sentence, way.near, furthest, rule))
    return claims


def next_step(evaluation: Evaluation) -> str:
    """Recommend what to do, in one or two sentences."""
    ways = [way for way in _ways(evaluation) if way.distances]
    good = [way for way in ways if way.near == way.cheap == Answer.HOLDS]
    if good:
        best = max(good, key=lambda way: way.saves.low)
        return (
            f"Use {best.inside}: its texts are within a total variation distance of {best.limit:g} of the "
            f"target, and take {in_words(best.saves.value)} times fewer attempts than those of the model itself."
        )
    settings = evaluation.settings
    if not all(prompt.base.accepted for prompt in evaluation.prompts):
        made = settings.base_attempts or settings.attempts
        return (
            f"Make more attempts of the model itself, for example base_attempts: {10 * made} instead of {made}: for at "
            "least one prompt none passed, so no proposal can be compared with it."
        )
    rarest = min(prompt.base.figures["acceptance_rate"].value for prompt in evaluation.prompts)
    costs = f"which is exact and takes about {digits(1 / rarest)} attempts per text"
    costs += " for the prompt with the lowest acceptance rate" if len(evaluation.prompts) > 1 else ""
    open_still = [way for way in ways if Answer.FAILS not in (way.near, way.cheap)]
    promising = [way for way in open_still if way.promising]
    if promising:
        least = min(worth for way in promising for worth in way.worth)
        more = upwards(settings.attempts * max(_MORE, ENOUGH / least))
        return (
            f"Make more attempts, for example attempts: {more} instead of {settings.attempts} (recordings are kept): "
            f"it is undecided whether {_any_of(promising)} is both close to the target and cheaper than the model. "
            f"Until then, draw from the model itself, {costs}."
        )
    another = "Another hint, or an adapter trained for this constraint, may do better."
    if open_still:
        return (
            f"Draw from the model itself, {costs}. It is undecided whether {_any_of(open_still)} is both close to the "
            "target and cheaper, but more attempts are unlikely to help: by these figures, one attempt is worth fewer "
            f"draws of the target than one attempt of the model itself. {another}"
        )
    return (
        f"Draw from the model itself, {costs}: no way compared here is both close to the target and cheaper. {another}"
    )


def _any_of(ways: Sequence[_Way]) -> str:
    return " or ".join(dict.fromkeys(way.inside for way in ways))


def _ways(evaluation: Evaluation) -> list[_Way]:
    found = []
    for name in evaluation.prompts[0].proposals:
        all_of = [prompt.proposals[name] for prompt in evaluation.prompts]
        rates = [prompt.base.figures["acceptance_rate"] for prompt in evaluation.prompts]
        believed = [sees_all_of_g(of.figures) for of in all_of]
        saved = [times_fewer(base, of.figures["acceptance_rate"]) for base, of in zip(rates, all_of, strict=True)]
        known = [of.figures["tvd_gold_guarded"] for of in all_of if "tvd_gold_guarded" in of.figures]
        distances = known if len(known) == len(all_of) else ()
        worth = [of.figures["effective_sample_size"].value for of in all_of] if distances else []
        few = believed[: len(distances)]
        promising = all(draws / of.attempts > rate.value for draws, of, rate in zip(worth, all_of, rates, strict=False))
        tails = [k for of in all_of if (k := heavy_in(of.figures)) is not None]
        heavy = max(tails, key=lambda k: -math.inf if math.isnan(k) else k, default=None)
        names = f"Rejection sampling from {name}", f"rejection sampling from {name}"
        found.append(_Way(*names, saved, distances, NEAR, few, worth, promising, heavy))
        if not distances:
            continue
        own = [next((point for point in of.samplers if point.sampler not in CURVES), None) for of in all_of]
        title = f"{sampler_in_words(evaluation.settings.sampler or '')} from {name}"
        for picked, called, within in (
            ([_qrs(of) for of in all_of], f"QRS from {name}", NEAR),
            (own, title, _target(evaluation.settings.sampler)),
        ):
            points = [point for point in picked if point is not None]
            far = [tvd for point in points if isinstance(tvd := point.figures.get("tvd"), Estimate)]
            if len(far) < len(all_of):
                continue
            if len(points) == 1 and points[0].setting is not None:
                called += f" with β = {points[0].setting:.3g}"
            costs = [times_fewer(base, inverse(point.cost)) for base, point in zip(rates, points, strict=True)]
            found.append(_Way(called, called, costs, far, within, believed, worth, promising, heavy))
    return found


def _qrs(found: ProposalFigures) -> Point | None:
    """Return the cheapest setting of QRS that is close enough, or the most expensive one if none is.

    Settings are tested in a fixed sequence, from the most expensive on, until one is not close enough. So the intervals
    keep their level of 95 % although several are tested.
    """
    picked = None
    for point in reversed([point for point in found.samplers if point.sampler == "qrs"]):
        tvd = point.figures.get("tvd")
        near = isinstance(tvd, Estimate) and below(tvd, NEAR) == Answer.HOLDS
        if picked is None or near:
            picked = point
        if not near:
            break
    return picked


def _target(sampler: str | Mapping[str, Any] | None) -> float:
    """Return the target distance of the settings' sampler, or the default."""
    options = next(iter(sampler.values()), None) if isinstance(sampler, Mapping) else None
    target = options.get("target_tvd") if isinstance(options, Mapping) else None
    return NEAR if target is None else float(target)
