"""Shares in law and in the set beside a prompt that asks for them, and how often their intervals cover the truth.

    python benchmarks/shares.py [--texts 200] [--attempts 1500]

For "half of the biographies about women" on the embedded model it prints, for each way: the share of texts with "she"
or "her", attempts for a text, those by the theory (max w / E w, from recorded attempts), KL(p‖g), and Self-BLEU. Then
it draws 40 targets of three rules from the recorded attempts as the model, and prints how many intervals of a share
cover what the law gives it.
"""

import argparse
import math
from dataclasses import replace
from typing import Any

import numpy as np

from guardwrap import Budget, GuardedGenerator, Length, Prompt, Regex, Share
from guardwrap.metrics import self_bleu
from guardwrap.samplers import rejection
from guardwrap.samplers.shares import with_shares

PROMPT = "A short biography of a scientist:\n\n"
ASKING = Prompt("Half of the biographies here are about women.\n\n{prompt}")
RULES = {"she": Regex(r"(?i)\b(?:she|her)\b"), "a year": Regex(r"\b1[89]\d\d\b"), "comma": Regex(",.*,.*,")}
ALL = Length(max=400)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--attempts", type=int, default=1500)
    chosen = parser.parse_args()
    settings: dict[str, Any] = {"max_new_tokens": 40, "top_k": 0, "temperature": 1.0, "do_sample": True}
    guarded = GuardedGenerator("local", ALL, seed=1, budget=Budget(100_000))
    every = [ALL, *(Share(rule, 0.5) for rule in RULES.values())]
    (recorded,) = guarded.attempts(PROMPT, chosen.attempts, weigh=False, constraints=every, **settings)
    model_share = float(np.mean([attempt.features[0] for attempt in recorded]))
    print(f"the model's own share: {model_share:.3f} of {len(recorded)}", flush=True)
    print(
        "| way | share | attempts a text | by theory | KL(p‖g), nats | Self-BLEU-4 of 100 |\n|---|---|---|---|---|---|"
    )
    woman = RULES["she"]
    ways: dict[str, dict[str, Any]] = {
        "the model": {},
        "in law": {"constraints": [ALL, Share(woman, 0.5)]},
        "in the set": {"constraints": [ALL, Share(woman, 0.5, exact=True)]},
        "the prompt asks": {"proposal": ASKING},
    }
    for name, way in ways.items():
        (outcome,) = guarded.run(PROMPT, num_return_sequences=chosen.texts, **way, **settings)
        share = np.mean([woman.accepts(text) for text in outcome.texts])
        evidence = outcome.report.evidence
        theory = "" if name != "in law" else f"{_theory(evidence[f'lambda({woman.title})'], model_share):.2f}"
        kl = evidence.get("kl_to_g", "")
        cost = (outcome.report.usage.attempts - evidence.get("pilot", 0)) / chosen.texts  # type: ignore[operator]
        print(f"| {name} | {share:.3f} | {cost:.2f} | {theory} | {kl} | {self_bleu(outcome.texts)} |", flush=True)
    _calibrate(recorded)


def _theory(log_factor: Any, model_share: float) -> float:
    return max(math.exp(log_factor), 1.0) / (model_share * math.exp(log_factor) + 1 - model_share)


def _calibrate(recorded: Any) -> None:
    """Draw from the recorded attempts, with replacement, as if they were the model."""
    chance, covered = np.random.default_rng(0), dict.fromkeys(RULES, 0)
    for number, name in enumerate(RULES):
        model_share = float(np.mean([attempt.features[number] for attempt in recorded]))
        for target in np.linspace(0.1, 0.9, 40):
            sampler = with_shares(rejection, [Share(RULES[name], float(target))], 100)
            state, texts = sampler.init(), 0
            while texts < 100:
                attempt = recorded[chance.integers(len(recorded))]
                features = attempt.features[number : number + 1]
                state, draws = sampler.returned(state, replace(attempt, features=features, uniform=chance.random()))
                texts += len(draws)
            figure: Any = sampler.report(state)[1][f"share({RULES[name].title})"]
            odds = model_share / (1 - model_share) * math.exp(state.tilt.lambdas[0])
            covered[name] += figure.low <= odds / (1 + odds) <= figure.high
    print(f"intervals of 40 targets that cover the truth: {covered}")


if __name__ == "__main__":
    main()
