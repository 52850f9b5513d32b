"""Calls are written in the syntax of every family: whatever is drawn is parsed as valid calls, and nothing else."""

import json
import random
from typing import Any

import pytest
import transformers
from packaging import version

from guardwrap import Budget, GuardedGenerator, Masked, ToolCalls
from guardwrap.constraints.verdicts import Verdict
from guardwrap.models import call_syntax
from guardwrap.models.call_syntax import CallWriting, hastened
from guardwrap.models.parsed_message import message_parts
from guardwrap.models.regions import MessageRegions
from guardwrap.models.templates import FAMILIES
from guardwrap.outcomes import Draw
from tests.integrations.fixtures_tools import f, tools_world
from tests.models.test_templates import SYNTAX, tokenizer_of

TEMPLATES = {family.name: family.template for family in FAMILIES}
MOST = 260
"""Characters of a message. From a half of them on the writer is in haste."""

ARRAYS = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<calls>",
            "close": "</calls>",
            "content": "json",
            "transform_each": True,
            "transform": {"type": "function", "function": {"name": "{tool}", "arguments": "{input}"}},
        },
        "content": {"close": "<|im_end|>", "content": "text"},
    },
}
NESTED = {
    **ARRAYS,
    "fields": {
        "thinking": {"open": "<reason>", "close": "</reason>", "content": "text"},
        "tool_calls": {
            "open": ["<call>", "<CALL>"],
            "close": "</call>",
            "content": "json",
            "repeats": True,
            "transform": {
                "type": "function",
                "function": {"name": "{content.tool}", "arguments": "{content.input}"},
            },
        },
        "content": {"close": "<|im_end|>", "content": "text"},
    },
}
OWN = {"a list under other keys": ARRAYS, "calls under other keys": NESTED}
"""Response templates of tokenizers of their own."""
if version.parse(transformers.__version__) < version.parse("5.24"):
    del OWN["calls under other keys"]  # which it does not look up yet: all tools are called {content.tool}

NAMED_TEMPLATES = {**TEMPLATES, **OWN}


def tokenizer_for(name: str) -> Any:
    tokenizer = tokenizer_of(SYNTAX.get(name, SYNTAX["Qwen or Hermes"]), ["a"])
    tokenizer.response_template = NAMED_TEMPLATES[name]
    return tokenizer


def prompt_for(name: str) -> str:
    return SYNTAX.get(name, SYNTAX["Qwen or Hermes"]).anchor


def random_schema(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    """Return a schema of the kinds that tools have."""
    kinds = ["string", "enum", "integer", "number", "boolean", "optional", "limits"]
    kind = chance.choice(kinds + ["array", "object"] * (depth < 2))
    if kind == "array":
        return {"type": "array", "items": random_schema(chance, depth + 1), "minItems": chance.randrange(2)}
    if kind == "object":
        return random_object(chance, depth + 1)
    kinds_of: dict[str, dict[str, Any]] = {
        "enum": {"type": "string", "enum": ["left turn", 'a "b"', "é"]},
        "optional": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "limits": {"type": "string", "minLength": 2, "maxLength": 5},
    }
    return kinds_of.get(kind, {"type": kind})


def random_object(chance: random.Random, depth: int = 0) -> dict[str, Any]:
    names = chance.sample(["city", "days", "unit", "note_2", "user-id"], chance.randrange(1, 4))
    required = [name for name in names if chance.random() < 0.5]
    properties = {name: random_schema(chance, depth) for name in names}
    return {"type": "object", "properties": properties, "required": required}


def random_tools(chance: random.Random) -> list[dict[str, Any]]:
    names = chance.sample(["get", "get_weather", "list_files", "f"], chance.randrange(1, 4))
    return [{"name": name, "parameters": random_object(chance)} for name in names]


def begun(name: str, rule: ToolCalls, *, prompt: str = "") -> tuple[CallWriting, MessageRegions]:
    tokenizer = tokenizer_for(name)
    regions, _ = MessageRegions.begin(tokenizer, prompt_for(name) + prompt, rule.definitions)
    start = call_syntax.call_syntax(rule, regions, tokenizer, casts=True)
    assert start is not None
    return start, regions


def alphabet_of(name: str) -> list[str]:
    marks = json.dumps(NAMED_TEMPLATES[name], ensure_ascii=False)
    return sorted({*marks, *map(chr, range(32, 127)), *"\n\t\x1f\u3000é"})


def written(
    start: CallWriting, alphabet: list[str], chance: random.Random, rule: ToolCalls, regions: MessageRegions
) -> str:
    """Return a message, drawn letter by letter from what the syntax allows; it ends where a call has ended."""
    monitor: Any = start
    text = ""
    while len(text) < 3 * MOST:
        monitor = hastened(monitor, len(text), MOST)
        letters = chance.sample(alphabet, len(alphabet))
        following = ((letter, monitor.read(letter)) for letter in letters)
        step = next(((letter, after) for letter, after in following if after.verdict is not Verdict.VIOLATED), None)
        if step is None:
            return text
        outside = bool(text) and any(branch.phase != "call" for branch in monitor.branches)
        if outside and chance.random() < 0.7 and not fault_of(text, rule, regions):
            return text
        text, monitor = text + step[0], step[1]
    raise AssertionError(f"it does not end: {text!r}")


def fault_of(text: str, rule: ToolCalls, regions: MessageRegions) -> str:
    """Return what the family's parser and the rule find wrong with a message."""
    message = regions.read(text)[0].message()
    if message is None:
        return "cannot be parsed"
    parts = message_parts(message)
    if dict(parts).get("answer"):
        return "has an answer"
    return rule.fault_of(Draw("", (), text, parts=parts))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED_TEMPLATES)
@pytest.mark.parametrize("choice", ["required", "named", "one"])
def test_every_message_that_is_written_has_valid_calls_and_nothing_else(name: str, choice: str) -> None:
    chance = random.Random(f"{name} {choice}")
    for _ in range(8):
        tools = random_tools(chance)
        wanted = {"name": chance.choice(tools)["name"]} if choice == "named" else "required"
        rule = ToolCalls(tools, choice=wanted, parallel=choice != "one")
        start, regions = begun(name, rule)
        text = written(start, alphabet_of(name), chance, rule, regions)
        assert not fault_of(text, rule, regions), (fault_of(text, rule, regions), text[-150:], rule.spec())


def attempts_for_twenty() -> int:
    """Return how many attempts a mask takes until twenty messages call a tool."""
    world, rule = tools_world(), ToolCalls([f], choice="required")
    how: dict[str, Any] = {"proposal": Masked(beyond_truncation=True), "budget": Budget(max_attempts=200)}
    guarded = GuardedGenerator(world.pipeline(), rule, **how)
    chat = [{"role": "user", "content": "x"}]
    options: dict[str, Any] = {"num_return_sequences": 20, "max_new_tokens": 40, "seed": 1}
    (outcome,) = guarded.run([chat], tools=rule.definitions, **options)
    assert all(outcome.tool_calls)
    return outcome.report.usage.attempts


def test_masks_follow_the_syntax() -> None:
    assert attempts_for_twenty() == 20


def test_negative_control_masks_that_follow_the_rule_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guardwrap.calls.source.with_syntax", lambda constraint, *_, **__: constraint)
    assert attempts_for_twenty() > 25
