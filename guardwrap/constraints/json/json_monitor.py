"""Incremental recognizer for JSON: a pushdown automaton for RFC 8259 that applies a schema as it reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import IntEnum, auto
from typing import Any, Self

from guardwrap.constraints.json import frames
from guardwrap.constraints.json.applicators import (
    LITERALS,
    SATISFIED,
    UNDECIDED,
    VIOLATED,
    Applicators,
    Children,
    Verdicts,
)
from guardwrap.constraints.json.frames import Dead, Frame
from guardwrap.constraints.json.subschemas import Kind, Schema, Subschema
from guardwrap.constraints.json_paths import NOT_JSON, WHITE_SPACE, shown_place
from guardwrap.constraints.verdicts import REPLACEMENT, Monitor, Verdict
from guardwrap.support import lexical
from guardwrap.support.time_limits import VERDICT_SECONDS, OutOfTime, check_deadline, time_limit


class ApplicatorCache:
    """The ``Applicators`` of a schema, created when they are first needed."""

    LARGEST = 200_000  # limit on the size: the subschemas of all ``Applicators``, plus 20 for each

    def __init__(self, schema: Schema) -> None:
        self.top = (schema.top,)
        self._made: dict[tuple[tuple[Subschema, ...], Kind], Applicators] = {}
        self._size = 0

    def of(self, nodes: tuple[Subschema, ...], kind: Kind) -> Applicators:
        """Return the ``Applicators`` for a value of a kind to which these subschemas apply."""
        applicators = self._made.get((nodes, kind))
        if applicators is None:
            applicators = Applicators(nodes, kind)
            self._size += 20 + len(applicators.nodes)
            if self._size > self.LARGEST:
                self._made, self._size = {}, 0
            self._made[nodes, kind] = applicators
        return applicators


class _Want(IntEnum):
    """What the recognizer expects next."""

    VALUE = auto()
    FIRST_ITEM = auto()  # or the closing bracket
    KEY = auto()
    FIRST_KEY = auto()  # or the closing bracket
    COLON = auto()
    COMMA = auto()  # or a closing bracket, or the end of the text
    STRING = auto()  # this and the next three: the rest of a token that has begun
    NAME = auto()  # a key
    NUMBER = auto()
    WORD = auto()  # null, true or false
    NOTHING = auto()  # the verdict is final


_KINDS: dict[str, Kind] = {'"': "string", "{": "object", "[": "array", "t": "true", "f": "false", "n": "null"}
_KINDS |= dict.fromkeys("-0123456789", "number")
_SPACE = frozenset(" \t\n\r")
_GAPS = frozenset(":,")
_DELIMITERS = b'"\\' + bytes(range(0x20))


class JSONMonitor(Monitor):
    """State of the recognizer after part of a text. Immutable, except for a new copy while it reads."""

    verdict: Verdict = Verdict.UNDECIDED

    _end: tuple[str, Frame | None, _Want, str, str] | None = None  # a reason or "", the last state, the last character

    def __init__(self, plans: ApplicatorCache, *, compact: bool, declared: frozenset[str] = frozenset()) -> None:
        self._plans = plans
        self._declared = declared
        self._compact = compact
        self._exponents = True  # whether numbers may have exponents
        self._want = _Want.VALUE
        self._frame: Frame | None = None
        self._after_gap = False  # whether a compact text may have a space here
        # The current string, number or word:
        self._plan = plans.of((), "null")
        self._local: Verdicts = ()
        self._total: Verdicts = ()
        self._text = ""  # the decoded text, if it is needed
        self._wants_text = False
        self._length = 0  # characters of the string so far
        self._rest = ""  # in a string: an incomplete escape; in a word: the characters that must follow

    def without_exponents(self) -> Self:
        """Return the monitor of numbers without exponents, so that digits beyond a limit are VIOLATED."""
        copy = self._copy()
        copy._exponents = False
        return copy

    def read(self, text: str, /) -> Monitor:
        """Return the monitor after more text."""
        try:
            with time_limit(VERDICT_SECONDS):
                return self._read(text)
        except (OutOfTime, RecursionError):
            return self._over(Verdict.UNDECIDED)

    def verdicts(self, texts: Sequence[str], /) -> list[Verdict]:
        """Return the verdict after each candidate."""
        try:
            with time_limit(VERDICT_SECONDS):
                return [self._read(text).verdict for text in texts]
        except (OutOfTime, RecursionError):  # perhaps only one of them, so judge each within its own limit
            return super().verdicts(texts)

    @property
    def key(self) -> Hashable | None:
        """The state of the recognizer, including the current string, number or word.

        The length of a string is part of it only if the schema has rules for the string.
        """
        outside = (self._want, self.verdict, self._frame, self._after_gap)
        if self._want not in _STEPS:
            return outside
        length = self._length if self._plan.strings else 0
        return (*outside, self._plan, self._local, self._total, self._text, self._wants_text, self._rest, length)

    @property
    def delimiters(self) -> bytes | None:
        """What ends or escapes in a string or key, or may not be in it, unless the schema has rules for it."""
        is_key = self._want is _Want.NAME
        if self._rest or not (is_key or self._want is _Want.STRING) or self._plan.strings:
            return None
        return None if is_key and self._frame is not None and self._frame.plan.closed else _DELIMITERS

    @property
    def violated_at(self) -> str | None:
        """Where the text is invalid, such as ``$.items[].name``, or that it is not JSON; None unless VIOLATED."""
        if self._end is None:
            return None
        reason, frame, want, text, char = self._end
        steps: list[str | int] = [text] if want is _Want.COLON else []
        inside = want in _IN_CHILD
        if want is _Want.NAME:
            steps = ["*"]
        elif frame is not None and frame.is_object and not inside and char in '}",':
            steps += frames.missing_keys(frame)[:1] if char == "}" else ["*"] * (want is not _Want.COLON)
        while frame is not None:
            if inside:
                steps.append(frame.key if frame.is_object else frame.count)
            frame, inside = frame.above, True
        return reason or shown_place(reversed(steps), self._declared)

    def may_begin(self, partial: bytes, /) -> bool:
        """Return whether these bytes may continue the current string. Outside strings, JSON is ASCII."""
        if self._want is _Want.NOTHING:
            return self.verdict is not Verdict.VIOLATED
        if self._want is not _Want.STRING and self._want is not _Want.NAME:
            return False
        if self.may_read_one_of([REPLACEMENT]):
            return True
        following = self.following()
        return (
            super().may_begin(partial)
            if following is None
            else self.may_read_one_of(
                [char for char in following if char.encode("utf-8", "surrogatepass").startswith(partial)]
            )
        )

    def following(self) -> set[str] | None:
        """Return the characters that can follow in the words that schemas list for the current string or key.

        None if a pattern allows others; a schema without either is not asked.
        """
        closed = [keys for _, keys in self._frame.plan.closed] if self._want is _Want.NAME and self._frame else []
        rules = [rules for _, rules in self._plan.strings]
        if any(each.pattern is not None for each in rules) or any(keys.patterns for keys in closed):
            return None
        words = [words for each in rules for words in each.words] + [keys.words for keys in closed]
        return {char for each in words for char in each.following(self._text)}

    def _copy(self) -> Self:
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__)
        return copy

    def _over(self, verdict: Verdict) -> JSONMonitor:
        copy = self._copy()
        copy._want, copy._frame, copy.verdict = _Want.NOTHING, None, verdict
        return copy

    def _read(self, text: str) -> JSONMonitor:
        if self._want is _Want.NOTHING or not text:
            return self
        copy = self._copy()
        try:
            i = 0
            while i < len(text):
                check_deadline()
                step = _STEPS.get(copy._want)
                i = copy._structure(text[i], i) if step is None else step(copy, text, i)
        except Dead as dead:
            over = self._over(Verdict.VIOLATED)
            over._end = (*(dead.args or ("",)), copy._frame, copy._want, copy._text, text[i : i + 1])
            return over
        return copy

    # --------------------------------------------------------------------------------------------------- structure

    def _structure(self, char: str, i: int) -> int:
        """Read the character at ``i``, outside strings, numbers and words; return the position to continue at."""
        if char in _SPACE:
            if self._compact and not (self._after_gap and char == " "):
                raise Dead(WHITE_SPACE)
            self._after_gap = False
            return i + 1
        want, frame = self._want, self._frame
        self._after_gap = char in _GAPS
        if want is _Want.COMMA:
            if frame is None:
                raise Dead(NOT_JSON)
            if char == ",":
                self._frame = frames.promised(frame)
                self._want = _Want.KEY if frame.is_object else _Want.VALUE
            elif char == ("}" if frame.is_object else "]"):
                self._frame = frames.closed(frame)
            else:
                raise Dead(NOT_JSON)
        elif want is _Want.COLON:
            if char != ":":
                raise Dead(NOT_JSON)
            self._want = _Want.VALUE
        elif frame is not None and char == _CLOSING.get(want):
            self._frame = frames.closed(frame)
            self._want = _Want.COMMA
        elif want is _Want.KEY or want is _Want.FIRST_KEY:
            if char != '"' or frame is None:
                raise Dead(NOT_JSON)
            if want is _Want.FIRST_KEY:
                self._frame = frames.promised(frame)
            self._begin(frame.plan.names, "string")
            self._want = _Want.NAME
        else:
            if want is _Want.FIRST_ITEM and frame is not None:
                self._frame = frames.promised(frame)
            return self._value(char, i)
        return i + 1

    def _value(self, char: str, i: int) -> int:
        kind = _KINDS.get(char)
        if kind is None:
            raise Dead(NOT_JSON)
        frame = self._frame
        plan = self._begin(None if frame is None else frame.child, kind)
        if kind in ("object", "array"):
            self._frame = Frame(self._frame, plan, is_object=kind == "object", keeps=self._wants_text)
            self._want = _Want.FIRST_KEY if kind == "object" else _Want.FIRST_ITEM
        elif kind == "number":
            self._want = _Want.NUMBER
            return i
        elif kind == "string":
            self._want = _Want.STRING
        else:
            # The first letter decides which word it is, so the value is complete for the schema.
            self._frame = frames.ended(self._frame, plan, plan.total, plan.total, LITERALS[kind])
            self._rest = kind[1:]
            self._want = _Want.WORD
        return i + 1

    # ------------------------------------------------------------------------------- strings, numbers and words

    def _begin(self, child: Children | None, kind: Kind) -> Applicators:
        """Begin a value of a kind, or a key. Subschemas that do not allow the kind are violated at once."""
        plan = self._plans.of(self._plans.top if child is None else child.nodes, kind)
        frame = self._frame = frames.raised(self._frame, plan, None, plan.total)
        self._plan, self._local, self._total = plan, plan.local, plan.total
        self._text, self._length, self._rest = "", 0, ""
        self._wants_text = plan.wants_text or (frame is not None and (frame.keeps or frame.plan.wants_items))
        return plan

    def _string(self, text: str, i: int) -> int:
        raw = self._rest + text[i:]
        end = lexical.BODY.match(raw).end()  # type: ignore[union-attr]  # always matches, if only the empty string
        body, closed = raw[:end], raw[end : end + 1] == '"'
        after = i + end + 1 - len(self._rest) if closed else len(text)
        self._rest = ""
        if not closed:
            held = lexical.HIGH_SURROGATE.search(body) if "\\" in body else None
            begun = lexical.LOW_SURROGATE_BEGUN if held else lexical.ESCAPE_BEGUN
            if end < len(raw) and not begun.fullmatch(raw, end):
                raise Dead(NOT_JSON)
            end = held.start(1) if held else end
            body, self._rest = raw[:end], raw[end:]
        piece = json.loads(f'"{body}"') if "\\" in body else body
        if lexical.SURROGATE.search(piece):
            raise Dead(NOT_JSON)
        self._grow(piece)
        if closed:
            self._finish_string()
        return after

    def _grow(self, piece: str) -> None:
        """Add a piece to the current string or key, and note which subschemas it violates now."""
        before = self._length
        self._length += len(piece)
        is_key = self._want is _Want.NAME
        if is_key or self._wants_text:
            self._text += piece
        self._violate(
            i
            for i, rules in self._plan.strings
            if self._length > rules.most
            or not all(words.may_become(self._text) for words in rules.words)
            or (rules.pattern is not None and not rules.pattern.may_be_found(self._text, before))
        )
        if is_key and self._frame is not None:
            self._frame = frames.naming(self._frame, self._text)

    def _finish_string(self) -> None:
        text, length = self._text, self._length

        def holds(node: Subschema) -> bool | None:
            rules = node.strings
            return rules is None or (
                rules.least <= length <= rules.most
                and all(text in words for words in rules.words)
                and (rules.pattern is None or rules.pattern.found_in(text))
                and (not rules.asked or node.asks("format", text))
            )

        if self._want is _Want.NAME and self._frame is not None:
            total, self._want = self._at_end(text, holds), _Want.COLON
            self._frame = frames.named(self._frame, self._plan, self._total, total, text)
        else:
            self._finish(text, holds)

    def _number(self, text: str, i: int) -> int:
        end = lexical.NUMBER_RUN.match(text, i).end()  # type: ignore[union-attr]  # always matches
        digits = self._text = self._text + text[i:end]
        if end == len(text):
            if not lexical.NUMBER_BEGUN.fullmatch(digits):
                raise Dead(NOT_JSON)
            self._violate(
                i
                for i, limits in self._plan.numbers
                if not limits.may_hold(digits) or not (self._exponents or limits.may_reach(digits))
            )
            return end
        if not lexical.NUMBER.fullmatch(digits):
            raise Dead(NOT_JSON)
        try:
            value = lexical.exact_number(digits)
        except (ValueError, OverflowError):  # beyond the range of a double
            raise Dead(NOT_JSON) from None

        def holds(node: Subschema) -> bool | None:
            limits = node.limits
            return limits is None or (limits.hold(value) and (not limits.multiple or node.asks("multipleOf", value)))

        self._finish(value, holds)
        return end

    def _word(self, text: str, i: int) -> int:
        piece = text[i : i + len(self._rest)]
        if not self._rest.startswith(piece):
            raise Dead(NOT_JSON)
        self._rest = self._rest[len(piece) :]
        if not self._rest:
            self._want = _Want.COMMA
        return i + len(piece)

    def _violate(self, indices: Iterable[int]) -> None:
        """Note that the current string or number violates the subschemas at these indices."""
        failed = {i for i in indices if self._local[i] == UNDECIDED}
        if failed:
            self._local = tuple(VIOLATED if i in failed else old for i, old in enumerate(self._local))
            before, self._total = self._total, self._plan.totals(self._local, (), finished=False)
            self._frame = frames.raised(self._frame, self._plan, before, self._total)

    def _finish(self, value: Any, holds: Callable[[Subschema], bool | None]) -> None:
        """Complete a string or number that is a value, not a key."""
        total = self._at_end(value, holds)
        self._frame = frames.ended(self._frame, self._plan, self._total, total, value)
        self._want = _Want.COMMA

    def _at_end(self, value: Any, holds: Callable[[Subschema], bool | None]) -> Verdicts:
        """Return the total verdicts on a complete string or number."""
        local = list(self._local)
        for i, node in self._plan.pending:
            if local[i] == UNDECIDED:
                check_deadline()
                answers = [holds(node), *(node.asks(keyword, value) for keyword in node.asked)]
                local[i] = VIOLATED if False in answers else UNDECIDED if None in answers else SATISFIED
        return self._plan.totals(tuple(local), (), finished=True)


_IN_CHILD = {_Want.VALUE, _Want.FIRST_ITEM, _Want.STRING, _Want.NUMBER, _Want.WORD}
_CLOSING = {_Want.FIRST_ITEM: "]", _Want.FIRST_KEY: "}"}
_STEPS: dict[_Want, Callable[[JSONMonitor, str, int], int]] = {
    _Want.STRING: JSONMonitor._string,
    _Want.NAME: JSONMonitor._string,
    _Want.NUMBER: JSONMonitor._number,
    _Want.WORD: JSONMonitor._word,
}
