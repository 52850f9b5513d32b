"""A complete evaluation: draws attempts and records them, computes figures, and writes plots and files."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np

from guardwrap import __version__
from guardwrap.constraints.base import Constraint
from guardwrap.errors import UsageError
from guardwrap.evaluation.evaluation_report import evaluation_charts, page_of
from guardwrap.evaluation.evaluation_settings import (
    AUTO,
    BASE,
    KINDS,
    EvaluationSettings,
    marks_of,
    position_to_compare,
    shaped_proposal,
)
from guardwrap.evaluation.figures import Evaluation, PromptFigures, figures_of
from guardwrap.outcomes.charts import methods_of, png_of, require_matplotlib
from guardwrap.outcomes.html import html_report
from guardwrap.proposals import Unweighable
from guardwrap.samplers import Attempt, from_row, to_row
from guardwrap.support.files import file_digest, folder_digest
from guardwrap.support.limits import irregular
from guardwrap.support.network import local_path

CHUNK = 1000
"""Most attempts per prompt in one line of a recording; an interruption loses those of the unfinished line."""

Attempts = list[list[Attempt]]
"""The attempts of each prompt, in launch order."""

Choose = Callable[[Any, Mapping[str, Any]], tuple[dict[str, Any], str]]
"""Returns what ``sampler="auto"`` would draw from for prompts and options, as options, and its description."""


class Tick(Protocol):
    """Callback for the progress of an evaluation."""

    def __call__(self, attempts: int, *, kept: bool = False) -> None:
        """Receive a number of new attempts over all prompts; ``kept`` if they come from an earlier run."""


def evaluate(
    source: Any,
    settings: EvaluationSettings,
    constraint: Constraint,
    folder: Path,
    tick: Tick = lambda attempts, kept=False: None,
    load: Callable[[str], Any] = lambda name: name,
    choose: Choose | None = None,
) -> Evaluation:
    """Draw the attempts that are not recorded yet, and write ``evaluation.json``, ``report.html`` and the plots.

    ``source``: a ``GuardedGenerator``, or what has its ``attempts`` and a session with notes, ``of_weights``.

    ``folder``: the folder for the files and, in ``attempts/``, for recorded attempts, which later calls with the same
    settings use again. Created if it does not exist.

    ``load``: loads a proposal's model by its name, once, when it is first drawn from. By default the source receives
    the name and loads the model for every chunk.

    ``choose``: chooses what the proposal ``auto`` draws from: ``calls.choice.chosen_source`` for the source.
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
    # The model itself comes last: a proposal that cannot be weighed should fail before its many attempts are drawn.
    for name, given in (*settings.proposals.items(), (BASE, None)):
        count = settings.base_attempts or settings.attempts if name == BASE else settings.attempts
        own_law = {**law, "name": name, **_law_of(given)}
        drawn_from, versions = cache(partial(_drawn_from, given, load)), used
        if given == AUTO:
            if choose is None:
                raise UsageError(f"the proposal {name!r} is 'auto', which needs choose=; use guardwrap evaluate")
            options = {**law["generation"], "seed": law["seed"], "sampler": "auto"}
            choice = cache(partial(choose, law["prompts"], options))
            drawn_from = cache(lambda choice=choice: choice()[0])
            if not recording_path(folder / "attempts", own_law).exists():
                versions = {**used, _DRAWN_FROM: choice()[1]}
        recorded[name], begun[name] = record(source, own_law, drawn_from, folder / "attempts", count, versions, tick)
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
    said: tuple[str, ...] = source.session.of_weights
    prompts = [_noted(prompt, said, begun) for prompt in prompts]
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


def _noted(
    prompt: PromptFigures, notes: tuple[str, ...], recorded_with: Mapping[str, Mapping[str, str]]
) -> PromptFigures:
    """Add notes on weights to each proposal, and what ``auto`` chose."""
    chosen = {name: used[_DRAWN_FROM] for name, used in recorded_with.items() if _DRAWN_FROM in used}
    choices = {name: (f"sampler='auto' chose to draw from {words}",) for name, words in chosen.items()}
    proposals = {
        name: replace(each, notes=(*each.notes, *choices.get(name, ()), *notes))
        for name, each in prompt.proposals.items()
    }
    return replace(prompt, proposals=proposals)


