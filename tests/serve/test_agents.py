"""Agent frameworks as they are, through the server: the snippets of docs/agents.md, and what they send again.

``make test-agents`` installs the frameworks; a snippet is skipped without its own.
"""

import asyncio
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import create_model

from tests.messages.test_templates import world_of
from tests.serve.fixtures_agents import NAME, running_server

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^(?:## (?P<title>.*?)\n.*?)?^```python\n(?P<code>.*?)^```", PAGE, re.M | re.S)
TOOL = SNIPPETS[0][1]
PACKAGES = {
    "OpenAI Agents SDK": "agents",
    "Pydantic AI": "pydantic_ai",
    "smolagents": "smolagents",
    "LangChain": "langchain_openai",
    "LlamaIndex": "llama_index.llms.openai_like",
    "Instructor": "instructor",
    "LiteLLM": "litellm",
    "In Python": "guardwrap",
}
ASKED = [{"role": "user", "content": "x"}]
RESPONSES, CHAT = "OpenAIResponsesModel", "OpenAIChatCompletionsModel"
"""Models of the Agents SDK. The page shows the first one, which is the default."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server() as address:
        yield address


@pytest.fixture
def scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that a snippet may use: the tool, from a module with source, as some frameworks read it."""
    (tmp_path / "the_tool.py").write_text(TOOL)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "any")
    monkeypatch.delitem(sys.modules, "the_tool", raising=False)
    return {"f": __import__("the_tool").f, "pipeline": world_of("Qwen or Hermes").pipeline(), "__name__": "snippet"}


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
    result = names["result"]
    if title == "Pydantic AI":
        assert result.a == 1
    elif title == "LangChain":
        assert not result["messages"][-1].tool_calls
        assert {(call["name"], call["args"]["a"]) for call in names["calls"]} == {("f", 1)}
        assert any(chunk.tool_call_chunks for chunk in names["model"].bind_tools([f_of(names)]).stream("x"))
    elif title == "LlamaIndex":
        assert [source.raw_input["kwargs"] for source in result.sources] == [{"a": 1}] * len(result.sources)
    elif title == "Instructor":
        assert result.a == 1
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
    """A model that is given by its name alone, its structured output, and reasoning that is sent again."""
    agents = pytest.importorskip("agents")
    names = ran("OpenAI Agents SDK", url, scope)
    client = names["AsyncOpenAI"](base_url=url, api_key="any")
    config = agents.RunConfig(model_provider=agents.OpenAIProvider(openai_client=client), model=NAME)
    assert type(config.model_provider.get_model(NAME)).__name__ == RESPONSES
    thinks = agents.ModelSettings(reasoning={"effort": "low"}, store=False, extra_body={"seed": 0})
    tools = [names["function_tool"](names["f"])]
    agent = agents.Agent(name="Helper", instructions="be short", tools=tools, model_settings=thinks)
    result = names["Runner"].run_sync(agent, "x", run_config=config)
    assert items_of(result) == ["reasoning_item", "message_output_item"]
    again = names["Runner"].run_sync(agent, [*result.to_input_list(), *ASKED], run_config=config)
    assert again.final_output
    typed = agents.Agent(name="Helper", output_type=create_model("Number", a=(int, ...)), model_settings=thinks)
    assert names["Runner"].run_sync(typed, "x", run_config=config).final_output.a == 1


def test_pydantic_ai_runs_tools_and_sends_their_results(url: str, scope: dict[str, Any]) -> None:
    names = ran("Pydantic AI", url, scope)
    assert isinstance(names["Agent"](names["model"], tools=[names["f"]]).run_sync("x").output, str)


def test_the_model_has_the_name_of_the_page() -> None:
    assert f'"{NAME}"' in PAGE
