"""Examples of messages in constraint files."""

import jsonschema
import pytest
import yaml

from guardwrap.constraints import dump, parse
from guardwrap.constraints.files.constraint_file import json_schema
from guardwrap.constraints.files.message_example import read_message
from guardwrap.documents.validation import Invalid
from guardwrap.errors import SpecError

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
    ],
)
def test_mistakes(example, says):
    text = HEAD + f"  accepts: [{example}]\n"
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert says in str(caught.value)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), json_schema())


def test_a_message_alone():
    assert read_message({"content": "a", "reasoning": ""}) == {"content": "a"}
    with pytest.raises(Invalid, match="content: must be a string"):
        read_message({"content": 1})
