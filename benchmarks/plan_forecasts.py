"""How often the interval that a plan states for an acceptance rate contains the truth, and what the plan costs.

    python benchmarks/plan_forecasts.py --out plan-forecasts.jsonl

Plans for 64 texts, with the default pilot, of rules whose acceptance rate Z is computed exactly and lies between 10⁻⁶
and .3: keywords in random Markov chains of 8 to 20 tokens, by recursion over the states of the chain and of the
keyword's automaton, and words within 3 tokens of the embedded model (temperature .7, ``top_k=50``), by enumeration of
its 125 000 texts. Each forecast has a world, a word and a seed of its own. It takes some minutes on one core.
"""

import argparse
import itertools
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guardwrap import Constraint, GuardedGenerator, Keyword, load_local
from guardwrap.constraints.checking import run_check
from guardwrap.metrics import acceptance_rate
from guardwrap.outcomes import Draw
from guardwrap.testing import World, table_world
from guardwrap.twists.progress_of import automaton_of

TEXTS = 64
RAREST, COMMONEST = 1e-6, 0.3
CHAINS, WORDS = 40, 10  # forecasts of Markov chains, and of each prompt of the model
LETTERS = "abcdefgh"
PROMPTS = ("The old man went to the", "My favorite food is")
TOKENS, KEPT, TEMPERATURE = 3, 50, 0.7


def rate_in(world: World, rule: Constraint) -> float:
    """Return Z of a rule in a Markov chain, by recursion over its last token and the state of the rule's automaton."""
    automaton, tokenizer = automaton_of(rule), world.tokenizer
    assert automaton is not None
    table: Any = world.model.table
    steps = (table.detach().double() / world.temperature).softmax(-1).numpy()
    prompt = tokenizer(world.prompt)["input_ids"]
    texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]
    reach, rate = {(0, prompt[-1]): 1.0}, 0.0
    for place in range(len(prompt) - 1, len(prompt) - 1 + world.max_new_tokens):
        after: dict[tuple[int, int], float] = defaultdict(float)
        for (state, last), share in reach.items():
            for token, step in enumerate(steps[place, last]):
                if token == tokenizer.eos_token_id:
                    rate += share * step * bool(automaton.ended[state])
                else:
                    after[automaton.read(texts[token], state), token] += share * step
        reach = dict(after)
    return rate + sum(share for (state, _), share in reach.items() if automaton.cut[state])


def chains(seed: int) -> Iterator[tuple[GuardedGenerator, str, dict[str, Any], str, float]]:
    """Yield wrappers of Markov chains with a prompt, settings, a keyword and its Z."""
    rng = np.random.default_rng(seed)
    while True:
        length, temperature = int(rng.choice([8, 12, 20])), float(rng.choice([0.5, 0.7, 1.0]))
        chain = int(rng.integers(10**6))
        world = table_world(chain, letters=LETTERS, max_new_tokens=length, temperature=temperature)
        word = "".join(rng.choice(list(LETTERS), int(rng.integers(1, 7))))
        rule = Keyword(word, whole_words=False)
        if RAREST <= (rate := rate_in(world, rule)) <= COMMONEST:
            yield GuardedGenerator(world.pipeline(), rule), world.prompt, world.settings, word, rate


@torch.no_grad()
def texts_of(model: Any, tokenizer: Any, prompt: str) -> dict[str, float]:
    """Return the probability of each text of ``TOKENS`` tokens after a prompt."""
    end = tokenizer.eos_token_id
    begin = tokenizer(prompt)["input_ids"]
    done: dict[str, float] = defaultdict(float)
    reach: dict[tuple[int, ...], float] = {(): 1.0}
    for length in range(TOKENS):
        after: dict[tuple[int, ...], float] = {}
        for prefixes in _batched(list(reach), 64):
            logits = model(torch.tensor([[*begin, *prefix] for prefix in prefixes])).logits[:, -1].double()
            top = (logits / TEMPERATURE).topk(KEPT)
            for prefix, shares, ids in zip(
                prefixes, top.values.softmax(-1).tolist(), top.indices.tolist(), strict=True
            ):
                for share, token in zip(shares, ids, strict=True):
                    if token == end or length == TOKENS - 1:
                        ids_of = prefix if token == end else (*prefix, token)
                        done[tokenizer.decode(ids_of)] += reach[prefix] * share
                    else:
                        after[*prefix, token] = reach[prefix] * share
        reach = after
    return done


