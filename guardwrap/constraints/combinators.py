"""Combined constraints: ``All``, ``AnyOf`` and ``Not``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field

from guardwrap.constraints.base import COMBINATORS, Constraint, walk
from guardwrap.constraints.checking import judge_parts, run_check, run_verdict
from guardwrap.constraints.message_monitor import Context, Undecided
from guardwrap.constraints.monitors import Combined, Negated
from guardwrap.constraints.text_parts import Part, in_json
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.constraints.views import message_part, view
from guardwrap.documents.limits import MAX_COMPARED
from guardwrap.documents.time_limits import check_deadline
from guardwrap.errors import ConstraintError, Unsatisfiable
from guardwrap.outcomes import Draw


def flattened(parts: Sequence[Constraint], kind: type[All] | type[AnyOf]) -> tuple[Constraint, ...]:
    """Merge unnamed parts of the same class, so that ``a & b & c`` equals ``All([a, b, c])``."""
    parts = tuple(parts) if isinstance(parts, Iterable) else (None,)
    if not all(isinstance(part, Constraint) for part in parts):
        raise ConstraintError(f"{kind.__name__} takes a sequence of constraints, e.g. {kind.__name__}([a, b])")
    flat: list[Constraint] = []
    for part in parts:
        flat += part.of if type(part) is kind and part.name is None else [part]
    if not flat:
        raise ConstraintError(f"{kind.__name__} needs at least one constraint")
    return tuple(flat)


def numbered_titles(parts: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """Return the parts, with a number in titles that an earlier part has: ``"price"``, ``"price (2)"``.

    Reports count by title, and the beginnings of long parts are often the same. Equal parts keep one title, as do
    parts of a user's class without a name.
    """
    named: dict[str, Constraint] = {}
    each: list[Constraint] = []
    for part in parts:
        title, number = part.title, 1
        while title in named and not _are_equal(named[title], part):
            number += 1
            title = f"{part.title} ({number})"
        if number > 1 and "name" in getattr(part, "__dataclass_fields__", ()):
            changed: Any = part
            part = replace(changed, name=title)
        named.setdefault(part.title, part)
        each.append(part)
    return tuple(each)


def _are_equal(one: Constraint, other: Constraint) -> bool:
    """Return whether constraints are equal; False if a user's class cannot tell."""
    if one is other:
        return True
    with suppress(ConstraintError):
        return one == other
    return False


@dataclass(frozen=True, eq=False, repr=False)
class All(Constraint):
    """Every part must hold: ``a & b``.

    Parameters
    ----------
    of
        The parts.
    name
        Label in reports.

    Raises
    ------
    Unsatisfiable
        If two parts plainly contradict each other.
    """

    of: Annotated[Sequence[Constraint], Field(min_length=1)]
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["all"] = field(default="all", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "of", flattened(self.of, All))
        for other, part, reason in conflicts(self.of):
            raise Unsatisfiable(f"no text can satisfy both {other.title} and {part.title}: {reason}")

    @cached_property
    def cost(self) -> int:  # type: ignore[override]
        """The cost of its most expensive part."""
        return max(part.cost for part in self.of)

    @cached_property
    def parts(self) -> tuple[Constraint, ...]:
        """Its conjuncts, cheap ones first. Those that differ have titles that differ."""
        inner = [leaf for part in self.of for leaf in part.parts]
        return (self,) if self.name else numbered_titles(sorted(inner, key=lambda part: part.cost))

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Judge cheap parts first; the others see only the survivors."""
        return [judgement.satisfied for judgement in judge_parts(sorted(self.of, key=lambda p: p.cost), draws)]

    def place_in(self, draw: Draw, /) -> str | None:
        """Return the place in the first part that rejects the draw."""
        return judge_parts(sorted(self.of, key=lambda p: p.cost), [draw], with_places=True)[0].place

    def __repr__(self) -> str:
        return "(" + " & ".join(map(repr, self.of)) + ")"

    def monitor(self) -> Monitor:
        """Return a monitor that combines those of the parts."""
        return Combined(min, tuple(part.monitor() for part in self.of))

    def monitor_in(self, context: Context, /) -> Monitor:
        """Return a monitor that combines those of the parts."""
        return Combined(min, tuple(part.monitor_in(context) for part in self.of))

    def verdict(self, prefix: str, /) -> Verdict:
        """Return the Kleene conjunction of the parts' verdicts."""
        lowest = Verdict.SATISFIED
        for part in self.of:
            check_deadline()
            lowest = min(lowest, run_verdict(part, prefix))
            if lowest is Verdict.VIOLATED:
                break
        return lowest


