"""YAML to plain JSON types and back, with limits on size, depth and time, since anyone may have written a file.

This uses PyYAML's parser in Python. The C parser in most builds of PyYAML does not have the same messages, and within
these limits the Python one takes at most 1.5 seconds, even for the worst files.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import yaml

from guardwrap.errors import ForeignFile, SpecError
from guardwrap.support.limits import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_DIRECTIVES,
    MAX_FILES,
    MAX_NUMBER,
    MAX_VALUES,
    irregular,
    loading,
)
from guardwrap.support.time_limits import OutOfTime, TimeLimit, check_deadline

_being_read: ContextVar[tuple[str, ...]] = ContextVar("_being_read", default=())
"""Paths of the file that is being read (the last one) and of the files through which it was reached."""


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Context for reading one file within its limits; exceeding the time limit raises SpecError."""
    outer = _being_read.set((path,))
    try:
        with loading():
            yield
    except TimeLimit as limit:
        raise SpecError(f"{path}: reading it takes more than {limit.seconds:g} s; make it smaller") from None
    finally:
        _being_read.reset(outer)


@contextmanager
def reading_too(path: Path) -> Iterator[None]:
    """Context for reading a file to which the current one refers. Both share the limits of the current one."""
    files = _being_read.get()
    if any(_is_same(path, other) for other in files):
        raise SpecError(f"{str(path)!r} refers to itself through the files that it names; remove one of the references")
    if len(files) > MAX_FILES:
        raise SpecError(f"files refer to one another more than {MAX_FILES} levels deep; write the constraint out")
    outer = _being_read.set((*files, str(path)))
    try:
        yield
    finally:
        _being_read.reset(outer)


def _is_same(path: Path, other: str) -> bool:
    try:
        return path.samefile(other)
    except (OSError, ValueError):  # one of them does not exist
        return False


def path_beside(name: str) -> Path:
    """Return a file name as a path relative to the folder of the file that is being read, if one is being read."""
    files = _being_read.get()
    return Path(files[-1]).parent / name if files else Path(name)


def read_text(path: str | Path) -> str:
    """Read a UTF-8 text file of at most ``MAX_BYTES``; raise SpecError if that is not possible."""
    if what := irregular(path):
        raise SpecError(f"cannot read {str(path)!r}: it is {what}; give a regular file")
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
        text = raw[:MAX_BYTES].decode("utf-8") if len(raw) > MAX_BYTES else raw.decode("utf-8")
    except UnicodeDecodeError:
        # The limit may have cut a character in two, so report the size first.
        if len(raw) > MAX_BYTES:
            raise SpecError(f"{path}: larger than {MAX_BYTES} bytes") from None
        raise SpecError(f"{path}: not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MAX_BYTES:
        raise SpecError(f"{path}: larger than {MAX_BYTES} bytes")
    return text


class _Loader(yaml.SafeLoader):
    """YAML 1.1 with only ``true`` and ``false`` as booleans: ``on`` is a field here, and ``yes`` and ``no`` are words.

    Stops at a file that is nested too deeply, holds too many values or takes too long.
    """

    path = ""
    depth = 0
    nodes = 0
    directives = 0
    quoted: tuple[Any, Any] | None = None
    """Start and end of the last quoted value that spans several lines."""

    def get_event(self) -> yaml.Event:
        event: yaml.Event = super().get_event()  # type: ignore[no-untyped-call]
        self.nodes += isinstance(event, yaml.NodeEvent)
        begin, end = event.start_mark, event.end_mark
        if isinstance(event, yaml.ScalarEvent) and event.style in ("'", '"') and begin and end:
            self.quoted = (begin, end) if end.line > begin.line else self.quoted
        self.depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if self.depth > MAX_DEPTH:
            raise SpecError(f"{self.path}:{_mark(event)}: nested deeper than {MAX_DEPTH} levels")
        if self.nodes > 2 * MAX_VALUES:  # each value has at most one key
            raise SpecError(f"{self.path}:{_mark(event)}: more than {MAX_VALUES} values")
        return event

    def fetch_more_tokens(self) -> None:
        check_deadline()
        super().fetch_more_tokens()

    def fetch_directive(self) -> None:
        self.directives += 1
        if self.directives > MAX_DIRECTIVES:
            raise SpecError(f"{self.path}: more than {MAX_DIRECTIVES} directives")
        super().fetch_directive()


_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, expression) for tag, expression in resolvers if tag != _BOOL]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile("(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF"))


