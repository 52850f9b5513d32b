"""Translation of a part of a constraint to vLLM's request field ``structured_outputs``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from guardwrap.constraints.base import All, Constraint
from guardwrap.constraints.grammar.grammar import Grammar
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.kinds.text import Regex
from guardwrap.constraints.views import in_json, message_part
from guardwrap.errors import UsageError

# Only syntax that has the same meaning in all regular expression engines: letters, escaped punctuation, classes of
# these, groups, alternatives and greedy repetitions. Not `.`, `\d`, `\w` and `\s`, which some engines limit to ASCII,
# or to a line.
_LITERAL = r"[^\\.\[\](){}*+?|^$\n]|\\[.\\\[\](){}*+?|^$/-]"
_ITEM = r"[^\\\[\]^\n&~|:-]|\\[.\\\[\](){}*+?|^$/-]"
_CLASS = rf"\[\^?(?:(?:{_ITEM})(?:-(?:{_ITEM}))?)+\]"
_REPEAT = r"(?:[*+?]|\{\d+(?:,\d*)?\})(?![*+?{])"
_PLAIN = re.compile(rf"(?:(?:(?:{_LITERAL}|{_CLASS}|\))(?:{_REPEAT})?)|\((?:\?:)?(?![?*+{{])|\|)*")


def masking(constraint: Constraint) -> tuple[Constraint, dict[str, Any]]:
    """Return the first part of a constraint that ``structured_outputs`` can express, and the field's value for it."""
    for part in _conjuncts(constraint):
        field = _in_words(part)
        if field is not None:
            return part, field
    raise UsageError(
        "over an endpoint, Masked() requires a part of the constraint that vLLM's structured_outputs supports: a "
        "JSONSchema of the whole text or answer, a Regex with match='fullmatch' of letters, classes, groups and "
        "repetitions, or a Grammar without % lines, aliases and ?rules; use one, or leave Masked() out"
    )


def _conjuncts(constraint: Constraint) -> Iterator[Constraint]:
    if isinstance(constraint, All):
        for part in constraint.of:
            yield from _conjuncts(part)
    else:
        yield constraint


def _in_words(part: Constraint) -> dict[str, Any] | None:
    on = getattr(part, "on", None)
    if on is None or in_json(on) or (on != "completion" and message_part(on) != "answer"):  # only answers are masked
        return None
    if isinstance(part, JSONSchema) and part.where == "text" and isinstance(part.schema, dict) and part.schema:
        compact = {"disable_any_whitespace": True} if part.whitespace == "compact" else {}
        return {"json": part.schema, **compact}
    if isinstance(part, Regex) and part.match == "fullmatch" and not part.flags and _PLAIN.fullmatch(part.pattern):
        return {"regex": part.pattern}
    if isinstance(part, Grammar) and part.start == "start" and _plain_lark(str(part.grammar)):
        return {"grammar": part.grammar}
    return None


def _plain_lark(grammar: str) -> bool:
    """Return whether a grammar contains only rules and terminals, which all servers interpret alike."""
    return not re.search(r"^\s*[%?!]|->|\bfrom\b", grammar, re.MULTILINE)
