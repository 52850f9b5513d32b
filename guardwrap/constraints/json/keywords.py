"""The validator for whole texts: that of ``jsonschema`` for draft 2020-12, with some keywords replaced.

Every keyword checks the time limit. Regular expressions are run by ``regex``, which has a timeout, and never by ``re``.
Keywords whose time, or memory for errors, grows faster than the text are reimplemented here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import jsonschema

from guardwrap.constraints.json.drafts import UNSEEN, WHOLE
from guardwrap.constraints.json.ecma_patterns import Expression
from guardwrap.support import lexical
from guardwrap.support.time_limits import check_deadline, within

_REFERENCES = ("$ref", "$dynamicRef")

_Errors = Iterator[jsonschema.ValidationError]


def _search(expression: Expression, text: str) -> bool:
    return within(expression.compiled.search, text) is not None


def fits(validator: Any, value: Any, schema: Any) -> bool:
    """Whether a value satisfies a subschema of the validator's schema."""
    check_deadline()
    return next(validator.descend(value, schema), None) is None


def _followed(validator: Any, keyword: str, reference: str) -> Any:
    scope = validator._resolver
    return (scope.lookup if keyword == "$ref" else scope.lookup_dynamic)(reference)


def _reference(keyword: str, validator: Any, reference: str, value: Any, schema: Any) -> _Errors:
    target = _followed(validator, keyword, reference)
    yield from validator.descend(value, target.contents, resolver=target.resolver)


def _pattern(validator: Any, expression: Expression, value: Any, schema: Any) -> _Errors:
    if isinstance(value, str) and not _search(expression, value):
        yield jsonschema.ValidationError(f"{value!r} does not match {str(expression)!r}")


def _format(validator: Any, name: str, value: Any, schema: Any) -> _Errors:
    check = (validator.format_checker or {}).get(name)
    if check is not None and isinstance(value, str) and not check(value):
        yield jsonschema.ValidationError(f"{value!r} is not a {name!r}")


def _pattern_properties(validator: Any, properties: dict[Expression, Any], value: Any, schema: Any) -> _Errors:
    for expression, inner in properties.items() if isinstance(value, dict) else ():
        for key, item in value.items():
            if _search(expression, key):
                yield from validator.descend(item, inner, path=key, schema_path=expression)


def _named_in(schema: Any, key: str) -> bool:
    """Whether a schema's ``properties`` or ``patternProperties`` apply to a property."""
    expressions: dict[Expression, Any] = schema.get("patternProperties", {})
    return key in schema.get("properties", ()) or any(_search(expression, key) for expression in expressions)


def _additional_properties(validator: Any, inner: Any, value: Any, schema: Any) -> _Errors:
    for key, item in value.items() if isinstance(value, dict) else ():
        if not _named_in(schema, key):
            yield from _not_allowed(key) if inner is False else validator.descend(item, inner, path=key)


def _not_allowed(key: str) -> _Errors:
    # The library's message quotes the object, but does not name the key's location.
    yield jsonschema.ValidationError(f"the key {key!r} is not allowed")


def _properties(validator: Any, properties: dict[str, Any], value: Any, schema: Any) -> _Errors:
    if not isinstance(value, dict):
        return
    for key, inner in properties.items():
        if key in value:
            yield from validator.descend(value[key], inner, path=key, schema_path=key)
    if validator._resolver.ordered:
        places = {key: place for place, key in enumerate(properties)}
        declared = [key for key in value if key in places]
        for before, key in pairwise(declared):
            if places[key] < places[before]:
                message = f"comes after {before!r}, which the schema declares later"
                yield jsonschema.ValidationError(message, path=[key])


def _unordered(validator: Any) -> Any:
    """Return the validator without the demand for an order of keys, for schemas that are only tests.

    If it held there too, an object in the wrong order would satisfy ``not``, or escape the condition of an ``if``.
    """
    scope = validator._resolver
    return validator.evolve(_resolver=scope.unordered()) if scope.ordered else validator


