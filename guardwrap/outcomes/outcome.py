"""What became of one prompt: attempts, their cost, a report, and the outcome. Plain frozen data."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from guardwrap.budget import Budget
from guardwrap.errors import UsageError
from guardwrap.outcomes.facts import ITSELF, Distribution, Estimate, Obstacle, Origin, Remedy, plain
from guardwrap.outcomes.report_words import SAMPLER, report_advice, report_headline, report_in_words


@dataclass(frozen=True, slots=True)
class Draw:
    """One finished attempt: a text drawn from the proposal a'.

    Parameters
    ----------
    prompt
        The prompt as text. For a chat it is the rendered conversation without special tokens, for audio it is empty.
    token_ids
        The new tokens, with the end-of-sequence token if one was drawn; shape ``[length]``. Empty if a server returned
        text without tokens.
    text
        The new text, decoded as the user gets it. If the pipeline parses the answer into a message, all text of that
        message.
    finished
        Whether the attempt ended with an end-of-sequence token or a stop string, not at the token limit.
    log_proposal
        log a'(token_ids | prompt) in nats under the sampling settings, or None if unknown.
    full
        Prompt and new text decoded together, if that differs from ``prompt + text``: some tokenizers put a space in
        front of ``text`` that is missing when it is decoded alone.
    fault
        Why the attempt is rejected whatever the constraint says: the pipeline parses answers into messages, and cannot
        parse this one. None for all other attempts.
    parts
        Strings of the message by the part that they belong to, ``"answer"``, ``"reasoning"`` or ``"tool_calls"`` (one
        for each call, as JSON); empty parts are left out. None if the answer is not parsed.
    begun
        Text of the assistant message that the new text continues: the prefill of a chat that ends with such a message.
    message
        The message that the pipeline returns, as JSON; None if it returns plain text, or ``fault`` is set.
    """

    prompt: str
    token_ids: tuple[int, ...]
    text: str
    finished: bool = True
    log_proposal: float | None = None
    full: str | None = None
    fault: str | None = None
    parts: tuple[tuple[str, tuple[str, ...]], ...] | None = None
    begun: str = ""
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Cost of one prompt.

    Parameters
    ----------
    attempts
        Attempts judged in launch order, up to the last one that was needed.
    tokens
        New tokens of those attempts; an aborted attempt counts the tokens it had.
    seconds
        This prompt's share of the wall-clock time. The time of each step is divided among the prompts in the batch by
        their attempts, so the shares of a call's prompts add up to the time it took to draw.
    surplus_attempts, surplus_tokens
        Attempts that ran in the same batch and were not needed, and their tokens.
    computed_tokens
        New tokens for which the model was run, surplus included; prompt tokens are not counted. It is lower than the
        number of tokens drawn if attempts share a prefix, which is computed once. Unlike ``tokens``, it depends on the
        batch size.
    skipped_attempts
        How many of ``attempts`` were not drawn because they were known to be rejected; they have no tokens. This
        happens only after 10 000 attempts in a row without a text.
    model_checks
        How many judgements of this prompt's texts, surplus included, were made by constraints that run a model or
        another expensive check, such as ``Classifier`` and ``Judge``.
    model_seconds
        This prompt's share of the wall-clock time of those judgements. They are made in batches, whose time is divided
        among their texts.
    learning_attempts, learning_computed_tokens, learning_seconds
        This prompt's share of what the call spent, before its first attempt, on learning a twist: attempts, which are
        not returned and not part of ``attempts``; the new tokens for which the model was run; wall-clock seconds. They
        are 0 for later calls, and for prompts from which nothing was learned.
    """

    attempts: int = 0
    tokens: int = 0
    seconds: float = 0.0
    surplus_attempts: int = 0
    surplus_tokens: int = 0
    computed_tokens: int = 0
    skipped_attempts: int = 0
    model_checks: int = 0
    model_seconds: float = 0.0
    learning_attempts: int = 0
    learning_computed_tokens: int = 0
    learning_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """The distribution that the texts of one prompt were drawn from, what they cost, and what was requested.

    Parameters
    ----------
    distribution
        The distribution of the texts: its ``closeness`` to your model's own distribution, given the constraint (g), is
        ``"exact"``, ``"approximate"``, ``"other"``, ``"biased"`` (by a deadline), ``"search"`` (greedy or beam search),
        ``"nothing"`` (there is no text) or ``"unknown"`` (a sampler of your own describes it); its ``detail`` is in
        words. JSON has the closeness.
    sampler
        Name of the sampler.
    seed
        Random seed. The same seed, prompts and settings give the same texts again.
    requested, accepted
        Number of texts requested and accepted.
    ended
        ``"complete"``, or what ended the run: ``"max_attempts"``, ``"max_tokens"``,
        ``"max_computed_tokens"``, ``"max_seconds"``, ``"deadline"``, ``"timeout"``, ``"deterministic"``,
        ``"impossible"`` (no text that can be drawn satisfies the constraint), ``"error"``.
    usage
        Attempts, tokens and seconds spent.
    budget
        The limits on them.
    acceptance
        Acceptance rate AR = E_{a'} b, the share of attempts that satisfy the constraint, with its 95 % interval; None
        if attempts are not independent draws.
    rejected
        For each part of the constraint, the number of attempts that it was the first to reject.
    constraint
        Digest of the constraint.
    mode
        The decoding loop: ``"refill"`` (a freed slot goes to the next attempt), ``"evict-only"`` (attempts begin
        together), ``"plain"`` (no cache: slow, for architectures that the other loops do not support),
        ``"separate"`` (each row alone, with ``deterministic=True``),
        ``"generate"`` (transformers' own loop: beam search, encoder-decoder models, images, speech; attempts of one
        prompt run together until the last one ends), or ``"endpoint"`` (a server).
    fallback
        Whether the missing texts were filled with the fallback.
    evidence
        The sampler's figures by name: its cost, and its distance to g.
    notes
        Further remarks, one sentence each.
    origin
        What attempts were drawn from: another model, prompt or adapter, and whether tokens were masked or twisted.
    cut_off
        Attempts that violate the constraint and were cut off by the token limit or by ``max_time``.
    places
        For parts that judge JSON, by title: at which places in the text they were violated, and by how many attempts,
        the most frequent 20. A place is a path such as ``$.items[].name``, in which keys that the schema does not
        declare are ``*``, or a reason that has none, such as ``"not JSON"`` or ``"incomplete JSON"``.
        Attempts whose place is not known are not counted.
    obstacle
        If no text satisfies the constraint, the settings that leave out every token that is needed, and the probability
        of these tokens without them; None if it is not known that settings are the reason.
    fallback_rejected_by
        Title of the rule that rejected the fallback, which was therefore withheld; None if there was no fallback, or it
        was not rejected.
    prompt_tokens
        Tokens of the prompt as the model reads it, with the chat template; None if that is not known: over an endpoint,
        and for images, speech and encoder-decoder models.
    stopped
        Attempts that were stopped before their end, at a token after which no text satisfies the constraint.
    remedies
        What this call can change to get the missing texts, most effective first: ``"time"``, ``"sampling"``,
        ``"settings"`` (those of ``obstacle``), ``"texts"`` (settings such as ``top_k``), ``"length"``, ``"mask"``,
        ``"budget"``, ``"constraint"``, ``"prompt"``. Empty if none are missing.
    passed_over
        Attempts that satisfied the constraint and were not returned by the sampler, or not yet, as those of its pilot.
    """

    distribution: Distribution
    sampler: str
    seed: int
    requested: int
    accepted: int
    ended: str
    usage: Usage
    budget: Budget
    acceptance: Estimate | None
    rejected: Mapping[str, int]
    constraint: str
    mode: str = "refill"
    fallback: bool = False
    evidence: Mapping[str, Estimate | float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    origin: Origin = ITSELF
    cut_off: int = 0
    places: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    obstacle: Obstacle | None = None
    fallback_rejected_by: str | None = None
    prompt_tokens: int | None = None
    stopped: int = 0
    remedies: tuple[Remedy, ...] = ()
    passed_over: int = 0

    @property
    def drawn_from(self) -> str:
        """The distribution of the texts, in words."""
        return str(self.distribution)

    @property
    def proposal(self) -> str | None:
        """What attempts were drawn from, in words; None for the model itself."""
        return None if self.origin == ITSELF else str(self.origin)

    @property
    def rejections(self) -> dict[str, int]:
        """``rejected`` by the parts of the constraint, and ``passed_over`` by ``"the sampler"``."""
        return dict((Counter(self.rejected) + Counter({SAMPLER: self.passed_over})).most_common())

    @property
    def missing(self) -> int:
        """How many texts were requested and not accepted."""
        return self.requested - self.accepted

    def headline(self) -> str:
        """Return one sentence: how many texts, their distribution, and the attempts per text."""
        return report_headline(self)

    def advice(self) -> str:
        """Return one line: what to do if the budget did not suffice."""
        return report_advice(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON types; infinite and unknown figures are None."""
        words = {"drawn_from": self.drawn_from, "proposal": self.proposal, "rejections": self.rejections}
        data: dict[str, Any] = words | plain(self) | {"distribution": self.distribution.closeness.value}
        del data["origin"], data["rejected"]
        return data

    def __str__(self) -> str:
        return report_in_words(self)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The texts of one prompt, with a report.

    Parameters
    ----------
    prompt
        The prompt as passed to the call: a string, a list of messages, token ids, or the input of a pipeline for
        images or speech.
    texts
        The accepted texts, in launch order; fewer than requested if the budget ended first.
    draws
        The attempts that the texts come from, in the same order. A fallback text has none.
    report
        Distribution and cost of the texts.
    parse
        Parser from an attempt to the value of the constraint's JSONSchema; None unless there is exactly one.
    """

    prompt: Any
    texts: tuple[str, ...]
    draws: tuple[Draw, ...] = field(repr=False)
    report: Report
    parse: Callable[[Draw], Any] | None = field(default=None, repr=False, compare=False)

    @property
    def values(self) -> tuple[Any, ...]:
        """The parsed ``texts``, fallbacks included: plain JSON types, or values of the JSONSchema's type.

        Raises
        ------
        UsageError
            If the constraint is not one JSONSchema of the completion or of one part, alone or joined to other
            constraints by ``&``.
        """
        if self.parse is None:
            raise UsageError("values need exactly one JSONSchema of the completion; parse the texts yourself")
        return tuple(map(self.parse, (*self.draws, *self.fallbacks)))

    @property
    def fallbacks(self) -> tuple[Draw, ...]:
        """The texts that no attempt gave, as draws without tokens. Each one is the whole answer of a message."""
        return tuple(Draw("", (), text, parts=(("answer", (text,)),)) for text in self.texts[len(self.draws) :])

    @property
    def messages(self) -> tuple[dict[str, Any] | None, ...]:
        """The message of each text: ``content``, ``reasoning_content``, ``tool_calls`` …; None for plain text."""
        drawn = [None if draw.message is None else json.loads(draw.message) for draw in self.draws]
        return (*drawn, *[None] * (len(self.texts) - len(drawn)))

    @property
    def tool_calls(self) -> tuple[tuple[dict[str, Any], ...], ...]:
        """The calls in the message of each text, as its template gives them: usually as OpenAI's API does.

        Raises
        ------
        UsageError
            If the answers were not parsed into messages.
        """
        if any(draw.parts is None for draw in self.draws):
            raise UsageError("the answers were not parsed into messages; constrain the calls with ToolCalls(...)")
        calls = [dict(draw.parts or ()).get("tool_calls", ()) for draw in self.draws]
        nothing: list[tuple[str, ...]] = [()] * (len(self.texts) - len(calls))  # fallbacks
        return tuple(tuple(map(json.loads, each)) for each in (*calls, *nothing))

    @property
    def ok(self) -> bool:
        """Whether every requested text was drawn; False if the budget ended first, with or without a fallback."""
        return self.report.accepted >= self.report.requested

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome without token ids, as plain JSON types unless the prompt holds images or audio."""
        return {
            "prompt": self.prompt,
            "texts": list(self.texts),
            "ok": self.ok,
            "report": self.report.to_dict(),
        }
