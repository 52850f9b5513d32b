"""Proposals: sources of attempts other than the model itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from guardwrap.errors import UsageError, is_number, require_whole, strict_arguments

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_PLACE = "{prompt}"


class Unweighable(UsageError):
    """Attempts that cannot be weighed. ``settings`` are the generation settings under which they can be."""

    def __init__(self, why: str, **settings: Any) -> None:
        needed = ", ".join(f"{name}={value}" for name, value in settings.items())
        super().__init__(f"{why}; pass {needed}, or sampler='rejection', whose texts are the proposal's")
        self.why, self.settings = why, settings


@strict_arguments
@dataclass(frozen=True)
class Prompt:
    """A constraint-aware prompt (CAP): the same model with a prompt that describes the constraint, a'(y) = a(y | CAP).

    Parameters
    ----------
    template
        A text with ``{prompt}``, which is replaced by the user's prompt or, in a chat, by the last user message; or a
        function from a prompt (a string, or a list of messages) to another prompt.

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
            raise UsageError(f"the template of a Prompt is {type(self.template).__name__}; pass a string or a function")
        if isinstance(self.template, str) and _PLACE not in self.template:
            raise UsageError(f"Prompt({self.template!r}) needs {_PLACE} where the user's prompt belongs")

    def apply(self, prompt: Any) -> Any:
        """Return the constraint-aware version of a prompt, which is a string or a list of messages.

        Raises
        ------
        UsageError
            If a chat has no user message of plain text, or the function returned neither a string nor a list.
        """
        if not isinstance(self.template, str):
            rewritten = self.template(prompt)
            if not isinstance(rewritten, str | list):
                raise UsageError(f"the proposal's function returned {type(rewritten).__name__}, not a string or a chat")
            return rewritten
        if isinstance(prompt, str):
            return self.template.replace(_PLACE, prompt)
        last = max((i for i, message in enumerate(prompt) if message.get("role") == "user"), default=None)
        if last is None or not isinstance(prompt[last].get("content"), str):
            raise UsageError("the proposal's template needs a user message of plain text; give a function instead")
        message = {**prompt[last], "content": self.template.replace(_PLACE, prompt[last]["content"])}
        return [*prompt[:last], message, *prompt[last + 1 :]]

    def __str__(self) -> str:
        return "the prompt " + (repr(self.template) if isinstance(self.template, str) else "of a function")


