"""A constraint on JSON: the text, or the fenced block in it, parses and validates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal, NoReturn

import jsonschema
import referencing
import regex
from jsonschema.protocols import Validator
from referencing.jsonschema import DRAFT202012

from guardwrap.constraints.base import Verdict, require
from guardwrap.constraints.patterns import compile_pattern
from guardwrap.constraints.text import TextConstraint, require_choice
from guardwrap.constraints.views import VIEWS, View
from guardwrap.errors import CheckFailed, ConstraintError

__all__ = ["JSONSchema"]

_FENCE = regex.compile(r"^[ \t]*```(?:json)?[ \t]*\n(.*?)^[ \t]*```[ \t]*$", regex.MULTILINE | regex.DOTALL)
_PATTERN_SECONDS = 1.0


@dataclass(frozen=True, eq=False, repr=False)
class JSONSchema(TextConstraint):
    """The text is JSON that validates (draft 2020-12, through ``jsonschema``).

    Parameters
    ----------
    schema
        The schema; ``{}`` or True accepts any JSON. References must stay inside it.
    where
        ``"text"``: the whole text is JSON; ``"fenced"``: the text holds exactly one fenced block (three
        backticks, with or without ``json``), and that is JSON.
    on
        The view of the text that is judged.
    name
        What reports call it.

    Raises
    ------
    ConstraintError
        If the schema is invalid.

    Notes
    -----
    NaN and infinities are refused, as in RFC 8259. Expressions in the schema are run by the ``regex`` module with
    a limit of one second each; beyond it the check raises CheckFailed.

    Examples
    --------
    >>> JSONSchema({"type": "object", "required": ["name"]}).accepts('{"name": "Ada"}')
    True
    """

    schema: dict[str, Any] | bool
    where: Literal["text", "fenced"] = field(default="text", kw_only=True)
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["json_schema"] = field(default="json_schema", kw_only=True)

    def __post_init__(self) -> None:
        require(isinstance(self.schema, dict | bool), "schema must be a mapping or a bool")
        try:
            # A private copy, and proof that the schema is JSON.
            object.__setattr__(self, "schema", json.loads(json.dumps(self.schema, allow_nan=False)))
            jsonschema.Draft202012Validator.check_schema(self.schema)
        except jsonschema.SchemaError as error:
            path = "/".join(map(str, error.absolute_path)) or "the top"
            raise ConstraintError(f"invalid JSON Schema at {path}: {error.message[:200]}") from None
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ConstraintError(f"schema is not JSON: {type(error).__name__}") from None
        for reference in references(self.schema):
            require(
                reference.startswith("#"),
                f"schema refers to {reference!r}; only references inside it (#/...) work",
            )
        keywords = {key for key, _ in _items(self.schema)}
        if "$id" not in keywords:  # it changes what references are relative to
            registry = referencing.Registry().with_resource("", DRAFT202012.create_resource(self.schema))
            for reference in references(self.schema):
                try:
                    registry.resolver().lookup(reference)
                except Exception:  # Unresolvable, but also ValueError, TypeError … from within pointers
                    raise ConstraintError(f"schema refers to {reference!r}, which is not in it") from None
        for expression in expressions(self.schema):
            _compiled(expression)
        # The library judges this pair with `re`, which has no time limit.
        require(
            not {"unevaluatedProperties", "patternProperties"} <= keywords,
            "schema has both unevaluatedProperties and patternProperties, which do not go together here; "
            "use additionalProperties",
        )
        require_choice(self.where, ("text", "fenced"), "where")
        require_choice(self.on, VIEWS, "on")

    @cached_property
    def validator(self) -> Validator:
        """The validator; an empty registry keeps it from fetching anything."""
        validator: Validator = _Validator(self.schema, registry=referencing.Registry())
        return validator

    def holds(self, text: str) -> bool:
        """Parse and validate one string."""
        if self.where == "fenced":
            blocks = _FENCE.findall(text)
            if len(blocks) != 1:
                return False
            text = blocks[0]
        try:
            value = json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError):  # not JSON, digits without end, or nested beyond any use
            return False
        try:
            return bool(self.validator.is_valid(value))
        except TimeoutError:
            reason = f"took more than {_PATTERN_SECONDS:g} s to match a pattern of its schema; rewrite the pattern"
            raise CheckFailed(self.title, reason) from None
        except RecursionError:
            raise CheckFailed(self.title, "got a text nested too deep for its schema") from None

    def prefix_verdict(self, prefix: str) -> Verdict:
        """VIOLATED where no JSON text, or none of the schema's top-level types, begins like this."""
        if self.where == "fenced":
            return Verdict.UNDECIDED
        start = prefix.lstrip(" \t\n\r")[:1]
        if start and self.starts is not None and start not in self.starts:
            return Verdict.VIOLATED
        return Verdict.UNDECIDED if begins_json(prefix) else Verdict.VIOLATED

    @cached_property
    def starts(self) -> str | None:
        """First characters of the types that the schema's top level allows; None where it does not say."""
        types = self.schema.get("type") if isinstance(self.schema, dict) else None
        if types is None:
            return None
        return "".join(_STARTS[name] for name in ([types] if isinstance(types, str) else types))


