"""Forms in which model families write the arguments of a call, each read as the JSON that it stands for."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import regex

from guardwrap.constraints.json.json_monitor import JSONMonitor
from guardwrap.constraints.verdicts import Monitor, Verdict

_MOST_WHITESPACE = 2
"""The most white space in a row outside of strings."""


_MOST_DIGITS = 24
"""The most characters of a number. Models that repeat digits would not end it, and one beyond a double has no end."""

_FRACTIONS = (".5", ".1", ".25", ".01")

_LEADING = regex.compile(r"\A\s+")
"""White space as templates' expressions know it: unlike ``str.lstrip``, without separators such as U+001F."""

_UNEXPECTED = r"\u2603"
"""The escape of a character that no schema lists: a snowman."""

_ESCAPES = (_UNEXPECTED, *(rf"\{char}" for char in '"\\/bfnrt'))


class _Step(NamedTuple):
    """One way to read a character."""

    state: Any  # the dialect after it; None if the text is complete
    emitted: str = ""  # the JSON that is known with it
    unread: bool = False  # whether the character comes after the end of the text


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """State of a reader of arguments."""

    pending: str = ""  # text whose meaning depends on what follows
    quoted: bool = False  # whether the JSON so far ends inside a string
    digits: int = 0  # the number of characters of the number at its end

    def of(self, tool: str) -> Self:
        """Return the state before the arguments of a tool."""
        return self

    @property
    def leaves(self) -> bool:
        """Whether pending text may be the end of a value."""
        return self.quoted

    def _digits_after(self, char: str, arguments: Monitor) -> int | None:
        """Return the length of the number after a character outside of strings; None if it would be a strange one."""
        if char == "." and not any(_lives(arguments, part + end) for part in _FRACTIONS for end in ",]}"):
            return None  # an integer
        if char in "-.0123456789":
            return self.digits + 1 if self.digits + 2 * (char in "-.") < _MOST_DIGITS else None
        return None if self.digits and char in "eE" else 0

    def _may_escape(self, char: str, escaped: bool, arguments: Monitor) -> bool:
        """Whether a character inside a string may come, as far as escapes are concerned."""
        # If only some words may come, it is not known whether the digits of an escape can be those of one.
        if escaped:
            return char != "u" or _lives(arguments, _UNEXPECTED[1:])
        return char != "\\" or any(_lives(arguments, escape) for escape in _ESCAPES)

    def string_delimiters(self, arguments: Monitor) -> bytes | None:
        """Return the characters without which no text that comes next fails; None if that is not known."""
        return None

    def may_wait(self, arguments: Monitor) -> bool:
        """Whether something can follow pending text, whichever of its meanings it turns out to have."""
        return not self.quoted or _lives(arguments, '"') or _lives(arguments, _escaped(self.pending))

    @abstractmethod
    def steps(self, char: str, arguments: Monitor) -> Iterator[_Step]:
        """Yield the ways to read a character; ``arguments`` has read the JSON so far."""

    def read(
        self, arguments: Monitor, text: str, *, haste: bool = False
    ) -> Iterator[tuple[Dialect | None, Monitor, str]]:
        """Yield the ways to read a text that may lead to valid arguments."""
        if not text:
            yield self, arguments, ""
            return
        for step in self.steps(text[0], arguments):
            after = arguments.read(step.emitted) if step.emitted else arguments
            if after.verdict is Verdict.VIOLATED or (haste and not self._ends_soon(step, arguments)):
                continue
            if step.state is not None and step.state.pending and not step.state.may_wait(after):
                continue
            rest = text if step.unread else text[1:]
            if step.state is None:
                yield None, after, rest
            else:
                yield from step.state.read(after, rest, haste=haste)

    def _ends_soon(self, step: _Step, arguments: Monitor) -> bool:
        """Whether a step ends what is open, if that is possible.

        A word of a list may go on: it ends by itself, and one word may be the beginning of another.
        """
        if self.quoted and _is_listed(arguments):
            return True
        ends = [[*'"']] if self.quoted else [[*"]}"], [*","]]
        possible: list[str] = []
        for some in ends:
            possible = possible or [end for end in some if _lives(arguments, end)]
        if not possible:
            return True
        if step.emitted:
            return step.emitted[0] in possible
        pending = self.pending if step.state is None else step.state.pending
        moved = pending != self.pending and (not pending or is_canonical(pending))
        return moved and (bool(self.pending) or self.leaves or possible == [","])


