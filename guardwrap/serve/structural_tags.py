"""vLLM's structural tags: text in which some strings begin a tag, whose content follows a schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import regex

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.combinators import All
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.kinds.text import Regex
from guardwrap.constraints.text_parts import Part
from guardwrap.documents.yaml_nodes import short
from guardwrap.serve.error_responses import bad

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
    if unknown := [name for name in fields if name not in known and fields[name] not in (None, [])]:
        raise bad(where, f"unknown field {short(unknown[0])}; known: {', '.join(known)}")
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
