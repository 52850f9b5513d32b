"""Texts that are missing because the budget ended: repair turns, fallbacks and how they are checked, exceptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from guardwrap.constraints.base import EXPENSIVE, Constraint
from guardwrap.constraints.checking import PromptlessDraw, judge, rule_against
from guardwrap.constraints.files.file_fields import MESSAGE, REASONS
from guardwrap.constraints.kinds.function import runs_code
from guardwrap.engine.scheduling.request import RejectedAttempt
from guardwrap.errors import (
    BudgetExhausted,
    Deterministic,
    GuardwrapError,
    UsageError,
    nearest,
    quoted,
    require_whole,
    strict_arguments,
)
from guardwrap.outcomes import Draw, Outcome, withheld
from guardwrap.support.limits import is_text
from guardwrap.support.transformers_internals import Chat, token_ids

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


def plain_draw(text: str, prompt: str, tokenizer: Any, *, begun: str = "", kind: type[Draw] = Draw) -> Draw:
    """Return a text as a finished draw: the whole answer of a message, without reasoning and calls."""
    ids = () if tokenizer is None else tuple(token_ids(tokenizer, text))
    return kind(prompt, ids, text, parts=(("answer", (text,)),), begun=begun)


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
        report = replace(outcome.report, notes=(*notes, withheld(rule)), fallback_rejected_by=rule)
        return replace(outcome, report=report)
    missing = outcome.report.requested - len(outcome.texts)
    report = replace(outcome.report, fallback=True)
    return replace(outcome, texts=outcome.texts + (text,) * missing, report=report)


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


_NO_CHAT = (
    "Repair() continues a chat (a list of messages), and this prompt is none: pass a chat, or "
    "Repair(message=function), whose function takes the prompt and the rejected attempt and returns another prompt"
)


@strict_arguments
@dataclass(frozen=True)
class Repair:
    """Turns in which the model repairs its answer, for texts that are missing because the budget ended.

    After the budget's attempts, the last rejected one becomes a message of the chat, the reasons become the user's next
    one, and the missing texts are drawn from the model given this longer chat. Each turn has the call's budget: with
    ``Budget(max_attempts=1)`` every rejected answer is shown to the model, with 8 only one of eight. The texts of
    repair turns satisfy the constraint, but do not follow g: they are draws of g', the model's own distribution given
    the constraint and the longer chat, and reports say so. The rejected answer is never returned.
    There is no further turn if the longer chat does not fit into the model's context.

    Parameters
    ----------
    max_turns
        The most repair turns for a prompt, at least 1.
    message
        The user's message after the rejected answer, with ``{reasons}`` where the reasons belong; or a function that
        takes the prompt and the ``RejectedAttempt``, and returns the prompt of the next turn. A function may repair
        prompts that are no chats.
    otherwise
        What to do about texts that are still missing after the last turn: ``"raise"``, ``"none"`` or a ``Fallback``, as
        for ``on_exhausted``.

    Raises
    ------
    UsageError
        If ``max_turns`` is below 1, or ``message`` is neither a function nor a text with ``{reasons}``.

    Examples
    --------
    ::

        GuardedGenerator(pipe, rules, budget=Budget(max_attempts=1), on_exhausted=Repair(max_turns=2))
    """

    max_turns: int = 1
    message: str | Callable[[Any, RejectedAttempt], Any] = MESSAGE
    otherwise: OnExhausted = "raise"

    def __post_init__(self) -> None:
        require_whole("max_turns", self.max_turns, 1)
        require_on_exhausted(self.otherwise, "otherwise")
        if not callable(self.message) and not (isinstance(self.message, str) and REASONS in self.message):
            raise UsageError(f"Repair(message={self.message!r}): pass a text with {REASONS}, or a function")

    def require_prompt(self, prompt: Any) -> None:
        """Raise UsageError if a prompt cannot be repaired: it is no chat, and ``message`` no function."""
        if not callable(self.message) and not _is_chat(prompt):
            raise UsageError(_NO_CHAT)

    def next_prompt(self, prompt: Any, rejected: RejectedAttempt) -> Any:
        """Return the prompt of the next turn.

        A chat that ends with the beginning of an answer ends with it again.

        Parameters
        ----------
        prompt
            The prompt of the turn before.
        rejected
            An attempt of that turn.

        Raises
        ------
        UsageError
            If the prompt cannot be repaired.
        """
        if callable(self.message):
            return self.message(prompt, rejected)
        self.require_prompt(prompt)
        messages = list(prompt.messages if isinstance(prompt, Chat) else prompt)
        begun = [messages.pop()] if messages[-1].get("role") == "assistant" else []
        answer = {"role": "assistant", "content": _answer(rejected.draw)}
        asked = {"role": "user", "content": self.message.replace(REASONS, _reasons(rejected))}
        return [*messages, answer, asked, *begun]


Missing: TypeAlias = str | Fallback | Repair
"""What ``on_exhausted`` may be: a string is ``"raise"`` or ``"none"``."""


def read_on_exhausted(value: Any, in_file: Mapping[str, Any] | None = None) -> tuple[OnExhausted, Repair | None]:
    """Return what to do about missing texts in the end, and the repair turns before that, if any."""
    if isinstance(value, Repair):
        return value.otherwise, value
    return require_on_exhausted(value), None if in_file is None else Repair(**in_file)


def _is_chat(prompt: Any) -> bool:
    messages = prompt.messages if isinstance(prompt, Chat) else prompt
    return isinstance(messages, list | tuple) and bool(messages) and isinstance(messages[-1], dict)


def _answer(draw: Draw) -> str:
    """Return the rejected answer as the content of a message, without its reasoning."""
    parts = dict(draw.parts or ())
    return draw.begun + "\n".join(parts.get("answer", (draw.text,)))


def _reasons(rejected: RejectedAttempt) -> str:
    """Return why an attempt was rejected. Rules that are slow or run the user's code are not asked a second time."""
    known = rejected.part if rejected.place is None else f"{rejected.part}, {rejected.place}"
    if runs_code(rejected.constraint) or rejected.constraint.cost >= EXPENSIVE:
        return known
    with suppress(GuardwrapError):
        rejections = rejected.explain().rejections
        return "; ".join(f"{each.part}, {each.detail}" if each.detail else each.part for each in rejections)
    return known
