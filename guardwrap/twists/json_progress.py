"""How far a text has come as JSON that is valid under a schema.

The automaton is coarse: it ignores limits on numbers, ``pattern``, ``format``, ``uniqueItems`` and other conditions
that are not about the structure, the halves of surrogate pairs, and other spellings of the values of an ``enum``. Of
values that a schema leaves free it follows two levels. Of more than six required keys it only counts how many declared
ones have been written, and keys that are not required may come twice if there are more than five.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.json.references import pointer_keys
from guardwrap.constraints.verdicts import Progress
from guardwrap.support.time_limits import check_deadline
from guardwrap.twists.automata import TooManyStates
from guardwrap.twists.pattern_programs import Unsupported

_TRACKED, _OPTIONAL = 6, 5
"""The most required keys of an object that are kept apart, and the most keys of which also the others are."""

_BETWEEN = frozenset({"value", "first item", "first key", "key", "colon", "after", "end"})
"""The modes in which there may be white space."""

_NUMBER = {
    "-": {"0": "0", "digit": "whole"},
    "0": {".": ".", "e": "e"},
    "whole": {"0": "whole", "digit": "whole", ".": ".", "e": "e"},
    ".": {"0": "fraction", "digit": "fraction"},
    "fraction": {"0": "fraction", "digit": "fraction", "e": "e"},
    "e": {"0": "power", "digit": "power", "-": "sign", "+": "sign"},
    "sign": {"0": "power", "digit": "power"},
    "power": {"0": "power", "digit": "power"},
}
"""The part of a number that a character leads to."""

_COMPLETE = frozenset({"0", "whole", "fraction", "power"})
_DIGITS = frozenset("123456789")
_WORDS = {word[0]: word for word in ("true", "false", "null")}
_HEX = frozenset("0123456789abcdefABCDEF")
_ESCAPED = frozenset('"\\/bfnrt')


class _Frame(NamedTuple):
    """An open object or array."""

    node: int  # the number of its node
    is_object: bool  # whether it is an object
    seen: int = 0  # of an array the number of items so far, of an object which keys there have been


class _State(NamedTuple):
    """A place in a JSON text."""

    frames: tuple[_Frame, ...]  # the open objects and arrays, the outermost first
    mode: str  # what is expected, or being read
    detail: Any = None  # the node of what is expected; what has been read of a key or value; the length of a string
    escape: int = 0  # in a key or string, how far an escape has been read; 0 outside of escapes
    gap: bool = False  # whether a compact text may have a space here


def json_progress(constraint: JSONSchema) -> Progress:
    """Return the automaton of JSON that is valid under a schema."""
    reader = JSONNodeReader(constraint.schema)
    top = reader.read()
    text = _JSONText(tuple(reader.nodes), constraint.whitespace == "compact", constraint.order == "schema")

    def satisfied(state: _State | None, ended: bool) -> bool:
        return state is not None and not state.frames and text.is_complete(state)

    return Progress(_State((), "value", top), text.kinds, text.kind_of, text.step, satisfied)


@dataclass(frozen=True, eq=False)
class _JSONText:
    """Steps through JSON texts."""

    nodes: tuple[JSONNode, ...]  # the nodes of the schema
    compact: bool  # whether white space is forbidden, except single spaces after colons and commas
    ordered: bool  # whether declared keys must come in the order of the schema

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of characters: those of the syntax, of keys and of enums, and some others."""
        words = [key for node in self.nodes for key, _ in node.properties]
        words += [text for node in self.nodes for text in node.texts]
        single = dict.fromkeys('{}[]",:\\ 0-+.eEutrfalsnb/' + "".join(words))
        return (*(char for char in single if char >= " "), "digit", "hex", "break", "control", "other")

    @cached_property
    def _single(self) -> frozenset[str]:
        return frozenset(kind for kind in self.kinds if len(kind) == 1)

    def kind_of(self, char: str) -> str:
        """Return the kind of a character."""
        if char in self._single:
            return char
        if char in "\t\n\r":
            return "break"
        if char < " ":
            return "control"
        return "digit" if char in _DIGITS else "hex" if char in _HEX else "other"

    def is_complete(self, state: _State) -> bool:
        """Whether the value that is being read, or was read, may end here."""
        if state.mode in ("number", "integer"):
            return state.detail in _COMPLETE
        if state.mode == "text":
            number, begun = state.detail
            return begun in self.nodes[number].texts
        return state.mode in ("after", "end")

    def step(self, state: _State | None, kind: str) -> _State | None:
        """Return the state after a character; None if no valid text begins so."""
        if state is None:
            return None
        frames, mode, detail, _, gap = state
        if mode in _BETWEEN:
            if kind in (" ", "break"):
                if not self.compact:
                    return state
                return state._replace(gap=False) if gap and kind == " " else None
            return self._value(frames, detail, kind) if mode == "value" else self._between(state, kind)
        if mode in ("string", "name"):
            return self._in_quotes(state, kind)
        if mode == "word":
            rest = detail[1:]
            return None if detail[0] != kind else _State(frames, mode, rest) if rest else _after(frames)
        longer = self._longer(state, kind)
        if longer is not None or not self.is_complete(state):
            return longer
        return self.step(_after(frames), kind)

    def _longer(self, state: _State, kind: str) -> _State | None:
        """Read a character of a number, or of a value that is spelled out; None if it is not one."""
        if state.mode == "text":
            number, begun = state.detail
            return self._spelled(state.frames, number, begun + kind)
        name = "digit" if kind in _DIGITS else "e" if kind == "E" else kind
        part = _NUMBER[state.detail].get(name)
        wrong = part is None or (state.mode == "integer" and part in (".", "e"))
        return None if wrong else state._replace(detail=part)

    def _spelled(self, frames: Frames, number: int, begun: str) -> _State | None:
        longer = [text for text in self.nodes[number].texts if text.startswith(begun)]
        if longer == [begun]:
            return _after(frames)
        return _State(frames, "text", (number, begun)) if longer else None

    def _value(self, frames: Frames, number: int, kind: str) -> _State | None:
        """Read the first character of a value."""
        types = self.nodes[number].types
        if kind == '"' and "string" in types:
            return _State(frames, "string", (number, 0))
        if kind == "{" and "object" in types:
            return _State((*frames, _Frame(number, True)), "first key")
        if kind == "[" and "array" in types:
            return _State((*frames, _Frame(number, False)), "first item")
        if kind in _WORDS and _WORDS[kind] in types:
            return _State(frames, "word", _WORDS[kind][1:])
        if (kind in ("-", "0", "digit") or kind in _DIGITS) and types & {"number", "integer"}:
            part = kind if kind in ("-", "0") else "whole"
            return _State(frames, "number" if "number" in types else "integer", part)
        return self._spelled(frames, number, kind)

    def _between(self, state: _State, kind: str) -> _State | None:
        """Read a character between values."""
        frames, mode = state.frames, state.mode
        if mode == "colon":
            return _State(frames, "value", state.detail, gap=True) if kind == ":" else None
        if mode == "end":
            return None
        number, is_object, seen = frames[-1]
        if mode in ("first key", "key") and kind == '"':
            return _State(frames, "name", "")
        if mode == "key":
            return None
        if kind == ("}" if is_object else "]"):
            node = self.nodes[number]
            complete = self._is_whole(number, seen) if is_object else seen >= node.fewest
            return _after(frames[:-1]) if complete else None
        if mode == "after" and kind == "," and is_object:
            return _State(frames, "key", gap=True)
        if not is_object and (mode == "first item") != (kind == ","):
            item, after = self._item(frames)
            if item is None or kind != ",":
                return None if item is None else self._value(after, item, kind)
            return _State(after, "value", item, gap=True)
        return None

    def _item(self, frames: Frames) -> tuple[int | None, Frames]:
        """Return the node of the next item, None if there can be none, and the frames within it."""
        frame = frames[-1]
        node = self.nodes[frame.node]
        if node.most is not None and frame.seen >= node.most:
            return None, frames
        enough = max(len(node.items), node.fewest, node.most or 0)
        item = node.items[frame.seen] if frame.seen < len(node.items) else node.rest
        return item, (*frames[:-1], frame._replace(seen=min(enough, frame.seen + 1)))

    def _in_quotes(self, state: _State, kind: str) -> _State | None:
        """Read a character of a key or a string."""
        frames, mode, detail, escape, _ = state
        if escape == 0 and kind == '"':
            return self._named(frames, detail) if mode == "name" else self._closed_string(frames, *detail)
        if escape == 0 and kind == "\\":
            return state._replace(escape=1)
        if kind in ("break", "control"):
            return None
        if escape == 1 and kind == "u":
            return state._replace(escape=2)
        if escape and not (kind in _ESCAPED if escape == 1 else kind in _HEX or kind in ("digit", "hex")):
            return None
        if 2 <= escape < 5:
            return state._replace(escape=escape + 1)
        if mode == "name":
            # A key with an escape is taken for one that is not declared.
            longer = None if escape or detail is None else detail + kind
            return self._begun_name(frames, longer)
        number, length = detail
        node = self.nodes[number]
        if node.longest is not None and length == node.longest:
            return None
        return _State(frames, mode, (number, min(max(node.shortest, node.longest or 0), length + 1)))

    def _closed_string(self, frames: Frames, number: int, length: int) -> _State | None:
        return _after(frames) if length >= self.nodes[number].shortest else None

    def _begun_name(self, frames: Frames, begun: str | None) -> _State | None:
        """Return the state within a key; ``begun``: None if it is not a declared one."""
        number, _, seen = frames[-1]
        declared = begun is not None and any(key.startswith(begun) for key in self._keys(number, seen))
        if not declared and self.nodes[number].others is None:
            return None
        known = (
            begun if begun is not None and any(k.startswith(begun) for k, _ in self.nodes[number].properties) else None
        )
        return _State(frames, "name", known)

    def _named(self, frames: Frames, name: str | None) -> _State | None:
        """Return the state after a key."""
        number, _, seen = frames[-1]
        node = self.nodes[number]
        if name in dict(node.properties):
            if name not in self._keys(number, seen):
                return None
            seen, child = self._keys(number, seen)[name]
            return _State((*frames[:-1], frames[-1]._replace(seen=seen)), "colon", child)
        return None if node.others is None else _State(frames, "colon", node.others)

    def _keys(self, number: int, seen: int) -> dict[str, tuple[int, int]]:
        """Return the declared keys that may come next, each with what has been seen after it, and its value's node."""
        if (number, seen) not in self._known_keys:
            self._known_keys[number, seen] = self._next_keys(self.nodes[number], seen)
        return self._known_keys[number, seen]

    @cached_property
    def _known_keys(self) -> dict[tuple[int, int], dict[str, tuple[int, int]]]:
        return {}

    def _next_keys(self, node: JSONNode, seen: int) -> dict[str, tuple[int, int]]:
        if self.ordered:
            ahead = list(enumerate(node.properties))[seen:]
            stop = next((place for place, (key, _) in ahead if key in node.required), len(node.properties))
            return {key: (place + 1, child) for place, (key, child) in ahead if place <= stop}
        if len(node.required) > _TRACKED:
            return {key: (min(len(node.required), seen + 1), child) for key, child in node.properties}
        tracked = _tracked(node)
        bits = {key: 1 << tracked.index(key) if key in tracked else 0 for key, _ in node.properties}
        return {key: (seen | bits[key], child) for key, child in node.properties if not seen & bits[key]}

    def _is_whole(self, number: int, seen: int) -> bool:
        """Whether an object has its required keys."""
        node = self.nodes[number]
        if self.ordered:
            return not any(key in node.required for key, _ in node.properties[seen:])
        if len(node.required) > _TRACKED:
            return seen >= len(node.required)
        return all(seen >> place & 1 for place, key in enumerate(_tracked(node)) if key in node.required)


Frames = tuple[_Frame, ...]


def _after(frames: Frames) -> _State:
    """Return the state after a value."""
    return _State(frames, "after" if frames else "end")


def _tracked(node: JSONNode) -> list[str]:
    """Return the keys of an object that are kept apart when they have been written."""
    every = len(node.properties) <= _OPTIONAL
    return [key for key, _ in node.properties if every or key in node.required]


# -------------------------------------------------------------------------------------------------------------- schemas


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