@dataclass(frozen=True, kw_only=True)
class PlainJSON(Dialect):
    """JSON: an object or a list."""

    depth: int = 0  # the number of open brackets
    escaped: bool = False  # whether the next character of a string is escaped

    def string_delimiters(self, arguments: Monitor) -> bytes | None:
        """Those of the string that is open."""
        return arguments.delimiters if self.quoted and not self.escaped else None

    def read(
        self, arguments: Monitor, text: str, *, haste: bool = False
    ) -> Iterator[tuple[Dialect | None, Monitor, str]]:
        """Read the text in one piece, as JSON is what it says."""
        if haste or not self.depth or self.escaped or "\\" in text or "." in text:
            yield from super().read(arguments, text, haste=haste)
            return
        depth, quoted, digits = self.depth, self.quoted, self.digits
        for place, char in enumerate(text):
            if quoted:
                quoted = char != '"'
                continue
            count = replace(self, digits=digits)._digits_after(char, arguments)
            if count is None:
                return
            digits = count
            if char == '"':
                quoted = True
            elif char in "{[":
                depth += 1
            elif char in "}]":
                depth -= 1
                if not depth:
                    after = arguments.read(text[: place + 1])
                    if after.verdict is not Verdict.VIOLATED:
                        yield None, after, text[place + 1 :]
                    return
        after = arguments.read(text)
        if after.verdict is not Verdict.VIOLATED:
            yield replace(self, depth=depth, quoted=quoted, digits=digits), after, ""

    def steps(self, char: str, arguments: Monitor) -> Iterator[_Step]:
        """Read a character of a string, a bracket, or what is between."""
        if not self.depth and char.isspace():
            if is_canonical(self.pending + char):
                yield _Step(replace(self, pending=self.pending + char))
        elif not self.depth:
            if char in "{[":
                yield _Step(replace(self, pending="", depth=1), char)
        elif self.quoted:
            if not self._may_escape(char, self.escaped, arguments):
                return
            closes = char == '"' and not self.escaped
            yield _Step(replace(self, quoted=not closes, escaped=char == "\\" and not self.escaped), char)
        elif char in "}]":
            yield _Step(replace(self, depth=self.depth - 1, digits=0) if self.depth > 1 else None, char)
        elif (digits := self._digits_after(char, arguments)) is not None:
            yield _Step(replace(self, depth=self.depth + (char in "{["), quoted=char == '"', digits=digits), char)


