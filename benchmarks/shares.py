"""Shares in law and in the set beside prompts that ask for them, and how often their intervals cover the truth.

    python benchmarks/shares.py [--texts 200] [--attempts 1500]
    python benchmarks/shares.py --model stories15M --prompt "Once upon a time" --only calibration

For "half of the biographies about women" on the embedded model it prints, for each way: the share of texts with "she"
or "her", attempts for a text, those by the theory (max w / E w, from recorded attempts), KL(p‖g), and Self-BLEU. The
prompts that ask are five, and each is a way. Then it draws 40 targets of each rule, several times each, from the
recorded attempts as the model, and prints how many intervals of a share cover what the law of λ gives it.
"""

import argparse
import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from guardwrap import Budget, GuardedGenerator, Length, Prompt, Regex, Share
from guardwrap.metrics import self_bleu
from guardwrap.samplers import rejection
from guardwrap.samplers.shares import with_shares

PROMPT = "A short biography of a scientist:\n\n"
ASKING = (
    "Half of the biographies here are about women.\n\n{prompt}",
    "Write about a woman as often as about a man.\n\n{prompt}",
    "Biographies of scientists, of whom 50% are female.\n\n{prompt}",
    "A collection with as many women as men.\n\n{prompt}",
    "Toss a coin. Heads: the scientist is a woman. Tails: the scientist is a man.\n\n{prompt}",
)
RULES = {
    "she": Regex(r"(?i)\b(?:she|her)\b"),
    "a year": Regex(r"\b1[89]\d\d\b"),
    "comma": Regex(",.*,.*,"),
    "was": Regex(r"\bwas\b"),
}
ALL = Length(max=400)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--attempts", type=int, default=1500)
    parser.add_argument("--model", default="local")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--only", choices=["ways", "calibration"])
    parser.add_argument("--rounds", type=int, default=5, help="how often each target is drawn")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    settings: dict[str, Any] = {"max_new_tokens": 40, "top_k": 0, "temperature": 1.0, "do_sample": True}
    guarded = GuardedGenerator(chosen.model, ALL, seed=1, budget=Budget(100_000))
    every = [ALL, *(Share(rule, 0.5) for rule in RULES.values())]
    (recorded,) = guarded.attempts(chosen.prompt, chosen.attempts, weigh=False, constraints=every, **settings)
    model_share = float(np.mean([attempt.features[0] for attempt in recorded]))
    print(f"the model's own share: {model_share:.3f} of {len(recorded)}", flush=True)
    if chosen.only != "calibration":
        _compare(guarded, chosen.prompt, chosen.texts, model_share, settings)
    if chosen.only != "ways":
        _calibrate(recorded, chosen.rounds)


def _compare(guarded: GuardedGenerator, prompt: str, texts: int, model_share: float, settings: dict[str, Any]) -> None:
    """Print a table of the ways to half of the biographies about women."""
    print(
        "| way | share | attempts a text | by theory | KL(p‖g), nats | Self-BLEU-4 of 100 |\n|---|---|---|---|---|---|"
    )
    woman = RULES["she"]
    ways: dict[str, dict[str, Any]] = {
        "the model": {},
        "in law": {"constraints": [ALL, Share(woman, 0.5)]},
        "in the set": {"constraints": [ALL, Share(woman, 0.5, exact=True)]},
        **{f"prompt {number} asks": {"proposal": Prompt(asking)} for number, asking in enumerate(ASKING, 1)},
    }
    for name, way in ways.items():
        (outcome,) = guarded.run(prompt, num_return_sequences=texts, **way, **settings)
        share = np.mean([woman.accepts(text) for text in outcome.texts])
        evidence = outcome.report.evidence
        theory = "" if name != "in law" else f"{_theory(evidence[f'lambda({woman.title})'], model_share):.2f}"
        kl = evidence.get("kl_to_g", "")
        cost = (outcome.report.usage.attempts - evidence.get("pilot_of_shares", 0)) / texts  # type: ignore[operator]
        print(f"| {name} | {share:.3f} | {cost:.2f} | {theory} | {kl} | {self_bleu(outcome.texts)} |", flush=True)


def _theory(log_factor: Any, model_share: float) -> float:
    return max(math.exp(log_factor), 1.0) / (model_share * math.exp(log_factor) + 1 - model_share)


def _calibrate(recorded: Any, rounds: int) -> None:
    """Draw from the recorded attempts, with replacement, as if they were the model."""
    chance = np.random.default_rng(0)
    for number, name in enumerate(RULES):
        model_share = float(np.mean([attempt.features[number] for attempt in recorded]))
        if not 0.01 < model_share < 0.99:
            continue
        of_law = of_target = 0
        for target in np.repeat(np.linspace(0.1, 0.9, 40), rounds):
            sampler = with_shares(rejection, [Share(RULES[name], float(target))], 100)
            state, texts = sampler.init(), 0
            while texts < 100:
                attempt = recorded[chance.integers(len(recorded))]
                features = attempt.features[number : number + 1]
                state, draws = sampler.returned(state, replace(attempt, features=features, uniform=chance.random()))
                texts += len(draws)
            figure: Any = sampler.report(state)[1][f"share({RULES[name].title})"]
            odds = model_share / (1 - model_share) * math.exp(state.tilt.lambdas[0])
            of_law += figure.low <= odds / (1 + odds) <= figure.high
            of_target += figure.low <= target <= figure.high
        print(f"{name}: of {40 * rounds} intervals {of_law} cover the law's share, {of_target} the target", flush=True)


if __name__ == "__main__":
    main()
