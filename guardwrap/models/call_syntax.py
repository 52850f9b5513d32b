"""The syntax in which a model's family writes tool calls, for masks that require a call; and JSON alone.

A verdict on a prefix says what no text can mend. A mask needs more: prose may always be followed by a call, but a model
that writes prose hardly ever ends it. So masks follow ``CallWriting``, which allows reasoning, calls as the family
writes them, and nothing else. It is derived from the response template: its markers, and how it reads arguments.

JSON is a call without markers: white space and digits may always be followed by more of them, and small models hardly
ever end them.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import regex

from guardwrap.constraints.base import All, Constraint, Wrapper
from guardwrap.constraints.checking import Combined
from guardwrap.constraints.json.json_monitor import JSONMonitor
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.json.tool_calls import ToolCalls, own_resource
from guardwrap.constraints.verdicts import REPLACEMENT, THOUGHTS, Context, Monitor, Undecided, Verdict
from guardwrap.errors import GuardwrapError
from guardwrap.models.call_dialects import DelimitedJSON, Dialect, InlineTags, PlainJSON, is_canonical
from guardwrap.models.regions import MessageRegions, expressions_of
from guardwrap.models.templates import chat_templates
from guardwrap.outcomes import Draw
from guardwrap.support.time_limits import check_deadline

LONGEST_MARKER = 200
"""The most characters of a marker, whose expression may allow any number."""

LEAVE_REASONING, LEAVE_ARGUMENTS = 0.5, 0.75
"""The shares of the token limit from which on reasoning, and then strings and lists of arguments, must end."""

LEFT_FOR_TAGS, LEFT_FOR_JSON = 64, 24
"""The tokens that must be left then, at least: two arguments in tags take 45 of a vocabulary that has no tags."""


@dataclass(frozen=True, eq=False)
class CallSyntax:
    """How calls are written after a prompt."""

    # The marker that begins a call. Its group ``name``, if it has one, matches the names of the tools that may be
    # called.
    opening: Any
    any_opening: Any  # the same for any name
    # The marker that ends a call; None if only the end of the message does. With ``any_closing``, also what ends it
    # without being written for that, such as the beginning of another call.
    closing: Any
    any_closing: Any
    thought_opening: Any  # the markers of reasoning; None without reasoning
    thought_closing: Any
    dialect: Dialect  # how the text of a call is written
    # the schema of that text by the tool's name; with the name ``""`` for all tools if the text has the name
    bodies: Mapping[str, JSONSchema]
    most: int | None  # the most calls of a message; None for any number
    required: bool  # whether the message must consist of calls. Otherwise any text may come before and after them.

    @cached_property
    def chained(self) -> bool:
        """Whether the marker of the next call ends a call."""
        return self.any_closing is not None and "(?=" in self.any_closing.pattern

    @cached_property
    def closing_begins(self) -> bytes | None:
        """The ASCII characters that a closing marker may begin with; None if it may begin with others."""
        if self.any_closing is None:
            return b""
        tried = (*map(chr, range(128)), *self.spelled_with, *"\xa0\xe9\u2028\u4e2d")
        begins = "".join(char for char in tried if _tail(self.any_closing, char) != "")
        return begins.encode() if begins.isascii() else None

    @cached_property
    def spelled_with(self) -> str:
        """The characters of all markers that are not ASCII."""
        markers = (self.opening, self.closing, self.thought_opening, self.thought_closing)
        return "".join({c for marker in markers if marker is not None for c in marker.pattern if not c.isascii()})

    def body_after(self, marker: str, following: str) -> tuple[Dialect, Monitor] | None:
        """Return what reads the text of a call after its opening marker; None if the parser would not end it here."""
        match = self.opening.fullmatch(marker)
        if match is None:
            return None
        name = match.groupdict().get("name") or ""
        parsed = self.any_opening.search(marker + following)
        if parsed is None or parsed.end() != len(marker) or (parsed.groupdict().get("name") or "") != name:
            return None
        body = self.bodies[name].monitor()
        if isinstance(body, JSONMonitor):
            body = body.without_exponents()
        return self.dialect.of(name), body


@dataclass(frozen=True)
class _Branch:
    """One way to read the text so far."""

    # ``"prose"``, ``"thought"``, ``"marker"`` (before a call, or in its opening marker), ``"call"`` or ``"closing"``
    phase: str
    # the text of the marker so far; in other phases the end of the text if a marker may have begun in it
    text: str = ""
    calls: int = 0  # the number of calls that have ended
    thought: bool = False  # whether there has been reasoning
    # what reads a call: the state of its dialect, and the monitor of the same call as JSON
    dialect: Dialect | None = None
    arguments: Monitor | None = None

    @property
    def key(self) -> Hashable | None:
        inner = () if self.arguments is None else self.arguments.key
        return None if inner is None else (self.phase, self.text, self.calls, self.thought, self.dialect, inner)

    @property
    def delimiters(self) -> bytes | None:
        """Those of a call's string that is open; None elsewhere, and where a marker may have begun."""
        if self.dialect is None or self.arguments is None or self.text:
            return None
        return self.dialect.string_delimiters(self.arguments)


