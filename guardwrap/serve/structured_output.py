"""Constraints from the structured output fields of OpenAI's and vLLM's APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import regex

from guardwrap.constraints.base import All, Constraint
from guardwrap.constraints.grammar.grammar import Grammar
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.kinds.text import Regex
from guardwrap.constraints.views import Part
from guardwrap.documents.yaml_nodes import short
from guardwrap.errors import GuardwrapError, nearest
from guardwrap.serve.error_responses import bad, in_field
from guardwrap.serve.fields import require_fields, require_size
from guardwrap.serve.server_settings import ServerLimits

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
    require_fields(value, where, ("type", *more))
    if shape == "json_object" and value.get("schema") is not None:
        yield _meant(f"{where}.schema", "json", value["schema"], limits)
    elif shape == "json_object":
        yield _meant(where, "json_object", True, limits)
    if shape == "json_schema":
        wrapper = value.get("json_schema")
        if not isinstance(wrapper, dict) or wrapper.get("schema") is None:
            raise bad(f"{where}.json_schema", "the field schema is missing; give the JSON Schema there")
        require_fields(wrapper, f"{where}.json_schema", _SCHEMA_FIELDS)
        yield _meant(f"{where}.json_schema.schema", "json", wrapper["schema"], limits)


def _structured_outputs(value: Any, limits: ServerLimits) -> Structure:
    where = "structured_outputs"
    if not isinstance(value, dict):
        raise bad(where, f"give an object with one of {', '.join(_MEANINGS)}")
    fields = {name: each for name, each in value.items() if each is not None}
    require_fields(fields, where, (*_MEANINGS, "disable_any_whitespace"))
    compact = fields.pop("disable_any_whitespace", False)
    if not isinstance(compact, bool):
        raise bad(f"{where}.disable_any_whitespace", "give true or false")
    if len(fields) != 1:
        raise bad(where, f"give one of {', '.join(_MEANINGS)}")
    ((meaning, content),) = fields.items()
    return _meant(f"{where}.{meaning}", meaning, content, limits, compact=compact)


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
            require_size(where, len(json.dumps(value)), limits.constraint_characters)
            return structural_tags(where, value)
        if meaning == "choice":
            return Regex(_choice(where, value, limits), match="fullmatch", name="one of the choices")
        if not isinstance(value, str) or not value:
            raise bad(where, "give a string")
        require_size(where, len(value), limits.pattern_characters)
        if meaning == "regex":
            return Regex(value, match="fullmatch", name="the regular expression")
        if "::=" in value:
            raise bad(where, "this is GBNF or EBNF (rules with ::=); write the grammar in Lark's EBNF: start: ...")
        return Grammar(value, name="the grammar")
    except GuardwrapError as error:
        raise in_field(where, error) from None


def _schema(where: str, value: Any, limits: ServerLimits, *, compact: bool) -> Structure:
    if isinstance(value, str):  # vLLM accepts JSON text as well
        require_size(where, len(value), limits.constraint_characters)
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise bad(where, "this string is not JSON; give the schema as an object") from None
    if not isinstance(value, dict | bool):
        raise bad(where, "give a JSON Schema: an object, true or false")
    require_size(where, len(json.dumps(value)), limits.constraint_characters)
    return JSONSchema(value, whitespace="compact" if compact else "any", name="the JSON Schema")


def _choice(where: str, value: Any, limits: ServerLimits) -> str:
    if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
        raise bad(where, "give a list of strings")
    require_size(where, sum(map(len, value)), limits.pattern_characters)
    return f"(?:{'|'.join(map(regex.escape, value))})"


_MOST = 64
"""Maximum number of tags, and of triggers."""

_FLAGS = ("at_least_one", "stop_after_first")


class _Tag(NamedTuple):
    begin: str
    schema: Any
    end: str


def structural_tags(where: str, value: Any) -> All:
    """Return the constraint for structural tags, in vLLM's older form or as ``triggered_tags``.

    Every trigger in the text begins a tag, every tag ends, and what is between is JSON that satisfies the tag's schema.
    A tag ends at the first occurrence of its end, so its JSON must not contain that string.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise bad(where, "this string is not JSON; give the structural tag as an object") from None
    fields = _object(value, where)
    if "format" in fields:
        where, fields = f"{where}.format", _object(fields["format"], f"{where}.format")
        if fields.get("type") != "triggered_tags":
            raise bad(f"{where}.type", "only triggered_tags are supported; use a grammar for other formats")
        tags = [_tag(tag, f"{where}.tags.{i}") for i, tag in enumerate(_list(fields, "tags", where))]
        known: tuple[str, ...] = ("type", "triggers", "tags", *_FLAGS)
    else:
        tags = [_structure(tag, f"{where}.structures.{i}") for i, tag in enumerate(_list(fields, "structures", where))]
        known = ("type", "triggers", "structures")
    require_fields([name for name, value in fields.items() if value not in (None, [])], where, known)
    for name in _FLAGS:
        if not isinstance(fields.get(name, False), bool):
            raise bad(f"{where}.{name}", "give true or false")
    return _constraint(where, tags, _triggers(fields, where), {name: fields.get(name, False) for name in _FLAGS})


