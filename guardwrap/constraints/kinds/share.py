"""The ``Share`` of a set of texts in which a rule holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from guardwrap.constraints.base import Constraint, walk
from guardwrap.constraints.field_checks import require, require_booleans, shown
from guardwrap.constraints.verdicts import Context, Monitor, Undecided, Verdict
from guardwrap.errors import ConstraintError, is_number
from guardwrap.outcomes import Draw
from guardwrap.support.threads import cached_property


@dataclass(frozen=True, eq=False, repr=False)
class Share(Constraint):
    """A rule that holds in a share of a prompt's texts. It stands beside other rules and rejects no text by itself.

    Texts are drawn from the distribution nearest to g in KL(p‖g) in which the rule has that probability,
    p(y) ∝ g(y) exp(Σ λᵢ φᵢ(y)), where φᵢ(y) is 1 if the rule of the i-th share holds (Khalifa et al., ICLR 2021). A
    pilot of 100 to 1000 attempts that satisfy the other rules, as many as there are texts, determines λ, in nats. Its
    texts are not returned. The report gives λ, KL(p‖g), and the share that p gives to the rule, with its interval.

    Parameters
    ----------
    of
        The rule.
    share
        The probability with which it holds, in (0, 1).
    at_least, at_most
        Limits of that probability, instead of ``share``.
    exact
        Whether the share counts in the n texts of each prompt instead, rounded to whole texts: the first ones in launch
        order in which the rule holds, and the first in which it does not, until both are full. Each is then a draw of g
        given whether the rule holds. Several are all exact or none is. If they add up to 1, each is the share of a part
        of the set, and their rules must exclude each other. Otherwise a pilot, whose texts are returned if the sampler
        is rejection, tells how p divides n among the combinations of their rules, and each share has its own count.
        Half a text is rounded towards the middle: .9 of 5 texts are 4.
    name
        Label in reports.

    Raises
    ------
    ConstraintError
        If a parameter is out of range.

    Examples
    --------
    ::

        GuardedGenerator(pipe, [Length(max=200), Share(Keyword("she"), 0.5)])
    """

    of: Constraint
    share: float | None = None
    at_least: float | None = field(default=None, kw_only=True)
    at_most: float | None = field(default=None, kw_only=True)
    exact: bool = field(default=False, kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["share"] = field(default="share", kw_only=True)

    def __post_init__(self) -> None:
        require(isinstance(self.of, Constraint), f"Share takes one constraint, not {shown(self.of)}")
        require(not any(isinstance(part, Share) for part in walk(self.of)), "a share cannot be part of another one")
        limits = {"share": self.share, "at_least": self.at_least, "at_most": self.at_most}
        set_limits = {name: limit for name, limit in limits.items() if limit is not None}
        for name, limit in set_limits.items():
            require(is_number(limit) and 0 < limit < 1, f"{name}={shown(limit)}: give a number between 0 and 1")
        require(bool(set_limits), "give share, at_least or at_most, such as share=0.5")
        require(self.share is None or len(set_limits) == 1, "give either share, or at_least and at_most")
        require(self.low <= self.high, f"at_least={self.at_least} is above at_most={self.at_most}")
        require_booleans(self, "exact")
        require(not self.exact or self.share is not None, "exact=True needs share; a limit leaves the number open")

    @property
    def low(self) -> float:
        """The least probability of the rule."""
        return self.share if self.share is not None else self.at_least or 0.0

    @property
    def high(self) -> float:
        """The largest probability of the rule."""
        return self.share if self.share is not None else self.at_most or 1.0

    @cached_property
    def title(self) -> str:
        return self.name or self.of.title

    def wrapped(self, wrap: Callable[[Constraint], Constraint]) -> Constraint:
        return replace(self, of=wrap(self.of))

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        return [True] * len(draws)

    def verdict(self, prefix: str, /) -> Verdict:
        return Verdict.SATISFIED

    def monitor(self) -> Monitor:
        return _Satisfied()

    def monitor_in(self, context: Context, /) -> Monitor:
        return _Satisfied()


class _Satisfied(Undecided):
    """Monitor of a rule that every text satisfies."""

    @property
    def verdict(self) -> Verdict:
        return Verdict.SATISFIED


def shares_of(constraint: Constraint) -> tuple[Share, ...]:
    """Return the shares of a constraint.

    Raises
    ------
    ConstraintError
        If one is within a combination or another rule, where it would have no effect, or only some are exact.
    """
    shares = tuple(part for part in constraint.parts if isinstance(part, Share))
    for part in walk(constraint):
        if isinstance(part, Share) and not any(part.of is share.of for share in shares):
            raise ConstraintError(
                f"the share of {part.title} is within another rule; put it beside the other rules of the list"
            )
    rules = [share.of.digest for share in shares]
    for share, rule in zip(shares, rules, strict=True):
        if rules.count(rule) > 1:
            raise ConstraintError(f"two shares are of the rule {share.title}; give one, with at_least and at_most")
    if any(share.exact != shares[0].exact for share in shares):
        raise ConstraintError("some shares are exact and others are not; give exact to all of them or to none")
    return shares
