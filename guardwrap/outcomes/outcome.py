"""What became of one prompt: attempts, their cost, a report, and the outcome. Plain frozen data."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from guardwrap.budget import Budget
from guardwrap.errors import UsageError, quoted
from guardwrap.formatting import LARGE, blamed, counted, digits
from guardwrap.outcomes.estimates import FEW, Estimate, heavy_tail, plain, tail_and_limit, without_end
from guardwrap.outcomes.obstacle import Obstacle

__all__ = [
    "APPROXIMATE",
    "EXACT",
    "MANY_CUT_OFF",
    "OTHER",
    "SAMPLER",
    "Draw",
    "Outcome",
    "Report",
    "Usage",
]


SAMPLER = "the sampler"
"""The key of the sampler in ``Report.rejections``, next to the labels of the constraint's parts."""

MANY_CUT_OFF = 0.1
"""Share of attempts cut off by the token limit above which the advice mentions ``max_new_tokens``."""

_DISTANCES = ("tvd", "kl")
"""Names of figures that have no upper end if the weights' tail is too heavy."""

_SHOWN = 3
"""How many places a printed report shows for each part."""

EXACT = "exactly your model's own distribution, given the constraint (g)"
APPROXIMATE = "approximately your model's own distribution, given the constraint (g)"
OTHER = "not your model's own distribution"
"""How ``Report.drawn_from`` begins."""

_SATISFY = "as your model writes them when they satisfy the constraint"

_ENDED = {
    "max_attempts": "the budget of attempts is spent",
    "max_tokens": "the budget of tokens is spent",
    "max_computed_tokens": "the budget of computed tokens is spent",
    "max_seconds": "the time limit was reached",
    "deadline": "the deadline was reached",
    "deterministic": "greedy or beam search would return the same text again",
    "impossible": "no text that these settings allow satisfies the constraint",
    "error": "an error ended the run",
}


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


