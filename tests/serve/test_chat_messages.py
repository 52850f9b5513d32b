"""Chats with tools and reasoning over HTTP: what OpenAI's client sends, gets, and sends again."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from guardwrap.constraints.json.tool_calls import ToolCalls
from guardwrap.serve.error_responses import ErrorResponse
from guardwrap.serve.parsed_request import parse_request
from guardwrap.serve.request_policy import RequestPolicy
from tests.serve.fixtures_agents import NAME, TOOL, agent_world, running_server

ASKED: list[Any] = [{"role": "user", "content": "x"}]
POLICY = RequestPolicy(models=(NAME,), parses="always")


def options_of(**fields: Any) -> dict[str, Any]:
    """Return the options of a chat with these fields."""
    return parse_request({"model": NAME, "messages": ASKED, **fields}, POLICY, chat=True).options


def chat_of(messages: list[Any], *, images: bool = False) -> Any:
    """Return the chat that the model is shown."""
    policy = RequestPolicy(models=(NAME,), images=images)
    return parse_request({"model": NAME, "messages": messages}, policy, chat=True).prompts[0]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with running_server() as url, openai.OpenAI(base_url=url, api_key="any", max_retries=0, timeout=60) as made:
        yield made


def answer(client: openai.OpenAI, **fields: Any) -> Any:
    fields = {"messages": ASKED, "max_tokens": 9, **fields}
    return client.chat.completions.create(model=NAME, **fields)


def test_required_and_automatic_calls_are_valid_and_counted(client: openai.OpenAI) -> None:
    kinds = set()
    for choice, numbers in {"required": {1, 2, 3}, "auto": {0, 1, 2, 3}, "none": {0}}.items():
        reply = answer(client, tools=[TOOL], tool_choice=choice, n=8, seed=1)
        for given in reply.choices:
            calls = given.message.tool_calls or []
            assert len(calls) in numbers
            assert given.finish_reason == "tool_calls" if calls else given.finish_reason in ("stop", "length")
            assert all(call.function.name == "f" and json.loads(call.function.arguments) == {"a": 1} for call in calls)
            assert all(call.id.startswith("call_") for call in calls)
            assert given.message.content is not None or calls
            kinds |= {(choice, bool(calls)), ("reasoning", bool(getattr(given.message, "reasoning_content", None)))}
    assert kinds == {(c, b) for c, b in [("required", True), ("auto", True), ("auto", False), ("none", False)]} | {
        ("reasoning", True), ("reasoning", False)
    }  # fmt: skip


def test_nothing_is_called_without_tools(client: openai.OpenAI) -> None:
    """The same seeds with tools give calls, so the model would make some."""
    seeds = range(4)
    offered = [answer(client, tools=[TOOL], n=8, seed=seed) for seed in seeds]
    assert any(choice.message.tool_calls for reply in offered for choice in reply.choices)
    plain = [answer(client, n=8, seed=seed) for seed in seeds]
    assert not any(choice.message.tool_calls for reply in plain for choice in reply.choices)


def test_one_call_if_calls_are_not_parallel_and_the_tool_that_is_named(client: openai.OpenAI) -> None:
    other = {"type": "function", "function": {**TOOL["function"], "name": "g"}}  # type: ignore[dict-item]
    named = {"type": "function", "function": {"name": "f"}}
    reply = answer(client, tools=[TOOL, other], tool_choice=named, parallel_tool_calls=False, n=8, seed=1)
    assert all([call.function.name for call in given.message.tool_calls] == ["f"] for given in reply.choices)


def allowed(mode: str, *names: str) -> Any:
    """Return the choice of some of the tools."""
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.fixture(scope="module")
def agent() -> Iterator[openai.OpenAI]:
    with running_server(agent_world()) as url, openai.OpenAI(base_url=url, api_key="any", max_retries=0) as made:
        yield made


def called(client: openai.OpenAI, choice: Any) -> list[list[str]]:
    """Return the names that some messages call, if two tools are offered."""
    other = {"type": "function", "function": {**TOOL["function"], "name": "final_result"}}  # type: ignore[dict-item]
    replies = [answer(client, tools=[TOOL, other], tool_choice=choice, n=8, seed=seed) for seed in range(4)]
    messages = [given.message for reply in replies for given in reply.choices]
    return [[call.function.name for call in message.tool_calls or []] for message in messages]


def test_only_allowed_tools_are_called_and_one_at_least_if_that_is_required(agent: openai.OpenAI) -> None:
    for mode in ("required", "auto"):
        names = called(agent, allowed(mode, "f"))
        assert {name for some in names for name in some} == {"f"}
        assert all(names) == (mode == "required")
    assert {name for some in called(agent, allowed("required", "final_result")) for name in some} == {"final_result"}
    assert {name for some in called(agent, "auto") for name in some} == {"f", "final_result"}, "it calls both if it may"


def test_a_stream_of_a_required_call(client: openai.OpenAI) -> None:
    for seed in range(6):
        chunks = answer(client, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, stream=True, seed=seed)
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
        assert [call.function.name for call in calls if call.function.name] == ["f"]
        assert json.loads("".join(call.function.arguments or "" for call in calls)) == {"a": 1}


def test_a_stream_has_the_fields_of_the_whole_reply(client: openai.OpenAI) -> None:
    for seed in range(6):
        fields: dict[str, Any] = {"tools": [TOOL], "seed": seed}
        whole = answer(client, **fields).choices[0]
        said: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
        for chunk in answer(client, stream=True, **fields):
            delta = chunk.choices[0].delta
            said["content"] += delta.content or ""
            said["reasoning_content"] += getattr(delta, "reasoning_content", None) or ""
            said["tool_calls"] += [call.function for call in delta.tool_calls or []]
            reason = chunk.choices[0].finish_reason
        assert said["content"] == (whole.message.content or "")
        assert said["reasoning_content"] == (getattr(whole.message, "reasoning_content", None) or "")
        calls = [(call.name, call.arguments) for call in said["tool_calls"]]
        assert calls == [(call.function.name, call.function.arguments) for call in whole.message.tool_calls or []]
        assert reason == whole.finish_reason


def test_a_reply_and_the_results_of_its_calls_can_be_sent_again(client: openai.OpenAI) -> None:
    message = answer(client, tools=[TOOL], tool_choice="required", seed=1).choices[0].message
    replayed = message.model_dump()
    assert replayed["tool_calls"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "2"} for call in replayed["tool_calls"]]
    assert answer(client, messages=[*ASKED, replayed, *results], tools=[TOOL], seed=2).choices


def test_what_is_banned_is_in_no_field(client: openai.OpenAI) -> None:
    rule = {"kind": "not", "of": {"kind": "regex", "pattern": "bad"}}
    for seed in range(4):
        reply = answer(client, tools=[TOOL], n=8, seed=seed, extra_body={"guardwrap": {"constraint": rule}})
        for message in (given.message for given in reply.choices):
            for call in message.tool_calls or []:
                call.id = ""  # which is random, and may spell anything
            assert "bad" not in message.model_dump_json()


@pytest.mark.slow
def test_structured_output_is_of_the_answer_after_the_reasoning(client: openai.OpenAI) -> None:
    extra = {"guided_regex": '[{}":a1]+', "max_tokens": 12}
    plain = [given for seed in range(8) for given in answer(client, n=8, seed=seed, extra_body=extra).choices]
    assert {*"".join(given.message.content for given in plain)} <= {*'{}":a1'}
    assert any(getattr(given.message, "reasoning_content", None) for given in plain)
    reply = answer(client, n=8, seed=1, extra_body=extra, tools=[TOOL])
    assert any(given.message.tool_calls for given in reply.choices)
    assert {*"".join(given.message.content or "" for given in reply.choices)} <= {*'{}":a1'}


def test_replayed_messages_are_read_as_templates_expect_them() -> None:
    call = {"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": '{"a": 1}'}}
    read = chat_of([
        {"role": "developer", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm", "audio": None},
        {"role": "tool", "tool_call_id": "c", "content": "2", "name": "f"},
        {"role": "assistant", "content": None, "refusal": "no", "parsed": {"a": 1}},
    ])  # fmt: skip
    function = {"name": "f", "arguments": {"a": 1}}
    assert read == [
        {"role": "system", "content": "x"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": function}],
         "reasoning_content": "hm"},
        {"role": "tool", "content": "2", "name": "f", "tool_call_id": "c"},
        {"role": "assistant", "content": "no"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        (None, {}),
        ({}, {}),
        ("{}", {}),
        ("{", {"invalid_arguments": "{"}),
        ('{"a": "\\ud83d"}', {"invalid_arguments": '{"a": "\\ud83d"}'}),
        ("[" * 10_000, {"invalid_arguments": "[" * 10_000}),
        ("[1]", {"invalid_arguments": [1]}),
        ("5", {"invalid_arguments": 5}),
        ("null", {"invalid_arguments": None}),
    ],
    ids=lambda value: str(value)[:20],
)
def test_replayed_arguments_are_an_object_whatever_the_model_wrote(sent: Any, read: Any) -> None:
    (message,) = chat_of([{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": sent}}]}])
    assert message["tool_calls"][0]["function"]["arguments"] == read


def test_malformed_arguments_do_not_end_the_conversation(client: openai.OpenAI) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": '}}
    asked = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]},
             {"role": "tool", "tool_call_id": "c", "content": "no JSON"}]  # fmt: skip
    assert answer(client, messages=asked, max_tokens=3).choices[0].finish_reason


def test_empty_contents_and_marks_for_caches() -> None:
    mark = {"cache_control": {"type": "ephemeral"}, "prompt_cache_breakpoint": {"mode": "explicit"}}
    parts = [{"type": "text", "text": "x", **mark}]
    assert chat_of([{"role": "user", "content": parts, **mark}]) == [{"role": "user", "content": "x"}]
    for role in ("user", "system", "assistant", "tool"):
        (message,) = chat_of([{"role": role, "content": []}])
        assert message == {"role": role, "content": ""}
    assert chat_of([{"role": "user", "content": []}], images=True) == [{"role": "user", "content": []}]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "content": None}, "messages.0.content"),
        ({"role": "user", "content": "x", "tool_calls": [{}]}, "messages.0.tool_calls.0"),
        ({"role": "user", "content": "x", "tool_calls": [{"function": {"name": "f"}}]}, "messages.0.tool_calls"),
        ({"role": "assistant", "tool_calls": "f"}, "messages.0.tool_calls"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}, "messages.0.tool_calls.0.function.name"),
        ({"role": "tool", "content": "2", "tool_call_id": 1}, "messages.0.tool_call_id"),
        ({"role": "assistant", "content": "x", "function_call": {}}, "messages.0.function_call"),
    ],
)  # fmt: skip
def test_messages_that_are_refused(message: Any, param: str) -> None:
    with pytest.raises(ErrorResponse) as caught:
        chat_of([message])
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools.0"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0"),
        ({"tools": [TOOL, {"name": "g", "parameters": {"type": "nothing"}}]}, "tools.1.parameters"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": allowed("required", "g")}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": allowed("required")}, "tool_choice.allowed_tools.tools"),
        ({"tools": [TOOL], "tool_choice": allowed("none", "f")}, "tool_choice.allowed_tools.mode"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
        ({"tools": [TOOL], "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"tools": [{**TOOL, "x": "y" * 200_000}]}, "tools"),
    ],
)
def test_tools_that_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ErrorResponse) as caught:
        options_of(**fields)
    assert caught.value.param == param


def test_the_expressions_of_tools_have_the_limits_of_a_request() -> None:
    """Each takes 25 MB and 0.05 s, and there is room for a thousand of them."""
    properties = {name: {"pattern": f"{name}{{90000}}"} for name in "abcdef"}
    with pytest.raises(ErrorResponse, match="more than 150000 items together"):
        options_of(tools=[{"name": "g", "parameters": {"properties": properties}}])


def test_tools_need_a_model_whose_calls_can_be_parsed() -> None:
    rule = ToolCalls([TOOL])
    assert options_of(tools=[TOOL])["constraints"].constraint == rule
    with pytest.raises(ErrorResponse, match="no known family"):
        parse_request({"model": NAME, "messages": ASKED, "tools": [TOOL]}, RequestPolicy(models=(NAME,)), chat=True)


def test_variables_of_the_chat_template() -> None:
    variables = {"enable_thinking": False, "x": 1}
    options = options_of(chat_template_kwargs=variables, reasoning_effort="low")
    assert options["tokenizer_encode_kwargs"] == {"reasoning_effort": "low", **variables}
    for effort in ("minimal", "xhigh", "max"):
        assert options_of(reasoning_effort=effort)["tokenizer_encode_kwargs"] == {"reasoning_effort": effort}
    assert "tokenizer_encode_kwargs" not in options_of(reasoning_effort="none")
    for fields, param in (
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template_kwargs": {"x": [1]}}, "chat_template_kwargs.x"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
    ):
        with pytest.raises(ErrorResponse) as caught:
            options_of(**fields)
        assert caught.value.param == param
