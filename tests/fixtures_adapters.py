"""A tiny model, an adapter for it, and its card."""

from typing import Any

import torch
from peft import LoraConfig

from guardwrap import Budget, GuardedGenerator, Keyword, Regex
from guardwrap.adapters import Card, Figure, Figures, attach, describe
from guardwrap.testing import World, llama_world

CONSTRAINT = Keyword("a", whole_words=False) & ~Regex("^b")
KL = Figure(value=0.61, low=0.5, high=0.72)


def world_of(**options: Any) -> World:
    """The numbers of an adapter are float32, so the model's are too: what is saved and read is the same bit by bit."""
    return llama_world(letters="ab", max_new_tokens=4, temperature=0.8, **{"dtype": torch.float32, **options})


def trained(model: Any, *, seed: int = 0, strength: float = 0.07, trainable: bool = False, **config: Any) -> Any:
    """An adapter with random numbers, as if it had been trained."""
    adapted = attach(model, LoraConfig(**{"r": 2, "target_modules": "all-linear", **config}), trainable=trainable)
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name and "magnitude" not in name:
                parameter.add_(strength * torch.randn(parameter.shape, generator=chance))
    return adapted


def card_of(world: World, **others: Any) -> Card:
    given = {"figures": Figures(kl_gold_guarded=KL), **others}
    return describe(
        world.model, CONSTRAINT, [world.prompt], name="tiny/llama", settings=world.settings, method="none", seed=0,
        samples=100, **given,
    )  # fmt: skip


def guarded_of(world: World, adapter: Any, **options: Any) -> GuardedGenerator:
    settings = {"budget": Budget(max_attempts=None), "batch_size": 64, "seed": 1, **options}
    return GuardedGenerator(world.pipeline(), CONSTRAINT, adapter=adapter, **settings)
