"""A complete training: from settings to an adapter with a card."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from guardwrap import __version__
from guardwrap.adapters import describe, save_adapter
from guardwrap.adapters.adapter_folder import measured_before
from guardwrap.adapters.card import Figure, Figures
from guardwrap.calls.task_settings import known_as
from guardwrap.engine.model_weights import is_quantised
from guardwrap.errors import UsageError, first_line
from guardwrap.generator import GuardedGenerator
from guardwrap.metrics import (
    kl_gold_guarded,
    kl_gold_proposal,
    pareto_k,
    pareto_k_limit,
    partition,
)
from guardwrap.metrics.divergence import unclipped_from_gold
from guardwrap.metrics.intervals import Floats, clip, rate_over
from guardwrap.models.proposal_draws import QUANTISED
from guardwrap.outcomes import Estimate, heavy_tail
from guardwrap.outcomes.charts import png_of
from guardwrap.support.formatting import counted, tail_in_words
from guardwrap.support.yaml_nodes import short
from guardwrap.training import shards
from guardwrap.training.learning_curve import (
    LEAST_ACCEPTED,
    Follow,
    Meter,
    Row,
    Stage,
    Units,
    enough,
    learned,
    mean_over,
    summarise,
    warnings_of,
    write_curve,
)
from guardwrap.training.rounds import Drawn, draw_round
from guardwrap.training.trainer import Trainer
from guardwrap.training.training_report import Result, Trained, Training, training_charts
from guardwrap.training.training_settings import TrainingSettings

logger = logging.getLogger("guardwrap")

_WORST = 5  # held-out prompts with the lowest acceptance rates that are named
_INTERRUPTED = "interrupted: nothing was measured"
_PAPER = "Kim et al., Guaranteed Generation from Large Language Models (ICLR 2025)"


def train(
    guarded: GuardedGenerator,
    settings: TrainingSettings,
    folder: str | Path,
    *,
    tick: Callable[[Row], None] = lambda row: None,
    made: Callable[[int], None] = lambda attempts: None,
    follow: Follow = lambda stage: None,
) -> Trained:
    """Train a proposal for a constraint, measure it, and save it.

    An interrupted training resumes from its last checkpoint, with the same result. Several processes, started by
    ``accelerate launch`` or ``torchrun``, share drawing and gradients.

    Parameters
    ----------
    guarded
        The model under the constraint. The model is not changed.
    settings
        Settings of the training.
    folder
        Folder for ``adapter/`` (or ``model/``), ``curve.jsonl``, ``result.json``, checkpoints and, if matplotlib is
        installed, ``curve.png`` and ``acceptance.png``. Several processes must share it.
    tick
        Called with each new row of the learning curve.
    made
        Called with the number of new attempts to learn from.
    follow
        Called with each step of each part: draws of g for measurements, samples, the final measurement.

    Raises
    ------
    UsageError
        If the model cannot be trained with these settings, or the folder contains another training.
    """
    folder = Path(folder)
    if shards.is_main():  # must come before an Accelerator is created, which would not see the other processes on a CPU
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        log = _trackers(settings, folder, stack)

        def log_and_tick(row: Row) -> None:
            log(row)
            tick(row)

        trainer = Trainer(guarded, settings, folder, log_and_tick, _following(made, follow))
        settings = trainer.settings
        try:
            trainer.find_gold()
            trainer.run()
            figures, warnings, remarks = _measured(trainer, folder)
        except KeyboardInterrupt:
            trainer.settle()
            _save(trainer, folder)
            raise
    state = trainer.state
    trained = Trained(
        folder, figures, state.samples, state.tokens, state.seconds, tuple(state.curve), tuple(warnings), tuple(remarks)
    )
    trained = dataclasses.replace(trained, folder=_save(trainer, folder, figures, trained.notes))
    if shards.is_main():
        packages = ("torch", "transformers", "peft", "numpy")
        used = {"guardwrap": __version__, **{name: version(name) for name in packages}}
        digest = trainer.task.guarded.constraint.digest
        result = Result(**vars(trained), settings=settings, versions=used, constraint_digest=digest)
        text = json.dumps(result.to_dict(), ensure_ascii=False, indent=2, allow_nan=False)
        (folder / "result.json").write_text(text + "\n", encoding="utf-8")
        if find_spec("matplotlib") and state.curve:
            for name, chart in training_charts([Training(settings.method, state.curve, result)]).items():
                (folder / f"{name}.png").write_bytes(png_of(chart))
    shards.wait()
    return trained


def _following(made: Callable[[int], None], follow: Follow) -> Follow:
    """Return a callback that calls ``made`` with the number of new samples, and ``follow`` with each step."""
    last: int | None = None

    def step(stage: Stage) -> None:
        nonlocal last
        if stage.name == "samples":
            if last is not None and stage.done > last:
                made(stage.done - last)
            last = stage.done
        follow(stage)

    return step


def _measured(trainer: Trainer, folder: Path) -> tuple[dict[str, Estimate], list[str], list[str]]:
    """Measure the trained proposal on its own draws and on draws of g; return figures, warnings and remarks."""
    task, gold, settings = trainer.task, trainer.gold, trainer.settings
    prompts = len(settings.prompts)
    attempts = math.ceil(settings.final_attempts / prompts)
    drawn = draw_round(
        task,
        trainer.policy.source(),
        attempts,
        seed=(settings.seed, "final"),
        digest=trainer.digest(trainer.policy.digest()),
        folder=folder / "draws" / "final",
        meter=Meter(trainer.follow, "final", attempts * prompts),
    )
    log_base = task.log_probabilities(task.model, drawn.samples)
    log_policy = task.log_probabilities(trainer.policy.model, drawn.samples)
    weights = drawn.log_weights([a - b for a, b in zip(log_base, log_policy, strict=True)])
    tail, heavy = _tail(weights)
    notes = [] if heavy is None else [heavy]
    notes += [QUANTISED] if is_quantised(task.model) else []
    ratios: Sequence[Ratios] = ()
    if gold is not None:
        ratios = gold.log_ratios(task.log_probabilities(trainer.policy.model, gold.drawn.samples))
    (seen, unseen), gold_of = trainer.sides(weights), trainer.sides(ratios) if ratios else ((), ())
    named = trainer.sides(_named(settings))
    figures, remarks = _figures(seen, gold_of[0], trainer.units[0], named[0])
    figures |= {} if tail is None else {"pareto_k": tail}
    notes += remarks
    if unseen:
        others, remarks = _figures(unseen, gold_of[1], trainer.units[1], named[1])
        figures |= {f"unseen_{name}": figure for name, figure in others.items()}
        held_out = counted(len(unseen), "prompt")
        held_out += " whose rules were not trained on" if settings.fields else " not trained on"
        notes += [f"on {held_out}: {remark}" for remark in remarks]
        rates = zip(trainer.sides(drawn.accepted)[1], named[1], strict=True)
        worst = ", ".join(f"{count} for {name}" for count, name in sorted(rates)[:_WORST])
        notes.append(f"of these, the fewest accepted texts of {attempts}: {worst}")
    return figures, _warnings(trainer, drawn, weights), notes


def _named(settings: TrainingSettings) -> list[str]:
    """Return each prompt in short, with the values of the constraint's fields."""
    rows = settings.fields or [{}] * len(settings.prompts)
    of_rules = [", ".join(f"{name}={short(value)}" for name, value in row.items()) for row in rows]
    named = zip(map(short, settings.prompts), of_rules, strict=True)
    return [f"{prompt} ({of_rule})" if of_rule else prompt for prompt, of_rule in named]


