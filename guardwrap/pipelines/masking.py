"""Which next tokens could not lead to a text that satisfies the constraint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from guardwrap.backends.law import GenerationLaw
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.judge import judge_parts
from guardwrap.draws import Draw
from guardwrap.pipelines.prefix import PrefixWatch

__all__ = ["Mask"]

DEAR = 2
"""``Constraint.cost`` of parts that are not asked about texts which nobody may ever draw: classifiers."""


@dataclass(frozen=True)
class Mask:
    """Judges the candidates of a next token: those that end the text as whole texts, the others by their verdicts.

    Parameters
    ----------
    watch
        Of the same prompt.
    law
        Of the same prompt: it says which tokens end a text.
    constraint
        b.
    draw
        From new tokens and whether they ended by themselves to the text as the user gets it.
    unseen
        Of what is left, the share that tokens which were not looked at may have.
    """

    watch: PrefixWatch
    law: GenerationLaw
    constraint: Constraint
    draw: Callable[[Sequence[int], bool], Draw]
    unseen: float

    def dead(self, token_ids: Sequence[int], candidates: Sequence[int]) -> list[bool]:
        """Say for each candidate whether no text that begins with these tokens and it satisfies the constraint.

        Parameters
        ----------
        token_ids
            New tokens so far.
        candidates
            Token ids.

        Raises
        ------
        CheckFailed
            If the constraint cannot judge one of them.
        """
        full = len(self.law.ids) + len(token_ids) + 1 >= self.law.max_length
        over = [full or token in self.law.end_ids for token in candidates]
        growing = [token for token, ends in zip(candidates, over, strict=True) if not ends]
        ending = [token for token, ends in zip(candidates, over, strict=True) if ends]
        violated = iter(self.watch.violated(token_ids, growing))
        fails = iter(self._fail([self.draw([*token_ids, token], token in self.law.end_ids) for token in ending]))
        return [next(fails if ends else violated) for ends in over]

    def _fail(self, draws: Sequence[Draw]) -> list[bool]:
        parts = [part for part in self.constraint.parts if part.cost < DEAR]
        return [not judgement.satisfied for judgement in judge_parts(parts, draws)]
