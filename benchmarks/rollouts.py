"""GRPO with its own rollouts and with guardwrap's, on a policy whose texts are enumerated.

    python benchmarks/rollouts.py

runs in the environment of ``make test-trl``. Both are rewarded for the letter c, GRPO's own rollouts for the rule as
well. Figures are exact: they are computed from the probabilities of all texts.
"""

import argparse
import math
import tempfile
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from guardwrap import Budget, Regex
from guardwrap.integrations.trl import reward, rollouts
from guardwrap.testing import World, llama_world

RULE = Regex("b.*a.*b")
TEXTS = 8

Law = dict[tuple[int, ...], float]


def c_share(completions: list[str], **_: Any) -> list[float]:
    return [text.count("c") / max(len(text), 1) for text in completions]


def figures(world: World, gold: Law) -> dict[str, float]:
    """Return the acceptance rate, the mean reward of all texts and of those that pass, and KL(g‖a') in nats.

    ``gold``: g of the policy before it was trained.
    """
    law, now = world.law(), world.gold(RULE)
    values = dict(zip(law, c_share([world.draw(ids).text for ids in law]), strict=True))
    return {
        "acceptance": sum(law[ids] for ids in now),
        "reward": sum(p * values[ids] for ids, p in law.items()),
        "reward of texts that pass": sum(p * values[ids] for ids, p in now.items()),
        "KL(g‖a')": sum(p * math.log(p / law[ids]) for ids, p in gold.items()),
    }


def trained(world: World, steps: int, seed: int, *, guarded: bool, beta: float = 0.0) -> tuple[World, float]:
    """Return the trained policy, and the mean number of attempts per step.

    ``beta``: weight of the KL to the untrained policy.
    """
    attempts: list[int] = []

    def counted(prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        output = draw(prompts, trainer)
        attempts.append(output["attempts"][0])
        return output

    draw = rollouts(RULE, budget=Budget(max_attempts=100_000))
    with tempfile.TemporaryDirectory() as folder:
        world.model.save_pretrained(folder)
        world.tokenizer.save_pretrained(folder)
        options = {"loss_type": "dr_grpo", "scale_rewards": "none", "learning_rate": 1e-3, "bf16": False}
        args = GRPOConfig(
            folder,
            max_steps=steps,
            num_generations=TEXTS,
            per_device_train_batch_size=TEXTS,
            max_completion_length=world.max_new_tokens,
            lr_scheduler_type="constant",
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            logging_strategy="no",
            seed=seed,
            beta=beta,
            **options,
        )
        functions = [c_share] if guarded else [c_share, reward(RULE)]
        data = Dataset.from_list([{"prompt": world.prompt}])
        more = {"rollout_func": counted} if guarded else {}
        trainer = GRPOTrainer(folder, functions, args, train_dataset=data, **more)
        trainer.train()
    policy = trainer.model.eval()
    world = World(policy, world.tokenizer, world.prompt, world.max_new_tokens)
    return world, sum(attempts) / steps if guarded else TEXTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20, help="updates")
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
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
            policy, attempts = trained(world, options.steps, seed, **way)
            print(name, f"{attempts:.0f} attempts per update", figures(policy, gold), flush=True)


if __name__ == "__main__":
    main()
