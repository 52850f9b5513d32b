"""Examples of messages in constraint files."""

import json

import jsonschema
import pytest
import yaml

from guardwrap.constraints import dump, parse
from guardwrap.constraints.files.constraint_file import json_schema
from guardwrap.constraints.files.file_fields import read_message
from guardwrap.errors import SpecError
from guardwrap.models.parsed_message import answer_message, written_message
from guardwrap.support.validation import Invalid

HEAD = "guardwrap: 1\nconstraint: {kind: keyword, words: a}\nexamples:\n"
CALLS = "{content: a, reasoning: b, tool_calls: [{name: f, arguments: {x: [1]}}]}"


def test_there_and_back():
    text = HEAD + f"  accepts: [one, {{message: {CALLS}}}, two]\n  rejects: [{{message: {{content: b}}}}]\n"
    file = parse(text)
    assert file.accepts == ("one", "two")
    assert file.accepted_messages == (yaml.safe_load(CALLS),)
    assert (file.rejects, file.rejected_messages) == ((), ({"content": "b"},))
    jsonschema.validate(yaml.safe_load(text), json_schema())
    jsonschema.validate(yaml.safe_load(dump(file)), json_schema())
    again = parse(dump(file))
    assert (again.accepts, again.accepted_messages) == (file.accepts, file.accepted_messages)
    assert (again.rejects, again.rejected_messages) == (file.rejects, file.rejected_messages)


@pytest.mark.parametrize(
    ("example", "says"),
    [
        ("{message: a}", "4: examples.accepts.0.message: must be a mapping of fields, not 'a'"),
        ("{message: {contents: a}}", "unknown field 'contents' (did you mean 'content'?)"),
        ("{message: {content: 1}}", "examples.accepts.0.message.content: must be a string, not int"),
        ("{message: {tool_calls: [{arguments: {}}]}}", "tool_calls.0: needs a field 'name'"),
        ("{massage: {content: a}}", "must be a string, not dict"),
        ("{message: {content: a, role: user}}", "message.role: "),
        ("{message: {tool_calls: [{function: {arguments: '{}'}}]}}", "function: needs a field 'name'"),
        ("{message: {tool_calls: [{function: {name: f, arguments: [1]}}]}}", "arguments: must be a mapping"),
    ],
)
def test_mistakes(example, says):
    text = HEAD + f"  accepts: [{example}]\n"
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert says in str(caught.value)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), json_schema())


@pytest.mark.parametrize("arguments", ["{x: 1", "[1]", "{}}"])
def test_arguments_that_are_no_object(arguments):
    with pytest.raises(Invalid, match="arguments: must be a mapping"):
        read_message({"tool_calls": [{"function": {"name": "f", "arguments": arguments}}]})


def test_two_reasonings_that_differ():
    assert read_message({"reasoning": "a", "reasoning_content": "a"}) == {"reasoning": "a"}
    with pytest.raises(Invalid, match="'reasoning' and 'reasoning_content', which differ; leave one out"):
        read_message({"reasoning": "a", "reasoning_content": "b"})


def test_a_message_of_an_outcome_is_an_example_as_it_is():
    """There and back: a message that a user writes, and the same as ``Outcome.messages`` returns it."""
    calls = [{"name": "f", "arguments": {"x": [1, "\u00e9"]}}, {"name": "g"}]
    for written in (
        {"content": "a", "reasoning": "b", "tool_calls": calls},
        {"tool_calls": calls},
        {"content": "a"},
        {"content": "a", "reasoning": "b"},
    ):
        message = answer_message(written_message(written))
        assert read_message(message) == written
        assert read_message({"role": "assistant", **message}) == written
        text = f"{HEAD}  accepts: [{json.dumps({'message': message})}]\n"
        assert parse(text).accepted_messages == (written,)
        jsonschema.validate(yaml.safe_load(text), json_schema())


def test_a_message_alone():
    assert read_message({"content": "a", "reasoning": ""}) == {"content": "a"}
    with pytest.raises(Invalid, match="content: must be a string"):
        read_message({"content": 1})
