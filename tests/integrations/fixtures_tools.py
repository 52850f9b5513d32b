"""A chat model of the Qwen family that thinks, answers, and calls tools at random, rightly and wrongly."""

import json
from collections.abc import Iterable
from typing import Any

import torch

from guardwrap import Budget, GuardedGenerator, Regex
from guardwrap.testing import World
from tests.models.test_templates import piece_name, world_of

NO_BAD = ~Regex("bad")
TIMES = 20


def call_text(name: str, arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def f(a: int) -> int:
    """Return the next number.

    Args:
        a: A number.
    """
    return a + 1


def tools_world(*more: str) -> World:
    """Return a world whose model calls ``f``, with a number and without one, and a tool that is not offered."""
    world = world_of("Qwen or Hermes", more=[call_text("f", {"a": "one"}), call_text("g", {}), *more])
    template = "{# <tool_call> <think> #}{% for m in messages %}{{ m['content'] }}{% if m['tool_calls'] %}"
    template += "{{ m['tool_calls'][0]['function']['arguments']['a'] }}{% endif %}{% endfor %}"
    template += "{{ tools[0]['function']['name'] if tools else '' }}<|im_start|>assistant{{ '\\n' }}"
    right, line = '<tool_call>\n{"name":"f","arguments":{"a":1}}\n</tool_call>', "\n"
    call, then = world.tokenizer.convert_tokens_to_ids([piece_name(right), piece_name(line)])
    with torch.no_grad():  # so that few messages are enough to have two calls in one of them
        world.model.table[:, :, call] += 1.0
        world.model.table[:, call, then] += 3.0
        world.model.table[:, then, call] += 2.0
    world.tokenizer.chat_template = template  # short, because the model's table has 200 positions
    return world


def guarded_chat(world: World, constraint: Any = NO_BAD, **options: Any) -> GuardedGenerator:
    budget = Budget(max_attempts=20_000)
    return GuardedGenerator(world.pipeline(), constraint, **{"budget": budget, "seed": 1, "batch_size": 16, **options})


Reply = tuple[str, str, list[tuple[str, Any]]]
"""The answer, the reasoning and the calls of a message, each with its name and arguments."""


def require_valid(replies: Iterable[Reply], *, least: int = 0, most: int | None = None) -> None:
    """Assert that many messages satisfy the wrapper's constraint and the tool's rule, and are not all alike."""
    replies = list(replies)
    assert len(replies) >= TIMES
    for answer, reasoning, calls in replies:
        assert "bad" not in answer + reasoning, "the constraint is violated"
        assert all(call == ("f", {"a": 1}) for call in calls), "an invalid call got through"
        assert len(calls) >= least, "no tool is called"
        assert most is None or len(calls) <= most, "too many calls"
    if most != 0:
        assert any(calls for _, _, calls in replies)
        assert most is not None or any(len(calls) > 1 for _, _, calls in replies)
    if not least:
        assert any(answer for answer, _, _ in replies)
    assert any(reasoning for _, reasoning, _ in replies)
