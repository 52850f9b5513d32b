"""Explanations of why a constraint rejects a text."""

import json
import pickle

import pydantic
import pytest

from guardwrap import JSONSchema, Length, Regex
from guardwrap.constraints.field_checks import about
from guardwrap.constraints.kinds.text_constraint import Fault, TextConstraint
from guardwrap.errors import ConstraintError
from guardwrap.outcomes import Draw


class Even(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def _even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("odd")
        return number


def draw(text: str) -> Draw:
    return Draw(prompt="", token_ids=(), text=text)


LONG = {"type": "string"}
FAULTS: list[tuple[TextConstraint, str, str]] = [
    (JSONSchema({}), "{", "is not JSON: Expecting property name enclosed in double quotes: line 1 column 2"),
    (JSONSchema({}), '{"a": 1, "a": 2}', "is not JSON: an object has a duplicate key"),
    (JSONSchema({}), "NaN", "is not JSON: NaN is not JSON"),
    (JSONSchema({"required": ["a"]}), "{}", "'a' is a required property"),
    (JSONSchema({"properties": {"a": {"minimum": 3}}}), '{"a": 1}', "$.a: 1 is less than the minimum of 3"),
    (JSONSchema({"items": LONG}), json.dumps([["b" * 900]]), f"$[0]: ['{'b' * 55}... is not of type 'string'"),
    (JSONSchema({"anyOf": [LONG, {"type": "null"}]}), "1", "1 is not valid under any of the given schemas"),
    (JSONSchema({}, whitespace="compact"), "[1,  2]", "has white space that whitespace='compact' does not allow"),
    (JSONSchema({}, where="fenced"), "none", "has 0 fenced blocks"),
    (JSONSchema({}, where="fenced"), "```\n{\n```", "is not JSON: Expecting property name enclosed in double"),
    (JSONSchema(Even), '{"number": 1}', "$.number: Value error, odd"),
    (JSONSchema({"type": "number"}, on="lines"), '1\n"a"\n2', "'a' is not of type 'number'"),
    (Length(max=1, unit="words"), "a b", "has 2 words, not at most 1"),
    (Length(min=2, unit="lines"), "a", "has 1 line, not at least 2"),
    (Length(max=2, unit="words", on="sentences"), "One two. And three more. Four.", "has 3 words, not at most 2"),
    (Length(min=2, max=3), "a", "has 1 character, not at least 2 and at most 3"),
    (JSONSchema({"additionalProperties": False}), '{"a": 1}', "the key 'a' is not allowed"),
    (JSONSchema({"properties": {"b": {"unevaluatedProperties": False}}}), '{"b": {"a": 1}}', "$.b: the key 'a' is not"),
    (Regex("a"), "b", ""),
]


@pytest.mark.parametrize(("constraint", "text", "fault"), FAULTS)
def test_what_is_wrong(constraint: TextConstraint, text: str, fault: str) -> None:
    assert not constraint.accepts(text)
    said = str(constraint.fault_of(draw(text)))
    assert said.startswith(fault) if fault else not said
    assert len(said.splitlines()) <= 1


@pytest.mark.parametrize("constraint", [JSONSchema({"type": "object"}), JSONSchema(Even), Length(max=20)])
def test_nothing_is_wrong_with_what_is_accepted(constraint: TextConstraint) -> None:
    assert constraint.accepts('{"number": 2}')
    assert str(constraint.fault_of(draw('{"number": 2}'))) == ""


def test_a_long_list_of_errors_takes_no_time() -> None:
    constraint = JSONSchema({"items": LONG})
    assert constraint.fault_of(draw(json.dumps(list(range(100_000))))) == Fault("0 is not of type 'string'", "$[0]")


def test_which_field_is_wrong_is_known_in_python_too() -> None:
    with pytest.raises(ConstraintError) as caught:
        JSONSchema({"properties": {"a": {"type": "strng"}}})
    assert caught.value.location == ("schema", "properties", "a", "type")
    assert pickle.loads(pickle.dumps(caught.value)).location == caught.value.location
    with pytest.raises(ConstraintError) as caught:
        Regex("(")
    assert caught.value.location == ("pattern",)
    with pytest.raises(ConstraintError) as caught, about("of"):
        Length()
    assert caught.value.location == ("of",)
    assert ConstraintError("another").location == ()
