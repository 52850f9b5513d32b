"""The facts of a report, with their words: estimates, where texts come from, what stood in the way, and what helps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from guardwrap.support.formatting import digits, tail_in_words

FEW = 10.0
"""Effective sample size, in draws of g, below which the distance to g cannot be estimated."""

_VAGUE = 1000.0
"""An interval whose ends differ by a larger factor is shown alone: its value would look known."""


class Estimate(NamedTuple):
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{digits(self.value)} [{digits(self.low)}, {digits(self.high)}]"


def plain(value: Any) -> Any:
    """Return figures as plain JSON types; infinite and unknown ones become None."""
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
    """Read an estimate that ``plain`` wrote: a value or bound of None is infinite."""
    unknown = {"value": math.inf, "low": -math.inf, "high": math.inf}
    numbers = {name: data[name] for name in unknown}
    return Estimate(**{name: unknown[name] if each is None else float(each) for name, each in numbers.items()})


def exactly(value: float) -> Estimate:
    """Return an estimate of a figure that is known without error."""
    return Estimate(value, value, value)


def bounded(figure: Estimate) -> str:
    """Format a figure with its interval.

    Only the interval is shown if its ends differ by a factor of more than 1000, and only the lower bound if the value
    is infinite.
    """
    if math.isfinite(figure.high) and figure.high > _VAGUE * figure.low >= 0:
        return f"between {digits(figure.low)} and {digits(figure.high)} (95 %)"
    if math.isfinite(figure.value):
        return str(figure)
    return f"at least {digits(figure.low)} (95 %)" if math.isfinite(figure.low) else "unknown"


_HIGHEST_LIMIT, _LIMIT_OF_100 = 0.7, 0.5
"""The limits of the Pareto k of many weights and of 100 weights (Vehtari et al. 2024)."""


def heavy_tail(evidence: Mapping[str, Estimate | float]) -> float | None:
    """Return the Pareto k of the weights if their tail is too heavy, NaN if they are too few to tell; None otherwise.

    ``evidence`` are a sampler's figures. The limit is lower for fewer weights, so with more texts a k above it may be
    below the limit. The k of fewer than 100 weights is vague itself.
    """
    k, limit = evidence.get("pareto_k"), evidence.get("pareto_k_limit")
    if not isinstance(k, Estimate) or not isinstance(limit, float) or k.value <= limit:
        return None
    vague = limit < _LIMIT_OF_100 and k.low <= limit
    return math.nan if vague or k.value <= _HIGHEST_LIMIT else k.value


def without_end(distance: Estimate, k: float) -> str:
    """Format a distance whose upper end is unknown because of the weights' Pareto k, which is NaN if it is unknown."""
    least = f"at least {digits(distance.low)} (95 %), upper end " if distance.low > 0 else ""
    return f"{least}unknown: {tail_in_words(k)}"


def tail_and_limit(k: Estimate, limit: float) -> str:
    """Describe the tail of weights by its Pareto k and the limit above which it is too heavy."""
    if math.isnan(k.value):
        return "unknown: too few weights"
    if k.value == -math.inf:
        return "none: all weights are equal"
    return f"{k}, {'at most' if k.value <= limit else 'above'} the limit of {digits(limit)}"


class Closeness(StrEnum):
    """How texts are distributed, relative to the model's own distribution given the constraint (g)."""

    EXACT = "exact"
    APPROXIMATE = "approximate"  # the report's figures say how closely, if that is known
    OTHER = "other"  # such as g', that of a proposal
    BIASED = "biased"  # by a deadline, which favors short texts
    SEARCH = "search"  # results of greedy or beam search, which are not drawn
    NOTHING = "nothing"  # there is no text
    UNKNOWN = "unknown"  # a sampler that is not guardwrap's describes it in words


_BEGINNINGS = {
    Closeness.EXACT: "exactly your model's own distribution, given the constraint (g)",
    Closeness.APPROXIMATE: "approximately your model's own distribution, given the constraint (g)",
    Closeness.OTHER: "not your model's own distribution",
    Closeness.BIASED: "biased by a deadline",
    Closeness.NOTHING: "nothing",
}
"""How the description of a distribution begins."""


class Distribution(NamedTuple):
    """The distribution of returned texts: ``str`` gives its description."""

    closeness: Closeness
    detail: str = ""  # the rest of the description: the sampler's settings, or the reason why there is no text

    def __str__(self) -> str:
        return ": ".join(filter(None, (_BEGINNINGS.get(self.closeness), self.detail)))


EXACT = Distribution(Closeness.EXACT)


class Shape(StrEnum):
    """How next tokens are changed before attempts are drawn."""

    MASKED = "masked"
    TWISTED = "twisted"


