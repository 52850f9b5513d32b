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


def ran(title: str, url: str, scope: dict[str, Any]) -> dict[str, Any]:
    pytest.importorskip(PACKAGES[title])
    (code,) = (code for name, code in SNIPPETS if name == title)
    sys.modules["snippet"] = ModuleType("snippet")
    exec(compile(code.replace("http://127.0.0.1:8000/v1", url), title, "exec"), scope)
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


def test_the_agents_sdk_streams_its_calls(url: str, scope: dict[str, Any]) -> None:
    names = ran("OpenAI Agents SDK", url, scope)

    async def types() -> set[str]:
        streamed = names["Runner"].run_streamed(names["agent"], "x", max_turns=30)
        return {event.type async for event in streamed.stream_events()}

    assert "run_item_stream_event" in asyncio.run(types())


def test_pydantic_ai_runs_tools_and_sends_their_results(url: str, scope: dict[str, Any]) -> None:
    names = ran("Pydantic AI", url, scope)
    assert isinstance(names["Agent"](names["model"], tools=[names["f"]]).run_sync("x").output, str)


def test_the_model_has_the_name_of_the_page() -> None:
    assert f'"{NAME}"' in PAGE
