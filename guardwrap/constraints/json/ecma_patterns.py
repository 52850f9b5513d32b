r"""ECMA-262 regular expressions, translated to the ``regex`` module's syntax.

In JSON Schema, ``pattern`` and ``patternProperties`` are ECMA-262 expressions with the flag ``u``: characters are code
points, ``\d``, ``\w`` and ``\b`` are ASCII, and ``$`` does not match before a final newline. Some syntax is only valid
without the flag: needless backslashes, and ``{``, ``}`` and ``]`` as characters. It is accepted if it is unambiguous.
Everything else is rejected with an error that names it.
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
from guardwrap.constraints.regex_analysis import compile_pattern
from guardwrap.documents.time_limits import check_deadline
from guardwrap.errors import ConstraintError, quoted


class Expression(str):
    """A regular expression as written in a schema."""

    translated: str  # its translation to the syntax of ``regex``
    compiled: Any  # the compiled translation


def compile_expression(spelling: str) -> Expression:
    """Translate and compile an expression."""
    expression = Expression(spelling)
    expression.translated = translate(spelling)
    expression.compiled = compile_pattern(expression.translated, spelling=spelling)
    return expression


def translate(spelling: str) -> str:
    """Return the translation of an ECMA-262 expression to the syntax of ``regex``, version 0."""
    try:
        return _translated(spelling)
    except Untranslatable as reason:
        raise ConstraintError(
            f"invalid regular expression {quoted(spelling[:80])} (JSON Schema uses ECMA-262): {reason}"
        ) from None


def is_expression(text: str) -> bool:
    """Whether a text is a valid ECMA-262 expression, within the size limits of ``compile_pattern``."""
    try:
        compile_pattern(_translated(text), spelling=text)
    except Untranslatable as reason:
        return reason.valid
    except ConstraintError:
        return False
    return True


class _Group(NamedTuple):
    """An open group: its opening characters, and the number of capturing groups before it."""

    opening: str
    captures: int


@dataclass(slots=True)
class _State:
    """The state of the translation."""

    pieces: list[str] = field(default_factory=list)  # the translation so far
    open: list[_Group] = field(default_factory=list)  # the groups that are open
    closed: set[int] = field(default_factory=set)  # the numbers of the capturing groups that are closed
    # the numbers of groups whose captures may differ between ``regex`` and ECMA-262
    unsafe: list[range] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)  # the numbers of named groups, by name
    # references to groups: the index in ``pieces``, a description for messages, and the number of the group, or its
    # name if it is not defined yet
    back: list[tuple[int, str, int | str]] = field(default_factory=list)
    captures: int = 0  # the number of capturing groups that have begun
    # the capturing groups in the part that a quantifier would repeat; None if a quantifier is not allowed here
    last: range | None = None
    has_empty_set: bool = False  # whether there was a set without characters

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
        raise Untranslatable("a group is not closed; to match a parenthesis, write \\(")
    unsafe = _union(state.unsafe) if state.back else set()
    for place, shown, target in state.back:
        number = state.names.get(target, 0) if isinstance(target, str) else target
        if not 0 < number <= state.captures:
            raise Untranslatable(f"{shown} refers to a group that does not exist")
        if number in unsafe or isinstance(target, str):
            raise Untranslatable(f"{shown} {_UNSAFE}", valid=True)
        # In ECMA-262, a reference to a group that did not take part in the match matches the empty string.
        state.pieces[place] = f"(?({number})\\{number})"
    return "".join(state.pieces)


_UNSAFE = (
    "refers to a group that is repeated, or in a look-around, or not closed before it, which cannot be translated; "
    "write the expression without this reference"
)


def _union(ranges: list[range]) -> set[int]:
    """Return the numbers in any of the ranges, in linear time: groups may be nested thousands of levels deep."""
    numbers: set[int] = set()
    end = 0
    for each in sorted(ranges, key=lambda each: each.start):
        check_deadline()
        numbers.update(range(max(each.start, end), each.stop))
        end = max(end, each.stop)
    return numbers


def _open(state: _State, token: re.Match[str]) -> None:
    opening, name = token["open"], token["name"]
    if token["special"] is not None:
        where = f"{opening!r} at position {token.start()}"
        if token["special"] in tuple("ims-"):
            raise Untranslatable(
                f"{where}: inline flags are not supported; write letters in both cases, as [aA]", valid=True
            )
        known = "(...), (?:...), (?<name>...), (?=...), (?!...), (?<=...) and (?<!...)"
        raise Untranslatable(f"{where} does not begin a group; ECMA-262 has {known}")
    if name is not None:
        if not name.replace("$", "_").isidentifier():
            raise Untranslatable(f"{name[:40]!r} is not a valid group name; use letters, digits and _")
        if name in state.names:
            raise Untranslatable(f"two groups have the name {name[:40]!r}; rename one of them", valid=True)
        state.names[name] = state.captures + 1
        opening = "("
    state.open.append(_Group(opening, state.captures))
    state.captures += opening == "("
    state.add(opening, None)


def _close(state: _State) -> None:
    if not state.open:
        raise Untranslatable("unmatched ')'; to match a parenthesis, write \\)")
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
        raise Untranslatable(f"{where} has nothing to repeat; put one quantifier after a character, a set or a group")
    least, most = (token[name] or "" for name in ("least", "most"))
    if most and (len(most.lstrip("0")), most.lstrip("0")) < (len(least.lstrip("0")), least.lstrip("0")):
        raise Untranslatable(f"{where} has its numbers in the wrong order")
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
        raise Untranslatable(f"'{{,' at position {place} does not begin a quantifier; write {{0,n}}")
    elif char == "]" and state.has_empty_set:
        raise Untranslatable("a ']' right after '[' or '[^' ends an empty set; to match a ']', write \\]")
    else:
        state.add(escape_character(ord(char)), _NO_GROUPS)