@dataclass(frozen=True)
class CallWriting(Monitor):
    """Monitor of a message whose calls follow a syntax: VIOLATED once no way to read the text is left."""

    syntax: CallSyntax
    branches: tuple[_Branch, ...]  # all ways to read the text so far
    haste: int = 0  # 1 if reasoning has to end now, 2 if arguments have to as well, as soon as their schema allows it

    @property
    def verdict(self) -> Verdict:
        """VIOLATED, or UNDECIDED: a text that ends is judged by the rule itself."""
        return Verdict.UNDECIDED if self.branches else Verdict.VIOLATED

    @property
    def key(self) -> Hashable | None:
        """The keys of all branches."""
        keys = tuple(branch.key for branch in self.branches)
        return None if None in keys else (self.haste, *keys)

    @property
    def delimiters(self) -> bytes | None:
        """Those of the first branch that has some, which is enough, and what a closing marker may begin with."""
        closing = self.syntax.closing_begins
        if closing is None or self.haste > 1:
            return None
        known = (branch.delimiters for branch in self.branches)
        return next((each + closing for each in known if each is not None), None)

    def read(self, text: str, /) -> Monitor:
        """Return the monitor after more text."""
        check_deadline()
        reader = _Reader(self.syntax, self.haste)
        branches = dict.fromkeys(after for branch in self.branches for after in reader.read(branch, text))
        return replace(self, branches=tuple(branches))

    def may_begin(self, partial: bytes, /) -> bool:
        """Ask the strings that are open; elsewhere only characters of markers may come."""
        if self.read(REPLACEMENT).verdict is not Verdict.VIOLATED:
            return True
        strings = [b.arguments for b in self.branches if b.arguments and b.dialect and b.dialect.quoted]
        if self.haste < 2 and any(arguments.may_begin(partial) for arguments in strings):
            return True
        return self.may_read_one_of([char for char in self.syntax.spelled_with if char.encode().startswith(partial)])