def _not(validator: Any, inner: Any, value: Any, schema: Any) -> _Errors:
    if fits(_unordered(validator), value, inner):
        yield jsonschema.ValidationError(f"{value!r} should not be valid under {inner!r}")


def _if(validator: Any, condition: Any, value: Any, schema: Any) -> _Errors:
    branch = "then" if fits(_unordered(validator), value, condition) else "else"
    if branch in schema:
        yield from validator.descend(value, schema[branch], schema_path=branch)


def _contains(validator: Any, inner: Any, value: Any, schema: Any) -> _Errors:
    if isinstance(value, list):
        plain = _unordered(validator)
        count = sum(fits(plain, item, inner) for item in value)
        if not schema.get("minContains", 1) <= count <= schema.get("maxContains", len(value)):
            yield jsonschema.ValidationError(f"has {count} items that match contains")


def _multiple_of(validator: Any, step: Any, value: Any, schema: Any) -> _Errors:
    if validator.is_type(value, "number") and not lexical.is_multiple(value, step):
        yield jsonschema.ValidationError(f"{value!r} is not a multiple of {step!r}")


# The library keeps all errors of all branches, each with the whole value in its message.


class UnionError(jsonschema.ValidationError):
    """No branch of ``anyOf`` or ``oneOf`` is valid."""

    def __init__(self, message: str, judge: Any) -> None:
        super().__init__(message)
        self.judge = judge


def _any_of(validator: Any, branches: list[Any], value: Any, schema: Any) -> _Errors:
    if not any(fits(validator, value, branch) for branch in branches):
        yield UnionError(f"{value!r} is not valid under any of the given schemas", validator)


def _one_of(validator: Any, branches: list[Any], value: Any, schema: Any) -> _Errors:
    plain = _unordered(validator)
    valid = [branch for branch in branches if fits(plain, value, branch)]
    if len(valid) != 1:
        message = f"is valid under {len(valid)} of the given schemas"
        yield jsonschema.ValidationError(message) if valid else UnionError(message, validator)
    elif validator is not plain:
        yield from validator.descend(value, valid[0])


def _unique_items(validator: Any, unique: bool, value: Any, schema: Any) -> _Errors:
    seen = set()
    for item in value if unique and isinstance(value, list) else ():
        check_deadline()  # a hostile text can hold numbers that all have the same hash
        form = canonical(item)
        if form in seen:
            yield jsonschema.ValidationError("has items that are not unique")
            return
        seen.add(form)


_TRUE, _FALSE = object(), object()


def canonical(value: Any) -> Any:
    """Return a hashable form that is equal for two values if JSON Schema says so: 1 equals 1.0, but not true."""
    if isinstance(value, list):
        check_deadline()
        return tuple([canonical(item) for item in value])
    if isinstance(value, dict):
        check_deadline()
        return frozenset([(key, canonical(item)) for key, item in value.items()])
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    return value


# The library keeps evaluated items and properties in lists, and searches these for each one: quadratic time.


def _unevaluated_items(validator: Any, inner: Any, value: Any, schema: Any) -> _Errors:
    if isinstance(value, list):
        seen: set[Any] = set()
        _evaluate(validator, schema, value, seen, top=True)
        for i, item in enumerate(value):
            if i not in seen:
                yield from validator.descend(item, inner, path=i)


def _unevaluated_properties(validator: Any, inner: Any, value: Any, schema: Any) -> _Errors:
    if isinstance(value, dict):
        seen: set[Any] = set()
        _evaluate(validator, schema, value, seen, top=True)
        for key, item in value.items():
            if key not in seen:
                yield from _not_allowed(key) if inner is False else validator.descend(item, inner, path=key)


