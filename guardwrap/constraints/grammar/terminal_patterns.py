"""Regular expressions in a grammar: those that the library would read otherwise than Lark are rewritten or rejected.

The library ignores anchors and the ``?`` of lazy quantifiers. A lazy quantifier makes a terminal end at its first
possible end, so where that is all it does, the terminal becomes ``T & ~(T ANY)``: no text of it begins another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import regex

from guardwrap.errors import ConstraintError

ANY = "/(?s:.)/"
"""Any character, as a part of a terminal."""

IsEmpty = Callable[[str], bool]
"""Whether a terminal, given as an expression of terminals, matches no text."""

_LAZY = (
    'a lazy quantifier is supported only with a single character before it and fixed text after it, as in /".*?"/; '
    'name the characters that may come, as in /"[^"]*"/'
)
_GROUPS = {
    "(?=": "look-around", "(?!": "look-around", "(?<=": "look-around", "(?<!": "look-around",
    "(?>": "an atomic group", "(?(": "a condition", "(?P=": "a backreference", "(?#": "a comment",
}  # fmt: skip
_GROUP = regex.compile(r"\((?:\?(?:P?<\w+>|(?P<flags>[a-zA-Z]*(?:-[a-zA-Z]+)?)(?P<end>[:)])))?")
_DEEPEST = 100
_ANCHORS = "AZzbBGK<>"
_ESCAPE = regex.compile(
    r"\\(?:[pPuxU]\{[^}]*\}|p\w|P\w|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", regex.DOTALL
)
_QUANTIFIER = regex.compile(r"(?P<times>[*+?]|\{\d+(?:,\d*)?\})(?P<how>[?+]?)")
_LEADING_FLAGS = regex.compile(r"\(\?[a-zA-Z]+\)")


@dataclass(frozen=True)
class Literal:
    """A regular expression of a grammar: ``/pattern/flags``."""

    pattern: str
    flags: str

    def part(self, pattern: str) -> str:
        """Return another pattern with the same flags, as an expression of terminals."""
        leading = _LEADING_FLAGS.match(self.pattern)
        return f"/{leading[0] if leading else ''}{pattern}/{self.flags}"


@dataclass(frozen=True)
class _Atom:
    """A part of a sequence: one character, a group or flags, with its quantifier."""

    text: str
    times: str = ""
    lazy: bool = False
    one_character: bool = False
    inner: tuple[tuple[_Atom, ...], ...] = ()  # the alternatives of a plain group

    @property
    def whole(self) -> str:
        """The source text, without the ``?`` of a lazy quantifier."""
        return self.text + self.times

    @property
    def takes_one(self) -> bool:
        """Whether this, without its quantifier, matches exactly one character."""
        return self.one_character or (
            bool(self.inner) and all(len(each) == 1 and not each[0].times and each[0].takes_one for each in self.inner)
        )


class _Reader:
    """Reads a regular expression into atoms, and rejects what the library would read otherwise than Lark."""

    def __init__(self, literal: Literal) -> None:
        self.text, self.place = literal.pattern, 0
        self.verbose = "x" in literal.flags

    def alternatives(self, depth: int = 0) -> tuple[tuple[_Atom, ...], ...]:
        """Read up to a closing bracket, or the end."""
        if depth > _DEEPEST:
            raise ConstraintError(f"invalid regex (groups are nested deeper than {_DEEPEST})")
        each: list[list[_Atom]] = [[]]
        while self.place < len(self.text) and self.text[self.place] != ")":
            char = self.text[self.place]
            if char == "|":
                each.append([])
                self.place += 1
            elif self.verbose and (char.isspace() or char == "#"):
                end = self.text.find("\n", self.place) if char == "#" else self.place
                self.place = len(self.text) if end < 0 else end + 1
            else:
                each[-1].append(self._quantified(self._atom(depth)))
        if not depth and self.place < len(self.text):  # a bracket too many, which the library reports
            each.append([])
        return tuple(map(tuple, each))

    def _quantified(self, atom: _Atom) -> _Atom:
        quantifier = _QUANTIFIER.match(self.text, self.place)
        if quantifier is None:
            return atom
        if quantifier["how"] == "+":
            raise ConstraintError(f"the possessive quantifier {quantifier[0]!r} is not supported; leave out its last +")
        self.place = quantifier.end()
        lazy = quantifier["how"] == "?" and regex.fullmatch(r"\{\d+\}", quantifier["times"]) is None
        return _Atom(atom.text, quantifier["times"], lazy, atom.one_character, atom.inner)

    def _atom(self, depth: int) -> _Atom:
        start, char = self.place, self.text[self.place]
        if char == "(":
            return self._group(depth)
        if char in "^$":
            raise _anchor(char)
        if char == "[":
            self._skip_class()
        elif char == "\\":
            escape = _ESCAPE.match(self.text, start)
            if escape is None:  # the library reports it
                self.place = len(self.text)
            elif escape[0][1] in _ANCHORS:
                raise _anchor(escape[0])
            elif escape[0][1] in "123456789":
                raise ConstraintError(f"the backreference {escape[0]!r} is not supported; write its text out")
            else:
                self.place = escape.end()
        else:
            self.place += 1
        return _Atom(self.text[start : self.place], one_character=True)

    def _group(self, depth: int) -> _Atom:
        start = self.place
        for opening, name in _GROUPS.items():
            if self.text.startswith(opening, start):
                raise ConstraintError(f"{name} ({opening}…) is not supported in a regular expression; leave it out")
        opening = _GROUP.match(self.text, start)
        assert opening is not None
        self.place = opening.end()
        if opening["end"] == ")":
            return _Atom(opening[0])
        inner = self.alternatives(depth + 1)
        self.place += 1  # the library reports a missing bracket
        return _Atom(self.text[start : self.place], inner=() if opening["flags"] else inner)

    def _skip_class(self) -> None:
        """Go to the end of a set of characters, in which the library knows more operators than Lark."""
        place = self.place + (2 if self.text.startswith("[^", self.place) else 1)
        first = place
        while place < len(self.text) and (self.text[place] != "]" or place == first):
            if self.text[place] == "\\":
                escape = _ESCAPE.match(self.text, place)
                place = len(self.text) if escape is None else escape.end()
                continue
            operator = self.text[place : place + 2]
            if self.text[place] == "[" or operator in ("&&", "~~") or (operator == "--" and place > first):
                shown = "[" if self.text[place] == "[" else operator
                raise ConstraintError(f"{shown!r} within [] is not supported; put a backslash before it")
            place += 1
        self.place = place + 1


def _anchor(text: str) -> ConstraintError:
    return ConstraintError(f"the anchor {text!r} is not supported in a terminal; leave it out, or use a Regex rule too")


def rewritten(literal: Literal, is_empty: IsEmpty) -> str | None:
    """Return an expression of terminals that matches what Lark matches; None if the literal itself does."""
    alternatives = [_flat(each) for each in _Reader(literal).alternatives()]
    if not any(map(_has_lazy, alternatives)):
        return None
    if "x" in literal.flags:
        raise ConstraintError("a lazy quantifier is not supported with the flag x; leave the flag out")
    terms = [_term(each, literal, is_empty) for each in alternatives]
    require_unlike(terms, is_empty)
    return " | ".join(f"({term})" for term in terms)


def require_unlike(terms: Sequence[str], is_empty: IsEmpty) -> None:
    """Raise ConstraintError if a text of one alternative begins with one of another: Lark takes the first of them."""
    for one, other in combinations(terms, 2):
        for short, long in ((one, other), (other, one)):
            if not is_empty(f"({long}) & (({short}) {ANY}*)"):
                raise ConstraintError(_LAZY)


def not_alone() -> ConstraintError:
    """Return the error for a lazy quantifier in a terminal that has more parts."""
    return ConstraintError(f"{_LAZY}, or write the terminal as one regular expression")


def _flat(atoms: tuple[_Atom, ...]) -> list[_Atom]:
    """Return a sequence without groups that only group."""
    flat: list[_Atom] = []
    for atom in atoms:
        flat += _flat(atom.inner[0]) if len(atom.inner) == 1 and not atom.times else [atom]
    return flat


def _has_lazy(atoms: list[_Atom] | tuple[_Atom, ...]) -> bool:
    return any(atom.lazy or any(map(_has_lazy, atom.inner)) for atom in atoms)


def _term(atoms: list[_Atom], literal: Literal, is_empty: IsEmpty) -> str:
    """Return the expression of one alternative."""

    def pattern(atoms: list[_Atom]) -> str:
        return literal.part("".join(atom.whole for atom in atoms))

    lazy = [i for i, atom in enumerate(atoms) if atom.lazy]
    if any(_has_lazy(each) for atom in atoms for each in atom.inner) or len(lazy) > 1:
        raise ConstraintError(_LAZY)
    if lazy and any(_LEADING_FLAGS.fullmatch(atom.text) for atom in atoms[1:]):  # flags that hold from here on
        raise ConstraintError(_LAZY)
    atoms = [atom for atom in atoms if not _LEADING_FLAGS.fullmatch(atom.text)]
    if not lazy:
        return pattern(atoms) if atoms else '""'
    (number,) = [i for i, atom in enumerate(atoms) if atom.lazy]
    before, repeated, after = atoms[:number], atoms[number], atoms[number + 1 :]
    if not repeated.takes_one:
        raise ConstraintError(_LAZY)
    optional: list[_Atom] = []
    while after and after[-1].times in ("?", "*") and after[-1].takes_one:
        optional.insert(0, after.pop())
    if not after:  # what follows may match nothing, so the repetition takes as little as it may
        least = {"*": 0, "?": 0, "+": 1}.get(repeated.times)
        least = int(repeated.times[1:].rstrip("}").partition(",")[0]) if least is None else least
        fewest = [_Atom(repeated.text, f"{{{least}}}")] if least else []
        kept = [*before, *fewest, *optional]
        return pattern(kept) if kept else '""'
    ends_once = pattern(after)
    for unique, term in ((before, pattern(before)), (after, ends_once)):
        if not _is_fixed(unique) and not is_empty(f"({term}) & (({term}) {ANY}+)"):
            raise ConstraintError(_LAZY)
    if not _is_fixed(after) and not is_empty(f"({ends_once}) & ({ANY}+ ({ends_once}) {ANY}+)"):
        raise ConstraintError(_LAZY)
    term = pattern([*before, _Atom(repeated.text, repeated.times), *after])
    least_term = f"({term}) & ~(({term}) {ANY}+)"
    return f"({least_term}) {pattern(optional)}" if optional else least_term


def _is_fixed(atoms: list[_Atom]) -> bool:
    """Whether a sequence matches a fixed number of characters."""
    return all(atom.takes_one and not atom.times for atom in atoms)
