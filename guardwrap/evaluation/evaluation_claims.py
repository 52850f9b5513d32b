"""Conclusions of an evaluation: claims with verdicts from the figures' intervals, and a recommendation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from guardwrap.evaluation.figures import ENOUGH, Evaluation, ProposalFigures, heavy_in, sees_all_of_g
from guardwrap.evaluation.tradeoff import CURVES, Point, sampler_in_words
from guardwrap.formatting import digits, tail_in_words, upwards
from guardwrap.metrics.intervals import times_fewer
from guardwrap.outcomes import FEW, Estimate
from guardwrap.report.blocks import in_words
from guardwrap.report.claims import Answer, Claim, above, below, cheaper, worst
from guardwrap.samplers.protocol import NEAR

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
        answers = zip(self.believed, self.worth, map(self._near, self.distances), strict=True)
        return worst(
            Answer.UNDECIDED if worth < FEW or (answer == Answer.HOLDS and not believed) else answer
            for believed, worth, answer in answers
        )

    @property
    def saves(self) -> Estimate:
        """The saving for the prompt where it is smallest."""
        return min(self.saved, key=lambda figure: figure.low)

    def _near(self, distance: Estimate) -> Answer:
        return below(distance, self.limit)


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
        own = [_settings_own(of) for of in all_of]
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
            costs = [
                times_fewer(base, Estimate(*(1 / x for x in (point.cost.value, point.cost.high, point.cost.low))))
                for base, point in zip(rates, points, strict=True)
            ]
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


def _settings_own(found: ProposalFigures) -> Point | None:
    return next((point for point in found.samplers if point.sampler not in CURVES), None)


def _target(sampler: str | Mapping[str, Any] | None) -> float:
    """Return the target distance of the settings' sampler, or the default."""
    options = next(iter(sampler.values()), None) if isinstance(sampler, Mapping) else None
    target = options.get("target_tvd") if isinstance(options, Mapping) else None
    return NEAR if target is None else float(target)
