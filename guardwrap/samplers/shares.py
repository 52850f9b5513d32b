"""Shares of rules in the texts of a prompt (Khalifa, Elsahar and Dymetman 2021), in law or in the set itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import LinearConstraint, milp, minimize

from guardwrap.constraints.field_checks import limits_in_words
from guardwrap.constraints.kinds.share import Share
from guardwrap.errors import GenerationFailed, UsageError, quoted
from guardwrap.metrics.intervals import Floats
from guardwrap.outcomes import Closeness, Distribution, Draw, Estimate
from guardwrap.samplers.protocol import Attempt, Sampler, checked_weight
from guardwrap.support.formatting import counted

PILOT, LONGEST = 100, 1000
"""The fewest and the most attempts that satisfy the other rules in a pilot. It has at least as many as there are texts.

The share that p gives to a rule then misses its target by little more than the share of the texts misses that of p.
"""

SEEN = 20
"""A pilot goes on until each rule has held and not held this many times, or keeps its limits by itself.

Figures need as many attempts after the pilot; with fewer, an interval would be of hardly any cell.
"""

FARTHEST = 30.0
"""The largest |λ| in nats. A share that needs more is taken for one that cannot be reached."""

NEAR = 0.5
"""By how many of a pilot's texts a share that is fitted to them may miss its target."""

_OVERLAP = (
    "exact shares that add up to 1 are of parts of a set, and two of their rules hold in one text; let each rule "
    "exclude the others, or give other shares"
)

Cell = tuple[bool, ...]
"""Which of the rules hold in a text."""


class Tilt(NamedTuple):
    """The factor p(y) / g(y), up to a constant."""

    lambdas: tuple[float, ...]  # in nats
    most: float  # the largest log-factor of a cell in the pilot
    rate: float = 1.0  # mean of exp(log-factor - most) over the pilot: the share of draws of g that rejection accepts

    def __call__(self, cell: Cell) -> float:
        """Return a cell's log-factor in nats. One that the pilot has not seen gets at most that of those it has."""
        return min(sum(value for value, holds in zip(self.lambdas, cell, strict=True) if holds), self.most)


@dataclass(frozen=True, slots=True)
class _Labeled:
    """A draw, in the form in which it passes through the other sampler: with its cell."""

    draw: Draw
    cell: Cell


class _Sums(NamedTuple):
    """What is known of the attempts of one cell."""

    attempts: int = 0
    log_weight: float = -math.inf  # log Σ w, in nats
    log_square: float = -math.inf  # log Σ w²


class _Seen(NamedTuple):
    """Attempts that satisfy the other rules, by their cells. λ, and all figures, depend on nothing else."""

    sums: Mapping[Cell, _Sums] = MappingProxyType({})

    def added(self, cell: Cell, log_weight: float) -> _Seen:
        number, once, twice = self.sums.get(cell, _Sums())
        total = np.logaddexp(once, log_weight), np.logaddexp(twice, 2 * log_weight)
        return _Seen({**self.sums, cell: _Sums(number + 1, *map(float, total))})

    @property
    def attempts(self) -> int:
        """Their number."""
        return sum(each.attempts for each in self.sums.values())

    @property
    def arrays(self) -> tuple[Floats, Floats, Floats, Floats]:
        """The cells, ``[cells, shares]``, and of each the number of attempts, Σ w and Σ w², with Σ w = 1 over all."""
        numbers, once, twice = np.array(list(self.sums.values())).T
        total = float(np.logaddexp.reduce(once))
        total = total if total > -math.inf else 0.0
        return np.array(list(self.sums), dtype=float), numbers, np.exp(once - total), np.exp(twice - 2 * total)


