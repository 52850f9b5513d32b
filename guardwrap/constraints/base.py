"""The base class of all constraints, and their combinations ``&``, ``|`` and ``~``.

A constraint gives a boolean for each finished draw, and a three-valued verdict for each prefix.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from guardwrap.constraints.checking import Combined, Negated, Rereading, judge_parts, run_check, run_verdict
from guardwrap.constraints.field_checks import shown
from guardwrap.constraints.verdicts import Context, Monitor, Progress, TextPattern, Undecided, Verdict
from guardwrap.constraints.views import Part, in_json, message_part, view
from guardwrap.errors import ConstraintError, Unsatisfiable, quoted, require_arguments
from guardwrap.outcomes import Draw
from guardwrap.support.limits import MAX_COMPARED
from guardwrap.support.threads import cached_property
from guardwrap.support.time_limits import check_deadline

EXPENSIVE = 2
"""``Constraint.cost`` of classifiers, which judge texts in batches and never the candidates for one token."""


class Constraint(ABC):
    """A rule that a text must satisfy (b(y) in the paper). Immutable; combine rules with ``&``, ``|`` and ``~``.

    To write your own, subclass it and implement ``check``. ``verdict`` is optional; it must be sound, and UNDECIDED
    whenever the answer is not certain. A frozen dataclass with a ``kind`` field can also be written in YAML. Invalid
    parameters raise ``ConstraintError``.
    """

    # pydantic uses this configuration when it parses a constraint file.
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    # Makes pydantic's schema for a constraint of any kind. ``files.constraint_data``, which knows all kinds, sets it.
    any_kind: ClassVar[Callable[[Any], Any]]

    family: str | None = None  # the digest of the template that it was filled from; None for none
    filled_with: Mapping[str, Any] | None = None  # the values of the template's fields
    merged: tuple[Constraint, ...] = ()  # what was filled from a template and merged into this combination

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

    def progress(self) -> Progress | Sequence[TextPattern] | Constraint | None:
        """Return what proposals that look ahead follow: an automaton on the whole text, or expressions that all hold.

        Or another constraint that means the same. None if nothing follows it. It may be wrong about some texts: that
        makes a proposal worse, and its weights stay exact.
        """
        return None

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
        return Constraint.any_kind(handler) if cls is Constraint else handler(source)

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
        return is_built_in(type(self))

    @classmethod
    def open_to_clients(cls) -> bool:
        """Whether the clients of a server may send it. Kinds of other packages may read files or run code."""
        return is_built_in(cls)

    def sources(self) -> dict[str, str]:
        """Return what judgements depend on beside the canonical form, by name: Hub ids, and paths of folders and files.

        By default the file of the class, unless it is guardwrap's own. A class with an own version lists more.
        """
        return {} if is_built_in(type(self)) else source_file(type(self))

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

    def wrapped(self, wrap: Callable[[Constraint], Constraint]) -> Constraint:
        """Return this part, judged in another way by a ``Wrapper``."""
        return wrap(self)

    def __and__(self, other: Constraint) -> All:
        return All((self, _operand(other, "&")))

    def __or__(self, other: Constraint) -> AnyOf:
        return AnyOf((self, _operand(other, "|")))

    def __rand__(self, other: object) -> All:
        raise _no_operand(other, "&")

    def __ror__(self, other: object) -> AnyOf:
        raise _no_operand(other, "|")

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
        return f"{type(self).__name__}({', '.join(f'{key}={_literal(value)}' for key, value in spec.items())})"


class Wrapper(Constraint):
    """A constraint that runs another one, ``of``, in another way. Reports show the other one, which users know."""

    of: Constraint

    @cached_property
    def cost(self) -> int:  # type: ignore[override]
        return self.of.cost

    @cached_property
    def title(self) -> str:
        return self.of.title

    @property
    def locates(self) -> bool:
        return self.of.locates

    def place_in(self, draw: Draw, /) -> str | None:
        return self.of.place_in(draw)

    @property
    def in_memory(self) -> bool:
        return True


def is_built_in(kind: type[Constraint]) -> bool:
    """Whether a class is guardwrap's own."""
    return kind.__module__.startswith("guardwrap.")


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
    """Return the canonical form of a dataclass: its fields without default values, and ``spell`` of constraints."""
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


