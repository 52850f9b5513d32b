"""Calls are written in the syntax of every family: whatever is drawn is parsed as valid calls, and nothing else."""

import json
import random
import re
from typing import Any

import numpy as np
import pytest
import transformers
from packaging import version

from guardwrap import Budget, GuardedGenerator, JSONSchema, Masked, Outcome, Regex, ToolCalls
from guardwrap.constraints.json.json_monitor import JSONMonitor
from guardwrap.constraints.verdicts import Monitor, Verdict
from guardwrap.models import call_syntax
from guardwrap.models.call_syntax import CallWriting, hastened, with_json
from guardwrap.models.parsed_message import message_parts
from guardwrap.models.regions import MessageRegions
from guardwrap.models.templates import FAMILIES
from guardwrap.outcomes import Draw
from guardwrap.testing import table_world
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


def is_free(monitor: Monitor, text: str) -> bool:
    """Whether a string is open whose delimiters are known; then a text without them is not VIOLATED."""
    if monitor.delimiters is None:
        return False
    free = "".join(char for char in text if char not in monitor.delimiters.decode())
    assert monitor.read(free).verdict is not Verdict.VIOLATED, (free, monitor.delimiters)
    return True


def written(
    start: CallWriting, alphabet: list[str], chance: random.Random, rule: ToolCalls, regions: MessageRegions
) -> str:
    """Return a message, drawn letter by letter from what the syntax allows; it ends where a call has ended."""
    monitor: Any = start
    text = ""
    while len(text) < 3 * MOST:
        monitor = hastened(monitor, len(text), MOST)
        letters = chance.sample(alphabet, len(alphabet))
        is_free(monitor, f"{''.join(letters)}</tool_call")
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
    """Return how many attempts a mask takes until twenty messages call a tool, at most 26."""
    world, rule = tools_world(), ToolCalls([f], choice="required")
    how: dict[str, Any] = {"proposal": Masked(beyond_truncation=True), "budget": Budget(max_attempts=26)}
    guarded = GuardedGenerator(world.pipeline(), rule, on_exhausted="none", **how)
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


LETTERS = 'ab{}":,0123456789 \n#'
HIDDEN = 1 + LETTERS.index("#")
SMALL = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 12}, "b": {"type": "string", "maxLength": 3}},
    "required": ["a", "b"],
    "minProperties": 2,
}


def objects(count: int = 8, **settings: Any) -> Outcome:
    """Draw objects from random tables, with a token that shows no text, and with many blanks and digits."""
    world = table_world(3, letters=LETTERS, max_new_tokens=40, temperature=0.5)
    world.tokenizer.add_special_tokens({"additional_special_tokens": ["#"]})
    how: dict[str, Any] = {
        "proposal": Masked(beyond_truncation=True),
        "budget": Budget(max_attempts=count + 1),
        "seed": 5,
    }
    guarded = GuardedGenerator(world.pipeline(), JSONSchema(SMALL), on_exhausted="none", **how)
    (outcome,) = guarded.run(world.prompt, num_return_sequences=count, **{**world.settings, "top_k": 3, **settings})
    return outcome


def test_json_needs_no_second_attempt_beyond_truncation() -> None:
    outcome = objects()
    assert all(map(JSONSchema(SMALL).accepts, outcome.texts))
    assert outcome.report.usage.attempts == len(outcome.texts) == 8
    assert not any(HIDDEN in draw.token_ids for draw in outcome.draws)