class _State(NamedTuple):
    """What the pilot and the attempts after it were, and the state of the other sampler."""

    base: Any  # the other sampler's state
    passed: int = 0  # attempts that were handed to the other sampler
    taken: int = 0  # how many of them it has accepted
    unreachable: str = ""  # why no further text can be returned
    pilot: _Seen = _Seen()
    tilt: Tilt | None = None  # None during the pilot
    seen: _Seen = _Seen()  # the attempts after the pilot
    # of exact shares: how many texts of each cell to return, None during the pilot, whose texts wait for it; how many
    # were returned, and how many the other sampler has accepted
    quotas: Mapping[Cell, int] | None = None
    waiting: tuple[_Labeled, ...] = ()
    returned: Mapping[Cell, int] = MappingProxyType({})
    accepted: Mapping[Cell, int] = MappingProxyType({})


def with_shares(base: Sampler, shares: Sequence[Share], texts: int) -> Sampler:
    """Return the sampler of texts in which rules hold in given shares.

    Parameters
    ----------
    base
        The sampler of texts without shares. Rejection accepts a text with probability exp(Σ λᵢ φᵢ - max); a sampler
        that weighs gets the log-weight log P(y) / a'(y) + Σ λᵢ φᵢ(y), so that it samples p instead of g.
    shares
        The shares, in the order of ``Attempt.features``.
    texts
        The number of texts that are requested.

    Raises
    ------
    UsageError
        If an exact share of so many texts is none of them, or all.
    """
    for share in shares:
        if share.exact and not 0 < _count(share, texts) < texts:
            counts = counted(texts, "text")
            raise UsageError(f"no number of {counts} is a share of {_words(share)}; ask for more texts, or omit exact")
    exact, least, parts = shares[0].exact, _least(texts), _are_parts(shares)

    def init() -> _State:
        return _State(base.init(), quotas=_known(shares, texts))

    def step(state: _State, attempt: Attempt) -> tuple[_State, tuple[Draw, ...]]:
        if state.unreachable:
            return state, ()
        weight = checked_weight(attempt) if base.weighs else 0.0 if attempt.satisfied else -math.inf
        if state.tilt is None and state.quotas is None:
            if weight > -math.inf:
                state = state._replace(pilot=state.pilot.added(attempt.features, weight))
                if state.pilot.attempts % least == 0 or state.pilot.attempts >= LONGEST:
                    state = _decided(state, shares, texts)
            if not exact or base.weighs:  # a text must not depend on its own weight
                return state, ()
        if parts and sum(attempt.features) > 1:
            return state._replace(unreachable=_OVERLAP), ()
        tilt, log_factor = state.tilt, 0.0
        if tilt is not None and not exact and weight > -math.inf:
            state = state._replace(seen=state.seen.added(attempt.features, weight))
            log_factor = tilt(attempt.features) - tilt.most
        if not base.weighs and attempt.uniform >= math.exp(log_factor):
            return state, ()
        log_weight = attempt.log_weight if attempt.log_weight is None else attempt.log_weight + log_factor
        labeled: Any = _Labeled(attempt.draw, attempt.features)
        after, of_base = base.step(state.base, replace(attempt, draw=labeled, log_weight=log_weight))
        labels: Any = (of_base,) if isinstance(of_base, _Labeled) else of_base or ()
        passed, taken = state.passed + attempt.satisfied, state.taken + len(labels)
        state = state._replace(base=after, passed=passed, taken=taken)
        return in_quotas(state, labels) if exact else (state, tuple(text.draw for text in labels))

    def in_quotas(state: _State, accepted: Sequence[_Labeled]) -> tuple[_State, tuple[Draw, ...]]:
        """Return the texts whose cells lack some; during the pilot, keep them."""
        waiting = (*state.waiting, *accepted)
        if state.quotas is None:
            return state._replace(waiting=waiting), ()
        returned, counts, draws = dict(state.returned), dict(state.accepted), []
        for text in waiting:
            counts[text.cell] = counts.get(text.cell, 0) + 1
            if returned.get(text.cell, 0) < state.quotas.get(text.cell, 0):
                returned[text.cell] = returned.get(text.cell, 0) + 1
                draws.append(text.draw)
        return state._replace(waiting=(), returned=returned, accepted=counts), tuple(draws)

    def needs(state: _State, missing: int) -> float:
        """Return how many further attempts must satisfy the constraint, as expected, for the texts that are missing."""
        if state.unreachable:
            return math.inf
        if state.quotas is not None:
            total = sum(state.accepted.values()) + len(state.quotas)
            lacks = {cell: quota - state.returned.get(cell, 0) for cell, quota in state.quotas.items()}
            missing = math.ceil(max(lack * total / (state.accepted.get(cell, 0) + 1) for cell, lack in lacks.items()))
        elif state.tilt is None:
            return least - state.pilot.attempts % least + (0 if exact else missing)
        if not base.weighs:
            return missing if state.tilt is None else missing / state.tilt.rate
        if base.needs is None:
            return missing * (state.passed + 1) / (state.taken + 1)
        return base.needs(state.base, missing)

    def report(state: _State) -> tuple[Distribution | str, Mapping[str, Estimate | float]]:
        described, figures = base.report(state.base)
        figures, count = dict(figures), sum(state.returned.values())
        if not count and (state.unreachable or (state.tilt is None and state.quotas is None)):
            detail = state.unreachable or _lacked(state.pilot, shares, least)
            return Distribution(Closeness.NOTHING, detail), figures
        words = ", ".join(map(_words, shares))
        if not exact and state.tilt is not None:
            figures |= _figures(state, state.tilt, shares)
            return _described(described, f"with shares of {words}, otherwise as near to it as can be"), figures
        for number, share in enumerate(shares if count else ()):
            holding = sum(texts for cell, texts in state.returned.items() if cell[number])
            figures[f"share({share.title})"] = holding / count
        lacking = state.unreachable or _lacking(state, shares)
        return _described(described, f"a set with shares of {words}, the same within each part", lacking), figures

    return base._replace(
        init=init, step=step, report=report, takes_all=False, needs=needs, features=tuple(share.of for share in shares)
    )