_STARTS = {
    "object": "{",
    "array": "[",
    "string": '"',
    "number": "-0123456789",
    "integer": "-0123456789",
    "boolean": "tf",
    "null": "n",
}


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def references(schema: Any) -> Iterator[str]:
    """Yield every ``$ref`` and ``$dynamicRef`` of a schema."""
    for key, value in _items(schema):
        if key in ("$ref", "$dynamicRef") and isinstance(value, str):
            yield value


def expressions(schema: Any) -> Iterator[str]:
    """Yield every regular expression of a schema."""
    for key, value in _items(schema):
        if key == "pattern" and isinstance(value, str):
            yield value
        elif key == "patternProperties" and isinstance(value, dict):
            yield from value


def _items(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield the keyword pairs of a schema, at any depth, but not those of plain data in it."""
    if isinstance(schema, list):
        for item in schema:
            yield from _items(item)
    elif isinstance(schema, dict):
        for key, value in schema.items():
            yield key, value
            if key in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
                for inner in value.values() if isinstance(value, dict) else ():
                    yield from _items(inner)
            elif key not in ("const", "enum", "default", "examples", "required"):
                yield from _items(value)


_compiled = lru_cache(maxsize=512)(compile_pattern)


def _search(expression: str, text: str) -> bool:
    return _compiled(expression).search(text, timeout=_PATTERN_SECONDS) is not None


def _pattern(validator: Validator, expression: str, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    if isinstance(instance, str) and not _search(expression, instance):
        yield jsonschema.ValidationError("does not match the pattern")


def _pattern_properties(
    validator: Validator, properties: dict[str, Any], instance: Any, schema: Any
) -> Iterator[jsonschema.ValidationError]:
    if not isinstance(instance, dict):
        return
    for expression, subschema in properties.items():
        for key, value in instance.items():
            if _search(expression, key):
                yield from validator.descend(value, subschema, path=key, schema_path=expression)  # type: ignore[attr-defined]


def _additional_properties(
    validator: Validator, allowed: Any, instance: Any, schema: Any
) -> Iterator[jsonschema.ValidationError]:
    if not isinstance(instance, dict):
        return
    for key, value in instance.items():
        if key not in schema.get("properties", {}) and not any(
            _search(expression, key) for expression in schema.get("patternProperties", {})
        ):
            yield from validator.descend(value, allowed, path=key)  # type: ignore[attr-defined]


_Validator = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator,
    {
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    },
)

# One value or a part of one, in the states below. Whole words and numbers are matched by what may follow.
_NUMBER = regex.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_STRING = regex.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"')
_SPACE = " \t\n\r"


def begins_json(prefix: str) -> bool:
    """Whether some JSON text begins with this prefix: a pushdown recogniser for RFC 8259.

    Parameters
    ----------
    prefix
        Any string.

    Returns
    -------
    bool
        False only where no JSON text can begin like this.
    """
    stack: list[str] = []
    want = "value"  # value | key | colon | comma | first (value or ]) | first_key (key or }) | end
    i = 0
    while i < len(prefix):
        char = prefix[i]
        if char in _SPACE:
            i += 1
            continue
        if want == "comma":
            if char == "," and stack:
                want = "key" if stack[-1] == "{" else "value"
            elif stack and char == {"{": "}", "[": "]"}[stack[-1]]:
                stack.pop()
            else:
                return False
            i += 1
            continue
        if want == "colon":
            if char != ":":
                return False
            want, i = "value", i + 1
            continue
        if (want == "first" and char == "]") or (want == "first_key" and char == "}"):
            stack.pop()
            want, i = "comma", i + 1
            continue
        if want in ("key", "first_key"):
            if char != '"':
                return False
        elif char in "{[":
            stack.append(char)
            want, i = ("first_key" if char == "{" else "first"), i + 1
            continue
        end = _scalar(prefix, i)
        if end is None:
            return False
        if end > len(prefix):
            return True
        want = "colon" if want in ("key", "first_key") else "comma"
        i = end
    return True


def _scalar(text: str, start: int) -> int | None:
    """Where the string, number or word at ``start`` ends; beyond the text if it may go on; None if it is none."""
    char = text[start]
    if char == '"' or char in "-0123456789":
        kind = _STRING if char == '"' else _NUMBER
        # A full match is tried first: "1." would be the number 1 and a stray point, though it may become 1.5.
        if char != '"' and kind.fullmatch(text, start, partial=True):
            return len(text) + 1
        found = kind.match(text, start, partial=True)
        if found is None:
            return None
        return len(text) + 1 if found.partial else int(found.end())
    for word in ("true", "false", "null"):
        if word.startswith(text[start : start + len(word)]):
            return start + len(word)
    return None
