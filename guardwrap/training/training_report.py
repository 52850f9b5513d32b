"""Pages of trainings: reads their folders, compares their results, and says what follows from them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from guardwrap.constraints.files.constraint_file import parse
from guardwrap.errors import GuardwrapError
from guardwrap.metrics.intervals import combine, times_fewer
from guardwrap.outcomes import Estimate, plain
from guardwrap.outcomes.blocks import (
    UNKNOWN,
    Block,
    Cell,
    Curve,
    CurvePoint,
    Curves,
    Level,
    Note,
    Page,
    Section,
    Spot,
    Strict,
    Table,
    Text,
)
from guardwrap.outcomes.claims import Answer, Claim, above, cheaper, cost_against_distance, minus_log, table_of
from guardwrap.outcomes.result_files import loads, text_of, validated_as
from guardwrap.support.yaml_nodes import to_yaml
from guardwrap.training.learning_curve import Row, learned
from guardwrap.training.training_settings import TrainingSettings

_UNSEEN = "unseen_"
_SHOWN = 3  # most warnings of rounds shown per training


@dataclass(frozen=True)
class Trained:
    """The result of a training.

    Parameters
    ----------
    folder
        Folder of the adapter, or of the model if all weights were trained.
    figures
        Means over prompts, by name: ``acceptance_before``, ``acceptance_after``, ``kl_gold_proposal`` and
        ``kl_gold_guarded`` (nats), from draws of g if there are enough; and ``weighted_kl_gold_proposal`` and
        ``weighted_kl_gold_guarded``, from the weights of the adapter's own draws. The same names after ``unseen_`` are
        those on held-out prompts. ``pareto_k`` is not a mean: it is the tail index of these weights for the prompt
        where it is largest.
    samples, tokens, seconds
        Attempts, their tokens, and seconds spent on training, without measurements.
    curve
        One row per round.
    warnings
        Why figures may be misleading, one sentence each.
    remarks
        How figures were estimated, one sentence each.
    """

    folder: Path
    figures: Mapping[str, Estimate]
    samples: int
    tokens: int
    seconds: float
    curve: tuple[Row, ...]
    warnings: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """``warnings``, each after "warning: ", and ``remarks``."""
        return (*(f"warning: {warning}" for warning in self.warnings), *self.remarks)

    @property
    def learned(self) -> bool:
        """Whether anything was learned. If not, the adapter has no effect, or equals the one it started from."""
        return learned(self.curve)


@dataclass(frozen=True)
class Result(Trained, Strict):
    """The content of ``result.json``: a result with settings, package versions, and the digest of the constraint."""

    settings: TrainingSettings
    versions: Mapping[str, str] = field(default_factory=dict)
    constraint_digest: str = ""  # of a file that may have changed; empty in results of older versions

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON types; the folder is relative to the file."""
        of_file = {"folder": self.folder.name, "notes": list(self.notes)}
        return {**plain(self), **of_file, "settings": self.settings.model_dump(mode="json")}


@dataclass(frozen=True)
class Training:
    """A training read from its folder."""

    name: str  # name of the training on the page
    curve: Sequence[Row]  # one row per round
    result: Result | None  # the result; None if the training has not finished


def read_training(folder: Path, name: str) -> Training:
    """Read ``result.json`` and ``curve.jsonl`` of a folder, of which at least one exists."""
    written, curve = folder / "result.json", folder / "curve.jsonl"
    result = None
    if written.exists():
        data = loads(text_of(written), str(written))
        if isinstance(data, dict):
            data = {**_told_apart(data.pop("notes", [])), **data}
        result = validated_as(data, Result, str(written), "a training's result of this version")
    if not curve.exists():
        return Training(name, () if result is None else result.curve, result)
    rows = []
    for i, line in enumerate(text_of(curve).rstrip("\n").split("\n"), start=1):
        where = f"{curve}:{i}"
        rows.append(validated_as(loads(line, where), Row, where, "a row of a learning curve of this version"))
    return Training(name, rows, result)


def _told_apart(notes: Any) -> dict[str, Any]:
    """Return the warnings and remarks of a file of version 0.1, which has only ``Trained.notes``."""
    mark, lines = "warning: ", [note for note in notes if isinstance(note, str)] if isinstance(notes, list) else []
    warnings = [line.removeprefix(mark) for line in lines if line.startswith(mark)]
    return {"warnings": warnings, "remarks": [line for line in lines if not line.startswith(mark)]}


def pages_of(trainings: Sequence[Training]) -> list[Page]:
    """Return one page for each g that proposals were trained for, as figures for different g cannot be compared.

    ``trainings``: the trainings in the order of the pages. An unfinished training, whose g is unknown, has a separate
    page.
    """
    groups: dict[str, list[Training]] = {}
    for training in trainings:
        groups.setdefault(_law_of(training), []).append(training)
    return [_page(group) for group in groups.values()]


