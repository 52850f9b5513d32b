"""Three-valued verdicts on prefixes, the monitors that give them, and automata for proposals that look ahead."""

from __future__ import annotations

from abc import ABC, abstractmethod
from codecs import getincrementaldecoder
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np

from guardwrap.errors import CheckFailed
from guardwrap.support.time_limits import check_deadline

REPLACEMENT = "\ufffd"
"""The character that invalid UTF-8 bytes are decoded to."""

_decoder = getincrementaldecoder("utf-8")
_LONGER = {2: (0x1F, 0x80), 3: (0x0F, 0x800), 4: (0x07, 0x10000)}  # by length: bits of the first byte, first code point


def split(raw: bytes) -> tuple[str, bytes]:
    """Decode bytes, and return the text and the incomplete character at its end, if any."""
    if raw.isascii():
        return raw.decode("ascii"), b""
    decoder = _decoder("replace")
    text = decoder.decode(raw)
    return text, decoder.getstate()[0]


@lru_cache(512)
def characters(partial: bytes) -> str:
    """Return all characters whose UTF-8 begins with these bytes, in order."""
    length = 2 + (partial[0] >= 0xE0) + (partial[0] >= 0xF0)
    bits, first = _LONGER[length]
    code = partial[0] & bits
    for byte in partial[1:]:
        code = code << 6 | byte & 0x3F
    missing = 6 * (length - len(partial))
    codes = np.arange(max(code << missing, first), min((code + 1) << missing, 0x110000), dtype="<u4")
    whole = codes[(codes < 0xD800) | (codes > 0xDFFF)]  # surrogates are not characters
    return whole.tobytes().decode("utf-32-le")


READ_ALWAYS = 1024
"""Up to so many characters, what a monitor has to read again is read again for each piece."""


class Verdict(IntEnum):
    """Verdict on all texts that begin with a prefix (three-valued, as in LTL3; Bauer et al. 2011)."""

    VIOLATED = -1
    """No continuation can satisfy the constraint."""
    UNDECIDED = 0
    """Not known. Always sound."""
    SATISFIED = 1
    """Every continuation satisfies it."""


_FEW = 64
"""The most characters that ``Monitor.may_begin`` tries one by one; beyond it, the answer is True without a try."""


class Monitor(ABC):
    """Immutable state of a constraint after part of a text (a monitor, as in runtime verification).

    The verdict is sound, however the text is cut into pieces, as ``Constraint.verdict`` is for a whole prefix.
    VIOLATED and SATISFIED are final: no later text changes them.
    """

    @property
    @abstractmethod
    def verdict(self) -> Verdict:
        """Verdict on the text read so far."""

    @abstractmethod
    def read(self, text: str, /) -> Monitor:
        """Return the monitor after more text; this one does not change."""

    def verdicts(self, texts: Sequence[str], /) -> list[Verdict]:
        """Return the verdict after each candidate for the next token."""
        verdicts = []
        for text in texts:
            check_deadline()  # there may be a thousand candidates
            verdicts.append(self.read(text).verdict)
        return verdicts

    @property
    def rereads(self) -> bool:
        """Whether reading a piece takes as long as reading much of the text again."""
        return False

    @property
    def violated_at(self) -> str | None:
        """Where the text violates the constraint, without generated text; None if that is not known."""
        return None

    @property
    def key(self) -> Hashable | None:
        """A value that two monitors of one constraint share only if they judge every continuation alike.

        None if that is not known.
        """
        return None

    @property
    def delimiters(self) -> bytes | None:
        """ASCII characters without which no text that comes next is VIOLATED; None if that is not known.

        A mask then has to look only at the tokens with one of them.
        """
        return None

    def may_begin(self, partial: bytes, /) -> bool:
        """Return whether a character whose UTF-8 begins with these bytes may come next; True if that is not known.

        Incomplete bytes at the end of a text are decoded to U+FFFD, so False means that U+FFFD is VIOLATED as well.
        """
        if self.read(REPLACEMENT).verdict is not Verdict.VIOLATED:
            return True
        possible = characters(partial)
        return len(possible) > _FEW or self.may_read_one_of(possible)

    def may_read_one_of(self, possible: Sequence[str], /) -> bool:
        """Return whether one of these texts may come next."""
        for start in range(0, len(possible), _FEW):
            if any(verdict is not Verdict.VIOLATED for verdict in self.verdicts(possible[start : start + _FEW])):
                return True
        return False


@dataclass(frozen=True)
class Progress:
    """An automaton as functions. States and kinds are any hashable values."""

    start: Any  # the state before the first character
    kinds: Sequence[Hashable]  # the kinds of characters that ``step`` tells apart
    kind_of: Callable[[str], Hashable]  # returns the kind of a character
    step: Callable[[Any, Any], Any]  # returns the state after a character, from the state before it and its kind
    # whether a text that ends in a state satisfies the constraint, from the state and whether the model ended it
    satisfied: Callable[[Any, bool], bool]


class TextPattern(NamedTuple):
    """An expression and how it is used."""

    source: str  # the expression
    flags: Sequence[str] = ()  # the names of its flags
    whole: bool = False  # whether it must match the whole text, and not only somewhere
    version1: bool = True  # whether it is one of guardwrap's own, in version 1 of ``regex``
    absent: bool = False  # whether it must not match


THOUGHTS = frozenset({"reasoning_content", "reasoning", "thinking", "thoughts", "analysis"})
"""Names of message fields with a model's reasoning, which does not count as an answer."""