@dataclass(frozen=True, kw_only=True)
class DelimitedJSON(Dialect):
    """JSON without white space whose strings have delimiters of their own, and no escapes."""

    delimiters: tuple[str, str]  # what begins and ends a string
    bare: bool = True  # whether keys of letters, digits and underscores are written without quotation marks
    stack: str = ""  # the open brackets
    # what is read: ``"key"``, ``"bare"`` (a key without quotation marks), ``"name"`` (one with them), ``"colon"``,
    # ``"value"``, ``"string"``, or ``"after"`` (a number or word, or after a value)
    mode: str = "value"

    def read(
        self, arguments: Monitor, text: str, *, haste: bool = False
    ) -> Iterator[tuple[Dialect | None, Monitor, str]]:
        """Read what does not end a string in one piece."""
        if haste or self.mode != "string" or not text or {*text} & {*self.delimiters[1], *"\x01\x02"}:
            yield from super().read(arguments, text, haste=haste)
            return
        after = arguments.read(_escaped(self.pending + text))
        if after.verdict is not Verdict.VIOLATED:
            yield replace(self, pending=""), after, ""

    def steps(self, char: str, arguments: Monitor) -> Iterator[_Step]:
        """Read a character of what is expected."""
        yield from getattr(self, f"_{self.mode}")(char, arguments)

    def _value(self, char: str, arguments: Monitor) -> Iterator[_Step]:
        begun = self.pending + char
        if self.stack and self.delimiters[0].startswith(begun) and _lives(arguments, '"'):
            opens = begun == self.delimiters[0]
            yield (
                _Step(replace(self, pending="", mode="string", quoted=True), '"')
                if opens
                else _Step(replace(self, pending=begun))
            )
        elif self.pending:
            return
        elif char in "{[":
            mode = "key" if char == "{" else "value"
            yield _Step(replace(self, stack=self.stack + char, mode=mode), char)
        elif self.stack and (char == "-" or char.isalnum()) and char.isascii():
            yield _Step(replace(self, mode="after", digits=int(not char.isalpha())), char)
        elif char == "]":  # an empty list; the monitor rejects a comma before it
            yield from self._after(char, arguments)

    def _after(self, char: str, arguments: Monitor) -> Iterator[_Step]:
        if char in "}]":
            stack = self.stack[:-1]
            yield _Step(replace(self, stack=stack, mode="after", digits=0) if stack else None, char)
        elif char == ",":
            yield _Step(replace(self, mode="key" if self.stack[-1:] == "{" else "value", digits=0), char)
        elif (
            char.isascii()
            and (char.isalnum() or char in "+-.")
            and (digits := self._digits_after(char, arguments)) is not None
        ):
            yield _Step(replace(self, digits=digits), char)

    def _key(self, char: str, arguments: Monitor) -> Iterator[_Step]:
        if char == "}":
            yield from self._after(char, arguments)
        elif char == '"':
            yield _Step(replace(self, mode="name", quoted=True), char)
        elif self.bare and _is_word(char):
            yield _Step(replace(self, mode="bare", quoted=True), '"' + char)

    def _bare(self, char: str, arguments: Monitor) -> Iterator[_Step]:
        if char == ":":
            yield _Step(replace(self, mode="value", quoted=False), '":')
        elif _is_word(char):
            yield _Step(self, char)

    def _name(self, char: str, arguments: Monitor) -> Iterator[_Step]:
        if char == '"':
            yield _Step(replace(self, mode="colon", quoted=False), char)
        elif char != "\\":
            yield _Step(self, char)

    def _colon(self, char: str, arguments: Monitor) -> Iterator[_Step]:
        if char == ":":
            yield _Step(replace(self, mode="value"), char)

    def _string(self, char: str, arguments: Monitor) -> Iterator[_Step]:
        if char in "\x01\x02":  # the parser uses them itself
            return
        text, end = self.pending + char, self.delimiters[1]
        if text.endswith(end):
            yield _Step(replace(self, pending="", mode="after", quoted=False), _escaped(text[: -len(end)]) + '"')
            return
        kept = next((size for size in range(len(end) - 1, 0, -1) if text.endswith(end[:size])), 0)
        yield _Step(replace(self, pending=text[len(text) - kept :]), _escaped(text[: len(text) - kept]))


def _is_word(char: str) -> bool:
    return char == "_" or char.isalnum()


def _lives(arguments: Monitor, text: str) -> bool:
    """Whether a text may come next."""
    return arguments.read(text).verdict is not Verdict.VIOLATED


def _is_listed(arguments: Monitor) -> bool:
    """Whether the string or key that is open can only become one of a list of words."""
    listed = isinstance(arguments, JSONMonitor) and arguments.following() is not None
    return listed and not _lives(arguments, _UNEXPECTED)


def is_canonical(text: str) -> bool:
    """Whether a text between values has only such white space, and so little in a row, as models write there."""
    blank = len(text) > _MOST_WHITESPACE and text[-_MOST_WHITESPACE - 1 :].isspace()
    return not (blank or (text[-1].isspace() and text[-1] not in " \n"))


def _name(key: str) -> str:
    """Return a key as JSON, with its colon."""
    return f"{json.dumps(key, ensure_ascii=False)}:"