def _law_of(training: Training) -> str:
    if training.result is None:
        return f"unknown: {training.name}"
    settings = training.result.settings
    names = ("dtype", "constraint", "prompts", "fields", "chat", "generation")
    law = {"model": settings.name or settings.model, **{name: getattr(settings, name) for name in names}}
    return json.dumps({**law, "digest": training.result.constraint_digest}, sort_keys=True)


def _page(group: Sequence[Training]) -> Page:
    found = [training.result for training in group if training.result is not None]
    title = f"Training a proposal for {_constraint(found[0].settings)}" if found else f"A training: {group[0].name}"
    sections = [Section("Learning curves and notes", (*training_charts(group).values(), *_notes(group)))]
    if found:
        sections.insert(0, Section("Results", tuple(_measured(group))))
        sections.append(Section("Settings", (_settings(group),)))
    return Page(title, tuple(sections))


def _constraint(settings: TrainingSettings) -> str:
    given = settings.constraint
    if isinstance(given, str):
        return given
    try:
        return parse(to_yaml({"guardwrap": 1, "constraint": given})).constraint.title
    except GuardwrapError:  # e.g. of a plug-in that is not installed
        return json.dumps(given, ensure_ascii=False)


def _measured(group: Sequence[Training]) -> list[Block]:
    head = ("training", "method", "samples", "AR before", "AR", "KL(g‖a') [nats]", "KL(g‖g') [nats]",
            "KL measured on", "tokens", "seconds", "seed")  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    spots: dict[str, list[Spot]] = {}
    for training in group:
        if (result := training.result) is None:
            continue
        unseen = {key.removeprefix(_UNSEEN): x for key, x in result.figures.items() if key.startswith(_UNSEEN)}
        names = ("acceptance_before", "acceptance_after", "kl_gold_proposal", "kl_gold_guarded")
        for of, where in ((result.figures, ""), *([(unseen, ", held-out prompts")] if unseen else [])):
            before, after, proposal, guarded = (of.get(name) for name in names)
            rows.append(
                (training.name + where, result.settings.method, result.samples, before, after, proposal, guarded,
                 _measured_on(of), result.tokens, result.seconds, result.settings.seed)
            )  # fmt: skip
            if after is not None and guarded is not None:
                spots[training.name + where] = [Spot(minus_log(after), guarded)]
    caption = "AR is the acceptance rate; KL(g‖a') = KL(g‖g') - log AR. Brackets are 95 % intervals."
    results = [(training.name, training.result) for training in group if training.result is not None]
    claims = [claim for name, result in results for claim in claims_of_training(name, result.figures, result.settings)]
    blocks: list[Block] = [table_of(claims), Table(caption, head, tuple(rows))]
    if any(on_draws_of_g(result.figures) for _, result in results):
        blocks.append(_by_weights(group))
    if spots:
        blocks.append(cost_against_distance(spots))
    return blocks


def _measured_on(figures: Mapping[str, Estimate]) -> str:
    if "kl_gold_proposal" not in figures:
        return UNKNOWN
    return "draws of g" if on_draws_of_g(figures) else "weights of its own draws"


def _by_weights(group: Sequence[Training]) -> Table:
    """Return the estimates from weights, which show, next to those on draws of g, how much the weights miss."""
    rows = [
        (training.name, *(of.get(f"weighted_{name}") for name in ("kl_gold_proposal", "kl_gold_guarded")))
        for training in group
        if training.result is not None and (of := training.result.figures)
    ]
    caption = "The same from the weights of the proposal's own draws, which are too low if these miss part of g"
    return Table(caption, ("training", "KL(g‖a') [nats]", "KL(g‖g') [nats]"), tuple(rows))


def training_charts(trainings: Sequence[Training]) -> dict[str, Curves]:
    """Return the learning curves and the acceptance rates over a training."""
    kl, rates = [], []
    for training in trainings:
        rows = training.curve
        on_gold = _points(rows, lambda row: row.kl_gold)
        by_weights = _points(rows, lambda row: row.kl)
        if on_gold:
            kl.append(Curve(training.name, on_gold))
        elif by_weights:
            kl.append(Curve(f"{training.name} (by weights)", by_weights, training.name))
        if unseen := _points(rows, lambda row: row.unseen_kl):
            kl.append(Curve(f"{training.name}, held-out prompts (by weights)", unseen))
        rates.append(Curve(training.name, _points(rows, lambda row: row.acceptance)))
        if unseen := _points(rows, lambda row: row.unseen_acceptance):
            rates.append(Curve(f"{training.name}, held-out prompts", unseen))
    found = [training.result.figures for training in trainings if training.result is not None]
    before = [rate for figures in found if (rate := figures.get("acceptance_before")) and rate.value > 0]
    base = min(
        before, key=lambda rate: rate.high - rate.low, default=None
    )  # all estimate the same rate; take the narrowest interval
    caption = (
        "After learning from this number of samples, measured on draws of g. By weights: for the distribution that the "
        "samples came from, estimated from their weights, which is too low if they miss part of g."
    )
    level = () if base is None else (Level("the model itself: -log AR", minus_log(base).value),)
    charts = {}
    if kl:
        y = "KL(g‖a') [nats]"
        charts["curve"] = Curves("Learning curves", "samples", y, tuple(kl), levels=level, caption=caption)
    level = () if base is None else (Level("the model itself", base.value),)
    caption = "Of the source of each round: in the first round possibly hints, later the policy learned so far."
    y = "acceptance rate"
    charts["acceptance"] = Curves("Acceptance rates", "samples", y, tuple(rates), levels=level, caption=caption)
    return charts