def _least(texts: int) -> int:
    """Return the least number of attempts that satisfy the other rules in a pilot for some texts."""
    return min(max(PILOT, texts), LONGEST)


def _count(share: Share, texts: int) -> int:
    """Return how many of some texts an exact share is; a half is rounded towards half of the texts."""
    exactly = share.low * texts
    return math.floor(exactly + 0.5) if exactly < texts / 2 else math.ceil(exactly - 0.5)


def _are_parts(shares: Sequence[Share]) -> bool:
    """Return whether exact shares add up to 1, so that they are those of the parts of a set: one rule holds in each."""
    return shares[0].exact and math.isclose(sum(share.low for share in shares), 1)


def _known(shares: Sequence[Share], texts: int) -> dict[Cell, int] | None:
    """Return how many texts of each cell exact shares ask for, if no pilot has to tell that."""
    sizes = [share.low for share in shares]
    if _are_parts(shares):
        return _quotas(np.eye(len(shares)), np.array(sizes), shares, texts)
    if shares[0].exact and len(shares) == 1:
        return _quotas(np.array([[1.0], [0.0]]), np.array([sizes[0], 1 - sizes[0]]), shares, texts)
    return None


class Needed(NamedTuple):
    """How many attempts must satisfy the other rules, as estimated from some attempts."""

    first: float  # before the first text
    each: Estimate  # for each text after them; infinite if the attempts cannot tell
    rarest: int = 0  # how many of the attempts are in the cell that decides it
    tilt: Tilt | None = None  # of shares in law, for samplers that weigh; None if the attempts cannot tell


