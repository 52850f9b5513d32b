"""Reports in words: their first line, the rows below it, and advice if the budget did not suffice."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

from guardwrap.errors import quoted
from guardwrap.outcomes.facts import FEW, ITSELF, Closeness, Estimate, Remedy, heavy_tail, tail_and_limit, without_end
from guardwrap.support.formatting import LARGE, blamed, counted, digits, one_of

if TYPE_CHECKING:
    from guardwrap.outcomes.outcome import Report

SAMPLER = "the sampler"
"""The name of the sampler in ``Report.rejections``, next to the titles of the constraint's parts."""

MANY_CUT_OFF = 0.1
"""Share of attempts cut off by the token limit above which the advice mentions ``max_new_tokens``."""

_DISTANCES = ("tvd", "kl")
"""Names of figures that have no upper end if the weights' tail is too heavy."""

_SHOWN = 3
"""How many places a printed report shows for each part."""

_ENDED = {
    "max_attempts": "the budget of attempts is spent",
    "max_tokens": "the budget of tokens is spent",
    "max_computed_tokens": "the budget of computed tokens is spent",
    "max_seconds": "the time limit was reached",
    "deadline": "the deadline was reached",
    "timeout": "the timeout was reached",
    "deterministic": "greedy or beam search would return the same text again",
    "impossible": "no text that these settings allow satisfies the constraint",
    "error": "an error ended the run",
}

_BY_CLOCK = ("deadline", "timeout", "max_seconds")
"""Ends that may come before the first attempt is complete."""


def report_headline(report: Report) -> str:
    """Return one sentence: how many texts, their distribution, and the attempts per text."""
    got, asked, tried = report.accepted, report.requested, report.usage.attempts
    filled = "; the fallback was returned" if report.fallback else ""
    if not got and not tried and report.ended in _BY_CLOCK:
        return f"no text: {_ENDED[report.ended]} before the first attempt was complete{filled}"
    if not got:
        why = "" if report.obstacle is None else f": {report.obstacle}"
        return f"no text from {counted(tried, 'attempt')}: {_end(report)}{why}{filled}"
    texts = counted(got, "text") if got == asked else f"{got} of {asked} texts"
    pilot = report.evidence.get("pilot_attempts", 0)
    mean = _rounded(tried / got) if tried < LARGE else tried // got
    cost = "every attempt was accepted" if tried == got else f"about {counted(mean, 'attempt')} per text"
    cost += f", with a pilot of {pilot:,}" if pilot else ""
    missing = "" if got == asked else f"; ended early: {_end(report)}{filled}"
    return f"{texts}, {_origin(report)}; {cost}{missing}"


def _end(report: Report) -> str:
    """Say what ended a request."""
    if report.ended == "impossible" and report.acceptance is not None and report.acceptance.value > 0:
        return report.distribution.detail  # by the sampler, not by the constraint
    return _ENDED.get(report.ended, report.ended)


def _origin(report: Report) -> str:
    closeness, one = report.distribution.closeness, report.accepted == 1
    satisfy = f"as your model writes {'it when it satisfies' if one else 'them when they satisfy'} the constraint"
    every = "which satisfies the constraint" if one else "all of which satisfy the constraint"
    follow = "does not follow" if one else "do not follow"
    if closeness is Closeness.EXACT:
        return f"exactly {satisfy}"
    if closeness is Closeness.APPROXIMATE:
        nearness = _nearness(report)
        return f"{nearness} {satisfy}" if nearness else f"{every}; the distance to your model's own texts is unknown"
    if closeness is Closeness.OTHER:
        return f"{every} but {follow} your model's own distribution"
    if closeness is Closeness.BIASED:
        return f"{every}; the deadline favors short ones"
    return f"{every}; {report.drawn_from}"


