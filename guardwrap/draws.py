"""What is drawn and what is said about it: plain frozen data."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, cast

from guardwrap.errors import UsageError, quoted, spelled
from guardwrap.words import blamed, counted, digits, sentence

__all__ = [
    "SAMPLER",
    "Budget",
    "Draw",
    "Estimate",
    "Outcome",
    "Report",
    "Usage",
    "budget_or_none",
    "estimate_of",
    "exactly",
    "plain",
]


SAMPLER = "the sampler"
"""What rejections call the sampler, beside the parts of the constraint."""

_MANY = 0.1
"""Share of attempts that the token limit cut off, from which on advice speaks of it."""


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


@spelled
@dataclass(frozen=True, slots=True)
class Budget:
    """What may be spent on one prompt. None (in YAML: null) is no limit.

    The first three limits do not bias what is returned: they are looked at in launch order, before an attempt
    counts, and never end an attempt that has begun.

    Parameters
    ----------
    max_attempts
        Attempts. Exact, whatever the batch size.
    max_tokens
        Tokens over all attempts. Attempt i counts if the attempts before it took fewer than this; exact too.
    max_seconds
        Seconds since the prompt's first attempt, looked at before attempts are launched.
    deadline
        Hard limit in seconds: what is in flight is abandoned. Short texts are favoured, so the report says
        "biased by a deadline".
    max_computed_tokens
        Tokens that the model is run for, looked at before attempts are launched, as ``max_seconds`` is: what is on its
        way still counts. When it ends depends on the batch size, and not on any text.

    Raises
    ------
    UsageError
        If a limit is not a positive number.
    """

    # Read by pydantic when a constraint file is parsed.
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "strict": True}

    max_attempts: int | None = 1000
    max_tokens: int | None = None
    max_seconds: float | None = None
    deadline: float | None = None
    max_computed_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_attempts", "max_tokens", "max_computed_tokens"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise _no_limit(name, value, "a whole number of at least 1")
        for name in ("max_seconds", "deadline"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                raise _no_limit(name, value, "seconds above 0")


def _no_limit(name: str, value: object, wanted: str) -> UsageError:
    wrong = UsageError(f"Budget({name}={value!r}): give {wanted}, or None (in a file null) for no limit")
    wrong.location = (name,)
    return wrong


def budget_or_none(given: Any) -> Budget | None:
    """Return what was given as a budget, or raise UsageError."""
    if given is None or isinstance(given, Budget):
        return given
    count = given if isinstance(given, int) and given > 0 else 1000
    raise UsageError(f"budget={given!r} is no Budget: give Budget(max_attempts={count})")


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
        return sentence(self)

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
