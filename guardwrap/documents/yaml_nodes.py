"""YAML to plain JSON types and back, from files that anyone may have written: limits on size, depth and time.

PyYAML's parser in Python, not the one in C that comes with most copies of it: that has other messages, and within these
limits the slower one takes no more than a second and a half for the worst of files.
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

from guardwrap.documents.inputs import irregular
from guardwrap.documents.limits import MAX_BYTES, MAX_DEPTH, MAX_DIRECTIVES, MAX_FILES, MAX_NUMBER, MAX_VALUES, loading
from guardwrap.documents.time_limits import TimeLimit, check_deadline
from guardwrap.errors import SpecError

__all__ = [
    "NodeReader",
    "compose",
    "one_line",
    "path_beside",
    "read_text",
    "reading",
    "reading_too",
    "short",
    "to_yaml",
]


_being_read: ContextVar[tuple[str, ...]] = ContextVar("_being_read", default=())
"""The file that is being read, last, and those that refer to it."""


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Read a file, within the limits of one."""
    outer = _being_read.set((path,))
    try:
        with loading():
            yield
    except TimeLimit as limit:
        raise SpecError(f"{path}: takes more than {limit.seconds:g} s to read; make it smaller") from None
    finally:
        _being_read.reset(outer)


@contextmanager
def reading_too(path: Path) -> Iterator[None]:
    """Read a file that the one being read refers to: within the limits of that one, both together.

    Raises
    ------
    SpecError
        If it refers to itself, by way of others perhaps, or too many files refer to each other.
    """
    files = _being_read.get()
    if any(_is_same(path, other) for other in files):
        raise SpecError(f"{str(path)!r} refers to itself, by way of what it names; leave one of the references out")
    if len(files) > MAX_FILES:
        raise SpecError(f"files refer to each other more than {MAX_FILES} deep; write the constraint out")
    outer = _being_read.set((*files, str(path)))
    try:
        yield
    finally:
        _being_read.reset(outer)


def _is_same(path: Path, other: str) -> bool:
    try:
        return path.samefile(other)
    except (OSError, ValueError):  # one of them is no file
        return False


def path_beside(name: str) -> Path:
    """Return the path of a file that stands beside the one that is being read; where none is, that of the name."""
    files = _being_read.get()
    return Path(files[-1]).parent / name if files else Path(name)


