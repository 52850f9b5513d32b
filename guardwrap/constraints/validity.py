"""Whether a JSON value satisfies a schema, draft 2020-12: yes or no, with the clock looked at in every step.

``jsonschema`` does the same and finds errors to tell, which takes time, and memory, that nothing bounds.
The tests hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from guardwrap.constraints.limits import look, within
from guardwrap.constraints.schemas import Known

__all__ = ["canonical", "valid"]

_TRUE, _FALSE = object(), object()


def valid(schema: Any, value: Any, known: Known) -> bool:
    """Whether a value satisfies a schema.

    Parameters
    ----------
    schema
        A schema that ``read_schema`` has seen.
    value
        Of JSON.
    known
        What that found.

    Raises
    ------
    TimeLimit
        If the time ends first.
    RecursionError
        If value or schema is nested too deep.
    """
    look()
    if isinstance(schema, bool):
        return schema
    for key, argument in schema.items():
        rule = _RULES.get(key)
        if rule is not None and not rule(argument, value, schema, known):
            return False
    return True


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


def _search(expression: str, text: str, known: Known) -> bool:
    return within(known.patterns[expression].search, text) is not None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is(kind: str, value: Any) -> bool:
    match kind:
        case "number":
            return _is_number(value)
        case "integer":
            return _is_number(value) and (isinstance(value, int) or value.is_integer())
        case "null":
            return value is None
        case _:
            return isinstance(value, _KINDS[kind])


_KINDS: dict[str, type] = {"array": list, "boolean": bool, "object": dict, "string": str}


# ------------------------------------------------------------------------------------------------------- the keywords
# Each takes its argument, the value, the schema that it stands in, and what is known of the whole.


def _type(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    return any(_is(kind, value) for kind in ([argument] if isinstance(argument, str) else argument))


def _enum(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    own = canonical(value)
    return any(canonical(item) == own for item in argument)


def _const(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    return bool(canonical(argument) == canonical(value))


def _multiple_of(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    if not _is_number(value):
        return True
    if isinstance(argument, float):
        try:
            quotient = value / argument
            return bool(int(quotient) == quotient)
        except OverflowError:  # beyond a double
            return (Fraction(value) / Fraction(argument)).denominator == 1
    try:
        return not value % argument
    except OverflowError:
        return bool(Fraction(value) % argument == 0)


def _unique_items(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    if not argument or not isinstance(value, list):
        return True
    seen = set()
    for item in value:
        look()  # whole numbers can be chosen such that their hashes are all the same
        own = canonical(item)
        if own in seen:
            return False
        seen.add(own)
    return True


def _items(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    if not isinstance(value, list):
        return True
    rest = range(len(schema.get("prefixItems", ())), len(value))
    return argument is True or all(valid(argument, value[i], known) for i in rest)


def _prefix_items(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    pairs = zip(argument, value, strict=False) if isinstance(value, list) else ()
    return all(valid(inner, item, known) for inner, item in pairs)


def _contains(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    if not isinstance(value, list):
        return True
    count = sum(valid(argument, item, known) for item in value)
    return bool(schema.get("minContains", 1) <= count <= schema.get("maxContains", len(value)))


def _properties(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    if not isinstance(value, dict):
        return True
    return all(valid(inner, value[key], known) for key, inner in argument.items() if key in value)


def _pattern_properties(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    if not isinstance(value, dict):
        return True
    return all(
        not _search(expression, key, known) or valid(inner, item, known)
        for expression, inner in argument.items()
        for key, item in value.items()
    )


def _named_in(schema: Any, key: str, known: Known) -> bool:
    """Whether a schema's ``properties`` or ``patternProperties`` speak of a property."""
    expressions = schema.get("patternProperties", ())
    return key in schema.get("properties", ()) or any(_search(expression, key, known) for expression in expressions)


