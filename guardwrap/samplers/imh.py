"""Independent Metropolis-Hastings (Robert and Casella 2004, Section 7.4; the paper's App. G)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

from guardwrap.errors import UsageError, is_count, strict_arguments
from guardwrap.metrics import acceptance_rate, autocorrelation, r_hat
from guardwrap.outcomes import Draw, Estimate
from guardwrap.samplers.protocol import Attempt, Sampler, Trace, checked_weight

__all__ = ["imh"]


class _Chain(NamedTuple):
    """Where a chain stands."""

    draw: Draw | None = None
    log_weight: float = -math.inf
    moves: int = 0
    trace: Trace | None = None  # log-weights after each move


class _State(NamedTuple):
    """Chains side by side, whose turn it is, and what has been seen."""

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
    """Return the sampler that begins at a passing attempt and moves on to others, the likelier the more g prefers them.

    A move from y to y' is made with probability min(1, w(y') / w(y)), where w = P / a' (the paper's App. G).

    Parameters
    ----------
    steps
        Moves of a chain before its first text: the burn-in. 0 is rejection sampling from the proposal.
    thinning
        Moves between the texts of a chain. None ends the chain with its text, so that texts are independent.
    chains
        Chains side by side that take moves in turn. None is one after the other without thinning, which costs the
        same: attempts are independent and drawn in batches either way; and 4 with it.
    move
        ``"accepted"``: a move proposes an attempt that satisfies the constraint, one accepted draw of Algorithm 1, as
        in the paper. ``"raw"``: it proposes any attempt; one that violates the constraint leaves the chain where it is.

    Returns
    -------
    Sampler
        Its report has the moves, the share of them that moved, and of the chains' log-weights the autocorrelation
        at lag 1 and, for several chains, split R-hat.

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

    return Sampler("imh", init, step, partial(_report, steps), weighs=True, skips=move == "accepted")


def _report(steps: int, state: _State) -> tuple[str, Mapping[str, Estimate | float]]:
    if state.ended is None and state.chains[0].draw is None:
        return "nothing: no attempt satisfied the constraint, so no chain of IMH began", {}
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
    return f"approximately g: IMH, {steps} moves from an accepted draw", figures


def _ended(state: _State) -> Iterator[Trace | None]:
    ended = state.ended
    while ended is not None:
        yield ended[0]
        ended = ended[1]
