"""The base class of all constraints: a boolean for each finished draw, a three-valued verdict for each prefix."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from guardwrap.constraints.checking import run_check
from guardwrap.constraints.message_monitor import Context, Undecided
from guardwrap.constraints.monitors import Rereading
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.environment.threads import cached_property
from guardwrap.errors import ConstraintError, quoted, require_arguments
from guardwrap.outcomes import Draw

if TYPE_CHECKING:
    from guardwrap.constraints.combinators import All, AnyOf

COMBINATORS: dict[str, Any] = {}
"""The classes that ``&``, ``|`` and ``~`` create, by name.

``combinators`` fills this in: its classes derive from ``Constraint``, so they cannot be imported here.
"""

EXPENSIVE = 2
"""``Constraint.cost`` of classifiers, which judge texts in batches and never the candidates for one token."""

PYDANTIC_SCHEMA: list[Callable[[Any], Any]] = []
"""The function that makes pydantic's schema for a constraint of any kind.

``files.named`` adds it, because it has to import all kinds.
"""


class Constraint(ABC):
    """A rule that a text must satisfy (b(y) in the paper). Immutable; combine rules with ``&``, ``|`` and ``~``.

    To write your own, subclass it and implement ``check``. ``verdict`` is optional; it must be sound, and UNDECIDED
    whenever the answer is not certain. A frozen dataclass with a ``kind`` field can also be written in YAML.
    """

    # pydantic uses this configuration when it parses a constraint file.
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    cost: ClassVar[int] = 0
    """How expensive a check is, as a rank. ``All`` judges low ranks first and passes only the survivors to the next."""

    def __new__(cls, *arguments: Any, **options: Any) -> Self:
        """Reject arguments that the class does not accept, with an error that lists those that it does."""
        require_arguments(cls.__init__, cls.__name__, (cls, *arguments), options, ConstraintError)
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
            Whether each draw satisfies the constraint, in the order of ``draws``.
        """

    def place_in(self, draw: Draw, /) -> str | None:
        """Return where a rejected draw violates the constraint, for counts in reports; None if that is not known.

        Reports contain no generated text, so this must not quote the draw.
        """
        return None

    def verdict(self, prefix: str, /) -> Verdict:
        """Judge every text that begins with a prefix. The default knows nothing and returns UNDECIDED.

        Parameters
        ----------
        prefix
            The exact beginning of the completion.

        Returns
        -------
        Verdict
            VIOLATED or SATISFIED only if that holds for every continuation.
        """
        return Verdict.UNDECIDED

    def spelled_with(self, partial: bytes, /) -> str | None:
        """Return characters whose UTF-8 begins with these bytes: one for each group that the constraint treats alike.

        If one of them may come next, so may every character of its group. None if the groups are not known.
        """
        return None

    def monitor(self) -> Monitor:
        """Return a monitor that has read nothing yet. By default it judges the whole prefix again for each piece.

        For long texts, override it with a monitor whose cost depends on the new text only: that keeps early abort
        cheap.
        """
        return Rereading(self)

    def monitor_in(self, context: Context, /) -> Monitor:
        """Return a monitor for texts that follow a prompt. By default the prompt makes no difference.

        Parameters
        ----------
        context
            What comes before the new text, and whether it is parsed into a message.
        """
        return self.monitor() if context.whole else Undecided()

    def accepts(self, text: str, /) -> bool:
        """Judge one plain text, as a finished completion of an empty prompt.

        Raises
        ------
        CheckFailed
            If the checker crashes, or needs token ids, which a plain text does not have.
        """
        return run_check(self, [Draw(prompt="", token_ids=(), text=text)])[0]

    def spec(self) -> dict[str, Any]:
        """Return the canonical form as plain JSON types: the mapping of a constraint file, without default values."""
        return to_spec(self, lambda part: part.spec())

    def digest_fields(self) -> dict[str, Any]:
        """Return what the digest also depends on. It sorts the keys of the canonical form, so it misses their order."""
        return {}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Let pydantic accept a constraint of any kind, built in or from a plug-in, in a field of this type."""
        return PYDANTIC_SCHEMA[0](handler) if cls is Constraint else handler(source)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical form without names, as 64 hex digits. It is the same for Python and YAML."""
        text = json.dumps(without_names(self), sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    @cached_property
    def title(self) -> str:
        """The constraint's label in reports: its name, or else its ``repr``, cut to 60 characters."""
        name = getattr(self, "name", None)
        if name:
            return str(name)
        text = repr(self._shown())
        return text if len(text) <= 60 else text[:57] + "..."

    def _shown(self) -> Constraint:
        """Return the constraint whose ``repr`` is the label of this one."""
        return self

    @cached_property
    def interruptible(self) -> bool:
        """Whether judging runs only guardwrap's own code, which checks the time limit."""
        return all(part._looks for part in walk(self))

    @property
    def _looks(self) -> bool:
        """Whether this constraint itself, apart from its parts, checks the time limit."""
        return type(self).__module__.split(".")[0] == "guardwrap"

    def sources(self) -> dict[str, str]:
        """Return what judgements depend on beside the canonical form, by name: Hub ids, and paths of folders and files.

        By default the file of the class, unless it is guardwrap's own. A class with an own version lists more.
        """
        return {} if type(self).__module__.split(".")[0] == "guardwrap" else source_file(type(self))

    @property
    def locates(self) -> bool:
        """Whether ``place_in`` runs only guardwrap's own code, which checks the time limit."""
        return self.interruptible

    @property
    def in_memory(self) -> bool:
        """Whether it holds an object that a constraint file cannot name, such as a lambda."""
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


class Wrapper(Constraint):
    """A constraint that runs another one, ``of``, in another way. Reports show the other one, which users know."""

    of: Constraint

    @cached_property
    def cost(self) -> int:  # type: ignore[override]
        """The cost of the inner constraint."""
        return self.of.cost

    @cached_property
    def title(self) -> str:
        """The title of the inner constraint."""
        return self.of.title

    @property
    def locates(self) -> bool:
        """Whether the inner constraint's ``place_in`` may run."""
        return self.of.locates

    def place_in(self, draw: Draw, /) -> str | None:
        """Return the place that the inner constraint names."""
        return self.of.place_in(draw)

    @property
    def in_memory(self) -> bool:
        """True: a constraint file cannot contain it."""
        return True


def _literal(value: object) -> str:
    r"""Return a value as Python source; strings with backslashes as raw strings, such as r'\d'."""
    if isinstance(value, str) and "\\" in value:
        with suppress(SyntaxError):
            raw = f"r{quoted(value)}"
            if ast.literal_eval(raw) == value:
                return raw
    return repr(value)


def source_file(code: Any) -> dict[str, str]:
    """Return the file with the source of a class or function, by the name of its module; nothing if there is none."""
    with suppress(TypeError):  # built in, or made by other code
        file = inspect.getsourcefile(code)
        if file is not None:
            return {str(code.__module__): file}
    return {}


def _operand(other: object, operator: str) -> Constraint:
    if not isinstance(other, Constraint):
        raise _no_operand(other, operator)
    return other


def _no_operand(other: object, operator: str) -> ConstraintError:
    return ConstraintError(f"{operator} combines constraints, and {shown(other)} is not one{instead(other)}")


def shown(value: object) -> str:
    """Describe a value of the wrong type for an error message: its ``repr``, shortened, and its type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value) and not isinstance(value, Constraint):
        return f"the function {getattr(value, '__name__', type(value).__name__)}"
    spelling = reprlib.repr(value)
    spelling = spelling if len(spelling) <= 40 else f"{spelling[:37]}..."
    return spelling if value is None else f"{spelling} ({type(value).__name__})"


def instead(value: object) -> str:
    """Suggest, for an error message, the constraint that the author of a wrong value probably meant."""
    if isinstance(value, str):
        return f": write Keyword({value!r}) for a text that must appear" if len(value) <= 40 else ": use Keyword(...)"
    if isinstance(value, dict):
        return ": write JSONSchema({...}) for texts that are JSON of this schema"
    if isinstance(value, type) and hasattr(value, "model_json_schema"):
        return f": write JSONSchema({value.__name__}) for texts that are JSON of this type"
    if isinstance(value, type) and issubclass(value, Constraint):
        return f": it is a class; create a constraint with {value.__name__}(...)"
    return ": write constraint(function)" if callable(value) else ""


def to_spec(constraint: Constraint, spell: Callable[[Constraint], dict[str, Any]]) -> dict[str, Any]:
    """Return the canonical form of a dataclass: its fields, without default values.

    Parameters
    ----------
    constraint
        A dataclass.
    spell
        Returns the form of each constraint that the fields hold.

    Raises
    ------
    ConstraintError
        If it is not a dataclass.
    """
    if not hasattr(constraint, "__dataclass_fields__"):
        raise ConstraintError(
            f"{type(constraint).__name__} has no canonical form: make it a frozen dataclass or override spec()"
        )
    spec = {"kind": getattr(constraint, "kind", type(constraint).__name__)}
    for f in fields(constraint):  # type: ignore[arg-type]  # checked above
        value = getattr(constraint, f.name)
        if f.name != "kind" and value != f.default:
            spec[f.name] = plain_field(value, spell)
    return spec


def plain_field(value: Any, spell: Callable[[Constraint], dict[str, Any]]) -> Any:
    """Return a field's value as plain JSON types; ``spell`` returns the form of a constraint."""
    if isinstance(value, Constraint):
        return spell(value)
    if is_dataclass(value) and hasattr(value, "spec"):
        return plain_field(value.spec(), spell)
    if isinstance(value, tuple | list):
        return [plain_field(item, spell) for item in value]
    if isinstance(value, dict):
        return {str(key): plain_field(item, spell) for key, item in value.items()}
    return value


def without_names(constraint: Constraint) -> dict[str, Any]:
    """Return the canonical form without the names of the constraint and its parts, which change no verdict."""
    if type(constraint).spec is Constraint.spec:
        spec = to_spec(constraint, without_names)
    else:
        spec = constraint.spec()
        spec |= {name: plain_field(value, without_names) for name, value in held(constraint).items() if name in spec}
    return {key: value for key, value in spec.items() if key != "name"} | constraint.digest_fields()


def held(constraint: Constraint) -> dict[str, Any]:
    """Return the fields whose values are constraints, or lists or mappings with constraints in them."""
    names = getattr(constraint, "__dataclass_fields__", ("of",))
    values = {name: getattr(constraint, name, None) for name in names}
    return {name: value for name, value in values.items() if next(constraints_in(value), None) is not None}


def constraints_in(value: Any) -> Iterator[Constraint]:
    """Yield the constraints in a field's value: itself, or the members of a list or mapping."""
    if isinstance(value, Constraint):
        yield value
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from constraints_in(item)


def walk(constraint: Constraint) -> Iterator[Constraint]:
    """Yield the constraint and all of its parts, at any depth."""
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
    """Add a field to the location of a ConstraintError, so that errors about a file can give its line number.

    Parameters
    ----------
    name
        The field that is wrong.
    inside
        Whether to keep the error's own location, as a place within that field.
    """
    try:
        yield
    except ConstraintError as error:
        error.location = (name, *(error.location if inside else ()))
        raise
