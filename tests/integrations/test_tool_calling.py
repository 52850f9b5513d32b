"""Tools in LangChain and LlamaIndex: every message satisfies the constraint and the rule for the tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ImageBlock, TextBlock, ThinkingBlock, ToolCallBlock
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool

from guardwrap import Budget, BudgetExhausted, Fallback, Regex, ToolCalls
from guardwrap.constraints.verdicts import Undecided
from guardwrap.errors import ConstraintError, UsageError
from guardwrap.integrations import guarded_call
from guardwrap.integrations.langchain import GuardedChatModel
from guardwrap.integrations.llamaindex import GuardedLLM
from guardwrap.models.parsed_message import answer_message, called_tools
from guardwrap.outcomes import Draw
from guardwrap.testing import World
from tests.integrations.fixtures_models import small_world
from tests.integrations.fixtures_tools import NO_BAD, TIMES, Reply, f, guarded_chat, require_valid, tools_world


@pytest.fixture(scope="module")
def world() -> World:
    return tools_world()


def langchain_model(world: World, wrapper: Any = None, **options: Any) -> GuardedChatModel:
    return GuardedChatModel(wrapper or guarded_chat(world), options={**world.settings, **options})


def llamaindex_model(world: World, wrapper: Any = None, **options: Any) -> GuardedLLM:
    return GuardedLLM(wrapper or guarded_chat(world), options={**world.settings, **options})


def of_langchain(message: Any) -> Reply:
    calls = [(call["name"], call["args"]) for call in message.tool_calls]
    return message.text, message.additional_kwargs.get("reasoning_content", ""), calls


def of_llamaindex(model: Any, response: Any) -> Reply:
    calls = [
        (each.tool_name, each.tool_kwargs)
        for each in model.get_tool_calls_from_response(response, error_on_no_tool_call=False)
    ]
    thoughts = [block.content or "" for block in response.message.blocks if isinstance(block, ThinkingBlock)]
    return response.message.content or "", "".join(thoughts), calls


def bound(world: World, choice: Any = None, parallel: bool | None = None) -> Any:
    return langchain_model(world).bind_tools([f], tool_choice=choice, parallel_tool_calls=parallel)


def invoked(world: World, *how: Any) -> Iterator[Reply]:
    yield from (of_langchain(bound(world, *how).invoke("x", seed=seed)) for seed in range(TIMES))


def batched(world: World, *how: Any) -> Iterator[Reply]:
    yield from map(of_langchain, bound(world, *how).batch(["x"] * TIMES))


def streamed(world: World, *how: Any) -> Iterator[Reply]:
    for seed in range(TIMES):
        pieces = list(bound(world, *how).stream("x", seed=seed))
        assert [type(piece) for piece in pieces] == [AIMessageChunk]
        yield of_langchain(pieces[0])


def streamed_later(world: World, *how: Any) -> Iterator[Reply]:
    async def ask(seed: int) -> list[Any]:
        return [piece async for piece in bound(world, *how).astream("x", seed=seed)]

    yield from (of_langchain(piece) for seed in range(TIMES) for piece in asyncio.run(ask(seed)))


def llamaindex_arguments(choice: Any, parallel: bool | None) -> dict[str, Any]:
    options = {"tool_choice": choice, "allow_parallel_tool_calls": parallel is not False}
    return {"tools": [FunctionTool.from_defaults(f)], "user_msg": "x", **options}


def chatted(world: World, choice: Any = None, parallel: bool | None = None) -> Iterator[Reply]:
    model = llamaindex_model(world)
    for seed in range(TIMES):
        response = model.chat_with_tools(**llamaindex_arguments(choice, parallel), seed=seed)
        yield of_llamaindex(model, response)


def chat_streamed(world: World, choice: Any = None, parallel: bool | None = None) -> Iterator[Reply]:
    model = llamaindex_model(world)

    async def ask(seed: int) -> list[Any]:
        arguments = llamaindex_arguments(choice, parallel)
        return [piece async for piece in await model.astream_chat_with_tools(**arguments, seed=seed)]

    yield from (of_llamaindex(model, piece) for seed in range(TIMES) for piece in asyncio.run(ask(seed)))


WAYS = [invoked, batched, streamed, streamed_later, chatted, chat_streamed]
HOW: dict[str, tuple[tuple[Any, ...], dict[str, int]]] = {
    "as the model likes": ((), {}),
    "at least one": (("required",), {"least": 1}),
    "any": (("any",), {"least": 1}),
    "one tool": (("f",), {"least": 1}),
    "none": (("none",), {"most": 0}),
    "at most one": ((None, False), {"most": 1}),
}


CASES = [(way, how) for way in WAYS for how in HOW if how.startswith("as") or way in (batched, chatted)]


@pytest.mark.slow
@pytest.mark.parametrize(("way", "how"), CASES)
def test_every_message_satisfies_the_constraint_and_the_tools_rule(
    world: World, way: Callable[..., Iterator[Reply]], how: str
) -> None:
    arguments, expected = HOW[how]
    require_valid(way(world, *arguments), **expected)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_negative_control_without_the_tools_rule(
    world: World, way: Callable[..., Iterator[Reply]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ToolCalls, "check", lambda _, draws: [True] * len(draws))
    monkeypatch.setattr(ToolCalls, "monitor_in", lambda *_: Undecided())
    with pytest.raises(AssertionError, match="got through"):
        require_valid(way(world))


@pytest.mark.slow
def test_nothing_is_called_without_tools(world: World) -> None:
    """With them, the same seeds give calls."""
    model = GuardedChatModel(guarded_chat(world))
    for bound, called in ((model.bind_tools([f]), True), (model, False)):
        replies = [bound.invoke([HumanMessage("x")], seed=seed) for seed in range(40)]
        assert any(reply.tool_calls or reply.invalid_tool_calls for reply in replies) is called


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_negative_control_without_the_wrappers_constraint(
    world: World, way: Callable[..., Iterator[Reply]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rule for the tools is added to the constraint and does not replace it."""
    unconstrained = guarded_chat(world, ToolCalls([f]))
    monkeypatch.setattr("tests.integrations.test_tool_calling.guarded_chat", lambda _: unconstrained)
    with pytest.raises(AssertionError, match="constraint is violated"):
        require_valid(way(world))


