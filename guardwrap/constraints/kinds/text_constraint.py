"""The base of constraints on one string, and of those that compare it with other texts or with the prompt."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, ClassVar, NamedTuple, Self

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.checking import Resumed, Resuming
from guardwrap.constraints.verdicts import Context, MessageMonitor, Monitor, Undecided, Verdict
from guardwrap.constraints.views import Part, PartMonitor, View, in_json, message_part, settled_parts, view
from guardwrap.errors import CheckFailed
from guardwrap.outcomes import Draw
from guardwrap.support.threads import cached_property
from guardwrap.support.time_limits import (
    VERDICT_SECONDS,
    OutOfTime,
    TimeLimit,
    charged,
    time_limit,
)


class Fault(NamedTuple):
    """What is wrong with a text, in words that may quote it; the fields of a ``Rejection``."""

    reason: str = ""
    path: str | None = None  # the path of the wrong value in JSON; None for the whole text

    def __str__(self) -> str:
        return self.reason if self.path is None else f"{self.path}: {self.reason}"


class TextConstraint(Constraint):
    """A constraint that judges one string at a time, selected by a view of the draw.

    Every string that the view selects must hold. Subclasses implement ``holds`` and, where it can be sound,
    ``prefix_verdict``. Their time counts towards the limit of ``CHECK_SECONDS`` that all parts of a constraint share
    for one text.
    """

    on: View
    way_out: ClassVar[str] = ""
    """Advice that the error message ends with when a string exceeds the constraint's own time limit."""

    @abstractmethod
    def holds(self, text: str) -> bool:
        """Judge one whole string."""

    def fault(self, text: str) -> str:
        """Return what is wrong with a string that does not hold, in a few words; "" if the title says enough.

        It may quote the string, so show it only to the person who supplied the text. Errors and reports leave it out.
        """
        return ""

    def monitor(self) -> Monitor:
        """Return a monitor; of a part between markers, one that reads only that part."""
        if isinstance(self.on, Part) and self.on.has_markers:
            return PartMonitor(self.on, self._on_completion.monitor(), self.holds)
        begun = self.resumed(None, "") if self.on == "completion" else None
        return super().monitor() if begun is None else Resuming(self.resumed, begun)

    def monitor_in(self, context: Context, /) -> Monitor:
        """Return a monitor that reads on from the prompt, or only the part of the message that is judged."""
        part = message_part(self.on)
        if part is not None:
            if context.message is None or in_json(self.on):
                return Undecided()
            regions, before = context.message
            inner = self._on_completion.monitor()
            return MessageMonitor(part=part, regions=regions, holds=self.holds, inner=inner).after(before)
        if not context.whole:
            return Undecided()
        earlier = {"full": context.prompt, "message": context.begun}.get(str(self.on))
        if earlier is None:
            return self.monitor()
        return self._on_completion.monitor().read(earlier)

    @cached_property
    def _on_completion(self) -> Self:
        """The same constraint, for whole texts."""
        whole = copy.copy(self)
        object.__setattr__(whole, "on", "completion")
        whole.__dict__.pop("digest", None)
        return whole

    def fault_at(self, text: str) -> Fault:
        """Return what is wrong with a string, and where, if it is JSON."""
        return Fault(self.fault(text))

    def fault_of(self, draw: Draw) -> Fault:
        """Return what is wrong with a rejected draw: the fault of the first string of its view that does not hold."""
        try:
            with charged(draw):
                texts = view(draw, self.on)
                if texts is None:
                    return Fault(f"has no part {self.on}")
                return next((self.fault_at(text) for text in texts if not self.holds(text)), Fault())
        except OutOfTime:
            return Fault()

    def found_in(self, text: str) -> str:
        """Return what in a string makes it hold, in a few words, for negations; "" if the title says enough.

        It may quote the string, as ``fault`` may.
        """
        return ""

    def match_of(self, draw: Draw) -> str:
        """Return what makes a draw hold that a negation rejects: what is in the first string of its view."""
        try:
            with charged(draw):
                texts = view(draw, self.on)
                if not texts:
                    return f"has no part {self.on}"
                return next(filter(None, map(self.found_in, texts)), "")
        except OutOfTime:
            return ""

    def prefix_verdict(self, prefix: str) -> Verdict:
        """Judge a prefix of the string that ``holds`` receives when the text is complete."""
        resumed = self.resumed(None, prefix)
        return Verdict.UNDECIDED if resumed is None else resumed.verdict

    def resumed(self, summary: Any, text: str, /) -> Resumed | None:
        """Judge a prefix from a summary of its beginning, and the text after it; None if prefixes are judged whole.

        ``summary``: that of an earlier ``Resumed``, whose ``rest`` the text begins with; None for a whole prefix.
        """
        return None

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        """Judge the strings of each draw's view."""
        return [self._holds(draw) for draw in draws]

    def _holds(self, draw: Draw) -> bool:
        try:
            with charged(draw):
                texts = view(draw, self.on)
                return texts is not None and all(self.holds(text) for text in texts)
        except TimeLimit as limit:
            text = f"one text of {len(draw.text)} characters"
            reason = f"took more than {limit.seconds:g} s on {text}{self.way_out}"
            if limit.shared:
                reason = (
                    f"was running when the {limit.seconds:g} s that all parts together may spend on {text} ran out; "
                    "simplify it, or shorten the texts"
                )
            raise CheckFailed(self.title, reason) from None

    def verdict(self, prefix: str, /) -> Verdict:
        """Judge the strings of the view that can no longer change; VIOLATED as soon as one of them fails."""
        try:
            with time_limit(VERDICT_SECONDS):
                if self.on == "completion":
                    return self.prefix_verdict(prefix)
                if isinstance(self.on, Part) and self.on.has_markers:
                    return self.monitor().read(prefix).verdict
                return self._settled_verdict(prefix)
        except OutOfTime:
            return Verdict.UNDECIDED

    def _settled_verdict(self, prefix: str) -> Verdict:
        parts = settled_parts(prefix, self.on)
        try:
            if not all(self.holds(text) for text in parts):
                return Verdict.VIOLATED
        except CheckFailed:  # the check of the whole text raises it again
            return Verdict.UNDECIDED
        one = self.on.each is None if isinstance(self.on, Part) else self.on.startswith("first_")
        return Verdict.SATISFIED if parts and one and not in_json(self.on) else Verdict.UNDECIDED