class _Reader:
    """Reads text for one branch."""

    def __init__(self, syntax: CallSyntax, haste: int) -> None:
        self._syntax = syntax
        self._haste = haste

    def read(self, branch: _Branch, text: str) -> Iterator[_Branch]:
        """Yield the ways to read more text."""
        if not text:
            yield branch
        elif branch.phase == "call":
            yield from self._in_call(branch, text)
        elif branch.phase == "thought" and not self._haste:
            whole = branch.text + text
            match = self._syntax.thought_closing.search(whole, partial=True)
            if match is None or match.partial:
                yield replace(branch, text="" if match is None else whole[match.start() :])
            else:
                yield from self.read(replace(branch, phase="marker", text="", thought=True), whole[match.end() :])
        else:
            step = {
                "prose": self._prose,
                "thought": self._hasty_thought,
                "marker": self._marker,
                "closing": self._closing,
            }
            for after in step[branch.phase](branch, branch.text + text[0]):
                yield from self.read(after, text[1:])

    def _prose(self, branch: _Branch, text: str) -> Iterator[_Branch]:
        opens = self._syntax.any_opening.search(text, partial=True)
        if opens is None or opens.partial or opens.end() == len(text):
            start = len(text) if opens is None else opens.start()
            yield replace(branch, text=text[start:][-LONGEST_MARKER:])
        yield from self._marker(replace(branch, phase="marker", text=""), text[-1])

    def _hasty_thought(self, branch: _Branch, text: str) -> Iterator[_Branch]:
        match = self._syntax.thought_closing.search(text, partial=True)
        if match is not None and not match.partial:
            yield replace(branch, phase="marker", text="", thought=True)
            return
        tail = "" if match is None else text[match.start() :]
        if len(tail) > len(branch.text):
            yield replace(branch, text=tail)

    def _marker(self, branch: _Branch, text: str) -> Iterator[_Branch]:
        syntax = self._syntax
        late = branch.calls and self._haste and not branch.text  # a marker that has begun has to end
        more = (syntax.most is None or branch.calls < syntax.most) and not late
        begins = more and _may_grow(syntax.opening, text)
        thinks = syntax.thought_opening is not None and not (branch.thought or branch.calls or self._haste)
        if begins or (thinks and _may_grow(syntax.thought_opening, text)):
            yield replace(branch, text=text)
        if more and (body := syntax.body_after(text[:-1], text[-1])) is not None:
            yield from self.read(replace(branch, phase="call", text="", dialect=body[0], arguments=body[1]), text[-1])
        if thinks and syntax.thought_opening.fullmatch(text) is not None:
            yield replace(branch, phase="thought", text="")

    def _in_call(self, branch: _Branch, text: str) -> Iterator[_Branch]:
        assert branch.dialect is not None
        assert branch.arguments is not None
        for dialect, arguments, rest in branch.dialect.read(branch.arguments, text, haste=self._haste > 1):
            used = branch.text + text[: len(text) - len(rest)]
            tail = "" if self._syntax.any_closing is None else _tail(self._syntax.any_closing, used)
            if tail is None:  # the parser would take this for the end of the call
                continue
            if dialect is not None:
                yield replace(branch, text=tail, dialect=dialect, arguments=arguments)
            else:
                ended = replace(branch, phase="closing", text="", dialect=None, arguments=None)
                yield from self.read(ended, rest)

    def _closing(self, branch: _Branch, text: str) -> Iterator[_Branch]:
        syntax = self._syntax
        if syntax.closing is not None:
            if _may_grow(syntax.closing, text):
                yield replace(branch, text=text)
            if syntax.closing.fullmatch(text) is not None:
                yield from self._ended(branch)
        if syntax.chained and len(text) == 1:  # the next call's marker ends this one
            yield from self._marker(replace(branch, phase="marker", text="", calls=branch.calls + 1), text)

    def _ended(self, branch: _Branch) -> Iterator[_Branch]:
        yield replace(branch, phase="marker", text="", calls=branch.calls + 1)
        if not self._syntax.required:
            yield replace(branch, phase="prose", text="", calls=branch.calls + 1)


def _may_grow(marker: Any, text: str) -> bool:
    """Whether a text is the beginning of a marker, or all of one that may be longer."""
    return is_canonical(text) and len(text) <= LONGEST_MARKER and marker.fullmatch(text, partial=True) is not None


def _tail(marker: Any, text: str) -> str | None:
    """Return the end of a text in which a marker may have begun; None if there is a whole one."""
    match = marker.search(text, partial=True)
    if match is None or (match.start() == match.end() and not match.partial):
        return ""
    if match.partial:
        return text[match.start() :]
    longer = marker.search(text + "\0")  # a match at the end may be one only if the message ends here
    whole = longer is not None and longer.span() == match.span()
    return None if whole or match.end() < len(text) else text[match.start() :]