def _evaluate(validator: Any, schema: Any, value: Any, seen: set[Any], *, top: bool = False) -> None:
    """Add the items or properties that a schema evaluates to ``seen``. The value must satisfy the schema.

    With ``top``, the schema's own ``unevaluatedItems`` and ``unevaluatedProperties`` do not count, because one of them
    is being checked.
    """
    check_deadline()
    if isinstance(schema, bool):
        return
    if isinstance(value, list):
        if "items" in schema or ("unevaluatedItems" in schema and not top):
            seen.update(range(len(value)))
        seen.update(range(len(schema.get("prefixItems", ()))))
        if "contains" in schema and UNSEEN not in schema:
            plain = _unordered(validator)
            seen.update(i for i, item in enumerate(value) if fits(plain, item, schema["contains"]))
    elif "additionalProperties" in schema or ("unevaluatedProperties" in schema and not top):
        seen.update(value)
    else:
        seen.update(key for key in value if _named_in(schema, key))
    for there, inner in _in_place(validator, schema, value):
        _evaluate(there, inner, value, seen)


def _in_place(validator: Any, schema: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the schemas that a schema applies to the value itself and that hold, each with a validator for it."""
    for keyword in _REFERENCES:
        if keyword in schema:
            target = _followed(validator, keyword, schema[keyword])
            yield validator.evolve(schema=target.contents, _resolver=target.resolver), target.contents
    inner = [branch for keyword in ("allOf", "anyOf", "oneOf") for branch in schema.get(keyword, ())]
    inner = [branch for branch in inner if fits(validator, value, branch)]
    if "if" in schema:
        plain = _unordered(validator)
        met = fits(plain, value, schema["if"])
        if met:
            yield _within(plain, schema["if"])
        inner += [schema[branch] for branch in ["then" if met else "else"] if branch in schema]
    if isinstance(value, dict):
        inner += [branch for key, branch in schema.get("dependentSchemas", {}).items() if key in value]
    for branch in inner:
        yield _within(validator, branch)


def _within(validator: Any, schema: Any) -> tuple[Any, Any]:
    """Return the validator for a subschema, and the subschema."""
    return validator.evolve(schema=schema, _resolver=validator._resolver.within(schema)), schema


# ------------------------------------------------------------------------------------------------------ the validator


def _looking(judge: Callable[..., Any]) -> Callable[..., Any]:
    def judge_in_time(validator: Any, argument: Any, value: Any, schema: Any) -> Any:
        check_deadline()
        return judge(validator, argument, value, schema)

    return judge_in_time


def _evolve(self: Any, **changes: Any) -> Any:
    """Return a validator for a subschema. It has this class, whatever the subschema's ``$schema`` says."""
    check_deadline()
    schema = changes.setdefault("schema", self.schema)
    changes.setdefault("format_checker", self.format_checker)
    if "_resolver" not in changes:  # not all keywords of the library pass it on, and a subschema may have an $id
        changes["_resolver"] = self._resolver if schema is self.schema else self._resolver.within(schema)
    return VALIDATOR(**changes)


_OWN: dict[str, Callable[..., Any]] = {
    "$dynamicRef": partial(_reference, "$dynamicRef"),
    "$ref": partial(_reference, "$ref"),
    "additionalProperties": _additional_properties,
    "anyOf": _any_of,
    "contains": _contains,
    "format": _format,
    "if": _if,
    "multipleOf": _multiple_of,
    "not": _not,
    "oneOf": _one_of,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "properties": _properties,
    "unevaluatedItems": _unevaluated_items,
    "unevaluatedProperties": _unevaluated_properties,
    "uniqueItems": _unique_items,
}


def _is_written_whole(_: Any, value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_integer(_: Any, value: Any) -> bool:
    return _is_written_whole(_, value) or (isinstance(value, lexical.Exact) and lexical.is_whole(value))


_Library: Any = jsonschema.Draft202012Validator
VALIDATOR: Any = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    _Library,
    {keyword: _looking(judge) for keyword, judge in {**_Library.VALIDATORS, **_OWN}.items()},
    type_checker=_Library.TYPE_CHECKER.redefine_many({"integer": _is_integer, WHOLE: _is_written_whole}),
)
VALIDATOR.evolve = _evolve
