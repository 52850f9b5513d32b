"""Rules on a part of a message: its answer, its reasoning, its tool calls. Drawn from g, and never judged elsewhere."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from guardwrap import Budget, Endpoint, GuardedGenerator, JSONSchema, Masked, Part, Regex, constraint, qrs
from guardwrap.constraints import dump, parse
from guardwrap.constraints.verdicts import MessageMonitor
from guardwrap.errors import UsageError
from guardwrap.models import regions
from guardwrap.models.parsed_message import message_parts
from guardwrap.testing import World, goodness_of_fit, table_world
from tests import fixtures_models
from tests.models.test_parsed_message import gold as gold_of_ban
from tests.models.test_parsed_message import parts_of, region_of, whole_message

CHAT = [{"role": "user", "content": "a"}]


@cache
def enumerated() -> tuple[World, dict[tuple[int, ...], float]]:
    world = fixtures_models.with_template(table_world(1, letters="a12()[]", max_new_tokens=4))
    return world, world.law()


def message_of(world: World, ids: tuple[int, ...]) -> Mapping[str, Any] | None:
    """Return the message that an answer is, or None where there is none, or no answer in it."""
    raw = world.tokenizer.decode(ids)
    message = whole_message(world, raw)
    if message is None or (ids[-1] != world.tokenizer.eos_token_id and region_of(raw)):
        return None
    return message if message["content"] or message.get("tool_calls") else None


THOUGHTS, CALLS = Part(message="reasoning", missing="pass"), Part(message="tool_calls", missing="pass")
CALLS_OF_TWO = [f'{{"type": "function", "function": {n}}}' for n in (1, 2)]
CALL = {"properties": {"function": {"const": 1}}, "required": ["function"]}
RULES: dict[str, tuple[Any, Any]] = {
    "no 1 in the answer": (~Regex("1", on="answer"), lambda m: m["content"] and "1" not in m["content"]),
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


WAYS: dict[str, dict[str, Any]] = {
    "rejection": {},
    "mask and qrs": {"proposal": Masked(unseen=0.0), "sampler": qrs(1.0)},
}


def gold(name: str) -> dict[tuple[int, ...], float]:
    (world, law), (_, holds) = enumerated(), RULES[name]
    found = {ids: message_of(world, ids) for ids in law}
    kept = {ids: p for ids, p in law.items() if (message := found[ids]) is not None and holds(message)}
    return {ids: p / sum(kept.values()) for ids, p in kept.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("way", WAYS)
def test_drawn_from_g(name: str, way: str) -> None:
    world, _ = enumerated()
    rule, expected = RULES[name][0], gold(name)
    guarded = GuardedGenerator(world.pipeline(), rule, budget=Budget(max_attempts=None), batch_size=64, **WAYS[way])
    (outcome,) = guarded.run(CHAT, **world.settings, num_return_sequences=1500, seed=3)
    drawn = [draw.token_ids for draw in outcome.draws]
    assert {*drawn} <= {*expected}
    assert goodness_of_fit(drawn, expected) > 1e-3


def test_a_rule_without_a_part_judges_everything() -> None:
    """A ban on the answer alone lets the reasoning say what is banned; a plain ban does not."""
    world, law = enumerated()
    assert len(gold("no 1 in the answer")) > len(gold_of_ban(world, law))


def leaves_out_or_mixes(monkeypatch: pytest.MonkeyPatch, names: Mapping[str, str]) -> set[tuple[int, ...]]:
    """Return what is drawn under a rule on the answer if parts have other names."""
    world, _ = enumerated()
    original = regions.MessageFields.part_of
    monkeypatch.setattr(regions.MessageFields, "part_of", staticmethod(lambda name: names.get(str(original(name)))))
    rule, budget = RULES["no 1 in the answer"][0], Budget(max_attempts=None)
    guarded = GuardedGenerator(world.pipeline(), rule, budget=budget, batch_size=64)
    (outcome,) = guarded.run(CHAT, **world.settings, num_return_sequences=300, seed=3)
    return {draw.token_ids for draw in outcome.draws}


@pytest.mark.slow
def test_negative_control_parts_that_are_taken_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = leaves_out_or_mixes(monkeypatch, {"answer": "reasoning", "reasoning": "answer"})
    assert not drawn <= {*gold("no 1 in the answer")}


@pytest.mark.slow
def test_negative_control_a_verdict_on_the_answer_while_the_model_thinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A monitor that reads reasoning as if it were the answer ends attempts that would have passed."""
    world = fixtures_models.with_template(table_world(4, letters="a1()[]", max_new_tokens=4))
    law = world.law()
    kept = {
        ids: p for ids, p in law.items() if (m := message_of(world, ids)) and m["content"] and "1" not in m["content"]
    }
    expected = sum(p for ids, p in kept.items() if "(1" in world.tokenizer.decode(ids)) / sum(kept.values())
    rule = RULES["no 1 in the answer"][0]
    guarded = GuardedGenerator(world.pipeline(), rule, budget=Budget(max_attempts=None), batch_size=64)

    def share() -> float:
        (outcome,) = guarded.run(CHAT, **world.settings, num_return_sequences=2000, seed=3)
        texts = [world.tokenizer.decode(draw.token_ids) for draw in outcome.draws]
        return sum("(1" in text for text in texts) / len(texts)

    assert expected > 0.01
    assert abs(share() - expected) < 4 * (expected / 2000) ** 0.5
    original = MessageMonitor.after
    monkeypatch.setattr(
        MessageMonitor, "after", lambda self, events: original(self, [e._replace(part="answer") for e in events])
    )
    assert share() == 0


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
    with pytest.raises(UsageError, match=r"^on='reasoning' judges the messages .*write on=Part\(after"):
        GuardedGenerator(plain.pipeline(), rule).run("a")
    with pytest.raises(UsageError, match="judges the messages"):
        rule.accepts("1")
    endpoint = GuardedGenerator(Endpoint("http://127.0.0.1:9/v1", model="m"), rule)
    with pytest.raises(UsageError, match="only the answer to a chat has parts"):
        endpoint.run("a")
    world, _ = enumerated()
    with pytest.raises(UsageError, match="judges the messages"):  # a string is continued, and no message comes of it
        GuardedGenerator(world.pipeline(), rule).run("a", **world.settings)
    with pytest.raises(UsageError, match="judges the messages"):
        GuardedGenerator(world.pipeline(), Regex("a")).run("a", constraint_each=[rule], **world.settings)