Ratios = tuple[Floats, tuple[int, int]]


def _figures(
    log_weights: Sequence[Floats], ratios: Sequence[Ratios], units: Units, names: Sequence[str]
) -> tuple[dict[str, Estimate], list[str]]:
    """Return the figures of a proposal on some prompts, and remarks on how they were estimated.

    ``log_weights``: log P/a' of its attempts at each prompt. ``ratios``: ``Gold.log_ratios`` of these prompts, or
    nothing. ``units``: as for ``mean_over``; of a population of prompts, some may have no accepted draw. ``names``:
    what remarks call each prompt.
    """
    attempts, prompts, population = len(log_weights[0]), len(log_weights), units is not None
    accepted = [int((each > -math.inf).sum()) for each in log_weights]
    figures, notes = {"acceptance_after": rate_over(accepted, attempts, units)}, []
    known, needed = enough(log_weights, units), LEAST_ACCEPTED if population else 1
    if len(known) < prompts:
        known = known if population else []
        if known:
            few = f"{len(known)} of {prompts} prompts with {needed} accepted draws or more"
            notes.append(f"KL is a mean over the {few}")
    if known:
        for name, kl in (("kl_gold_proposal", kl_gold_proposal), ("kl_gold_guarded", kl_gold_guarded)):
            figures[f"weighted_{name}"] = mean_over({i: kl(log_weights[i]) for i in known}, units)
    base, of_base = [count for _, (count, _) in ratios], ratios[0][1][1] if ratios else 0
    if ratios:
        figures["acceptance_before"] = rate_over(base, of_base, units)
    elif known:
        nothing = Estimate(0.0, 0.0, 0.0)
        means = [partition(each) if count else nothing for each, count in zip(log_weights, accepted, strict=True)]
        figures["acceptance_before"] = clip(mean_over(dict(enumerate(means)), units), high=1.0)
        notes.append("the acceptance rate without the adapter is Ẑ, estimated from the weights of the adapter's draws")
    if not ratios or min(base) < max(needed, 2):
        if known:
            figures |= {name: figures[f"weighted_{name}"] for name in ("kl_gold_proposal", "kl_gold_guarded")}
            source = "from the weights of the adapter's own draws, which is too low if they miss part of g"
            return figures, [*notes, f"KL is estimated {source}"]
        if population:
            few = f"no prompt has {needed} accepted draws among {attempts}; raise final_attempts"
        else:
            name = names[accepted.index(0)]
            few = f"none of {attempts} draws is accepted for {name}; raise final_attempts, or leave that prompt out"
        return figures, [f"KL is unknown: {few}"]
    on_gold = {i: unclipped_from_gold(*each) for i, each in enumerate(ratios)}
    figures["kl_gold_proposal"] = mean_over(on_gold, units)
    if len(known) == prompts:
        guarded = [unclipped_from_gold(*each, (count, attempts)) for each, count in zip(ratios, accepted, strict=True)]
        figures["kl_gold_guarded"] = mean_over(dict(enumerate(guarded)), units)
    return figures, [
        *notes,
        f"KL is measured on {sum(base)} draws of g among {of_base * prompts} attempts of the model",
    ]


