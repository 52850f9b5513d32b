"""Constraints and their algebra: three-valued verdicts on prefixes, booleans on finished draws."""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from guardwrap.constraints.limits import MAX_COMPARED, VERDICT_SECONDS, TimeLimit, judging, look, time_limit
from guardwrap.draws import Draw
from guardwrap.errors import CheckFailed, ConstraintError, GuardwrapError, Unsatisfiable

__all__ = ["All", "AnyOf", "Constraint", "Judgement", "Not", "Verdict", "judge", "run_check", "run_verdict"]


class Verdict(IntEnum):
    """What a prefix already says about every text that begins with it (LTL3, Bauer et al. 2011)."""

    VIOLATED = -1
    """No continuation can satisfy the constraint."""
    UNDECIDED = 0
    """Not known: the sound default."""
    SATISFIED = 1
    """Every continuation satisfies it."""


class Constraint(ABC):
    """What a text must satisfy: b(y) of the paper. Immutable; composes with ``&``, ``|`` and ``~``.

    To write one, subclass and give ``check``; ``verdict`` is optional and must be sound or UNDECIDED. A dataclass
    with a ``kind`` field can also be spelled in YAML.
    """

    # Read by pydantic when a constraint file is parsed.
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    cost: ClassVar[int] = 0
    """Rank of the price of a check; ``All`` judges low ranks first and hands on only the survivors."""

    @abstractmethod
    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Judge finished draws.

        Parameters
        ----------
        draws
            Finished attempts.

        Returns
        -------
        list of bool
            One for each draw, in order.
        """

    def verdict(self, prefix: str, /) -> Verdict:
        """Judge a prefix of the completion.

        Parameters
        ----------
        prefix
            Text that every continuation begins with, exactly.

        Returns
        -------
        Verdict
            Sound or UNDECIDED.
        """
        return Verdict.UNDECIDED

    def accepts(self, text: str, /) -> bool:
        """Judge one plain text, as a finished completion of an empty prompt.

        Raises
        ------
        CheckFailed
            If the checker crashes, or needs tokens and there are none.
        """
        return run_check(self, [Draw(prompt="", token_ids=(), text=text)])[0]

    def spec(self) -> dict[str, Any]:
        """Return the canonical spelling as plain JSON types: what a constraint file says, defaults left out."""
        assert_dataclass(self)
        spec = {"kind": getattr(self, "kind", type(self).__name__)}
        for f in fields(self):  # type: ignore[arg-type]  # checked above
            value = getattr(self, f.name)
            if f.name != "kind" and value != f.default:
                spec[f.name] = plain(value)
        return spec

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical spelling without names: the same for Python and YAML. 64 hex digits."""
        text = json.dumps(without_names(self.spec()), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    @cached_property
    def title(self) -> str:
        """What reports call this constraint: its name, or a short spelling."""
        name = getattr(self, "name", None)
        if name:
            return str(name)
        text = repr(self)
        return text if len(text) <= 60 else text[:57] + "..."

    @property
    def in_memory(self) -> bool:
        """Whether it holds an object that no constraint file can name, such as a lambda."""
        return False

    @cached_property
    def parts(self) -> tuple[Constraint, ...]:
        """The conjuncts that a report counts separately: the constraint itself, unless it is an ``All``."""
        return (self,)

    def __and__(self, other: Constraint) -> All:
        return All((self, other)) if isinstance(other, Constraint) else NotImplemented

    def __or__(self, other: Constraint) -> AnyOf:
        return AnyOf((self, other)) if isinstance(other, Constraint) else NotImplemented

    def __invert__(self) -> Constraint:
        return Not(self)

    def __bool__(self) -> bool:
        raise TypeError("a constraint has no truth value: combine with &, | and ~ instead of and, or, not")

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Constraint) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        spec = {key: value for key, value in self.spec().items() if key != "kind"}
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in spec.items())})"


def assert_dataclass(constraint: Constraint) -> None:
    """Raise where the default spelling cannot be had."""
    if not hasattr(constraint, "__dataclass_fields__"):
        raise ConstraintError(
            f"{type(constraint).__name__} has no spelling: make it a frozen dataclass or override spec()"
        )


def plain(value: Any) -> Any:
    """Turn a field's value into JSON types."""
    if isinstance(value, Constraint):
        return value.spec()
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value