def numbered_titles(parts: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """Return the parts, with a number in titles that an earlier part has: ``"price"``, ``"price (2)"``.

    Reports count by title, and the beginnings of long parts are often the same. Equal parts keep one title, as do
    parts of a user's class without a name.
    """
    named: dict[str, Constraint] = {}
    renamed: list[Constraint] = []
    for part in parts:
        title, number = part.title, 1
        while title in named and not _are_equal(named[title], part):
            number += 1
            title = f"{part.title} ({number})"
        if number > 1 and "name" in getattr(part, "__dataclass_fields__", ()):
            changed: Any = part
            part = replace(changed, name=title)
        named.setdefault(part.title, part)
        renamed.append(part)
    return tuple(renamed)


def _are_equal(one: Constraint, other: Constraint) -> bool:
    """Return whether constraints are equal; False if a user's class cannot tell."""
    if one is other:
        return True
    with suppress(ConstraintError):
        return one == other
    return False


@dataclass(frozen=True, eq=False, repr=False)
class Combination(Constraint):
    """Several parts, whose verdicts are combined by Kleene's conjunction or disjunction."""

    of: Annotated[Sequence[Constraint], Field(min_length=1)]
    name: str | None = field(default=None, kw_only=True)

    _choose: ClassVar[Any]  # ``min`` for a conjunction, ``max`` for a disjunction
    sign: ClassVar[str]

    def __post_init__(self) -> None:
        """Merge unnamed parts of the same class, so that ``a & b & c`` equals ``All([a, b, c])``."""
        name = type(self).__name__
        parts = tuple(self.of) if isinstance(self.of, Iterable) else (None,)
        if not all(isinstance(part, Constraint) for part in parts):
            raise ConstraintError(f"{name} takes a sequence of constraints, e.g. {name}([a, b])")
        flat: list[Constraint] = []
        merged: list[Constraint] = []
        for part in parts:
            if type(part) is type(self) and part.name is None:
                flat += part.of
                merged += [part] if part.family else part.merged
            else:
                flat.append(part)
        if not flat:
            raise ConstraintError(f"{name} needs at least one constraint")
        object.__setattr__(self, "of", tuple(flat))
        object.__setattr__(self, "merged", tuple(merged))

    @cached_property
    def cost(self) -> int:  # type: ignore[override]
        return max(part.cost for part in self.of)

    def _cheap_first(self) -> list[Constraint]:
        return sorted(self.of, key=lambda part: part.cost)

    def __repr__(self) -> str:
        return f"({f' {self.sign} '.join(map(repr, self.of))})"

    def monitor(self) -> Monitor:
        return Combined(self._choose, tuple(part.monitor() for part in self.of))

    def monitor_in(self, context: Context, /) -> Monitor:
        return Combined(self._choose, tuple(part.monitor_in(context) for part in self.of))

    def verdict(self, prefix: str, /) -> Verdict:
        decisive = self._choose((Verdict.SATISFIED, Verdict.VIOLATED))
        combined = Verdict(-decisive)
        for part in self.of:
            check_deadline()
            combined = self._choose((combined, run_verdict(part, prefix)))
            if combined is decisive:
                break
        return combined


@dataclass(frozen=True, eq=False, repr=False)
class All(Combination):
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

    kind: Literal["all"] = field(default="all", kw_only=True)

    _choose = min
    sign = "&"

    def __post_init__(self) -> None:
        super().__post_init__()
        for other, part, reason in conflicts(self.of):
            raise Unsatisfiable(f"no text can satisfy both {other.title} and {part.title}: {reason}")

    @cached_property
    def parts(self) -> tuple[Constraint, ...]:
        """Its conjuncts, cheap ones first. Those that differ have titles that differ."""
        inner = [leaf for part in self.of for leaf in part.parts]
        return (self,) if self.name else numbered_titles(sorted(inner, key=lambda part: part.cost))

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Judge cheap parts first; the others see only the survivors."""
        return [judgement.satisfied for judgement in judge_parts(self._cheap_first(), draws)]

    def place_in(self, draw: Draw, /) -> str | None:
        return judge_parts(self._cheap_first(), [draw], with_places=True)[0].place


@dataclass(frozen=True, eq=False, repr=False)
class AnyOf(Combination):
    """At least one part must hold: ``a | b``.

    Parameters
    ----------
    of
        The parts.
    name
        Label in reports.
    """

    kind: Literal["any"] = field(default="any", kw_only=True)

    _choose = max
    sign = "|"

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Judge cheap parts first; the others see only the draws that have failed so far."""
        holds = [False] * len(draws)
        for part in self._cheap_first():
            rest = [i for i, ok in enumerate(holds) if not ok]
            for i, ok in zip(rest, run_check(part, [draws[i] for i in rest]), strict=True):
                holds[i] = ok
        return holds


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
        return self.of.cost

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        return _negated(self.of, draws) if self._may_lack else [not ok for ok in run_check(self.of, draws)]

    @cached_property
    def _may_lack(self) -> bool:
        return any(map(_can_lack, walk(self.of)))

    @cached_property
    def title(self) -> str:
        return self.name or f"~{self.of.title}"

    def __repr__(self) -> str:
        return f"~{self.of!r}"

    @cached_property
    def _waits(self) -> bool:
        # A value in JSON may be wrong, but a text that turns out not to be JSON is rejected by the negation, too.
        return any(in_json(getattr(part, "on", None)) for part in walk(self.of))

    def monitor(self) -> Monitor:
        return Undecided() if self._waits else Negated(self.of.monitor())

    def monitor_in(self, context: Context, /) -> Monitor:
        return Undecided() if self._waits else Negated(self.of.monitor_in(context))

    def verdict(self, prefix: str, /) -> Verdict:
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
