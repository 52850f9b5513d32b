"""LangChain's standard tests of chat models, and its agents. ``make test-agents`` installs both packages."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("langchain_tests")
pytest.importorskip("langchain.agents")

import torch
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.messages import AIMessage, ToolMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests
from pydantic import BaseModel

from guardwrap.integrations.langchain import GuardedChatModel
from guardwrap.testing import World
from tests.integrations.fixtures_tools import NO_BAD, call_text, f, guarded_chat
from tests.models.test_templates import piece_name, world_of

CALLS = [
    ("magic_function", {"input": 3}),
    ("magic_function_no_args", {}),
    ("greeting_generator", {"answer_style": "pirate"}),
    ("get_weather", {"location": "here"}),
    ("my_adder_tool", {"a": 1, "b": 2}),
    ("unicode_customer", {"customer_name": "你好こんにちは", "description": "x"}),
    ("Answer", {"a": 1}),
]
ANSWERS = ['{"setup": "x", "punchline": "y"}', '{"a": 1}']
TOOLS, NO_TOOLS = 60, 20
"""Lengths of the prompt, by which the model can tell whether it has tools."""


def standard_world() -> World:
    """Return a world whose model calls its tools, if it has any and has not just called one, and answers otherwise."""
    calls = [call_text(name, arguments) for name, arguments in CALLS]
    world = world_of("Qwen or Hermes", more=[*calls, *ANSWERS])
    length = f"({TOOLS} if tools and messages[-1]['role'] != 'tool' else {NO_TOOLS})"
    template = "{# <tool_call> <think> #}{% for m in messages %}{{ (m['content'] ~ (m | tojson))[:0] }}{% endfor %}"
    template += f"{{{{ 'y' * {length} }}}}<|im_start|>assistant{{{{ '\\n' }}}}"
    world.tokenizer.chat_template = template
    first = world.tokenizer("<|im_start|>assistant\n")["input_ids"]

    def ids(*texts: str) -> list[int]:
        token_ids: list[int] = world.tokenizer.convert_tokens_to_ids([piece_name(text) for text in texts])
        return token_ids

    valid_call = call_text("f", {"a": 1}).replace(": ", ":").replace(", ", ",")
    with torch.no_grad():
        table = world.model.table
        table[TOOLS + len(first) - 1, :, ids(*calls, valid_call)] += 9.0
        table[NO_TOOLS + len(first) - 1, :, ids("x", *ANSWERS)] += 9.0
        table[:, ids("x", *calls, valid_call, *ANSWERS), 0] += 9.0
    return world


WORLD = standard_world()
SETTINGS = {name: value for name, value in WORLD.settings.items() if name in ("do_sample", "temperature", "top_k")}


class OfTheModel:
    """The model, and the features that it has."""

    @property
    def chat_model_class(self) -> type[GuardedChatModel]:
        return GuardedChatModel

    @property
    def chat_model_params(self) -> dict[str, Any]:
        wrapper = guarded_chat(WORLD)
        return {"guarded": wrapper, "options": {**SETTINGS, "max_new_tokens": 9, "parallel_tool_calls": False}}

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        """Without ``timeout``, ``max_retries`` and a key, as there is no server; a budget limits time."""
        return {"temperature": 1.0, "max_tokens": 9, "stop": []}

    @property
    def supports_json_mode(self) -> bool:
        return True


class TestUnits(OfTheModel, ChatModelUnitTests):
    """The tests that work without a model."""


class TestIntegration(OfTheModel, ChatModelIntegrationTests):
    """The tests that generate."""

    @pytest.mark.xfail(strict=True, reason="models of pydantic.v1 are not supported; pydantic has deprecated them")
    def test_structured_output_pydantic_2_v1(self, model: Any) -> None:
        super().test_structured_output_pydantic_2_v1(model)


class Answer(BaseModel):
    """An answer."""

    a: int


def model() -> GuardedChatModel:
    return GuardedChatModel(guarded_chat(WORLD), options={**SETTINGS, "max_new_tokens": 9})


def asked(agent: Any) -> Any:
    return agent.invoke({"messages": [{"role": "user", "content": "x"}]}, {"recursion_limit": 100})


def test_an_agent_runs_until_it_answers() -> None:
    result = asked(create_agent(model(), [f]))
    *before, last = result["messages"]
    assert last.text
    assert not last.tool_calls
    assert NO_BAD.accepts(last.text)
    assert {message.content for message in before if isinstance(message, ToolMessage)} == {"2"}
    assert {str(call) for message in before if isinstance(message, AIMessage) for call in message.tool_calls}
    streamed = create_agent(model(), [f]).stream(
        {"messages": [{"role": "user", "content": "x"}]}, stream_mode="messages"
    )
    assert any(getattr(piece, "tool_call_chunks", None) for piece, _ in streamed)


@pytest.mark.parametrize("strategy", [ToolStrategy(Answer), ProviderStrategy(Answer), Answer])
def test_an_agent_returns_a_value(strategy: Any) -> None:
    result = asked(create_agent(model(), [f], response_format=strategy))
    assert result["structured_response"] == Answer(a=1)