def _law_of(given: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a proposal's identity as plain JSON types; a folder is identified by its files, not by its path."""
    if not isinstance(given, Mapping):
        return {"template": given}
    identity = {kind: _digest(source) if kind in KINDS else source for kind, source in given.items()}
    twist = given.get("twisted")
    if isinstance(twist, Mapping) and twist.get("learned") is not None:
        identity["twisted"] = {**twist, "learned": file_digest(Path(twist["learned"]).expanduser())}
    return {"template": None, **identity}


def _drawn_from(given: str | Mapping[str, Any] | None, load: Callable[[str], Any]) -> dict[str, Any]:
    """Return a proposal as keyword arguments of ``GuardedGenerator.attempts``."""
    if given is None:
        return {}
    if (proposal := shaped_proposal(given)) is not None:
        return {"proposal": proposal}
    assert isinstance(given, Mapping)
    return {"adapter": given["adapter"]} if "adapter" in given else {"proposal": load(given["model"])}


_DRAWN_FROM = "drawn from"
"""The name under which a recording keeps what ``auto`` chose."""


def _digest(source: str) -> str:
    """Return the digest of a folder's files; return a source that is not a folder, such as a Hub id, unchanged."""
    folder = local_path(source)
    return source if folder is None or not folder.is_dir() else folder_digest(folder)


# Recordings of attempts as JSON Lines, from which an interrupted evaluation resumes.


def record(
    source: Any,
    law: Mapping[str, Any],
    proposal: Callable[[], Mapping[str, Any]],
    folder: Path,
    count: int,
    versions: Mapping[str, str],
    tick: Tick = lambda attempts, kept=False: None,
) -> tuple[Attempts, dict[str, str]]:
    """Return the attempts of one proposal: recorded ones, and new ones if those are too few.

    Recorded attempts are never discarded, so a recording that grew in steps differs from one made at once. Both are
    draws from the same distribution.

    ``law``: everything that determines the distribution, as plain JSON types: ``name``, ``prompts``, ``generation``,
    ``seed``, and others such as the proposal. A recording is used again only for an equal ``law``.

    ``proposal``: returns the keyword ``proposal=`` or ``adapter=`` for the source. Called only if attempts are drawn.
    """
    path = recording_path(folder, law)
    if what := irregular(path):
        raise UsageError(f"{str(path)!r} is {what}, not a recording; remove it")
    folder.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        used, recorded, chunks = _recorded(file, law, count)
        if used is None:
            used = dict(versions)
            file.write(_line({"law": law, "versions": used}))
        tick(sum(map(len, recorded)), kept=True)
        while (done := len(recorded[0])) < count:
            wanted = min(CHUNK, count - done)
            try:
                chunk = source.attempts(
                    law["prompts"],
                    wanted,
                    seed=_seed(law, chunks),
                    on_attempt=partial(tick, 1),
                    **proposal(),
                    **law["generation"],
                )
            except Unweighable as error:
                needed = ", ".join(f"{name}: {json.dumps(value)}" for name, value in error.settings.items())
                raise UsageError(f"generation: {error.why}; write {needed}") from None
            if [len(attempts) for attempts in chunk] != [wanted] * len(law["prompts"]):
                raise UsageError(f"the source did not return the requested {wanted} attempts per prompt")
            file.write(_line({"attempts": [[to_row(a) for a in attempts] for attempts in chunk]}))
            file.flush()
            chunks += 1
            for attempts, more in zip(recorded, chunk, strict=True):
                attempts += more
    return recorded, used


def recording_path(folder: Path, law: Mapping[str, Any]) -> Path:
    """Return the path of the recording for a law."""
    slug = re.sub(r"\W+", "-", law["name"], flags=re.ASCII).strip("-")[:40]
    digest = hashlib.sha256(json.dumps(law, sort_keys=True).encode()).hexdigest()[:12]
    return folder / f"{slug or 'proposal'}-{digest}.jsonl"


def _seed(law: Mapping[str, Any], number: int) -> int:
    """Return the seed of a chunk; it depends on the law's name, so that figures of proposals are independent."""
    words = (law["seed"], zlib.crc32(law["name"].encode()), number)
    return int(np.random.SeedSequence(words).generate_state(1)[0])


def _recorded(file: BinaryIO, law: Mapping[str, Any], count: int) -> tuple[dict[str, str] | None, Attempts, int]:
    """Return the recorded versions, up to ``count`` attempts, and their number of chunks; remove an unfinished line."""
    used: dict[str, str] | None = None
    recorded: Attempts = [[] for _ in law["prompts"]]
    chunks = 0
    file.seek(0)
    for line in file:
        if not line.endswith(b"\n"):
            file.truncate(file.tell() - len(line))
            break
        try:
            data = json.loads(line)
            if used is None:
                if data["law"] != law:
                    raise ValueError
                used = dict(data["versions"])
            elif len(recorded[0]) < count:  # further attempts stay in the file
                chunk = [[from_row(row) for row in rows] for rows in data["attempts"]]
                if len(chunk) != len(recorded) or not chunk[0] or len({len(attempts) for attempts in chunk}) > 1:
                    raise ValueError
                chunks += 1
                for attempts, more in zip(recorded, chunk, strict=True):
                    attempts += more[: count - len(attempts)]
        except (ValueError, KeyError, TypeError):
            raise UsageError(f"{file.name!r} is not a recording of these attempts; remove it") from None
    return used, recorded, chunks


def _line(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data).encode() + b"\n"