def test_the_constraint_of_a_call_holds_as_well(world: World) -> None:
    rule = ToolCalls([f], choice="required", max_calls=1)
    model = langchain_model(world).bind_tools([f])
    messages = [model.invoke("x", constraints=rule & NO_BAD) for _ in range(TIMES)]
    require_valid(map(of_langchain, messages), least=1, most=1)


def test_a_fallback_cannot_replace_a_required_call(world: World) -> None:
    hopeless = NO_BAD & Regex("fallback", on="answer")
    wrapper = guarded_chat(
        world, hopeless, budget=Budget(max_attempts=2), on_exhausted=Fallback(lambda chat: "the fallback")
    )
    model = langchain_model(world, wrapper).bind_tools([f])
    reply = model.invoke("x")
    assert (reply.content, reply.tool_calls) == ("the fallback", [])
    assert reply.response_metadata["guardwrap"]["fallback"]
    with pytest.raises(BudgetExhausted):
        model.invoke("x", tool_choice="any")


def test_wrong_choices(world: World) -> None:
    model = langchain_model(world)
    with pytest.raises(ConstraintError, match=r"no tool 'ff'.*did you mean 'f'"):
        model.bind_tools([f], tool_choice="ff").invoke("x")
    with pytest.raises(UsageError, match="tool_choice requires tools"):
        model.invoke("x", tool_choice="any")
    assert isinstance(model.bind_tools([]).invoke("x"), AIMessage)


def test_a_model_whose_calls_cannot_be_parsed() -> None:
    world = small_world()
    with pytest.raises(UsageError, match="no known model family"):
        langchain_model(world).bind_tools([f]).invoke("b")
    assert not llamaindex_model(world).metadata.is_function_calling_model


def test_a_tool_without_a_type_gets_an_object() -> None:
    """The arguments of a call are a dict in both libraries."""
    rule = guarded_call.tool_rule([{"name": "f", "parameters": {"properties": {"a": {}}}}], None, None)
    assert rule is not None
    assert rule.fault_of_call('{"name": "f", "arguments": [1]}')
    assert not rule.fault_of_call('{"name": "f", "arguments": {"a": 1}}')