SEPARATOR = "\n"
"""Separates the pieces of an answer or of reasoning that a message has in several regions."""


class Event(NamedTuple):
    """Something that happened to a region of a message."""

    kind: Literal["open", "text", "close"]  # ``"open"``, ``"text"`` (more of the region's text) or ``"close"``
    part: str  # the part of the message that the region belongs to: ``"answer"``, ``"reasoning"`` or ``"tool_calls"``
    # The new text; for ``"close"`` the region's strings: its text, or each of its calls as JSON. For ``"open"`` of a
    # call that is JSON: ``"call"``, or ``"arguments"`` and the name of the tool if its text is that of the arguments.
    # Empty if the tool is not known.
    texts: tuple[str, ...] = ()


class Regions(Protocol):
    """The state of a message's parser. Immutable."""

    @property
    def failed(self) -> bool:
        """Whether no message can be parsed from a text that begins like this."""

    @property
    def key(self) -> Hashable | None:
        """A value that two states share only if they parse every continuation alike; None if that is not known."""

    def read(self, text: str, /) -> tuple[Regions, Sequence[Event]]:
        """Return the state after more text, and what happened in it."""


@dataclass(frozen=True)
class Context:
    """What comes before the new text."""

    prompt: str | None = None  # the prompt's text; None if prompt and new text are not decoded one after the other
    begun: str = ""  # the text of the assistant message that the new text continues
    # the state of the message's parser after the prompt, and what happened in the prompt; None if the answer is not
    # parsed into a message
    message: tuple[Regions, Sequence[Event]] | None = None
    # Whether the pipeline returns the new text. If it returns the parsed message, only rules on its parts can judge the
    # text while it grows.
    whole: bool = True
    # Whether the new text is a server's pieces of a message as lines of JSON. The server ends it at stop strings.
    lines: bool = False


class Undecided(Monitor):
    """Monitor of a constraint that can judge whole texts only."""

    @property
    def verdict(self) -> Verdict:
        return Verdict.UNDECIDED

    def read(self, text: str, /) -> Monitor:
        return self

    @property
    def key(self) -> Hashable | None:
        return ()

    @property
    def delimiters(self) -> bytes | None:
        return b""

    def may_begin(self, partial: bytes, /) -> bool:
        return True


@dataclass(frozen=True, kw_only=True)
class RegionMonitor(Monitor):
    """Monitor that reads one part of a message. Text of other parts costs it nothing."""

    part: str  # ``"answer"``, ``"reasoning"`` or ``"tool_calls"``
    regions: Regions  # the state of the message's parser
    dead: bool = False  # whether a call has failed, or the message cannot be parsed

    def read(self, text: str, /) -> Monitor:
        if self.dead:
            return self
        regions, events = self.regions.read(text)
        return replace(self, regions=regions, dead=regions.failed).after(events)

    def after(self, events: Iterable[Event]) -> Self:
        """Return the monitor after what happened to the message's regions."""
        monitor = self
        for event in events:
            if event.part == self.part and not monitor.dead:
                monitor = monitor.noted(event)
        return monitor

    @abstractmethod
    def noted(self, event: Event) -> Self:
        """Return the monitor after what happened to a region of its part."""

    def may_begin(self, partial: bytes, /) -> bool:
        """Return True unless the part has failed: a marker may come."""
        return self.verdict is not Verdict.VIOLATED


def holds_or_raises_later(holds: Callable[[str], bool], text: str) -> bool:
    """Judge a whole part; True if that fails, because it is judged again, and fails again, with the whole text."""
    try:
        return holds(text)
    except CheckFailed:
        return True


@dataclass(frozen=True, kw_only=True)
class MessageMonitor(RegionMonitor):
    """Monitor of a constraint on one part of a message.

    White space at the end of a piece is held back until more text shows that it belongs to the part.
    """

    holds: Callable[[str], bool]  # judges a whole call
    inner: Monitor  # the constraint's monitor, which reads the answer or the reasoning
    begun: bool = False  # whether the inner monitor has read something
    held: str = ""  # white space, or the separator before a further piece, that has not been read yet
    inside: bool = False  # whether something of the current piece has been read

    @property
    def verdict(self) -> Verdict:
        """VIOLATED once a call has failed; else, from its beginning, the verdict on the part."""
        if self.dead:
            return Verdict.VIOLATED
        return self.inner.verdict if self.begun else Verdict.UNDECIDED

    @property
    def violated_at(self) -> str | None:
        """The place in the part; None for calls, which are judged as a whole."""
        return self.inner.violated_at if self.begun and not self.dead else None

    @property
    def rereads(self) -> bool:
        return self.inner.rereads

    def noted(self, event: Event) -> MessageMonitor:
        if self.part == "tool_calls":
            if event.kind != "close":
                return self
            calls = [text.strip() for text in event.texts]
            return replace(self, dead=not all(holds_or_raises_later(self.holds, call) for call in calls))
        if event.kind == "text":
            return self._reading(event.texts[0])
        return replace(self, held=SEPARATOR if self.begun else "", inside=False)

    def _reading(self, text: str) -> MessageMonitor:
        text = text if self.inside else text.lstrip()
        if not text:
            return self
        text = self.held + text
        ready = text.rstrip()
        if not ready:
            return replace(self, held=text)
        held = text[len(ready) :]
        return replace(self, inner=self.inner.read(ready), begun=True, held=held, inside=True)

    @property
    def key(self) -> Hashable | None:
        keys = (self.regions.key, self.inner.key)
        return None if None in keys else (*keys, self.begun, self.held, self.inside, self.dead)
