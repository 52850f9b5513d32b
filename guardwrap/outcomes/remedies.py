"""What helps a prompt that did not get all its texts, and the settings that leave it none: facts with their words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from guardwrap.formatting import digits


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
