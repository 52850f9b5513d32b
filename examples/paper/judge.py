"""The paper's claims, tested on figures, and the sampler that forces a word: pure functions on arrays."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from experiment import SFT, WARM

from guardwrap.metrics import acceptance_rate, kl_gold_proposal_from_gold
from guardwrap.metrics.intervals import Floats, combine, log_estimate, mean_interval, mean_of
from guardwrap.outcomes import Estimate, estimate_of

HOLDS, FAILS, OPEN = "holds", "does not hold", "undecided"

Ids = tuple[int, ...]


def verdict(differences: Mapping[str, Estimate]) -> str:
    """Return the verdict on the claim that every difference is above 0.

    It holds if every interval lies above 0, and does not hold if one lies below. Otherwise, and without differences,
    it is undecided. Each interval covers 95 %, so the more differences there are, the more likely one is below 0 by
    chance.
    """
    if any(each.high < 0 for each in differences.values()):
        return FAILS
    return HOLDS if differences and all(each.low > 0 for each in differences.values()) else OPEN


def claim(text: str, differences: Mapping[str, Estimate | None]) -> dict[str, Any]:
    """Return a claim with its verdict. It cannot hold while a difference is unknown."""
    known = {name: each for name, each in differences.items() if each is not None}
    judged = verdict(known)
    missing = len(known) < len(differences)
    return {"claim": text, "verdict": OPEN if missing and judged == HOLDS else judged, "differences": known}


def claims(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Test the paper's orderings on the results of a run. If the paper is right, every difference is above 0."""
    proposals, cap = results["proposals"], results["cap"]
    which = np.array(results["gold"]["prompts"], int)

    def by_prompt(numbers: Sequence[float]) -> list[Floats]:
        return [np.array(numbers)[which == prompt] for prompt in range(len(results["settings"]["prompts"]))]

    def nearer(name: str) -> Estimate | None:
        """Return how much higher the prompt's KL(g‖g') is than a trained proposal's."""
        first, second = (by_prompt(proposals[each]["log_policy"]) for each in (cap, name))
        costs = [proposals[each]["cost"] and estimate_of(proposals[each]["cost"]) for each in (cap, name)]
        return guarded_difference(first, second, *costs)

    found = []
    for budget in map(str, results["settings"]["budgets"]):
        sft, warm = (by_prompt(results["trainings"][name][budget]["log_policy"]) for name in (SFT, WARM))
        text = f"Warm-start DPG beats SFT in KL(g‖a') at {budget} samples"
        found.append(claim(text, {"KL(g‖a') of SFT less that of warm-start DPG": kl_difference(sft, warm)}))
    text = f"The constraint-aware prompt that is accepted most often, {cap}, has a larger KL(g‖g') than what is trained"
    found.append(
        claim(text, {f"KL(g‖g') of the prompt less that of {name}": nearer(name) for name in results["trainings"]})
    )
    for word, what in results["keywords"].items():
        means = {name: estimate_of(mean) for name, mean in what["means"].items()}
        told = next((mean for name, mean in means.items() if name.startswith("CAP")), None)
        early = combine((1, means["g"]), (-1, told)) if told and "g" in means else None
        text = f"A constraint-aware prompt puts “{word}” at earlier places than g does"
        found.append(claim(text, {"mean relative position under g less that under the prompt": early}))
    if results["samplers"]:
        dearer = advantages(results["samplers"]["samplers"])
        found.append(
            claim(
                "QRS Pareto-dominates IMH over our adapter",
                {f"projected KL of IMH less that of QRS {at}": each for at, each in dearer.items()},
            )
        )
    return found


def kl_difference(first: Sequence[Floats], second: Sequence[Floats]) -> Estimate | None:
    """Estimate KL(g‖a'₁) - KL(g‖a'₂) = E_g log a'₂/a'₁ in nats, paired, so that Z and chance in the samples cancel.

    Parameters
    ----------
    first, second
        log a'₁(y) and log a'₂(y) on the same samples of g, ``[prompts][samples]``.

    Returns
    -------
    Estimate or None
        Mean over prompts, each with the interval of ``mean_interval``; None if a prompt has no sample of g.
    """
    if not all(len(each) for each in first):
        return None
    return mean_of([mean_interval(b - a) for a, b in zip(first, second, strict=True)])


def guarded_difference(
    first: Sequence[Floats], second: Sequence[Floats], cost_first: Estimate | None, cost_second: Estimate | None
) -> Estimate | None:
    """Estimate KL(g‖g'₁) - KL(g‖g'₂) in nats: as above, minus the independent costs -log AR (Theorem 2)."""
    paired = kl_difference(first, second)
    if paired is None or cost_first is None or cost_second is None:
        return None
    return combine((1, paired), (-1, cost_first), (1, cost_second))