def _nearness(report: Report) -> str:
    """Say how close the texts are to g by the sampler's figures; "" if these cannot tell, or if there are none."""
    distance, enough = report.evidence.get("tvd"), report.evidence.get("near_enough")
    worth = report.evidence.get("effective_sample_size")
    if isinstance(worth, tuple) and worth.value < FEW:
        return ""
    if not isinstance(distance, tuple) or not isinstance(enough, float):
        return ""
    if distance.high <= enough:
        return "nearly"
    if heavy_tail(report.evidence) is not None:
        return "not quite" if distance.low > enough else ""
    return "perhaps nearly" if distance.value <= enough else "not quite"


def _rounded(number: float) -> float:
    """Round to two digits; a whole number has no decimal point."""
    if number < 9.95:
        return round(number, 1) if number % 1 >= 0.05 else round(number)
    return int(float(f"{number:.2g}"))


def report_advice(report: Report) -> str:
    """Return one line: what to do if the budget did not suffice."""
    advice, rule = _without_fallback(report), report.fallback_rejected_by
    return advice if rule is None else f"{withheld(rule)}; {advice}"


NO_CALL = "no call of a tool"
"""The place of a message without a call, where one is required."""

_BEYOND = "Masked(beyond_truncation=True)"


def withheld(rule: str) -> str:
    """Say why a fallback was not returned: a rule rejected it."""
    return f"the fallback was withheld, because {quoted(rule)} rejects it"


def report_blame(report: Report) -> str:
    """Return what rejected attempts, and what took the time: clauses that end in "; ", or an empty string."""
    if not report.usage.attempts and report.ended in _BY_CLOCK:
        learned = report.usage.learning_seconds
        return f"learning a twist took {learned:.1f} s of it; " if learned >= 0.05 else ""
    (closeness, detail), pilot = report.distribution, report.evidence.get("pilot_attempts")
    why = f"{detail}; " if closeness is Closeness.NOTHING and detail else ""
    if pilot and not why:
        why = f"the sampler's pilot took {pilot} of {report.usage.attempts:,} attempts; "
    # A pilot's attempts wait for β, so they are not evidence against the sampler.
    parts = report.rejected if why else report.rejections
    worst = [
        f"{quoted(label)} rejected {of}{_most_often_at(report, label)}"
        for label, of in blamed(parts, report.usage.attempts).items()
    ][:2]
    blame = f"{', '.join(worst)}; " if worst else ""
    if report.ended == "impossible":
        return blame
    rate = f"acceptance rate {report.acceptance}; " if report.acceptance else ""
    if report.usage.attempts and report.cut_off / report.usage.attempts >= MANY_CUT_OFF:
        larger = ", so try a larger one" if Remedy.LENGTH in report.remedies else ""
        rate += f"{report.cut_off:,} were cut off by max_new_tokens{larger}; "
    return f"{why}{blame}{rate}"


def _without_fallback(report: Report) -> str:
    said = [_in_words(remedy, report) for remedy in report.remedies]
    remedies = [words for words in said if words] or ["weaken the constraint"]
    away = report.origin != ITSELF and report.sampler in ("qrs", "imh") and Remedy.BUDGET in report.remedies
    plan = "; a plan shows whether the model itself is cheaper than this proposal" if away else ""
    return f"{report_blame(report)}{one_of(remedies)}{plan}"


def _in_words(remedy: Remedy, report: Report) -> str:
    """Return a remedy in words; "" for one that the advice names elsewhere, or that has no short name in Python."""
    if remedy is Remedy.SETTINGS:
        return "" if report.obstacle is None else " and ".join(report.obstacle.remedies())
    if remedy is Remedy.TIME:
        waits = (
            ", in which a call also waits for other callers, or lower max_new_tokens"
            if report.ended == "timeout"
            else ""
        )
        return f"raise {report.ended}{waits}"
    if remedy is Remedy.LENGTH:
        return "raise max_new_tokens" if report.ended == "impossible" else ""
    return {
        Remedy.SAMPLING: "let the model sample",
        Remedy.TEXTS: "allow the model more tokens, such as with top_k=0",
        Remedy.BEYOND: f"pass proposal={_BEYOND}",
        Remedy.CALLS: f"to have the model call a tool, pass proposal={_BEYOND}, whose texts are g'",
        Remedy.BUDGET: "raise the budget",
        Remedy.CONSTRAINT: "weaken the constraint",
        Remedy.PROMPT: "describe it in the prompt",
    }.get(remedy, "")