def needed(shares: Sequence[Share], texts: int, attempts: Sequence[Attempt], *, returns: bool = True) -> Needed:
    """Estimate from attempts what texts with shares take.

    The attempts for a text are the largest p/g of a cell: rejection accepts a text of g with probability
    (p/g) / max (p/g), and exact shares wait for the part that is rarest in g beside its share. ``returns``: whether the
    texts of a pilot of exact shares are returned.
    """
    known, seen = _known(shares, texts), _Seen()
    for attempt in attempts:
        if attempt.satisfied and attempt.log_weight != -math.inf:
            seen = seen.added(attempt.features, attempt.log_weight or 0.0)
    first = _pilot_length(seen, shares, texts) if known is None else 0.0
    unknown = Needed(first, Estimate(math.inf, 1.0, math.inf))
    if not seen.attempts:
        return unknown
    names, numbers, g, squares = seen.arrays
    tilt = None
    if known is None:
        try:
            tilt = _tilt(names, np.log(g), shares, seen.attempts)
        except GenerationFailed:
            return unknown
        p = _law(names, g, tilt)
    else:
        quotas = {cell: count / texts for cell, count in known.items()}
        p = np.array([quotas.pop(tuple(map(bool, cell)), 0.0) for cell in names])
        if quotas:  # a part that no attempt is in
            return unknown
    rarest = int((p / g).argmax())
    each, wide = float(p[rarest] / g[rarest]), math.exp(1.96 * math.sqrt(squares[rarest]) / g[rarest])
    if shares[0].exact and known is None and returns:
        first = max(0.0, first - each * texts)
    cost = Estimate(each, max(each / wide, 1.0), each * wide)
    return Needed(first, cost, int(numbers[rarest]), None if shares[0].exact else tilt)


def _pilot_length(seen: _Seen, shares: Sequence[Share], texts: int) -> float:
    """Return how many attempts a pilot takes, as expected."""
    least, longest = _least(texts), 0.0
    if not seen.attempts:
        return float(least)
    cells, _, weights, _ = seen.arrays
    for share, rate in zip(shares, weights @ cells, strict=True):
        if not share.low <= rate <= share.high:
            rarer = min(rate, 1 - rate)
            longest = max(longest, SEEN / rarer if rarer > 0 else LONGEST)
    return float(min(max(least * math.ceil(longest / least), least), LONGEST))


def _described(described: Distribution | str, words: str, lacking: str = "") -> Distribution | str:
    """Describe the distribution of texts that the other sampler describes as g or close to it."""
    if not isinstance(described, Distribution) or described.closeness is Closeness.NOTHING:
        return described
    return Distribution(Closeness.OTHER, "; ".join(filter(None, (words, described.detail, lacking))))


def _lacked(pilot: _Seen, shares: Sequence[Share], least: int) -> str:
    """Say what a pilot still waited for when the budget ended."""
    if pilot.attempts < least:
        return f"shares first need {least} attempts that satisfy the constraint, and had {pilot.attempts}"
    cells, numbers, _, _ = pilot.arrays
    undecided = [
        f"{quoted(share.title)} held in {int(holds)}"
        for share, holds in zip(shares, numbers @ cells, strict=True)
        if min(holds, pilot.attempts - holds) < SEEN
    ]
    why = ", ".join(undecided) or "no weights give them these shares"
    wanted = f"{SEEN} with and {SEEN} without each rule or {LONGEST:,} in all"
    return f"shares first need attempts that satisfy the constraint, {wanted}: of {pilot.attempts}, {why}"


def _lacking(state: _State, shares: Sequence[Share]) -> str:
    """Say which texts of exact shares are missing; "" if none is."""
    lacking = []
    for cell, quota in (state.quotas or {}).items():
        missing = quota - state.returned.get(cell, 0)
        if missing > 0:
            rules = [quoted(share.title) for share, holds in zip(shares, cell, strict=True) if holds]
            where = f"{' and '.join(rules)} held" if rules else "no rule of a share held"
            seen = f"{state.accepted.get(cell, 0)} of {sum(state.accepted.values())}"
            lacking.append(f"{counted(missing, 'text')} lacked, where {where}: {seen} were")
    return "; ".join(lacking)


def _words(share: Share) -> str:
    limits = limits_in_words(share.at_least, share.at_most) if share.share is None else f"{share.share:g}"
    return f"{limits} for {quoted(share.title)}"