class ComparedConstraint(TextConstraint):
    """A constraint that compares each text with its field ``compared``: a text or several, or None for the prompt."""

    compared: ClassVar[str] = "source"

    @property
    def documents(self) -> tuple[str, ...]:
        """The texts to compare with; none if that is the prompt, and it is not known yet."""
        source = getattr(self, self.compared)
        return (source,) if isinstance(source, str) else tuple(source or ())

    @property
    def _takes_prompt(self) -> bool:
        return getattr(self, self.compared) is None

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        return [super(ComparedConstraint, self._of(draw.prompt)).check([draw])[0] for draw in draws]

    def fault_of(self, draw: Draw) -> Fault:
        return super(ComparedConstraint, self._of(draw.prompt)).fault_of(draw)

    def match_of(self, draw: Draw) -> str:
        return super(ComparedConstraint, self._of(draw.prompt)).match_of(draw)

    def monitor(self) -> Monitor:
        return Undecided() if self._takes_prompt else super().monitor()

    def monitor_in(self, context: Context, /) -> Monitor:
        if self._takes_prompt and context.prompt is None:
            return Undecided()
        return super(ComparedConstraint, self._of(context.prompt or "")).monitor_in(context)

    def verdict(self, prefix: str, /) -> Verdict:
        return Verdict.UNDECIDED if self._takes_prompt else super().verdict(prefix)

    def _of(self, prompt: str) -> Self:
        """Return the constraint with the prompt in place of None."""
        if not self._takes_prompt:
            return self
        filled = copy.copy(self)
        # What has been computed without the prompt does not hold with it.
        filled.__dict__.clear()
        filled.__dict__.update({each.name: getattr(self, each.name) for each in fields(self)})  # type: ignore[arg-type]
        object.__setattr__(filled, self.compared, prompt)
        return filled
