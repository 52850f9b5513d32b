"""The subschemas of a JSON Schema, with their rules sorted by kind of value, for judging incomplete texts.

A subschema is loaded when it is first needed, because a schema may refer to itself, and most texts reach few of its
parts. Keywords mean the same as to the validator of whole texts. Keywords without support here are checked by that
validator once a value is complete.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from referencing.jsonschema import DRAFT202012

from guardwrap.constraints.json.drafts import WHOLE
from guardwrap.constraints.json.ecma_patterns import Expression
from guardwrap.constraints.json.scalars import NumberRange, Pattern, Words, limits_of
from guardwrap.constraints.regex_analysis import extent
from guardwrap.documents.lexical import Exact
from guardwrap.documents.time_limits import check_deadline

Kind = str  # "object", "array", "string", "number", "true", "false" or "null"

_KINDS = {"boolean": ("true", "false"), "integer": ("number",), WHOLE: ("number",)}
_EVERYWHERE = {"type", "enum", "const"}
_REFERENCES = {"$ref", "$dynamicRef"}
_IN_PLACE = _REFERENCES | {"allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas"}
_OF_OBJECTS = {"properties", "patternProperties", "additionalProperties", "propertyNames", "required"}
_OF_OBJECTS |= {"minProperties", "maxProperties", "dependentRequired"}
_OF_ARRAYS = {"prefixItems", "items", "contains", "minItems", "maxItems", "uniqueItems"}
_OF_STRINGS = {"minLength", "maxLength", "pattern", "format"}
_OF_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_KNOWN = _EVERYWHERE | _IN_PLACE | _OF_OBJECTS | _OF_ARRAYS | _OF_STRINGS | _OF_NUMBERS


class InPlace(NamedTuple):
    """The subschemas that a subschema applies to the same value, by keyword."""

    every: tuple[Subschema, ...] = ()
    some: tuple[tuple[Subschema, ...], ...] = ()
    """Groups of subschemas. In each group, at least one must hold."""
    one: tuple[Subschema, ...] = ()
    none: Subschema | None = None
    condition: tuple[Subschema, Subschema | None, Subschema | None] | None = None
    dependent: tuple[tuple[str, Subschema], ...] = ()


class Objects(NamedTuple):
    """The rules for objects in one subschema."""

    properties: dict[str, Subschema]
    patterns: tuple[tuple[Pattern, Subschema], ...]
    additional: Subschema | None
    names: Subschema | None
    required: tuple[str, ...]
    least: int
    most: float
    dependent: dict[str, list[str]]
    settled_by: frozenset[str] | None
    """Once all of these keys have valid values, the object satisfies these rules, whatever follows. None if unknown."""
    order: dict[str, int] | None
    """The place of each declared key, if the keys must have this order; None if they may have any."""

    def barred(self, seen: Collection[str]) -> Collection[str]:
        """Return the declared keys that must not come next, after the keys of the object so far.

        In an order, these are the keys up to the last one that was declared, and those after the first required one
        that is missing.
        """
        if self.order is None:
            return seen
        last = max((place for key, place in self.order.items() if key in seen), default=-1)
        missing = (self.order[key] for key in self.required if key in self.order and key not in seen)
        limit = min(missing, default=len(self.order))
        return {key for key, place in self.order.items() if not last < place <= limit}


class Arrays(NamedTuple):
    """The rules for arrays in one subschema."""

    prefix: tuple[Subschema, ...]
    items: Subschema | None
    contains: Subschema | None
    least_contained: float
    most_contained: float
    least: float
    most: float
    unique: bool


class Strings(NamedTuple):
    """The rules for strings in one subschema."""

    words: tuple[Words, ...]
    least: float
    most: float
    pattern: Pattern | None
    asked: bool
    """Whether there is a ``format``. The validator checks it, as it knows whether formats are enabled."""


class Subschema:
    """A subschema. Most of its attributes exist only after ``loaded``."""

    __slots__ = (
        "_loaded",
        "arrays",
        "asked",
        "containers",
        "in_place",
        "kinds",
        "limits",
        "literals",
        "never",
        "objects",
        "opaque",
        "resolver",
        "schema",
        "strings",
        "trivial",
        "whole",
    )

    def __init__(self, whole: Schema, schema: Any, resolver: Any) -> None:
        self.whole = whole
        self.schema = schema
        self.resolver = resolver
        self._loaded = False
        self.trivial = schema is True or (schema is not False and not whole.keywords & schema.keys())
        self.never = schema is False or schema in ({"not": {}}, {"not": True})

    def loaded(self) -> Subschema:
        """Return this subschema, with all attributes set."""
        if not self._loaded:
            check_deadline()
            self._load()
            self._loaded = True
        return self

    def _load(self) -> None:
        schema = {} if isinstance(self.schema, bool) else self.schema
        types = schema.get("type")
        names = [types] if isinstance(types, str) else types
        self.asked: tuple[str, ...] = tuple((self.whole.keywords - _KNOWN) & schema.keys())
        # The target of a $dynamicRef may depend on the path by which it is reached.
        self.opaque = self.whole.dynamic and ("$dynamicRef" in schema or bool(self.asked))
        if self.opaque:
            self.asked = ()
        self.kinds: frozenset[Kind] | None = None
        if self.never:
            self.kinds = frozenset()
        elif names is not None:
            self.kinds = frozenset(kind for name in names for kind in _KINDS.get(name, (name,)))
        choices = [[schema["const"]]] if "const" in schema else []
        choices += [schema["enum"]] if "enum" in schema else []
        sorted_choices = [_by_kind(values) for values in choices]
        self.literals: tuple[set[Kind], ...] = tuple(each.literals for each in sorted_choices)
        self.containers = tuple(
            tuple(self._synthetic(_like(value)) for value in each.containers) for each in sorted_choices
        )
        self.strings = self._strings(schema, tuple(Words(each.strings) for each in sorted_choices))
        integer = next((name for name in ("number", "integer", WHOLE) if names and name in names), "number")
        self.limits: NumberRange | None = limits_of(schema, [each.numbers for each in sorted_choices], integer)
        self.objects = self._objects(schema) if _OF_OBJECTS & schema.keys() else None
        self.arrays = self._arrays(schema) if _OF_ARRAYS & schema.keys() else None
        self.in_place = self._in_place(schema)

    def _strings(self, schema: dict[str, Any], words: tuple[Words, ...]) -> Strings | None:
        if not words and not _OF_STRINGS & schema.keys():
            return None
        least, most = schema.get("minLength", 0), schema.get("maxLength", float("inf"))
        pattern = self.whole.pattern(schema["pattern"]) if "pattern" in schema else None
        return Strings(words, least, most, pattern, "format" in schema)

    def _objects(self, schema: dict[str, Any]) -> Objects:
        properties = {key: self.within(inner) for key, inner in schema.get("properties", {}).items()}
        patterns = schema.get("patternProperties", {}).items()
        required = tuple(schema.get("required", ()))
        settled_by = None
        ordered = self.resolver.ordered and len(properties) > 1
        if not _OF_OBJECTS - {"properties", "required"} & schema.keys():
            # A key that comes later may be out of order, unless none is left.
            open_keys = (key for key, inner in properties.items() if ordered or not inner.trivial)
            settled_by = frozenset((*required, *open_keys))
        return Objects(
            properties=properties,
            patterns=tuple((self.whole.pattern(key), self.within(inner)) for key, inner in patterns),
            additional=self.within(schema["additionalProperties"]) if "additionalProperties" in schema else None,
            names=self.within(schema["propertyNames"]) if "propertyNames" in schema else None,
            required=required,
            least=schema.get("minProperties", 0),
            most=schema.get("maxProperties", float("inf")),
            dependent=schema.get("dependentRequired", {}),
            settled_by=settled_by,
            order={key: place for place, key in enumerate(properties)} if ordered else None,
        )

    def _arrays(self, schema: dict[str, Any]) -> Arrays:
        contains = self.within(schema["contains"], is_test=True) if "contains" in schema else None
        return Arrays(
            prefix=tuple(self.within(inner) for inner in schema.get("prefixItems", ())),
            items=self.within(schema["items"]) if "items" in schema else None,
            contains=contains,
            least_contained=schema.get("minContains", 1) if contains else 0,
            most_contained=schema.get("maxContains", float("inf")),
            least=schema.get("minItems", 0),
            most=schema.get("maxItems", float("inf")),
            unique=schema.get("uniqueItems", False),
        )

    def _in_place(self, schema: dict[str, Any]) -> InPlace | None:
        if not _IN_PLACE & schema.keys():
            return None
        every = [self.within(inner) for inner in schema.get("allOf", ())]
        for keyword in _REFERENCES & schema.keys() if not self.opaque else ():
            target = self.whole.referred(schema[keyword], self.resolver)
            if target is None:
                self.opaque = True
            else:
                every.append(target)
        condition = None
        if "if" in schema and schema.keys() & {"then", "else"}:
            then, otherwise = (self.within(schema[key]) if key in schema else None for key in ("then", "else"))
            condition = (self.within(schema["if"], is_test=True), then, otherwise)
        # Of oneOf, exactly one branch must hold in any order of keys, and it must also have the right order.
        keywords = ("anyOf", "oneOf") if self.resolver.ordered else ("anyOf",)
        return InPlace(
            every=tuple(inner for inner in every if not inner.trivial),
            some=tuple(tuple(self.within(inner) for inner in schema[key]) for key in keywords if key in schema),
            one=tuple(self.within(inner, is_test=True) for inner in schema.get("oneOf", ())),
            none=self.within(schema["not"], is_test=True) if "not" in schema else None,
            condition=condition,
            dependent=tuple((key, self.within(inner)) for key, inner in schema.get("dependentSchemas", {}).items()),
        )

    def within(self, schema: Any, *, is_test: bool = False) -> Subschema:
        """Return the ``Subschema`` for a part of this one; of a test, one in which keys may have any order."""
        resolver = self.resolver.unordered() if is_test else self.resolver
        if isinstance(schema, dict) and "$id" in schema:
            resolver = resolver.in_subresource(DRAFT202012.create_resource(schema))
        return self.whole.subschema(schema, resolver)

    def _synthetic(self, schema: dict[str, Any]) -> Subschema:
        return Subschema(self.whole, schema, self.resolver.unordered())

    def asks(self, keyword: str, value: Any) -> bool | None:
        """Return whether a complete value satisfies one keyword; None if the validator exceeds Python's stack."""
        validator = self.whole.validator.evolve(schema=self.schema, _resolver=self.resolver)
        judge = validator.VALIDATORS[keyword]
        try:
            errors = judge(validator, self.schema[keyword], value, self.schema) or ()
            return next(iter(errors), None) is None
        except RecursionError:
            return None


