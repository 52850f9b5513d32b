"""What is drawn and what is said about it: plain frozen data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from guardwrap.budget import Budget
from guardwrap.errors import UsageError, quoted
from guardwrap.formatting import LARGE, blamed, counted, digits

__all__ = [
    "FEW",
    "SAMPLER",
    "Draw",
    "Estimate",
    "Outcome",
    "Report",
    "Usage",
    "bounded",
    "estimate_of",
    "exactly",
    "plain",
]


SAMPLER = "the sampler"
"""What rejections call the sampler, beside the parts of the constraint."""

_MANY = 0.1
"""Share of attempts that the token limit cut off, from which on advice speaks of it."""

FEW = 10.0
"""Draws of g that attempts are worth (their effective sample size), below which they tell no distance to g."""

_SATISFY = "as your model writes them when they satisfy the constraint"

_ENDED = {
    "max_attempts": "the budget in attempts is spent",
    "max_tokens": "the budget in tokens is spent",
    "max_computed_tokens": "the budget in computed tokens is spent",
    "max_seconds": "the time is over",
    "deadline": "the deadline has come",
    "deterministic": "greedy or beam search would give the same again",
    "impossible": "none that can be drawn under these settings satisfies the constraint",
    "error": "an error ended it",
}


@dataclass(frozen=True, slots=True)
class Draw:
    """One finished attempt: a text drawn from the proposal a'.

    Parameters
    ----------
    prompt
        The prompt as text. For a chat it is the rendered conversation without special tokens, for audio it is empty.
    token_ids
        The new tokens, the end-of-sequence token included where one was drawn; shape ``[length]``. Empty where a server
        gave text and no tokens.
    text
        The new text, decoded as the user gets it. Where the pipeline parses the answer into a message, everything that
        the message says.
    finished
        Whether the attempt ended by itself (end-of-sequence token or stop string), not at the token limit.
    log_proposal
        log a'(token_ids | prompt) in nats under the settings that were sampled from, or None where unknown.
    full
        Prompt and new text as the user reads them, where that is not ``prompt + text``: a user who gets token ids reads
        them together, and some tokenizers then put a space in front of ``text`` that it has not alone.
    fault
        Why the attempt is rejected whatever the constraint says: a pipeline that parses answers into messages makes no
        message with an answer of it. None for all others.
    """

    prompt: str
    token_ids: tuple[int, ...]
    text: str
    finished: bool = True
    log_proposal: float | None = None
    full: str | None = None
    fault: str | None = None


class Estimate(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{digits(self.value)} [{digits(self.low)}, {digits(self.high)}]"


@dataclass(frozen=True, slots=True)
class Usage:
    """What was spent on one prompt.

    Parameters
    ----------
    attempts
        Attempts decided in launch order, up to the last one that was needed.
    tokens
        Tokens of those attempts; one that was aborted counts as far as it got.
    seconds
        Wall-clock seconds of the prompt's own: the time of each step is divided among the prompts that share it, by
        their attempts. So those of a call's prompts add up to the time it took to draw.
    surplus_attempts, surplus_tokens
        What was launched alongside and turned out not to be needed.
    computed_tokens
        Tokens that the model was run for, surplus included; the prompt's own are not counted. Fewer than were drawn
        where attempts begin alike, as what was computed once is known. It depends on the batch size, unlike ``tokens``.
    skipped_attempts
        Those of ``attempts`` that were not drawn, as they were known to be rejected; they have no tokens. Only after
        10 000 attempts in a row without a text.
    """

    attempts: int = 0
    tokens: int = 0
    seconds: float = 0.0
    surplus_attempts: int = 0
    surplus_tokens: int = 0
    computed_tokens: int = 0
    skipped_attempts: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What was asked, what it cost and what the texts were drawn from.

    Parameters
    ----------
    drawn_from
        In words: ``"exactly g"``, or why not; ``"nothing"`` without a text, and after a colon what the sampler lacked.
    sampler
        Name of the sampler.
    seed
        Seed of the call. The same seed, prompts and settings give the same texts again.
    requested, accepted
        Texts asked for and texts accepted.
    ended
        ``"complete"``, or what ended the run: ``"max_attempts"``, ``"max_tokens"``,
        ``"max_computed_tokens"``, ``"max_seconds"``, ``"deadline"``, ``"deterministic"``, ``"impossible"`` (no text
        that can be drawn satisfies the constraint), ``"error"``.
    usage
        What was spent.
    budget
        What could have been spent.
    acceptance
        Acceptance rate AR = E_{a'} b, the share of attempts that satisfy the constraint, with its 95 % interval; None
        where attempts are not independent draws.
    rejections
        For each part of the constraint the attempts that it was first to reject; for ``"the sampler"`` those that
        satisfied the constraint and were not returned.
    constraint
        Digest of the constraint.
    mode
        How it was decoded: ``"refill"`` (a slot that is freed is taken by the next attempt), ``"evict-only"``
        (attempts begin together), ``"plain"`` (no cache: slow, for architectures that nothing else is right for),
        ``"generate"`` (transformers' own loop: beam search, encoder-decoder models, images, speech; attempts of one
        prompt run together until the last one ends), or ``"endpoint"`` (by a server).
    fallback
        Whether the missing texts were filled with the fallback.
    evidence
        Figures of the sampler's, by name: what it costs and how far from g it stays.
    notes
        Anything else worth knowing, one sentence each.
    proposal
        In words, what attempts were drawn from; None for the model itself.
    cut_off
        Of the attempts that violate the constraint those that were not finished: the token limit, or ``max_time``, had
        ended them.
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

    def headline(self) -> str:
        """One sentence: how many texts, what they are drawn from, and what one costs."""
        return _sentence(self)

    def advice(self) -> str:
        """One line: what to do when the budget was not enough."""
        begun, _, lacked = self.drawn_from.partition(": ")
        why, pilot = f"{lacked}; " if begun == "nothing" and lacked else "", self.evidence.get("pilot_attempts")
        if pilot and not why:
            why = f"the sampler's pilot took {pilot} of {self.usage.attempts:,} attempts; "
        # What a pilot draws is rejected, and could not have been returned.
        parts = {label: count for label, count in self.rejections.items() if not (why and label == SAMPLER)}
        worst = [f"{quoted(label)} rejected {of}" for label, of in blamed(parts, self.usage.attempts).items()][:2]
        blame = f"{', '.join(worst)}; " if worst else ""
        if self.ended == "impossible":
            return f"{blame}weaken the constraint, or let the model say more: top_k=0, a larger max_new_tokens"
        rate = f"acceptance rate {self.acceptance}; " if self.acceptance else ""
        if self.usage.attempts and self.cut_off / self.usage.attempts >= _MANY:
            rate += f"{self.cut_off:,} were cut off by max_new_tokens, and a larger one would let them go on; "
        away = self.proposal is not None and self.sampler in ("qrs", "imh")
        plan = "; a plan tells whether the model itself is cheaper than this proposal" if away else ""
        return f"{why}{blame}{rate}raise the budget, weaken the constraint, or say in the prompt what it asks for{plan}"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON types; figures that are infinite or unknown are None."""
        data: dict[str, Any] = plain(self)
        return data

    def __str__(self) -> str:
        use = self.usage
        cost = f"{counted(use.attempts, 'attempt')}, {counted(use.tokens, 'token')}, {use.seconds:.1f} s"
        rows = [("cost", cost), ("drawn from", f"{self.drawn_from} (sampler {self.sampler}, seed {self.seed})")]
        if self.ended != "complete":
            rows.append(("ended by", self.ended))
        if self.proposal is not None and self.proposal not in self.drawn_from:
            rows.append(("attempts of", self.proposal))
        if self.acceptance is not None:
            rows.append(("acceptance", f"{self.acceptance} (95 % interval)"))
        figures, parts = dict(self.evidence), dict(self.rejections)
        unlucky = parts.pop(SAMPLER, 0)
        if "pilot_attempts" in figures:  # what a pilot draws is not rejected: it could not have been returned
            pilot, kept = (cast("int", figures.pop(name)) for name in ("pilot_attempts", "pilot_satisfied"))
            rows.append(("pilot", f"{pilot:,} attempts, of which {kept:,} satisfied the constraint; they tell β"))
            unlucky -= kept
        for name, figure in figures.items():
            rows.append((name.replace("_", " "), str(figure) if isinstance(figure, Estimate) else digits(figure)))
        rows += [("rejected by", f"{label}: {of}") for label, of in blamed(parts, use.attempts).items()]
        if unlucky:
            satisfied = f"{self.accepted + unlucky:,} that satisfied the constraint"
            rows.append(("rejected by", f"{SAMPLER}: {unlucky:,} of {satisfied}"))
        if use.surplus_attempts:
            rows.append(("surplus", f"{counted(use.surplus_attempts, 'attempt')}, launched and then not needed"))
        rows += [("note", note) for note in self.notes]
        width = max(12, *(len(name) for name, _ in rows))
        return "\n".join([self.headline(), *(f"  {name:{width}} {told}" for name, told in rows)])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one prompt got.

    Parameters
    ----------
    prompt
        The prompt as it was given: a string, a list of messages, token ids, or what a pipeline for images or speech
        takes.
    texts
        The accepted texts, in launch order; fewer than asked for where the budget ended first.
    draws
        The attempts behind ``texts``. A fallback text has none.
    report
        Cost and provenance.
    parse
        What reads a text as JSON: the JSONSchema's own; None where the constraint has none, or several.
    """

    prompt: Any
    texts: tuple[str, ...]
    draws: tuple[Draw, ...] = field(repr=False)
    report: Report
    parse: Callable[[str], Any] | None = field(default=None, repr=False, compare=False)

    @property
    def values(self) -> tuple[Any, ...]:
        """What each of ``texts`` says, fallbacks too: plain JSON types, or values of the JSONSchema's type.

        Raises
        ------
        UsageError
            If not exactly one JSONSchema must hold of the completion, by itself or joined to others by ``&``.
        """
        if self.parse is None:
            raise UsageError("values need one JSONSchema of the completion in the constraint; parse the texts yourself")
        return tuple(self.parse(text) for text in self.texts)

    @property
    def ok(self) -> bool:
        """Whether every text asked for was drawn; False when the budget ended first, fallback or not."""
        return self.report.accepted >= self.report.requested

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome without token ids: plain JSON types, unless the prompt holds images or audio."""
        return {
            "prompt": self.prompt,
            "texts": list(self.texts),
            "ok": self.ok,
            "report": self.report.to_dict(),
        }