def compose(text: str, path: str, needed: str) -> yaml.Node:
    """Parse YAML to nodes, which have line numbers."""
    loader = None
    try:
        loader = _Loader(text)
        loader.path = path
        root = loader.get_single_node()
    except (SpecError, OutOfTime):
        raise
    except Exception as error:  # hostile escapes and directives make PyYAML raise ValueError, OverflowError and others
        raise SpecError(f"{path}{_explained(error, text, loader)}") from None
    if root is None:
        raise ForeignFile(f"{path}: empty file; {needed}")
    return root


_PLAIN = {
    "<block end>, but found '<scalar>'": "text after the closing quote or bracket of a value: put the whole value in "
    "quotes",
    "expected <block end>": "this line does not align with a line above it: indent it like the rest of its list or "
    "mapping",
    "mapping values are not allowed here": "unexpected colon: indent this line like the rest of its mapping, and put a "
    "value that contains ': ' in quotes",
    "found character '\\t'": "a tab: indent with spaces",
    "found unknown escape character": "a backslash in double quotes begins an escape: put the value in single quotes",
    "found undefined alias": "a value that begins with * refers to another value: put it in quotes",
    "that cannot start any token": "a value cannot begin with this character: put it in quotes",
}
"""Frequent mistakes: part of PyYAML's message, and the message that users get instead."""

_OPEN = (
    "the {} that begins here is not closed, or a comma is missing; inside it, put values in quotes that contain one of "
    ", : ? [ ] {{ }} or begin with #"
)
_BEGUN = {
    "found unexpected end of stream": "a quote that begins here is not closed",
    "expected ',' or ']'": _OPEN.format("["),
    "expected ',' or '}'": _OPEN.format("{"),
    "could not find expected ':'": "a key without its colon",
}
"""Mistakes that PyYAML notices only after the line where they are, which its ``context_mark`` has."""


def _explained(error: Exception, text: str, loader: _Loader | None) -> str:
    """Return the line of a mistake that PyYAML reports, and an explanation in plain words if it is a frequent one."""
    seen, begun = (getattr(error, name, None) for name in ("problem_mark", "context_mark"))
    problem = one_line(getattr(error, "problem", None) or getattr(error, "context", None) or error)
    early = next((words for part, words in _BEGUN.items() if part in problem and begun), None)
    words = early or next((words for part, words in _PLAIN.items() if part in problem), problem)
    mark = begun if early else seen or begun
    if mark is None or loader is None:
        return f": malformed YAML: {words}"
    line, quoted = mark.line, loader.quoted
    if loader.flow_level and loader.marks and problem.startswith("expected the node content"):
        line, words = loader.marks[-1].line, _OPEN.format("[ or {")
    elif quoted is not None and seen is not None and quoted[1].line == seen.line:
        line, words = quoted[0].line, "a quote that begins here is not closed on the same line"
    else:
        lines = text.splitlines()
        for at in (line, line - 1):
            lacks = next(
                (what for what, form in _LACKS.items() if 0 <= at < len(lines) and form.match(lines[at])), None
            )
            if lacks is not None:
                line, words = at, f"a space is missing after {lacks} in this line"
                break
    return f":{line + 1}: malformed YAML: {words}"


_LACKS = {"the -": re.compile(r"\s*-[A-Za-z_]+:(\s|$)"), "the colon": re.compile(r"\s*(- +)?[A-Za-z_]+:[^\s:/]")}
"""Patterns of lines in which a space is missing, by the character that it must follow."""


def _mark(parsed: yaml.Node | yaml.Event) -> int:
    return parsed.start_mark.line + 1 if parsed.start_mark else 1