class _ByKind(NamedTuple):
    strings: list[str]
    numbers: list[int | Exact]
    literals: set[Kind]
    containers: list[Any]


def _by_kind(values: list[Any]) -> _ByKind:
    by_kind = _ByKind([], [], set(), [])
    for value in values:
        check_deadline()
        if isinstance(value, str):
            by_kind.strings.append(value)
        elif value is None or isinstance(value, bool):
            by_kind.literals.add({None: "null", True: "true", False: "false"}[value])
        elif isinstance(value, int | Exact):
            by_kind.numbers.append(value)
        else:
            by_kind.containers.append(value)
    return by_kind


def _like(value: Any) -> dict[str, Any]:
    """Return a schema that only an array or object equal to this one satisfies."""
    if isinstance(value, list):
        parts = [{"const": item} for item in value]
        return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}
    properties = {key: {"const": item} for key, item in value.items()}
    return {"type": "object", "properties": properties, "additionalProperties": False, "required": list(value)}


class Schema:
    """A schema, with its subschemas."""

    def __init__(self, validator: Any, *, dynamic: bool) -> None:
        self.validator = validator
        self.dynamic = dynamic
        self.keywords = frozenset(validator.VALIDATORS)
        self._patterns: dict[str, Pattern] = {}
        self._made: dict[tuple[int, str, bool], Subschema] = {}
        self.top = self.subschema(validator.schema, validator._resolver)

    def subschema(self, schema: Any, resolver: Any) -> Subschema:
        """Return the ``Subschema`` for a part of the schema: the same object each time."""
        key = (id(schema), resolver._base_uri, resolver.ordered)
        if key not in self._made:
            check_deadline()
            self._made[key] = Subschema(self, schema, resolver)  # this keeps ``schema`` alive, so its id is not reused
        return self._made[key]

    def referred(self, reference: str, resolver: Any) -> Subschema | None:
        """Return the target of a reference; None if resolving it exceeds Python's stack."""
        try:
            target = resolver.lookup(reference)
        except RecursionError:
            return None
        return self.subschema(target.contents, target.resolver)

    def pattern(self, expression: Expression) -> Pattern:
        """Return the ``Pattern`` for an expression of the schema."""
        if expression not in self._patterns:
            check_deadline()
            self._patterns[expression] = Pattern(expression.compiled, extent(expression.translated, ()).dies)
        return self._patterns[expression]
