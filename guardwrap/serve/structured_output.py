"""Constraints from the structured output fields of OpenAI's and vLLM's APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import regex

from guardwrap.constraints.combinators import All
from guardwrap.constraints.grammar.grammar import Grammar
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.kinds.text import Regex
from guardwrap.documents.yaml_nodes import short
from guardwrap.errors import GuardwrapError, nearest
from guardwrap.serve.error_responses import bad, in_field
from guardwrap.serve.server_settings import ServerLimits
from guardwrap.serve.structural_tags import structural_tags

Structure = JSONSchema | Regex | Grammar | All
_MEANINGS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_GUIDED = ("json", "regex", "choice", "grammar")
_SHAPES = ("text", "json_object", "json_schema", "structural_tag")
_SCHEMA_FIELDS = ("name", "schema", "strict", "description")


def structured(fields: Mapping[str, Any], limits: ServerLimits) -> Iterator[Structure]:
    """Yield the constraints of a request's structured output fields. A text must satisfy all of them."""
    if "response_format" in fields:
        yield from _response_format(fields["response_format"], limits)
    if "structured_outputs" in fields:
        yield _structured_outputs(fields["structured_outputs"], limits)
    for meaning in _GUIDED:
        name = f"guided_{meaning}"
        if name in fields:
            yield _meant(name, meaning, fields[name], limits)


def _response_format(value: Any, limits: ServerLimits) -> Iterator[Structure]:
    where = "response_format"
    shape = value.get("type") if isinstance(value, dict) else None
    if shape not in _SHAPES:
        raise bad(f"{where}.type", f"is not one of {', '.join(_SHAPES)}{nearest(shape, _SHAPES)}")
    more = {"json_schema": ("json_schema",), "json_object": ("schema",)}.get(str(shape), ())
    if shape == "structural_tag":
        yield _meant(where, shape, value, limits)
        return
    _require_fields(value, where, ("type", *more))
    if shape == "json_object" and value.get("schema") is not None:
        yield _meant(f"{where}.schema", "json", value["schema"], limits)
    elif shape == "json_object":
        yield _meant(where, "json_object", True, limits)
    if shape == "json_schema":
        wrapper = value.get("json_schema")
        if not isinstance(wrapper, dict) or wrapper.get("schema") is None:
            raise bad(f"{where}.json_schema", "the field schema is missing; give the JSON Schema there")
        _require_fields(wrapper, f"{where}.json_schema", _SCHEMA_FIELDS)
        yield _meant(f"{where}.json_schema.schema", "json", wrapper["schema"], limits)


def _structured_outputs(value: Any, limits: ServerLimits) -> Structure:
    where = "structured_outputs"
    if not isinstance(value, dict):
        raise bad(where, f"give an object with one of {', '.join(_MEANINGS)}")
    fields = {name: each for name, each in value.items() if each is not None}
    _require_fields(fields, where, (*_MEANINGS, "disable_any_whitespace"))
    compact = fields.pop("disable_any_whitespace", False)
    if not isinstance(compact, bool):
        raise bad(f"{where}.disable_any_whitespace", "give true or false")
    if len(fields) != 1:
        raise bad(where, f"give one of {', '.join(_MEANINGS)}")
    ((meaning, content),) = fields.items()
    return _meant(f"{where}.{meaning}", meaning, content, limits, compact=compact)


def _require_fields(fields: Mapping[str, Any], where: str, known: tuple[str, ...]) -> None:
    for name in fields:
        if name not in known:
            raise bad(where, f"unknown field {short(name)}{nearest(name, known)}; known: {', '.join(known)}")


def _meant(where: str, meaning: str, value: Any, limits: ServerLimits, *, compact: bool = False) -> Structure:
    """Return the constraint for one type of structured output, within the size limits."""
    try:
        if meaning == "json":
            return _schema(where, value, limits, compact=compact)
        if meaning == "json_object":
            if value is not True:
                raise bad(where, "give true, or leave it out")
            return JSONSchema({"type": "object"}, whitespace="compact" if compact else "any", name="a JSON object")
        if meaning == "structural_tag":
            _require_size(where, len(json.dumps(value)), limits.constraint_characters)
            return structural_tags(where, value)
        if meaning == "choice":
            return Regex(_choice(where, value, limits), match="fullmatch", name="one of the choices")
        if not isinstance(value, str) or not value:
            raise bad(where, "give a string")
        _require_size(where, len(value), limits.pattern_characters)
        if meaning == "regex":
            return Regex(value, match="fullmatch", name="the regular expression")
        if "::=" in value:
            raise bad(where, "this is GBNF or EBNF (rules with ::=); write the grammar in Lark's EBNF: start: ...")
        return Grammar(value, name="the grammar")
    except GuardwrapError as error:
        raise in_field(where, error) from None


def _schema(where: str, value: Any, limits: ServerLimits, *, compact: bool) -> Structure:
    if isinstance(value, str):  # vLLM accepts JSON text as well
        _require_size(where, len(value), limits.constraint_characters)
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise bad(where, "this string is not JSON; give the schema as an object") from None
    if not isinstance(value, dict | bool):
        raise bad(where, "give a JSON Schema: an object, true or false")
    _require_size(where, len(json.dumps(value)), limits.constraint_characters)
    return JSONSchema(value, whitespace="compact" if compact else "any", name="the JSON Schema")


def _choice(where: str, value: Any, limits: ServerLimits) -> str:
    if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
        raise bad(where, "give a list of strings")
    _require_size(where, sum(map(len, value)), limits.pattern_characters)
    return f"(?:{'|'.join(map(regex.escape, value))})"


def _require_size(where: str, size: int, most: int) -> None:
    if size > most:
        raise bad(where, f"has {size} characters; this server accepts at most {most}", code="above_the_limit")
