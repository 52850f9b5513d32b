"""Tiny models on weights of 8 and 4 bits."""

import dataclasses
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

from guardwrap.testing import World, llama_world

EIGHT = BitsAndBytesConfig(load_in_8bit=True)
FOUR = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)


def larger(world: World | None = None) -> World:
    """A world whose layers are large enough for 4 bits: they come in blocks of 64 numbers, on a CPU of 32 rows."""
    world = world or llama_world()
    sizes = {"hidden_size": 64, "head_dim": 32, "intermediate_size": 64, "initializer_range": 0.15}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig.from_dict({**world.model.config.to_dict(), **sizes})).eval()
    model.generation_config = world.model.generation_config
    return dataclasses.replace(world, model=model)


def in_bits(world: World, bits: BitsAndBytesConfig, folder: Path) -> World:
    world.model.save_pretrained(folder)
    options = {"quantization_config": bits, "device_map": {"": "cpu"}, "dtype": torch.float32}
    return dataclasses.replace(world, model=AutoModelForCausalLM.from_pretrained(folder, **options).eval())
