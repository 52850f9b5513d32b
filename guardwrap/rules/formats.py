"""Texts that hold data or markup: JSON, JSON Lines, TOML, YAML, XML, HTML, CSV and Markdown tables.

Each function ``fault_in_...`` returns what is wrong with a text, or None if the parser accepts it. Texts come from a
model and may be hostile, so each parser is bounded: by the length of the text, by nesting, or by the time limit.
"""

from __future__ import annotations

import csv
import io
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from xml.parsers import expat

import regex
import yaml

from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.errors import SpecError
from guardwrap.support.time_limits import check_deadline, within
from guardwrap.support.yaml_nodes import compose

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
        return Verdict.VIOLATED if self.dead else self.inner.verdict

    def read(self, text: str, /) -> Monitor:
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


class _Refused(Exception):
    """The text is rejected; the message says why."""


# -------------------------------------------------------------------------------------------------------------- XML


def fault_in_xml(text: str) -> str | None:
    """Return why a text is not a well-formed XML 1.0 document with namespaces; None if it is.

    A DOCTYPE with declarations of its own is rejected, so there are no entities that could expand or name files.
    """
    return _fault_of_xml(text, complete=True)


def xml_verdict(prefix: str) -> Verdict:
    """Return VIOLATED if no continuation is well-formed: without the end, expat judges complete tokens only."""
    return Verdict.UNDECIDED if _fault_of_xml(prefix, complete=False) is None else Verdict.VIOLATED


def _fault_of_xml(text: str, *, complete: bool) -> str | None:
    parser = expat.ParserCreate(namespace_separator="}")
    parser.StartDoctypeDeclHandler = _refuse_declarations
    try:
        parser.Parse(text, complete)
    except expat.ExpatError as error:
        return f"line {error.lineno}: {expat.ErrorString(error.code)}"
    except _Refused as refused:
        return str(refused)
    except ValueError:
        return "has half of a surrogate pair"
    return None


def _refuse_declarations(name: str, system_id: str | None, public_id: str | None, has_declarations: int) -> None:
    if has_declarations:
        raise _Refused("has a DOCTYPE with declarations")


# ------------------------------------------------------------------------------------------------------------- HTML

_MAX_OPEN = 500  # elements that are open at once; the algorithm takes quadratic time in their number
_MAX_ATTRIBUTES = 500  # of one element; each is compared with those before it
_HARMLESS = frozenset({"expected-named-entity"})
"""Errors that are ignored: the library also reports ``&`` in addresses, where the standard allows it."""


def fault_in_html(text: str) -> str | None:
    """Return the first parse error of HTML; None without one.

    A text that begins with ``<!doctype`` is a document. Any other is a fragment, the contents of a ``div``.
    """
    if not text.strip():
        return "is empty"
    parser = _html_parser()()
    whole = text.lstrip()[:9].lower() == "<!doctype"
    # A short string would be opened as a file if one of that name exists; a stream never is.
    stream = io.StringIO(text, newline="")
    try:
        parser.parse(stream) if whole else parser.parse_fragment(stream)
    except _Refused as refused:
        return str(refused)
    return None


@cache
def _html_parser() -> Any:
    """Return tinyhtml5's parser as a class that stops at the first error, at deep nesting and at the time limit."""
    from tinyhtml5.parser import HTMLParser, HTMLTokenizer

    class WatchedTokenizer(HTMLTokenizer):
        def __iter__(self) -> Iterator[Any]:
            for token in super().__iter__():
                check_deadline()
                if len(self.parser.tree.open_elements) > _MAX_OPEN:
                    raise _Refused(f"has more than {_MAX_OPEN} elements open at once")
                yield token

        def attribute_name_state(self) -> Any:
            if len(self.current_token["data"]) > _MAX_ATTRIBUTES:
                raise _Refused(f"has an element with more than {_MAX_ATTRIBUTES} attributes")
            return super().attribute_name_state()

    class StrictParser(HTMLParser):
        def reset(self) -> None:
            self.tokenizer.__class__ = WatchedTokenizer  # the library has no parameter for it
            super().reset()

        def parse_error(self, errorcode: str, datavars: Any = None) -> None:
            if errorcode not in _HARMLESS:
                line, _ = self.tokenizer.stream.position()
                raise _Refused(f"line {line}: {errorcode}")

    return StrictParser


def fault_in_csv(text: str) -> str | None:
    """Return why a text is not CSV (RFC 4180) whose rows have equally many fields; None if it is."""
    return next(_csv_faults(text), None) if text else "has no row"


def csv_verdict(prefix: str) -> Verdict:
    """Return VIOLATED if a complete row of a prefix is wrong, whatever follows."""
    lines = prefix[: prefix.rfind("\n") + 1]
    return Verdict.VIOLATED if next(_csv_faults(lines, complete=False), None) else Verdict.UNDECIDED


def _csv_faults(text: str, *, complete: bool = True) -> Iterator[str]:
    """Yield the faults of a text.

    ``complete``: whether nothing follows. If something may, the last row may continue within a quoted field.
    """
    ended = False

    def lines() -> Iterator[str]:
        nonlocal ended
        yield from io.StringIO(text, newline="")
        ended = True

    width = None
    try:
        for number, row in enumerate(csv.reader(lines(), strict=True), 1):
            check_deadline()
            if not row:
                yield f"row {number} is empty"
            width = width or len(row)
            if len(row) != width:
                yield f"row {number} has {len(row)} fields, not {width}"
    except csv.Error as error:
        if complete or not ended:
            yield str(error)


_ESCAPE = re.compile(r"\\.")
_DASHES = re.compile(r"[ \t]*+:?-++:?[ \t]*+")


def fault_in_markdown_table(text: str) -> str | None:
    r"""Return why a text is not one table of GitHub Flavored Markdown; None if it is.

    Each row begins and ends with ``|``, and has as many cells as the header. ``\|`` does not separate cells.
    """
    return _fault_of_rows(text.removesuffix("\n").split("\n"), complete=True)


def markdown_table_verdict(prefix: str) -> Verdict:
    """Return VIOLATED if a complete line of a prefix is not a row of the table."""
    return Verdict.VIOLATED if _fault_of_rows(prefix.split("\n")[:-1], complete=False) else Verdict.UNDECIDED


def _fault_of_rows(lines: list[str], *, complete: bool) -> str | None:
    width = None
    for number, line in enumerate(lines, 1):
        check_deadline()
        cells = _cells(line)
        if cells is None:
            return f"line {number} is not a row that begins and ends with |"
        if number == 2 and not all(_DASHES.fullmatch(cell) for cell in cells):
            return "line 2 is not a row of dashes, such as |---|---|"
        width = width or len(cells)
        if len(cells) != width:
            return f"line {number} has {len(cells)} cells, not {width}"
    return "has no row of dashes below its header" if complete and len(lines) < 2 else None


def _cells(line: str) -> list[str] | None:
    """Return the cells of a row, with a letter for each escape; None if it does not begin and end with ``|``."""
    row = _ESCAPE.sub("x", line).rstrip(" \t\r")
    bare = row.lstrip(" ")
    if len(row) - len(bare) > 3 or len(bare) < 2 or not (bare.startswith("|") and bare.endswith("|")):
        return None
    return bare[1:-1].split("|")