class NodeReader:
    """Converts nodes to JSON types and expands aliases.

    Rejects alias bombs, cycles, duplicate keys, merge keys, keys that are not strings, and the YAML types that JSON
    lacks: dates, sets, binary data, infinities, objects.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.loader = _Loader("")  # converts scalars
        self.values = 0
        self.characters = 0
        self.parents: list[yaml.Node] = []
        self.notes: list[str] = []
        """Remarks on values that YAML 1.1 reads otherwise than most people."""

    def _error(self, node: yaml.Node, message: str) -> SpecError:
        return SpecError(f"{self.path}:{_mark(node)}: {message}")

    def read(self, node: yaml.Node) -> Any:
        """Return the value of a node; raise SpecError if it cannot be converted."""
        self.values += 1
        if self.values > MAX_VALUES:
            raise SpecError(f"{self.path}: more than {MAX_VALUES} values, with aliases expanded")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if any(parent is node for parent in self.parents):
            raise self._error(node, "an alias refers to a value that contains it")
        if len(self.parents) >= MAX_DEPTH:
            raise self._error(node, f"nested deeper than {MAX_DEPTH} levels, with aliases expanded")
        kind = "map" if isinstance(node, yaml.MappingNode) else "seq"
        if node.tag != f"tag:yaml.org,2002:{kind}":
            raise self._error(node, f"a YAML {_tag(node)} is not supported")
        self.parents.append(node)
        value: Any = (
            self._mapping(node) if isinstance(node, yaml.MappingNode) else [self.read(child) for child in node.value]
        )
        self.parents.pop()
        return value

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise self._error(key, "merge keys (<<) are not supported; write the fields out")
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                alone = isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode) and not value.value
                if alone and node.flow_style and key.value:  # {200}
                    raise self._error(key, f"expected {{name: value}}, got only {short(key.value)}")
                raise self._error(key, "a key must be a string; put it in quotes")
            name = self._scalar(key)
            if name in mapping:
                first = next(other for other, _ in node.value if other.value == key.value)
                how = f"first in line {_mark(first)}; indent it if it belongs elsewhere, or begin a list item with '- '"
                raise self._error(key, f"duplicate key {short(name)}, {how}")
            mapping[name] = self.read(value)
        return mapping

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        kind = _tag(node)
        self.characters += len(node.value)
        if self.characters > MAX_BYTES:
            raise SpecError(f"{self.path}: more than {MAX_BYTES} characters, with aliases expanded")
        if kind == "str":
            try:  # JSON writes a character beyond U+FFFF as a pair of escapes
                return node.value.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError:
                raise self._error(node, "half of a surrogate pair") from None
        if kind in ("int", "float") and len(node.value) > MAX_NUMBER:
            raise self._error(node, f"a number with more than {MAX_NUMBER} characters")
        if kind not in ("null", "bool", "int", "float"):
            raise self._error(node, f"a YAML {kind} is not supported; put it in quotes if you mean a string")
        try:
            value = self.loader.construct_object(node)
        except Exception:  # PyYAML's constructors raise ValueError, KeyError … on a wrong tag
            raise self._error(node, f"{short(node.value)} is not a valid YAML {kind}") from None
        if isinstance(value, float) and not math.isfinite(value):
            problem = "is not a finite number; put it in quotes if you mean a string"
            raise self._error(node, f"{short(node.value)} {problem}")
        if kind in ("int", "float") and (base := _unusual_base(node.value)):
            self.notes.append(f"line {_mark(node)}: {node.value} is {value}, {base}; write {value} if you mean that")
        return value


def _unusual_base(number: str) -> str | None:
    """Return how YAML 1.1 reads a number that looks decimal or like a time of day; None for other numbers."""
    if ":" in number:
        return "in base 60"
    octal = re.fullmatch(r"[-+]?0[0-7_]*[1-7][0-7_]*", number) is not None
    return "because a number that begins with 0 is octal" if octal else None


def to_yaml(data: Mapping[str, Any]) -> str:
    """Return plain JSON types as YAML that reads back as the same data."""
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


class _Dumper(yaml.SafeDumper):
    """Puts strings in double quotes if they contain characters that PyYAML would read back as line breaks."""


def _represent_str(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    awkward = any(char in text for char in "\x85\u2028\u2029")
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if awkward else None)


_Dumper.add_representer(str, _represent_str)


def _tag(node: yaml.Node) -> str:
    """Return a short name for a node's type."""
    tag = str(node.tag).removeprefix("tag:yaml.org,2002:")
    return tag if tag.isidentifier() and len(tag) <= 20 else short(tag)


def short(value: object) -> str:
    """Return a value's ``repr``, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def one_line(message: object) -> str:
    """Return another library's message in one line, cut to 500 characters."""
    return " ".join(str(message).split())[:500] or type(message).__name__