@pytest.mark.parametrize("broken", ["white space", "digits", "tokens without text"])
def test_negative_controls_of_what_never_ends(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "white space":
        monkeypatch.setattr("guardwrap.calls.source.with_json", lambda constraint: constraint)
    elif broken == "digits":
        monkeypatch.setattr(JSONMonitor, "without_exponents", lambda monitor: monitor)
    else:
        monkeypatch.setattr("guardwrap.models.vocabulary.Vocabulary.hidden", np.array([], dtype=np.int64))
    outcome = objects()
    assert outcome.report.usage.attempts > 8 or any(HIDDEN in draw.token_ids for draw in outcome.draws)


def test_a_narrower_mask_does_not_show_that_nothing_is_possible() -> None:
    """The shortest text takes 15 tokens. With 14 no text is possible, but that is not what the mask has judged."""
    outcome = objects(1, max_new_tokens=14)
    assert not outcome.ok
    assert outcome.report.ended != "impossible"


@pytest.mark.parametrize(
    "constraint",
    [
        JSONSchema({"enum": ["a", 1, {}]}),
        JSONSchema({}),
        JSONSchema(SMALL, where="fenced"),
        JSONSchema(SMALL, on="full"),
        JSONSchema(SMALL) & Regex("\n"),
    ],
    ids=["scalars", "any JSON", "in a fence", "with the prompt", "with another rule"],
)
def test_what_may_need_more_than_compact_json_stays_as_it_is(constraint: Any) -> None:
    assert with_json(constraint) is constraint


def test_random_json_is_written_to_its_end() -> None:
    chance, letters, free = random.Random(2), [*map(chr, range(32, 127)), *"\n\té"], 0
    for _ in range(20):
        rule = JSONSchema(random_object(chance))
        (monitor,) = [with_json(rule).monitor_in(None)]  # type: ignore[arg-type]  # it does not look at the prompt
        text = ""
        while not (text and rule.accepts(text)):
            assert len(text) < 3 * MOST, f"it does not end: {text!r}"
            monitor = hastened(monitor, len(text), MOST)
            some = chance.sample(letters, len(letters))
            letter = next(letter for letter in some if monitor.read(letter).verdict is not Verdict.VIOLATED)
            free += is_free(monitor, f"{''.join(some)}.5e")
            text, monitor = text + letter, monitor.read(letter)
    assert free > 100


@pytest.mark.parametrize("name", ["Qwen or Hermes", "a list under other keys"])
def test_free_strings_of_calls_have_delimiters(name: str) -> None:
    """Also if a marker ends a call, whose first character is one; not within a marker that has begun."""
    chance, city = random.Random(name), {"type": "object", "properties": {"city": {"type": "string"}}}
    start, _ = begun(name, ToolCalls([{"name": "f", "parameters": city}], choice="required"))
    begins = {
        "Qwen or Hermes": '<tool_call>\n{"name": "f", "arguments": {"city": "Ber',
        "a list under other keys": '<calls>[{"tool": "f", "input": {"city": "Ber',
    }
    monitor = start.read(begins[name])
    assert monitor.verdict is Verdict.UNDECIDED
    assert b"<" in (monitor.delimiters or b""), monitor.delimiters
    assert is_free(monitor, "".join(chance.sample(alphabet_of(name), 60)))
    assert monitor.read("l<").delimiters is None
    assert hastened(monitor, MOST, MOST).delimiters is None


@pytest.mark.parametrize("name", ["Gemma 4", "GLM", "Qwen (calls in XML)", "Qwen or Hermes"])
def test_numbers_stay_within_their_limits_in_every_dialect(name: str) -> None:
    """Beyond them a model could write digits up to the limit of 24, and then nothing."""
    limits = {"type": "integer", "exclusiveMinimum": 0, "maximum": 10}
    parameters = {"type": "object", "properties": {"n": limits}, "required": ["n"]}
    rule = ToolCalls([{"name": "f", "parameters": parameters}], choice="required", parallel=False)
    chance, (start, regions) = random.Random(name), begun(name, rule)
    for _ in range(3):
        assert not fault_of(written(start, alphabet_of(name), chance, rule, regions), rule, regions)


IN_OR_INCH = {"type": "object", "properties": {"u": {"enum": ["in", "inch"]}}, "required": ["u"]}


def test_in_haste_a_word_of_a_list_may_become_a_longer_one_and_free_strings_end() -> None:
    """A name that begins another one left the other out, wherever the token limit was short."""
    tools = [{"name": name, "parameters": IN_OR_INCH} for name in ("f", "final_result")]
    start, _ = begun("Qwen or Hermes", ToolCalls(tools, choice="required"))
    (json_alone,) = [with_json(JSONSchema(IN_OR_INCH)).monitor_in(None)]  # type: ignore[arg-type]  # as above
    calls = [
        f'<tool_call>\n{{"name": "{name}", "arguments": {{"u": "{unit}"}}}}'
        for name in ("f", "final_result")
        for unit in ("in", "inch")
    ]
    for monitor, texts in ((start, calls), (json_alone, ['{"u": "in"}', '{"u": "inch"}'])):
        hasty = hastened(monitor, MOST, MOST)
        assert all(hasty.read(text).verdict is not Verdict.VIOLATED for text in texts)
    free = JSONSchema({"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]})
    hasty = hastened(with_json(free).monitor_in(None), MOST, MOST)  # type: ignore[arg-type]  # as above
    assert hasty.read('{"b": ""').verdict is not Verdict.VIOLATED
    assert hasty.read('{"b": "x').verdict is Verdict.VIOLATED, "this string has to end"


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED_TEMPLATES)
def test_both_words_are_written_in_haste_in_every_family(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_syntax, "LEAVE_ARGUMENTS", 0.0)  # from the first token on
    chance = random.Random(name)
    rule = ToolCalls([{"name": "f", "parameters": IN_OR_INCH}], choice="required", parallel=False)
    start, regions = begun(name, rule)
    seen: set[str] = set()
    for _ in range(16):
        if len(seen) < 2:
            text = written(start, alphabet_of(name), chance, rule, regions)
            seen.add(re.findall("inch|in", text.split("u", 1)[1])[0])
    assert seen == {"in", "inch"}
