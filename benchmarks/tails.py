"""How often the interval that QRS states for its distance to g contains the truth, if weights have heavy tails.

    python benchmarks/tails.py --out benchmarks/results/tails

In worlds whose texts are enumerated, so that the total variation distance (TVD) of any β is known, a pilot chooses β
for a TVD of 0.05 from 100 attempts that satisfy the constraint, as ``qrs(target_tvd=0.05)`` does. After some more
attempts the interval of the TVD is compared with the truth: as seen from the attempts, and without its upper end where
the Pareto k of the weights is above its limit, as reports state it. Only pilots with an effective sample size of at
least 10 count, because reports do not state a distance for others. It takes about a minute.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from guardwrap import metrics
from guardwrap.metrics.divergence import tvd_as_seen
from guardwrap.outcomes import FEW

Floats = NDArray[np.float64]

TARGET, PILOT = 0.05, 100
LATER = (0, 100, 1000)  # attempts after the pilot
MORE = 30  # effective sample size, for comparison
TEXTS = 100_000  # of a world with weights of a continuous distribution


@dataclass(frozen=True)
class World:
    """Texts that satisfy the constraint: the probability of each under g', and its log-weight; ``[texts]``."""

    guarded: Floats
    log_weights: Floats

    def tvd(self, log_beta: float) -> float:
        """Return TVD(g, p_β) by summation."""
        weights = np.exp(self.log_weights - self.log_weights.max())
        gold, drawn = self.guarded * weights, self.guarded * np.exp(np.minimum(self.log_weights - log_beta, 0.0))
        if log_beta == -math.inf:
            drawn = self.guarded
        return float(np.abs(gold / gold.sum() - drawn / drawn.sum()).sum() / 2)

    def draw(self, count: int, rng: np.random.Generator) -> Floats:
        """Return the log-weights of iid texts of g'."""
        return self.log_weights[np.searchsorted(np.cumsum(self.guarded)[:-1], rng.random(count), side="right")]


def continuous(quantile: Callable[[Floats], Floats]) -> World:
    """Make a world of equally likely texts with quantiles of a distribution of log-weights."""
    return World(np.full(TEXTS, 1 / TEXTS), quantile((np.arange(TEXTS) + 0.5) / TEXTS))


def one_rare_text(probability: float, share: float) -> World:
    """Make a world in which one text, with this probability under g', has this share of g."""
    others = 0.3 * ndtri((np.arange(1_000) + 0.5) / 1_000)
    rest = (1 - probability) * float(np.exp(others).mean())
    weight = math.log(share / (1 - share) * rest / probability)
    return World(np.append(np.full(1_000, (1 - probability) / 1_000), probability), np.append(others, weight))


WORLDS: dict[str, Callable[[], World]] = {
    "uniform, as of a mask": lambda: continuous(np.log),
    "log-normal, σ = 1": lambda: continuous(ndtri),
    "log-normal, σ = 2": lambda: continuous(lambda q: 2 * ndtri(q)),
    "log-normal, σ = 3": lambda: continuous(lambda q: 3 * ndtri(q)),
    "Pareto, k = 0.3": lambda: continuous(lambda q: -0.3 * np.log1p(-q)),
    "Pareto, k = 0.7": lambda: continuous(lambda q: -0.7 * np.log1p(-q)),
    "Pareto, k = 0.9": lambda: continuous(lambda q: -0.9 * np.log1p(-q)),
    "a text of 1 % with 30 % of g": lambda: one_rare_text(0.01, 0.3),
    "a text of 0.01 % with 30 % of g": lambda: one_rare_text(0.0001, 0.3),
}