@strict_arguments
@dataclass(frozen=True)
class Adapter:
    """A trained adapter: a small change to the model that makes it satisfy the constraint more often.

    Parameters
    ----------
    source
        The folder or Hub id of an adapter, or of a full checkpoint with the same tokenizer; ``"catalogue:<name>"`` is
        an adapter that comes with guardwrap.
    allow_mismatch
        Whether to accept an adapter whose card names another model or constraint. Files that differ from the card's
        digests, and pickles, are always rejected.
    revision
        Branch, tag or commit of a Hub id.

    Raises
    ------
    UsageError
        If the source is neither a string nor a path.

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
            raise UsageError(f"an adapter's source is {type(self.source).__name__}; pass its folder or Hub id")


@strict_arguments
@dataclass(frozen=True)
class Masked:
    """A proposal that masks tokens after which the constraint can no longer be satisfied.

    Each token is drawn from those whose verdict is not VIOLATED, in proportion to their probabilities. A token that
    ends inside a character is judged by the characters that it can become. Engines for structured output work this way.
    The result is not your model's own distribution (g), as a mask does not consider what can follow a token. But
    weights require no additional pass of the model: log a(y)/a'(y) is the sum of log Z_t over the tokens, where Z_t is
    the share of probability that the mask leaves. With ``"rejection"`` texts follow g', and the report says so;
    ``"qrs"`` and ``"imh"`` correct them towards g.

    Parameters
    ----------
    proposal
        A ``Prompt`` or another model to mask, in the forms of ``proposal=``; None for the model itself. If the call or
        the wrapper has an adapter, the adapted model is masked.
    unseen
        Tokens are judged from the most likely on, those with a common prefix together, until the rest has at most this
        share of the remaining probability. If 2048 judgements do not suffice, the report gives the actual share. An
        unseen token that violates the constraint ends its attempt. Which tokens are judged depends on the model's
        probabilities and not on the draws, so a' is a distribution with known weights.
    beyond_truncation
        Whether a token is drawn beyond ``top_k``, ``top_p`` and ``min_p`` where these leave none that the mask allows:
        the mask is then applied before them, as engines for structured output do at every token, and the report says
        so. Your model itself cannot draw such a text. So it is worth nothing to samplers that weigh, and they reject it
        at that token.

    Notes
    -----
    An attempt is rejected if the settings, such as ``top_k``, leave no token. If that holds for all texts, the run ends
    as ``"impossible"``, and the error names the setting. A mask that takes more than 0.5 s for one token, or 0.02 s per
    token on average, is given up: the remaining tokens of that prompt are drawn without it, and the report says so.
    With ``beyond_truncation`` it has 0.5 s for each token, and is not given up.

    Where ``ToolCalls`` requires a call, a text that is not weighed is reasoning, if the model's family reasons, and
    calls in the syntax of the family: it begins with them and ends after them. Objects have the properties that their
    schemas list. Reasoning ends at half of the token limit, and arguments end soon after three quarters of it, or
    earlier if fewer than 64 tokens would be left for tags, or 24 for JSON. With ``"qrs"`` and ``"imh"`` everything that
    the constraint allows stays possible.

    With ``beyond_truncation`` a text that is not weighed has no tokens that add no text, such as special tokens. If the
    constraint is a ``JSONSchema`` for an object or a list, the text is compact JSON, which is written and ended as
    arguments in JSON are. Numbers then have no exponents and up to 24 characters.

    Raises
    ------
    UsageError
        If ``unseen`` is not in [0, 1), ``beyond_truncation`` is neither True nor False, or the proposal is masked
        already.

    Examples
    --------
    ::

        GuardedGenerator(pipe, JSONSchema(schema), proposal=Masked(), sampler="qrs")
    """

    proposal: Any = None
    unseen: float = 1e-3
    beyond_truncation: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.beyond_truncation, bool):
            raise UsageError(f"Masked(beyond_truncation={self.beyond_truncation!r}): give True or False")
        if not is_number(self.unseen) or not 0 <= self.unseen < 1:
            raise UsageError(f"Masked(unseen={self.unseen!r}): give a share of at least 0 and below 1")
        if isinstance(self.proposal, Masked | Twisted):
            raise UsageError(f"Masked({type(self.proposal).__name__}(...)) is masked already; remove one of them")
        if isinstance(self.proposal, Adapter):
            raise UsageError("an adapter is not an argument of Masked(); pass adapter= together with proposal=Masked()")


@strict_arguments
@dataclass(frozen=True)
class Twisted:
    """A proposal that looks ahead: next tokens are weighed by how likely they are to lead to a satisfying text.

    An automaton follows how far a text has come, and ψ(state, tokens left) estimates the probability that a text in
    that state will satisfy the constraint. Tokens are drawn from a'(x | prefix) = a(x | prefix) ψ(state after x) / N_t,
    where N_t normalizes. Weights require no additional pass of the model: log a(y)/a'(y) is the sum of
    log N_t - log ψ(state after x_t) over the tokens. (Twist functions, Zhao et al. 2024; ``Masked`` is ψ ∈ {0, 1}.)
    Unless a text must be complete to pass, as with ``Finished`` or JSON, a share of each step is the model's own
    distribution, so that texts with little ψ keep weights of a usual size (defensive mixtures, Hesterberg 1995).

    States do not know what a text is about. So as long as success is unlikely, tokens are also weighed by exp(e_x · v),
    where e_x is the output embedding of token x, and v is one direction, fitted to beginnings that lead to success (the
    cross-entropy method, Rubinstein and Kroese 2004). A model whose output embeddings are quantized gets no such tilt.

    If one of some words has to occur, another way is tried, too. An attempt draws a text from a mixture of the model
    and of tilted models, whether or not the word comes, and notes before each token how likely the word would be there.
    Then the word is written at one of these places, chosen in proportion to that, and the model continues from there.
    If up to four words have to occur, one after the other is written, in any order.
    The attempt is weighed by the sum over all places, so nearly all attempts count (what was taken back is an auxiliary
    variable: Andrieu and Roberts 2009). That way is taken unless learning shows that it needs several times as many
    attempts as states do, or its attempts are worth fewer than five draws of g; the report says which way it is, and
    what learning saw of both. It is not tried with ``learned``, for models whose cache cannot drop tokens, or in calls
    with ``max_time`` or with logits processors or stopping criteria of your own. With ``strength`` it is tried for
    later calls without it, but not taken.

    ψ is learned before the first texts of a constraint, from the next-token probabilities of hundreds of attempts,
    which are not returned; later calls of the wrapper use the same ψ. With ``"rejection"`` texts follow g', and the
    report says so; ``"qrs"`` and ``"imh"`` correct them towards your model's own distribution, g, to within the
    distance that the report gives.

    By states, whatever ψ and v are, a'(y) is at least a(y) / 20 for each text y. If the tokens so far have the weight
    W = a/a', the model's own distribution has a share of W / 20 in the next step, where a token would get less than
    that. So no weight is above 20, and texts that make up a share s of g come once in 20 / (s Z) attempts, or more
    often.

    Parameters
    ----------
    proposal
        A ``Prompt`` or another model to twist, in the forms of ``proposal=``; None for the model itself. If the call or
        the wrapper has an adapter, the adapted model is twisted.
    strength
        ψ is raised to this power, above 0 and up to 1. With a lower one fewer attempts satisfy the constraint, and
        their weights vary less. None for 0.65, or 0.8 if a text must be complete to pass.
    learned
        A file that ``GuardedGenerator.save_twist`` wrote for the same constraint. ψ is read from it and not learned
        again, so the texts of a seed are the same in each process. Nothing in the file is executed. Reports of
        ``"qrs"`` allow for what it may hide: the upper end of the TVD includes the largest share of g that no attempt
        may have drawn, given that no weight is above 20. None to learn ψ.
    attempts
        The number of attempts to learn ψ and v from, of all prompts together, at least 64. Learning ends earlier where
        attempts are worth .4 effective draws of g each. None for 768, or 384 if a text must be complete to pass. Half
        as many more are drawn to learn where to write a word.

    Notes
    -----
    Automata follow, on the whole text:

    - ``Keyword``, ``Length`` (except in tokens), ``Finished``, ``Case``, ``OneOf`` and ``Edges``;
    - ``Regex``, if it looks around by at most one character, refers to no group and has no atomic group;
    - ``Parses("json")``, ``Count`` without ``unique``, ``each`` and ``share_of``, and ``Split`` without ``each`` and
      ``different``;
    - ``JSONSchema`` with a schema that does not refer to itself, whose alternatives are of different types. Limits on
      numbers, ``pattern``, ``format`` and the like are left to rejection;
    - combinations of them by ``All``, ``AnyOf`` and ``Not``. Parts of ``All`` without an automaton are left to
      rejection.

    Sentences are counted by the most frequent rules only. Where an automaton is wrong, attempts cost more, and their
    weights stay exact. Where there is none, tokens are masked as by ``Masked()``, and the report says so.

    Raises
    ------
    UsageError
        If ``strength`` is not in (0, 1], ``attempts`` is below 64 or set beside ``learned``, the proposal has a mask or
        a twist already, or ``learned`` is no path.

    Examples
    --------
    ::

        GuardedGenerator(pipe, Keyword("dragon"), proposal=Twisted(), sampler="qrs")
    """

    proposal: Any = None
    strength: float | None = None
    learned: str | Path | None = None
    attempts: int | None = None

    def __post_init__(self) -> None:
        if self.strength is not None and not (is_number(self.strength) and 0 < self.strength <= 1):
            raise UsageError(f"Twisted(strength={self.strength!r}): give a power above 0 and up to 1")
        if isinstance(self.proposal, Masked | Twisted):
            raise UsageError("Twisted() leaves out what a mask does, too; remove one of them")
        if isinstance(self.proposal, Adapter):
            raise UsageError("an adapter is not an argument of Twisted(); pass adapter= beside proposal=Twisted()")
        if not isinstance(self.learned, str | Path | None):
            raise UsageError(f"Twisted(learned={self.learned!r}): pass the path of a file that save_twist() wrote")
        if self.attempts is not None:
            require_whole("attempts", self.attempts, 64)
            if self.learned is not None:
                raise UsageError("Twisted(learned=, attempts=): with a file nothing is learned; leave one of them out")


def only_masks(proposal: Any) -> bool:
    """Return whether a proposal only masks or twists the model itself, and so can be combined with an adapter."""
    return isinstance(proposal, Masked | Twisted) and proposal.proposal is None


def _elsewhere(given: Any) -> bool:
    """Return whether a proposal or adapter replaces the model; a model may have no truth value."""
    return given is not None and given is not False and not only_masks(given)


def merge_proposals(near: tuple[Any, Any], far: tuple[Any, Any]) -> tuple[Any, Any]:
    """Merge the proposal and adapter of two places, such as a call and a constraint file; UsageError if one sets both.

    None means not set, and False means none. ``near`` has priority: its adapter replaces the other's prompt, and its
    prompt the other's adapter.
    """
    proposal, adapter = near
    if proposal is None:
        proposal = far[0]
        if _elsewhere(adapter) and _elsewhere(proposal):
            proposal = replace(proposal, proposal=None) if isinstance(proposal, Masked | Twisted) else None
    if adapter is None:
        adapter = None if _elsewhere(near[0]) else far[1]
    require_one(proposal, adapter)
    return proposal, adapter


def require_one(proposal: Any, adapter: Any) -> None:
    """Raise UsageError if there are both an adapter and a proposal, unless the proposal only masks."""
    if _elsewhere(proposal) and _elsewhere(adapter):
        raise UsageError(
            "attempts come from a proposal or from an adapter, not both; remove one of them, or pass False for it"
        )