def plain(value: Any) -> Any:
    """Return figures as plain JSON types; what is infinite or unknown becomes None."""
    if isinstance(value, Estimate):
        return {name: plain(number) for name, number in value._asdict().items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def estimate_of(data: Mapping[str, float | None]) -> Estimate:
    """Read an estimate that ``plain`` spelled: a bound that is None is none, and such a value is infinite."""
    unknown = {"value": math.inf, "low": -math.inf, "high": math.inf}
    numbers = {name: data[name] for name in unknown}
    return Estimate(**{name: unknown[name] if each is None else float(each) for name, each in numbers.items()})


def exactly(value: float) -> Estimate:
    """Return a figure that is known without error."""
    return Estimate(value, value, value)


def bounded(figure: Estimate) -> str:
    """Spell a figure with its interval; where it is known from one side only, that one."""
    if math.isfinite(figure.value):
        return str(figure)
    return f"at least {digits(figure.low)} (95 %)" if math.isfinite(figure.low) else "unknown"


def _sentence(report: Report) -> str:
    """Say how many texts there are, what they are drawn from, and what one costs."""
    got, asked, tried = report.accepted, report.requested, report.usage.attempts
    if not got:
        return f"no text from {counted(tried, 'attempt')}: {_ENDED.get(report.ended, report.ended)}"
    texts = counted(got, "text") if got == asked else f"{got} of {asked} texts"
    pilot = report.evidence.get("pilot_attempts", 0)
    drawn = tried - pilot if isinstance(pilot, int) else tried
    mean = _rounded(drawn / got) if drawn < LARGE else drawn // got
    cost = "every attempt gave one" if drawn == got else f"a text took about {counted(mean, 'attempt')}"
    cost += f", after a pilot of {pilot:,}" if pilot else ""
    missing = "" if got == asked else f"; no more, as {_ENDED.get(report.ended, report.ended)}"
    return f"{texts}, {_origin(report)}; {cost}{missing}"


def _origin(report: Report) -> str:
    words, one = report.drawn_from, report.accepted == 1
    satisfy = _SATISFY.replace("them when they satisfy", "it when it satisfies") if one else _SATISFY
    every = "which satisfies the constraint" if one else "all of which satisfy the constraint"
    if words == "exactly g":
        return f"exactly {satisfy}"
    if words.startswith("approximately g"):
        nearness = _nearness(report)
        return f"{nearness} {satisfy}" if nearness else f"{every}; how near to your model's own cannot be told"
    if words.endswith(", not g"):
        return f"{every}, drawn from a proposal and not from your model's own law"
    if words.startswith("biased"):
        return f"{every}; short ones are favoured by the deadline"
    return f"{every}; {words}"


def _nearness(report: Report) -> str:
    """Say how sure it is that texts are near to g, where the sampler has figures of that; "" where they say nothing."""
    distance, enough = report.evidence.get("tvd"), report.evidence.get("near_enough")
    worth = report.evidence.get("effective_sample_size")
    if isinstance(worth, tuple) and worth.value < FEW:
        return ""
    if not isinstance(distance, tuple) or not isinstance(enough, float) or distance.high <= enough:
        return "nearly"
    return "perhaps nearly" if distance.value <= enough else "not quite"


def _rounded(number: float) -> float:
    """Two digits, without a point where there is none to see."""
    if number < 9.95:
        return round(number, 1) if number % 1 >= 0.05 else round(number)
    return int(float(f"{number:.2g}"))