@dataclass(frozen=True, slots=True)
class Report:
    """The distribution that the texts of one prompt were drawn from, what they cost, and what was requested.

    Parameters
    ----------
    drawn_from
        The distribution of the texts, in words. It begins with ``"exactly"`` or ``"approximately"`` if that is your
        model's own distribution, given the constraint (g), and with ``"not"`` if it is another one. ``"nothing"`` if
        there is no text, with the reason after a colon if it is the sampler's.
    sampler
        Name of the sampler.
    seed
        Random seed. The same seed, prompts and settings give the same texts again.
    requested, accepted
        Number of texts requested and accepted.
    ended
        ``"complete"``, or what ended the run: ``"max_attempts"``, ``"max_tokens"``,
        ``"max_computed_tokens"``, ``"max_seconds"``, ``"deadline"``, ``"deterministic"``, ``"impossible"`` (no text
        that can be drawn satisfies the constraint), ``"error"``.
    usage
        Attempts, tokens and seconds spent.
    budget
        The limits on them.
    acceptance
        Acceptance rate AR = E_{a'} b, the share of attempts that satisfy the constraint, with its 95 % interval; None
        if attempts are not independent draws.
    rejections
        For each part of the constraint, the number of attempts that it was the first to reject; for
        ``"the sampler"``, those that satisfied the constraint and were not returned.
    constraint
        Digest of the constraint.
    mode
        The decoding loop: ``"refill"`` (a freed slot goes to the next attempt), ``"evict-only"`` (attempts begin
        together), ``"plain"`` (no cache: slow, for architectures that the other loops do not support),
        ``"generate"`` (transformers' own loop: beam search, encoder-decoder models, images, speech; attempts of one
        prompt run together until the last one ends), or ``"endpoint"`` (a server).
    fallback
        Whether the missing texts were filled with the fallback.
    evidence
        The sampler's figures by name: its cost, and its distance to g.
    notes
        Further remarks, one sentence each.
    proposal
        What attempts were drawn from, in words; None for the model itself.
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
    """

    drawn_from: str
    sampler: str
    seed: int
    requested: int
    accepted: int
    ended: str
    usage: Usage
    budget: Budget
    acceptance: Estimate | None
    rejections: Mapping[str, int]
    constraint: str
    mode: str = "refill"
    fallback: bool = False
    evidence: Mapping[str, Estimate | float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    proposal: str | None = None
    cut_off: int = 0
    places: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    obstacle: Obstacle | None = None

    def headline(self) -> str:
        """Return one sentence: how many texts, their distribution, and the attempts per text."""
        return _sentence(self)

    def advice(self) -> str:
        """Return one line: what to do if the budget did not suffice."""
        begun, _, lacked = self.drawn_from.partition(": ")
        why, pilot = f"{lacked}; " if begun == "nothing" and lacked else "", self.evidence.get("pilot_attempts")
        if pilot and not why:
            why = f"the sampler's pilot took {pilot} of {self.usage.attempts:,} attempts; "
        # A pilot's attempts are never returned, so they are not evidence against the sampler.
        parts = {label: count for label, count in self.rejections.items() if not (why and label == SAMPLER)}
        worst = [
            f"{quoted(label)} rejected {of}{self._most_often_at(label)}"
            for label, of in blamed(parts, self.usage.attempts).items()
        ][:2]
        blame = f"{', '.join(worst)}; " if worst else ""
        remedies = "" if self.obstacle is None else " and ".join(self.obstacle.remedies())
        if remedies and self.ended == "impossible":
            return f"{blame}{remedies}, weaken the constraint, or describe it in the prompt"
        if self.ended == "impossible":
            return f"{blame}weaken the constraint, or allow the model more texts: top_k=0, a larger max_new_tokens"
        rate = f"acceptance rate {self.acceptance}; " if self.acceptance else ""
        if self.usage.attempts and self.cut_off / self.usage.attempts >= MANY_CUT_OFF:
            rate += f"{self.cut_off:,} were cut off by max_new_tokens, so try a larger one; "
        away = self.proposal is not None and self.sampler in ("qrs", "imh")
        plan = "; a plan shows whether the model itself is cheaper than this proposal" if away else ""
        what = f"{remedies}, raise" if remedies else "raise"
        return f"{why}{blame}{rate}{what} the budget, weaken the constraint, or describe it in the prompt{plan}"

    def _most_often_at(self, part: str) -> str:
        """Return where a part was violated most often, in brackets; "" if that is not known."""
        places = self.places.get(part) or {}
        place = max(places, key=places.__getitem__, default="")
        return place and f" ({places[place]:,} {'at ' * place.startswith('$')}{place})"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON types; infinite and unknown figures are None."""
        data: dict[str, Any] = plain(self)
        return data

    def __str__(self) -> str:
        use = self.usage
        cost = f"{counted(use.attempts, 'attempt')}, {counted(use.tokens, 'token')}, {use.seconds:.1f} s"
        rows = [("cost", cost), ("drawn from", f"{self.drawn_from}; sampler {self.sampler}, seed {self.seed}")]
        if self.ended != "complete":
            rows.append(("ended by", self.ended))
        if self.proposal is not None and not self.drawn_from.startswith(OTHER):
            rows.append(("attempts from", self.proposal))
        if self.acceptance is not None:
            rows.append(("acceptance", f"{self.acceptance} (95 % interval)"))
        figures, parts = dict(self.evidence), dict(self.rejections)
        unlucky = parts.pop(SAMPLER, 0)
        if "pilot_attempts" in figures:  # a pilot's attempts are never returned, so the sampler did not reject them
            pilot, kept = (cast("int", figures.pop(name)) for name in ("pilot_attempts", "pilot_satisfied"))
            rows.append(("pilot", f"{pilot:,} attempts to set β, of which {kept:,} satisfied the constraint"))
            unlucky -= kept
        heavy = heavy_tail(figures)
        limit = figures.pop("pareto_k_limit", math.nan)
        for name, figure in figures.items():
            words = str(figure) if isinstance(figure, Estimate) else digits(figure)
            if name == "pareto_k" and isinstance(figure, Estimate) and isinstance(limit, float):
                words = tail_and_limit(figure, limit)
            elif name in _DISTANCES and heavy is not None and isinstance(figure, Estimate):
                words = without_end(figure, heavy)
            rows.append((name.replace("_", " "), words))
        for label, of in blamed(parts, use.attempts).items():
            rows.append(("rejected by", f"{label}: {of}"))
            places = sorted(self.places.get(label, {}).items(), key=lambda item: -item[1])
            rows += [("  where", f"{place}: {count:,} of {parts[label]:,}") for place, count in places[:_SHOWN]]
        if unlucky:
            satisfied = f"{self.accepted + unlucky:,} that satisfied the constraint"
            rows.append(("rejected by", f"{SAMPLER}: {unlucky:,} of {satisfied}"))
        if use.model_checks:
            rows.append(("models judged", f"{counted(use.model_checks, 'text')}, {use.model_seconds:.1f} s"))
        if use.surplus_attempts:
            rows.append(("surplus", f"{counted(use.surplus_attempts, 'attempt')}, drawn but not needed"))
        rows += [("note", note) for note in self.notes]
        width = max(12, *(len(name) for name, _ in rows))
        return "\n".join([self.headline(), *(f"  {name:{width}} {words}" for name, words in rows)])


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
        # A fallback is the whole answer.
        fallbacks = [Draw("", (), text, parts=(("answer", (text,)),)) for text in self.texts[len(self.draws) :]]
        return tuple(map(self.parse, (*self.draws, *fallbacks)))

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


def _sentence(report: Report) -> str:
    """Return the headline of a report."""
    got, asked, tried = report.accepted, report.requested, report.usage.attempts
    if not got:
        why = "" if report.obstacle is None else f": {report.obstacle}"
        return f"no text from {counted(tried, 'attempt')}: {_ENDED.get(report.ended, report.ended)}{why}"
    texts = counted(got, "text") if got == asked else f"{got} of {asked} texts"
    pilot = report.evidence.get("pilot_attempts", 0)
    drawn = tried - pilot if isinstance(pilot, int) else tried
    mean = _rounded(drawn / got) if drawn < LARGE else drawn // got
    cost = "every attempt was accepted" if drawn == got else f"about {counted(mean, 'attempt')} per text"
    cost += f", after a pilot of {pilot:,}" if pilot else ""
    missing = "" if got == asked else f"; ended early: {_ENDED.get(report.ended, report.ended)}"
    return f"{texts}, {_origin(report)}; {cost}{missing}"


def _origin(report: Report) -> str:
    words, one = report.drawn_from, report.accepted == 1
    satisfy = _SATISFY.replace("them when they satisfy", "it when it satisfies") if one else _SATISFY
    every = "which satisfies the constraint" if one else "all of which satisfy the constraint"
    follow = "does not follow" if one else "do not follow"
    if words.startswith("exactly"):
        return f"exactly {satisfy}"
    if words.startswith("approximately"):
        nearness = _nearness(report)
        return f"{nearness} {satisfy}" if nearness else f"{every}; the distance to your model's own texts is unknown"
    if words.startswith(OTHER):
        return f"{every} but {follow} your model's own distribution"
    if words.startswith("biased"):
        return f"{every}; the deadline favors short ones"
    return f"{every}; {words}"


def _nearness(report: Report) -> str:
    """Say how close the texts are to g by the sampler's figures; "" if these cannot tell."""
    distance, enough = report.evidence.get("tvd"), report.evidence.get("near_enough")
    worth = report.evidence.get("effective_sample_size")
    if isinstance(worth, tuple) and worth.value < FEW:
        return ""
    if not isinstance(distance, tuple) or not isinstance(enough, float) or distance.high <= enough:
        return "nearly"
    if heavy_tail(report.evidence) is not None:
        return "not quite" if distance.low > enough else ""
    return "perhaps nearly" if distance.value <= enough else "not quite"


def _rounded(number: float) -> float:
    """Round to two digits; a whole number has no decimal point."""
    if number < 9.95:
        return round(number, 1) if number % 1 >= 0.05 else round(number)
    return int(float(f"{number:.2g}"))
