"""How many parts a text has between separators."""

from __future__ import annotations

from typing import NamedTuple

from guardwrap.constraints.field_checks import is_between
from guardwrap.constraints.layout.split import Split
from guardwrap.twists.automata import Progress


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
