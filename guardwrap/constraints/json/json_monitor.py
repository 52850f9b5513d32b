"""JSON read piece by piece: a pushdown recogniser for RFC 8259 that asks at each step what a schema says."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import IntEnum, auto
from typing import Any, Self

from guardwrap.constraints.json import frames, lexical
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
from guardwrap.constraints.utf8 import REPLACEMENT
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.documents.time_limits import VERDICT_SECONDS, TimeLimit, check_deadline, time_limit

__all__ = ["ApplicatorCache", "JSONMonitor"]


class ApplicatorCache:
    """The plans of a schema, made when they are first needed.

    Parameters
    ----------
    schema
        The schema.
    """

    LARGEST = 200_000  # subschemas in all of them, each counted where it stands, and a plan as some more

    def __init__(self, schema: Schema) -> None:
        self.top = (schema.top,)
        self._made: dict[tuple[tuple[Subschema, ...], Kind], Applicators] = {}
        self._size = 0

    def of(self, nodes: tuple[Subschema, ...], kind: Kind) -> Applicators:
        """Return the plan for a value."""
        found = self._made.get((nodes, kind))
        if found is None:
            found = Applicators(nodes, kind)
            self._size += 20 + len(found.nodes)
            if self._size > self.LARGEST:
                self._made, self._size = {}, 0
            self._made[nodes, kind] = found
        return found


class _Want(IntEnum):
    VALUE = auto()
    FIRST_ITEM = auto()  # or the bracket
    KEY = auto()
    FIRST_KEY = auto()  # or the bracket
    COLON = auto()
    COMMA = auto()  # or a bracket, or nothing
    STRING = auto()  # from here on, the rest of something that has begun
    NAME = auto()
    NUMBER = auto()
    WORD = auto()
    NOTHING = auto()


_KINDS: dict[str, Kind] = {'"': "string", "{": "object", "[": "array", "t": "true", "f": "false", "n": "null"}
_KINDS |= dict.fromkeys("-0123456789", "number")
_SPACE = frozenset(" \t\n\r")
_GAPS = frozenset(":,")


class JSONMonitor(Monitor):
    """Where a text that is read under a schema stands. Only one that is being made changes.

    Parameters
    ----------
    plans
        Of the schema.
    compact
        Whether there may be no white space but single spaces after colons and commas.
    """

    verdict: Verdict = Verdict.UNDECIDED

    def __init__(self, plans: ApplicatorCache, *, compact: bool) -> None:
        self._plans = plans
        self._compact = compact
        self._want = _Want.VALUE
        self._frame: Frame | None = None
        self._after_gap = False  # whether a space may stand here in a compact text
        # Of the string, number or word that is read:
        self._plan = plans.of((), "null")
        self._local: Verdicts = ()
        self._total: Verdicts = ()
        self._text = ""  # decoded, as far as it is needed
        self._wants_text = False
        self._length = 0  # characters of the string
        self._rest = ""  # of a string: an escape that is not whole; of a word: what must follow

    def read(self, text: str, /) -> Monitor:
        """Return the monitor that has read this too."""
        try:
            with time_limit(VERDICT_SECONDS):
                return self._read(text)
        except (TimeLimit, RecursionError):
            return self._over(Verdict.UNDECIDED)

    def verdicts(self, texts: Sequence[str], /) -> list[Verdict]:
        """Return for each text the verdict if it came next."""
        try:
            with time_limit(VERDICT_SECONDS):
                return [self._read(text).verdict for text in texts]
        except (TimeLimit, RecursionError):  # for one of them, perhaps
            return super().verdicts(texts)

    @property
    def key(self) -> Hashable | None:
        """Where it stands, and what it knows of the string, number or word that it is in.

        How long a string is counts only if the schema says something about it.
        """
        place = (self._want, self.verdict, self._frame, self._after_gap)
        if self._want not in _STEPS:
            return place
        length = self._length if self._plan.strings else 0
        return (*place, self._plan, self._local, self._total, self._text, self._wants_text, self._rest, length)

    def may_begin(self, partial: bytes, /) -> bool:
        """Return whether it is in a string that may go on so: outside strings JSON is ASCII."""
        if self._want is _Want.NOTHING:
            return self.verdict is not Verdict.VIOLATED
        if self._want is not _Want.STRING and self._want is not _Want.NAME:
            return False
        if self.may_read_one_of([REPLACEMENT]):
            return True
        following = self._following()
        return (
            super().may_begin(partial)
            if following is None
            else self.may_read_one_of(
                [char for char in following if char.encode("utf-8", "surrogatepass").startswith(partial)]
            )
        )

    def _following(self) -> set[str] | None:
        """Return the characters that may follow in the words of a string or key; None where others may, too."""
        closed = [keys for _, keys in self._frame.plan.closed] if self._want is _Want.NAME and self._frame else []
        rules = [rules for _, rules in self._plan.strings]
        if any(each.pattern is not None for each in rules) or any(keys.patterns for keys in closed):
            return None
        words = [words for each in rules for words in each.words] + [keys.words for keys in closed]
        return {char for each in words for char in each.following(self._text)}

    def _copy(self) -> Self:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def _over(self, verdict: Verdict) -> JSONMonitor:
        made = self._copy()
        made._want, made._frame, made.verdict = _Want.NOTHING, None, verdict
        return made

    def _read(self, text: str) -> JSONMonitor:
        if self._want is _Want.NOTHING or not text:
            return self
        made = self._copy()
        try:
            i = 0
            while i < len(text):
                check_deadline()
                step = _STEPS.get(made._want)
                i = made._structure(text[i], i) if step is None else step(made, text, i)
        except Dead:
            return self._over(Verdict.VIOLATED)
        return made

    # --------------------------------------------------------------------------------------------------- structure

    def _structure(self, char: str, i: int) -> int:
        """Read one character outside strings, numbers and words; return where to go on."""
        if char in _SPACE:
            if self._compact and not (self._after_gap and char == " "):
                raise Dead
            self._after_gap = False
            return i + 1
        want, frame = self._want, self._frame
        self._after_gap = char in _GAPS
        if want is _Want.COMMA:
            if frame is None:
                raise Dead
            if char == ",":
                self._frame = frames.promised(frame)
                self._want = _Want.KEY if frame.is_object else _Want.VALUE
            elif char == ("}" if frame.is_object else "]"):
                self._frame = frames.closed(frame)
            else:
                raise Dead
        elif want is _Want.COLON:
            if char != ":":
                raise Dead
            self._want = _Want.VALUE
        elif frame is not None and char == _CLOSING.get(want):
            self._frame = frames.closed(frame)
            self._want = _Want.COMMA
        elif want is _Want.KEY or want is _Want.FIRST_KEY:
            if char != '"' or frame is None:
                raise Dead
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
            raise Dead
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
            self._frame = frames.ended(self._frame, plan, plan.total, plan.total, LITERALS[kind])  # of that kind is one
            self._rest = kind[1:]
            self._want = _Want.WORD
        return i + 1

    # ------------------------------------------------------------------------------- strings, numbers and words

    def _begin(self, child: Children | None, kind: Kind) -> Applicators:
        """Begin a value of a kind, or a key; what allows none of that kind is violated at once."""
        plan = self._plans.of(self._plans.top if child is None else child.nodes, kind)
        frame = self._frame = frames.raised(self._frame, plan, None, plan.total)
        self._plan, self._local, self._total = plan, plan.local, plan.total
        self._text, self._length, self._rest = "", 0, ""
        self._wants_text = plan.wants_text or (frame is not None and (frame.keeps or frame.plan.wants_items))
        return plan

    def _string(self, text: str, i: int) -> int:
        raw = self._rest + text[i:]
        end = lexical.BODY.match(raw).end()  # type: ignore[union-attr]  # it matches nothing, too
        body, closed = raw[:end], raw[end : end + 1] == '"'
        after = i + end + 1 - len(self._rest) if closed else len(text)
        self._rest = ""
        if not closed:
            held = lexical.HIGH_SURROGATE.search(body) if "\\" in body else None
            begun = lexical.LOW_SURROGATE_BEGUN if held else lexical.ESCAPE_BEGUN
            if end < len(raw) and not begun.fullmatch(raw, end):
                raise Dead
            end = held.start(1) if held else end
            body, self._rest = raw[:end], raw[end:]
        piece = json.loads(f'"{body}"') if "\\" in body else body
        if lexical.SURROGATE.search(piece):
            raise Dead
        self._grow(piece)
        if closed:
            self._finish_string()
        return after

    def _grow(self, piece: str) -> None:
        """Take in more of a string or key, and note what it can no longer become."""
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
            self._frame = frames.named(self._frame, self._plan, self._total, self._at_end(text, holds), text)
            self._want = _Want.COLON
        else:
            self._finish(text, holds)

    def _number(self, text: str, i: int) -> int:
        end = lexical.NUMBER_RUN.match(text, i).end()  # type: ignore[union-attr]  # it matches nothing, too
        digits = self._text = self._text + text[i:end]
        if end == len(text):
            if not lexical.NUMBER_BEGUN.fullmatch(digits):
                raise Dead
            self._violate(i for i, limits in self._plan.numbers if not limits.may_hold(digits))
            return end
        if not lexical.NUMBER.fullmatch(digits):
            raise Dead
        try:
            value = lexical.exact_number(digits)
        except (ValueError, OverflowError):  # beyond reading
            raise Dead from None

        def holds(node: Subschema) -> bool | None:
            limits = node.limits
            return limits is None or (limits.hold(value) and (not limits.multiple or node.asks("multipleOf", value)))

        self._finish(value, holds)
        return end

    def _word(self, text: str, i: int) -> int:
        piece = text[i : i + len(self._rest)]
        if not self._rest.startswith(piece):
            raise Dead
        self._rest = self._rest[len(piece) :]
        if not self._rest:
            self._want = _Want.COMMA
        return i + len(piece)

    def _violate(self, places: Iterable[int]) -> None:
        """Note what is violated of the string or number that is read."""
        failed = {i for i in places if self._local[i] == UNDECIDED}
        if failed:
            self._local = tuple(VIOLATED if i in failed else old for i, old in enumerate(self._local))
            before, self._total = self._total, self._plan.totals(self._local, (), finished=False)
            self._frame = frames.raised(self._frame, self._plan, before, self._total)

    def _finish(self, value: Any, holds: Callable[[Subschema], bool | None]) -> None:
        """Finish a string or number that is a value."""
        total = self._at_end(value, holds)
        self._frame = frames.ended(self._frame, self._plan, self._total, total, value)
        self._want = _Want.COMMA

    def _at_end(self, value: Any, holds: Callable[[Subschema], bool | None]) -> Verdicts:
        """Return the total verdicts on a string or number that is finished."""
        local = list(self._local)
        for i, node in self._plan.pending:
            if local[i] == UNDECIDED:
                check_deadline()
                answers = [holds(node), *(node.asks(keyword, value) for keyword in node.asked)]
                undecided = None in answers or node.opaque
                local[i] = VIOLATED if False in answers else UNDECIDED if undecided else SATISFIED
        return self._plan.totals(tuple(local), (), finished=True)


_CLOSING = {_Want.FIRST_ITEM: "]", _Want.FIRST_KEY: "}"}
_STEPS: dict[_Want, Callable[[JSONMonitor, str, int], int]] = {
    _Want.STRING: JSONMonitor._string,
    _Want.NAME: JSONMonitor._string,
    _Want.NUMBER: JSONMonitor._number,
    _Want.WORD: JSONMonitor._word,
}
