"""What a constraint is: three-valued verdicts on prefixes, booleans on finished draws."""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import fields
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from guardwrap.draws import Draw
from guardwrap.errors import ConstraintError

if TYPE_CHECKING:
    from guardwrap.constraints.algebra import All, AnyOf

__all__ = ["Constraint", "Monitor", "Verdict", "walk"]


class Verdict(IntEnum):
    """What a prefix already says about every text that begins with it (LTL3, Bauer et al. 2011)."""

    VIOLATED = -1
    """No continuation can satisfy the constraint."""
    UNDECIDED = 0
    """Not known: the sound default."""
    SATISFIED = 1
    """Every continuation satisfies it."""


class Monitor(ABC):
    """A constraint that reads a text piece by piece (the monitor of runtime verification). It never changes.

    For any way of cutting a text into pieces the verdict is sound or UNDECIDED, as ``Constraint.verdict`` is for the
    whole prefix. VIOLATED and SATISFIED are final: whatever is read next, they stay.
    """

    @property
    @abstractmethod
    def verdict(self) -> Verdict:
        """Of what was read so far."""

    @abstractmethod
    def read(self, text: str, /) -> Monitor:
        """Return the monitor that has read this too; this one stays as it is.

        Parameters
        ----------
        text
            What comes next: any number of characters.
        """

    def verdicts(self, texts: Sequence[str], /) -> list[Verdict]:
        """Return for each text the verdict if it came next: for many candidates of one next token.

        Parameters
        ----------
        texts
            The candidates.
        """
        return [self.read(text).verdict for text in texts]


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

    def monitor(self) -> Monitor:
        """Return a monitor that has read nothing. By default it judges the whole prefix anew for each piece.

        A constraint that gives one whose verdicts cost what is new, and not what is old, makes early abort cheap for
        long texts.
        """
        from guardwrap.constraints.monitors import Rereading

        return Rereading(self)

    def accepts(self, text: str, /) -> bool:
        """Judge one plain text, as a finished completion of an empty prompt.

        Raises
        ------
        CheckFailed
            If the checker crashes, or needs tokens and there are none.
        """
        from guardwrap.constraints.judge import run_check

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

    # What operators make is built on this class, so it is imported when one is used.

    def __and__(self, other: Constraint) -> All:
        from guardwrap.constraints.algebra import All

        return All((self, other)) if isinstance(other, Constraint) else NotImplemented

    def __or__(self, other: Constraint) -> AnyOf:
        from guardwrap.constraints.algebra import AnyOf

        return AnyOf((self, other)) if isinstance(other, Constraint) else NotImplemented

    def __invert__(self) -> Constraint:
        from guardwrap.constraints.algebra import Not

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
