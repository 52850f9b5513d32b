"""The automaton of a constraint, by its kind."""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import numpy as np

from guardwrap.constraints.base import All, AnyOf, Constraint, Not
from guardwrap.constraints.field_checks import is_between
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.kinds.count import Count
from guardwrap.constraints.kinds.keyword import Keyword
from guardwrap.constraints.kinds.text import Case, Finished, Length, OneOf, Regex
from guardwrap.constraints.kinds.text_folding import has_spellings, is_spaced
from guardwrap.constraints.languages.parses import Parses
from guardwrap.constraints.layout.edges import Edges
from guardwrap.constraints.layout.split import Split
from guardwrap.documents.time_limits import TimeLimit, time_limit
from guardwrap.twists.automata import Automaton, Progress, TooManyStates, build, minimized, product
from guardwrap.twists.json_progress import json_progress
from guardwrap.twists.kind_patterns import TextPattern, counted_program, patterns_of, sentence_program
from guardwrap.twists.pattern_programs import Program, Unsupported, program_of
from guardwrap.twists.pattern_progress import CountedMatch, count_progress, match_progress
from guardwrap.twists.split_progress import split_progress
from guardwrap.twists.word_progress import word_progress

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


@_automaton.register(Regex)
@_automaton.register(OneOf)
@_automaton.register(Edges)
@_automaton.register(Case)
def _(constraint: Regex | OneOf | Edges | Case) -> Automaton | None:
    parts = [_matching(pattern) for pattern in patterns_of(constraint)] if constraint.on == "completion" else []
    return minimized(product(parts, np.logical_and)) if parts else None


def _matching(pattern: TextPattern) -> Automaton:
    program = program_of(pattern.source, pattern.flags, version1=pattern.version1)
    automaton = build(match_progress(program, whole=pattern.whole))
    return _negated(automaton) if pattern.absent else automaton


def _negated(automaton: Automaton) -> Automaton:
    return Automaton(automaton.table, automaton.kind_of, ~automaton.ended, ~automaton.cut)


@_automaton.register
def _(constraint: Split) -> Automaton | None:
    whole = constraint.on == "completion" and constraint.each is None and not constraint.different
    return minimized(build(split_progress(constraint))) if whole else None


@_automaton.register
def _(constraint: JSONSchema) -> Automaton | None:
    whole = constraint.on == "completion" and constraint.where == "text"
    return minimized(build(json_progress(constraint))) if whole else None


@_automaton.register
def _(constraint: Parses) -> Automaton | None:
    return _automaton(JSONSchema(True, on=constraint.on)) if constraint.language == "json" else None