def _suffices(pilot: _Seen, shares: Sequence[Share]) -> bool:
    """Return whether each rule has held and not held in enough texts of a pilot, or keeps its limits by itself."""
    cells, numbers, weights, _ = pilot.arrays
    holds, reached = numbers @ cells, weights @ cells
    often = (holds >= SEEN) & (pilot.attempts - holds >= SEEN)
    kept = [share.low <= rate <= share.high for share, rate in zip(shares, reached, strict=True)]
    return bool((often | kept).all())


def _decided(state: _State, shares: Sequence[Share], texts: int) -> _State:
    """Fix λ by the pilot, if it tells it; of exact shares also how many texts of each cell to return."""
    longer = state.pilot.attempts < LONGEST
    if longer and not _suffices(state.pilot, shares):
        return state
    names, _, weights, _ = state.pilot.arrays
    try:
        tilt = _tilt(names, np.log(weights), shares, state.pilot.attempts)
    except GenerationFailed as error:
        # a combination of rules may be missing by chance
        return state if longer else state._replace(unreachable=str(error))
    if not shares[0].exact:
        return state._replace(tilt=tilt)
    return state._replace(quotas=_quotas(names, _law(names, weights, tilt), shares, texts))


def _tilt(cells: Floats, log_sizes: Floats, shares: Sequence[Share], count: int) -> Tilt:
    """Return the factor that ``fitted`` gives."""
    lambdas = fitted(cells, log_sizes, shares, count)
    log_factors = cells @ np.array(lambdas)
    most = float(log_factors.max())
    return Tilt(lambdas, most, float(np.exp(log_sizes + log_factors - most).sum()))


def _law(cells: Floats, weights: Floats, tilt: Tilt) -> Floats:
    """Return the share of p that each cell has, from its weight under g."""
    sizes = weights * np.exp(cells @ np.array(tilt.lambdas) - tilt.most)
    p: Floats = sizes / sizes.sum()
    return p


def _quotas(cells: Floats, sizes: Floats, shares: Sequence[Share], texts: int) -> dict[Cell, int]:
    """Return how many of some texts each cell has: each share its own count, and else as near to its size as can be.

    A count that these cells cannot give beside the others is missed by as few texts as possible.
    """
    number, rules = cells.shape
    counts, exactly = [_count(share, texts) for share in shares], sizes * texts
    # Unknown are the texts of each cell, how far each is from its size, and by how many a count is missed, up and down.
    cost = np.concatenate([np.zeros(number), np.ones(number), np.full(2 * rules, 2.0 * texts + 1)])
    of_cells, of_rules, none, never = (
        np.eye(number),
        np.eye(rules),
        np.zeros((number, rules)),
        np.zeros((rules, number)),
    )
    sums = np.concatenate([np.ones(number), np.zeros(number + 2 * rules)])[None]
    conditions = [
        LinearConstraint(sums, texts, texts),
        LinearConstraint(np.hstack([cells.T, never, -of_rules, of_rules]), counts, counts),
        LinearConstraint(np.hstack([of_cells, -of_cells, none, none]), -np.inf, exactly),
        LinearConstraint(np.hstack([of_cells, of_cells, none, none]), exactly, np.inf),
    ]
    whole = np.concatenate([np.ones(number), np.zeros(number + 2 * rules)])
    quotas = np.round(milp(cost, integrality=whole, constraints=conditions).x[:number])
    return {tuple(map(bool, cell)): int(quota) for cell, quota in zip(cells, quotas, strict=True)}


