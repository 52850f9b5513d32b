"""What helps a prompt that did not get all its texts: facts, which are put into words for Python and for HTTP."""

from __future__ import annotations

from enum import StrEnum


class Remedy(StrEnum):
    """A change to a call with which its prompt may get the texts that it lacks."""

    TIME = "time"
    """A longer ``timeout`` or ``deadline``: the first attempt takes longer."""

    SAMPLING = "sampling"
    """Sampling, instead of greedy or beam search."""

    SETTINGS = "settings"
    """The settings of the report's ``obstacle``, turned off."""

    TEXTS = "texts"
    """Settings that leave out tokens, such as ``top_k``, turned off."""

    LENGTH = "length"
    """A larger ``max_new_tokens``."""

    MASK = "mask"
    """A masked proposal: most attempts were stopped at a token that it leaves out."""

    BEYOND = "beyond"
    """A mask that may go beyond truncation: ``top_k``, for one, left it no token."""

    CALLS = "calls"
    """A mask that begins a call of a tool: most attempts have no call, where one is required."""

    BUDGET = "budget"
    """More of the budget."""

    CONSTRAINT = "constraint"
    """A weaker constraint."""

    PROMPT = "prompt"
    """A prompt that describes the constraint."""
