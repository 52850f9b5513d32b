"""What attempts are drawn from, where it is not the model itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from guardwrap.errors import UsageError, is_number, strict_arguments

__all__ = ["Adapter", "Masked", "Prompt", "merge_proposals", "only_masks", "require_one"]

OR_REJECTION = ", or sampler='rejection', whose texts are the proposal's"
"""The other way out where attempts cannot be weighed, for calls that choose a sampler."""

ELSEWHERE = {
    "prompts": ", of which this is none",
    "perhaps": ", of which this is perhaps none",
    "settings": ", under other generation settings",
}
"""How a report goes on about an adapter's KL(g‖g') that was measured on other prompts, or under other settings."""

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_PLACE = "{prompt}"


@strict_arguments
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
            raise UsageError(f"Prompt({self.template!r}) needs {_PLACE} where the user's prompt stands")

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


@strict_arguments
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


@strict_arguments
@dataclass(frozen=True)
class Masked:
    """A proposal that never draws a token after which the constraint could not be satisfied any more.

    Each token is drawn from those whose verdict is not VIOLATED, in proportion to their probabilities. A token that
    ends within a character is judged by the characters that may come of it. That is
    what engines for structured output do; it is not g, as it does not look at where a token leads. But its weights are
    known without another pass of the model: log a(y)/a'(y) is the sum of log Z_t over the tokens, Z_t being the
    share of the probability that was left. With ``"rejection"`` texts are from g' and the report says so; ``"qrs"`` and
    ``"imh"`` take them back to g.

    Parameters
    ----------
    proposal
        What is masked, if not the model itself: a ``Prompt``, or another model, as ``proposal=`` takes them. An adapter
        is masked where the call or the wrapper has one beside it.
    unseen
        The whole vocabulary is looked at, the likeliest tokens first and those that begin alike together, until those
        that are left have at most this share of what remains. Where 2048 judgements do not suffice, the report says
        how large that share is. An unseen token that violates the constraint ends its attempt. What is looked at
        depends on the model's probabilities and not on what is drawn, so a' is a distribution with known weights.

    Notes
    -----
    An attempt for which the settings leave no token, as ``top_k`` can, is rejected. Where that holds for all texts, the
    run ends as ``"impossible"``. A mask that takes more than 0.5 s at once, or 0.02 s for each token on average, is
    given up: the rest of that prompt's tokens is drawn without it, and the report says so.

    Raises
    ------
    UsageError
        If ``unseen`` is no share, or what is masked is masked already.

    Examples
    --------
    ::

        GuardedGenerator(pipe, JSONSchema(schema), proposal=Masked(), sampler="qrs")
    """

    proposal: Any = None
    unseen: float = 1e-3

    def __post_init__(self) -> None:
        if not is_number(self.unseen) or not 0 <= self.unseen < 1:
            raise UsageError(f"Masked(unseen={self.unseen!r}): give a share of at least 0 and below 1")
        if isinstance(self.proposal, Masked):
            raise UsageError("what Masked() is given is masked already; leave one of them out")
        if isinstance(self.proposal, Adapter):
            raise UsageError("pass the adapter as adapter=, beside proposal=Masked()")


def only_masks(proposal: Any) -> bool:
    """Whether a proposal is a mask on the model itself, beside which there may be an adapter."""
    return isinstance(proposal, Masked) and proposal.proposal is None


def _elsewhere(given: Any) -> bool:
    """Whether something is given that is drawn from in the place of the model; a model may have no truth value."""
    return given is not None and given is not False and not only_masks(given)


def merge_proposals(near: tuple[Any, Any], far: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return what attempts are drawn from by what two places say, such as a call and a constraint file.

    Parameters
    ----------
    near, far
        A proposal and an adapter; None says nothing, and False says none. What is said in ``near`` counts: its adapter
        takes the place of the other's prompt, and its prompt that of the other's adapter.

    Raises
    ------
    UsageError
        If one place says both.
    """
    proposal, adapter = near
    if proposal is None:
        proposal = far[0]
        if _elsewhere(adapter) and _elsewhere(proposal):
            proposal = replace(proposal, proposal=None) if isinstance(proposal, Masked) else None
    if adapter is None:
        adapter = None if _elsewhere(near[0]) else far[1]
    require_one(proposal, adapter)
    return proposal, adapter


def require_one(proposal: Any, adapter: Any) -> None:
    """Raise UsageError for a proposal beside an adapter, unless it only masks."""
    if _elsewhere(proposal) and _elsewhere(adapter):
        raise UsageError(
            "attempts come from a proposal or from an adapter, not both; leave one of them out, or pass False for it"
        )