def _tail(log_weights: Sequence[Floats]) -> tuple[Estimate | None, str | None]:
    """Return the largest Pareto k of any prompt's weights, and a note if they leave distances without an upper end.

    ``log_weights``: log P/a' of the final draws of each prompt, -inf for those that violate the constraint.
    """
    passing = [each[each > -math.inf] for each in log_weights]
    tails = [(pareto_k(each), pareto_k_limit(len(each))) for each in passing if len(each)]
    worst = max((k for k, _ in tails if math.isfinite(k.value)), key=lambda k: k.value, default=None)
    over = [k for tail, limit in tails if (k := heavy_tail({"pareto_k": tail, "pareto_k_limit": limit})) is not None]
    heavy = [k for k in over if not math.isnan(k)]
    if not over:
        return worst, None
    of = f" for {len(heavy or over)} of {len(log_weights)} prompts" if len(log_weights) > 1 else ""
    what = tail_in_words(max(heavy, default=math.nan))
    return worst, f"{what}{of}: distances to g from weights, such as those of QRS, have no upper end"


def _warnings(trainer: Trainer, drawn: Drawn, log_weights: Sequence[Floats]) -> list[str]:
    """Return warnings about misleading figures of the trained proposal; sft computes weights only here."""
    state = trainer.state
    row = Row(
        state.done, "final", state.samples, state.tokens, state.seconds, drawn.acceptance, len(drawn.samples),
        mixture=next((row.mixture for row in reversed(state.curve) if row.mixture), None),
    )  # fmt: skip
    summarise(row, *trainer.sides(log_weights), trainer.units)
    warnings = warnings_of(row, None if trainer.gold is None else trainer.gold.drawn.acceptance)
    if not learned(state.curve):
        of_start = trainer.settings.start is not None
        same = "the adapter equals the one it started from" if of_start else "the adapter has no effect"
        nothing = f"nothing was learned: {'the model is unchanged' if trainer.settings.full else same}"
        # An adapter without effect makes other warnings pointless.
        warnings = [*warnings, nothing] if of_start else [nothing]
    for warning in warnings if shards.is_main() else ():
        logger.warning("%s", warning)
    return warnings


