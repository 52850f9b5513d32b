"""The whole way of an evaluation: attempts, figures, plots, and the files that hold them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from guardwrap import __version__
from guardwrap.constraints.base import Constraint
from guardwrap.environment.package_data import PREFIX, adapters
from guardwrap.errors import UsageError
from guardwrap.evaluation.evaluation_report import evaluation_charts, page_of
from guardwrap.evaluation.evaluation_settings import BASE, EvaluationSettings, marks_of, position_to_compare
from guardwrap.evaluation.figures import PromptFigures, figures_of
from guardwrap.evaluation.recording import AttemptSource, Tick, record
from guardwrap.evaluation.summary import Evaluation
from guardwrap.proposals import Prompt
from guardwrap.report.charts import methods_of, png_of
from guardwrap.report.figure_export import require_matplotlib
from guardwrap.report.html import html_report

__all__ = ["evaluate"]


def evaluate(
    source: AttemptSource,
    settings: EvaluationSettings,
    constraint: Constraint,
    folder: Path,
    tick: Tick = lambda attempts, kept=False: None,
    load: Callable[[str], Any] = lambda name: name,
) -> Evaluation:
    """Draw what is not recorded yet, and write ``evaluation.json``, ``report.html`` and the plots.

    Parameters
    ----------
    source
        A ``Session``, or a ``GuardedGenerator``, with the settings' model and the constraint.
    settings, constraint
        As from ``read_settings``.
    folder
        For the files, and for recorded attempts in ``attempts/``, which a later call with the same law uses again.
        It is made if there is none.
    tick
        Called whenever some attempts are there.
    load
        From the name of a proposal's model to what the source takes as one; called once, when it is first drawn from.
        By default the source loads it, every time.

    Raises
    ------
    UsageError
        If matplotlib is missing, before anything is drawn; or if a recording or a proposal's file cannot be read.
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
    # A proposal that cannot be weighed is refused at its first attempts: before the model's own, which are many.
    for name, given in (*settings.proposals.items(), (BASE, None)):
        count = settings.base_attempts or settings.attempts if name == BASE else settings.attempts
        own = {**law, "name": name, **_law_of(given)}
        drawn_from = cache(lambda given=given: _drawn_from(given, load))
        recorded[name], begun[name] = record(source, own, drawn_from, folder / "attempts", count, used, tick)
    place = position_to_compare(settings, constraint)
    prompts = [
        figures_of(
            prompt,
            recorded[BASE][i],
            {name: recorded[name][i] for name in settings.proposals},
            place=place,
            marks=marks_of(settings, constraint),
            betas=settings.betas,
            steps=settings.steps,
            texts=settings.texts,
            seed=settings.seed,
            sampler=settings.sampler,
            replication=settings.replication,
        )
        for i, prompt in enumerate(settings.prompts)
    ]
    said: tuple[str, ...] = getattr(getattr(source, "session", source), "of_weights", ())
    prompts = [_noted(prompt, said) for prompt in prompts]
    evaluation = Evaluation(
        settings, constraint.title, constraint.digest, None if place is None else place.title, prompts, used, begun
    )
    data = json.dumps(evaluation.to_dict(), ensure_ascii=False, indent=2, allow_nan=False)
    (folder / "evaluation.json").write_text(data + "\n", encoding="utf-8")
    several = len(prompts) > 1
    for i, prompt in enumerate(prompts, start=1):
        charts = evaluation_charts(prompt)
        for name, chart in charts.items():
            (folder / f"{name}{f'-{i}' if several else ''}.png").write_bytes(png_of(chart, methods_of(charts.values())))
    (folder / "report.html").write_text(html_report([page_of(evaluation)]), encoding="utf-8")
    return evaluation


def _noted(prompt: PromptFigures, notes: tuple[str, ...]) -> PromptFigures:
    """Add notes to each proposal, whose attempts have weights."""
    proposals = {name: replace(each, notes=(*each.notes, *notes)) for name, each in prompt.proposals.items()}
    return replace(prompt, proposals=proposals)


def _law_of(given: str | Mapping[str, str] | None) -> dict[str, Any]:
    """Return what tells a proposal from others, as plain JSON types; a folder by what is in it, not by its path."""
    if not isinstance(given, Mapping):
        return {"template": given}
    return {"template": None, **{kind: _digest(source) for kind, source in given.items()}}


def _drawn_from(given: str | Mapping[str, str] | None, load: Callable[[str], Any]) -> dict[str, Any]:
    """Return a proposal as a source takes it."""
    if not isinstance(given, Mapping):
        return {} if given is None else {"proposal": Prompt(given)}
    return {"adapter": given["adapter"]} if "adapter" in given else {"proposal": load(given["model"])}


_COMPUTES = (".json", ".safetensors", ".bin", ".gguf")
"""Endings of files that decide what a model gives: its weights, how they are used, and its tokens."""


def _digest(source: str) -> str:
    """Return the digest of a folder's files; what is no folder, such as a Hub id, is known by its name alone."""
    folder = adapters().get(source.removeprefix(PREFIX)) if source.startswith(PREFIX) else Path(source).expanduser()
    if folder is None or not folder.is_dir():
        return source
    whole = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in _COMPUTES and path.is_file():
            try:
                with path.open("rb") as file:
                    whole.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
            except OSError as error:
                raise UsageError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    return f"sha256:{whole.hexdigest()}"