def without_names(spec: Any) -> Any:
    """Drop the names that people give to parts: they change no verdict."""
    if isinstance(spec, list):
        return [without_names(item) for item in spec]
    if isinstance(spec, dict) and "kind" in spec:
        children = {"of"} & spec.keys()
        return {key: without_names(value) if key in children else value for key, value in spec.items() if key != "name"}
    return spec


def flattened(parts: Sequence[Constraint], kind: type[All] | type[AnyOf]) -> tuple[Constraint, ...]:
    """Merge unnamed parts of the same kind, so that ``a & b & c`` and one ``All`` of three are the same."""
    parts = tuple(parts) if isinstance(parts, Iterable) else (None,)
    if not all(isinstance(part, Constraint) for part in parts):
        raise ConstraintError(f"{kind.__name__} takes a sequence of constraints, e.g. {kind.__name__}([a, b])")
    flat: list[Constraint] = []
    for part in parts:
        flat += part.of if type(part) is kind and part.name is None else [part]
    if not flat:
        raise ConstraintError(f"{kind.__name__} needs at least one constraint")
    return tuple(flat)


@dataclass(frozen=True, eq=False, repr=False)
class All(Constraint):
    """Every part must hold: ``a & b``. The verdict is the minimum of the parts' verdicts.

    Parameters
    ----------
    of
        The parts.
    name
        What reports call it.

    Raises
    ------
    Unsatisfiable
        If two parts visibly exclude each other.
    """

    of: Sequence[Constraint]
    name: str | None = field(default=None, kw_only=True)
    kind: str = field(default="all", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "of", flattened(self.of, All))
        for other, part, reason in conflicts(self.of):
            raise Unsatisfiable(f"no text can satisfy both {other.title} and {part.title}: {reason}")

    @cached_property
    def cost(self) -> int:  # type: ignore[override]
        """The price of its dearest part."""
        return max(part.cost for part in self.of)

    @cached_property
    def parts(self) -> tuple[Constraint, ...]:
        """Its conjuncts, cheap ones first."""
        inner = [leaf for part in self.of for leaf in part.parts]
        return (self,) if self.name else tuple(sorted(inner, key=lambda part: part.cost))

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Judge cheap parts first and hand only the survivors on."""
        return [judgement.satisfied for judgement in judge_parts(sorted(self.of, key=lambda p: p.cost), draws)]

    def __repr__(self) -> str:
        return "(" + " & ".join(map(repr, self.of)) + ")"

    def verdict(self, prefix: str, /) -> Verdict:
        """Kleene conjunction."""
        lowest = Verdict.SATISFIED
        for part in self.of:
            look()
            lowest = min(lowest, run_verdict(part, prefix))
            if lowest is Verdict.VIOLATED:
                break
        return lowest


@dataclass(frozen=True, eq=False, repr=False)
class AnyOf(Constraint):
    """At least one part must hold: ``a | b``. The verdict is the maximum of the parts' verdicts.

    Parameters
    ----------
    of
        The parts.
    name
        What reports call it.
    """

    of: Sequence[Constraint]
    name: str | None = field(default=None, kw_only=True)
    kind: str = field(default="any", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "of", flattened(self.of, AnyOf))

    @cached_property
    def cost(self) -> int:  # type: ignore[override]
        """The price of its dearest part."""
        return max(part.cost for part in self.of)

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Judge cheap parts first and hand only the failures on."""
        holds = [False] * len(draws)
        for part in sorted(self.of, key=lambda p: p.cost):
            rest = [i for i, ok in enumerate(holds) if not ok]
            for i, ok in zip(rest, run_check(part, [draws[i] for i in rest]), strict=True):
                holds[i] = ok
        return holds

    def __repr__(self) -> str:
        return "(" + " | ".join(map(repr, self.of)) + ")"

    def verdict(self, prefix: str, /) -> Verdict:
        """Kleene disjunction."""
        highest = Verdict.VIOLATED
        for part in self.of:
            look()
            highest = max(highest, run_verdict(part, prefix))
            if highest is Verdict.SATISFIED:
                break
        return highest


@dataclass(frozen=True, eq=False, repr=False)
class Not(Constraint):
    """The part must not hold: ``~a``. The verdict is negated.

    Parameters
    ----------
    of
        The part.
    name
        What reports call it.
    """

    of: Constraint
    name: str | None = field(default=None, kw_only=True)
    kind: str = field(default="not", kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.of, Constraint):
            raise ConstraintError("Not takes one constraint, e.g. Not(a) or ~a")

    @cached_property
    def cost(self) -> int:  # type: ignore[override]
        """The price of its part."""
        return self.of.cost

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Negate the part's judgement."""
        return [not ok for ok in run_check(self.of, draws)]

    @cached_property
    def title(self) -> str:
        """Its name, or the part's title negated."""
        return self.name or f"~{self.of.title}"

    def __repr__(self) -> str:
        return f"~{self.of!r}"

    def verdict(self, prefix: str, /) -> Verdict:
        """Kleene negation."""
        return Verdict(-run_verdict(self.of, prefix))


