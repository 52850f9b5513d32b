"""vLLM's structural tags, in both forms, against a reader of its own."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardwrap.serve.error_responses import ErrorResponse
from guardwrap.serve.parsed_request import parse_request
from guardwrap.serve.request_policy import RequestPolicy
from guardwrap.serve.structured_output import structural_tags
from guardwrap.testing import check_constraint

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
OLD = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=a>", "schema": SCHEMA, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "array"}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}


def new(**flags: bool) -> dict[str, Any]:
    tags = [
        {"begin": tag["begin"], "content": {"type": "json_schema", "json_schema": tag["schema"]}, "end": [tag["end"]]}  # type: ignore[index]
        for tag in OLD["structures"]
    ]
    return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f="], "tags": tags, **flags}}


def expected(text: str, *, at_least_one: bool = False, stop_after_first: bool = False) -> bool:
    """Read tag by tag."""
    tags = 0
    while "<f=" in text:
        text = text[text.index("<f=") :]
        whole = re.match(r"(?s)<f=([ab])>(.*?)</f>(.*)", text)
        if whole is None or (stop_after_first and whole[3]):
            return False
        try:
            value = json.loads(whole[2])
        except ValueError:
            return False
        if whole[1] == "b" and not isinstance(value, list):
            return False
        if whole[1] == "a" and not (isinstance(value, dict) and type(value.get("x")) is int):
            return False
        text, tags = whole[3], tags + 1
    return tags > 0 or not at_least_one


PIECES = ["<f=a>", "<f=b>", "<f=", "<f", "</f>", '{"x": 1}', '{"x": "s"}', "[1]", "hi", " ", "\n", "<f=c>"]
FLAGS: list[dict[str, bool]] = [{}, {"at_least_one": True}, {"stop_after_first": True}]


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=9))
def test_texts_with_tags(flags: dict[str, bool], pieces: list[str]) -> None:
    text = "".join(pieces)
    assert structural_tags("x", new(**flags)).accepts(text) is expected(text, **flags)
    if not flags:
        assert structural_tags("x", json.dumps(OLD)).accepts(text) is expected(text)


def test_verdicts_are_sound() -> None:
    texts = ['hi <f=a>{"x": 1}</f> and <f=b>[]</f>.', "<f=b>{}</f>", "<f=c>", "<f", "", "hi", '<f=a>{"x": 1}']
    check_constraint(structural_tags("x", OLD), texts)
    assert {text for text in texts if structural_tags("x", OLD).accepts(text)} == {texts[0], "<f", "", "hi"}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("{", "is not JSON"),
        (3, "give an object"),
        ({"structures": []}, "at least one"),
        ({**OLD, "triggers": ["<g"]}, "none of the triggers"),
        ({**OLD, "triggers": [""]}, "not empty"),
        ({**OLD, "more": 1}, "unknown field"),
        ({**OLD, "structures": [*OLD["structures"], {"begin": "<f=a>x", "schema": {}, "end": "x"}]}, "like another"),
        ({"format": {"type": "sequence"}}, "only triggered_tags"),
        ({"format": {**new()["format"], "at_least_one": 1}}, "true or false"),
        ({"format": {**new()["format"], "tags": [{"begin": "<f=", "content": {"type": "regex"}}]}}, "json_schema"),
        ({**OLD, "structures": [{"begin": "<f=a>", "schema": {"type": "objekt"}, "end": "</f>"}]}, "objekt"),
        ({**OLD, "structures": [{"begin": "<f=a>", "end": "</f>"}]}, "schema"),
    ],
)  # fmt: skip
def test_mistakes_name_their_field(value: Any, problem: str) -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    with pytest.raises(ErrorResponse, match=problem) as raised:
        parse_request({**chat, "structured_outputs": {"structural_tag": value}}, RequestPolicy(("m",)), chat=True)
    assert raised.value.status == 400


def test_messages_with_parts_have_no_tags_of_their_own() -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "x"}], "response_format": OLD}
    assert parse_request(chat, RequestPolicy(("m",)), chat=True).options["constraints"].constraint.accepts("hi")
    with pytest.raises(ErrorResponse, match="give tools"):
        parse_request(chat, RequestPolicy(("m",), parses="always"), chat=True)
