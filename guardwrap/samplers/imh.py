"""Independent Metropolis-Hastings (Robert and Casella 2004, Section 7.4; the paper's App. G)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

from guardwrap.errors import UsageError, is_count, strict_arguments
from guardwrap.metrics import acceptance_rate, autocorrelation, r_hat
from guardwrap.outcomes import Closeness, Distribution, Draw, Estimate
from guardwrap.samplers.protocol import Attempt, Sampler, Trace, checked_weight


class _Chain(NamedTuple):
    """The current state of a chain."""

    draw: Draw | None = None
    log_weight: float = -math.inf
    moves: int = 0
    trace: Trace | None = None  # log-weights after each move


class _State(NamedTuple):
    """All chains, the index of the one that takes the next attempt, and records for the report."""

    chains: tuple[_Chain, ...]
    turn: int = 0
    ended: tuple[Trace | None, Any] | None = None  # traces of chains that ended, the newest first
    moves: int = 0
    moved: int = 0


@strict_arguments
def imh(
    steps: int = 10,
    *,
    thinning: int | None = None,
    chains: int | None = None,
    move: Literal["accepted", "raw"] = "accepted",
) -> Sampler:
    """Return the sampler that runs Markov chains over passing attempts, which approach g as they get longer.

    A chain at y moves to a proposed attempt y' with probability min(1, w(y') / w(y)), where w = P / a' (the paper's
    App. G).

    Parameters
    ----------
    steps
        Proposed moves of a chain before its first text: the burn-in. 0 is rejection sampling from the proposal.
    thinning
        Proposed moves between two texts of a chain. None starts a new chain after each text, so that texts are
        independent.
    chains
        Number of chains, which take attempts in turn. None means 1 without ``thinning``, and 4 with it. One chain
        costs no more than several: attempts are independent and drawn in batches either way.
    move
        ``"accepted"``: only attempts that satisfy the constraint are proposed as moves, each one accepted draw of
        Algorithm 1, as in the paper. ``"raw"``: every attempt is proposed; one that violates the constraint leaves the
        chain where it is.

    Returns
    -------
    Sampler
        Its report gives the number of proposed moves, the share that was made, the autocorrelation at lag 1 of the
        chains' log-weights and, for several chains, their split R-hat.

    Raises
    ------
    UsageError
        If a number is out of range or ``move`` is unknown.
    """
    for name, value, least in (("steps", steps, 0), ("thinning", thinning, 1), ("chains", chains, 1)):
        if value is not None and (not is_count(value) or value < least):
            raise UsageError(f"imh({name}={value!r}): give a whole number of at least {least}")
    if move not in ("accepted", "raw"):
        raise UsageError(f"imh(move={move!r}): give 'accepted' or 'raw'")
    count = chains or (1 if thinning is None else 4)

    def init() -> _State:
        return _State((_Chain(),) * count)

    def step(state: _State, attempt: Attempt) -> tuple[_State, Draw | None]:
        weight = checked_weight(attempt)
        chain = state.chains[state.turn]
        begins = chain.draw is None
        if not attempt.satisfied and (begins or move == "accepted"):
            return state, None
        moves = begins or (weight > -math.inf and math.log1p(-attempt.uniform) <= weight - chain.log_weight)
        draw, weight = (attempt.draw, weight) if moves else (chain.draw, chain.log_weight)
        chain = _Chain(draw, weight, chain.moves + (not begins), Trace(weight, chain.trace))
        due, ended = chain.moves - steps, state.ended
        text = draw if due == 0 or (thinning is not None and due > 0 and due % thinning == 0) else None
        if text is not None and thinning is None:
            ended = (chain.trace, ended)
            chain = _Chain()
        now = (*state.chains[: state.turn], chain, *state.chains[state.turn + 1 :])
        turn = (state.turn + 1) % count
        return _State(now, turn, ended, state.moves + (not begins), state.moved + (moves and not begins)), text

    options = (("steps", steps), ("thinning", thinning), ("chains", chains), ("move", move))
    return Sampler("imh", init, step, partial(_report, steps), weighs=True, skips=move == "accepted", options=options)


def _report(steps: int, state: _State) -> tuple[Distribution, Mapping[str, Estimate | float]]:
    if state.ended is None and state.chains[0].draw is None:
        return Distribution(Closeness.NOTHING, "no attempt satisfied the constraint, so no chain of IMH began"), {}
    figures: dict[str, Estimate | float] = {"steps": float(steps), "moves": float(state.moves)}
    if state.moves:
        figures["move_acceptance"] = acceptance_rate(state.moved, state.moves, stopped_on_acceptance=False)
    traces = [Trace.values(trace) for trace in (*_ended(state), *(chain.trace for chain in state.chains))]
    # A chain may begin where the model gives nothing, and has no log-weight until it moves.
    traces = [trace for trace in traces if -math.inf not in trace]
    shortest = min((len(trace) for trace in traces if len(trace) > steps), default=0)
    whole = [trace[:shortest] for trace in traces if len(trace) >= shortest]
    if shortest >= 4 and steps:
        figures["autocorrelation"] = autocorrelation(whole, 1)
        if len(whole) > 1:
            figures["r_hat"] = r_hat(whole)
    how = f"IMH, {steps} moves from an accepted draw, distance (TVD) unknown"
    return Distribution(Closeness.APPROXIMATE, how), figures


def _ended(state: _State) -> Iterator[Trace | None]:
    ended = state.ended
    while ended is not None:
        yield ended[0]
        ended = ended[1]
