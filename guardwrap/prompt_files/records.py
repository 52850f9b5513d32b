"""Output records: the fields of the input, the texts, the report, and what identifies the run that made them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from guardwrap import __version__
from guardwrap.constraints.base import Constraint, walk
from guardwrap.environment.files import CONFIG
from guardwrap.environment.network import source_digest
from guardwrap.outcomes import Outcome
from guardwrap.proposals import Adapter

AGAIN = "drawn_again"
"""Setting in a record: how often its prompt was retried."""


NUMBER = "number"
"""Field of a report in a record of ``guardwrap generate``: the number of the prompt in the input, from 1."""

MADE = ("texts", "ok", "report", "reason")
"""Fields of a record in addition to those of its prompt."""

CHECKSUM = "checksum"
"""Field of a report in a record: the ``checksum_of`` the record when it was written."""

_CHECKED = ("prompt", "messages", "texts", "ok", "report")


def record_of(
    fields: Mapping[str, Any], outcome: Outcome, settings: Mapping[str, Any], number: int | None = None
) -> dict[str, Any]:
    """Return the record of one prompt: the fields of the input, the texts, and the report with the run's settings."""
    report = outcome.report.to_dict() | {"settings": dict(settings)}
    if number is not None:
        report[NUMBER] = number
    record = {**fields, "texts": list(outcome.texts), "ok": outcome.ok, "report": report}
    report[CHECKSUM] = checksum_of(record)
    return record


def checksum_of(record: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a record's prompt, texts and report, without its checksum.

    It shows that a record was changed by accident. It is no signature: whoever forges a record can compute it.
    """
    checked = {name: record[name] for name in _CHECKED if name in record}
    if isinstance(checked.get("report"), Mapping):
        checked["report"] = {name: value for name, value in checked["report"].items() if name != CHECKSUM}
    return hashlib.sha256(json.dumps(checked, sort_keys=True).encode()).hexdigest()


def to_bytes(record: Mapping[str, Any]) -> bytes:
    """Return a record as a line of JSON."""
    # Half a surrogate pair is possible in JSON but not in UTF-8, so it is escaped, as it was in the input.
    return (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def why_short(outcome: Outcome) -> str:
    """Return why there are fewer texts than requested, and what helps."""
    if outcome.report.ended == "deterministic":
        return "this model's settings are greedy or beam search, which would give the same text again"
    obstacle = outcome.report.obstacle
    why = "" if obstacle is None else f": {obstacle}"
    return f"ended by {outcome.report.ended}{why}; {outcome.report.advice()}"


DIGESTS, VERSIONS = "digests", "versions"
"""The settings in a record that no option shows."""

_LIBRARIES = ("torch", "transformers", "tokenizers")


@cache  # every record has them
def versions() -> Mapping[str, str]:
    """Return the versions of the libraries that determine a distribution."""
    return {"guardwrap": __version__, **{name: version(name) for name in _LIBRARIES}}


def model_digest(model: str) -> str | None:
    """Return what identifies the files of a model; None if it is not known.

    ``model``: a Hub id, a folder, or ``"local"``. A folder may hold an adapter, whose base model counts too.
    """
    if model == "local":
        from guardwrap.pipelines.embedded_model import local_digest  # imports torch

        return local_digest()
    digest, base = source_digest(model), None
    with suppress(OSError, ValueError, AttributeError):  # the loader explains what is wrong with the file
        base = json.loads((Path(model) / CONFIG).read_bytes()).get("base_model_name_or_path")
    if not isinstance(base, str) or digest is None:
        return digest
    of_base = source_digest(base)
    return None if of_base is None else f"{digest}+{of_base}"


def run_digests(
    model: str | None, proposal: Any, adapter: Any, constraint: Constraint, digest_of: Callable[[str], str | None]
) -> dict[str, str | None]:
    """Return what identifies the files that a run uses: model, adapter, learned twist, and what its rules read."""
    digests = rule_digests(constraint, digest_of)
    if model is not None:
        digests["model"] = model_digest(model)
        if isinstance(adapter, str | Path):
            digests["adapter"] = digest_of(str(adapter))
        elif isinstance(adapter, Adapter):
            digests["adapter"] = source_digest(str(adapter.source), adapter.revision)
    learned = getattr(proposal, "learned", None)
    if learned is not None:
        digests["learned twist"] = digest_of(str(learned))
    return digests


def rule_digests(constraint: Constraint, digest_of: Callable[[str], str | None]) -> dict[str, str | None]:
    """Return what identifies the files that judgements depend on, by name; see ``source_digest``."""
    named = {name: source for part in walk(constraint) for name, source in part.sources().items()}
    return {f"rule: {name}": digest_of(source) for name, source in sorted(named.items())}


def difference(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return how the settings of an earlier run differ from those of this one, as a clause; None if they are the same.

    Files whose digest is not known are never the same.
    """
    for name in sorted({*was, *now} - {DIGESTS, VERSIONS}):
        if was.get(name) != now.get(name):
            return _made_with(name, was.get(name))
    then, today = was.get(VERSIONS), now[VERSIONS]
    for library, installed in today.items():
        before = then.get(library) if isinstance(then, dict) else None
        if before != installed:
            return f"was made with {library} {before or 'of another version'}, and {installed} is installed"
    then, today = was.get(DIGESTS), now[DIGESTS]
    then = then if isinstance(then, dict) else {}
    for name in sorted({*then, *today}):
        if then.get(name) != today.get(name):
            return f"was made with other files of the {name}"
        if today.get(name) is None:
            return f"was made with files of the {name} whose version is not known"
    return None


def _made_with(name: str, was: Any) -> str:
    option = "--" + name.replace("_", "-")
    if was is None or was is False:
        return f"was made without {option}"
    return f"was made with {option}" + ("" if isinstance(was, bool) else f" {was}")  # a flag has no value
