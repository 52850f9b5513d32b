"""The whole way of an evaluation: attempts, figures, plots, and the files that hold them."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from guardwrap import __version__
from guardwrap.constraints.base import Constraint
from guardwrap.evaluation.drawing import require_matplotlib
from guardwrap.evaluation.figures import figures_of
from guardwrap.evaluation.plots import plots_of
from guardwrap.evaluation.recording import Source, record
from guardwrap.evaluation.report import html_report
from guardwrap.evaluation.settings import BASE, Settings, place_of
from guardwrap.evaluation.summary import Evaluation

__all__ = ["evaluate"]


def evaluate(
    source: Source,
    settings: Settings,
    constraint: Constraint,
    folder: Path,
    tick: Callable[[int], None] = lambda _: None,
) -> Evaluation:
    """Draw what is not recorded yet, and write ``evaluation.json``, ``report.html`` and the plots.

    Parameters
    ----------
    source
        A ``GuardedGenerator`` with the settings' model and the constraint.
    settings, constraint
        As from ``read_settings``.
    folder
        For the files, and for recorded attempts in ``attempts/``, which a later call with the same law uses again.
        It is made if there is none.
    tick
        Called with the number of attempts made, whenever some are there.

    Raises
    ------
    UsageError
        If matplotlib is missing, before anything is drawn; or if a recording cannot be read.
    """
    require_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)
    law: dict[str, Any] = {
        "model": settings.model,
        "dtype": settings.dtype,
        "constraint": constraint.digest,
        "prompts": [settings.given(prompt) for prompt in settings.prompts],
        "generation": settings.generation,
        "seed": settings.seed,
    }
    used = {"guardwrap": __version__, **{name: version(name) for name in ("torch", "transformers", "numpy")}}
    recorded, begun = {}, {}
    for name, template in ((BASE, None), *settings.proposals.items()):
        count = settings.base_attempts or settings.attempts if name == BASE else settings.attempts
        recorded[name], begun[name] = record(
            source, {**law, "name": name, "template": template}, folder / "attempts", count, used, tick
        )
    place = place_of(settings, constraint)
    prompts = [
        figures_of(
            prompt,
            recorded[BASE][i],
            {name: recorded[name][i] for name in settings.proposals},
            place=place,
            betas=settings.betas,
            steps=settings.steps,
            texts=settings.texts,
            seed=settings.seed,
        )
        for i, prompt in enumerate(settings.prompts)
    ]
    evaluation = Evaluation(
        settings, constraint.title, constraint.digest, None if place is None else place.title, prompts, used, begun
    )
    data = json.dumps(evaluation.to_dict(), ensure_ascii=False, indent=2, allow_nan=False)
    (folder / "evaluation.json").write_text(data + "\n", encoding="utf-8")
    several = len(prompts) > 1
    plots = [plots_of(prompt, f"-{i}" if several else "") for i, prompt in enumerate(prompts, start=1)]
    for plot in (plot for drawn in plots for plot in drawn):
        (folder / f"{plot.name}.png").write_bytes(plot.png)
    (folder / "report.html").write_text(html_report(evaluation, plots), encoding="utf-8")
    return evaluation