def _batched(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def words_of(seed: int) -> Iterator[tuple[GuardedGenerator, str, dict[str, Any], str, float]]:
    """Yield wrappers of the embedded model with a prompt, settings, a word and its Z."""
    rng = np.random.default_rng(seed)
    model, tokenizer = load_local()
    settings = {"do_sample": True, "temperature": TEMPERATURE, "top_k": KEPT, "top_p": 1.0, "max_new_tokens": TOKENS}
    for prompt in PROMPTS:
        law = texts_of(model, tokenizer, prompt)
        by_word: dict[str, list[str]] = defaultdict(list)
        for text in law:
            for word in set(re.findall(r"[a-z]{2,}", text.lower())):
                by_word[word].append(text)
        rough = {word: sum(law[text] for text in texts) for word, texts in by_word.items()}
        edges = np.geomspace(RAREST, COMMONEST, WORDS + 1)
        for low, high in itertools.pairwise(edges):  # one word of each magnitude
            names = sorted(word for word, share in rough.items() if low <= share < high)
            for word in rng.permutation(names)[:1].tolist():
                rule = Keyword(word)
                texts = [text for text in law if word in text.lower()]
                holds = run_check(rule, [Draw(prompt, (), text) for text in texts])
                rate = sum(law[text] for text, ok in zip(texts, holds, strict=True) if ok)
                if RAREST <= rate <= COMMONEST:
                    yield GuardedGenerator(model, rule, tokenizer=tokenizer), prompt, settings, word, rate


def forecast(guarded: GuardedGenerator, prompt: str, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    plan = guarded.plan(prompt, num_return_sequences=TEXTS, seed=seed, **settings)
    (one,) = plan.forecasts
    value, low, high = one.acceptance
    return {"value": float(value), "low": float(low), "high": float(high), "basis": one.basis, "drawn": plan.spent[0]}


def summary(lines: list[dict[str, Any]]) -> str:
    covered = sum(line["covered"] for line in lines)
    _, low, high = acceptance_rate(covered, len(lines), stopped_on_acceptance=False)
    weighed = [line for line in lines if line["basis"] and "roughly" not in line["basis"]]
    costs = sorted(line["drawn"] / line["run"] for line in lines)
    above = [line for line in lines if line["drawn"] > 0.1 * line["run"]]
    rough = sum("roughly" in line["basis"] for line in lines)
    wide = [line["high"] / line["low"] for line in weighed]
    return (
        f"{len(lines)} forecasts: {covered} intervals contain Z ({low:.2f} to {high:.2f}); {len(weighed)} from "
        f"weights, {sum(line['covered'] for line in weighed)} of them right, ends a factor of "
        f"{np.median(wide) if wide else math.nan:.2g} apart (median); {rough} told only roughly\n"
        f"cost of the plan as a share of the run's attempts: median {np.median(costs):.3f}, largest {costs[-1]:.3f}; "
        f"{len(above)} above .1: {[(line['word'], round(line['drawn'] / line['run'], 2)) for line in above]}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON Lines to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--chains", type=int, default=CHAINS, help="number of Markov chains")
    parser.add_argument("--no-model", action="store_true", help="leave out the embedded model")
    args = parser.parse_args()
    cases = itertools.islice(chains(args.seed), args.chains)
    lines = []
    with args.out.open("w", encoding="utf-8") as file:
        for number, case in enumerate(itertools.chain(cases, () if args.no_model else words_of(args.seed))):
            guarded, prompt, settings, word, rate = case
            line = {"word": word, "Z": rate, "run": TEXTS / rate, **forecast(guarded, prompt, settings, number)}
            line["covered"] = bool(line["low"] <= rate <= line["high"])
            lines.append(line)
            file.write(json.dumps(line) + "\n")
            print(f"{word:12} Z {rate:.3g}: {line['value']:.3g} [{line['low']:.3g}, {line['high']:.3g}]", flush=True)
    print(summary(lines))


if __name__ == "__main__":
    main()
