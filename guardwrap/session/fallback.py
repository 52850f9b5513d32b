"""Texts that are missing because the budget ended: fallbacks, how they are checked, and exceptions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from guardwrap.constraints.base import EXPENSIVE, Constraint
from guardwrap.constraints.checking import PromptlessDraw, judge, rule_against
from guardwrap.documents.limits import is_text
from guardwrap.errors import (
    BudgetExhausted,
    Deterministic,
    UsageError,
    nearest,
    quoted,
    strict_arguments,
)
from guardwrap.outcomes import Outcome, withheld
from guardwrap.session.plain_texts import plain_draw

_WORDS = ("raise", "none")


@strict_arguments
@dataclass(frozen=True)
class Fallback:
    """The text to return for each one that is missing because the budget ended. It is checked like any other text.

    A constant text is checked when the wrapper is made, or when a call passes it: a rule that rejects it is an error.
    Rules that run a model judge it at the first call, before anything is drawn. Rules that read the prompt, and those
    of single prompts (``constraint_each``), judge it when it is needed, and so does every rule the text of a function.
    A text that they reject is withheld, and the error for the missing texts names the rule.

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


def require_on_exhausted(value: Any, name: str = "on_exhausted") -> OnExhausted:
    """Return what to do about missing texts if it is valid; raise UsageError otherwise. ``name`` is the option's."""
    if isinstance(value, Fallback) or value in _WORDS:
        allowed: OnExhausted = value
        return allowed
    also = " or Repair(...)" if name == "on_exhausted" else ""
    raise UsageError(
        f"{name}={value!r} is not 'raise', 'none', Fallback('a text or a function'){also}{nearest(value, _WORDS)}"
    )


def or_from_file(on_exhausted: OnExhausted, text: str | None) -> OnExhausted:
    """Return the fallback of a constraint file, if it has one and missing texts are an error otherwise."""
    return Fallback(text) if on_exhausted == "raise" and text is not None else on_exhausted


def require_accepted(
    on_exhausted: OnExhausted, constraint: Constraint, tokenizer: Any, *, expensive: bool = False
) -> None:
    """Raise UsageError if a fallback is a constant text that breaks a rule.

    Rules that read the prompt, and rules that fail, are left for the time when the fallback is needed.
    """
    if not isinstance(on_exhausted, Fallback) or not isinstance(on_exhausted.text, str):
        return
    parts = [part for part in constraint.parts if (part.cost >= EXPENSIVE) is expensive]
    if not parts:
        return
    draw = plain_draw(on_exhausted.text, "", tokenizer, kind=PromptlessDraw)
    if (rule := rule_against(parts, draw)) is not None:
        raise UsageError(
            f"the fallback violates the constraint: {quoted(rule)} rejects it; give a text that every rule accepts, or "
            "on_exhausted='none'"
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

    ``tokenizer``: tokenizes the fallback for constraints that count tokens. None for texts of a server, where no such
    constraint is allowed.
    """
    if outcome.ok or not isinstance(on_exhausted, Fallback):
        return outcome
    text = on_exhausted.text
    text = text if isinstance(text, str) else _require_text(text(outcome.prompt))
    (judgement,) = judge(constraint, [plain_draw(text, prompt, tokenizer, begun=begun)])
    if not judgement.satisfied:
        rule, notes = str(judgement.blame), outcome.report.notes
        report = dataclasses.replace(outcome.report, notes=(*notes, withheld(rule)), fallback_rejected_by=rule)
        return dataclasses.replace(outcome, report=report)
    missing = outcome.report.requested - len(outcome.texts)
    report = dataclasses.replace(outcome.report, fallback=True)
    return dataclasses.replace(outcome, texts=outcome.texts + (text,) * missing, report=report)


def raise_if_short(on_exhausted: OnExhausted, outcomes: Sequence[Outcome], sampling: str) -> None:
    """Raise if texts are missing, unless ``on_exhausted`` is ``"none"``.

    ``on_exhausted``: ``"none"`` allows missing texts. With a ``Fallback``, texts are missing only if it violates the
    constraint.
    """
    short = [outcome for outcome in outcomes if len(outcome.texts) < outcome.report.requested]
    if on_exhausted == "none" or not short:
        return
    for outcome in short:
        if outcome.report.ended == "deterministic":
            rule = outcome.report.fallback_rejected_by
            gave = "greedy or beam search gave a text that violates the constraint, and would give it again; "
            raise Deterministic(f"{gave}{'' if rule is None else f'{withheld(rule)}; '}pass {sampling}", outcomes)
    raise BudgetExhausted(outcomes)


def _require_text(fallback: object) -> str:
    """Return the fallback if it is a valid text; raise UsageError otherwise."""
    if not isinstance(fallback, str):
        raise UsageError(f"the fallback is {type(fallback).__name__}; give a string, or a function that returns one")
    if not is_text(fallback):
        raise UsageError("the fallback contains half of a surrogate pair, which is not a character; leave it out")
    return fallback
