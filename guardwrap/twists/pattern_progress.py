"""How far a text has come with a regular expression: whether it matches, and how often something occurs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from guardwrap.twists.automata import Progress
from guardwrap.twists.character_classes import Kind
from guardwrap.twists.pattern_programs import Consume, End, Match, Program, Thread

_KEPT = 1000
"""How many results are remembered: those of the few kinds of neighbors that one state has."""


def match_progress(program: Program, *, whole: bool) -> Progress:
    """Return the automaton of texts in which an expression matches; ``whole``: it must match the whole text.

    A state is the set of steps that the program's threads have reached (Thompson 1968), and what assertions have to
    know of the last character. It is True once there is a match that nothing undoes.
    """
    classes, start = program.classes(), Thread(program.start)
    line_break = classes.kind_of("\n")

    @lru_cache(_KEPT)
    def reached(state: Any, behind: Kind | None, breaks: bool) -> list[Thread]:
        threads, before = state
        begun = threads if whole else threads | {start}  # a match may begin anywhere
        return [*program.reached(begun, before, behind, breaks=breaks)]

    def step(state: Any, kind: Kind) -> Any:
        if state is True:
            return True
        after = set()
        for thread in reached(state, program.around(kind), kind == line_break):
            read = program.steps[thread.step]
            if isinstance(read, Consume) and read.char_class is not None and kind[read.char_class]:
                after.add(thread._replace(step=read.after))
            elif isinstance(read, Match) and not whole:
                if not thread.last:
                    return True
                after.add(thread)  # it counts if the text ends after this line break
        return frozenset(after), None if whole and not after else program.around(kind)

    def satisfied(state: Any, ended: bool) -> bool:
        if state is True:
            return True
        return any(isinstance(program.steps[thread.step], Match) for thread in reached(state, None, False))

    return Progress((frozenset({start}), None), tuple(classes.kinds), classes.kind_of, step, satisfied)


class CountedMatch(NamedTuple):
    """What is known of an occurrence from its characters, if not every match counts."""

    begun: Any = None  # what is known before its first character
    # returns what is known after another character, one of its kind
    read: Callable[[Any, str], Any] = lambda item, char: item
    counts: Callable[[Any], bool] = lambda item: True  # whether an occurrence counts


def count_progress(program: Program, enough: int, within: Callable[[int], bool], item: CountedMatch) -> Progress:
    """Return the automaton that counts the matches of an expression that do not overlap, as ``finditer`` yields them.

    A state has the program's threads in the order in which backtracking would try them, each with its count (Pike's
    virtual machine). The first one that can end says how many matches there are.
    """
    classes = program.classes()
    examples = classes.kinds
    line_break = classes.kind_of("\n")

    def matched(thread: Thread) -> Thread:
        count = min(enough, thread.matches + item.counts(thread.item))
        return thread._replace(matches=count, item=item.begun)

    @lru_cache(_KEPT)
    def reached(state: Any, behind: Kind | None, breaks: bool) -> list[Thread]:
        threads, before = state
        return [*program.reached(threads, before, behind, breaks=breaks, matched=matched)]

    def step(state: Any, kind: Kind) -> Any:
        if state is True:
            return True
        after: dict[tuple[int, bool], Thread] = {}
        around = program.around(kind)
        for thread in reached(state, around, kind == line_break):
            read = program.steps[thread.step]
            if not isinstance(read, Consume):
                continue
            if read.char_class is None:
                onward = thread._replace(step=read.after)
            elif kind[read.char_class]:
                onward = thread._replace(step=read.after, item=item.read(thread.item, examples[kind]))
            else:
                continue
            after.setdefault(onward[:2], onward)
        if all(thread.matches == enough for thread in after.values()):
            return True
        return tuple(after.values()), around

    def satisfied(state: Any, ended: bool) -> bool:
        if state is True:
            return within(enough)
        threads = reached(state, None, False)
        return within(next(thread.matches for thread in threads if isinstance(program.steps[thread.step], End)))

    start = ((Thread(program.start, item=item.begun),), None)
    return Progress(start, tuple(examples), classes.kind_of, step, satisfied)