@dataclass(frozen=True, eq=False, repr=False)
class AnyOf(Constraint):
    """At least one part must hold: ``a | b``.

    Parameters
    ----------
    of
        The parts.
    name
        Label in reports.
    """

    of: Annotated[Sequence[Constraint], Field(min_length=1)]
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["any"] = field(default="any", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "of", flattened(self.of, AnyOf))

    @cached_property
    def cost(self) -> int:  # type: ignore[override]
        """The cost of its most expensive part."""
        return max(part.cost for part in self.of)

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Judge cheap parts first; the others see only the draws that have failed so far."""
        holds = [False] * len(draws)
        for part in sorted(self.of, key=lambda p: p.cost):
            rest = [i for i, ok in enumerate(holds) if not ok]
            for i, ok in zip(rest, run_check(part, [draws[i] for i in rest]), strict=True):
                holds[i] = ok
        return holds

    def __repr__(self) -> str:
        return "(" + " | ".join(map(repr, self.of)) + ")"

    def monitor(self) -> Monitor:
        """Return a monitor that combines those of the parts."""
        return Combined(max, tuple(part.monitor() for part in self.of))

    def monitor_in(self, context: Context, /) -> Monitor:
        """Return a monitor that combines those of the parts."""
        return Combined(max, tuple(part.monitor_in(context) for part in self.of))

    def verdict(self, prefix: str, /) -> Verdict:
        """Return the Kleene disjunction of the parts' verdicts."""
        highest = Verdict.VIOLATED
        for part in self.of:
            check_deadline()
            highest = max(highest, run_verdict(part, prefix))
            if highest is Verdict.SATISFIED:
                break
        return highest


@dataclass(frozen=True, eq=False, repr=False)
class Not(Constraint):
    """The part must not hold: ``~a``. The verdict is negated.

    A text that lacks the part that ``on`` selects is rejected under a negation too, or accepted with
    ``missing="pass"``: a ban on the answer does not accept a text without an answer.

    Parameters
    ----------
    of
        The constraint that must not hold.
    name
        Label in reports.
    """

    of: Constraint
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["not"] = field(default="not", kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.of, Constraint):
            raise ConstraintError("Not takes one constraint, e.g. Not(a) or ~a")

    @cached_property
    def cost(self) -> int:  # type: ignore[override]
        """The cost of its part."""
        return self.of.cost

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Negate the part's judgements."""
        return _negated(self.of, draws) if self._may_lack else [not ok for ok in run_check(self.of, draws)]

    @cached_property
    def _may_lack(self) -> bool:
        return any(map(_can_lack, walk(self.of)))

    @cached_property
    def title(self) -> str:
        """Its name, or the part's title after ``~``."""
        return self.name or f"~{self.of.title}"

    def __repr__(self) -> str:
        return f"~{self.of!r}"

    @cached_property
    def _waits(self) -> bool:
        # A value in JSON may be wrong, but a text that turns out not to be JSON is rejected by the negation, too.
        return any(in_json(getattr(part, "on", None)) for part in walk(self.of))

    def monitor(self) -> Monitor:
        """Return a monitor that negates the part's."""
        return Undecided() if self._waits else Negated(self.of.monitor())

    def monitor_in(self, context: Context, /) -> Monitor:
        """Return a monitor that negates the part's."""
        return Undecided() if self._waits else Negated(self.of.monitor_in(context))

    def verdict(self, prefix: str, /) -> Verdict:
        """Return the part's verdict, negated."""
        return Verdict.UNDECIDED if self._waits else Verdict(-run_verdict(self.of, prefix))


def _negated(constraint: Constraint, draws: Sequence[Draw]) -> list[bool]:
    """Judge draws by the negation of a constraint, with De Morgan's laws, as draws may lack a part of one operand."""
    if isinstance(constraint, Not):
        return run_check(constraint.of, draws)
    if isinstance(constraint, All | AnyOf):
        columns = [_negated(part, draws) for part in constraint.of]
        choose = any if isinstance(constraint, All) else all
        return [choose(each) for each in zip(*columns, strict=True)]
    holds = run_check(constraint, draws)
    return [ok if lacks_part(constraint, draw) else not ok for draw, ok in zip(draws, holds, strict=True)]


def _can_lack(constraint: Constraint) -> bool:
    on = getattr(constraint, "on", None)
    return isinstance(on, Part) or (on is not None and message_part(on) is not None)


def lacks_part(constraint: Constraint, draw: Draw) -> bool:
    """Return whether a draw lacks a part that the constraint, or one within it, selects."""
    return any(_can_lack(part) and not view(draw, part.on) for part in walk(constraint))  # type: ignore[attr-defined]


def conflicts(parts: Sequence[Constraint]) -> Iterator[tuple[Constraint, Constraint, str]]:
    """Yield pairs of parts that plainly contradict each other, with the reason.

    Only the first ``MAX_COMPARED`` parts with ``excludes`` are compared with each other: some pairs may be missed.
    """
    # Only parts of a class that some Not negates are looked up, because digests of large parts take time.
    negated = {type(part.of) for part in parts if isinstance(part, Not)}
    seen = {part: part for part in reversed(parts) if type(part) in negated} if negated else {}
    for part in parts:
        if isinstance(part, Not) and (other := seen.get(part.of)) is not None:
            yield other, part, "one is the negation of the other"
    comparable = [part for part in parts if hasattr(part, "excludes")][:MAX_COMPARED]
    for i, part in enumerate(comparable):
        for other in comparable[:i]:
            for one, two in ((other, part), (part, other)):
                if reason := one.excludes(two):
                    yield other, part, reason


COMBINATORS.update(All=All, AnyOf=AnyOf, Not=Not)