@dataclass(frozen=True, eq=False, repr=False)
class _Written(Wrapper):
    """A rule for calls as a mask follows it: by the syntax, for texts that have not ended."""

    of: Constraint
    start: CallWriting
    kind: str = field(default="written_calls", kw_only=True)

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Judge by the rule itself."""
        return self.of.check(draws)

    def monitor(self) -> Monitor:
        """Return a monitor of texts that are no messages."""
        return Undecided()

    def monitor_in(self, context: Context, /) -> Monitor:
        """Return the monitor after the prompt."""
        return self.start


def with_syntax(constraint: Constraint, regions: MessageRegions | None, tokenizer: Any, *, casts: bool) -> Constraint:
    """Return a constraint whose masks begin, write and end calls in the syntax of the model's family.

    ``tokenizer``: the tokenizer, with a response template. Its chat template shows whether the model reasons.
    """
    if regions is None:
        return constraint
    parts = []
    for part in constraint.parts:
        start = call_syntax(part, regions, tokenizer, casts=casts) if isinstance(part, ToolCalls) else None
        parts.append(part if start is None else _Written(part, start))
    if all(new is old for new, old in zip(parts, constraint.parts, strict=True)):
        return constraint
    return parts[0] if len(parts) == 1 else All(parts)


def with_json(constraint: Constraint) -> Constraint:
    """Return a constraint whose masks write compact JSON and end it in time; itself if it is not a JSONSchema alone.

    Objects have the properties that their schemas list. What the schema says of other values than objects and lists is
    not known to end, so if the text may be one, the constraint stays as it is.
    """
    if not isinstance(constraint, JSONSchema) or constraint.where != "text" or constraint.on != "completion":
        return constraint
    try:
        schema, order, formats = _closed(constraint.schema), constraint.order, constraint.formats
        body = JSONSchema(schema, whitespace="compact", order=order, formats=formats)
    except GuardwrapError:  # a closed schema may be no valid one
        return constraint
    if any(body.monitor().read(begin).verdict is not Verdict.VIOLATED for begin in '"-0123456789tfn'):
        return constraint
    empty = regex.compile("")
    syntax = CallSyntax(empty, empty, None, None, None, None, PlainJSON(), {"": body}, most=1, required=True)
    return _Written(constraint, CallWriting(syntax, (_Branch("marker"),)))


def hastened(monitor: Monitor, used: int, full: int) -> Monitor:
    """Return a monitor that ends reasoning, arguments and JSON in time, if they are written by a syntax.

    ``used``, ``full``: the tokens of the text so far, and of the longest one.
    """
    if isinstance(monitor, CallWriting):
        least = LEFT_FOR_TAGS if isinstance(monitor.syntax.dialect, InlineTags) else LEFT_FOR_JSON
        ends = min(LEAVE_ARGUMENTS * full, full - least)
        return replace(monitor, haste=(used >= min(LEAVE_REASONING * full, ends)) + (used >= ends))
    if isinstance(monitor, Combined):
        return Combined(monitor.choose, tuple(hastened(part, used, full) for part in monitor.parts))
    return monitor


def call_syntax(rule: ToolCalls, regions: MessageRegions, tokenizer: Any, *, casts: bool) -> CallWriting | None:
    """Return the monitor of calls after a prompt; None if it is not known how they are written, or none may be."""
    fields = regions.fields
    calls = fields.fields.get("tool_calls")
    opening = None if calls is None else _marker_of(calls, "open")
    if calls is None or opening is None or not rule.allowed:
        return None
    try:
        read = _Bodies(calls, rule, casts).read()
    except GuardwrapError:  # a closed schema may be no valid one, such as where a part refers to another by its place
        return None
    if read is None:
        return None
    dialect, bodies = read
    names = [] if "" in bodies else [*bodies]
    most = 1 if opening.startswith(r"\A") or ("" in bodies and _is_list(calls)) else rule.most
    thought = next((f for name, f in fields.fields.items() if name in THOUGHTS), None)
    thoughts = None if thought is None else (_marker_of(thought, "open"), _marker_of(thought, "close"))
    inside = regions.open in THOUGHTS
    if regions.open is not None and not inside and regions.open != fields.implicit:
        return None
    reasons = (
        thoughts is not None and None not in thoughts and (inside or _shows(chat_templates(tokenizer), thought or {}))
    )
    anchor = tokenizer.response_template.get("start_anchor", ())
    anchors = "|".join(map(regex.escape, [anchor] if isinstance(anchor, str) else anchor))
    anchors = "" if fields.implicit is not None else anchors  # text outside of regions is no answer only then
    before = f"(?:{anchors})?" if anchors else ""
    closing = _marker_of(calls, "close")
    syntax = CallSyntax(
        opening=regex.compile(before + _with_names(opening, names), regex.DOTALL),
        any_opening=regex.compile(opening, regex.DOTALL),
        closing=None if closing is None else regex.compile(rf"\s*(?:{_without_lookahead(closing)})", regex.DOTALL),
        any_closing=None if closing is None else regex.compile(closing, regex.DOTALL),
        thought_opening=regex.compile(before + f"(?:{thoughts[0]})", regex.DOTALL) if reasons and thoughts else None,
        thought_closing=regex.compile(thoughts[1], regex.DOTALL) if reasons and thoughts and thoughts[1] else None,
        dialect=dialect,
        bodies=bodies,
        most=most,
        required=rule.least > 0,
    )
    begins = [_Branch("thought")] if inside else [_Branch("marker")]
    if not syntax.required and not inside:
        begins.append(_Branch("prose"))
    return CallWriting(syntax, tuple(begins))


def _shows(template: str, thought: Mapping[str, Any]) -> bool:
    literals = thought.get("open", [])
    literals = [literals] if isinstance(literals, str) else literals
    return "open_pattern" in thought or any(literal.strip() in template for literal in literals)


def _is_list(calls: Mapping[str, Any]) -> bool:
    return bool(calls.get("transform_each"))


def _marker_of(field: Mapping[str, Any], side: str) -> str | None:
    """Return the expression of one side's marker; None without one."""
    return "|".join(expressions_of(field, side)) or None