@dataclass
class Count:
    """Pilots of one world after some attempts, by what their report states.

    Parameters
    ----------
    pilots
        All pilots.
    true_distance
        Mean of the TVD that the chosen β has.
    estimate, k
        Mean of its estimates, and median of Pareto k, over all pilots.
    limit
        The limit of Pareto k.
    stated
        Pilots with an effective sample size of at least ``FEW``; the others state no distance.
    true_as_seen
        Stated ones whose interval, as seen from the attempts, contains the true distance.
    without_end
        Stated ones whose interval has no upper end, because Pareto k is above the limit.
    true_with_rule
        Stated ones whose interval contains the truth, with no upper end where k is above the limit.
    true_with_both_ends
        Of these, the ones that keep their upper end.
    too_low_as_seen, too_low_with_rule
        Stated ones whose upper end is below the truth: the report says that the distance is smaller than it is.
    few, too_low_without_few
        For comparison with another rule: stated ones with an effective sample size below ``MORE``, and how many would
        be too low if those had no upper end, whatever Pareto k is.
    """

    pilots: int
    true_distance: float
    estimate: float
    k: float
    limit: float
    stated: int
    true_as_seen: int
    without_end: int
    true_with_rule: int
    true_with_both_ends: int
    too_low_as_seen: int
    too_low_with_rule: int
    few: int
    too_low_without_few: int


def count(world: World, pilots: int, later: Sequence[int], seed: int = 0) -> dict[int, Count]:
    """Draw pilots, and compare their intervals with the truth after each number of further attempts."""
    rng = np.random.default_rng(seed)
    rows: dict[int, list[tuple[float, ...]]] = {more: [] for more in later}
    for _ in range(pilots):
        drawn = world.draw(PILOT + max(later), rng)
        log_beta = metrics.log_beta_for_tvd(drawn[:PILOT], TARGET)
        truth = world.tvd(log_beta)
        for more in later:
            seen = drawn[: PILOT + more]
            accept = np.zeros_like(seen) if log_beta == -math.inf else np.minimum(seen - log_beta, 0.0)
            tvd, ruled = tvd_as_seen(seen, accept, log_beta), metrics.qrs_tvd(seen, log_beta)
            worth, k = metrics.effective_sample_size(seen).value, metrics.pareto_k(seen).value
            rows[more].append((truth, worth, k, *tvd, ruled.high))
    return {more: _counted(np.array(found), metrics.pareto_k_limit(PILOT + more)) for more, found in rows.items()}


def _counted(rows: Floats, limit: float) -> Count:
    truth, worth, k, value, low, high, ruled = rows.T
    stated = worth >= FEW
    above = low <= truth
    return Count(
        len(rows),
        float(truth.mean()),
        float(value.mean()),
        float(np.median(k)),
        limit,
        int(stated.sum()),
        int((stated & above & (truth <= high)).sum()),
        int((stated & (k > limit)).sum()),
        int((stated & above & (truth <= ruled)).sum()),
        int((stated & above & (truth <= high) & (k <= limit)).sum()),
        int((stated & (truth > high)).sum()),
        int((stated & (truth > ruled)).sum()),
        int((stated & (worth < MORE)).sum()),
        int((stated & (worth >= MORE) & (truth > high)).sum()),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pilots", type=int, default=2000, help="for each world")
    parser.add_argument("--out", type=Path, default=Path("tails"))
    options = parser.parse_args(sys.argv[1:] if arguments is None else list(arguments))
    written: dict[str, dict[str, dict[str, float]]] = {}
    for name, make in WORLDS.items():
        for more, found in count(make(), options.pilots, LATER).items():
            written.setdefault(name, {})[str(more)] = asdict(found)
            print(
                f"{name}, {more} attempts after the pilot: TVD {found.true_distance:.3f}, estimated "
                f"{found.estimate:.3f}, k {found.k:.2f} of at most {found.limit:.2f}; of {found.stated} stated "
                f"intervals, {found.true_as_seen} are true as seen and {found.true_with_rule} with the rule, which "
                f"takes the upper end of {found.without_end}; too low are {found.too_low_as_seen} and "
                f"{found.too_low_with_rule}"
            )
    settings = {"target": TARGET, "pilot": PILOT, "pilots": options.pilots, "texts": TEXTS, "few": MORE}
    options.out.with_suffix(".json").write_text(
        json.dumps({"settings": settings, "worlds": written}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
