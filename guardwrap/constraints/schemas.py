"""JSON Schemas, draft 2020-12, through ``jsonschema``: reading one, and the keywords that differ from the library's.

Whatever the library does looks at the clock. Regular expressions are run by ``regex``, which has a time limit, and
never by ``re``. Keywords whose work, or memory for errors, grows faster than the text are written anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import jsonschema
import referencing
from referencing.jsonschema import DRAFT202012

from guardwrap.constraints.limits import look, within
from guardwrap.constraints.patterns import compile_pattern
from guardwrap.errors import ConstraintError

__all__ = ["canonical", "fits", "read_schema"]

_HERE = "urn:guardwrap:schema"  # unless the schema has an $id
_REFERENCES = ("$ref", "$dynamicRef")
_FRAMES = 30  # twice what a look-up of a reference takes


class _Expression(str):
    """A regular expression of a schema, compiled."""

    compiled: Any


def read_schema(schema: Any) -> Any:
    """Check a schema and everything that it refers to.

    Parameters
    ----------
    schema
        Of JSON.

    Returns
    -------
    jsonschema.protocols.Validator
        With every reference known and every expression compiled. It fetches nothing.

    Raises
    ------
    ConstraintError
        If it is not well formed, or refers to what is not in it.
    """
    try:
        _require_well_formed(schema)
        schema = json.loads(json.dumps(schema))  # a copy, for expressions in it are replaced
        resource = DRAFT202012.create_resource(schema)
        here = resource.id() or _HERE
        # Crawled once and kept: else the library crawls it again at every reference.
        registry = _of_ids(referencing.Registry().with_resource(here, resource).crawl)
        _prepare(schema, registry.resolver(here))
    except RecursionError:
        raise ConstraintError("schema is nested too deep") from None
    return _Validator({"$ref": here}, registry=registry)


def _require_well_formed(schema: Any, place: tuple[str, ...] = ()) -> None:
    error = next(_well_formed.iter_errors(schema), None)
    if error is not None:
        path = "/".join(map(str, (*place, *error.absolute_path)))[:200] or "the top"
        raise ConstraintError(f"invalid JSON Schema at {path}: {error.message[:200]}")


def _prepare(schema: Any, resolver: Any) -> None:
    """Compile the expressions of a schema and look up its references."""
    todo: list[tuple[Any, Any]] = [(schema, resolver)]
    referred: list[tuple[str, Any]] = []
    seen: set[int] = set()
    while todo or referred:
        look()
        if not todo:
            reference, found = referred.pop()
            if id(found.contents) not in seen:
                # It stands where no schema is expected: under a keyword that nobody knows, or in an enum.
                _require_well_formed(found.contents, (reference,))
                todo.append((found.contents, found.resolver))
            continue
        inner, resolver = todo.pop()
        if isinstance(inner, bool) or id(inner) in seen:
            continue
        seen.add(id(inner))
        if "pattern" in inner:
            inner["pattern"] = _expression(inner["pattern"])
        if "patternProperties" in inner:
            inner["patternProperties"] = {_expression(key): value for key, value in inner["patternProperties"].items()}
        resolver = _of_ids(resolver.in_subresource, DRAFT202012.create_resource(inner))
        references = [inner[keyword] for keyword in _REFERENCES if keyword in inner]
        referred += [(reference, _look_up(reference, resolver)) for reference in references]
        todo += [(child, resolver) for child in DRAFT202012.subresources_of(inner)]


def _expression(spelling: str) -> _Expression:
    made = _Expression(spelling)
    made.compiled = compile_pattern(spelling)
    return made


def _look_up(reference: str, resolver: Any) -> Any:
    if not reference.startswith("#"):
        raise ConstraintError(f"schema refers to {reference[:80]!r}; only references inside it (#/...) work")
    try:
        return resolver.lookup(reference)
    except RecursionError:
        raise
    except Exception:  # Unresolvable, but also ValueError, TypeError … from within pointers
        raise ConstraintError(f"schema refers to {reference[:80]!r}, which is not in it") from None


def _of_ids(read: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except (ValueError, AttributeError, TypeError) as error:  # an $id or $schema that the library cannot read
        raise ConstraintError(f"invalid JSON Schema: an $id or $schema in it: {str(error)[:100]}") from None


# ------------------------------------------------------------------------------------------------------- the keywords

_Errors = Iterator[jsonschema.ValidationError]
_of_any_place = lru_cache(maxsize=64)(compile_pattern)


def _search(expression: str, text: str) -> bool:
    # A plain string is one that the library reached in a way of its own, by a mistake in its reading of $id.
    compiled = expression.compiled if isinstance(expression, _Expression) else _of_any_place(str(expression))
    return within(compiled.search, text) is not None


def fits(validator: Any, value: Any, schema: Any) -> bool:
    """Whether a value satisfies a subschema of the validator's."""
    look()
    return next(validator.descend(value, schema), None) is None


def _pattern(validator: Any, expression: str, value: Any, schema: Any) -> _Errors:
    if isinstance(value, str) and not _search(expression, value):
        yield jsonschema.ValidationError(f"{value!r} does not match {str(expression)!r}")


def _pattern_properties(validator: Any, properties: dict[str, Any], value: Any, schema: Any) -> _Errors:
    for expression, inner in properties.items() if isinstance(value, dict) else ():
        for key, item in value.items():
            if _search(expression, key):
                yield from validator.descend(item, inner, path=key, schema_path=expression)


def _named_in(schema: Any, key: str) -> bool:
    """Whether a schema's ``properties`` or ``patternProperties`` speak of a property."""
    expressions = schema.get("patternProperties", ())
    return key in schema.get("properties", ()) or any(_search(expression, key) for expression in expressions)


