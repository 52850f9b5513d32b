"""Requests to ``/v1/responses``: what they mean as chats, and what is rejected."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guardwrap.serve import responses_request
from guardwrap.serve.error_responses import ErrorResponse
from guardwrap.serve.parsed_request import parse_request
from guardwrap.serve.request_policy import RequestPolicy
from guardwrap.serve.responses_request import parse_responses, read_items
from tests.serve.fixtures_agents import NAME, TOOL, chat_world, running_server

POLICY = RequestPolicy(models=(NAME,), parses="always")
FLAT: dict[str, Any] = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "c",
    "name": "f",
    "arguments": '{"a": 1}',
    "status": "completed",
}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "2"}
REASONING = {
    "type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}],
    "encrypted_content": None,
}  # fmt: skip
MESSAGE: dict[str, Any] = {
    "type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
    "content": [{"type": "output_text", "text": "ok", "annotations": [], "logprobs": []}],
}  # fmt: skip
BODY: dict[str, Any] = {
    "model": NAME,
    "instructions": "be short",
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}, REASONING, MESSAGE, CALL, OUTPUT],
    "tools": [{**FLAT, "strict": True, "defer_loading": False}],
    "tool_choice": {"type": "function", "name": "f"},
    "parallel_tool_calls": False,
    "text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}},
    "max_output_tokens": 9,
    "temperature": 0.5,
    "top_p": 0.9,
    "reasoning": {"effort": "low", "summary": "auto"},
    "metadata": {"a": "b"},
    "include": ["reasoning.encrypted_content"],
    "store": True,
    "truncation": "disabled",
    "seed": 3,
    "stream": True,
    "stream_options": {"include_obfuscation": False},
}
CHAT: dict[str, Any] = {
    "model": NAME,
    "messages": [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "x"},
        {
            "role": "assistant", "reasoning_content": "hm", "content": "ok",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "2"},
    ],
    "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "parallel_tool_calls": False,
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
    "max_tokens": 9,
    "temperature": 0.5,
    "top_p": 0.9,
    "reasoning_effort": "low",
    "seed": 3,
    "stream": True,
}  # fmt: skip


def parsed_of(**fields: Any) -> Any:
    return parse_responses({"model": NAME, "input": "x", **fields}, POLICY)


def refused(**fields: Any) -> ErrorResponse:
    with pytest.raises(ErrorResponse) as caught:
        parsed_of(**fields)
    assert caught.value.status in (400, 404)
    assert "\n" not in caught.value.message
    return caught.value


def test_a_request_means_what_the_chat_means() -> None:
    response, chat = parse_responses(BODY, POLICY), parse_request(CHAT, POLICY, chat=True)
    assert response.prompts == chat.prompts
    assert response.options == chat.options
    assert (response.stream, response.n, response.stops) == (True, 1, ())
    assert (response.prompt_field, response.length_field) == ("input", "max_output_tokens")
    assert response.echo["tools"] == BODY["tools"]
    assert (response.echo["text"], response.echo["metadata"]) == (BODY["text"], {"a": "b"})


def test_negative_control_a_field_that_is_left_out_is_noticed() -> None:
    chat = parse_request(CHAT, POLICY, chat=True)
    for name in ("instructions", "tool_choice", "parallel_tool_calls", "text", "max_output_tokens", "temperature",
                 "top_p", "reasoning", "seed"):  # fmt: skip
        response = parse_responses({key: value for key, value in BODY.items() if key != name}, POLICY)
        assert (response.prompts, response.options) != (chat.prompts, chat.options), name


def test_a_string_is_one_message_and_defaults_are_those_of_a_chat() -> None:
    response = parsed_of()
    assert response.prompts == [[{"role": "user", "content": "x"}]]
    assert (
        response.options
        == parse_request({"model": NAME, "messages": [{"role": "user", "content": "x"}]}, POLICY, chat=True).options
    )
    assert response.length_field is None
    assert response.echo["text"] == {"format": {"type": "text"}}


@pytest.mark.parametrize(
    ("items", "fields"),
    [
        ([REASONING, MESSAGE, CALL], [{"reasoning_content", "content", "tool_calls"}]),
        ([REASONING, CALL, CALL], [{"reasoning_content", "content", "tool_calls"}]),
        ([REASONING, REASONING, MESSAGE], [{"reasoning_content", "content"}]),
        ([MESSAGE, MESSAGE], [{"content"}, {"content"}]),
        ([CALL, REASONING, CALL], [{"content", "tool_calls"}, {"reasoning_content", "content", "tool_calls"}]),
        ([CALL, OUTPUT, MESSAGE], [{"content", "tool_calls"}, {"content", "tool_call_id"}, {"content"}]),
        ([CALL, MESSAGE, OUTPUT], [{"content", "tool_calls"}, {"content", "tool_call_id"}]),
        ([{"role": "user", "content": "x"}, CALL], [{"content"}, {"content", "tool_calls"}]),
        ([{**REASONING, "content": None}, CALL], [{"content", "tool_calls"}]),
    ],
)
def test_items_of_one_turn_are_one_message(items: list[Any], fields: list[set[str]]) -> None:
    sent = copy.deepcopy(items)
    messages, _ = read_items(items)
    assert [{*message} - {"role"} for message in messages] == fields
    assert items == sent


def test_what_openais_client_adds_to_replies_is_no_part_of_the_prompt() -> None:
    (part,) = MESSAGE["content"]
    parsed = [{**MESSAGE, "content": [{**part, "parsed": {"a": 1}}]}, {**CALL, "parsed_arguments": {"a": 1}}]
    assert read_items(parsed) == read_items([MESSAGE, CALL])


def test_the_text_of_reasoning() -> None:
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "in short"}], "encrypted_content": "x"}
    assert read_items([summary, MESSAGE])[0][0]["reasoning_content"] == "in short"
    assert read_items([REASONING, REASONING])[0][0]["reasoning_content"] == "hm\nhm"
    error = refused(input=[{**REASONING, "content": [], "encrypted_content": "x"}])
    assert error.param == "input.0.encrypted_content"


@pytest.mark.parametrize(
    ("fields", "param", "part"),
    [
        ({"input": None}, "input", "give a string"),
        ({"input": []}, "input", "give a string"),
        ({"input": [3]}, "input.0", "give an item"),
        ({"input": [{"id": "msg_1"}]}, "input.0", "give an item"),
        ({"input": [{"type": "web_search_call"}]}, "input.0", "'web_search_call'"),
        ({"input": [{"type": "mesage", "role": "user"}]}, "input.0", "did you mean 'message'"),
        ({"input": [{"type": ["message"]}]}, "input.0", "not supported"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0", "stores nothing"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role", "user, assistant"),
        ({"input": [{"role": "user"}]}, "input.0", "content"),
        ({"input": [{"role": "user", "content": {}}]}, "input.0.content", "must be a string"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0",
         "does not take images"),
        ({"instructions": "x", "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
         "input.0.content.0", "does not take images"),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": 1}]}]}, "input.0.content.0.text", ""),
        ({"input": [{"role": "user", "content": "x", "temprature": 1}]}, "input.0.temprature", "temprature"),
        ({"input": [{**CALL, "call_id": None}]}, "input.0", "call_id"),
        ({"input": [{**CALL, "arguments": {"a": 1}}]}, "input.0.arguments", "string"),
        ({"input": [{**CALL, "caller": {"type": "program", "caller_id": "c"}}]}, "input.0.caller", "no programs"),
        ({"input": [{**OUTPUT, "async": True}]}, "input.0.async", "no programs"),
        ({"input": [{**CALL, "namespace": "n"}]}, "input.0.namespace", "namespace"),
        ({"input": [{**OUTPUT, "output": None}]}, "input.0", "output"),
        ({"input": [{**OUTPUT, "output": [{"type": "input_file", "file_id": "x"}]}]}, "input.0.output.0.type",
         "input_file"),
        ({"instructions": [{"role": "system", "content": "x"}]}, "instructions", "string"),
        ({"tools": {}}, "tools", "list"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "'web_search'"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools.0.type", "'mcp'"),
        ({"tools": [TOOL]}, "tools.0.function", "'function'"),
        ({"tools": [{**FLAT, "defer_loading": True}]}, "tools.0.defer_loading", "must be False"),
        ({"tools": [{"type": "function"}]}, "tools.0", "name"),
        ({"tools": [{**FLAT, "parameters": {"type": "x"}}]}, "tools.0.parameters", "of f"),
        ({"tools": [FLAT], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice", "'g'"),
        ({"tools": [FLAT], "tool_choice": {"type": "web_search_preview"}}, "tool_choice", "'web_search_preview'"),
        ({"tools": [FLAT], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.tools",
         "at least 1"),
        ({"tool_choice": "required"}, "tool_choice", "requires tools"),
        ({"text": "x"}, "text", "a mapping"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "not supported"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "json_schema"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format", "a field 'schema'"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": 3}}}, "text.format.schema", "JSON Schema"),
        ({"text": {"format": 3}}, "text.format", "a mapping"),
        ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
        ({"max_output_tokens": 10**6}, "max_output_tokens", "at most"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort", "minimal"),
        ({"reasoning": {"summary": "concise"}}, "reasoning.summary", "as a whole"),
        ({"reasoning": {"effrt": "low"}}, "reasoning.effrt", "did you mean 'effort'"),
        ({"include": ["message.output_text.logprobs"]}, "include.0", "logprobs"),
        ({"include": "x"}, "include", "list"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "send the earlier items in input"),
        ({"conversation": {"id": "x"}}, "conversation", "send the earlier items in input"),
        ({"background": True}, "background", "stores nothing"),
        ({"truncation": "auto"}, "truncation", "shorten"),
        ({"prompt": {"id": "x"}}, "prompt", "instructions"),
        ({"access_programs": {"cyber": "daybreak_blue"}}, "access_programs", "has none"),
        ({"image": {"context_compression": "enabled"}}, "image", "send the image"),
        ({"n": 2}, "n", "one text"),
        ({"top_logprobs": 2}, "top_logprobs", "whole texts"),
        ({"messages": []}, "messages", "give input"),
        ({"max_tokens": 3}, "max_tokens", "give max_output_tokens"),
        ({"response_format": {"type": "text"}}, "response_format", "give text.format"),
        ({"max_output_token": 3}, "max_output_token", "did you mean 'max_output_tokens'"),
        ({"model": "gpt-5"}, "model", "no model"),
        ({"stream_options": {"include_obfuscation": True}, "stream": True}, "stream_options.include_obfuscation", ""),
        ({"guardwrap": {"constraint": "catalogue:nothing"}}, "guardwrap.constraint", "no constraint"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_rejected_names_the_field_that_was_sent(fields: dict[str, Any], param: str, part: str) -> None:
    error = refused(**fields)
    assert error.param == param
    assert part in error.message
    assert error.message.startswith((param, repr(param)))


def test_negative_control_without_translation_errors_name_fields_of_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_request, "_CHAT_PLACES", {})
    assert refused(max_output_tokens=0).param == "max_tokens"


def test_values_that_change_nothing() -> None:
    nothing: dict[str, Any] = {
        "store": False, "previous_response_id": None, "background": False, "user": "me", "metadata": {"a": "b"},
        "truncation": "disabled", "service_tier": "auto", "top_logprobs": 0, "include": [], "tools": [], "text": {},
        "reasoning": {"effort": None}, "prompt_cache_key": "x", "prompt_cache_retention": "24h", "n": 1,
        "parallel_tool_calls": True, "instructions": "", "tool_choice": "auto", "frequency_penalty": 0,
        "prompt_cache_options": {"ttl": "30m"}, "max_tool_calls": 3, "background_options": {}, "access_programs": {},
        "image": {"context_compression": "auto"},
    }  # fmt: skip
    assert parsed_of(**nothing).options == parsed_of().options
    assert parsed_of(**nothing).prompts == parsed_of().prompts
    assert parsed_of(store=True, service_tier="flex", reasoning={"summary": "detailed"}).options == parsed_of().options
    assert parsed_of(include=["web_search_call.results"]).options == parsed_of().options


def test_every_field_of_openais_client_is_known() -> None:
    params = openai.types.responses.response_create_params.ResponseCreateParamsBase
    assert {*params.__annotations__, "stream"} - {*responses_request._KNOWN} == set()


def test_marks_and_names_of_items() -> None:
    mark = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    told = [{"role": "user", "content": [{"type": "input_text", "text": "x", **mark}]},
            {**CALL, "caller": {"type": "direct"}, "async": False}, {**OUTPUT, "name": "f"}]  # fmt: skip
    (chat,) = parsed_of(input=told).prompts
    assert chat[0] == {"role": "user", "content": "x"}
    assert chat[-1]["name"] == "f"
    (empty,) = parsed_of(input=[{"role": "user", "content": []}]).prompts
    assert empty == [{"role": "user", "content": ""}]


def test_replayed_arguments_that_are_no_json_do_not_end_the_conversation() -> None:
    (chat,) = parsed_of(instructions="y", input=[OUTPUT, {**CALL, "arguments": "{"}]).prompts
    assert chat[-1]["tool_calls"][0]["function"]["arguments"] == {"invalid_arguments": "{"}


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "x", "message", "function", "function_call", "reasoning", "json_schema", "{", "required"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["type", "role", "content", "name", "text", "id", "format", "x"]), inner),
    max_leaves=8,
)  # fmt: skip


def places_in(value: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in a body."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield (key,)
        yield from ((key, *path) for path in places_in(inner))


@st.composite
def mutated(draw: Any) -> dict[str, Any]:
    """A body in which up to three values are others."""
    body: Any = copy.deepcopy({**BODY, "stream": False, "stream_options": None})
    for _ in range(draw(st.integers(1, 3))):
        *parents, last = draw(st.sampled_from([*places_in(body)]))
        inside = body
        for key in parents:
            inside = inside[key]
        inside[last] = draw(VALUES)
    return dict(body)


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(mutated())
def test_hostile_bodies_are_parsed_or_rejected(body: dict[str, Any]) -> None:
    error: ErrorResponse | None = None
    try:
        parse_responses(body, POLICY)
    except ErrorResponse as raised:
        error = raised
    if error is not None:
        assert 400 <= error.status < 500
        assert not (error.param or "").startswith(("messages", "response_format", "max_tokens", "reasoning_effort"))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server() as address:
        yield address


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=mutated())
def test_hostile_bodies_are_never_an_error_of_the_server(url: str, body: dict[str, Any]) -> None:
    reply = httpx.post(f"{url}/responses", json=body, timeout=60)
    assert reply.status_code == 200 or 400 <= reply.status_code < 500, reply.text


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"x"', b'{"input": NaN}', b"\xff", b'{"input": "\\ud800"}',
                                     b'{"input": ' + b"[" * 90_000, b"[" * 200 + b"]" * 200])  # fmt: skip
def test_what_is_no_request(url: str, content: bytes) -> None:
    reply = httpx.post(f"{url}/responses", content=content, headers={"content-type": "application/json"}, timeout=60)
    assert reply.status_code == 400
    assert json.loads(reply.text)["error"]["type"] == "invalid_request_error"


def test_a_prompt_and_a_length_beyond_the_context_name_the_fields_that_were_sent() -> None:
    world = chat_world()
    world.tokenizer.chat_template = str(world.tokenizer.chat_template).replace("[:50]", "")  # the whole prompt
    body = {"model": NAME, "input": "x" * 170, "max_output_tokens": 12}
    chat = {"model": NAME, "messages": [{"role": "user", "content": "x" * 170}], "max_completion_tokens": 12}
    with running_server(world) as url:
        error = httpx.post(f"{url}/responses", json=body, timeout=60).json()["error"]
        assert (error["param"], error["code"]) == ("max_output_tokens", "context_length_exceeded")
        error = httpx.post(f"{url}/chat/completions", json=chat, timeout=60).json()["error"]
        assert error["param"] == "max_completion_tokens"
