"""Streaming of texts while they are drawn: only of attempts that are certain to be accepted, and next in launch order.

An attempt is certain to become the next text of its request if

- its verdict is SATISFIED, so that it satisfies the constraint however it continues,
- the sampler takes every attempt that does,
- all attempts launched before it are decided, and the request has not ended, and
- nothing can drop it: of a budget's limits, only ``deadline`` and ``timeout`` stop the next attempt in flight.

All other texts are passed on as a whole when they are accepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from guardwrap.engine.scheduling.backend import Watch
from guardwrap.engine.scheduling.request import PassOn, Request
from guardwrap.errors import CheckFailed, ModelError, quoted
from guardwrap.outcomes import Draw
from guardwrap.support.formatting import counted

OnPiece = Callable[[int, int, str], None]
"""Called with the number of a prompt, the index of one of its texts, and the next piece of that text."""

SHOWN = 8
"""The most texts whose first streamed tokens a report names."""

_COMPLETE = "already complete when certain to be accepted"
_CHANGED = (
    "a text that was streamed changed when it was drawn again after memory ran out, as half precision allows; use "
    "float32, a smaller batch_size, or do not stream"
)
_UNSOUND = (
    "was SATISFIED by the beginning of a text, part of which was streamed, and violated by the whole text; return "
    "SATISFIED only if every continuation satisfies it"
)


def passing(on_piece: OnPiece | None) -> PassOn | None:
    """Return the ``pass_on`` of requests that passes pieces to a user's function; None without one."""
    if on_piece is None:
        return None

    def pass_on(request: Request, number: int, text: str, ended: bool) -> None:
        if text:
            on_piece(request.prompt.number, number, text)

    return pass_on


def why_whole(request: Request) -> str | None:
    """Return why no text of a request can be passed on while it is drawn, in words; None if one may be."""
    budget = request.spec.budget
    if not request.spec.sampler.takes_all:
        return f"the sampler {request.spec.sampler.name!r} decides about complete texts"
    if budget.deadline is not None or budget.timeout is not None:
        return f"the {'timeout' if budget.deadline is None else 'deadline'} may stop a text that is being drawn"
    if request.prompt.law.beam_results is not None:
        return "a beam search gives whole texts"
    return request.drawing.whole_because if request.drawing.settled is None or request.drawing.watch is None else None


@dataclass(eq=False)
class LiveText:
    """The text of a request that is being passed on, and when earlier ones were."""

    request: Request
    pass_on: PassOn  # receives the pieces
    _why_whole: str | None = field(init=False)
    _sent: str = ""  # the part that was passed on of the attempt that is next in launch order
    _since: dict[int, int] = field(default_factory=dict)  # the tokens of each text when its first piece was passed on
    _whole: Counter[str] = field(default_factory=Counter)  # why texts were passed on as a whole

    def __post_init__(self) -> None:
        self._why_whole = why_whole(self.request)

    def watch(self, watch: Watch, next_text: Callable[[], int | None]) -> Watch:
        """Return an attempt's watch that also passes on what is certain to be accepted.

        ``next_text``: returns the index of the text that the attempt becomes if it satisfies the constraint; None
        while attempts before it are undecided.
        """
        settled = self.request.drawing.settled
        if self._why_whole is not None or settled is None:
            return watch

        def watched(grown: Any) -> str | None:
            blame = watch(grown)
            if blame is None and (number := next_text()) is not None:
                text = settled.settled(grown)
                if text is not None:
                    self._extend(number, text, len(grown))
            return blame

        return watched

    def _extend(self, number: int, text: str, tokens: int) -> None:
        """Pass on what a text of so many tokens has that was not passed on yet."""
        if self._sent.startswith(text):  # an attempt that is drawn again, after memory ran out
            return
        if not text.startswith(self._sent):
            raise ModelError(_CHANGED)
        piece, self._sent = text[len(self._sent) :], text
        self._since.setdefault(number, tokens)
        self.pass_on(self.request, number, piece, False)

    def accept(self, number: int, draw: Draw) -> None:
        """Pass on the rest of a text that was accepted, perhaps all of it."""
        if not draw.text.startswith(self._sent):
            raise ModelError(_CHANGED)
        rest, self._sent = draw.text[len(self._sent) :], ""
        if number not in self._since:
            settled = self.request.drawing.settled
            part = None if settled is None or self._why_whole else settled.undecided(draw.token_ids[:-1])
            until_end = _COMPLETE if part is None else f"{quoted(part)} was undecided until the end"
            self._whole[self._why_whole or until_end] += 1
        self.pass_on(self.request, number, rest, True)

    def require_nothing_sent(self, blame: str) -> None:
        """Raise CheckFailed if a part of an attempt that is rejected was passed on."""
        if self._sent:
            raise CheckFailed(blame, _UNSOUND)

    def notes(self) -> Iterator[str]:
        """Yield notes for the report: which texts were passed on while they were drawn, and why others were not."""
        if self._since:
            shown = [f"text {number + 1} from token {first} on" for number, first in [*self._since.items()][:SHOWN]]
            more = len(self._since) - len(shown)
            yield f"streamed while drawn: {', '.join(shown)}{f', and {more:,} more' if more else ''}"
        for why, count in self._whole.most_common():
            yield f"streamed as a whole: {counted(count, 'text')}; reason: {why}"