def test_python_and_yaml_are_one() -> None:
    for rule in (Regex("1", on="reasoning"), Regex("1", on=Part(message="tool_calls", missing="pass"))):
        assert parse(dump(rule)).constraint == rule
    with pytest.raises(Exception, match="message='thoughts' is not one of answer, reasoning, tool_calls"):
        Part(message="thoughts")  # type: ignore[arg-type]


def test_each_call_is_a_part_and_pieces_of_an_answer_are_joined() -> None:
    world, _ = enumerated()
    start, _ = regions.MessageRegions.begin(world.tokenizer, "a")
    expected = (("answer", ("a\n2",)), ("reasoning", ("b",)), ("tool_calls", tuple(CALLS_OF_TWO)))
    state, _ = start.read("a(b)[1]2[2]<end>")
    assert message_parts(state.message() or {}) == expected
    assert start.read("[a]")[0].message() is None


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_however_an_answer_is_cut_into_pieces_it_is_the_same_message(size: int) -> None:
    world, _ = enumerated()
    chance = random.Random(0)
    for _ in range(300):
        answer = "".join(chance.choice("a12 ()[]") for _ in range(12))
        start, _ = regions.MessageRegions.begin(world.tokenizer, "a")
        state = start
        for place in range(0, len(answer), size):
            state, _ = state.read(answer[place : place + size])
            state.message()  # asking changes nothing
        message = state.message()
        assert message == start.read(answer)[0].message()
        if message is not None:
            assert {part: [*texts] for part, texts in message_parts(message)} == expected_parts(answer)


def expected_parts(answer: str) -> dict[str, list[str]]:
    pieces = parts_of(answer)
    said = {
        "answer": ["\n".join(filter(None, map(str.strip, pieces[""])))],
        "reasoning": ["\n".join(filter(None, map(str.strip, pieces["("])))],
        "tool_calls": [f'{{"type": "function", "function": {json.loads(call)}}}' for call in pieces["["]],
    }
    return {part: texts for part, texts in said.items() if any(texts)}


PREFILLED = [*CHAT, {"role": "assistant", "content": "1"}]


@pytest.mark.parametrize("on", ["message", "full"])
def test_what_a_chat_has_begun_is_judged_with_its_continuation(on: Any) -> None:
    world = table_world(1, letters="a1", max_new_tokens=4)
    world.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    begun = "1" if on == "message" else "a1"
    guarded = GuardedGenerator(world.pipeline(), Regex("1a", on=on) & ~Regex("11", on=on), seed=1)
    (outcome,) = guarded.run(PREFILLED, **world.settings, num_return_sequences=100)
    assert {text[:1] for text in outcome.texts} == {"a"}
    assert not [text for text in outcome.texts if "11" in begun + text]
    (impossible,) = GuardedGenerator(world.pipeline(), ~Regex("1", on=on)).run(PREFILLED, **world.settings)
    assert (impossible.report.ended, impossible.report.usage.attempts) == ("impossible", 1)


def test_a_rule_on_the_answer_judges_what_the_chat_has_begun_too() -> None:
    world, _ = enumerated()
    guarded = GuardedGenerator(world.pipeline(), Regex("^1a", on="answer"), batch_size=64)
    (outcome,) = guarded.run(PREFILLED, **world.settings, num_return_sequences=20, seed=0)
    assert all(text.startswith("a") for text in outcome.texts)
    assert all(dict(draw.parts or ())["answer"][0].startswith("1a") for draw in outcome.draws)


def test_values_are_those_of_the_answer() -> None:
    world, _ = enumerated()
    guarded = GuardedGenerator(world.pipeline(), JSONSchema({"type": "integer"}, on="answer"), batch_size=64)
    (outcome,) = guarded.run(CHAT, **world.settings, num_return_sequences=50, seed=0)
    assert list(outcome.values) == [int(dict(draw.parts or ())["answer"][0]) for draw in outcome.draws]
    assert any(dict(draw.parts or ()).get("reasoning") for draw in outcome.draws)
    assert [message["content"] for message in outcome.messages if message] == [str(value) for value in outcome.values]
