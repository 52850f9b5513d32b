"""Agent frameworks as they are, through the server: the snippets of docs/agents.md, and what they send again.

``make test-agents`` installs the frameworks; a snippet is skipped without its own.
"""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import create_model

from guardwrap import ToolCalls
from guardwrap.constraints.verdicts import Undecided
from tests.serve.fixtures_agents import NAME, agent_world, running_server

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^(?:## (?P<title>.*?)\n.*?)?^```python\n(?P<code>.*?)^```", PAGE, re.M | re.S)
TOOL = SNIPPETS[0][1]
PACKAGES = {
    "OpenAI Agents SDK": "agents",
    "Pydantic AI": "pydantic_ai",
    "smolagents": "smolagents",
    "LangChain": "langchain_openai",
    "LlamaIndex": "llama_index.llms.openai_like",
    "Haystack": "haystack",
    "Instructor": "instructor",
    "DSPy": "dspy",
    "LiteLLM": "litellm",
    "Pydantic AI without a server": "pydantic_ai",
    "In Python": "guardwrap",
}
ASKED = [{"role": "user", "content": "x"}]
RESPONSES, CHAT = "OpenAIResponsesModel", "OpenAIChatCompletionsModel"
"""Models of the Agents SDK. The page shows the first one, which is the default."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server(agent_world()) as address:
        yield address


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return agent_world().pipeline()


@pytest.fixture
def scope(pipeline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that a snippet may use: the tool, from a module with source, as some frameworks read it."""
    (tmp_path / "the_tool.py").write_text(TOOL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.delitem(sys.modules, "the_tool", raising=False)
    return {"f": __import__("the_tool").f, "pipeline": pipeline, "__name__": "snippet"}


def ran(title: str, url: str, scope: dict[str, Any], model: str = RESPONSES) -> dict[str, Any]:
    pytest.importorskip(PACKAGES[title])
    (code,) = (code for name, code in SNIPPETS if name == title)
    sys.modules["snippet"] = ModuleType("snippet")
    code = code.replace("http://127.0.0.1:8000/v1", url).replace(RESPONSES, model)
    exec(compile(code, title, "exec"), scope)
    return scope


def test_every_snippet_is_run() -> None:
    assert [title for title, _ in SNIPPETS[1:]] == [*PACKAGES]


@pytest.mark.parametrize("title", PACKAGES)
def test_a_snippet_gets_what_it_asks_for(title: str, url: str, scope: dict[str, Any]) -> None:
    names = ran(title, url, scope)
    result: Any = names.get("result")
    if title.startswith("Pydantic AI"):
        assert result.a == 1
    elif title == "LangChain":
        assert not result["messages"][-1].tool_calls
        assert {(call["name"], call["args"]["a"]) for call in names["calls"]} == {("f", 1)}
        bound = names["model"].bind_tools([f_of(names)], tool_choice="any")
        assert any(chunk.tool_call_chunks for chunk in bound.stream("x"))
    elif title == "LlamaIndex":
        assert isinstance(asyncio.run(names["run"]()), str)
        tools = sys.modules["llama_index.core.tools"].FunctionTool.from_defaults(names["f"])
        called = names["model"].predict_and_call([tools], "x", tool_required=True)
        assert [source.raw_input["kwargs"] for source in called.sources] == [{"a": 1}]
    elif title == "Instructor":
        assert result.a == 1
    elif title in ("smolagents", "DSPy"):
        assert result == "x"
    elif title in ("LiteLLM", "In Python"):
        assert result
    else:
        assert result is not None


def f_of(names: dict[str, Any]) -> Any:
    return names["tool"](names["f"])


def items_of(result: Any) -> list[str]:
    return [item.type for item in result.new_items]


@pytest.mark.parametrize("model", [RESPONSES, CHAT])
def test_the_agents_sdk_streams_its_calls(url: str, scope: dict[str, Any], model: str) -> None:
    names = ran("OpenAI Agents SDK", url, scope, model)
    assert type(names["model"]).__name__ == model

    async def streamed() -> tuple[set[str], Any]:
        result = names["Runner"].run_streamed(names["agent"], "x", max_turns=30)
        return {event.type async for event in result.stream_events()}, result

    types, result = asyncio.run(streamed())
    assert {"run_item_stream_event", "raw_response_event"} <= types
    assert items_of(result).count("tool_call_item") == items_of(result).count("tool_call_output_item") > 0
    assert isinstance(result.final_output, str)


def test_the_agents_sdk_calls_its_default_model(url: str, scope: dict[str, Any]) -> None:
    """A model that is given by its name alone, its structured output, and a reply that is sent again."""
    agents = pytest.importorskip("agents")
    names = ran("OpenAI Agents SDK", url, scope)
    client = names["AsyncOpenAI"](base_url=url, api_key="any")
    config = agents.RunConfig(model_provider=agents.OpenAIProvider(openai_client=client), model=NAME)
    assert type(config.model_provider.get_model(NAME)).__name__ == RESPONSES
    tools = [names["function_tool"](names["f"])]
    effort: dict[str, Any] = {"reasoning": {"effort": "low"}, "store": False, "extra_body": {"seed": 0}}
    thinks = agents.ModelSettings(**effort, tool_choice="none")
    agent = agents.Agent(name="Helper", instructions="be short", tools=tools, model_settings=thinks)
    result = names["Runner"].run_sync(agent, "x", run_config=config)
    assert items_of(result)[-1] == "message_output_item"
    again = names["Runner"].run_sync(agent, [*result.to_input_list(), *ASKED], run_config=config)
    assert again.final_output
    whole, number = agents.ModelSettings(**effort), create_model("Number", a=(int, ...))
    typed = agents.Agent(name="Helper", output_type=number, model_settings=whole)
    assert names["Runner"].run_sync(typed, "x", run_config=config).final_output.a == 1


def test_smolagents_calls_a_tool_before_it_ends(url: str, scope: dict[str, Any]) -> None:
    names = ran("smolagents", url, scope)
    agent = names["ToolCallingAgent"]([names["tool"](names["f"])], names["model"], max_steps=100)
    for _ in range(20):
        assert agent.run("x") == "x"
        calls = [call for step in agent.memory.steps for call in getattr(step, "tool_calls", None) or ()]
        assert {(call.name, str(call.arguments)) for call in calls} <= {FINAL, ("f", "{'a': 1}")}
        if len(calls) > 1:
            return
    raise AssertionError("no tool was called")


FINAL = ("final_answer", "{'answer': 'x'}")


def test_pydantic_ai_runs_tools_and_sends_their_results(url: str, scope: dict[str, Any]) -> None:
    names = ran("Pydantic AI", url, scope)
    agent = names["Agent"](names["model"], tools=[names["f"]])
    assert isinstance(agent.run_sync("x").output, str)

    async def parts() -> list[Any]:
        async with agent.iter("x") as run:
            return [event async for node in run if hasattr(node, "stream") async for event in streamed(node, run.ctx)]

    async def streamed(node: Any, context: Any) -> AsyncIterator[Any]:
        async with node.stream(context) as stream:
            async for event in stream:
                yield event

    events = [event for _ in range(20) for event in asyncio.run(parts())]
    called = [event.part for event in events if event.event_kind == "function_tool_call"]
    results = [event for event in events if event.event_kind == "function_tool_result"]
    assert {(part.tool_name, str(part.args_as_dict())) for part in called} == {("f", "{'a': 1}")}
    assert len(results) == len(called)


def test_pydantic_ai_streams_its_output(url: str, scope: dict[str, Any]) -> None:
    names = ran("Pydantic AI", url, scope)

    async def values() -> list[Any]:
        agent = names["Agent"](names["model"], output_type=names["Number"], tools=[names["f"]])
        async with agent.run_stream("x") as run:
            return [value async for value in run.stream_output()]

    assert {value.a for value in asyncio.run(values())} == {1}


@pytest.mark.parametrize("mode", ["JSON", "JSON_SCHEMA", "TOOLS", "TOOLS_STRICT"])
def test_instructors_modes(url: str, scope: dict[str, Any], mode: str) -> None:
    """Mode JSON asks for any JSON object, so its fields are the model's."""
    names = ran("Instructor", url, scope)
    client = names["instructor"].from_openai(names["client"].client, mode=getattr(names["instructor"].Mode, mode))
    field: Any = (int | None, None) if mode == "JSON" else (int, ...)
    response_model = names["create_model"]("f", a=field)
    asked = {"model": NAME, "response_model": response_model, "messages": names["messages"], "max_retries": 0}
    values = {client.create(**asked).a for _ in range(5)}
    assert values == {1} or (mode == "JSON" and values <= {1, None})


def test_dspy_predicts_calls_tools_and_acts(url: str, scope: dict[str, Any]) -> None:
    names = ran("DSPy", url, scope)
    dspy = names["dspy"]

    act = dspy.Predict(dspy.Signature("question, tools: list[dspy.Tool] -> calls: dspy.ToolCalls"))
    with dspy.context(lm=names["model"], adapter=dspy.ChatAdapter()):  # asks for a schema when it cannot parse
        assert {dspy.Predict("question -> answer")(question="x").answer for _ in range(5)} == {"x"}
    for adapter in (dspy.ChatAdapter, dspy.JSONAdapter):
        with dspy.context(lm=names["model"], adapter=adapter(use_native_function_calling=True)):
            calls = act(question="x", tools=[dspy.Tool(names["f"])], config={"tool_choice": "required"}).calls
            assert {(call.name, str(call.args)) for call in calls.tool_calls} == {("f", "{'a': 1}")}


def test_negative_control_a_server_without_the_tools_rule(
    url: str, scope: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model does write invalid calls, so that the tests above can fail."""
    names = ran("LiteLLM", url, scope)
    server = {**names["server"], "api_base": url}

    def calls() -> set[tuple[str, str]]:
        replies = [names["completion"]("openai/tiny", **server, **names["asked"]) for _ in range(15)]
        messages = [reply.choices[0].message for reply in replies]
        return {(each.function.name, each.function.arguments) for m in messages for each in m.tool_calls or ()}

    assert calls() == {("f", '{"a": 1}')}
    monkeypatch.setattr(ToolCalls, "fault_of", lambda *_: "")
    monkeypatch.setattr(ToolCalls, "monitor_in", lambda *_: Undecided())
    monkeypatch.setattr("guardwrap.calls.source.with_syntax", lambda constraint, *_, **__: constraint)
    assert calls() > {("f", '{"a": 1}')}


def test_the_model_has_the_name_of_the_page() -> None:
    assert f'"{NAME}"' in PAGE