def read_text(path: str | Path) -> str:
    """Read a file of text, of limited size."""
    if what := irregular(path):
        raise SpecError(f"cannot read {str(path)!r}: it is {what}, and a file is needed")
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
        text = raw[:MAX_BYTES].decode("utf-8") if len(raw) > MAX_BYTES else raw.decode("utf-8")
    except UnicodeDecodeError:
        # Where the limit cut a character in two, the size is the error to report.
        if len(raw) > MAX_BYTES:
            raise SpecError(f"{path}: larger than {MAX_BYTES} bytes") from None
        raise SpecError(f"{path}: not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None
    if len(raw) > MAX_BYTES:
        raise SpecError(f"{path}: larger than {MAX_BYTES} bytes")
    return text


class _Loader(yaml.SafeLoader):
    """YAML 1.1 but for its booleans: ``on`` is a field of ours, and ``yes`` and ``no`` are words.

    Ends where a file is nested too deep, holds too many values or takes too long.
    """

    path = ""
    depth = 0
    nodes = 0
    directives = 0
    quoted: tuple[Any, Any] | None = None
    """Where the last value in quotes begins and ends that goes on in the next line."""

    def get_event(self) -> yaml.Event:
        event: yaml.Event = super().get_event()  # type: ignore[no-untyped-call]
        self.nodes += isinstance(event, yaml.NodeEvent)
        begin, end = event.start_mark, event.end_mark
        if isinstance(event, yaml.ScalarEvent) and event.style in ("'", '"') and begin and end:
            self.quoted = (begin, end) if end.line > begin.line else self.quoted
        self.depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if self.depth > MAX_DEPTH:
            raise SpecError(f"{self.path}:{_mark(event)}: nested deeper than {MAX_DEPTH} levels")
        if self.nodes > 2 * MAX_VALUES:  # a key for each value at most
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
    """Parse to nodes, with limits on depth and size; they carry the line numbers."""
    loader = None
    try:
        loader = _Loader(text)
        loader.path = path
        root = loader.get_single_node()
    except (SpecError, TimeLimit):
        raise
    except Exception as error:  # PyYAML lets ValueError, OverflowError … of hostile escapes and directives through
        raise SpecError(f"{path}{_explained(error, text, loader)}") from None
    if root is None:
        raise SpecError(f"{path}: empty file; {needed}")
    return root


_PLAIN = {
    "<block end>, but found '<scalar>'": "more text after a quote or a bracket that ends a value: put the whole value "
    "in quotes",
    "expected <block end>": "this line belongs to none above it: indent it as the others of its list or mapping",
    "mapping values are not allowed here": "a colon where none can be: indent this line as the others of its mapping, "
    "and put a value that holds ': ' in quotes",
    "found character '\\t'": "a tab: indent with spaces",
    "found unknown escape character": "a backslash in double quotes begins an escape: put the value in single quotes",
    "found undefined alias": "a value that begins with * refers to another one: put it in quotes",
    "that cannot start any token": "a value cannot begin with this character: put it in quotes",
}
"""What PyYAML says of frequent mistakes, by what its message holds, and what to do."""

_OPEN = (
    "a {} that begins here is not closed, or lacks a comma; inside of it put a value in quotes that has one of "
    ", : ? [ ] {{ }} or begins with a #"
)
_BEGUN = {
    "found unexpected end of stream": "a quote that begins here is not closed",
    "expected ',' or ']'": _OPEN.format("["),
    "expected ',' or '}'": _OPEN.format("{"),
    "could not find expected ':'": "a key without its colon",
}
"""Those that are seen only at a later line than where they are made."""


def _explained(error: Exception, text: str, loader: _Loader | None) -> str:
    """Say where PyYAML has found a mistake, and what it is, in plain words if it is a frequent one.

    Parameters
    ----------
    error
        What it raised.
    text
        What it was given.
    loader
        How far it came; None where it has not begun.
    """
    seen, begun = (getattr(error, name, None) for name in ("problem_mark", "context_mark"))
    problem = one_line(getattr(error, "problem", None) or getattr(error, "context", None) or error)
    early = next((words for said, words in _BEGUN.items() if said in problem and begun), None)
    words = early or next((words for said, words in _PLAIN.items() if said in problem), problem)
    mark = begun if early else seen or begun
    if mark is None or loader is None:
        return f": malformed YAML: {words}"
    line, quoted = mark.line, loader.quoted
    if loader.flow_level and loader.marks and problem.startswith("expected the node content"):
        line, words = loader.marks[-1].line, _OPEN.format("[ or {")
    elif quoted is not None and seen is not None and quoted[1].line == seen.line:
        line, words = quoted[0].line, "a quote that begins here is not closed in its line"
    else:
        lines = text.splitlines()
        for at in (line, line - 1):
            lacks = next(
                (what for what, form in _LACKS.items() if 0 <= at < len(lines) and form.match(lines[at])), None
            )
            if lacks is not None:
                line, words = at, f"a space is missing after {lacks} of this line"
                break
    return f":{line + 1}: malformed YAML: {words}"


_LACKS = {"the -": re.compile(r"\s*-[A-Za-z_]+:(\s|$)"), "the colon": re.compile(r"\s*(- +)?[A-Za-z_]+:[^\s:/]")}
"""Lines that lack a space, by the character that it has to follow."""


def _mark(found: yaml.Node | yaml.Event) -> int:
    return found.start_mark.line + 1 if found.start_mark else 1


class NodeReader:
    """Turns nodes into JSON types and writes aliases out.

    Refuses alias bombs, cycles, duplicate keys, merge keys, keys that are not strings, and what YAML has and JSON
    has not: dates, sets, binary data, infinities, objects.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.loader = _Loader("")  # constructs scalars
        self.values = 0
        self.characters = 0
        self.parents: list[yaml.Node] = []

    def _error(self, node: yaml.Node, message: str) -> SpecError:
        return SpecError(f"{self.path}:{_mark(node)}: {message}")

    def read(self, node: yaml.Node) -> Any:
        """Return what a node and all in it say, or raise SpecError."""
        self.values += 1
        if self.values > MAX_VALUES:
            raise SpecError(f"{self.path}: more than {MAX_VALUES} values, aliases counted in full")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node)
        if any(parent is node for parent in self.parents):
            raise self._error(node, "an alias refers to what it is part of")
        if len(self.parents) >= MAX_DEPTH:
            raise self._error(node, f"nested deeper than {MAX_DEPTH} levels, aliases counted in full")
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
        found: dict[str, Any] = {}
        for key, value in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                raise self._error(key, "merge keys (<<) are not supported; write the fields out")
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                alone = isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode) and not value.value
                if alone and node.flow_style and key.value:  # {200}
                    raise self._error(key, f"{short(key.value)} stands alone where {{name: value}} should")
                raise self._error(key, "a key must be a string; put it in quotes")
            name = self._scalar(key)
            if name in found:
                first = next(other for other, _ in node.value if other.value == key.value)
                how = f"first in line {_mark(first)}; indent what belongs to another, or begin it with '- '"
                raise self._error(key, f"{short(name)} stands twice, {how}")
            found[name] = self.read(value)
        return found

    def _scalar(self, node: yaml.ScalarNode) -> Any:
        kind = _tag(node)
        self.characters += len(node.value)
        if self.characters > MAX_BYTES:
            raise SpecError(f"{self.path}: more than {MAX_BYTES} characters, aliases counted in full")
        if kind == "str":
            if any("\ud800" <= char <= "\udfff" for char in node.value):
                raise self._error(node, "half of a surrogate pair")
            return node.value
        if kind in ("int", "float") and len(node.value) > MAX_NUMBER:
            raise self._error(node, f"a number of more than {MAX_NUMBER} characters")
        if kind not in ("null", "bool", "int", "float"):
            raise self._error(node, f"a YAML {kind} is not supported; put it in quotes if you mean a string")
        try:
            value = self.loader.construct_object(node)
        except Exception:  # PyYAML's constructors raise ValueError, KeyError … on a wrong tag
            raise self._error(node, f"{short(node.value)} is no YAML {kind}") from None
        if isinstance(value, float) and not math.isfinite(value):
            problem = "is not a finite number; put it in quotes if you mean a string"
            raise self._error(node, f"{short(node.value)} {problem}")
        return value


def to_yaml(data: Mapping[str, Any]) -> str:
    """Write plain JSON types as YAML that reads back the same."""
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


class _Dumper(yaml.SafeDumper):
    """Quotes what PyYAML would write plainly, or in single quotes, and then read as a line break."""


def _represent_str(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    awkward = any(char in text for char in "\x85\u2028\u2029")
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"' if awkward else None)


_Dumper.add_representer(str, _represent_str)


def _tag(node: yaml.Node) -> str:
    """Name a node's type in a few plain characters."""
    tag = str(node.tag).removeprefix("tag:yaml.org,2002:")
    return tag if tag.isidentifier() and len(tag) <= 20 else short(tag)


def short(value: object) -> str:
    """Spell a value in one short line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def one_line(message: object) -> str:
    """Put a message that others wrote into one line."""
    return " ".join(str(message).split())[:500] or type(message).__name__