def conflicts(parts: Sequence[Constraint]) -> Iterator[tuple[Constraint, Constraint, str]]:
    """Yield pairs that exclude each other, as far as their spelling shows it; of very many parts not all are seen."""
    # All parts that a Not could be the negation of, rather than each with each: digests of large parts take time.
    negated = {type(part.of) for part in parts if isinstance(part, Not)}
    seen = {part: part for part in reversed(parts) if type(part) in negated} if negated else {}
    for part in parts:
        if isinstance(part, Not) and (other := seen.get(part.of)) is not None:
            yield other, part, "one is the negation of the other"
    telling = [part for part in parts if hasattr(part, "excludes")][:MAX_COMPARED]
    for i, part in enumerate(telling):
        for other in telling[:i]:
            for one, two in ((other, part), (part, other)):
                if reason := one.excludes(two):
                    yield other, part, reason


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of one draw.

    Parameters
    ----------
    satisfied
        b(y).
    blame
        Title of the first part that rejected it, or None.
    """

    satisfied: bool
    blame: str | None = None


def judge(constraint: Constraint, draws: Sequence[Draw]) -> list[Judgement]:
    """Judge finished draws and say which part was first to reject each."""
    return judge_parts(constraint.parts, draws)


def judge_parts(parts: Sequence[Constraint], draws: Sequence[Draw]) -> list[Judgement]:
    """Hand the survivors of each part on to the next."""
    judgements = [Judgement(True)] * len(draws)
    alive = list(range(len(draws)))
    with judging():
        for part in parts:
            if not alive:
                break
            passed = run_check(part, [draws[i] for i in alive])
            for i, ok in zip(alive, passed, strict=True):
                if not ok:
                    judgements[i] = Judgement(False, part.title)
            alive = [i for i, ok in zip(alive, passed, strict=True) if ok]
    return judgements


def run_check(constraint: Constraint, draws: Sequence[Draw]) -> list[bool]:
    """Call ``check``; a crash, a wrong length or a non-bool becomes CheckFailed."""
    if not draws:
        return []
    with guarded_call(constraint), judging():
        results = list(constraint.check(draws))
    if len(results) != len(draws):
        raise CheckFailed(constraint.title, f"returned {len(results)} results for {len(draws)} texts")
    for result in results:
        if not isinstance(result, bool | np.bool_):
            raise CheckFailed(constraint.title, f"returned {type(result).__name__} instead of bool")
    return [bool(result) for result in results]


def run_verdict(constraint: Constraint, prefix: str) -> Verdict:
    """Call ``verdict``; what takes too long is UNDECIDED, a crash or another type becomes CheckFailed."""
    with guarded_call(constraint):
        try:
            with time_limit(VERDICT_SECONDS):
                verdict = constraint.verdict(prefix)
        except TimeLimit:
            return Verdict.UNDECIDED
    if not isinstance(verdict, Verdict):
        raise CheckFailed(constraint.title, f"returned {type(verdict).__name__} instead of Verdict")
    return verdict


class guarded_call:  # noqa: N801  # reads as a function
    """Turn what a checker raises into CheckFailed, without its message: that may quote the text."""

    def __init__(self, constraint: Constraint) -> None:
        self.constraint = constraint

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # SystemExit too: a rule that ends the program would end it as if all were well.
        if isinstance(error, Exception | SystemExit) and not isinstance(error, GuardwrapError):
            reason = f"raised {type(error).__name__}; its message may quote the text, see .original"
            raise CheckFailed(self.constraint.title, reason, error) from None


def walk(constraint: Constraint) -> Iterator[Constraint]:
    """Yield the constraint and everything it is made of."""
    yield constraint
    inner = getattr(constraint, "of", ())
    for part in (inner,) if isinstance(inner, Constraint) else inner:
        yield from walk(part)


def require(condition: bool, message: str) -> None:
    """Raise ConstraintError unless the condition holds."""
    if not condition:
        raise ConstraintError(message)


def is_count(value: object) -> bool:
    """Whether a value is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_number(value: object) -> bool:
    """Whether a value is a finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond every float
        return False
