"""The automaton of a constraint, by its kind.

Many kinds say what regular expressions say, or count what one matches.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import regex

from guardwrap.constraints.base import All, AnyOf, Constraint, Not
from guardwrap.constraints.field_checks import is_between
from guardwrap.constraints.files.kind_registry import is_kind
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.kinds.count import (
    AFTER_ENDS,
    COUNTED_ENDS,
    LISTED,
    Count,
    item_pattern,
    listed_words,
    plain_word,
)
from guardwrap.constraints.kinds.keyword import Keyword
from guardwrap.constraints.kinds.text import Case, Finished, Length, OneOf, Regex
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.kinds.text_folding import has_spellings, is_spaced
from guardwrap.support.time_limits import TimeLimit, time_limit
from guardwrap.twists.automata import Automaton, Progress, TooManyStates, build, minimized, product
from guardwrap.twists.json_progress import json_progress
from guardwrap.twists.pattern_programs import (
    CountedMatch,
    Program,
    Unsupported,
    count_progress,
    match_progress,
    program_of,
)
from guardwrap.twists.word_progress import word_progress

if TYPE_CHECKING:
    from guardwrap.rules.layout import Edges, Split
    from guardwrap.rules.parses import Parses

BUILD_SECONDS = 2.0
"""The most CPU seconds for an automaton. Constraints may come from anyone."""


def automaton_of(constraint: Constraint) -> Automaton | None:
    """Return the automaton that follows a constraint; None if there is none of a fair size, soon enough.

    The automaton may be wrong about some texts: a proposal that follows it still has exact weights.
    """
    try:
        with time_limit(BUILD_SECONDS):
            return _known(constraint)
    except (TooManyStates, TimeLimit, RecursionError):
        return None


def _known(constraint: Constraint) -> Automaton | None:
    try:
        return _automaton(constraint)
    except Unsupported:
        return None


@singledispatch
def _automaton(constraint: Constraint) -> Automaton | None:
    return None


@_automaton.register
def _(constraint: All) -> Automaton | None:
    # What cannot be followed is left to rejection.
    parts = [part for each in constraint.of if (part := _known(each)) is not None]
    return product(parts, np.logical_and) if parts else None


@_automaton.register
def _(constraint: AnyOf) -> Automaton | None:
    parts = [_known(each) for each in constraint.of]
    known = [part for part in parts if part is not None]
    return product(known, np.logical_or) if len(known) == len(parts) else None


@_automaton.register
def _(constraint: Not) -> Automaton | None:
    part = _known(constraint.of)
    return None if part is None else _negated(part)


@_automaton.register
def _(constraint: Finished) -> Automaton:
    return build(Progress(0, (0,), lambda char: 0, lambda state, kind: 0, lambda state, ended: ended))


@_automaton.register
def _(constraint: Length) -> Automaton | None:
    if constraint.on == "completion" and constraint.unit == "sentences":
        return _counting(sentence_program(), CountedMatch(), constraint)
    if constraint.on != "completion" or constraint.unit not in ("characters", "words", "lines"):
        return None
    most = (constraint.min or 0) if constraint.max is None else constraint.max + 1

    def kind_of(char: str) -> str:
        if constraint.unit == "characters":
            return "other"
        if constraint.unit == "words":
            return "gap" if char.isspace() else "other"
        return "gap" if len(("a" + char).splitlines()[0]) == 1 else "other"

    def step(state: Any, kind: Any) -> Any:
        count, inside = state
        if kind == "gap":
            # An empty line counts as a line.
            grown = constraint.unit == "lines" and not inside
            return min(most, count + grown), False
        return min(most, count + (constraint.unit == "characters" or not inside)), True

    def satisfied(state: Any, ended: bool) -> bool:
        return constraint.within(state[0])

    kinds = ("other",) if constraint.unit == "characters" else ("other", "gap")
    return build(Progress((0, False), kinds, kind_of, step, satisfied))


@_automaton.register
def _(constraint: Keyword) -> Automaton | None:
    if constraint.on != "completion" or constraint.stem is not None or constraint.prefixing:
        return None
    # Where words end in Arabic, Chinese or Korean, for example, depends on more than letters and spaces.
    if constraint.whole_words and not all(is_spaced(char) for word in constraint.folded_words for char in word):
        return None
    if any(map(has_spellings, constraint.folded_words)):  # the automaton reads one
        return None
    return build(word_progress(constraint))


@_automaton.register
def _(constraint: Count) -> Automaton | None:
    return _counting(*counted_program(constraint), constraint) if constraint.on == "completion" else None


def _counting(program: Program, item: CountedMatch, limits: Count | Length) -> Automaton:
    """Return the automaton of a number of matches between two limits."""
    least, most = int(limits.min or 0), None if limits.max is None else int(limits.max)

    def within(count: int) -> bool:
        return is_between(count, least, most)

    return minimized(build(count_progress(program, least if most is None else most + 1, within, item)))


@_automaton.register
def _(constraint: TextConstraint) -> Automaton | None:
    # Rules are plugged in, and not imported here.
    if is_kind(constraint, "split"):
        return _split(cast("Split", constraint))
    if is_kind(constraint, "parses"):
        json = cast("Parses", constraint).language == "json"
        return _automaton(JSONSchema(True, on=constraint.on)) if json else None
    patterns = patterns_of(constraint)
    if not patterns or constraint.on != "completion":
        return None
    return minimized(product([_matching(pattern) for pattern in patterns], np.logical_and))


def _matching(pattern: TextPattern) -> Automaton:
    program = program_of(pattern.source, pattern.flags, version1=pattern.version1)
    automaton = build(match_progress(program, whole=pattern.whole))
    return _negated(automaton) if pattern.absent else automaton


def _negated(automaton: Automaton) -> Automaton:
    return Automaton(automaton.table, automaton.kind_of, ~automaton.ended, ~automaton.cut)


def _split(constraint: Split) -> Automaton | None:
    whole = constraint.on == "completion" and constraint.each is None and not constraint.different
    return minimized(build(split_progress(constraint))) if whole else None


@_automaton.register
def _(constraint: JSONSchema) -> Automaton | None:
    whole = constraint.on == "completion" and constraint.where == "text"
    return minimized(build(json_progress(constraint))) if whole else None


# ----------------------------------------------------------------------------------------- kinds as regular expressions


_SPACE = r"[\s\x1c-\x1f]*"
"""White space as ``str.strip`` removes it."""


class TextPattern(NamedTuple):
    """An expression and how it is used."""

    source: str  # the expression
    flags: Sequence[str] = ()  # the names of its flags
    whole: bool = False  # whether it must match the whole text, and not only somewhere
    version1: bool = True  # whether it is one of guardwrap's own, in version 1 of ``regex``
    absent: bool = False  # whether it must not match


_CASED = TextPattern(r"[\p{Lu}\p{Ll}\p{Lt}]")
_LETTER = r"[\p{L}\p{M}\p{Nd}_]"
_WRONG = {
    "upper": r"[\p{Ll}\p{Lt}]",
    "lower": r"[\p{Lu}\p{Lt}]",
    "title": rf"(?:(?<![\p{{L}}\p{{M}}\p{{Nd}}_'’])|(?<!{_LETTER})['’])\p{{Ll}}",
}


def patterns_of(constraint: Constraint) -> list[TextPattern]:
    """Return the expressions that a text must match, or must not, to satisfy a constraint; none if there are none."""
    if isinstance(constraint, Regex):
        known = constraint.checksum is None
        whole = constraint.match == "fullmatch"
        return [TextPattern(constraint.pattern, constraint.engine_flags, whole, version1=False)] if known else []
    if isinstance(constraint, OneOf):
        return [TextPattern(f"{_SPACE}{_one_of(constraint.texts)}{_SPACE}", _flags(constraint.ignore_case), whole=True)]
    if is_kind(constraint, "edges"):
        edges = cast("Edges", constraint)
        # The beginning and the end do not overlap, and anything may stand between them.
        source = rf"{_SPACE}{_one_of(edges.start)}[\s\S]*{_one_of(edges.end)}{_SPACE}"
        return [TextPattern(source, _flags(edges.ignore_case), whole=True)]
    if isinstance(constraint, Case):
        return [_CASED, TextPattern(_WRONG[constraint.letters], absent=True)]
    return []


def _one_of(texts: Sequence[str]) -> str:
    return f"(?:{'|'.join(map(regex.escape, texts))})"


def _flags(ignore_case: bool) -> tuple[str, ...]:
    return ("ignorecase",) if ignore_case else ()


def counted_program(constraint: Count) -> tuple[Program, CountedMatch]:
    """Return the program of what a ``Count`` counts, and which matches count."""
    if constraint.unique or constraint.each or constraint.share_of is not None or constraint.of == "palindromes":
        raise Unsupported
    if constraint.pattern is not None:
        program, item = program_of(constraint.pattern, _flags(constraint.ignore_case), repeated=True), CountedMatch()
    elif constraint.of in COUNTED_ENDS:
        program = sentence_program()
        item = _ending(program, str(constraint.of))
    else:
        program = program_of(item_pattern(str(constraint.of)), version1=True, repeated=True)
        item = _kept(program, str(constraint.of), constraint.language)
    if constraint.shortest == 1:
        return program, item
    least = constraint.shortest
    return program, CountedMatch(
        (0, item.begun),
        lambda state, char: (min(least, state[0] + 1), item.read(state[1], char)),
        lambda state: state[0] == least and item.counts(state[1]),
    )


def _kept(program: Program, name: str, language: str) -> CountedMatch:
    """Return which words count."""
    if name in LISTED:
        words = listed_words(name, language)
        begun = {word[:size] for word in words for size in range(len(word) + 1)}
        for letter in sorted({*"".join(words), "’"}):
            program.class_of(regex.escape(letter), regex.IGNORECASE)

        def read(item: Any, char: str) -> Any:
            longer = None if item is None else item + plain_word(char)
            return longer if longer in begun else None

        return CountedMatch("", read, lambda item: item in words)
    if name in ("capital_words", "lowercase_words"):
        upper = name == "capital_words"
        for source in (r"\p{Uppercase}", r"\p{Lowercase}", r"\p{Lt}"):
            program.class_of(source)
        right = str.isupper if upper else str.islower

        def cased(item: Any, char: str) -> Any:
            if item == "wrong" or not (char.isupper() or char.islower() or char.istitle()):
                return item
            return "right" if right(char) else "wrong"

        return CountedMatch("open", cased, lambda item: item == "right")
    return CountedMatch()


_MARKS = r"[.!?…‼⁇⁈⁉؟]"
_CLOSING = r"[\"'”’」』》〉»›)\]]"
_ABBREVIATED = r"(?<!\w)(?:\p{Lu}|Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|e\.g|i\.e|cf)\.(?=\s)"
_AT_MARK = "|".join(
    (
        rf"(?<!{_MARKS})\.{_CLOSING}*(?=\s)",
        r"[!?‼⁇⁈⁉؟](?=\s)",
        # After an ellipsis or a quotation, the sentence may continue.
        rf"(?:{_MARKS}\.|…){_CLOSING}*\s+(?![\s\p{{Ll}}])",
        rf"[!?‼⁇⁈⁉؟]{_CLOSING}+\s+(?![\s\p{{Ll}}])",
    )
)
_SENTENCE = rf"(?:\d{{1,3}}\.(?=\s)|(?=\S))(?s:{_ABBREVIATED}|.)*?(?:{_AT_MARK}|(?=\n)|\Z)"


def sentence_program() -> Program:
    """Return the program of sentences, by the most frequent of the rules of ``sentences``."""
    return program_of(_SENTENCE, version1=True, repeated=True)


def _ending(program: Program, name: str) -> CountedMatch:
    """Return which sentences count, by their last mark."""
    ends = COUNTED_ENDS[name]
    for chars in (ends, AFTER_ENDS):
        program.class_of(f"[{regex.escape(chars)}]")
    return CountedMatch(False, lambda item, char: item if char in AFTER_ENDS else char in ends, bool)


# --------------------------------------------------------------------------------------------- parts between separators


class _State(NamedTuple):
    """The place in a text with separators."""

    parts: int = 0  # the number of parts that have ended, up to what makes a difference
    begun: int = 0  # how many characters of a separator have been read
    shown: bool = False  # whether the part before them is more than white space
    first: bool = True  # whether there was no separator yet


def split_progress(constraint: Split) -> Progress:
    """Return the automaton that counts the parts between separators (Knuth, Morris and Pratt 1977)."""
    by, least, most = constraint.by, constraint.min, constraint.max
    enough = (least or 0) if most is None else most + 1
    borders = _borders(by)

    def kind_of(char: str) -> str:
        return char if char in by else "space" if char.isspace() else "other"

    def step(state: _State | None, kind: str) -> _State | None:
        if state is None:
            return None
        begun, shown = state.begun, state.shown
        while begun and by[begun] != kind:
            shown = shown or by[: begun - borders[begun - 1]].strip() != ""
            begun = borders[begun - 1]
        if by[begun] != kind:
            blank = kind == "space" or kind.isspace()
            return state._replace(begun=0, shown=shown or not blank)
        if begun + 1 < len(by):
            return state._replace(begun=begun + 1, shown=shown)
        parts = state.parts + shown
        if not (shown or state.first) or (most is not None and parts > most):
            return None
        return _State(min(enough, parts), first=False)

    def satisfied(state: _State | None, ended: bool) -> bool:
        if state is None:
            return False
        shown = state.shown or by[: state.begun].strip() != ""
        return is_between(min(enough, state.parts + shown), least, most)

    return Progress(_State(), tuple(dict.fromkeys((*by, "space", "other"))), kind_of, step, satisfied)


def _borders(by: str) -> list[int]:
    """Return for each number of characters of a separator, from 1 on, how many of them can begin another one."""
    borders = [0]
    for char in by[1:]:
        size = borders[-1]
        while size and by[size] != char:
            size = borders[size - 1]
        borders.append(size + (by[size] == char))
    return borders
