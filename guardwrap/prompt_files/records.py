"""What is written of a prompt: what came in, its texts, and its report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from guardwrap.outcomes import Outcome

__all__ = ["AGAIN", "record_of", "to_bytes", "why_short"]

AGAIN = "drawn_again"
"""Among the settings of a record: how many times its prompt was drawn for again."""


def record_of(fields: Mapping[str, Any], outcome: Outcome, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of one prompt: what came in, the texts, and the report with the run's settings."""
    report = outcome.report.to_dict() | {"settings": dict(settings)}
    return {**fields, "texts": list(outcome.texts), "ok": outcome.ok, "report": report}


def to_bytes(record: Mapping[str, Any]) -> bytes:
    """Return the line of a record."""
    # Half a surrogate pair, which JSON can spell and UTF-8 cannot, goes out as it came in: escaped.
    return (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def why_short(outcome: Outcome) -> str:
    """Say why there are fewer texts than asked for, and what helps."""
    if outcome.report.ended == "deterministic":
        return "this model's settings are greedy or beam search, which would give the same text again"
    return f"ended by {outcome.report.ended}; {outcome.report.advice()}"
