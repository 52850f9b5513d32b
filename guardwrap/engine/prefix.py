"""Early abort: verdicts on what has been decoded so far."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from guardwrap.constraints.base import Constraint, Verdict, run_verdict

__all__ = ["first_violated", "grows_at_the_end", "stable_prefix"]

Decode = Callable[[Sequence[int]], str]

_REPLACEMENT = "\ufffd"


def stable_prefix(decode: Decode, token_ids: Sequence[int]) -> str:
    """Decode an unfinished attempt, without the end that later tokens may still change.

    An incomplete UTF-8 sequence decodes to replacement characters; the tokens to come may complete it.
    """
    return decode(token_ids).rstrip(_REPLACEMENT)


def first_violated(constraint: Constraint, prefix: str) -> str | None:
    """Title of the first part that no continuation of the prefix can satisfy, or None."""
    for part in constraint.parts:
        if run_verdict(part, prefix) is Verdict.VIOLATED:
            return part.title
    return None


def grows_at_the_end(decode: Decode, vocabulary: int, sample: Sequence[int]) -> bool:
    """Test whether decoding more tokens leaves the stable prefix as it was.

    Parameters
    ----------
    decode
        From token ids to text, as the user gets it.
    vocabulary
        Number of token ids.
    sample
        Token ids of a text with punctuation, where clean-up rules would show.

    Returns
    -------
    bool
        False if some prefix changed, and prefix verdicts must not be used with this decoder.
    """
    chance = random.Random(0)
    sequences = [list(sample)] + [[chance.randrange(vocabulary) for _ in range(24)] for _ in range(40)]
    for ids in sequences:
        text = decode(ids)
        if not all(text.startswith(stable_prefix(decode, ids[:end])) for end in range(1, len(ids))):
            return False
    return True