def _points(rows: Sequence[Row], figure: Callable[[Row], Estimate | None]) -> tuple[CurvePoint, ...]:
    return tuple(CurvePoint(float(row.samples), found) for row in rows if (found := figure(row)) is not None)


def _notes(group: Sequence[Training]) -> list[Block]:
    """Return warnings as notes, and other remarks as text."""
    blocks: list[Block] = []
    for training in group:
        warnings, remarks = ((), ()) if training.result is None else (training.result.warnings, training.result.remarks)
        blocks += [Note(f"{training.name}: {warning}") for warning in warnings]
        rounds = [(row.round, warning) for row in training.curve for warning in row.warnings]
        blocks += [Note(f"{training.name}, round {i}: {warning}") for i, warning in rounds[-_SHOWN:]]
        if len(rounds) > _SHOWN:
            blocks.append(Note(f"{training.name}: {len(rounds) - _SHOWN} warnings of earlier rounds are not shown"))
        if training.result is None:
            blocks.append(Note(f"{training.name}: interrupted or still running; nothing was measured"))
        elif len(training.curve) > len(training.result.curve):
            blocks.append(Note(f"{training.name}: continued after the measurement, so the curve is ahead of the table"))
        blocks += [Text(f"{training.name}: {remark}") for remark in remarks]
    return blocks


def _settings(group: Sequence[Training]) -> Table:
    """Return the settings of all trainings side by side."""
    known = [(training.name, training.result) for training in group if training.result is not None]
    columns = [
        {name: json.dumps(value, ensure_ascii=False) for name, value in result.settings.model_dump().items()}
        | {"versions": ", ".join(f"{name} {version}" for name, version in result.versions.items()) or UNKNOWN}
        for _, result in known
    ]
    rows = [(name, *(each[name] for each in columns)) for name in columns[0]]
    return Table(None, ("setting", *(name for name, _ in known)), tuple(rows))


_UNKNOWN = Estimate(math.nan, -math.inf, math.inf)


def claims_of_training(name: str, figures: Mapping[str, Estimate], settings: TrainingSettings) -> list[Claim]:
    """Return two claims about a trained proposal: it costs less than the model, and it is closer to g."""
    prompts = settings.held_out_prompts.count(False)
    before, after, kl = (figures.get(key) for key in ("acceptance_before", "acceptance_after", "kl_gold_proposal"))
    # Ẑ from the proposal's own draws is too low if they miss part of g, which exaggerates the saving.
    drawn = settings.gold_attempts > 0
    rule = "above 1" if drawn else "above 1; but without draws of g (gold_attempts) the saving may be overestimated"
    saved = _UNKNOWN if before is None or after is None else times_fewer(before, after)
    every = f", over {prompts} prompts together" if prompts > 1 else ""
    cost = cheaper(name, saved, _believed(above(saved, 1), drawn), every, rule)

    # KL(g‖a) = -log Z. Both figures come from the same attempts, so the interval of their difference is conservative.
    gap = _UNKNOWN if before is None or before.value == 0 or kl is None else combine((1, minus_log(before)), (-1, kl))
    near = _believed(above(gap, 0), drawn and on_draws_of_g(figures))
    rule = "KL(g‖a) - KL(g‖a') is above 0"
    if above(gap, 0) == Answer.HOLDS != near:
        rule += "; but without enough draws of g (gold_attempts) the attempts may miss part of it"
    if prompts > 1:
        # By Jensen's inequality the mean of -log Z is at least -log of the mean of Z, so the figure is a lower bound.
        near = Answer.UNDECIDED if near == Answer.FAILS else near
        rule += "; of several prompts the figure is a lower bound"
    mean = f", as a mean over {prompts} prompts" if prompts > 1 else ""
    return [cost, Claim(f"{name} is closer to g than the model{mean}", near, gap, rule)]


def on_draws_of_g(figures: Mapping[str, Estimate]) -> bool:
    """Return whether KL was measured on draws of g; if those are too few, figures from weights replace it."""
    kl = figures.get("kl_gold_proposal")
    return kl is not None and kl != figures.get("weighted_kl_gold_proposal")


def _believed(answer: Answer, believed: bool) -> Answer:
    return answer if believed or answer != Answer.HOLDS else Answer.UNDECIDED