def _escaped(text: str) -> str:
    """Return a text as it is written inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


@dataclass(frozen=True, eq=False)
class _Tags:
    """How each argument of a tool is written."""

    before: str  # expressions of what comes before the argument's name, and between the name and its value
    between: str
    properties: tuple[str, ...]  # the arguments
    required: frozenset[str]  # those that a call must have
    closing: Any  # what comes after a value
    leading: bool  # whether white space before a value is dropped
    texts: frozenset[str]  # the arguments whose values are texts. Values of others are JSON.
    _openings: dict[tuple[str, ...], Any] = field(default_factory=dict, init=False, repr=False)

    def opening(self, keys: tuple[str, ...]) -> Any:
        """Return the expression of what comes before a value, with the name of one of these arguments as ``key``."""
        if keys not in self._openings:
            names = "|".join(map(regex.escape, sorted(keys, key=len, reverse=True))) or "(?!)"
            pattern = rf"\s*{self.before}(?P<key>{names}){self.between}"
            self._openings[keys] = regex.compile(pattern, regex.DOTALL)
        return self._openings[keys]


@dataclass(frozen=True, kw_only=True)
class InlineTags(Dialect):
    """Arguments in tags, one for each."""

    tools: _Tools  # the tags of each tool
    tool: str = ""  # the tool's name
    key: str | None = None  # the argument whose value is being read; None between arguments
    keys: tuple[str, ...] | None = None  # the arguments that may come next; None before they are determined
    used: frozenset[str] = frozenset()  # the arguments so far
    hasty: bool = False  # whether only required arguments may come next
    fresh: bool = True  # whether nothing of the value has been read
    # in a value that is JSON: whether the next character is escaped, and the number of open brackets
    escaped: bool = False
    depth: int = 0

    @classmethod
    def of_pattern(cls, pattern: str, tools: Mapping[str, Mapping[str, Any]], *, casts: bool) -> InlineTags | None:
        """Return the dialect for a template's expression of one argument; None if it has another form."""
        match = _TAG.fullmatch(pattern)
        if match is None:
            return None
        before, between, after = match["before"], match["between"], match["after"]
        leading = between.endswith(r"\s*")
        between = between.removesuffix(r"\s*")
        tags, closing = {}, regex.compile(after, regex.DOTALL)
        for tool, schema in tools.items():
            properties = schema.get("properties") or {}
            required = frozenset(schema.get("required") or ())
            texts = frozenset(name for name, value in properties.items() if not casts or _is_text(value))
            tags[tool] = _Tags(before, between, tuple(properties), required, closing, leading, texts)
        return cls(tools=_Tools(tags))

    def of(self, tool: str) -> Self:
        """Return the state before the arguments of a tool."""
        return replace(self, tool=tool)

    @property
    def leaves(self) -> bool:
        """Whether pending text may be the end of a value."""
        is_text = self.key in self.tools.tags[self.tool].texts
        return self.key is not None and (is_text or not (self.quoted or self.depth))

    def read(
        self, arguments: Monitor, text: str, *, haste: bool = False
    ) -> Iterator[tuple[Dialect | None, Monitor, str]]:
        """Read the rest of a value that is a text in one piece."""
        tags = self.tools.tags[self.tool]
        if haste or not text or self.key not in tags.texts:
            yield from super(InlineTags, self._hastened(tags) if haste else self).read(arguments, text, haste=haste)
            return
        step, rest = self._text_step(tags, text)
        after = arguments.read(step.emitted) if step.emitted else arguments
        if after.verdict is Verdict.VIOLATED:
            return
        if step.state.key is None:
            yield from step.state.read(after, rest)
        elif not step.state.pending or step.state.may_wait(after):
            yield step.state, after, ""

    def _text_step(self, tags: _Tags, text: str) -> tuple[_Step, str]:
        """Return the way to read more of a value that is a text, and the rest after its closing tag."""
        text = self.pending + text
        match = tags.closing.search(text, partial=True)
        ready = text if match is None else text[: match.start()]
        ready = _LEADING.sub("", ready) if self.fresh and tags.leading else ready
        if match is not None and not match.partial:
            state = replace(self, pending="", key=None, quoted=False, digits=0)
            return _Step(state, _escaped(ready) + '"'), text[match.end() :]
        pending = "" if match is None else text[match.start() :]
        return _Step(replace(self, pending=pending, fresh=self.fresh and not ready), _escaped(ready)), ""

    def _hastened(self, tags: _Tags) -> Self:
        """Return the state in haste, in which an optional argument that has not begun does not come next."""
        if self.hasty:
            return self
        keys = tuple(key for key in self.keys or () if key in tags.required)
        begun = not keys or tags.opening(keys).fullmatch(self.pending, partial=True) is None
        return replace(self, hasty=True, keys=self.keys if begun else keys)

    def may_wait(self, arguments: Monitor) -> bool:
        """Whether a value may end here, or go on with the pending text."""
        if self.key is None or self.key in self.tools.tags[self.tool].texts:
            return super().may_wait(arguments)
        return (not self.quoted and not self.depth and self._ends(arguments)) or _lives(arguments, self.pending)

    def steps(self, char: str, arguments: Monitor) -> Iterator[_Step]:
        """Read a character of a value, or between values."""
        tags = self.tools.tags[self.tool]
        yield from self._between(tags, char, arguments) if self.key is None else self._value(tags, char, arguments)

    def _between(self, tags: _Tags, char: str, arguments: Monitor) -> Iterator[_Step]:
        begin = "" if self.used else "{"
        if not self.pending:
            yield _Step(None, begin + "}", unread=True)
        text = self.pending + char
        if not (tags.opening(tags.properties).fullmatch(text, partial=True) and is_canonical(text)):
            return
        keys = self.keys
        if keys is None:  # determined once, before the first character
            left = [key for key in tags.properties if key not in self.used]
            if self.hasty and (tags.required - self.used or _lives(arguments, begin + "}")):
                left = [key for key in left if key in tags.required]
            heads = ((key, f"{begin or ','}{_name(key)}") for key in left)
            keys = tuple(key for key, head in heads if _lives(arguments, head))
        match = tags.opening(keys).fullmatch(text, partial=True) if keys else None
        if match is None:
            return
        if match.partial:
            yield _Step(replace(self, pending=text, keys=keys))
            return
        key = match["key"]
        is_text = key in tags.texts
        state = replace(self, pending="", key=key, keys=None, used=self.used | {key}, fresh=True, quoted=is_text)
        yield _Step(state, f"{begin or ','}{_name(key)}" + '"' * is_text)

    def _value(self, tags: _Tags, char: str, arguments: Monitor) -> Iterator[_Step]:
        if self.key in tags.texts:
            yield self._text_step(tags, char)[0]
            return
        text = self.pending + char
        match = tags.closing.search(text, partial=True)
        ready, pending = (text, "") if match is None else (text[: match.start()], text[match.start() :])
        if match is not None and not match.partial:
            whole = self._after_json(ready, arguments)
            if whole is not None and not (whole.quoted or whole.depth) and self._ends(arguments.read(ready)):
                yield _Step(replace(self, pending="", key=None, quoted=False, digits=0), ready)
            return
        if pending and not is_canonical(pending):
            return
        if self.fresh and tags.leading and ready.isspace():  # it is dropped, so that it might go on
            if is_canonical(ready):
                yield _Step(replace(self, pending=ready))
            return
        if self.fresh and tags.leading:
            ready = _LEADING.sub("", ready)
        after = replace(self, pending=pending, fresh=self.fresh and not ready)._after_json(ready, arguments)
        if after is not None:
            yield _Step(after, ready)

    def _ends(self, arguments: Monitor) -> bool:
        """Whether a value that is JSON may end here."""
        return any(_lives(arguments, end) for end in ",}")

    def _after_json(self, text: str, arguments: Monitor) -> InlineTags | None:
        """Return the state after more of a value that is JSON; None if it would be more than the value."""
        state = self
        for place, char in enumerate(text):
            before = arguments.read(text[:place]) if place else arguments
            if state.quoted and not state._may_escape(char, state.escaped, before):
                return None
            if state.escaped:
                state = replace(state, escaped=False)
            elif state.quoted:
                state = replace(state, escaped=char == "\\", quoted=char != '"')
            else:
                depth, digits = state.depth + (char in "{[") - (char in "}]"), state._digits_after(char, before)
                if digits is None or depth < 0 or (not depth and char in ",:"):
                    return None
                state = replace(state, depth=depth, digits=digits, quoted=char == '"')
        return state


@dataclass(frozen=True, eq=False)
class _Tools:
    """The tags of each tool, as one value that states share."""

    tags: Mapping[str, _Tags] = field(repr=False)


_TAG = regex.compile(
    r"(?P<before>.*?)\(\?P<key>(?:\.\*\?|\.\+\?|\[\^(?:\\.|[^\]])*\][+*]\??|\\w\+)\)(?P<between>.*?)"
    r"\(\?P<value>\.[*+]\??\)(?P<after>.+)",
    regex.DOTALL,
)
"""An expression of one argument: literal text around its name and its value."""


def _is_text(schema: Any) -> bool:
    """Whether a parser keeps the text of a value of this schema, or may keep it."""
    types = _types(schema)
    return not types or "string" in types


def _types(schema: Any) -> tuple[str, ...]:
    """Return the types to which transformers' parser casts a value."""
    if not isinstance(schema, Mapping):
        return ()
    declared = schema.get("type")
    types = [declared] if isinstance(declared, str) else [*declared] if isinstance(declared, list) else []
    for union in ("anyOf", "oneOf"):
        for choice in schema.get(union) or ():
            types += _types(choice)
    return tuple(types)