def _additional_properties(validator: Any, inner: Any, value: Any, schema: Any) -> _Errors:
    for key, item in value.items() if isinstance(value, dict) else ():
        if not _named_in(schema, key):
            yield from validator.descend(item, inner, path=key)


def _contains(validator: Any, inner: Any, value: Any, schema: Any) -> _Errors:
    if isinstance(value, list):
        count = sum(fits(validator, item, inner) for item in value)
        if not schema.get("minContains", 1) <= count <= schema.get("maxContains", len(value)):
            yield jsonschema.ValidationError(f"contains {count} items that fit")


# The library keeps all errors of all branches, each with the value spelled out.


def _any_of(validator: Any, branches: list[Any], value: Any, schema: Any) -> _Errors:
    if not any(fits(validator, value, branch) for branch in branches):
        yield jsonschema.ValidationError(f"{value!r} is not valid under any of the given schemas")


def _one_of(validator: Any, branches: list[Any], value: Any, schema: Any) -> _Errors:
    count = sum(fits(validator, value, branch) for branch in branches)
    if count != 1:
        yield jsonschema.ValidationError(f"is valid under {count} of the given schemas")


def _unique_items(validator: Any, unique: bool, value: Any, schema: Any) -> _Errors:
    seen = set()
    for item in value if unique and isinstance(value, list) else ():
        look()  # whole numbers can be chosen such that their hashes are all the same
        own = canonical(item)
        if own in seen:
            yield jsonschema.ValidationError("has items that are not unique")
            return
        seen.add(own)


_TRUE, _FALSE = object(), object()


def canonical(value: Any) -> Any:
    """Return something hashable, equal for two values where JSON Schema has them equal: 1 is 1.0, and no true."""
    if isinstance(value, list):
        look()
        return tuple([canonical(item) for item in value])
    if isinstance(value, dict):
        look()
        return frozenset([(key, canonical(item)) for key, item in value.items()])
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    return value


# The library keeps what is evaluated in lists, and looks for each item or property in them.


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
                yield from validator.descend(item, inner, path=key)


def _evaluate(validator: Any, schema: Any, value: Any, seen: set[Any], *, top: bool = False) -> None:
    """Add which items or properties a schema speaks of, provided that the value satisfies it.

    At the top, all its keywords count but the one that asks.
    """
    look()
    if isinstance(schema, bool):
        return
    if isinstance(value, list):
        if "items" in schema or ("unevaluatedItems" in schema and not top):
            seen.update(range(len(value)))
        seen.update(range(len(schema.get("prefixItems", ()))))
        if "contains" in schema:
            seen.update(i for i, item in enumerate(value) if fits(validator, item, schema["contains"]))
    elif "additionalProperties" in schema or ("unevaluatedProperties" in schema and not top):
        seen.update(value)
    else:
        seen.update(key for key in value if _named_in(schema, key))
    for there, inner in _in_place(validator, schema, value):
        _evaluate(there, inner, value, seen)


def _in_place(validator: Any, schema: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the schemas that a schema applies to the value itself, each with a validator that stands in it."""
    for keyword in _REFERENCES:
        if keyword in schema:
            _require_room()
            found = validator._resolver.lookup(schema[keyword])
            yield validator.evolve(schema=found.contents, _resolver=found.resolver), found.contents
    inner = [branch for keyword in ("allOf", "anyOf", "oneOf") for branch in schema.get(keyword, ())]
    inner = [branch for branch in inner if fits(validator, value, branch)]
    if "if" in schema:
        met = fits(validator, value, schema["if"])
        inner += [schema["if"]] if met else []
        inner += [schema[branch] for branch in ["then" if met else "else"] if branch in schema]
    if isinstance(value, dict):
        inner += [branch for key, branch in schema.get("dependentSchemas", {}).items() if key in value]
    for branch in inner:
        resolver = validator._resolver.in_subresource(DRAFT202012.create_resource(branch))
        yield validator.evolve(schema=branch, _resolver=resolver), branch


# ------------------------------------------------------------------------------------------------------ the validator


def _require_room(frames: int = _FRAMES) -> None:
    """Raise RecursionError here where the stack is nearly full.

    References are kept in ``rpds``, whose Rust panics where it meets the limit itself.
    """
    if frames:
        _require_room(frames - 1)


def _looking(keyword: str, judge: Callable[..., Any]) -> Callable[..., Any]:
    def judge_in_time(validator: Any, argument: Any, value: Any, schema: Any) -> Any:
        look()
        return judge(validator, argument, value, schema)

    def refer_in_time(validator: Any, argument: Any, value: Any, schema: Any) -> Iterator[Any]:
        look()
        _require_room()
        yield from judge(validator, argument, value, schema)

    return refer_in_time if keyword in _REFERENCES else judge_in_time


def _evolve(self: Any, **changes: Any) -> Any:
    """Make a validator of a subschema. It is of this class, whatever the subschema's ``$schema`` says."""
    look()
    changes.setdefault("schema", self.schema)
    changes.setdefault("_resolver", self._resolver)
    return _Validator(registry=self._registry, **changes)


_OWN: dict[str, Callable[..., Any]] = {
    "additionalProperties": _additional_properties,
    "anyOf": _any_of,
    "contains": _contains,
    "oneOf": _one_of,
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "unevaluatedItems": _unevaluated_items,
    "unevaluatedProperties": _unevaluated_properties,
    "uniqueItems": _unique_items,
}

_Library: Any = jsonschema.Draft202012Validator
_Validator: Any = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    _Library,
    {keyword: _looking(keyword, judge) for keyword, judge in {**_Library.VALIDATORS, **_OWN}.items()},
)
_Validator.evolve = _evolve
_well_formed: Any = _Validator({"$ref": _Library.META_SCHEMA["$id"]}, registry=referencing.Registry())
