"""Which part of a constraint a server can keep its tokens to, in the words of vLLM's ``structured_outputs``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.combinators import All
from guardwrap.constraints.grammar.grammar import Grammar
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.kinds.text import Regex
from guardwrap.errors import UsageError

__all__ = ["masking"]

# What all engines for regular expressions read alike: letters, escaped signs, classes of these, groups, alternatives
# and repetitions that are not lazy. Not `.`, `\d`, `\w` and `\s`: some engines take them to be ASCII, or lines.
_LITERAL = r"[^\\.\[\](){}*+?|^$\n]|\\[.\\\[\](){}*+?|^$/-]"
_ITEM = r"[^\\\[\]^\n&~|:-]|\\[.\\\[\](){}*+?|^$/-]"
_CLASS = rf"\[\^?(?:(?:{_ITEM})(?:-(?:{_ITEM}))?)+\]"
_REPEAT = r"(?:[*+?]|\{\d+(?:,\d*)?\})(?![*+?{])"
_PLAIN = re.compile(rf"(?:(?:(?:{_LITERAL}|{_CLASS}|\))(?:{_REPEAT})?)|\((?:\?:)?(?![?*+{{])|\|)*")


def masking(constraint: Constraint) -> tuple[Constraint, dict[str, Any]]:
    """Return the first part of a constraint that a server has a word for, and that word.

    Raises
    ------
    UsageError
        If there is none; says what would do.
    """
    for part in _conjuncts(constraint):
        found = _in_words(part)
        if found is not None:
            return part, found
    raise UsageError(
        "over an endpoint Masked() needs a part of the constraint that vLLM's structured_outputs can say: a JSONSchema "
        "of the whole text, a Regex with match='fullmatch' of letters, classes, groups and repetitions, or a Grammar "
        "without % lines, aliases and ?rules; leave Masked() out"
    )


def _conjuncts(constraint: Constraint) -> Iterator[Constraint]:
    if isinstance(constraint, All):
        for part in constraint.of:
            yield from _conjuncts(part)
    else:
        yield constraint


def _in_words(part: Constraint) -> dict[str, Any] | None:
    if getattr(part, "on", None) != "completion":
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
    """Whether a grammar has nothing but rules and terminals, which servers read alike."""
    return not re.search(r"^\s*[%?!]|->|\bfrom\b", grammar, re.MULTILINE)
