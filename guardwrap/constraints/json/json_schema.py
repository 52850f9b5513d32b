"""A constraint on JSON: the text, or the fenced block in it, parses and validates."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import GetPydanticSchema, TypeAdapter, ValidationError
from pydantic_core import core_schema

from guardwrap.constraints.base import about, require, shown
from guardwrap.constraints.json import lexical
from guardwrap.constraints.json.formats import names_format
from guardwrap.constraints.json.json_monitor import ApplicatorCache, JSONMonitor
from guardwrap.constraints.json.python_types import is_type, schema_of, type_adapter_of
from guardwrap.constraints.json.schema_files import read_schema_file
from guardwrap.constraints.json.schema_validation import read_schema, schema_misfit
from guardwrap.constraints.json.subschemas import Schema
from guardwrap.constraints.kinds.function import importable, qualified
from guardwrap.constraints.kinds.text import TextConstraint, require_choice
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.constraints.views import VIEWS, View
from guardwrap.documents.time_limits import check_deadline, uncounted
from guardwrap.documents.yaml_nodes import one_line
from guardwrap.errors import CheckFailed, ConstraintError, UsageError, first_line
from guardwrap.formatting import counted

__all__ = ["JSONSchema"]


def _in_files(kind: Any, check: Callable[[Any], Any] = lambda given: given) -> GetPydanticSchema:
    """Say what a field may hold in a constraint file, where that is less than in Python."""
    return GetPydanticSchema(
        lambda _, handler: core_schema.no_info_before_validator_function(check, handler.generate_schema(kind))
    )


def _no_type(given: Any) -> None:
    if given is not None:
        raise ValueError("a file cannot name a Python type; give its schema, and leave type out")


@dataclass(frozen=True, eq=False, repr=False)
class JSONSchema(TextConstraint):
    r"""The text is JSON that validates, by the draft that the schema declares (``jsonschema``).

    Parameters
    ----------
    schema
        The schema; ``{}`` or True accepts any JSON. Or a type that pydantic makes values of (a model, a dataclass, a
        TypedDict, ``list[int]`` …, or a TypeAdapter): its schema, and ``type``.
    file
        A file of the schema instead, JSON (``.json``) or YAML; one that a constraint file names stands beside it.
    where
        ``"text"``: the whole text is JSON; ``"fenced"``: the text holds exactly one fenced block (three
        backticks, with or without ``json``), and that is JSON.
    formats
        Whether ``format`` must hold, for each of the 19 formats of draft 2020-12, in all drafts. Any other one says
        nothing about a text.
    type
        A Python type. Then pydantic must make a value of the text, too, and ``parse`` returns it.
    on
        The view of the text that is judged.
    whitespace
        ``"any"``: as JSON allows; ``"compact"``: none outside strings but a single space after a colon or comma, so
        that a text cannot spend its tokens on white space. What ``json.dumps`` writes without ``indent`` is compact.
    name
        What reports call it.

    Raises
    ------
    ConstraintError
        If the schema is invalid, or pydantic has none for the type.

    Notes
    -----
    NaN and infinities are refused, as in RFC 8259, and so are numbers beyond the range of a double, such as 1e400:
    they are not JSON that can be read. So are objects that have a key twice, of which RFC 8259 leaves open what they
    mean: else no property would be settled before the end. Half of a surrogate pair, ``"\ud800"``, is no character, and
    refused. Numbers are compared as they are written, in decimal: 4.02 is a multiple of 0.01.

    ``$schema`` may name draft 4, 6, 7, 2019-09 or 2020-12, also in a schema within another; anything else is refused.
    Without it, a schema is one of draft 2020-12, in which ``items`` may be a list, too, as in older drafts. What the
    declared draft does not know says nothing, and ``guardwrap check`` notes it. References lead to what is in the
    schema, by pointer, anchor or ``$id``, or to the meta-schema of a draft; nothing is fetched.

    ``pattern`` and ``patternProperties`` are expressions of ECMA-262, with its flag ``u``. Those with flags of their
    own, such as ``(?i)``, and with references to groups that are repeated are refused, and so is the syntax of other
    languages. ``format: regex`` takes no more than 20 000 characters.

    Where the whole text is judged as JSON, verdicts on prefixes look at the whole schema: an attempt ends where a type,
    a key, a word of an enum, a number that is finished … leaves no way on. ``unevaluatedItems`` and
    ``unevaluatedProperties`` are looked at when the bracket closes, and what a type asks beyond its schema at the end.

    A type's schema is pydantic's for validation: the JSON, keys by alias, that ``validate_json`` takes. It does not say
    all: it takes any string for a Decimal, and knows nothing of validators in Python. So a text satisfies the
    constraint if the schema and pydantic take it, and there is a value for each such text. No constraint file can name
    the type, and the digest is another than that of the schema alone; for the same constraint in Python and YAML, give
    ``Model.model_json_schema()``. Nothing limits the time that validators in Python take.

    Every step into a schema or a text takes some of Python's stack. Where that ends, the check raises CheckFailed: with
    Python's usual limit at 100 to 200 levels of a text whose schema refers to itself.

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
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["json_schema"] = field(default="json_schema", kw_only=True)

    def __post_init__(self, file: str | None) -> None:
        needed = "JSONSchema needs a schema (a mapping or a bool, or a type), or a file with it"
        require((self.schema is None) is not (file is None), needed)
        require(file is None or isinstance(file, str), f"file must be a path, not {shown(file)}")
        if file is not None:  # the spelling is that of what stands in it
            object.__setattr__(self, "schema", read_schema_file(file))
        require(self.type is None or is_type(self.type), "type must be a type, such as a pydantic model")
        require(isinstance(self.formats, bool), "formats must be true or false")
        if is_type(self.schema):
            require(self.type is None, "give a type as schema or as type, not both")
            object.__setattr__(self, "type", self.schema)
            object.__setattr__(self, "schema", schema_of(type_adapter_of(self.schema)))
        if not isinstance(self.schema, dict | bool):
            raise ConstraintError(f"a schema must be a mapping, true or false, or a type, not {shown(self.schema)}")
        try:
            # A private copy, and proof that the schema is JSON.
            object.__setattr__(self, "schema", lexical.load_json(json.dumps(self.schema, allow_nan=False)))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ConstraintError(f"schema is not JSON: {first_line(error)}") from None
        # What is wrong is reported here, not at the first text; and a copy has the name of this one's type.
        with about("schema" if file is None else "file", inside=file is None):
            self.validator, self.adapter, self._type_name  # noqa: B018
        require_choice(self.where, ("text", "fenced"), "where")
        require_choice(self.on, VIEWS, "on")
        require_choice(self.whitespace, ("any", "compact"), "whitespace")

    @cached_property
    def validator(self) -> Any:
        """What judges values; its references are looked up and its expressions compiled."""
        return read_schema(self.schema, formats=self.formats)

    @cached_property
    def adapter(self) -> TypeAdapter[Any] | None:
        """What makes values of the type."""
        return None if self.type is None else type_adapter_of(self.type)

    @cached_property
    def title(self) -> str:
        """What reports call it: its name; else that of the type, the schema's own title, or its keys."""
        schema = self.schema if isinstance(self.schema, dict) else {}
        called = self.type.__name__ if isinstance(self.type, type) else schema.get("title")
        keys = schema.get("properties")
        if not called and isinstance(keys, dict) and keys:
            called = f"keys {', '.join(keys)}"
        if self.name or not called or not isinstance(called, str):
            return super().title
        called = " ".join(called.split())
        return f"JSONSchema({called if len(called) <= 45 else called[:42] + '...'})"

    def __getstate__(self) -> dict[str, Any]:
        # These are not to be pickled; a copy makes its own.
        return {key: value for key, value in self.__dict__.items() if key not in ("validator", "adapter", "_reading")}

    def spec(self) -> dict[str, Any]:
        """Spell ``formats`` where it says something: schemas without formats keep the digest that they had before."""
        spec = super().spec()
        spec.pop("formats", None)
        if names_format(self.schema):
            spec["formats"] = self.formats
        if self.type is not None:
            spec["type"] = self._type_name
        return spec

    @cached_property
    def _type_name(self) -> str:
        if isinstance(self.type, type) and importable(self.type):
            return qualified(self.type)
        return f"{getattr(self.type, '__qualname__', repr(self.type))}#{secrets.token_hex(8)}"

    @property
    def _looks(self) -> bool:
        """False with a type: its validators may be in Python."""
        return self.type is None

    @property
    def in_memory(self) -> bool:
        """Whether it has a type, which no constraint file can name."""
        return self.type is not None

    def parse(self, text: str) -> Any:
        """Return what a text says that satisfies the constraint: plain JSON types, or a value of the type.

        Raises
        ------
        UsageError
            If the text does not satisfy the constraint, or another view than the whole text is judged.
        CheckFailed
            If it cannot be judged.
        """
        if self.on != "completion":
            raise UsageError(f"{self.title} judges on={self.on!r}; only texts judged on='completion' are parsed")
        if not self.accepts(text):
            raise UsageError(f"{self.title} does not hold for this text, so it is not parsed")
        text = fenced(text)[0] if self.where == "fenced" else text
        return lexical.load_json(text) if self.adapter is None else self.adapter.validate_json(text)

    def holds(self, text: str) -> bool:
        """Parse and validate one string."""
        if self.where == "fenced":
            blocks = fenced(text)
            if len(blocks) != 1:
                return False
            text = blocks[0]
        check_deadline()
        try:
            value = lexical.load_exact(text)
        except (
            ValueError,
            OverflowError,
            RecursionError,
        ):  # not JSON, or beyond reading: digits, depth
            return False
        if self.whitespace == "compact" and not lexical.is_compact(text):
            return False
        try:
            return bool(self.validator.is_valid(value)) and self._makes_value(text)
        except RecursionError:
            raise CheckFailed(self.title, "got a text nested too deep for its schema") from None

    def _makes_value(self, text: str) -> bool:
        try:
            if self.adapter is not None:
                with uncounted():
                    self.adapter.validate_json(text)
        except ValidationError:
            return False
        return True

    def fault(self, text: str) -> str:
        """Say where the text is no JSON, or which value in it does not fit, and what of the schema."""
        if self.where == "fenced":
            blocks = fenced(text)
            if len(blocks) != 1:
                return f"has {counted(len(blocks), 'fenced block')}"
            text = blocks[0]
        try:
            value = lexical.load_exact(text)
        except (ValueError, OverflowError, RecursionError) as error:
            return f"is not JSON: {first_line(error).partition(' (char')[0]}"
        if (unfit := schema_misfit(self.validator, value)) is not None:
            return unfit
        if self.whitespace == "compact" and not lexical.is_compact(text):
            return "has white space that whitespace='compact' refuses"
        try:
            if self.adapter is not None:
                self.adapter.validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            return f"{'.'.join(map(str, ('$', *first['loc'])))}: {one_line(first['msg'])}"
        return ""

    def prefix_verdict(self, prefix: str) -> Verdict:
        """VIOLATED where no JSON text that satisfies the schema begins like this, as far as that can be known."""
        return Verdict.UNDECIDED if self.where == "fenced" else self._reading.read(prefix).verdict

    def monitor(self) -> Monitor:
        """Return one whose verdicts cost what is new, where the whole text is JSON."""
        return self._reading if self.where == "text" and self.on == "completion" else super().monitor()

    @cached_property
    def _reading(self) -> JSONMonitor:
        dynamic = self.validator._resolver.references.ambiguous
        return JSONMonitor(
            ApplicatorCache(Schema(self.validator, dynamic=dynamic)), compact=self.whitespace == "compact"
        )


def fenced(text: str) -> list[str]:
    """Return what stands between lines of three backticks, the first of two perhaps with ``json``."""
    blocks: list[str] = []
    lines = text.split("\n")
    first: int | None = None  # line of the block that is open
    for number, line in enumerate(lines):
        bare = line.strip(" \t")
        if first is not None and bare == "```":
            blocks.append("\n".join(lines[first:number]))
            first = None
        elif first is None and bare in ("```", "```json"):
            first = number + 1
    return blocks