def _constraint(where: str, tags: list[_Tag], triggers: list[str], flags: Mapping[str, bool]) -> All:
    begins = [tag.begin for tag in tags]
    for i, begin in enumerate(begins):
        if any(other.startswith(begin) for other in begins[:i] + begins[i + 1 :]):
            raise bad(where, "a tag begins like another one, so it is unclear which schema applies")
        if not any(begin.startswith(trigger) for trigger in triggers):
            raise bad(where, "a tag begins with none of the triggers, so it would never be enforced")
    parts: list[Constraint] = []
    for begin, schema, end in tags:
        between = Part(between=(begin, end), missing="pass")
        parts.append(JSONSchema(schema, on=between, name=f"the tag {short(begin)}"))
        unended = f"(?s){regex.escape(begin)}(?!.*{regex.escape(end)})"
        parts.append(~Regex(unended, name=f"the end of the tag {short(begin)}"))
    for trigger in triggers:
        rests = "|".join(regex.escape(begin[len(trigger) :]) for begin in begins if begin.startswith(trigger))
        parts.append(~Regex(f"{regex.escape(trigger)}(?!{rests})", name=f"a tag for {short(trigger)}"))
    if flags["at_least_one"]:
        parts.append(Regex("|".join(map(regex.escape, begins)), name="a tag"))
    if flags["stop_after_first"]:
        whole = "|".join(f"{regex.escape(begin)}.*?{regex.escape(end)}" for begin, _, end in tags)
        parts.append(~Regex(f"(?s)(?:{whole}).", name="text after the first tag"))
    return All(parts)


def _tag(value: Any, where: str) -> _Tag:
    fields = _object(value, where)
    content = _object(fields.get("content"), f"{where}.content")
    if content.get("type") != "json_schema":
        raise bad(f"{where}.content.type", "only json_schema is supported")
    end = fields.get("end")
    end = end[0] if isinstance(end, list) and len(end) == 1 else end
    return _Tag(_string(fields, "begin", where), content.get("json_schema"), _string({"end": end}, "end", where))


def _structure(value: Any, where: str) -> _Tag:
    fields = _object(value, where)
    return _Tag(_string(fields, "begin", where), fields.get("schema"), _string(fields, "end", where))


def _triggers(fields: Mapping[str, Any], where: str) -> list[str]:
    triggers = _list(fields, "triggers", where)
    return [_string({"triggers": trigger}, "triggers", where) for trigger in triggers]


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad(where, "give an object")
    return value


def _list(fields: Mapping[str, Any], name: str, where: str) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list) or not 0 < len(value) <= _MOST:
        raise bad(f"{where}.{name}", f"give a list of at least one and at most {_MOST}")
    return value


def _string(fields: Mapping[str, Any], name: str, where: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise bad(f"{where}.{name}", "give a string that is not empty")
    return value
