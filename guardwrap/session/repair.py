"""Repair turns: a rejected answer goes back to the model with the reasons, and the model answers again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from guardwrap.constraints.base import EXPENSIVE
from guardwrap.constraints.files.repair_field import MESSAGE, REASONS
from guardwrap.constraints.kinds.function import runs_code
from guardwrap.environment.transformers_internals import Chat
from guardwrap.errors import GuardwrapError, UsageError, require_whole, strict_arguments
from guardwrap.outcomes import Draw
from guardwrap.scheduling.request import RejectedAttempt
from guardwrap.session.fallback import Fallback, OnExhausted, require_on_exhausted

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
