"""The subschemas of a JSON Schema, with their rules sorted by kind of value, for judging incomplete texts.

A subschema is loaded when it is first needed, because a schema may refer to itself, and most texts reach few of its
parts. Keywords mean the same as to the validator of whole texts. Keywords without support here are checked by that
validator once a value is complete.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection
from decimal import Decimal
from typing import Any, NamedTuple

from guardwrap.constraints.json.drafts import WHOLE
from guardwrap.constraints.json.ecma_patterns import Expression
from guardwrap.constraints.json.references import Scope
from guardwrap.constraints.regex_analysis import extent
from guardwrap.support.lexical import Exact, is_whole
from guardwrap.support.time_limits import VERDICT_SECONDS, TimeLimit, check_deadline, within


class Words:
    """A set of allowed strings, with fast lookup by prefix."""

    __slots__ = ("_sorted", "longest")

    def __init__(self, words: Collection[str]) -> None:
        self._sorted = sorted(set(words))
        self.longest = max(map(len, words), default=-1)

    def __contains__(self, text: str) -> bool:
        i = bisect_left(self._sorted, text)
        return i < len(self._sorted) and self._sorted[i] == text

    def may_become(self, prefix: str, but: Collection[str] = ()) -> bool:
        """Whether one of the strings begins with the prefix and is not in ``but``."""
        for i in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            check_deadline()
            if not self._sorted[i].startswith(prefix):
                return False
            if self._sorted[i] not in but:
                return True
        return False

    def following(self, prefix: str) -> set[str]:
        """Return the characters that follow the prefix in the strings that begin with it."""
        characters: set[str] = set()
        for i in range(bisect_left(self._sorted, prefix), len(self._sorted)):
            check_deadline()
            if not self._sorted[i].startswith(prefix):
                break
            characters.update(self._sorted[i][len(prefix) : len(prefix) + 1])
        return characters


_EACH = 256  # up to this length an expression is tried after every character


class Pattern(NamedTuple):
    """A regular expression that must match somewhere in a string."""

    compiled: Any  # the compiled expression
    dies: bool  # whether a failed partial search proves that no longer string has a match

    def found_in(self, text: str) -> bool:
        """Whether a complete string has a match."""
        return within(self.compiled.search, text) is not None

    def may_be_found(self, prefix: str, before: int) -> bool:
        """Whether a string that begins with the prefix may have a match.

        In long strings the expression is tried only at some lengths, so that all tries together take linear time. These
        lengths do not depend on how the string is cut into pieces.
        """
        if not self.dies:
            return True
        end = _checkpoint(len(prefix))
        return end == _checkpoint(before) or within(self.compiled.search, prefix[:end], partial=True) is not None


def _checkpoint(length: int) -> int:
    """Return the greatest length, up to this one, at which an expression is tried: beyond ``_EACH``, every 25 %."""
    if length <= _EACH:
        return length
    steps = int(math.log(length / _EACH, 1.25))
    while _EACH * 1.25 ** (steps + 1) <= length:
        steps += 1
    while _EACH * 1.25**steps > length:
        steps -= 1
    return int(_EACH * 1.25**steps)


_LEAST, _MOST = Exact("-Infinity"), Exact("Infinity")


class NumberRange(NamedTuple):
    """The rules for numbers in one subschema."""

    # ``"number"``; ``"integer"`` for whole numbers, including 1.0; ``WHOLE`` for whole numbers written without a
    # fraction
    integer: str
    least: int | Exact  # inclusive limits
    above: int | Exact  # exclusive limits
    most: int | Exact
    below: int | Exact
    choices: tuple[frozenset[int | Exact], ...]  # sets of numbers; the number must be in each of them
    multiple: bool  # whether there is a ``multipleOf``, which the validator checks

    def hold(self, value: int | Exact) -> bool:
        """Whether a complete number satisfies the rules, except ``multipleOf``."""
        return (
            (self.integer == "number" or isinstance(value, int) or (self.integer == "integer" and is_whole(value)))
            and self.least <= value <= self.most
            and self.above < value < self.below
            and all(value in chosen for chosen in self.choices)
        )

    def may_hold(self, digits: str) -> bool:
        """Whether a number that begins with these characters may satisfy the rules.

        An exponent can still make the number small or large, so only its sign and its first digits are certain. -0 and
        -0e9 equal 0.
        """
        if self.integer == WHOLE and not digits.lstrip("-").isdigit() and digits != "-":
            return False
        possible = self.least <= 0 and self.above < 0 if digits[0] == "-" else self.most >= 0 and self.below > 0
        return possible and all(_one_begins(chosen, digits) for chosen in self.choices)

    def may_reach(self, digits: str) -> bool:
        """Whether a number that begins with these characters, and has no exponent, may be within the limits."""
        return self._reaches(digits) and all(
            len(chosen) > _FEW or any(self._replace(least=choice, most=choice)._reaches(digits) for choice in chosen)
            for chosen in self.choices
        )

    def _reaches(self, digits: str) -> bool:
        typed = digits.lstrip("-")
        if not typed:
            return True
        limits = (self.least, self.above, self.most, self.below)
        least, above, most, below = limits if digits[0] != "-" else (-self.most, -self.below, -self.least, -self.above)
        number = Decimal(typed)
        step = Decimal(1).scaleb(-len(typed.partition(".")[2]))  # the digits that follow add less than this
        whole = self.integer != "number" and "." not in typed  # then they add at most ``step - 1``
        while number + step <= least or number + step - whole <= above:
            if typed[0] == "0" or "." in typed:
                return False
            number, step = 10 * number, 10 * step  # one more digit before the decimal point
        return number <= most and number < below


def limits_of(schema: dict[str, Any], choices: list[list[int | Exact]], integer: str) -> NumberRange | None:
    """Return the rules for numbers in a subschema; None if there are none."""
    names = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    if integer == "number" and not choices and not names & schema.keys():
        return None
    return NumberRange(
        integer=integer,
        least=schema.get("minimum", _LEAST),
        above=schema.get("exclusiveMinimum", _LEAST),
        most=schema.get("maximum", _MOST),
        below=schema.get("exclusiveMaximum", _MOST),
        choices=tuple(frozenset(chosen) for chosen in choices),
        multiple="multipleOf" in schema,
    )


_FEW = 64  # the most choices that are compared digit by digit


def _one_begins(choices: frozenset[int | Exact], digits: str) -> bool:
    return len(choices) > _FEW or any(_begins(choice, digits) for choice in choices)


def _begins(choice: int | Exact, digits: str) -> bool:
    """Whether a number that begins with these characters can equal a choice.

    Leading and trailing zeros and an exponent only move the decimal point, so the significant digits are compared.
    """
    check_deadline()
    typed = digits.replace("E", "e").partition("e")[0].lstrip("-").replace(".", "").lstrip("0")
    if choice == 0:
        return not typed
    if (digits[0] == "-") != (choice < 0):
        return False
    figures = "".join(map(str, Exact(choice).as_tuple().digits)).rstrip("0")
    return figures.startswith(typed) or typed.rstrip("0") == figures


# ----------------------------------------------------------------------------------------------------------- subschemas


Kind = str  # "object", "array", "string", "number", "true", "false" or "null"

_KINDS = {"boolean": ("true", "false"), "integer": ("number",), WHOLE: ("number",)}
_EVERYWHERE = {"type", "enum", "const"}
_IN_PLACE = {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas"}
_OF_OBJECTS = {"properties", "patternProperties", "additionalProperties", "propertyNames", "required"}
_OF_OBJECTS |= {"minProperties", "maxProperties", "dependentRequired"}
_OF_ARRAYS = {"prefixItems", "items", "contains", "minItems", "maxItems", "uniqueItems"}
_OF_STRINGS = {"minLength", "maxLength", "pattern", "format"}
_OF_NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
_KNOWN = _EVERYWHERE | _IN_PLACE | _OF_OBJECTS | _OF_ARRAYS | _OF_STRINGS | _OF_NUMBERS


class Clause(NamedTuple):
    """What a subschema demands of others that it applies to the same value."""

    # "all", "any", "one" or "none" of the members; "if", with "then" and "else"; or "key": the one, if it is there
    demand: str
    members: tuple[Any, ...]  # subschemas, or their indices in ``Applicators.nodes``; None for a missing branch of "if"
    key: str = ""


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
        self.clauses = self._clauses(schema)

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

    def _clauses(self, schema: dict[str, Any]) -> tuple[Clause, ...]:
        if not _IN_PLACE & schema.keys():
            return ()
        every = [self.within(inner) for inner in schema.get("allOf", ())]
        for keyword, follow in (("$ref", self.resolver.lookup), ("$dynamicRef", self.resolver.lookup_dynamic)):
            if keyword in schema:
                target = follow(schema[keyword])
                every.append(self.whole.subschema(target.contents, target.resolver))
        clauses = [Clause("all", members)] if (members := tuple(each for each in every if not each.trivial)) else []
        # Of oneOf, exactly one branch must hold in any order of keys, and it must also have the right order.
        groups = [schema[key] for key in ("anyOf", "oneOf")[: 1 + self.resolver.ordered] if key in schema]
        clauses += [Clause("any", tuple(self.within(inner) for inner in group)) for group in groups]
        if "oneOf" in schema:
            clauses.append(Clause("one", tuple(self.within(inner, is_test=True) for inner in schema["oneOf"])))
        if "not" in schema:
            clauses.append(Clause("none", (self.within(schema["not"], is_test=True),)))
        if "if" in schema and schema.keys() & {"then", "else"}:
            branches = (self.within(schema[key]) if key in schema else None for key in ("then", "else"))
            clauses.append(Clause("if", (self.within(schema["if"], is_test=True), *branches)))
        dependent = schema.get("dependentSchemas", {}).items()
        return (*clauses, *(Clause("key", (self.within(inner),), key) for key, inner in dependent))

    def within(self, schema: Any, *, is_test: bool = False) -> Subschema:
        """Return the ``Subschema`` for a part of this one; of a test, one in which keys may have any order."""
        resolver = self.resolver.unordered() if is_test else self.resolver
        return self.whole.subschema(schema, resolver.within(schema))

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

    def __init__(self, validator: Any) -> None:
        self.validator = validator
        self.keywords = frozenset(validator.VALIDATORS)
        self._patterns: dict[str, Pattern] = {}
        self._made: dict[tuple[int, Scope], Subschema] = {}
        # A hostile schema can have a dynamic scope for each order in which its resources are entered.
        self._most = 10_000 + 4 * len(validator._resolver.references.known)
        self.top = self.subschema(validator.schema, validator._resolver)

    def subschema(self, schema: Any, resolver: Scope) -> Subschema:
        """Return the ``Subschema`` for a part of the schema: the same object each time."""
        key = (id(schema), resolver)
        if key not in self._made:
            check_deadline()
            if len(self._made) >= self._most:
                raise TimeLimit(VERDICT_SECONDS, shared=False)  # no verdict, as if it took too long
            self._made[key] = Subschema(self, schema, resolver)  # this keeps ``schema`` alive, so its id is not reused
        return self._made[key]

    def pattern(self, expression: Expression) -> Pattern:
        """Return the ``Pattern`` for an expression of the schema."""
        if expression not in self._patterns:
            check_deadline()
            self._patterns[expression] = Pattern(expression.compiled, extent(expression.translated, ()).dies)
        return self._patterns[expression]
