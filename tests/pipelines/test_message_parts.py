"""Rules on a part of a message: its answer, its reasoning, its tool calls. Drawn from g, and never judged elsewhere.

Covers ``pipelines/messages.py`` and ``constraints/text_parts.py`` too.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from guardwrap import Budget, Endpoint, GuardedGenerator, JSONSchema, Part, Regex, constraint
from guardwrap.constraints import dump, parse
from guardwrap.errors import UsageError
from guardwrap.pipelines import calls, messages
from guardwrap.testing import World, goodness_of_fit, table_world
from tests import fixtures_models
from tests.pipelines.test_messages import gold as gold_of_ban
from tests.pipelines.test_messages import region_of

CHAT = [{"role": "user", "content": "a"}]


@cache
def enumerated() -> tuple[World, dict[tuple[int, ...], float]]:
    world = fixtures_models.with_template(table_world(1, letters="a12()[]", max_new_tokens=4))
    return world, world.law()


def message_of(world: World, ids: tuple[int, ...]) -> Mapping[str, Any] | None:
    """Return the message that transformers parses, or None where there is none, or no answer in it."""
    raw = world.tokenizer.decode(ids)
    try:
        message: Mapping[str, Any] = world.tokenizer.parse_response(raw, prefix="a")
    except ValueError:
        return None
    cut = ids[-1] != world.tokenizer.eos_token_id and region_of(raw)
    return None if cut or not (message.get("content") or message.get("tool_calls")) else message


THOUGHTS, CALLS = Part(message="reasoning", missing="pass"), Part(message="tool_calls", missing="pass")
CALL = {"properties": {"function": {"const": 1}}, "required": ["function"]}
RULES: dict[str, tuple[Any, Any]] = {
    "no 1 in the answer": (~Regex("1", on="answer"), lambda m: "1" not in m.get("content", "")),
    "no 1 in reasoning, if any": (Regex("^[^1]*$", on=THOUGHTS), lambda m: "1" not in m.get("reasoning_content", "")),
    "2 in reasoning, if any": (
        Regex("2", on=THOUGHTS),
        lambda m: not m.get("reasoning_content", "").strip() or "2" in m["reasoning_content"],
    ),
    "an answer": (Regex("a|2", on="answer"), lambda m: bool({"a", "2"} & {*m.get("content", "")})),
    "calls of 1, if any": (
        JSONSchema(CALL, on=CALLS),
        lambda m: all(call["function"] == 1 for call in m.get("tool_calls", [])),
    ),
    "a function": (constraint(on="answer")(lambda text: "2" not in text), lambda m: "2" not in m.get("content", "2")),
}


def gold(name: str) -> dict[tuple[int, ...], float]:
    (world, law), (_, holds) = enumerated(), RULES[name]
    found = {ids: message_of(world, ids) for ids in law}
    kept = {ids: p for ids, p in law.items() if (message := found[ids]) is not None and holds(message)}
    return {ids: p / sum(kept.values()) for ids, p in kept.items()}


@pytest.mark.parametrize("name", RULES)
def test_drawn_from_g(name: str) -> None:
    world, _ = enumerated()
    rule, expected = RULES[name][0], gold(name)
    guarded = GuardedGenerator(world.pipeline(), rule, budget=Budget(max_attempts=None), batch_size=64)
    (outcome,) = guarded.run(CHAT, **world.settings, num_return_sequences=1500, seed=3)
    drawn = [draw.token_ids for draw in outcome.draws]
    assert {*drawn} <= {*expected}
    assert goodness_of_fit(drawn, expected) > 1e-3


def test_a_rule_without_a_part_judges_everything() -> None:
    """A ban on the answer alone lets the reasoning say what is banned; a plain ban does not."""
    world, law = enumerated()
    assert len(gold("no 1 in the answer")) > len(gold_of_ban(world, law))


def test_negative_control_parts_that_are_taken_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    world, _ = enumerated()
    original = messages.message_parts

    def swapped(tokenizer: Any, message: Mapping[str, Any]) -> Any:
        names = {"answer": "reasoning", "reasoning": "answer"}
        return tuple((names.get(name, name), texts) for name, texts in original(tokenizer, message))

    monkeypatch.setattr(calls, "message_parts", swapped)
    rule, budget = RULES["no 1 in the answer"][0], Budget(max_attempts=None)
    guarded = GuardedGenerator(world.pipeline(), rule, budget=budget, batch_size=64)
    (outcome,) = guarded.run(CHAT, **world.settings, num_return_sequences=300, seed=3)
    assert not {draw.token_ids for draw in outcome.draws} <= {*gold("no 1 in the answer")}


def test_two_rules_on_two_parts_hold_both() -> None:
    world, _ = enumerated()
    rule = RULES["no 1 in the answer"][0] & RULES["2 in reasoning, if any"][0]
    guarded = GuardedGenerator(world.pipeline(), rule, budget=Budget(max_attempts=None), batch_size=64)
    records = guarded(CHAT, **world.settings, num_return_sequences=200, seed=1)
    messages_drawn = [record["generated_text"][-1] for record in records]
    assert not any("1" in message["content"] for message in messages_drawn)
    thoughts = [thought for message in messages_drawn if (thought := message.get("reasoning_content"))]
    assert all("2" in thought for thought in thoughts)


def test_where_answers_are_not_parsed_the_rule_is_refused() -> None:
    rule = Regex("1", on="reasoning")
    plain = table_world(1, letters="a1", max_new_tokens=2)
    with pytest.raises(UsageError, match=r"^on='reasoning' judges messages, .*as in on=Part\(after"):
        GuardedGenerator(plain.pipeline(), rule).run("a")
    with pytest.raises(UsageError, match="judges messages"):
        rule.accepts("1")
    endpoint = GuardedGenerator(Endpoint("http://127.0.0.1:9/v1", model="m"), rule)
    with pytest.raises(UsageError, match="judges messages"):
        endpoint.run("a")
    world, _ = enumerated()
    with pytest.raises(UsageError, match="judges messages"):  # a string is continued, and no message comes of it
        GuardedGenerator(world.pipeline(), rule).run("a", **world.settings)
    with pytest.raises(UsageError, match="judges messages"):
        GuardedGenerator(world.pipeline(), Regex("a")).run("a", constraint_each=[rule], **world.settings)


def test_python_and_yaml_are_one() -> None:
    for rule in (Regex("1", on="reasoning"), Regex("1", on=Part(message="tool_calls", missing="pass"))):
        assert parse(dump(rule)).constraint == rule
    with pytest.raises(Exception, match="message='thoughts' is not one of answer, reasoning, tool_calls"):
        Part(message="thoughts")  # type: ignore[arg-type]


def test_each_call_is_a_part() -> None:
    world, _ = enumerated()
    message = {"content": " ", "reasoning_content": "b", "tool_calls": [{"function": 1}, {"function": 2}]}
    calls = ('{"function": 1}', '{"function": 2}')
    assert messages.message_parts(world.tokenizer, message) == (("reasoning", ("b",)), ("tool_calls", calls))
