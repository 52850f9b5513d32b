"""The ``JSONSchema`` constraint: the text, or the fenced block in it, is JSON that is valid under a schema."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import InitVar, dataclass, field
from typing import Annotated, Any, Literal

from pydantic import GetPydanticSchema, TypeAdapter, ValidationError
from pydantic_core import core_schema

from guardwrap.constraints.base import All, Constraint, source_file
from guardwrap.constraints.checking import run_check
from guardwrap.constraints.field_checks import about, require, require_booleans, require_choice, shown
from guardwrap.constraints.json.formats import names_format
from guardwrap.constraints.json.json_monitor import ApplicatorCache, JSONMonitor
from guardwrap.constraints.json.schema_sources import is_type, read_schema_file, schema_of, type_adapter_of
from guardwrap.constraints.json.schema_validation import Misfit, misfit_of, read_schema
from guardwrap.constraints.json.subschemas import Schema
from guardwrap.constraints.json_paths import INCOMPLETE, NOT_JSON, PYTHON_TYPE, WHITE_SPACE, declared_names
from guardwrap.constraints.kinds.function import importable, qualified
from guardwrap.constraints.kinds.text_constraint import Fault, TextConstraint
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.constraints.views import Part, View, in_json, message_part, read_view, view
from guardwrap.errors import CheckFailed, ConstraintError, UsageError, first_line
from guardwrap.outcomes import Draw
from guardwrap.support import lexical
from guardwrap.support.formatting import counted
from guardwrap.support.threads import cached_property
from guardwrap.support.time_limits import TimeLimit, charged, check_deadline, uncounted
from guardwrap.support.yaml_nodes import one_line


def _in_files(kind: Any, check: Callable[[Any], Any] = lambda value: value) -> GetPydanticSchema:
    """Restrict the values that a field accepts in a constraint file; in Python it accepts more."""
    return GetPydanticSchema(
        lambda _, handler: core_schema.no_info_before_validator_function(check, handler.generate_schema(kind))
    )


def _no_type(value: Any) -> None:
    if value is not None:
        raise ValueError("a file cannot name a Python type; give its schema, and leave type out")


_SOME_FAULT = Misfit(Fault("is invalid"), "$", "is invalid")


@dataclass(frozen=True, eq=False, repr=False)
class JSONSchema(TextConstraint):
    r"""The text is JSON that is valid under a JSON Schema, read as the draft that the schema declares.

    Parameters
    ----------
    schema
        The schema; ``{}`` or True accepts any JSON. Or a type that pydantic supports (a model, a dataclass, a
        TypedDict, ``list[int]`` …, or a TypeAdapter), which sets both the schema and ``type``.
    file
        Path of a file that holds the schema, JSON (``.json``) or YAML, instead of ``schema``. In a constraint file, a
        relative path is relative to that file.
    where
        ``"text"``: the whole text is JSON; ``"fenced"``: the text has exactly one fenced block (three backticks, with
        or without ``json``), and its contents are JSON.
    formats
        Whether ``format`` is checked, for the 19 formats of draft 2020-12, in all drafts. Other formats are ignored.
    type
        A Python type. Pydantic must then be able to convert the text to a value as well, which ``parse`` returns.
    on
        The view of the text that is judged.
    whitespace
        ``"any"``: as JSON allows; ``"compact"``: none outside strings, except a single space after a colon or comma,
        so that attempts do not spend tokens on white space. ``json.dumps`` without ``indent`` writes compact JSON.
    order
        ``"schema"``: the keys of an object that are declared in ``properties`` must appear in the order in which the
        schema declares them, such as the reasoning before the answer. Optional ones may be missing, and keys that are
        not declared may be anywhere. None: any order.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If the schema is invalid, or pydantic has none for the type.

    Notes
    -----
    Some texts that parsers accept are rejected:

    - NaN and infinities, as in RFC 8259, and numbers beyond the range of a double, such as 1e400;
    - objects with duplicate keys, whose meaning RFC 8259 leaves open. If they were allowed, no property would be final
      before the end of its object;
    - half of a surrogate pair, such as ``"\ud800"``, which is not a character.

    Numbers are compared exactly, in decimal: 4.02 is a multiple of 0.01.

    ``$schema`` may name draft 4, 6, 7, 2019-09 or 2020-12, also in subschemas; anything else is rejected. A schema
    without ``$schema`` is read as draft 2020-12, except that ``items`` may also be a list, as in older drafts. Keywords
    that the declared draft does not have are ignored, and ``guardwrap check`` reports them. References may point into
    the schema, by pointer, anchor or ``$id``, or to the meta-schema of a draft. Nothing is fetched.

    ``pattern`` and ``patternProperties`` are ECMA-262 expressions with the flag ``u``. Inline flags such as ``(?i)``,
    references to repeated groups, and the syntax of other languages are rejected. ``format: regex`` accepts at most
    20 000 characters.

    If the whole text is judged as JSON, verdicts on prefixes consider the whole schema: an attempt ends as soon as a
    type, a key, an enum value, a complete number or the like cannot lead to a valid text. ``unevaluatedItems`` and
    ``unevaluatedProperties`` are checked when the bracket closes; what a type requires beyond its schema, at the end.

    The schema of a type is pydantic's schema for validation, with keys by alias: the JSON that ``validate_json``
    accepts. It is less strict than the type: it allows any string for a Decimal, and leaves out validators in Python.
    So a text satisfies the constraint if both the schema and pydantic accept it, and every such text has a value. A
    constraint file cannot name a type, and the digest differs from that of the schema alone. For the same constraint in
    Python and YAML, pass ``Model.model_json_schema()``. There is no time limit for validators in Python.

    ``order="schema"`` only excludes texts that are valid otherwise. Each subschema demands the order of its own
    ``properties`` wherever it applies: through ``$ref``, ``allOf``, ``then`` and so on. Of ``anyOf``, one valid branch
    must be in order; of ``oneOf``, the valid one. Subschemas that are only tests (``not``, ``if``, ``contains``) and
    the values of ``const`` and ``enum`` demand none. If two subschemas that apply to the same object declare the same
    keys in different orders, no object with these keys is valid.

    Each level of nesting in a schema or text uses some of Python's stack. If the stack overflows, the check raises
    CheckFailed: with Python's default limit, at 100 to 200 levels of a text whose schema refers to itself.

    Examples
    --------
    >>> JSONSchema({"type": "object", "required": ["name"]}).accepts('{"name": "Ada"}')
    True
    """

    schema: Annotated[Any, _in_files(dict[str, Any] | bool)] = None
    file: InitVar[str | None] = field(default=None, kw_only=True)
    where: Literal["text", "fenced"] = field(default="text", kw_only=True)
    formats: bool = field(default=True, kw_only=True)
    type: Annotated[Any, _in_files(None, _no_type)] = field(default=None, kw_only=True)
    on: View = field(default="completion", kw_only=True)
    whitespace: Literal["any", "compact"] = field(default="any", kw_only=True)
    order: Literal["schema"] | None = field(default=None, kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["json_schema"] = field(default="json_schema", kw_only=True)

    def __post_init__(self, file: str | None) -> None:
        needed = "JSONSchema needs either a schema (a mapping, a bool or a type) or a file that holds one"
        require((self.schema is None) is not (file is None), needed)
        require(file is None or isinstance(file, str), f"file must be a path, not {shown(file)}")
        if file is not None:  # the canonical form holds the file's contents, not its path
            object.__setattr__(self, "schema", read_schema_file(file))
        require(self.type is None or is_type(self.type), "type must be a type, such as a pydantic model")
        require_booleans(self, "formats")
        if is_type(self.schema):
            require(self.type is None, "give a type as schema or as type, not both")
            object.__setattr__(self, "type", self.schema)
            object.__setattr__(self, "schema", schema_of(type_adapter_of(self.schema)))
        if not isinstance(self.schema, dict | bool):
            raise ConstraintError(f"a schema must be a mapping, true or false, or a type, not {shown(self.schema)}")
        try:
            # This makes a private copy, and fails if the schema is not JSON.
            object.__setattr__(self, "schema", lexical.load_json(json.dumps(self.schema, allow_nan=False)))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ConstraintError(f"schema is not JSON: {first_line(error)}") from None
        require(self.order in (None, "schema"), f"order={shown(self.order)}: give 'schema', or None for any order")
        # Report mistakes now, not at the first text. The type's name is computed now so that copies share it.
        with about("schema" if file is None else "file", inside=file is None):
            self.validator, self.adapter, self._type_name  # noqa: B018
        require_choice(self.where, ("text", "fenced"), "where")
        object.__setattr__(self, "on", read_view(self.on))
        require_choice(self.whitespace, ("any", "compact"), "whitespace")

    @cached_property
    def validator(self) -> Any:
        """The validator for parsed values, with references resolved and expressions compiled."""
        return read_schema(self.schema, formats=self.formats, ordered=self.order == "schema")

    @cached_property
    def declared(self) -> frozenset[str]:
        """The names of all properties in the schema."""
        return declared_names(self.schema)

    @cached_property
    def adapter(self) -> TypeAdapter[Any] | None:
        """Pydantic's adapter for the type; None without a type."""
        return None if self.type is None else type_adapter_of(self.type)

    @cached_property
    def title(self) -> str:
        """Label in reports: its name, or else the type's name, the schema's title, or the schema's keys."""
        schema = self.schema if isinstance(self.schema, dict) else {}
        label = self.type.__name__ if isinstance(self.type, type) else schema.get("title")
        keys = schema.get("properties")
        if not label and isinstance(keys, dict) and keys:
            label = f"keys {', '.join(keys)}"
        if self.name or not label or not isinstance(label, str):
            return super().title
        label = " ".join(label.split())
        return f"JSONSchema({label if len(label) <= 45 else label[:42] + '...'})"

    def __getstate__(self) -> dict[str, Any]:
        # These cannot be pickled; a copy creates its own.
        return {key: value for key, value in self.__dict__.items() if key not in ("validator", "adapter", "_reading")}

    def spec(self) -> dict[str, Any]:
        """Return the canonical form. ``formats`` is in it only if the schema names a format.

        Schemas without formats so keep the digest that they had before the option existed.
        """
        spec = super().spec()
        spec.pop("formats", None)
        if names_format(self.schema):
            spec["formats"] = self.formats
        if self.type is not None:
            spec["type"] = self._type_name
        return spec

    def digest_fields(self) -> dict[str, Any]:
        """Return the properties of the schema in their order, if the constraint depends on it."""
        return {} if self.order is None else {"schema": _in_order(self.schema)}

    @cached_property
    def _type_name(self) -> str:
        if isinstance(self.type, type) and importable(self.type):
            return qualified(self.type)
        return f"{getattr(self.type, '__qualname__', repr(self.type))}#{secrets.token_hex(8)}"

    def sources(self) -> dict[str, str]:
        """Return the file of the type, whose validators may run code."""
        return super().sources() | (source_file(self.type) if isinstance(self.type, type) else {})

    @property
    def _looks(self) -> bool:
        """False with a type, which may have validators in Python."""
        return self.type is None

    @property
    def locates(self) -> bool:
        """True, also with a type, because ``place_in`` does not run it."""
        return type(self) is JSONSchema

    @property
    def in_memory(self) -> bool:
        return self.type is not None

    @property
    def parses(self) -> bool:
        """Whether a text has one value: on the whole text, or on one part of it."""
        if in_json(self.on):
            return False
        if (part := message_part(self.on)) is not None:
            return part != "tool_calls"
        return self.on == "completion" or (isinstance(self.on, Part) and self.on.between is None)

    def parse(self, text: str) -> Any:
        """Return the value of a text that satisfies the constraint: plain JSON types, or a value of the type.

        Raises
        ------
        UsageError
            If the text does not satisfy the constraint, or ``on`` selects several strings or a part of a message.
        CheckFailed
            If the text cannot be judged.
        """
        return self.value_of(Draw("", (), text))

    def value_of(self, draw: Draw) -> Any:
        """Return the value of an attempt that satisfies the constraint; None if it may lack the part, and does."""
        if not self.parses:
            raise UsageError(f"{self.title} judges on={self.on!r}; only on='completion' or one part can be parsed")
        if not run_check(self, [draw])[0]:
            fault = self._first_fault(draw)
            why = f" ({f'{fault.place} {fault.reason}'.strip()})" if fault is not None else ""
            raise UsageError(f"{self.title} does not hold for this text{why}, so it is not parsed")
        parts = view(draw, self.on)
        if not parts:
            return None
        (text,) = parts
        text = fenced(text)[0] if self.where == "fenced" else text
        return lexical.load_json(text) if self.adapter is None else self.adapter.validate_json(text)

    def holds(self, text: str) -> bool:
        try:
            return self._fault(text) is None
        except RecursionError:
            raise CheckFailed(self.title, "got a text that is nested too deeply for its schema") from None

    def fault(self, text: str) -> str:
        return str(self.fault_at(text))

    def fault_at(self, text: str) -> Fault:
        """Return where the text is not JSON, or which value in it is invalid, and why, apart from its path."""
        try:
            fault = self._fault(text, describe=True)
        except RecursionError:  # describing looks further than judging
            return Fault()
        return Fault() if fault is None else fault.message

    def place_in(self, draw: Draw, /) -> str | None:
        """Return the first place where an attempt is invalid, such as ``$.items[].name``; keys not declared are ``*``.

        If the text can no longer become valid, it is the place where an early abort would have stopped it: whether a
        server's text arrives whole or in pieces changes no report. The validators of a Python type are not run again.
        """
        fault = self._first_fault(draw)
        return None if fault is None else fault.stopped or fault.place

    def _first_fault(self, draw: Draw) -> Misfit | None:
        """Return the first fault of an attempt, without quoting it; None if that takes too long."""
        try:
            with charged(draw):
                for text in view(draw, self.on) or ():
                    if (fault := self._fault(text, describe=True, in_python=False)) is not None:
                        stopped = None if self.where == "fenced" else self._reading.read(text).violated_at
                        unfinished = stopped is None and fault.place == NOT_JSON and not draw.finished
                        return fault._replace(place=INCOMPLETE if unfinished else fault.place, stopped=stopped)
        except (TimeLimit, RecursionError):
            pass
        return None

    def _fault(self, text: str, *, describe: bool = False, in_python: bool = True) -> Misfit | None:
        """Return the first fault of a text."""
        if self.where == "fenced":
            blocks = fenced(text)
            if len(blocks) != 1:
                count = counted(len(blocks), "fenced block")
                return Misfit(Fault(f"has {count}"), count, "instead of one")
            text = blocks[0]
        check_deadline()
        try:
            value = lexical.load_exact(text)
        except (ValueError, OverflowError, RecursionError) as error:  # not JSON, too many digits, nested too deeply
            return Misfit(Fault(f"is not JSON: {first_line(error).partition(' (char')[0]}"), NOT_JSON, "")
        if describe:
            if (misfit := misfit_of(self.validator, value, self.declared)) is not None:
                return misfit
        elif not self.validator.is_valid(value):
            return _SOME_FAULT
        if self.whitespace == "compact" and not lexical.is_compact(text):
            message = "has white space that whitespace='compact' does not allow"
            return Misfit(Fault(message), WHITE_SPACE, "")
        if self.adapter is None:
            return None
        by_type = Misfit(Fault(), PYTHON_TYPE, "")
        try:
            if in_python:
                with uncounted():
                    self.adapter.validate_json(text)
                return None
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            at = ".".join(map(str, ("$", *first["loc"])))
            return by_type._replace(message=Fault(one_line(first["msg"]), at))
        return by_type

    def prefix_verdict(self, prefix: str) -> Verdict:
        return Verdict.UNDECIDED if self.where == "fenced" else self._reading.read(prefix).verdict

    def monitor(self) -> Monitor:
        """Return a monitor; if the whole text is JSON, one whose cost depends on the new text only."""
        return self._reading if self.where == "text" and self.on == "completion" else super().monitor()

    @cached_property
    def _reading(self) -> JSONMonitor:
        return JSONMonitor(
            ApplicatorCache(Schema(self.validator)),
            compact=self.whitespace == "compact",
            declared=self.declared,
        )


