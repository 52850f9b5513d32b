"""Texts that hold data: JSON, JSON Lines, TOML and YAML."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache

import regex
import yaml

from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.documents.time_limits import check_deadline, within
from guardwrap.documents.yaml_nodes import compose
from guardwrap.errors import SpecError

# --------------------------------------------------------------------------------------------- JSON and JSON Lines


@cache
def any_json() -> JSONSchema:
    """Return the constraint of all JSON texts."""
    return JSONSchema(True)


def fault_in_json(text: str) -> str | None:
    """Return why a text is not JSON (RFC 8259), as for ``JSONSchema``; None if it is."""
    return None if any_json().holds(text) else any_json().fault(text)


def fault_in_json_lines(text: str) -> str | None:
    """Return the first line that is not JSON; None if all are. The last line may end with a line break."""
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        check_deadline()
        if (fault := fault_in_json(line)) is not None:
            return f"line {number} {fault}"
    return None


@dataclass(frozen=True)
class JSONLinesMonitor(Monitor):
    """Monitor of JSON Lines: one that reads the current line, and whether a line before it is wrong."""

    inner: Monitor  # monitor of the current line
    line: str = ""  # the current line so far
    dead: bool = False  # whether a line is not JSON

    @property
    def verdict(self) -> Verdict:
        """VIOLATED as soon as a line is."""
        return Verdict.VIOLATED if self.dead else self.inner.verdict

    def read(self, text: str, /) -> Monitor:
        """Read on, across lines."""
        if self.verdict is Verdict.VIOLATED:
            return self
        *ended, last = text.split("\n")
        inner, line = self.inner, self.line
        for rest in ended:
            check_deadline()
            if fault_in_json(line + rest) is not None:
                return JSONLinesMonitor(inner, dead=True)
            inner, line = any_json().monitor(), ""
        return JSONLinesMonitor(inner.read(last) if last else inner, line + last)


# ------------------------------------------------------------------------------------------------------------- TOML

_DEEP = regex.compile(
    r"""(?<![\w-])(?:(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){64}""", regex.VERSION0
)
"""A key of more than 64 parts. ``tomllib`` takes quadratic time for it: four seconds for 30 000 characters."""


def fault_in_toml(text: str) -> str | None:
    """Return why a text is not TOML 1.0, as ``tomllib`` reads it; None if it is."""
    if within(_DEEP.search, text) is not None:
        return "has a key of more than 64 parts"
    try:
        tomllib.loads(text)
    except ValueError as error:  # also a number with more digits than Python converts
        return str(error)
    return None


# ------------------------------------------------------------------------------------------------------------- YAML

_SCALARS = {f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "null", "timestamp", "binary", "str")}
_KNOWN = _SCALARS | {f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "set", "omap", "pairs", "merge", "value")}
_MAX_SCALAR = 1_000  # characters of a number or a date; PyYAML takes quadratic time for numbers such as 1:30:00


def fault_in_yaml(text: str) -> str | None:
    """Return why a text is not one YAML 1.1 document with standard tags, as PyYAML reads it; None if it is.

    Aliases are resolved and never expanded, so an alias bomb is as cheap as its text.
    """
    try:
        root = compose(text, "text", "give a value")
    except SpecError as error:
        if isinstance(error.__context__, RecursionError):
            raise error.__context__ from None
        return re.sub(r"^text:(\d+)", r"line \1", str(error)).removeprefix("text: ")
    loader = yaml.SafeLoader("")
    waiting, seen = [root], {id(root)}
    while waiting:
        check_deadline()
        node = waiting.pop()
        line = f"line {node.start_mark.line + 1 if node.start_mark else 1}"
        if node.tag not in _KNOWN:
            return f"{line}: a tag that is not one of YAML's own"
        if isinstance(node, yaml.ScalarNode) and not _has_value(node, loader):
            return f"{line}: a value that its type does not allow"
        children = node.value if isinstance(node, yaml.CollectionNode) else []
        for child in (part for each in children for part in (each if isinstance(each, tuple) else (each,))):
            if id(child) not in seen:
                seen.add(id(child))
                waiting.append(child)
    return None


def _has_value(node: yaml.ScalarNode, loader: yaml.SafeLoader) -> bool:
    """Whether a number, a date or the like has a value: 2024-13-01 looks like a date and is none."""
    if node.tag not in _SCALARS or node.tag.endswith((":str", ":binary")):
        return True
    if len(node.value) > _MAX_SCALAR:
        return False
    try:
        loader.construct_object(node)
    except (ValueError, KeyError, OverflowError, AttributeError, IndexError, yaml.YAMLError):  # KeyError: !!bool maybe
        return False
    return True
