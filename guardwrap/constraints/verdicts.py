"""Three-valued verdicts on prefixes, and monitors: what gives them piece by piece."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from enum import IntEnum

from guardwrap.constraints.utf8 import REPLACEMENT, characters
from guardwrap.documents.time_limits import check_deadline

__all__ = ["Monitor", "Verdict"]


class Verdict(IntEnum):
    """What a prefix already says about every text that begins with it (LTL3, Bauer et al. 2011)."""

    VIOLATED = -1
    """No continuation can satisfy the constraint."""
    UNDECIDED = 0
    """Not known: the sound default."""
    SATISFIED = 1
    """Every continuation satisfies it."""


_FEW = 64
"""Characters that are tried one by one to find out whether one of them may come next."""


class Monitor(ABC):
    """A constraint that reads a text piece by piece (the monitor of runtime verification). It never changes.

    For any way of cutting a text into pieces the verdict is sound or UNDECIDED, as ``Constraint.verdict`` is for the
    whole prefix. VIOLATED and SATISFIED are final: whatever is read next, they stay.
    """

    @property
    @abstractmethod
    def verdict(self) -> Verdict:
        """Of what was read so far."""

    @abstractmethod
    def read(self, text: str, /) -> Monitor:
        """Return the monitor that has read this too; this one stays as it is.

        Parameters
        ----------
        text
            What comes next: any number of characters.
        """

    def verdicts(self, texts: Sequence[str], /) -> list[Verdict]:
        """Return for each text the verdict if it came next: for many candidates of one next token.

        Parameters
        ----------
        texts
            The candidates.
        """
        found = []
        for text in texts:
            check_deadline()  # there may be a thousand of them
            found.append(self.read(text).verdict)
        return found

    @property
    def key(self) -> Hashable | None:
        """Equal only for monitors of one constraint that judge alike whatever comes next; None if that is unknown."""
        return None

    def may_begin(self, partial: bytes, /) -> bool:
        """Return whether a character whose UTF-8 begins with these bytes may come next; True if that is unknown.

        Bytes that remain incomplete are decoded to U+FFFD, so False means that U+FFFD is VIOLATED as well.
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
