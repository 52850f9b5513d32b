"""What happens to texts that the budget did not suffice for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from guardwrap.constraints.base import Constraint
from guardwrap.constraints.checking import run_check
from guardwrap.documents.inputs import is_text
from guardwrap.environment.transformers_internals import tokenizer_lock
from guardwrap.errors import BudgetExhausted, Deterministic, UsageError, nearest, strict_arguments
from guardwrap.outcomes import Draw, Outcome

__all__ = ["Fallback", "OnExhausted", "completed", "raise_if_short", "require_on_exhausted"]

_WORDS = ("raise", "none")


@strict_arguments
@dataclass(frozen=True)
class Fallback:
    """What to return for a text that the budget did not suffice for. It is checked like any other text.

    Parameters
    ----------
    text
        The text, or a function from the prompt to it.

    Raises
    ------
    UsageError
        If it is neither, or the text has half of a surrogate pair.
    """

    text: str | Callable[[Any], str]

    def __post_init__(self) -> None:
        if not callable(self.text):
            _require_text(self.text)


OnExhausted: TypeAlias = Literal["raise", "none"] | Fallback


def require_on_exhausted(given: Any) -> OnExhausted:
    """Return what was given as ``on_exhausted``, or raise UsageError."""
    if isinstance(given, Fallback) or given in _WORDS:
        allowed: OnExhausted = given
        return allowed
    raise UsageError(
        f"on_exhausted={given!r} is not 'raise', 'none' or Fallback('a text or a function'){nearest(given, _WORDS)}"
    )


def completed(
    on_exhausted: OnExhausted, outcome: Outcome, prompt: str, constraint: Constraint, tokenizer: Any
) -> Outcome:
    """Fill missing texts with the fallback, if there is one and it satisfies the constraint.

    Parameters
    ----------
    on_exhausted
        What the user asked for.
    outcome
        With or without all of its texts.
    prompt
        The text that the model was given.
    constraint
        What the fallback must satisfy.
    tokenizer
        Counts the fallback's tokens, for constraints that ask; None where none can, as texts come from a server.

    Raises
    ------
    UsageError
        If the fallback is a function that returns no text.
    CheckFailed
        If the constraint cannot judge it.
    """
    if outcome.ok or not isinstance(on_exhausted, Fallback):
        return outcome
    text = on_exhausted.text
    text = text if isinstance(text, str) else _require_text(text(outcome.prompt))
    ids: tuple[int, ...] = ()
    if tokenizer is not None:
        with tokenizer_lock(tokenizer):
            ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    if not run_check(constraint, [Draw(prompt, ids, text)])[0]:
        note = "the fallback violates the constraint and was withheld"
        report = dataclasses.replace(outcome.report, notes=(*outcome.report.notes, note))
        return dataclasses.replace(outcome, report=report)
    missing = outcome.report.requested - len(outcome.texts)
    report = dataclasses.replace(outcome.report, fallback=True)
    return dataclasses.replace(outcome, texts=outcome.texts + (text,) * missing, report=report)


def raise_if_short(on_exhausted: OnExhausted, outcomes: Sequence[Outcome], sampling: str) -> None:
    """Raise where texts are missing and nothing may stand in their place.

    Parameters
    ----------
    on_exhausted
        What the user asked for.
    outcomes
        Of one call.
    sampling
        The options that make the model sample, for the message about one that does not.

    Raises
    ------
    Deterministic
        If the model does not sample, so that no attempt would be another one.
    BudgetExhausted
        If a budget ended first.
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
    """Return a fallback that is a text, or raise UsageError."""
    if not isinstance(fallback, str):
        raise UsageError(f"the fallback is {type(fallback).__name__} instead of a string")
    if not is_text(fallback):
        raise UsageError("the fallback has half of a surrogate pair, which is no character; leave it out")
    return fallback