def cost(counts: Sequence[tuple[int, int]]) -> Estimate | None:
    """Estimate -log AR in nats, averaged over prompts, from (accepted, attempts) of each; None if one accepted none."""
    if not min(accepted for accepted, _ in counts):
        return None
    logs = [log_estimate(acceptance_rate(*each, stopped_on_acceptance=False)) for each in counts]
    mean = mean_of(logs)
    return Estimate(-mean.value, -mean.high, -mean.low)


def advantages(points: Sequence[Mapping[str, Any]]) -> dict[str, Estimate]:
    """Return how much higher IMH's projected KL is than that of QRS, at the cost of each setting of IMH.

    Parameters
    ----------
    points
        ``Point``s of ``guardwrap.evaluation`` as plain JSON, rejection first.

    Returns
    -------
    dict
        Differences in nats. QRS's curve starts at rejection and is linear between points on a logarithmic scale of
        costs. Settings of IMH that cost more than all of QRS are left out. Both use the same attempts, but the
        interval treats them as independent.
    """
    known = [point for point in points if point["projected_kl"]]
    curve = sorted((p for p in known if p["sampler"] != "imh"), key=lambda p: p["relative_cost"])
    found: dict[str, Estimate] = {}
    if len(curve) < 2:
        return found
    costs = np.log([point["relative_cost"] for point in curve])
    ends = np.array([estimate_of(point["projected_kl"]) for point in curve])
    for point in known:
        place = math.log(point["relative_cost"])
        if point["sampler"] == "imh" and place <= costs[-1]:
            qrs = Estimate(*(float(np.interp(place, costs, end)) for end in ends.T))
            found[f"at {point['relative_cost']:g} times the cost"] = combine(
                (1, estimate_of(point["projected_kl"])), (-1, qrs)
            )
    return found


def usual_tokens(texts: Sequence[Ids], word: str, decode: Callable[[Ids], str]) -> Ids:
    """Return the tokens that most texts use for a word, at its first occurrence."""
    found: Counter[Ids] = Counter()
    for ids in texts:
        end = next((j for j in range(1, len(ids) + 1) if word in decode(ids[:j])), None)
        if end is not None:
            found[next(ids[i:end] for i in range(end - 1, -1, -1) if word in decode(ids[i:end]))] += 1
    return found.most_common(1)[0][0] if found else ()


def log_ratios_to_forcing(
    texts: Sequence[Ids],
    word: str,
    forced: Ids,
    longest: int,
    decode: Callable[[Ids], str],
    log_base: Callable[[Sequence[Ids]], Sequence[float]],
) -> Floats:
    """Compute log a(y) - log s(y) of samples of g, where s is the sampler that forces the word at the end (App.
    "Comparison to a heuristic sampler").

    With n = ``longest`` and k forced tokens, s draws n - k tokens from a. If they contain the word, it draws the rest
    from a too, so s(y) = a(y). Otherwise the last k are the forced ones, so s(y) = a(y_1 … y_{n-k}) if y ends with
    them, and 0 if not: the word was written with other tokens, or was half written when s checked.

    Parameters
    ----------
    texts
        New tokens of each sample; each contains the word.
    word
        The word.
    forced
        Its tokens.
    longest
        The token limit.
    decode
        Converts tokens to text.
    log_base
        Returns log a of beginnings of texts, in nats.

    Returns
    -------
    numpy.ndarray
        ``[samples]``, nats: 0 if the word comes in time, at most 0 if it is forced, infinite if s(y) = 0.
    """
    last = longest - len(forced)
    ratios = np.array([0.0 if word in decode(ids[:last]) else math.inf for ids in texts])
    late = [i for i, ids in enumerate(texts) if ratios[i] and len(ids) == longest and ids[last:] == forced]
    if late:
        begun = log_base([texts[i][:last] for i in late]) if last else [0.0] * len(late)
        ratios[late] = np.array(log_base([texts[i] for i in late])) - np.array(begun)
    return ratios


def kl_gold_forcing(log_ratios: Floats, base: tuple[int, int]) -> dict[str, Estimate | None]:
    """Estimate KL(g‖s) in nats from log a/s on samples of g.

    Parameters
    ----------
    log_ratios
        The result of ``log_ratios_to_forcing``.
    base
        Numbers of accepted texts and of attempts of the model itself.

    Returns
    -------
    dict
        ``impossible``: the share of g that s never gives; if it is above 0, KL(g‖s) is infinite. ``kl``: KL(g|F‖s),
        where F are the texts that s can give: E[log a/s | F] - log Z - log g(F). It is KL(g‖s) if F is everything.
    """
    possible = log_ratios[np.isfinite(log_ratios)]
    size, count = len(log_ratios), len(possible)
    share = log_estimate(acceptance_rate(count, size, stopped_on_acceptance=False))
    kl = combine((1, kl_gold_proposal_from_gold(possible, base)), (-1, share)) if count > 1 else None
    return {"impossible": acceptance_rate(size - count, size, stopped_on_acceptance=False), "kl": kl}
