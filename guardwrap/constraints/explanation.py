"""Explanations: which parts of a constraint reject a text, where, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from guardwrap.constraints.base import All, AnyOf, Constraint, Not, Wrapper, walk
from guardwrap.constraints.checking import run_check
from guardwrap.constraints.json.tool_calls import ToolCalls
from guardwrap.constraints.kinds.text import Length
from guardwrap.constraints.kinds.text_constraint import Fault, TextConstraint
from guardwrap.errors import quoted
from guardwrap.outcomes import Draw
from guardwrap.support.time_limits import judging


@dataclass(frozen=True, slots=True)
class Rejection:
    """One part of a constraint that rejects a text."""

    part: str  # title of the part, as in reports
    reason: str = ""  # what is wrong with the text; "" if the title says it all. It may quote the text.
    # path of the first invalid value in a JSON text, such as ``"$.items[2].name"``; None if it is the whole text, and
    # for texts that are not JSON
    path: str | None = None

    @property
    def detail(self) -> str:
        """The path and the reason in one line; "" if neither is known."""
        return str(Fault(self.reason, self.path))

    def __str__(self) -> str:
        return f"{quoted(self.part)} ({self.detail})" if self.detail else quoted(self.part)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The result of checking one text with every part of a constraint.

    ``str()`` gives one line for each part that rejects the text.
    """

    text: str
    rejections: tuple[Rejection, ...] = ()  # the parts that reject it, cheap parts first; empty if it is accepted
    # titles of parts that were not checked, because they count tokens and those of the text are not known
    unchecked: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether no part rejects the text."""
        return not self.rejections

    def __str__(self) -> str:
        count = len(self.rejections)
        head = f"rejected by {count} part{'s' * (count != 1)}:" if count else "accepted"
        lines = [head, *(f"  {rejection}" for rejection in self.rejections)]
        return "\n".join([*lines, *(f"  not checked: {quoted(title)} counts tokens" for title in self.unchecked)])


def counts_tokens(part: Constraint) -> bool:
    """Return whether a part needs the tokens of a text, which are not known for plain texts."""
    return any(isinstance(inner, Length) and inner.unit == "tokens" for inner in walk(part))


def explain_draws(constraint: Constraint, draws: Sequence[Draw], *, tokens_known: bool) -> list[Explanation]:
    """Check draws with every part of a constraint, not only up to the first one that rejects.

    ``tokens_known``: whether ``token_ids`` of the draws are those of their texts. If not, parts that count tokens are
    not checked.
    """
    found: list[list[Rejection]] = [[] if draw.fault is None else [Rejection(draw.fault)] for draw in draws]
    readable = [number for number, draw in enumerate(draws) if draw.fault is None]
    unchecked = () if tokens_known else tuple(part.title for part in constraint.parts if counts_tokens(part))
    with judging():
        for part in constraint.parts:
            if not tokens_known and counts_tokens(part):
                continue
            passed = run_check(part, [draws[number] for number in readable])
            for number, ok in zip(readable, passed, strict=True):
                if not ok:
                    found[number].append(_rejection(part, draws[number]))
    return [Explanation(draw.text, tuple(each), unchecked) for draw, each in zip(draws, found, strict=True)]


def explain_draw(constraint: Constraint, draw: Draw) -> Explanation:
    """Check one draw with every part of a constraint. If it has no tokens, parts that count them are not checked."""
    return explain_draws(constraint, [draw], tokens_known=bool(draw.token_ids) or not draw.text)[0]


def _rejection(part: Constraint, draw: Draw) -> Rejection:
    return Rejection(part.title, *_fault(part, draw))


def _fault(part: Constraint, draw: Draw) -> Fault:
    """Return what is wrong with a draw that a part rejects; nothing if the title says it all."""
    if isinstance(part, Wrapper):
        return _fault(part.of, draw)
    if isinstance(part, TextConstraint):
        return part.fault_of(draw)
    if isinstance(part, ToolCalls):
        return Fault(part.fault_of(draw))
    if isinstance(part, All | AnyOf):
        failed = [inner for inner in part.of if not run_check(inner, [draw])[0]]
        return Fault(", ".join(str(_rejection(inner, draw)) for inner in failed))
    return Fault(_match(part.of, draw)) if isinstance(part, Not) else Fault()


def _match(part: Constraint, draw: Draw) -> str:
    """Return what makes a draw satisfy a part, whose negation rejects it, in a few words."""
    if isinstance(part, Wrapper):
        return _match(part.of, draw)
    if isinstance(part, Not):
        return str(_fault(part.of, draw))
    if isinstance(part, TextConstraint):
        return part.match_of(draw)
    if isinstance(part, All | AnyOf):
        held = [inner for inner in part.of if run_check(inner, [draw])[0]]
        return ", ".join(str(Rejection(inner.title, _match(inner, draw))) for inner in held)
    return ""
