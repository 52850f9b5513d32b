"""Output records: the fields of the input, the texts and the report of one prompt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from guardwrap.outcomes import Outcome

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