_UNBOUNDED = regex.compile(r"\(\?:[^()]*\[\^(?:\\.|[^\]])*\][*+][^()]*\)\?")
"""Optional groups that allow any text, such as an id."""


_LETTERS = regex.compile(r"(\[(?:\\.|[^\]])*\]|\\w)\+\)$")
"""The characters of a name, at the end of its group."""


def _with_names(pattern: str, names: Sequence[str]) -> str:
    """Return the expression of a marker in which the group ``name`` matches these names only."""
    if names:
        alternatives = "|".join(map(regex.escape, sorted(names, key=len, reverse=True)))
        begin = 0
        while (begin := pattern.find("(?P<name>", begin)) >= 0:
            end = _group_end(pattern, begin)
            letters = _LETTERS.search(pattern[begin:end])  # a name ends where the parser would not read on
            group = f"(?P<name>{alternatives})" + ("" if letters is None else f"(?!{letters[1]})")
            pattern = pattern[:begin] + group + pattern[end:]
            begin += len(group)
    return f"(?:{_UNBOUNDED.sub('', pattern)})"


def _without_lookahead(pattern: str) -> str:
    """Return the expression of a marker without alternatives that only look at what follows."""
    while (begin := pattern.find("(?=")) >= 0:
        end = _group_end(pattern, begin)
        alone = pattern[begin - 1 : begin] in ("", "|", "(") and pattern[end : end + 1] in ("", "|", ")")
        pattern = pattern[:begin] + ("(?!)" if alone else "") + pattern[end:]
    return pattern


def _group_end(pattern: str, begin: int) -> int:
    """Return the place after the group that begins at a place of an expression."""
    depth, inside, place = 0, False, begin
    while place < len(pattern):
        char = pattern[place]
        if char == "\\":
            place += 1
        elif inside:
            inside = char != "]" or pattern[place - 1] == "[" or pattern[place - 2 : place] == "[^"
        elif char == "[":
            inside = True
        elif char in "()":
            depth += 1 if char == "(" else -1
            if not depth:
                return place + 1
        place += 1
    return len(pattern)


