"""Monitors of rules on a part of a message: they read the message's regions while the model writes them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, Self

from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.errors import CheckFailed

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
        """UNDECIDED."""
        return Verdict.UNDECIDED

    def read(self, text: str, /) -> Monitor:
        """Return this monitor."""
        return self

    @property
    def key(self) -> Hashable | None:
        """The same for all."""
        return ()

    def may_begin(self, partial: bytes, /) -> bool:
        """Return True."""
        return True


@dataclass(frozen=True, kw_only=True)
class RegionMonitor(Monitor):
    """Monitor that reads one part of a message. Text of other parts costs it nothing."""

    part: str  # ``"answer"``, ``"reasoning"`` or ``"tool_calls"``
    regions: Regions  # the state of the message's parser
    dead: bool = False  # whether a call has failed, or the message cannot be parsed

    def read(self, text: str, /) -> Monitor:
        """Read on."""
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
    """Judge a whole call; True if that fails, because it is judged again, and fails again, with the whole message."""
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

    def noted(self, event: Event) -> MessageMonitor:
        """Judge a whole call, or read more of the part."""
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
        """The keys of the parser and of the inner monitor, and what is held back."""
        keys = (self.regions.key, self.inner.key)
        return None if None in keys else (*keys, self.begun, self.held, self.inside, self.dead)