def _additional_properties(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    if not isinstance(value, dict):
        return True
    return all(_named_in(schema, key, known) or valid(argument, item, known) for key, item in value.items())


def _property_names(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    return not isinstance(value, dict) or all(valid(argument, key, known) for key in value)


def _required(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    return not isinstance(value, dict) or all(key in value for key in argument)


def _dependent_required(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    if not isinstance(value, dict):
        return True
    return all(name in value for key, names in argument.items() if key in value for name in names)


def _dependent_schemas(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    if not isinstance(value, dict):
        return True
    return all(valid(inner, value, known) for key, inner in argument.items() if key in value)


def _all_of(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    return all(valid(inner, value, known) for inner in argument)


def _any_of(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    return any(valid(inner, value, known) for inner in argument)


def _one_of(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    return sum(valid(inner, value, known) for inner in argument) == 1


def _not(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    return not valid(argument, value, known)


def _if(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    branch = "then" if valid(argument, value, known) else "else"
    return branch not in schema or valid(schema[branch], value, known)


def _ref(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    return valid(known.referred[id(schema), "$ref"], value, known)


def _dynamic_ref(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    return valid(known.referred[id(schema), "$dynamicRef"], value, known)


def _unevaluated_items(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    if not isinstance(value, list):
        return True
    seen = _evaluated(schema, value, known, top=True)
    return all(i in seen or valid(argument, item, known) for i, item in enumerate(value))


def _unevaluated_properties(argument: Any, value: Any, schema: Any, known: Known) -> bool:
    if not isinstance(value, dict):
        return True
    seen = _evaluated(schema, value, known, top=True)
    return all(key in seen or valid(argument, item, known) for key, item in value.items())


def _evaluated(schema: Any, value: Any, known: Known, *, top: bool = False) -> set[Any]:
    """Which items or properties a schema speaks of, provided that the value satisfies it.

    At the top, all its keywords count but the one that asks.
    """
    look()
    if isinstance(schema, bool):
        return set()
    if isinstance(value, list):
        if "items" in schema or ("unevaluatedItems" in schema and not top):
            return set(range(len(value)))
        seen: set[Any] = set(range(len(schema.get("prefixItems", ()))))
        if "contains" in schema:
            seen.update(i for i, item in enumerate(value) if valid(schema["contains"], item, known))
    else:
        if "additionalProperties" in schema or ("unevaluatedProperties" in schema and not top):
            return set(value)
        seen = {key for key in value if _named_in(schema, key, known)}
    for inner in _in_place(schema, value, known):
        seen |= _evaluated(inner, value, known)
    return seen


def _in_place(schema: Any, value: Any, known: Known) -> Iterator[Any]:
    """Yield the schemas that a schema applies to the value itself."""
    for key in ("$ref", "$dynamicRef"):
        if key in schema:
            yield known.referred[id(schema), key]
    for key in ("allOf", "anyOf", "oneOf"):
        for inner in schema.get(key, ()):
            if valid(inner, value, known):
                yield inner
    if "if" in schema:
        branch = "else"
        if valid(schema["if"], value, known):
            yield schema["if"]
            branch = "then"
        if branch in schema:
            yield schema[branch]
    if isinstance(value, dict):
        yield from (inner for key, inner in schema.get("dependentSchemas", {}).items() if key in value)


_Rule = Callable[[Any, Any, Any, Known], bool]


def _of_numbers(holds: Callable[[Any, Any], bool]) -> _Rule:
    return lambda argument, value, schema, known: not _is_number(value) or holds(value, argument)


def _of_sizes(kind: Any, holds: Callable[[int, Any], bool]) -> _Rule:
    return lambda argument, value, schema, known: not isinstance(value, kind) or holds(len(value), argument)


_RULES: dict[str, _Rule] = {
    "$dynamicRef": _dynamic_ref,
    "$ref": _ref,
    "additionalProperties": _additional_properties,
    "allOf": _all_of,
    "anyOf": _any_of,
    "const": _const,
    "contains": _contains,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "enum": _enum,
    "exclusiveMaximum": _of_numbers(lambda value, limit: value < limit),
    "exclusiveMinimum": _of_numbers(lambda value, limit: value > limit),
    "if": _if,
    "items": _items,
    "maxItems": _of_sizes(list, lambda size, limit: size <= limit),
    "maxLength": _of_sizes(str, lambda size, limit: size <= limit),
    "maxProperties": _of_sizes(dict, lambda size, limit: size <= limit),
    "maximum": _of_numbers(lambda value, limit: value <= limit),
    "minItems": _of_sizes(list, lambda size, limit: size >= limit),
    "minLength": _of_sizes(str, lambda size, limit: size >= limit),
    "minProperties": _of_sizes(dict, lambda size, limit: size >= limit),
    "minimum": _of_numbers(lambda value, limit: value >= limit),
    "multipleOf": _multiple_of,
    "not": _not,
    "oneOf": _one_of,
    "pattern": lambda argument, value, schema, known: not isinstance(value, str) or _search(argument, value, known),
    "patternProperties": _pattern_properties,
    "prefixItems": _prefix_items,
    "properties": _properties,
    "propertyNames": _property_names,
    "required": _required,
    "type": _type,
    "unevaluatedItems": _unevaluated_items,
    "unevaluatedProperties": _unevaluated_properties,
    "uniqueItems": _unique_items,
}