class Origin(NamedTuple):
    """What attempts are drawn from: ``str`` gives its description."""

    other: str = ""  # another model, prompt or adapter, in words; empty for the model itself under the user's prompt
    shape: Shape | None = None  # how its next tokens are changed; None for its own distribution
    by: str = ""  # who changes them and why, in words; empty if that is guardwrap

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.other or "the model itself", self._shaped)))

    @property
    def _shaped(self) -> str:
        return " ".join(filter(None, (self.shape, self.by)))

    def accepted(self) -> Distribution:
        """Return the distribution of attempts that satisfy the constraint: g', which is not g."""
        origin = f"attempts came from {self}" if self.other else f"tokens were {self._shaped}"
        return Distribution(Closeness.OTHER, f"{origin} (g')")


ITSELF = Origin()
"""The model itself: a, under the user's prompt and settings."""


class Remedy(StrEnum):
    """A change to a call with which its prompt may get the texts that it lacks."""

    TIME = "time"  # a longer ``timeout`` or ``deadline``: the first attempt takes longer
    SAMPLING = "sampling"  # instead of greedy or beam search
    SETTINGS = "settings"  # those of the report's ``obstacle``, turned off
    TEXTS = "texts"  # settings that leave out tokens, such as ``top_k``, turned off
    LENGTH = "length"  # a larger ``max_new_tokens``
    MASK = "mask"  # a masked proposal: most attempts were stopped at a token that it leaves out
    BEYOND = "beyond"  # a mask that may go beyond truncation: ``top_k``, for one, left it no token
    CALLS = "calls"  # a mask that begins a call of a tool: most attempts have no call, where one is required
    BUDGET = "budget"  # more of it
    CONSTRAINT = "constraint"  # a weaker one
    PROMPT = "prompt"  # one that describes the constraint


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The generation settings because of which no text satisfies the constraint.

    Parameters
    ----------
    settings
        The settings, such as ``("top_k=50",)``. If there are several, none of them is the obstacle alone.
    probability
        The probability that the next token is a possible one if these settings are turned off and all others stay. A
        token is possible if no verdict shows that every text that continues with it violates the constraint.
    after
        The number of new tokens before that token. They are the only ones that the settings allow without a violation.
    at_least
        Whether ``probability`` is a lower bound, because not all tokens could be judged.
    textless
        Whether the settings leave tokens without visible text, such as white space, after which others may be possible.
        Then it is not certain that no text can be drawn.
    of_attempt
        Whether the tokens before it are those of one attempt, at whose end a mask was left without a token. Other
        attempts may get further.
    """

    settings: tuple[str, ...]
    probability: float
    after: int = 0
    at_least: bool = False
    textless: bool = False
    of_attempt: bool = False

    def __str__(self) -> str:
        several = len(self.settings) > 1
        names = " and ".join([", ".join(self.settings[:-1]), self.settings[-1]]) if several else self.settings[0]
        chance = f"{'at least ' * self.at_least}{digits(self.probability)} without {'them' if several else 'it'}"
        first = "the first token" if self.after == 1 else f"the first {self.after} tokens"
        first += " of an attempt" * self.of_attempt
        tokens = f"tokens that are possible after {first}" if self.after else "possible first tokens"
        if not several and names.startswith("max_new_tokens="):
            return f"{names} ends every text too early, and the {tokens} have probability {chance}"
        left = " except those without visible text" * self.textless
        return f"{names} {'leave' if several else 'leaves'} out all {tokens}{left}, which have probability {chance}"

    def remedies(self) -> list[str]:
        """Return how to turn each setting off, with Python arguments."""
        return [_OFF.get(name, f"leave out {name}") for name in self.names]

    @property
    def truncates(self) -> bool:
        """Whether only truncation, such as top-k, is the obstacle."""
        return all(name in _OFF and name != "max_new_tokens" for name in self.names)

    @property
    def names(self) -> list[str]:
        """The names of the settings, without their values."""
        return [setting.partition("=")[0] for setting in self.settings]


_OFF = {
    "top_k": "pass top_k=0",
    "top_p": "pass top_p=1.0",
    "min_p": "pass min_p=0.0",
    "typical_p": "pass typical_p=1.0",
    "epsilon_cutoff": "pass epsilon_cutoff=0.0",
    "eta_cutoff": "pass eta_cutoff=0.0",
    "min_length": "pass min_length=0",
    "min_new_tokens": "pass min_new_tokens=0",
    "no_repeat_ngram_size": "pass no_repeat_ngram_size=0",
    "max_new_tokens": "raise max_new_tokens",
}
"""How to turn off a setting that leaves out tokens."""