@dataclass(frozen=True)
class _Bodies:
    """Reads from a response template how the text of a call is written."""

    calls: Mapping[str, Any]  # the field of calls
    rule: ToolCalls  # the rule for calls
    casts: bool  # whether the parser casts arguments by the tools' schemas

    def read(self) -> tuple[Dialect, dict[str, JSONSchema]] | None:
        """Return the dialect, and the schema of the text by the tool's name; None if they are not known."""
        dialect = self._dialect()
        keys = self._keys()
        if dialect is None or keys is None:
            return None
        if keys == ():
            return dialect, {tool["name"]: _schema(_closed(tool["parameters"])) for tool in self.rule.allowed}
        if not isinstance(dialect, PlainJSON):
            return None
        whole: Any = {"anyOf": [self._call(tool, number, keys) for number, tool in enumerate(self.rule.allowed)]}
        if self.calls.get("transform_each"):
            most = self.rule.most
            whole = {"type": "array", "minItems": 1, "items": whole, **({} if most is None else {"maxItems": most})}
        return dialect, {"": _schema(whole)}

    def _call(self, tool: Mapping[str, Any], number: int, keys: Sequence[str]) -> dict[str, Any]:
        name, arguments = keys
        parameters = own_resource(_closed(tool["parameters"]), number)
        properties = {name: {"const": tool["name"]}, arguments: parameters}
        return {"type": "object", "properties": properties, "required": [*keys], "additionalProperties": False}

    def _keys(self) -> tuple[()] | tuple[str, str] | None:
        """Return the keys of the name and the arguments in a call's text; none if it is the arguments alone."""
        transform = self.calls.get("transform")
        inner = transform.get("function") if isinstance(transform, Mapping) else None
        each = bool(self.calls.get("transform_each"))
        if inner == "{content}" and not each:
            return "name", "arguments"
        if not isinstance(inner, Mapping):
            return None
        name, arguments = (str(inner.get(key, ""))[1:-1] for key in ("name", "arguments"))
        if name == "name" and arguments == "content" and not each:
            return ()
        if each:
            return (name, arguments) if name and arguments else None
        both = name.removeprefix("content."), arguments.removeprefix("content.")
        return both if both != (name, arguments) and all(both) else None

    def _dialect(self) -> Dialect | None:
        arguments = self.calls.get("content_args") or {}
        if self.calls.get("content") == "json":
            known = {"unquoted_keys", "string_delims", "allow_non_json"}
            delimiters = [tuple(pair) for pair in arguments.get("string_delims", ())]
            if {*arguments} - known or len(delimiters) > 1:
                return None
            if not delimiters and not arguments.get("unquoted_keys"):
                return PlainJSON()
            delimiter = delimiters[0] if delimiters else ('"', '"')
            words = all(key.isidentifier() for tool in self.rule.allowed for key in _keys_in(tool["parameters"]))
            return DelimitedJSON(delimiters=delimiter, bare=words and bool(arguments.get("unquoted_keys")))
        if self.calls.get("content") == "xml-inline" and {*arguments} == {"tag_pattern"}:
            tools = {tool["name"]: tool["parameters"] for tool in self.rule.allowed}
            return InlineTags.of_pattern(arguments["tag_pattern"], tools, casts=self.casts)
        return None


def _keys_in(schema: Any) -> Iterator[str]:
    """Yield the names of all properties that a schema lists."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("properties"), Mapping):
            yield from schema["properties"]
        for inner in schema.values():
            yield from _keys_in(inner)
    elif isinstance(schema, list | tuple):
        for inner in schema:
            yield from _keys_in(inner)


def _schema(schema: Any) -> JSONSchema:
    return JSONSchema(schema, whitespace="compact", order="schema")


_OPEN = (
    "$dynamicRef", "$ref", "additionalProperties", "allOf", "anyOf", "dependentSchemas", "else", "if", "not", "oneOf",
    "patternProperties", "propertyNames", "then", "unevaluatedProperties",
)  # fmt: skip
"""Keywords of objects that may have, or be required to have, other properties than those that are listed beside."""


def _closed(schema: Any) -> Any:
    """Return a schema whose objects have only the properties that it lists, where that is what a model would write."""
    return _close(schema, whole='"allOf"' not in json.dumps(schema, default=str))


def _close(schema: Any, *, whole: bool) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    closed = dict(schema)
    for name in ("properties", *(("$defs", "definitions") if whole else ())):
        if isinstance(closed.get(name), Mapping):
            closed[name] = {key: _close(inner, whole=whole) for key, inner in closed[name].items()}
    if isinstance(closed.get("items"), Mapping):
        closed["items"] = _close(closed["items"], whole=whole)
    listed = closed.get("properties")
    required = closed.get("required") or ()
    if not isinstance(listed, Mapping) or {*_OPEN} & {*closed}:
        return closed
    if {*required} <= {*listed} and closed.get("minProperties", 0) <= len(listed):
        closed["additionalProperties"] = False
    return closed
