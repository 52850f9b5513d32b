"""The outcome of a request: its texts, with a report of their distribution, their cost, and remarks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import astuple, replace

from guardwrap.constraints.json.json_schema import parser_of
from guardwrap.constraints.json.schema_notes import further_keys
from guardwrap.engine.scheduling.request_state import RequestState
from guardwrap.metrics import acceptance_rate
from guardwrap.outcomes import (
    FEW,
    ITSELF,
    MANY_CUT_OFF,
    NO_CALL,
    Closeness,
    Distribution,
    Estimate,
    Outcome,
    Remedy,
    Report,
    Usage,
    heavy_tail,
)
from guardwrap.support.formatting import counted, digits, tail_in_words

_PLACES = 20
"""The most places of violations that a report counts for one part of the constraint."""

_CLOCK = "max_time cuts texts by the clock, so the same seed may give other texts next time"
_SKIPS = "{} of {} attempts were known to be rejected and not drawn; their number was drawn from its exact distribution"

_LITTLE = (
    "all attempts are worth {} draws from your model's own distribution (g), too few to estimate the distance to it: "
    "draw more, for example with a larger pilot, or choose a closer proposal"
)
_HEAVY = (
    "{}, so the distance to your model's own distribution (g) may be far larger than estimated: draw more, for example "
    "with a larger pilot, or choose a closer proposal"
)
_NEVER = "no text that can be drawn under these settings satisfies the constraint"
_GIVEN_UP = (
    "the mask was given up {}, because it took longer than other callers in the batch may wait; weights account for "
    "that, but the same seed may give other texts next time"
)
_ANOTHER_PROMPT = (
    "{} of {} texts came from a repair turn, so from attempts of the model given a rejected text and the reasons "
    "(g' of another prompt)"
)
_TURN = "{} of {} texts were missing after {}, so a repair turn followed"
_UNKNOWN = Distribution(Closeness.UNKNOWN, "unknown: creating the report failed")
_OWN = (
    "attempts came from the model itself, without a proposal: sampler='rejection' gives exactly your model's own "
    "distribution (g) with {} attempts"
)


def outcome_of(state: RequestState, *, asked: bool = True) -> Outcome:
    """Return the outcome of a request.

    ``asked``: whether the report may call methods of the request's sampler, weigher and constraint. Pass False if one
    of them raised an error.
    """
    request, law = state.request, state.request.prompt.law
    usage = replace(
        request.drawing.learning,
        attempts=state.attempts,
        tokens=state.tokens,
        seconds=state.seconds,
        surplus_attempts=len(state.surplus),
        surplus_tokens=sum(state.surplus),
        computed_tokens=state.computed,
        skipped_attempts=state.order.skipped,
        model_checks=state.model_checks,
        model_seconds=state.model_seconds,
    )
    rate = None
    if law.mode == "sample" and state.attempts:
        complete = state.ended == "complete"
        rate = acceptance_rate(state.tally.satisfied, state.attempts, stopped_on_acceptance=complete)
    distribution, evidence = _drawn_from(state) if asked else (_UNKNOWN, {})
    report = Report(
        distribution=distribution,
        evidence=evidence,
        sampler=request.spec.sampler.name,
        seed=request.spec.seed,
        requested=state.wanted,
        accepted=len(state.accepted),
        ended=state.ended or "error",
        usage=usage,
        budget=request.spec.budget,
        acceptance=rate,
        rejected=dict(state.tally.rejections.most_common()),
        passed_over=state.tally.passed_over,
        constraint=request.spec.constraint.digest if asked else "",
        mode=state.mode if law.beam_results is None else "generate",
        notes=tuple(_notes(state, evidence, asked=asked)),
        origin=request.drawing.origin,
        cut_off=state.tally.cut_off,
        obstacle=None if state.tally.satisfied else state.inquiry.obstacle,
        places={title: dict(counts.most_common(_PLACES)) for title, counts in state.tally.places.items()},
        prompt_tokens=request.drawing.prompt_tokens,
        stopped=state.tally.stopped,
        remedies=_remedies(state, asked=asked),
    )
    draws = tuple(state.accepted)
    texts = tuple(draw.text for draw in draws)
    return Outcome(request.prompt.given, texts, draws, report, parser_of(request.spec.constraint) if asked else None)


def with_earlier(earlier: Outcome | None, later: Outcome) -> Outcome:
    """Return the outcome of a request together with that of the request which it followed up."""
    if earlier is None:
        return later
    before, after = earlier.report, later.report
    texts, repaired = earlier.texts + later.texts, len(later.texts)
    turn = _TURN.format(before.missing, before.requested, counted(before.usage.attempts, "attempt"))
    places: dict[str, Counter[str]] = {}
    for title, counts in (*before.places.items(), *after.places.items()):
        places.setdefault(title, Counter()).update(counts)
    other = Distribution(Closeness.OTHER, _ANOTHER_PROMPT.format(repaired, len(texts)))
    report = replace(
        after,
        seed=before.seed,
        distribution=other if repaired else before.distribution,
        evidence={},
        requested=before.requested,
        accepted=len(texts),
        usage=Usage(*map(sum, zip(astuple(before.usage), astuple(after.usage), strict=True))),
        acceptance=None,
        rejected=dict((Counter(before.rejected) + Counter(after.rejected)).most_common()),
        passed_over=before.passed_over + after.passed_over,
        notes=tuple(dict.fromkeys((*before.notes, turn, *after.notes))),
        cut_off=before.cut_off + after.cut_off,
        prompt_tokens=before.prompt_tokens,
        places={title: dict(counts.most_common(_PLACES)) for title, counts in places.items()},
    )
    return replace(earlier, texts=texts, draws=earlier.draws + later.draws, report=report)


def _remedies(state: RequestState, *, asked: bool) -> tuple[Remedy, ...]:
    """Return what may help a request that lacks texts, as far as its call can do it."""
    ways, obstacle, mask = state.request.drawing.ways, state.inquiry.obstacle, state.request.drawing.mask
    if state.ended in (None, "complete", "error"):
        return ()
    if state.ended == "deterministic":
        return (Remedy.SAMPLING, Remedy.CONSTRAINT)
    if not state.attempts and state.ended in ("timeout", "deadline"):
        return (Remedy.TIME,)
    without_call = sum(counts[NO_CALL] for counts in state.tally.places.values())
    if Remedy.MASK in ways and 2 * without_call > state.attempts:
        return (Remedy.CALLS,)
    narrow = mask is not None and not mask.beyond and obstacle is not None and obstacle.truncates
    beyond = [Remedy.BEYOND] if narrow and not state.request.spec.sampler.weighs else []
    if state.ended == "impossible":
        if asked and state.is_ruled_out:  # by the prompt alone, whatever follows it
            return (Remedy.CONSTRAINT,)
        usual = [Remedy.SETTINGS] if obstacle is not None else [Remedy.TEXTS, Remedy.LENGTH]
        # If some attempts satisfy the constraint, it is the sampler that returns none of them.
        usual = [] if state.tally.satisfied else [*usual, *beyond]
        chosen = [*usual, Remedy.CONSTRAINT, Remedy.PROMPT]
    else:
        rejected = state.attempts - state.tally.satisfied
        chosen = [Remedy.SETTINGS] if obstacle is not None else []
        chosen += beyond
        chosen += [Remedy.LENGTH] if state.tally.cut_off >= MANY_CUT_OFF * state.attempts else []
        chosen += [Remedy.MASK] if 2 * state.tally.stopped >= rejected > 0 else []
        chosen += [Remedy.BUDGET, Remedy.CONSTRAINT, Remedy.PROMPT]
    always = (Remedy.SETTINGS, Remedy.BEYOND, Remedy.BUDGET, Remedy.CONSTRAINT)
    return tuple(remedy for remedy in chosen if remedy in always or remedy in ways)


def _drawn_from(state: RequestState) -> tuple[Distribution, Mapping[str, Estimate | float]]:
    """Return the distribution of the texts, and figures that say how close it is to g."""
    request = state.request
    if request.prompt.law.mode != "sample":
        detail = f"{request.prompt.law.mode} search, checked: not a draw from your model's own distribution (g)"
        return Distribution(Closeness.SEARCH, detail), {}
    described, evidence = request.spec.sampler.report(state.sampler_state)
    known = described if isinstance(described, Distribution) else Distribution(Closeness.UNKNOWN, described)
    if request.spec.budget.deadline is not None or request.spec.budget.timeout is not None:
        return Distribution(Closeness.BIASED), evidence
    if not state.accepted and known.closeness in (Closeness.EXACT, Closeness.APPROXIMATE):
        return Distribution(Closeness.NOTHING), evidence
    if (
        request.drawing.origin != ITSELF
        and not request.spec.sampler.weighs
        and known.closeness is not Closeness.NOTHING
    ):
        accepted = request.drawing.origin.accepted()
        if not request.spec.sampler.features:
            return accepted, evidence
        # KL(p‖g) would be to g', which attempts were drawn from.
        figures = {name: figure for name, figure in evidence.items() if name != "kl_to_g"}
        return Distribution(Closeness.OTHER, f"{accepted.detail}, {known.detail}"), figures
    return known, evidence


def _notes(state: RequestState, evidence: Mapping[str, Estimate | float], *, asked: bool) -> Iterator[str]:
    """Yield the remarks on a request, one sentence each."""
    request = state.request
    yield from request.drawing.notes
    if request.drawing.mask is not None:
        yield from request.drawing.mask.notes
    if request.prompt.law.max_time is not None:
        yield _CLOCK
    rounding = request.drawing.weigh.note if asked and request.drawing.weigh is not None else None
    if rounding is not None:
        yield rounding
    if state.live is not None:
        yield from state.live.notes()
    if state.order.skipped:
        yield _SKIPS.format(state.order.skipped, state.attempts)
    if state.ended == "impossible" and not state.tally.satisfied:
        yield _NEVER
    if state.allowance.given_up:
        yield _GIVEN_UP.format(counted(state.allowance.given_up, "time"))
    unsure = _unsure(evidence)
    if unsure is not None:
        yield unsure
    if request.spec.sampler.weighs and request.drawing.origin == ITSELF and not request.spec.sampler.features:
        yield _OWN.format("fewer" if "pilot_attempts" in evidence else "no more")
    # Further keys make texts longer, so they are worth a note where the token limit cost texts.
    if asked and state.tally.cut_off and len(state.accepted) < state.wanted:
        yield from further_keys(request.spec.constraint)
    for remark, count in state.tally.remarks.items():
        yield remark.format(counted(count, "attempt"))


def _unsure(evidence: Mapping[str, Estimate | float]) -> str | None:
    """Return why the distance to g cannot be estimated from these attempts; None if it can."""
    worth = evidence.get("effective_sample_size")
    if isinstance(worth, Estimate) and worth.value < FEW:
        return _LITTLE.format(digits(worth.value))
    heavy = heavy_tail(evidence)
    return None if heavy is None else _HEAVY.format(tail_in_words(heavy))