def _save(
    trainer: Trainer, folder: Path, figures: Mapping[str, Estimate] | None = None, notes: Sequence[str] = ()
) -> Path:
    """Save the adapter or model as trained so far, and return its folder.

    After an interruption there are no figures; those of an earlier card are kept if it describes the same weights.
    """
    settings, state = trainer.settings, trainer.state
    place = folder / ("model" if settings.full else "adapter")
    if not shards.is_main():
        return place
    if settings.full:
        trainer.policy.model.save_pretrained(place)
        trainer.task.guarded.tokenizer.save_pretrained(place)
        return place
    names = ("method", "hints", "warm_samples", "rounds", "base_share", "samples_per_step", "rank", "batch_size",
             "patience", "look", "updates", "epochs")  # fmt: skip
    hyperparameters = {name: getattr(settings, name) for name in names} | {"learning_rate": settings.rate}
    if settings.start is not None:
        hyperparameters["start"] = known_as(settings.start)
    if figures is None:
        before = measured_before(place, trainer.policy.model)
        of_card, notes = (Figures(), [_INTERRUPTED]) if before is None else (before.figures, before.notes)
    else:
        known = {name: Figure.of(figures[name]) for name in Figures.model_fields if name in figures}
        of_card = Figures(**known)
    card = describe(
        trainer.task.model,
        trainer.task.guarded.constraint,
        trainer.sides(trainer.task.given)[0],
        held_out=sum(trainer.held_out),
        start=trainer.start_prompts,
        rules=trainer.sides(settings.fields)[0] if settings.fields else (),
        name=settings.name or known_as(settings.model),
        settings=settings.generation,
        method=f"{settings.method} of guardwrap.training, after {_PAPER}",
        hyperparameters=hyperparameters,
        seed=settings.seed,
        samples=state.samples,
        tokens=state.tokens,
        seconds=state.seconds,
        figures=of_card,
        notes=list(notes),
    )
    curve = folder / "curve.jsonl"
    write_curve(state.curve, curve)
    save_adapter(place, trainer.policy.model, card, curve if curve.exists() else None)
    return place


def _trackers(settings: TrainingSettings, folder: Path, stack: ExitStack) -> Callable[[Row], None]:
    """Start the requested trackers, and return a function that logs a row to them."""
    if not settings.trackers:
        return lambda row: None
    from accelerate import Accelerator
    from accelerate.tracking import filter_trackers

    try:
        found = filter_trackers(list(settings.trackers), str(folder))
    except ValueError as error:
        raise UsageError(f"trackers: {first_line(error)}") from None
    if missing := [name for name in settings.trackers if name not in map(str, found)]:
        raise UsageError(f"trackers: {missing[0]!r} is not installed: pip install {missing[0]}")
    accelerator = Accelerator(log_with=settings.trackers, project_dir=str(folder))
    config = {name: value for name, value in settings.model_dump().items() if isinstance(value, int | float | str)}
    accelerator.init_trackers("guardwrap", config=config)
    for tracker in accelerator.trackers:  # end_training would also destroy the process group
        stack.callback(tracker.finish)

    def log(row: Row) -> None:
        values = {name: getattr(row, name) for name in ("acceptance", "effective", "kl", "kl_gold")}
        values = {name: figure.value for name, figure in values.items() if figure is not None}
        values |= {name: getattr(row, name) for name in ("partition", "mixture", "held_out")}
        accelerator.log({name: value for name, value in values.items() if value is not None}, step=row.samples)

    return log
