"""What a constraint is: three-valued verdicts on prefixes, booleans on finished draws."""

from __future__ import annotations

import ast
import hashlib
import json
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

from guardwrap.constraints.checking import run_check
from guardwrap.constraints.monitors import Rereading
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.errors import ConstraintError, quoted, require_arguments
from guardwrap.outcomes import Draw

if TYPE_CHECKING:
    from guardwrap.constraints.combinators import All, AnyOf

__all__ = ["COMBINATORS", "EXPENSIVE", "PYDANTIC_SCHEMA", "Constraint", "walk"]

COMBINATORS: dict[str, Any] = {}
"""The classes that operators make, by name. ``combinators`` puts them here: they derive from ``Constraint``."""

EXPENSIVE = 2
"""``Constraint.cost`` of classifiers: these judge many texts together, and not the candidates of a token."""

PYDANTIC_SCHEMA: list[Callable[[Any], Any]] = []
"""What pydantic reads a constraint of any kind by. ``files.named`` puts it here, as it has to know all kinds."""


class Constraint(ABC):
    """What a text must satisfy: b(y) of the paper. Immutable; composes with ``&``, ``|`` and ``~``.

    To write one, subclass and give ``check``; ``verdict`` is optional and must be sound or UNDECIDED. A dataclass
    with a ``kind`` field can also be spelled in YAML.
    """

    # Read by pydantic when a constraint file is parsed.
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    cost: ClassVar[int] = 0
    """Rank of the price of a check; ``All`` judges low ranks first and hands on only the survivors."""

    def __new__(cls, *given: Any, **options: Any) -> Self:
        """Refuse arguments that it does not take, and name those that it does."""
        require_arguments(cls.__init__, cls.__name__, (cls, *given), options, ConstraintError)
        return super().__new__(cls)

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

    def spelled_with(self, partial: bytes, /) -> str | None:
        """Return characters that begin with these bytes, one of each kind that it tells apart; None if unknown.

        If one of them may come next, so may all of its kind.
        """
        return None

    def monitor(self) -> Monitor:
        """Return a monitor that has read nothing. By default it judges the whole prefix anew for each piece.

        A constraint that gives one whose verdicts cost what is new, and not what is old, makes early abort cheap for
        long texts.
        """
        return Rereading(self)

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
        return to_spec(self, lambda part: part.spec())

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Let pydantic read a field of this type, ours or another package's, as a constraint of any kind."""
        return PYDANTIC_SCHEMA[0](handler) if cls is Constraint else handler(source)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical spelling without names: the same for Python and YAML. 64 hex digits."""
        text = json.dumps(without_names(self), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    @cached_property
    def title(self) -> str:
        """What reports call this constraint: its name, or a short spelling."""
        name = getattr(self, "name", None)
        if name:
            return str(name)
        text = repr(self)
        return text if len(text) <= 60 else text[:57] + "..."

    @cached_property
    def interruptible(self) -> bool:
        """Whether all that judging runs is guardwrap's own code, which looks at the clock."""
        return all(part._looks for part in walk(self))

    @property
    def _looks(self) -> bool:
        """The same of this one without those that it is made of."""
        return type(self).__module__.split(".")[0] == "guardwrap"

    @property
    def in_memory(self) -> bool:
        """Whether it holds an object that no constraint file can name, such as a lambda."""
        return False

    @cached_property
    def parts(self) -> tuple[Constraint, ...]:
        """The conjuncts that a report counts separately: the constraint itself, unless it is an ``All``."""
        return (self,)

    def __and__(self, other: Constraint) -> All:
        combined: All = COMBINATORS["All"]((self, _operand(other, "&")))
        return combined

    def __or__(self, other: Constraint) -> AnyOf:
        combined: AnyOf = COMBINATORS["AnyOf"]((self, _operand(other, "|")))
        return combined

    def __rand__(self, other: object) -> All:
        raise _no_operand(other, "&")

    def __ror__(self, other: object) -> AnyOf:
        raise _no_operand(other, "|")

    def __invert__(self) -> Constraint:
        negated: Constraint = COMBINATORS["Not"](self)
        return negated

    def __bool__(self) -> bool:
        raise TypeError("a constraint has no truth value: combine with &, | and ~ instead of and, or, not")

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Constraint) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        spec = {key: value for key, value in self.spec().items() if key != "kind"}
        return f"{type(self).__name__}({', '.join(f'{key}={_literal(value)}' for key, value in spec.items())})"


