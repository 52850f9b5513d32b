"""Three-valued verdicts on prefixes, and the base class of monitors, which give them while a text grows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from enum import IntEnum

from guardwrap.constraints.utf8 import REPLACEMENT, characters
from guardwrap.documents.time_limits import check_deadline


class Verdict(IntEnum):
    """Verdict on all texts that begin with a prefix (three-valued, as in LTL3; Bauer et al. 2011)."""

    VIOLATED = -1
    """No continuation can satisfy the constraint."""
    UNDECIDED = 0
    """Not known. Always sound."""
    SATISFIED = 1
    """Every continuation satisfies it."""


_FEW = 64
"""The most characters that ``Monitor.may_begin`` tries one by one; beyond it, the answer is True without a try."""


class Monitor(ABC):
    """Immutable state of a constraint after part of a text (a monitor, as in runtime verification).

    The verdict is sound, however the text is cut into pieces, as ``Constraint.verdict`` is for a whole prefix.
    VIOLATED and SATISFIED are final: no later text changes them.
    """

    @property
    @abstractmethod
    def verdict(self) -> Verdict:
        """Verdict on the text read so far."""

    @abstractmethod
    def read(self, text: str, /) -> Monitor:
        """Return the monitor after more text; this one does not change."""

    def verdicts(self, texts: Sequence[str], /) -> list[Verdict]:
        """Return the verdict after each candidate for the next token."""
        verdicts = []
        for text in texts:
            check_deadline()  # there may be a thousand candidates
            verdicts.append(self.read(text).verdict)
        return verdicts

    @property
    def violated_at(self) -> str | None:
        """Where the text violates the constraint, without generated text; None if that is not known."""
        return None

    @property
    def key(self) -> Hashable | None:
        """A value that two monitors of one constraint share only if they judge every continuation alike.

        None if that is not known.
        """
        return None

    def may_begin(self, partial: bytes, /) -> bool:
        """Return whether a character whose UTF-8 begins with these bytes may come next; True if that is not known.

        Incomplete bytes at the end of a text are decoded to U+FFFD, so False means that U+FFFD is VIOLATED as well.
        """
        if self.read(REPLACEMENT).verdict is not Verdict.VIOLATED:
            return True
        possible = characters(partial)
        return len(possible) > _FEW or self.may_read_one_of(possible)

    def may_read_one_of(self, possible: Sequence[str], /) -> bool:
        """Return whether one of these texts may come next."""
        for start in range(0, len(possible), _FEW):
            if any(verdict is not Verdict.VIOLATED for verdict in self.verdicts(possible[start : start + _FEW])):
                return True
        return False
