r"""ECMA-262 regular expressions, translated to the ``regex`` module's syntax.

JSON Schema writes ``pattern`` and ``patternProperties`` in ECMA-262, with its ``u`` flag: characters are code points,
``\d``, ``\w`` and ``\b`` are ASCII, and ``$`` does not match before a final newline. Syntax that only expressions
without the flag may have is accepted where it has one meaning: needless backslashes, and ``{``, ``}`` and ``]`` as
characters. Everything else is rejected with an error that names it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from guardwrap.constraints.json.ecma_character_sets import (
    ANY,
    BOUNDARY,
    NO_BOUNDARY,
    NONE,
    NOT_A_LINE_END,
    TOKEN,
    Untranslatable,
    escape,
    escape_character,
    no_escape,
    read_set,
)
from guardwrap.constraints.kinds.regex_analysis import compile_pattern
from guardwrap.documents.time_limits import check_deadline
from guardwrap.errors import ConstraintError, quoted

__all__ = ["Expression", "compile_expression", "is_expression", "translate"]


class Expression(str):
    """A regular expression as its schema writes it.

    Parameters
    ----------
    translated
        The same in the syntax of ``regex``.
    compiled
        That, compiled.
    """

    translated: str
    compiled: Any


def compile_expression(spelling: str) -> Expression:
    """Translate and compile an expression.

    Raises
    ------
    ConstraintError
        If it is invalid, has what cannot be translated, or is too large.
    """
    expression = Expression(spelling)
    expression.translated = translate(spelling)
    expression.compiled = compile_pattern(expression.translated, spelling=spelling)
    return expression


def translate(spelling: str) -> str:
    """Return an expression of ECMA-262 in the syntax of ``regex``, version 0.

    Raises
    ------
    ConstraintError
        If it is invalid, or has what cannot be translated; the message names it.
    """
    try:
        return _translated(spelling)
    except Untranslatable as refused:
        raise ConstraintError(
            f"invalid regular expression {quoted(spelling[:80])} (JSON Schema uses ECMA-262): {refused}"
        ) from None


def is_expression(text: str) -> bool:
    """Whether a text is an expression of ECMA-262, as large as ``compile_pattern`` allows."""
    try:
        compile_pattern(_translated(text), spelling=text)
    except Untranslatable as refused:
        return refused.valid
    except ConstraintError:
        return False
    return True


class _Group(NamedTuple):
    """A group that is open: its beginning, and the number of capturing groups before it."""

    opening: str
    captures: int


@dataclass(slots=True)
class _State:
    """What has been translated so far.

    Parameters
    ----------
    pieces
        The translation.
    open
        The groups that are open.
    closed
        Numbers of capturing groups that are closed.
    unsafe
        Those of which ``regex`` and ECMA-262 may keep different captures.
    names
        Numbers of groups by their names.
    back
        References to groups: place in ``pieces``, how messages call it, and the number, or a name not known yet.
    captures
        How many capturing groups have begun.
    last
        The capturing groups in what a quantifier would repeat; None where it would repeat nothing.
    has_empty_set
        Whether there was a set without characters.
    """

    pieces: list[str] = field(default_factory=list)
    open: list[_Group] = field(default_factory=list)
    closed: set[int] = field(default_factory=set)
    unsafe: list[range] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    back: list[tuple[int, str, int | str]] = field(default_factory=list)
    captures: int = 0
    last: range | None = None
    has_empty_set: bool = False

    def add(self, piece: str, repeatable: range | None) -> None:
        self.pieces.append(piece)
        self.last = repeatable


_NO_GROUPS = range(0)


def _translated(spelling: str) -> str:
    state, i = _State(), 0
    while i < len(spelling):
        check_deadline()
        token = TOKEN.match(spelling, i)
        assert token is not None  # any character is one
        i = token.end()
        if token["set"]:
            piece, i = read_set(spelling, i, negated=token["set"] == "[^")
            state.has_empty_set |= piece in (ANY, NONE)
            state.add(piece, _NO_GROUPS)
        elif token["open"]:
            _open(state, token)
        elif token["close"]:
            _close(state)
        elif token["repeat"]:
            _repeat(state, token)
        elif token["back"] is not None or token["number"]:
            _refer(state, token)
        elif token["other"]:
            _character(state, token)
        elif token["single"] in ("b", "B"):
            state.add(BOUNDARY if token["single"] == "b" else NO_BOUNDARY, None)
        else:
            meant, i = escape(token)
            state.add(
                escape_character(meant) if isinstance(meant, int) else f"[{meant}]" if meant else NONE, _NO_GROUPS
            )
    if state.open:
        raise Untranslatable("a group is not closed; to look for a parenthesis, write \\(")
    unsafe = _union(state.unsafe) if state.back else set()
    for place, shown, target in state.back:
        number = state.names.get(target, 0) if isinstance(target, str) else target
        if not 0 < number <= state.captures:
            raise Untranslatable(f"{shown} refers to no group")
        if number in unsafe or isinstance(target, str):
            raise Untranslatable(f"{shown} {_UNSAFE}", valid=True)
        # One to a group that has matched nothing matches the empty string.
        state.pieces[place] = f"(?({number})\\{number})"
    return "".join(state.pieces)


_UNSAFE = (
    "refers to a group that is repeated, or in a look-around, or not closed before it, which cannot be translated; "
    "write the expression without it"
)


def _union(ranges: list[range]) -> set[int]:
    """Return the numbers in any of them, each looked at once: groups may be nested thousands deep."""
    found: set[int] = set()
    end = 0
    for each in sorted(ranges, key=lambda each: each.start):
        check_deadline()
        found.update(range(max(each.start, end), each.stop))
        end = max(end, each.stop)
    return found


def _open(state: _State, token: re.Match[str]) -> None:
    opening, name = token["open"], token["name"]
    if token["special"] is not None:
        where = f"{opening!r} at position {token.start()}"
        if token["special"] in tuple("ims-"):
            raise Untranslatable(
                f"{where}: flags cannot be translated; spell letters in both cases, as [aA]", valid=True
            )
        known = "(...), (?:...), (?<name>...), (?=...), (?!...), (?<=...) and (?<!...)"
        raise Untranslatable(f"{where} begins no group; its groups are {known}")
    if name is not None:
        if not name.replace("$", "_").isidentifier():
            raise Untranslatable(f"{name[:40]!r} is no name of a group; use letters, digits and _")
        if name in state.names:
            raise Untranslatable(f"two groups have the name {name[:40]!r}; give one of them another", valid=True)
        state.names[name] = state.captures + 1
        opening = "("
    state.open.append(_Group(opening, state.captures))
    state.captures += opening == "("
    state.add(opening, None)


def _close(state: _State) -> None:
    if not state.open:
        raise Untranslatable("a parenthesis closes no group; to look for one, write \\)")
    group = state.open.pop()
    inner = range(group.captures + 1, state.captures + 1)
    if group.opening == "(":
        state.closed.add(group.captures + 1)
    is_group = group.opening in ("(", "(?:")
    if not is_group and group.opening != "(?=":
        state.unsafe.append(inner)
    state.add(")", inner if is_group else None)


def _repeat(state: _State, token: re.Match[str]) -> None:
    where = f"{token['repeat'][:20]!r} at position {token.start()}"
    if state.last is None:
        raise Untranslatable(f"{where} repeats nothing; a quantifier comes once, after a character, a set or a group")
    least, most = (token[name] or "" for name in ("least", "most"))
    if most and (len(most.lstrip("0")), most.lstrip("0")) < (len(least.lstrip("0")), least.lstrip("0")):
        raise Untranslatable(f"{where} has its numbers out of order")
    state.unsafe.append(state.last)
    state.add(token["repeat"], None)


def _refer(state: _State, token: re.Match[str]) -> None:
    digits, name = token["number"], token["back"]
    number = state.names.get(name, 0) if name is not None else int(digits[:9])
    if number not in state.closed:
        state.unsafe.append(range(number, number + 1))
    shown = f"{token[0][:40]} at position {token.start()}"
    state.back.append((len(state.pieces), shown, number or name))
    state.add("", _NO_GROUPS)


_SIGNS = {"|": "|", "^": "^", "$": r"\Z"}


def _character(state: _State, token: re.Match[str]) -> None:
    char, place = token["other"], token.start()
    if char in _SIGNS:
        state.add(_SIGNS[char], None)
    elif char == ".":
        state.add(NOT_A_LINE_END, _NO_GROUPS)
    elif char == "\\":
        no_escape(token.string, place)
    elif char == "{" and re.compile(r"\{,[0-9]+\}").match(token.string, place):
        raise Untranslatable(f"'{{,' at position {place} begins no quantifier; write {{0,n}}")
    elif char == "]" and state.has_empty_set:
        raise Untranslatable("a ']' right after '[' or '[^' ends an empty set; to look for it, write \\]")
    else:
        state.add(escape_character(ord(char)), _NO_GROUPS)