def _literal(value: object) -> str:
    r"""Spell a value in Python, a text with backslashes as people write it: r'\d'."""
    if isinstance(value, str) and "\\" in value:
        with suppress(SyntaxError):
            raw = f"r{quoted(value)}"
            if ast.literal_eval(raw) == value:
                return raw
    return repr(value)


def _operand(other: object, operator: str) -> Constraint:
    if not isinstance(other, Constraint):
        raise _no_operand(other, operator)
    return other


def _no_operand(other: object, operator: str) -> ConstraintError:
    return ConstraintError(f"{operator} joins constraints, and {shown(other)} is none{instead(other)}")


def shown(value: object) -> str:
    """Spell a value that is of the wrong kind: what it is, and its type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and not isinstance(value, Constraint):
        return f"the function {getattr(value, '__name__', type(value).__name__)}"
    spelling = reprlib.repr(value)
    spelling = spelling if len(spelling) <= 40 else f"{spelling[:37]}..."
    return spelling if value is None else f"{spelling} ({type(value).__name__})"


def instead(given: object) -> str:
    """Say what somebody who gave this may have meant."""
    if isinstance(given, str):
        return f": write Keyword({given!r}) for a text that must appear" if len(given) <= 40 else ": make one of it"
    if isinstance(given, dict):
        return ": write JSONSchema({...}) for texts that are JSON of this schema"
    if isinstance(given, type) and hasattr(given, "model_json_schema"):
        return f": write JSONSchema({given.__name__}) for texts that are JSON of this type"
    if isinstance(given, type) and issubclass(given, Constraint):
        return f": it is a kind of them; make one with {given.__name__}(...)"
    return ": write constraint(function)" if callable(given) else ""


def to_spec(constraint: Constraint, spell: Callable[[Constraint], dict[str, Any]]) -> dict[str, Any]:
    """Spell a dataclass by its fields, and the constraints that it holds by a function.

    Raises
    ------
    ConstraintError
        If it is no dataclass.
    """
    if not hasattr(constraint, "__dataclass_fields__"):
        raise ConstraintError(
            f"{type(constraint).__name__} has no spelling: make it a frozen dataclass or override spec()"
        )
    spec = {"kind": getattr(constraint, "kind", type(constraint).__name__)}
    for f in fields(constraint):  # type: ignore[arg-type]  # checked above
        value = getattr(constraint, f.name)
        if f.name != "kind" and value != f.default:
            spec[f.name] = plain_field(value, spell)
    return spec


def plain_field(value: Any, spell: Callable[[Constraint], dict[str, Any]]) -> Any:
    """Turn a field's value into JSON types."""
    if isinstance(value, Constraint):
        return spell(value)
    if isinstance(value, tuple | list):
        return [plain_field(item, spell) for item in value]
    if isinstance(value, dict):
        return {str(key): plain_field(item, spell) for key, item in value.items()}
    return value


def without_names(constraint: Constraint) -> dict[str, Any]:
    """Spell a constraint without the names that people give to it and its parts: they change no verdict."""
    if type(constraint).spec is Constraint.spec:
        spec = to_spec(constraint, without_names)
    else:
        spec = constraint.spec()
        spec |= {name: plain_field(value, without_names) for name, value in held(constraint).items() if name in spec}
    return {key: value for key, value in spec.items() if key != "name"}


def held(constraint: Constraint) -> dict[str, Any]:
    """Return the fields that hold other constraints: one, or several in a list or mapping."""
    names = getattr(constraint, "__dataclass_fields__", ("of",))
    values = {name: getattr(constraint, name, None) for name in names}
    return {name: value for name, value in values.items() if next(constraints_in(value), None) is not None}


def constraints_in(value: Any) -> Iterator[Constraint]:
    """Yield the constraints that a field's value is, or is made of."""
    if isinstance(value, Constraint):
        yield value
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from constraints_in(item)


def walk(constraint: Constraint) -> Iterator[Constraint]:
    """Yield the constraint and everything it is made of."""
    yield constraint
    for value in held(constraint).values():
        for part in constraints_in(value):
            yield from walk(part)


def require(condition: bool, message: str) -> None:
    """Raise ConstraintError unless the condition holds."""
    if not condition:
        raise ConstraintError(message)


@contextmanager
def about(name: str, *, inside: bool = True) -> Iterator[None]:
    """Say of a ConstraintError that a field is wrong, so that errors about a file name its line.

    Parameters
    ----------
    name
        The field.
    inside
        Whether the error's own location leads on from there.
    """
    try:
        yield
    except ConstraintError as error:
        error.location = (name, *(error.location if inside else ()))
        raise