def _most_often_at(report: Report, part: str) -> str:
    """Return where a part was violated most often, in brackets; "" if that is not known."""
    places = report.places.get(part) or {}
    place = max(places, key=places.__getitem__, default="")
    return place and f" ({places[place]:,} {'at ' * place.startswith('$')}{place})"


def report_in_words(report: Report) -> str:
    """Return the headline of a report, and below it a line for each figure, part and note."""
    use = report.usage
    cost = f"{counted(use.attempts, 'attempt')}, {counted(use.tokens, 'token')}, {use.seconds:.1f} s"
    rows = [("cost", cost), ("drawn from", f"{report.drawn_from}; sampler {report.sampler}, seed {report.seed}")]
    if report.ended != "complete":
        rows.append(("ended by", report.ended))
    if report.origin != ITSELF and report.distribution.closeness is not Closeness.OTHER:
        rows.append(("attempts from", str(report.origin)))
    if report.acceptance is not None:
        rows.append(("acceptance", f"{report.acceptance} (95 % interval)"))
    figures, unlucky = dict(report.evidence), report.passed_over
    if "pilot_attempts" in figures:
        pilot, kept = (cast("int", figures.pop(name)) for name in ("pilot_attempts", "pilot_satisfied"))
        came = cast("int | None", figures.pop("pilot_returned", None))
        became = "" if came is None else f", and {came:,} of these were accepted"
        rows.append(("pilot", f"{pilot:,} attempts to set β, of which {kept:,} satisfied the constraint{became}"))
        unlucky -= kept if came is None else 0  # those that were not decided were not rejected
    heavy = heavy_tail(figures)
    limit = figures.pop("pareto_k_limit", math.nan)
    for name, figure in figures.items():
        words = str(figure) if isinstance(figure, Estimate) else digits(figure)
        if name == "pareto_k" and isinstance(figure, Estimate) and isinstance(limit, float):
            words = tail_and_limit(figure, limit)
        elif name in _DISTANCES and heavy is not None and isinstance(figure, Estimate):
            words = without_end(figure, heavy)
        rows.append((name.replace("_", " "), words))
    for label, of in blamed(report.rejected, use.attempts).items():
        rows.append(("rejected by", f"{label}: {of}"))
        places = sorted(report.places.get(label, {}).items(), key=lambda item: -item[1])
        rows += [("  where", f"{place}: {count:,} of {report.rejected[label]:,}") for place, count in places[:_SHOWN]]
    if unlucky:
        satisfied = f"{report.accepted + unlucky:,} that satisfied the constraint"
        rows.append(("rejected by", f"{SAMPLER}: {unlucky:,} of {satisfied}"))
    if use.model_checks:
        rows.append(("models judged", f"{counted(use.model_checks, 'text')}, {use.model_seconds:.1f} s"))
    if use.learning_attempts:
        cost = f"{counted(use.learning_attempts, 'attempt')}, {counted(use.learning_computed_tokens, 'computed token')}"
        rows.append(("learning", f"{cost}, {use.learning_seconds:.1f} s, before the first attempt"))
    if use.surplus_attempts:
        rows.append(("surplus", f"{counted(use.surplus_attempts, 'attempt')}, drawn but not needed"))
    rows += [("note", note) for note in report.notes]
    width = max(12, *(len(name) for name, _ in rows))
    return "\n".join([report_headline(report), *(f"  {name:{width}} {words}" for name, words in rows)])