def fitted(cells: Floats, log_sizes: Floats, shares: Sequence[Share], count: int) -> tuple[float, ...]:
    """Return λ in nats, which minimizes the convex dual log Σ g exp(λ·φ) - λ·μ (Khalifa et al. 2021, Section 3.1).

    Parameters
    ----------
    cells
        The combinations of the rules that hold in texts, ``[cells, shares]``.
    log_sizes
        The logarithm of the share of g that each has, ``[cells]``.
    shares
        The shares. A limit that is kept has λ = 0.
    count
        The number of texts that ``log_sizes`` are estimated from.

    Raises
    ------
    GenerationFailed
        If no weighting of these texts has these shares.
    """
    low, high = np.array([share.low for share in shares]), np.array([share.high for share in shares])

    # λ = up - down, with up for the lower limit and down for the upper one, both at least 0; up alone for a share
    def dual(both: Floats) -> tuple[float, Floats]:
        up, down = np.split(both, 2)
        scores = log_sizes + cells @ (up - down)
        top = scores.max()
        sizes = np.exp(scores - top)
        reached = sizes @ cells / sizes.sum()
        value = top + math.log(sizes.sum()) - up @ low + down @ high
        return float(value), np.concatenate([reached - low, high - reached])

    bounds = [(0.0 if share.share is None else -FARTHEST, FARTHEST) for share in shares]
    bounds += [(0.0, FARTHEST if share.share is None else 0.0) for share in shares]
    found = minimize(dual, np.zeros(2 * len(shares)), jac=True, method="L-BFGS-B", bounds=bounds, options=_PRECISE).x
    up, down = np.split(found, 2)
    reached = dual(found)[1][: len(shares)] + low
    for share, each in zip(shares, reached, strict=True):
        if max(share.low - each, each - share.high) > NEAR / count + _ROUNDING:
            raise GenerationFailed(_unreachable(share, shares, cells, float(each), count))
    lambdas = up - down
    if np.ptp(cells.sum(axis=1)) == 0:  # as many rules hold in each text, so that only differences of λ matter
        lambdas = lambdas - lambdas.max()
    return tuple(lambdas.tolist())


_PRECISE, _ROUNDING = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 1000}, 1e-5


def _unreachable(share: Share, shares: Sequence[Share], cells: Floats, reached: float, count: int) -> str:
    """Say which share cannot be reached, and what was seen."""
    holds = cells[:, [each is share for each in shares]].ravel()
    if holds.max() == holds.min():
        always = "held in all" if holds.max() else "held in none"
        why = f"the rule {always} of the pilot's {count} texts"
        return f"a share of {_words(share)} cannot be reached: {why}; change the prompt or the share"
    others = ", ".join(_words(each) for each in shares if each is not share)
    why = f"in the pilot's {count} texts these shares contradict each other, and {reached:.2g} is the nearest"
    return f"a share of {_words(share)} cannot be reached beside {others}: {why}; change one of the shares"


def _figures(state: _State, tilt: Tilt, shares: Sequence[Share]) -> dict[str, Estimate | float]:
    """Return λ, the shares of p and KL(p‖g), if possible from attempts after the pilot, on which λ does not depend."""
    figures: dict[str, Estimate | float] = {"pilot_of_shares": float(state.pilot.attempts)}
    seen = state.seen if state.seen.attempts >= SEEN else state.pilot
    cells, _, weights, squares = seen.arrays
    log_factors = np.array([tilt(cell) - tilt.most for cell in seen.sums])
    factors = np.exp(log_factors)
    total = float(weights @ factors)
    for number, share in enumerate(shares):
        figures[f"lambda({share.title})"] = tilt.lambdas[number]
        value = float((weights * factors) @ cells[:, number]) / total
        slopes = (cells[:, number] - value) * factors / total  # of the share by the weight of an attempt of each cell
        figures[f"share({share.title})"] = _wilson(
            value, float(slopes**2 @ squares), float(factors**2 @ squares) / total**2
        )
    mean = float((weights * factors) @ log_factors) / total
    kl, slopes = mean - math.log(total), factors / total * (log_factors - mean - 1) + 1
    half = 1.96 * math.sqrt(float(slopes**2 @ squares))
    figures["kl_to_g"] = Estimate(kl, max(kl - half, 0.0), kl + half)
    return figures


def _wilson(share: float, variance: float, of_all: float) -> Estimate:
    """Return a share of weights with Wilson's interval; ``of_all``: Σ w² / (Σ w)², for one without variance."""
    square = 1.96**2 * (variance / (share * (1 - share)) if variance > 0 else of_all)
    middle = (share + square / 2) / (1 + square)
    half = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    return Estimate(share, max(middle - half, 0.0), min(middle + half, 1.0))
