"""An adapter on prompts that it was not trained on, beside the model itself, a hint, a mask, and both.

    python benchmarks/unseen.py --adapter catalogue:json-object --prompts examples/training/json-unseen.txt
    python benchmarks/unseen.py --adapter results/adapter --constraint examples/training/words/rule.yaml \\
        --prompts examples/training/words/unseen.jsonl --hint "{prompt} Use both words in the first sentence."

draws as many attempts for each prompt in each way, in turn. It prints the acceptance rate with its interval over
prompts like these, how many prompts had no text, CPU seconds per text, and for ways that are weighed the
share of the attempts that their effective sample size is, as a mean over the prompts with a text, and KL(g‖g') of the
texts as they are, as a mean over the prompts with eight texts or more (``--attempts 20 --weigh``).

Then it prints KL(g‖a') of the adapter and of hints on the texts that the model itself gave, as KL of pairs of a prompt
and a text: all prompts are drawn equally often, and g has each as often as the model satisfies its rule. Intervals
come from drawing the prompts anew.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from guardwrap import GuardedGenerator, Masked, Prompt
from guardwrap.metrics import effective_sample_size, kl_gold_guarded
from guardwrap.metrics.intervals import rate_over
from guardwrap.training import TrainingSettings
from guardwrap.training.learning_curve import enough, mean_over
from guardwrap.training.policy import Policy, read_start
from guardwrap.training.task import Task

WAYS: dict[str, dict[str, Any]] = {
    "the model": {"adapter": False},
    "mask": {"adapter": False, "proposal": Masked()},
    "adapter": {},
    "adapter and mask": {"proposal": Masked()},
}


def distances(task: Task, adapter: str, hints: list[str], drawn: Any, seed: int) -> None:
    """Print KL(g‖a') of each way on the model's own texts, with the difference to the adapter's."""
    samples = [
        task.sample(prompt, each.draw.token_ids)
        for prompt, tries in enumerate(drawn)
        for each in tries
        if each.satisfied
    ]
    log_base = np.array(task.log_probabilities(task.model, samples))
    adapted = Policy(task.model, 1, 0, read_start(task.model, adapter)).model
    logs = {"adapter": task.log_probabilities(adapted, samples)}
    logs |= {f"hint {hint!r}": task.log_probabilities(task.model, samples, task.hinted(hint)) for hint in hints}
    prompts, attempts = len(drawn), len(drawn[0])
    which = [sample.prompt for sample in samples]
    counts = np.bincount(which, minlength=prompts)
    sums = {name: np.bincount(which, log_base - np.array(log), prompts) for name, log in logs.items()}
    again = np.random.default_rng(seed).integers(prompts, size=(4000, prompts))

    def shown(figure: Any) -> str:
        low, high = np.quantile([figure(rows) for rows in again if counts[rows].any()], [0.025, 0.975])
        return f"{figure(np.arange(prompts)):.2f} [{low:.2f}, {high:.2f}]"

    def kl(name: str, rows: Any) -> float:
        return float(sums[name][rows].sum() / counts[rows].sum() - np.log(counts[rows].sum() / attempts / prompts))

    for name in logs:
        value = shown(lambda rows, name=name: kl(name, rows))
        more = shown(lambda rows, name=name: kl(name, rows) - kl("adapter", rows))
        more = "" if name == "adapter" else f", {more} more than the adapter's"
        print(f"KL(g‖a') of {name}, on {len(samples)} texts: {value} nats{more}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapter", default="catalogue:json-object")
    parser.add_argument("--constraint", default="catalogue:json-object")
    parser.add_argument("--prompts", required=True, help="one per line, or JSON Lines with the rule's fields")
    parser.add_argument("--hint", nargs="*", default=[], help="templates with {prompt}, each another way")
    parser.add_argument("--attempts", type=int, default=10, help="of each prompt in each way")
    parser.add_argument("--tokens", type=int, default=64, help="max_new_tokens")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--weigh", action="store_true", help="also the attempts of the adapter by itself")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="JSON file for the accepted attempts of each prompt")
    options = parser.parse_args()
    torch.set_num_threads(1)
    law = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": options.tokens}
    guarded = GuardedGenerator("local", options.constraint, adapter=options.adapter, batch_size=64)
    asked = TrainingSettings(constraint=options.constraint, prompts=options.prompts, chat=True, held_out=0.0)
    chats = asked.given_prompts
    more: dict[str, Any] = law if asked.fields is None else {**law, "fields": asked.fields}
    hints = {f"hint {hint!r}": {"adapter": False, "proposal": Prompt(hint)} for hint in options.hint}
    counts: dict[str, list[int]] = {}
    gold = None
    for name, way in {**{name: WAYS[name] for name in options.ways}, **hints}.items():
        weighed, began = "proposal" in way or (options.weigh and name != "the model"), time.process_time()
        drawn = guarded.attempts(chats, options.attempts, weigh=weighed, seed=options.seed, **more, **way)
        seconds = time.process_time() - began
        counts[name] = [sum(attempt.satisfied for attempt in attempts) for attempts in drawn]
        rate = rate_over(counts[name], options.attempts, range(len(counts[name])))
        worth = ""
        if weighed:
            weights = [np.array([each.log_weight or 0.0 for each in tries if each.satisfied]) for tries in drawn]
            shares = [effective_sample_size(each).value / options.attempts for each in weights if len(each)]
            worth = f", worth {np.mean(shares):.2f} of the attempts"
            if known := enough(weights, asked.units):
                kl = mean_over({i: kl_gold_guarded(weights[i]) for i in known}, asked.units)
                worth += f", KL(g‖g') {kl.value:.2f} [{kl.low:.2f}, {kl.high:.2f}] nats over {len(known)} prompts"
        texts = sum(counts[name])
        print(
            f"{name}: {rate}, {counts[name].count(0)} of {len(chats)} prompts without a "
            f"text, {seconds / max(texts, 1):.2f} CPU s per text{worth}",
            flush=True,
        )
        if name == "the model" and texts:
            gold = drawn
    if gold is not None:
        plain = GuardedGenerator(guarded.model, options.constraint, tokenizer=guarded.tokenizer, batch_size=64)
        task = Task(plain, chats, law, asked.fields)
        distances(task, options.adapter, options.hint, gold, options.seed)
    if options.out is not None:
        options.out.write_text(json.dumps({"attempts": options.attempts, "accepted": counts}))


if __name__ == "__main__":
    main()
