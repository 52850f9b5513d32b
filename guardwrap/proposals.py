"""What attempts are drawn from, where it is not the model itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guardwrap.errors import UsageError

__all__ = ["Adapter", "Prompt"]

_PLACE = "{prompt}"


@dataclass(frozen=True)
class Prompt:
    """A constraint-aware prompt (CAP): a'(y) = a(y | CAP), the same model told what the constraint asks for.

    Parameters
    ----------
    template
        A text with ``{prompt}`` in the place of the user's prompt or, in a chat, of the last user message; or a
        function from a prompt (a string, or a list of messages) to another one.

    Raises
    ------
    UsageError
        If a template has no ``{prompt}``, or is neither a text nor a function.

    Examples
    --------
    ::

        GuardedGenerator(pipe, Keyword("dragon"), sampler="qrs", proposal=Prompt("Mention a dragon. {prompt}"))
    """

    template: str | Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not isinstance(self.template, str) and not callable(self.template):
            raise UsageError(f"the template of a prompt is {type(self.template).__name__}, not a text or a function")
        if isinstance(self.template, str) and _PLACE not in self.template:
            raise UsageError(f"the template of a prompt needs {_PLACE} where the user's prompt stands")

    def apply(self, prompt: Any) -> Any:
        """Return the constraint-aware prompt for a prompt: a string, or a list of messages.

        Raises
        ------
        UsageError
            If a chat has no user message of text, or the function returned neither.
        """
        if not isinstance(self.template, str):
            made = self.template(prompt)
            if not isinstance(made, str | list):
                raise UsageError(f"the proposal's function returned {type(made).__name__}, not a string or a chat")
            return made
        if isinstance(prompt, str):
            return self.template.replace(_PLACE, prompt)
        last = max((i for i, message in enumerate(prompt) if message.get("role") == "user"), default=None)
        if last is None or not isinstance(prompt[last].get("content"), str):
            raise UsageError("the proposal's template needs a user message of plain text; give a function instead")
        told = {**prompt[last], "content": self.template.replace(_PLACE, prompt[last]["content"])}
        return [*prompt[:last], told, *prompt[last + 1 :]]

    def __str__(self) -> str:
        return "the prompt " + (repr(self.template) if isinstance(self.template, str) else "of a function")


@dataclass(frozen=True)
class Adapter:
    """A trained adapter: a' is the model with a small change, trained to meet the constraint more often.

    Parameters
    ----------
    source
        The folder or Hub id of an adapter, or of a full checkpoint with the same tokenizer; ``"catalogue:<name>"`` is
        an adapter that comes with guardwrap.
    allow_mismatch
        Whether to take an adapter whose card is of another model or another constraint. Files that are not those of
        the card, and pickles, are never taken.
    revision
        Of a Hub id: a branch, tag or commit.

    Raises
    ------
    UsageError
        If the source is no string and no path.

    Examples
    --------
    ::

        GuardedGenerator(pipe, Keyword("dragon"), adapter=Adapter("adapters/dragon", allow_mismatch=True))
    """

    source: str | Path
    allow_mismatch: bool = False
    revision: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.source, str | Path):
            raise UsageError(f"an adapter is given by its folder or Hub id, not by {type(self.source).__name__}")
