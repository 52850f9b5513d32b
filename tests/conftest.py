import pytest
import torch

from guardwrap.testing import World, llama_world

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def world() -> World:
    """A random Llama over a few letters; fast enough for everything that needs no real model."""
    world = llama_world(letters="abcdef .\n", max_new_tokens=6)
    world.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}.{% endfor %}"
    return world
