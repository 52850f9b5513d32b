"""Libraries that accept a pipeline or a model, without an integration: all texts that they get are checked."""

import threading
from typing import Any

import pytest
from langchain_huggingface import ChatHuggingFace, HuggingFacePipeline
from llama_index.llms.huggingface import HuggingFaceLLM

from guardwrap import Regex
from guardwrap.testing import World
from tests.integrations.fixtures_models import PROMPTS, guarded, hopeless, require_all, small_world, unchecked


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


def ask_langchain(pipe: Any, world: World) -> list[str]:
    """Return the texts of all kinds of calls: single, batched, streamed, and as a chat."""
    asked = HuggingFacePipeline(pipeline=pipe)
    kwargs: dict[str, Any] = {"pipeline_kwargs": world.settings}
    texts = [asked.invoke(prompt, skip_prompt=True, **kwargs) for prompt in PROMPTS]
    texts += asked.batch(PROMPTS, skip_prompt=True, **kwargs)
    texts += [piece for prompt in PROMPTS for piece in asked.stream(prompt, **kwargs)]
    chat = ChatHuggingFace(llm=asked, model_id="small", tokenizer=pipe.tokenizer)
    said = [str(chat.invoke(prompt, skip_prompt=True, **kwargs).content) for prompt in PROMPTS]
    return texts + said


def ask_llamaindex(pipe: Any, world: World) -> list[str]:
    """Return the texts of the model's ``generate``, and of a streamer that is passed to it."""
    options = {name: value for name, value in world.settings.items() if name != "max_new_tokens"}
    asked = HuggingFaceLLM(
        model=pipe.model,
        tokenizer=pipe.tokenizer,
        max_new_tokens=world.max_new_tokens,
        generate_kwargs=options,
        stopping_ids=[4],  # the library takes them from the first row
    )
    texts = [asked.complete(prompt).text for prompt in PROMPTS]
    return texts + [piece.text for prompt in PROMPTS for piece in asked.stream_complete(prompt)]


@pytest.mark.slow
def test_langchains_pipeline(world: World) -> None:
    require_all(ask_langchain(guarded(world), world))
    require_all(ask_langchain(guarded(world).as_pipeline(), world))


@pytest.mark.slow
def test_llamaindexs_model(world: World) -> None:
    require_all(ask_llamaindex(guarded(world).as_pipeline(), world))


@pytest.mark.slow
def test_negative_control_without_its_check_a_text_gets_through(world: World) -> None:
    for ask, pipe in (
        (ask_langchain, unchecked(world)),
        (ask_langchain, unchecked(world).as_pipeline()),
        (ask_langchain, world.pipeline()),
        (ask_llamaindex, unchecked(world).as_pipeline()),
        (ask_llamaindex, world.pipeline()),
    ):
        with pytest.raises(AssertionError, match="got through"):
            require_all(ask(pipe, world))


def test_an_exhausted_budget_ends_the_stream(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error ends their thread; readers of the stream do not wait, and both libraries raise an error."""
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda details: raised.append(details.exc_type.__name__))
    pipe = hopeless(world).as_pipeline()
    with pytest.raises(ValueError, match="No generation chunks"):
        list(HuggingFacePipeline(pipeline=pipe).stream("b", pipeline_kwargs=world.settings))
    settings = {"do_sample": True}
    asked = HuggingFaceLLM(model=pipe.model, tokenizer=pipe.tokenizer, max_new_tokens=2, generate_kwargs=settings)
    with pytest.raises(ValueError, match="response"):
        list(asked.stream_complete("b"))
    assert raised == ["BudgetExhausted"] * 2


def test_stop_ids_of_the_library_end_the_text_itself(world: World) -> None:
    """HuggingFacePipeline checks them in the first row of a batch only; here each attempt ends by its own."""
    asked = HuggingFacePipeline(pipeline=guarded(world, Regex("c")))
    options = {**world.settings, "max_new_tokens": 12}
    for seed in range(5):
        (text,) = asked.stream("b", stop=["c"], pipeline_kwargs={**options, "seed": seed})
        assert text.count("c") == 1
        assert text.endswith("c")
