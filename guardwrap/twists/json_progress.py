"""How far a text has come as JSON that is valid under a schema.

The automaton is coarse: it ignores limits on numbers, ``pattern``, ``format``, ``uniqueItems`` and other conditions
that are not about the structure, the halves of surrogate pairs, and other spellings of the values of an ``enum``. Of
values that a schema leaves free it follows two levels. Of more than six required keys it only counts how many declared
ones have been written, and keys that are not required may come twice if there are more than five.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.twists.automata import Progress
from guardwrap.twists.json_nodes import JSONNode, JSONNodeReader

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
