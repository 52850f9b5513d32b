"""Decoding and judging of attempts that ended, together for all requests with the same constraint.

Expensive parts, such as classifiers, judge the texts of all requests that use them in one batch, even if the requests'
constraints differ in other parts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from guardwrap.constraints.base import EXPENSIVE, Constraint
from guardwrap.constraints.checking import Judgement, judge_parts
from guardwrap.documents.time_limits import judging
from guardwrap.errors import own_error
from guardwrap.outcomes import Draw
from guardwrap.scheduling.backend import AttemptState, grouped
from guardwrap.scheduling.request import Request
from guardwrap.scheduling.request_state import NO_CHECKS, JudgedAttempt, ModelChecks

Within = Callable[[Request], AbstractContextManager[Any]]

Failures = dict[Request, Exception]
"""The error that judging a request's attempts raised, by request."""


def judge_attempts(
    ended: Sequence[AttemptState], *, within: Within | None = None
) -> tuple[list[JudgedAttempt], Failures]:
    """Decode attempts, judge those that are whole, and compute log-weights of those that satisfy their constraint.

    A checker that raises ends only the requests for whose attempts it raises. A text with a judgement in the backend's
    cache is not judged again.

    Parameters
    ----------
    ended
        Attempts of any requests, none of them failed.
    within
        Returns a context for a request, in which the cheap parts of its constraint are judged. A request whose context
        runs out of time fails with StepOver. None sets no limit.

    Returns
    -------
    list of JudgedAttempt
        The attempts of requests without errors. Attempts judged from the cache come first.
    dict of Request to Exception
        The errors of the other requests.
    """
    failures: Failures = {}
    draws: dict[int, Draw] = {}
    before: list[JudgedAttempt] = []
    for i, attempt in enumerate(ended):
        request = _request(attempt)
        remembered = None if attempt.memo is None else attempt.memo.by_request.get(request)
        if remembered is not None:
            before.append(JudgedAttempt(attempt, *remembered))
            continue
        try:
            finished = attempt.status == "finished"
            draws[i] = request.drawing.draw_of(request.prompt, attempt.grown, finished, attempt.log_probability)
        except BaseException as error:
            failures.setdefault(request, own_error(error))
    judgements = {i: Judgement(False, ended[i].blame, _place(ended[i])) for i in draws if not ended[i].whole}
    whole = [i for i in draws if ended[i].whole]
    judgements |= {i: cached for i in whole if (cached := _remembered(ended[i], draws[i])) is not None}
    checks: dict[int, ModelChecks] = {}
    with judging():
        judgements |= _judgements(ended, draws, [i for i in whole if i not in judgements], failures, within, checks)
    weights: dict[int, float] = {}
    heavy = [i for i in whole if judgements[i].satisfied and _request(ended[i]).drawing.weigh is not None]
    for places in grouped(heavy, lambda i: id(_request(ended[i]).drawing.weigh)):
        weights |= _each(ended, places, failures, lambda part: _weigh(ended, draws, part))
    kept = [i for i in draws if _request(ended[i]) not in failures]
    judged = [
        JudgedAttempt(ended[i], draws[i], judgements[i], weights.get(i, ended[i].log_left), checks.get(i, NO_CHECKS))
        for i in kept
    ]
    for item in judged:
        _remember(item)
    return [*before, *judged], failures


def _place(attempt: AttemptState) -> str | None:
    """Return where an attempt that ended early violates the constraint; None if that is not known."""
    watch = _request(attempt).drawing.watch
    return None if watch is None or attempt.status not in ("aborted", "dead_end") else watch.place(attempt.grown)


def _remembered(attempt: AttemptState, draw: Draw) -> Judgement | None:
    """Return the cached judgement of an equal draw with the same tokens, perhaps of another request; or None."""
    return None if attempt.memo is None else attempt.memo.judgements.get(_read_of(draw))


def _remember(item: JudgedAttempt) -> None:
    memo = item.decoded.memo
    if memo is not None:
        memo.by_request[_request(item.decoded)] = item.draw, item.judgement, item.log_weight
        memo.judgements[_read_of(item.draw)] = item.judgement


def _read_of(draw: Draw) -> Hashable:
    """Return everything in a draw that a judgement may depend on, except its tokens and their log-probability.

    These are equal for all draws in a cache. The text need not be: it depends on how the call decodes tokens, and on
    the prompt before them.
    """
    message = draw.parts, draw.begun, draw.message
    return draw.prompt, draw.text, draw.full, draw.finished, draw.fault, message


def _request(attempt: AttemptState) -> Request:
    request: Request = attempt.launch.request
    return request


def _each(ended: Sequence[AttemptState], places: Sequence[int], failures: Failures, work: Any) -> dict[int, Any]:
    """Do the work for all attempts together; if that raises, for each request separately, to isolate the error."""
    try:
        return dict(zip(places, work(places), strict=True))
    except BaseException as error:
        own = own_error(error)
        parts = grouped(places, lambda i: _request(ended[i]))
        if len(parts) == 1:
            failures[_request(ended[places[0]])] = own
            return {i: Judgement(False) for i in places}
    results: dict[int, Any] = {}
    for part in parts:
        results |= _each(ended, part, failures, work)
    return results


def _judgements(
    ended: Sequence[AttemptState],
    draws: dict[int, Draw],
    whole: Sequence[int],
    failures: Failures,
    within: Within | None,
    checks: dict[int, ModelChecks],
) -> dict[int, Judgement]:
    """Judge whole texts: first by the cheap parts of each constraint, then those that passed by the expensive parts.

    What the expensive parts cost is added to ``checks``.
    """
    judgements: dict[int, Judgement] = {}
    left: dict[int, list[Constraint]] = {}

    def by(parts: Sequence[Constraint], places: Sequence[int], clock: Within = nullcontext) -> None:
        def judge(some: Sequence[int]) -> list[Judgement]:
            with clock(_request(ended[some[0]])):
                return judge_parts(parts, [draws[i] for i in some], with_places=True)

        judgements.update(_each(ended, places, failures, judge))

    for places in grouped(whole, lambda i: _request(ended[i]).rule if within is None else _request(ended[i])):
        parts = _request(ended[places[0]]).spec.constraint.parts
        by([part for part in parts if part.cost < EXPENSIVE], places, within or nullcontext)
        left |= {i: [part for part in parts if part.cost >= EXPENSIVE] for i in places}
    while waiting := [i for i, parts in left.items() if parts and judgements[i].satisfied]:
        following = {i: left[i].pop(0) for i in waiting}
        for places in grouped(waiting, following.__getitem__):
            began = time.monotonic()
            by([following[places[0]]], places)
            seconds = (time.monotonic() - began) / len(places)
            for i in places:
                before = checks.get(i, NO_CHECKS)
                checks[i] = ModelChecks(before.texts + 1, before.seconds + seconds)
    return judgements


def _weigh(ended: Sequence[AttemptState], draws: dict[int, Draw], places: Sequence[int]) -> list[float]:
    weigh = _request(ended[places[0]]).drawing.weigh
    return [] if weigh is None else weigh([(_request(ended[i]).prompt, draws[i], ended[i].log_left) for i in places])