def test_calls_that_no_rule_has_checked_may_be_malformed() -> None:
    calls = [{"function": {"name": "f", "arguments": a}} for a in ({"a": 1}, [1], "x", '{"a": 2}')]
    written = tuple(map(json.dumps, [*calls, {"function": {}}, 1]))
    message = answer_message(Draw("", (), "", parts=(("tool_calls", written),), message="{}"))
    assert len(message["tool_calls"]) == 6
    assert [call.arguments for call in called_tools(message)] == [{"a": 1}, {"a": 2}]


def seen_by(wrapper: Any, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which each further call of the wrapper appends its chats."""
    seen: list[Any] = []
    run = wrapper.run

    def noted(prompts: Any, **options: Any) -> Any:
        seen.extend(prompts)
        return run(prompts, **options)

    monkeypatch.setattr(wrapper, "run", noted)
    return seen


HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "x"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}],
        "reasoning_content": "hm",
    },
    {"role": "tool", "content": "2", "tool_call_id": "c1"},
]


def test_messages_of_langchain_become_the_pipelines_chat(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = guarded_chat(world)
    seen = seen_by(wrapper, monkeypatch)
    call = {"name": "f", "args": {"a": 1}, "id": "c1"}
    sent = AIMessage("", tool_calls=[call], additional_kwargs={"reasoning_content": "hm"})
    blocks = AIMessage([{"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}], tool_calls=[call])
    for message in (sent, blocks):
        langchain_model(world, wrapper).bind_tools([f]).invoke(
            [HumanMessage("x"), message, ToolMessage("2", tool_call_id="c1")]
        )
    assert seen[0] == HISTORY
    assert seen[1] == [{k: v for k, v in turn.items() if k != "reasoning_content"} for turn in HISTORY]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(UsageError, match="only messages of text"):
        langchain_model(world).invoke([HumanMessage("x"), AIMessage([image]), HumanMessage("x")])


def test_instructions_of_the_developer_reach_the_template(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = guarded_chat(world)
    seen = seen_by(wrapper, monkeypatch)
    langchain_model(world, wrapper).invoke([{"role": "developer", "content": "x"}])
    llamaindex_model(world, wrapper).chat([ChatMessage("x", role="developer")])
    assert seen == [[{"role": "system", "content": "x"}]] * 2


def test_messages_of_llamaindex_become_the_pipelines_chat(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = guarded_chat(world)
    seen = seen_by(wrapper, monkeypatch)
    for arguments in ({"a": 1}, '{"a": 1}'):
        call = ToolCallBlock(tool_call_id="c1", tool_name="f", tool_kwargs=arguments)
        sent = ChatMessage(role="assistant", blocks=[ThinkingBlock(content="hm"), call])
        result = ChatMessage(role="tool", content="2", additional_kwargs={"tool_call_id": "c1"})
        llamaindex_model(world, wrapper).chat([ChatMessage("x"), sent, result])
    assert seen == [HISTORY, HISTORY]
    with pytest.raises(UsageError, match="only messages of text"):
        llamaindex_model(world).chat(
            [ChatMessage(role="user", blocks=[TextBlock(text="x"), ImageBlock(image=b"AAAA")])]
        )


def test_llamaindex_predicts_and_calls(world: World) -> None:
    model = llamaindex_model(world)
    tools = [FunctionTool.from_defaults(f)]
    result = model.predict_and_call(tools, "x", tool_required=True)
    assert (result.response, result.sources[0].raw_input["kwargs"]) == ("2", {"a": 1})
    assert asyncio.run(model.apredict_and_call(tools, "x", tool_required=True)).response == "2"
    silent = model.chat_with_tools(tools, "x", tool_choice="none")
    with pytest.raises(UsageError, match="calls no tool"):
        model.get_tool_calls_from_response(silent)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of pydantic, for what LlamaIndex does
def test_agents_run_until_they_answer(world: World) -> None:
    async def ask(streaming: bool) -> Any:
        agent = FunctionAgent(tools=[f], llm=llamaindex_model(world, max_new_tokens=6), streaming=streaming)
        return await agent.run("x", max_iterations=100)

    for streaming in (True, False):
        result = asyncio.run(ask(streaming))
        assert NO_BAD.accepts(result.response.content)
        assert not any(isinstance(block, ToolCallBlock) for block in result.response.blocks)
