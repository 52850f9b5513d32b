"""Messages that users write down are judged like those of a model."""

import json

import pytest

from guardwrap import JSONSchema, Regex, ToolCalls
from guardwrap.constraints.checking import run_check
from guardwrap.models.parsed_message import NO_ANSWER, written_message

MESSAGE = {"content": "{}", "reasoning": "think", "tool_calls": [{"name": "f", "arguments": {"x": 1}}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "integer"}}}}}


def test_each_rule_judges_its_part():
    draw = written_message(MESSAGE)
    assert draw.text == 'think\n{}\n[{"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]'
    assert draw.fault is None
    assert draw.message is not None
    assert json.loads(draw.message)["content"] == "{}"
    for rule, accepted in (
        (JSONSchema({"type": "object"}, on="answer"), True),
        (JSONSchema({"type": "object"}), False),
        (Regex("^think$", on="reasoning"), True),
        (Regex('"x"', on="tool_calls"), True),
        (Regex("think", on="answer"), False),
        (ToolCalls([TOOL]), True),
    ):
        assert run_check(rule, [draw]) == [accepted], rule.title


def test_a_call_with_wrong_arguments_is_rejected():
    draw = written_message({"tool_calls": [{"name": "f", "arguments": {"x": "a"}}]})
    assert run_check(ToolCalls([TOOL]), [draw]) == [False]


@pytest.mark.parametrize("message", [{}, {"content": " "}, {"reasoning": "think"}])
def test_a_message_without_an_answer_has_a_fault(message):
    assert written_message(message).fault == NO_ANSWER


def test_a_missing_part_is_missing():
    assert written_message({"content": "a"}).parts == (("answer", ("a",)),)
