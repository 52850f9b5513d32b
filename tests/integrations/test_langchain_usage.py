"""LangChain's usage metadata: tokens of the prompt and of the accepted text, whichever method is called."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.callbacks import get_usage_metadata_callback
from langchain_core.messages import HumanMessage

from guardwrap import Budget, Fallback, GuardedGenerator, Length, Prompt
from guardwrap.integrations.langchain import GuardedChatModel, GuardedLLM
from guardwrap.testing import World
from tests.integrations.fixtures_models import guarded, small_world


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


def chat_model(wrapper: GuardedGenerator, world: World, **options: Any) -> GuardedChatModel:
    return GuardedChatModel(wrapper, options={**world.settings, **options})


USES: dict[str, Callable[[Any], Any]] = {
    "invoke": lambda asked: asked.invoke("b"),
    "stream": lambda asked: functools.reduce(operator.add, asked.stream("b")),
    "batch": lambda asked: asked.batch(["b"])[0],
    "streaming": lambda asked: asked.model_copy(update={"streaming": True}).invoke("b"),
}


@pytest.mark.parametrize("way", USES)
def test_usage_is_that_of_the_prompt_and_the_accepted_text(world: World, way: str) -> None:
    wrapper = guarded(world, seed=4, proposal=Prompt("{prompt}aaa"))
    asked = chat_model(wrapper, world)
    ((outcome,), again) = wrapper.run([[{"role": "user", "content": "b"}]], **world.settings, seed=4), USES[way](asked)
    (draw,) = outcome.draws
    shown = len(world.tokenizer.apply_chat_template([{"role": "user", "content": "b"}])["input_ids"])
    usage, report = again.usage_metadata, again.response_metadata["guardwrap"]
    assert again.text == outcome.texts[0]
    assert usage == {
        "input_tokens": shown,
        "output_tokens": len(draw.token_ids),
        "total_tokens": shown + len(draw.token_ids),
    }
    assert report["usage"]["attempts"] > 1, "otherwise nothing was rejected"
    assert report["usage"]["tokens"] > usage["output_tokens"]
    assert report["prompt_tokens"] == usage["input_tokens"]


@pytest.mark.parametrize("kind", [GuardedLLM, GuardedChatModel])
def test_tokens_are_those_of_the_models_tokenizer(kind: Any) -> None:
    """LangChain counts those of GPT-2 for models that do not say."""
    world = small_world()
    asked = kind(guarded(world))
    assert asked.get_token_ids("ab.") == world.tokenizer.convert_tokens_to_ids(["a", "b", "."])
    assert asked.get_num_tokens("") == 0


def test_callbacks_count_usage(world: World) -> None:
    asked = chat_model(guarded(world), world)
    with get_usage_metadata_callback() as counted:
        replies = [asked.invoke("b"), *asked.batch(["b", "c"])]
    ((name, usage),) = counted.usage_metadata.items()
    assert name == asked.guarded.session.model_name
    assert usage["total_tokens"] == sum(reply.usage_metadata["total_tokens"] for reply in replies)


def test_a_model_of_a_folder_is_named_without_its_path(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.model, "name_or_path", "/home/someone/models/small")
    asked = chat_model(guarded(world), world)
    with get_usage_metadata_callback() as counted:
        reply = asked.invoke("b")
    assert list(counted.usage_metadata) == ["small"] == [reply.response_metadata["model_name"]]


def test_the_usage_of_a_fallback_and_of_several_texts(world: World) -> None:
    wrapper = guarded(world, Length(min=100), budget=Budget(max_attempts=2), on_exhausted=Fallback("c" * 100))
    usage = chat_model(wrapper, world).invoke("b").usage_metadata
    assert usage["output_tokens"] == 0
    assert usage["total_tokens"] == usage["input_tokens"] > 0
    several = chat_model(guarded(world, seed=1), world, num_return_sequences=4)
    ((*replies,),) = several.generate([[HumanMessage("b")]]).generations
    usages = [reply.message.usage_metadata for reply in replies]
    assert len({usage["output_tokens"] for usage in usages}) > 1
    assert len({usage["input_tokens"] for usage in usages}) == 1
