"""Texts that are missing because the budget ended: fallbacks and exceptions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.checking import run_check
from guardwrap.documents.inputs import is_text
from guardwrap.errors import BudgetExhausted, Deterministic, UsageError, nearest, strict_arguments
from guardwrap.outcomes import Outcome
from guardwrap.session.plain_texts import plain_draw

__all__ = ["Fallback", "OnExhausted", "completed", "raise_if_short", "require_on_exhausted"]

_WORDS = ("raise", "none")


@strict_arguments
@dataclass(frozen=True)
class Fallback:
    """The text to return for each one that is missing because the budget ended. It is checked like any other text.

    Parameters
    ----------
    text
        The text, or a function that takes the prompt and returns it.

    Raises
    ------
    UsageError
        If it is neither, or the text contains half of a surrogate pair.
    """

    text: str | Callable[[Any], str]

    def __post_init__(self) -> None:
        if not callable(self.text):
            _require_text(self.text)


OnExhausted: TypeAlias = Literal["raise", "none"] | Fallback


def require_on_exhausted(value: Any) -> OnExhausted:
    """Return ``on_exhausted`` if it is valid; raise UsageError otherwise."""
    if isinstance(value, Fallback) or value in _WORDS:
        allowed: OnExhausted = value
        return allowed
    raise UsageError(
        f"on_exhausted={value!r} is not 'raise', 'none' or Fallback('a text or a function'){nearest(value, _WORDS)}"
    )


def completed(
    on_exhausted: OnExhausted,
    outcome: Outcome,
    prompt: str,
    constraint: Constraint,
    tokenizer: Any,
    *,
    begun: str = "",
) -> Outcome:
    """Fill missing texts with the fallback, if there is one and it satisfies the constraint.

    Parameters
    ----------
    on_exhausted
        The fallback; with ``"raise"`` and ``"none"`` the outcome is returned as it is.
    outcome
        The outcome, with or without all of its texts.
    prompt
        The prompt as text.
    constraint
        The constraint that the fallback must satisfy.
    tokenizer
        Tokenizes the fallback for constraints that count tokens. None for texts of a server, where no such constraint
        is allowed.
    begun
        Text of the assistant message that the fallback continues.

    Raises
    ------
    UsageError
        If the fallback is a function and does not return a string.
    CheckFailed
        If the constraint fails to judge the fallback.
    """
    if outcome.ok or not isinstance(on_exhausted, Fallback):
        return outcome
    text = on_exhausted.text
    text = text if isinstance(text, str) else _require_text(text(outcome.prompt))
    if not run_check(constraint, [plain_draw(text, prompt, tokenizer, begun=begun)])[0]:
        note = "the fallback violates the constraint and was withheld"
        report = dataclasses.replace(outcome.report, notes=(*outcome.report.notes, note))
        return dataclasses.replace(outcome, report=report)
    missing = outcome.report.requested - len(outcome.texts)
    report = dataclasses.replace(outcome.report, fallback=True)
    return dataclasses.replace(outcome, texts=outcome.texts + (text,) * missing, report=report)


def raise_if_short(on_exhausted: OnExhausted, outcomes: Sequence[Outcome], sampling: str) -> None:
    """Raise if texts are missing, unless ``on_exhausted`` is ``"none"``.

    Parameters
    ----------
    on_exhausted
        ``"none"`` allows missing texts. With a ``Fallback``, texts are missing only if it violates the constraint.
    outcomes
        The outcomes of one call.
    sampling
        The options that turn sampling on, for the message about greedy and beam search.

    Raises
    ------
    Deterministic
        If the model does not sample, so that another attempt would give the same text.
    BudgetExhausted
        If the budget ended before all texts were accepted.
    """
    short = [outcome for outcome in outcomes if len(outcome.texts) < outcome.report.requested]
    if on_exhausted == "none" or not short:
        return
    if any(outcome.report.ended == "deterministic" for outcome in short):
        raise Deterministic(
            f"greedy or beam search gave a text that violates the constraint, and would give it again; pass {sampling}",
            outcomes,
        )
    raise BudgetExhausted(outcomes)


def _require_text(fallback: object) -> str:
    """Return the fallback if it is a valid text; raise UsageError otherwise."""
    if not isinstance(fallback, str):
        raise UsageError(f"the fallback is {type(fallback).__name__}; give a string, or a function that returns one")
    if not is_text(fallback):
        raise UsageError("the fallback contains half of a surrogate pair, which is not a character; leave it out")
    return fallback
