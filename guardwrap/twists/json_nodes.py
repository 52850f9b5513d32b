"""What an automaton of JSON knows of a schema: for each kind of value, what may be in it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from guardwrap.constraints.json.references import pointer_keys
from guardwrap.documents.time_limits import check_deadline
from guardwrap.twists.automata import TooManyStates
from guardwrap.twists.pattern_programs import Unsupported

MOST_NODES, MOST_DEPTH, FREE_DEPTH = 400, 8, 2
"""The most nodes and levels of a schema, and the most levels of values that a schema leaves free."""

_LONGEST = 100
"""The most characters of a string and items of an array that are counted."""

_SCALARS = frozenset({"string", "number", "true", "false", "null"})
_ANY = _SCALARS | {"object", "array"}
_TYPES = {"boolean": {"true", "false"}}
_UNIONS = ("anyOf", "oneOf")
_APPLICATORS = ("if", "not", "dependentSchemas", "$dynamicRef", "$recursiveRef")
_NOTES = {"title", "description", "default", "examples", "$comment", "$defs", "definitions", "$schema", "$id"}


class JSONNode(NamedTuple):
    """The values that one schema allows."""

    # the types of values: those of JSON, with ``"integer"``, ``"true"`` and ``"false"``
    types: frozenset[str] = frozenset()
    texts: tuple[str, ...] = ()  # further values, as they are written
    shortest: int = 0  # limits on the characters of strings; ``longest`` is None if it is not counted
    longest: int | None = None
    properties: tuple[tuple[str, int], ...] = ()  # declared keys, each with the number of its value's node
    required: frozenset[str] = frozenset()  # the keys that an object must have
    others: int | None = None  # the node of other keys' values; None if there may be none
    items: tuple[int, ...] = ()  # the nodes of an array's first items
    rest: int | None = None  # the node of further items; None if there may be none
    fewest: int = 0  # limits on the number of items; ``most`` is None if it is not counted
    most: int | None = None


@dataclass
class JSONNodeReader:
    """Reads a schema into nodes."""

    schema: Any
    nodes: list[JSONNode] = field(default_factory=list)
    _numbers: dict[JSONNode, int] = field(default_factory=dict)

    def read(self) -> int:
        """Read the schema and return the number of its node."""
        return self._add(self._node(self.schema, ()))

    def _add(self, node: JSONNode) -> int:
        if node not in self._numbers:
            check_deadline()
            if len(self.nodes) == MOST_NODES:
                raise TooManyStates
            self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
        return self._numbers[node]

    def _free(self, depth: int = FREE_DEPTH) -> int:
        """Return the number of a node for any value with so many levels."""
        if not depth:
            return self._add(JSONNode(_SCALARS))
        below = self._free(depth - 1)
        return self._add(JSONNode(_ANY, others=below, rest=below))

    def _child(self, schema: Any, path: tuple[str, ...]) -> int | None:
        """Return the number of a subschema's node; None if it allows nothing."""
        if len(path) > MOST_DEPTH:
            raise TooManyStates
        return None if schema is False else self._add(self._node(schema, (*path, "")))

    def _node(self, schema: Any, path: tuple[str, ...]) -> JSONNode:
        """Return the node of a schema; ``path`` has the references that lead to it, and "" for each level."""
        check_deadline()
        if schema is False:
            return JSONNode()
        if not isinstance(schema, dict) or not schema.keys() - _NOTES:
            return self.nodes[self._free()]
        reference = schema.get("$ref")
        if reference is not None:
            if reference in path:
                raise Unsupported
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            target = self._target(reference)
            merged = {**target, **rest} if isinstance(target, dict) else target
            return self._node(merged, (*path, reference))
        if any(name in schema for name in _APPLICATORS):
            raise Unsupported
        for name in ("allOf", *_UNIONS):
            if name in schema:
                return self._combined(schema, name, path)
        if "const" in schema or "enum" in schema:
            values = [schema["const"]] if "const" in schema else schema["enum"]
            if any(isinstance(value, dict | list) for value in values):
                raise Unsupported
            return JSONNode(texts=tuple(json.dumps(value, ensure_ascii=False) for value in values))
        return self._typed(schema, path)

    def _combined(self, schema: dict[str, Any], name: str, path: tuple[str, ...]) -> JSONNode:
        """Return the node of one of several schemas whose values are of different types."""
        rest = {key: value for key, value in schema.items() if key != name and key not in _NOTES}
        branches = schema[name]
        if len(branches) == 1 and isinstance(branches[0], dict) and not rest.keys() & branches[0].keys():
            return self._node({**rest, **branches[0]}, path)
        if name == "allOf" or rest.keys() - {"type"}:
            raise Unsupported
        whole = JSONNode()
        for branch in branches:
            node = self._node(branch, path)
            if node.types & whole.types or {"number", "integer"} <= node.types | whole.types:
                raise Unsupported
            objects, arrays, strings = (node if name in node.types else whole for name in ("object", "array", "string"))
            whole = JSONNode(
                whole.types | node.types,
                (*whole.texts, *node.texts),
                strings.shortest,
                strings.longest,
                objects.properties,
                objects.required,
                objects.others,
                arrays.items,
                arrays.rest,
                arrays.fewest,
                arrays.most,
            )
        return whole

    def _typed(self, schema: dict[str, Any], path: tuple[str, ...]) -> JSONNode:
        names = schema.get("type", sorted(_ANY))
        types = frozenset().union(
            *(_TYPES.get(name, {name}) for name in ([names] if isinstance(names, str) else names))
        )
        longest, most = schema.get("maxLength"), schema.get("maxItems")
        node = JSONNode(
            types - {"integer"} if "number" in types else types,
            shortest=min(_LONGEST, int(schema.get("minLength", 0))),
            longest=int(longest) if longest is not None and longest <= _LONGEST else None,
            fewest=min(_LONGEST, int(schema.get("minItems", 0))),
            most=int(most) if most is not None and most <= _LONGEST else None,
        )
        if "object" in types:
            if any(char in '"\\' or char < " " for key in schema.get("properties", ()) for char in key):
                raise Unsupported  # such keys are written with escapes
            children = {key: self._child(value, path) for key, value in schema.get("properties", {}).items()}
            required = frozenset(schema.get("required", ()))
            for key in required - children.keys():
                children[key] = self._child(schema.get("additionalProperties", True), path)
            if any(children[key] is None for key in required):
                return node._replace(types=node.types - {"object"})
            others = True if "patternProperties" in schema else schema.get("additionalProperties", True)
            allowed = tuple((key, child) for key, child in children.items() if child is not None)
            node = node._replace(properties=allowed, required=required, others=self._child(others, path))
        if "array" in types:
            items, rest = schema.get("prefixItems", ()), schema.get("items", True)
            if isinstance(rest, list):  # as in older drafts
                items, rest = rest, schema.get("additionalItems", True)
            first = tuple(self._child(item, path) for item in items)
            if any(child is None for child in first):
                raise Unsupported
            node = node._replace(items=first, rest=self._child(rest, path))  # type: ignore[arg-type]
        return node

    def _target(self, reference: Any) -> Any:
        """Return what a reference within the schema refers to."""
        if not isinstance(reference, str) or not reference.startswith("#") or reference[1:2] not in ("", "/"):
            raise Unsupported
        schema = self.schema
        for key in pointer_keys(reference[1:]) if len(reference) > 1 else ():
            if not isinstance(schema, dict) or key not in schema:
                raise Unsupported
            schema = schema[key]
        return schema