def _in_order(schema: Any) -> Any:
    """Return a schema in which every mapping ``properties``, wherever it is, has become a list of pairs."""
    if isinstance(schema, list):
        return [_in_order(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    mapping = {key: _in_order(value) for key, value in schema.items()}
    declared = mapping.get("properties")
    return {**mapping, "properties": list(declared.items())} if isinstance(declared, dict) else mapping


def fenced(text: str) -> list[str]:
    """Return the contents of all blocks between lines of three backticks. The first line may also have ``json``."""
    blocks: list[str] = []
    lines = text.split("\n")
    first: int | None = None  # first line of the block that is open
    for number, line in enumerate(lines):
        bare = line.strip(" \t")
        if first is not None and bare == "```":
            blocks.append("\n".join(lines[first:number]))
            first = None
        elif first is None and bare in ("```", "```json"):
            first = number + 1
    return blocks


def parser_of(constraint: Constraint) -> Callable[[Draw], Any] | None:
    """Return ``value_of`` of the only JSONSchema that attempts must satisfy; None if there is none, or several.

    A JSONSchema under ``|`` or ``~`` does not count, because an attempt may violate it.
    """
    parts = (part for part in _conjuncts(constraint) if isinstance(part, JSONSchema) and part.parses)
    schemas = list(dict.fromkeys(parts))
    return schemas[0].value_of if len(schemas) == 1 else None


def _conjuncts(constraint: Constraint) -> Iterator[Constraint]:
    for part in constraint.of if isinstance(constraint, All) else ():
        yield from _conjuncts(part)
    yield constraint
