"""What a pilot of QRS costs small and large requests, and how close to g their texts are.

    python benchmarks/pilots.py --out benchmarks/results/pilots.jsonl

In the worlds of ``tails.py`` and two of weights as of a mask, whose texts are enumerated, requests of 1 to 300 texts
are drawn with ``qrs(target_tvd=...)``, whose pilot ends early if its weights are alike, and with pilots of 20 and 100
satisfying attempts. The file gets a line for each: attempts that satisfy the constraint for each text, those of the
pilot included, and the distance (TVD) between g and the law of the texts, which is the mean of the laws of each β. It
takes some minutes.
"""

import argparse
import json
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri
from tails import WORLDS, World, continuous

from guardwrap import qrs
from guardwrap.outcomes import Draw
from guardwrap.samplers import Attempt, Sampler

PILOTS: dict[str, int | None] = {"as the weights require": None, "20": 20, "100": 100}
MASKS: dict[str, Callable[[], World]] = {
    "log-normal, σ = 0.3": lambda: continuous(lambda q: 0.3 * ndtri(q)),
    "log-normal, σ = 0.46": lambda: continuous(lambda q: 0.46 * ndtri(q)),
}
TARGETS = (0.05, 0.1)
REQUESTS = {1: 400, 8: 200, 64: 40, 300: 10}
"""Texts of a request, and how many requests are drawn."""

MOST = 20_000
"""Satisfying attempts after which a request is given up, as if its budget were used up."""

NOTHING = Draw("", (), "")


def request(world: World, sampler: Sampler, texts: int, rng: np.random.Generator) -> tuple[list[float], int]:
    """Return log β of each text of a request, and its attempts."""
    drawn: list[float] = []
    state, attempts = sampler.init(), 0
    while len(drawn) < texts and attempts < MOST:
        for log_weight in world.draw(100, rng).tolist():
            before = dict(state.laws)
            state, _ = sampler.returned(state, Attempt(NOTHING, True, log_weight, float(rng.random())))
            attempts += 1
            # The text of the attempt comes before those of the pilot, which it completes.
            new = {log_beta: count - before.get(log_beta, 0) for log_beta, count in state.laws}
            drawn += [
                log_beta for log_beta, count in sorted(new.items(), key=lambda item: item[1]) for _ in range(count)
            ]
            if len(drawn) >= texts:
                break
    return drawn[:texts], attempts


def distance(world: World, log_betas: list[float]) -> float:
    """Return the TVD between g and the mean of the laws of texts, each accepted with one of these β."""
    law = np.zeros_like(world.guarded)
    for log_beta, count in zip(*np.unique(np.round(log_betas, 2), return_counts=True), strict=True):
        accept = np.minimum(world.log_weights - log_beta, 0.0) if log_beta > -math.inf else 0.0
        drawn = world.guarded * np.exp(accept)
        law += count * drawn / drawn.sum()
    gold = world.guarded * np.exp(world.log_weights - world.log_weights.max())
    return float(np.abs(law / law.sum() - gold / gold.sum()).sum() / 2)


def measured(world: World, target: float, pilot: int | None, texts: int, requests: int) -> dict[str, Any]:
    sampler, rng = qrs(target_tvd=target, pilot=pilot), np.random.default_rng(1)
    every = [request(world, sampler, texts, rng) for _ in range(requests)]
    log_betas = [log_beta for drawn, _ in every for log_beta in drawn]
    return {
        "requests": requests,
        "attempts a text": round(sum(attempts for _, attempts in every) / max(1, len(log_betas)), 2),
        "TVD": round(distance(world, log_betas), 3),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, required=True)
    out = options.parse_args().out
    with out.open("w", encoding="utf-8") as file:
        for (name, make), target in product((MASKS | WORLDS).items(), TARGETS):
            world = make()
            for (texts, requests), (words, pilot) in product(REQUESTS.items(), PILOTS.items()):
                line = {"weights": name, "target": target, "texts": texts, "pilot": words}
                line |= measured(world, target, pilot, texts, requests)
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                print(line, flush=True)


if __name__ == "__main__":
    main()
