"""GRPO with its own rollouts, with guardwrap's, and beside ``guardwrap train``.

    python benchmarks/rollouts.py
    python benchmarks/rollouts.py --model stories15M --word dog --samples 6400

runs in the environment of ``make test-trl``. The first is on a policy whose texts are enumerated, so that its figures
are exact. Both are rewarded for the letter c, GRPO's own rollouts for the rule as well.

The second trains a real model to write a word, with the same number of samples each way, attempts included: GRPO,
whose rewards are the rule and the share of the letter e, without and with a weight of the KL to the untrained model;
GRPO with guardwrap's rollouts, which all keep the rule, so that only the letter is rewarded; and ``guardwrap train`` by
its methods. It prints the acceptance rate of the trained model, KL(g‖a') in nats, and the same of the texts that pass,
KL(g‖g') = KL(g‖a') + log AR, on texts of g that nobody was trained on, and the share of e in texts that pass.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import peft
import torch
import transformers
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from guardwrap import Budget, GuardedGenerator, Keyword, Regex
from guardwrap.integrations.trl import reward, rollouts
from guardwrap.testing import World, llama_world
from guardwrap.training import TrainingSettings, train

RULE = Regex("b.*a.*b")
TEXTS = 8
PROMPT = "One day"

Law = dict[tuple[int, ...], float]


def share_of(letter: str) -> Callable[..., list[float]]:
    """Return a reward: the share of a letter in each text."""

    def share(completions: list[str], **_: Any) -> list[float]:
        return [text.count(letter) / max(len(text), 1) for text in completions]

    return share


OF_C, OF_E = share_of("c"), share_of("e")


def figures(world: World, gold: Law) -> dict[str, float]:
    """Return the acceptance rate, the mean reward of all texts and of those that pass, and KL(g‖a') in nats.

    ``gold``: g of the policy before it was trained.
    """
    law, now = world.law(), world.gold(RULE)
    values = dict(zip(law, OF_C([world.draw(ids).text for ids in law]), strict=True))
    return {
        "acceptance": sum(law[ids] for ids in now),
        "reward": sum(p * values[ids] for ids, p in law.items()),
        "reward of texts that pass": sum(p * values[ids] for ids, p in now.items()),
        "KL(g‖a')": sum(p * math.log(p / law[ids]) for ids, p in gold.items()),
    }


def trained(
    folder: str, prompt: str, functions: Sequence[Any], steps: int, seed: int, rollout: Any = None, **options: Any
) -> Any:
    """Return the policy after so many updates of GRPO, its loss being the gradient of the mean reward."""
    args = GRPOConfig(
        folder,
        max_steps=steps,
        loss_type="dr_grpo",
        scale_rewards="none",
        bf16=False,
        lr_scheduler_type="constant",
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
        seed=seed,
        **options,
    )
    data = Dataset.from_list([{"prompt": prompt}])
    more = {} if rollout is None else {"rollout_func": rollout}
    trainer = GRPOTrainer(folder, functions, args, train_dataset=data, **more)
    trainer.train()
    return trainer.model.eval()


def in_world(world: World, steps: int, seed: int, *, guarded: bool, beta: float = 0.0) -> tuple[World, float]:
    """Return the trained policy, and the mean number of attempts per update.

    ``beta``: weight of the KL to the untrained policy.
    """
    attempts: list[int] = []

    def counted(prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        output = draw(prompts, trainer)
        attempts.append(output["attempts"][0])
        return output

    draw = rollouts(RULE, budget=Budget(max_attempts=100_000))
    options = {"num_generations": TEXTS, "per_device_train_batch_size": TEXTS, "learning_rate": 1e-3, "beta": beta}
    options["max_completion_length"] = world.max_new_tokens
    with tempfile.TemporaryDirectory() as folder:
        world.model.save_pretrained(folder)
        world.tokenizer.save_pretrained(folder)
        functions = [OF_C] if guarded else [OF_C, reward(RULE)]
        rollout = counted if guarded else None
        policy = trained(folder, world.prompt, functions, steps, seed, rollout, **options)
    world = World(policy, world.tokenizer, world.prompt, world.max_new_tokens)
    return world, sum(attempts) / steps if guarded else TEXTS


def log_probabilities(model: Any, prompt: Sequence[int], texts: Sequence[Sequence[int]]) -> Any:
    """Return the log-probability of each text in nats, ``[texts]``."""
    sums = []
    for text in texts:
        ids = torch.tensor([[*prompt, *text]])
        with torch.no_grad():
            log_p = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        sums.append(float(log_p.gather(1, ids[0, len(prompt) :, None]).sum()))
    return np.array(sums)


def with_word(options: argparse.Namespace) -> None:
    """Train a real model to write a word, each way with the same number of samples."""
    rule, settings = Keyword(options.word), {"max_new_tokens": 30, "do_sample": True, "temperature": 1.0, "top_k": 0}
    pipe = transformers.pipeline("text-generation", options.model, dtype=torch.float32)
    tokenizer, model = pipe.tokenizer, pipe.model
    guarded = GuardedGenerator(pipe, rule, seed=options.seed, budget=Budget(1_000_000))
    prompt = tokenizer(PROMPT)["input_ids"]
    (drawn,) = guarded.attempts(PROMPT, options.gold, weigh=False, **settings)
    gold = [attempt.draw.token_ids for attempt in drawn if attempt.satisfied]
    log_z = math.log(len(gold) / options.gold)
    log_g = log_probabilities(model, prompt, gold) - log_z

    def show(name: str, policy: Any, minutes: float) -> None:
        pipe = transformers.pipeline("text-generation", model=policy, tokenizer=tokenizer)
        measured = GuardedGenerator(pipe, rule, seed=options.seed + 1, budget=Budget(1_000_000))
        (attempts,) = measured.attempts(PROMPT, options.measured, weigh=False, **settings)
        rate = sum(attempt.satisfied for attempt in attempts) / len(attempts)
        ratios = log_g - log_probabilities(policy, prompt, gold)
        kl, half = float(ratios.mean()), 1.96 * float(ratios.std()) / math.sqrt(len(gold))
        texts = [attempt.draw.text for attempt in attempts if attempt.satisfied]
        print(
            f"{name} | {rate:.3f} | {kl:.2f} ± {half:.2f} | {kl + math.log(max(rate, 1e-9)):.2f} | "
            f"{len({*texts}) / max(1, len(texts)):.2f} | {np.mean(OF_E(texts)):.3f} | {minutes:.1f}",
            flush=True,
        )

    print(f"{len(gold)} texts of g in {options.gold} attempts")
    print("way | AR | KL(g‖a') | KL(g‖g') | distinct | share of e | CPU min")
    show("the model", model, 0)
    grpo = {"num_generations": 64, "per_device_train_batch_size": 64, "max_completion_length": 30}
    grpo["learning_rate"] = options.learning_rate
    steps, rewards = options.samples // 64, [reward(rule), OF_E]
    for beta in (0.0, 0.05, 0.5):
        began = time.process_time()
        policy = trained(options.model, PROMPT, rewards, steps, options.seed, beta=beta, **grpo)
        show(f"GRPO, beta {beta:g}", policy, (time.process_time() - began) / 60)
    began, attempts = time.process_time(), 0
    draw = rollouts(rule, budget=Budget(max_attempts=100_000))

    def counted(prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        nonlocal attempts
        output = draw(prompts, trainer)
        attempts += output["attempts"][0]
        trainer.control.should_training_stop = attempts >= options.samples
        return output

    policy = trained(options.model, PROMPT, [OF_E], steps, options.seed, counted, **grpo)
    show(f"GRPO with rollouts, {attempts} attempts", policy, (time.process_time() - began) / 60)
    for method in ("replay", "dpg"):
        began = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            chosen = TrainingSettings(
                model=options.model,
                dtype="float32",
                constraint={"kind": "keyword", "words": options.word},
                prompts=[PROMPT],
                generation=settings,
                method=method,
                samples=options.samples,
                gold_attempts=0,
                final_attempts=100,
                seed=options.seed,
            )
            train(guarded, chosen, folder)
            base = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
            policy = peft.PeftModel.from_pretrained(base, f"{folder}/adapter").merge_and_unload().eval()
        show(f"guardwrap train, {method}", policy, (time.process_time() - began) / 60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="updates")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--model", help="a folder")
    parser.add_argument("--word", default="dog")
    parser.add_argument("--samples", type=int, default=6400)
    parser.add_argument("--gold", type=int, default=6000, help="attempts of the untrained model")
    parser.add_argument("--measured", type=int, default=1000, help="attempts of each trained model")
    parser.add_argument("--learning-rate", type=float, default=1e-5, help="of GRPO, which trains all weights")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.model:
        with_word(options)
        return
    world = llama_world(1, letters="abc", max_new_tokens=5, dtype=torch.float32)
    gold = world.gold(RULE)
    print("before", figures(world, gold), flush=True)
    ways: dict[str, dict[str, Any]] = {
        "GRPO's own": {"guarded": False},
        "rollouts": {"guarded": True},
        "rollouts, beta=0.1": {"guarded": True, "beta": 0.1},
    }
    for name, way in ways.items():
        for seed in range(options.seeds):
            policy, attempts = in_world(world, options.steps, seed, **way)
            print(name, f"{attempts:.0f} attempts per update", figures(policy, gold), flush=True)


if __name__ == "__main__":
    main()
