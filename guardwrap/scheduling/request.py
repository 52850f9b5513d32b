"""What is asked of the scheduler: one prompt with its own constraint, sampler, budget and seed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from guardwrap.budget import Budget
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.kinds.function import runs_code
from guardwrap.outcomes import Draw, Outcome
from guardwrap.samplers import Sampler
from guardwrap.scheduling.backend import Law, TokenMask, Watch

__all__ = ["DrawOf", "OnEnd", "OnOutcome", "OnText", "Prepared", "Request", "Weigh"]


class Prepared(Protocol):
    """A prompt as a pipeline prepared it."""

    @property
    def number(self) -> int:
        """Its place in its call, from 0: its randomness belongs to it."""

    @property
    def given(self) -> Any:
        """The prompt as the user gave it."""

    @property
    def law(self) -> Law:
        """What its attempts are drawn from."""


DrawOf = Callable[[Any, Any, bool, "float | None"], Draw]
"""From a prompt, what has grown (``Decoded.grown``), whether it ended by itself and log a' in nats to the draw as the
user gets it."""


OnText = Callable[[int, Draw], None]
"""Told the number of a prompt and a text of its own."""
OnOutcome = Callable[[int, Outcome], None]
"""Told the number of a prompt and what it got."""
OnEnd = Callable[["Request", Outcome], None]
"""Told a request and what it got."""


class Weigh(Protocol):
    """Computes log-weights; see ``pipelines.proposed.Weigher``."""

    @property
    def note(self) -> str | None:
        """What rounding does to them."""

    def __call__(self, attempts: Sequence[tuple[Any, Draw, float]]) -> list[float]:
        """Return log a(y) - log a'(y) in nats for each prompt, draw, and log Z that a mask has left of a'."""


@dataclass(frozen=True, eq=False)
class Request:
    """One prompt and everything that is asked for it. Requests that share a batch share the backend, nothing else.

    Parameters
    ----------
    prompt
        The prompt, prepared.
    constraint
        b.
    sampler
        Which attempts become texts.
    budget
        What may be spent.
    seed
        Of the call.
    draw_of
        Makes a draw of an attempt, as the user gets it.
    watch
        Judges a running attempt; None where there is no early abort.
    mask
        Leaves out next tokens that no text which satisfies the constraint begins with; None draws from the law itself.
    lookahead
        The same tokens, where they may be left out only if the law stays what it is: see ``skipping``.
    notes
        For the report.
    proposal
        In words, what attempts are drawn from; None for the model itself.
    weigh
        Computes log a(y) - log a'(y) in nats for attempts that satisfy the constraint. Asked for by some samplers, with
        a proposal.
    place
        The number that its randomness belongs to, beside its seed; None for the prompt's own.
    on_text
        Told each text when it is accepted, and the number of its prompt; in the thread that decides.
    on_end
        Told what the request got when it has ended without an error, while others before it may go on; in that thread.
    """

    prompt: Prepared
    constraint: Constraint
    sampler: Sampler
    budget: Budget
    seed: int
    draw_of: DrawOf
    watch: Watch | None = None
    mask: TokenMask | None = None
    lookahead: TokenMask | None = None
    notes: tuple[str, ...] = ()
    proposal: str | None = None
    weigh: Weigh | None = None
    place: int | None = None
    on_text: OnText | None = None
    on_end: OnEnd | None = None

    @property
    def number(self) -> int:
        """The number that its randomness belongs to."""
        return self.prompt.number if self.place is None else self.place

    @cached_property
    def rule(self) -> Hashable:
        """Its constraint and what its parts are called: texts are judged together where both are equal.

        Constraints are equal whatever names they were given, and a report says the names of its own.
        """
        return self.constraint, tuple(part.title for part in self.constraint.parts)

    @cached_property
    def runs_code(self) -> bool:
        """Whether judging its texts runs code that is not guardwrap's own."""
        return runs_code(self.constraint)
