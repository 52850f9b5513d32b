"""LlamaIndex's kinds of calls: each text that they return is checked."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate
from pydantic import RootModel

from guardwrap import Budget, BudgetExhausted, Endpoint, Fallback, GuardedGenerator, Length, Prompt, Regex
from guardwrap.errors import UsageError
from guardwrap.integrations.llamaindex import GuardedLLM
from guardwrap.testing import World
from tests.integrations.fixtures_models import NO_VOWEL, PROMPTS, guarded, hopeless, require_all, small_world, unchecked

TEMPLATE = PromptTemplate("{x}")


class Digit(RootModel[int]):
    """A type whose schema accepts a text of one digit."""


@pytest.fixture(scope="module", params=["chat", "text"])
def world(request: Any) -> World:
    """The wrapper with a chat template, and without one."""
    made = small_world()
    if request.param == "text":
        made.tokenizer.chat_template = None
    return made


def llm(wrapper: Any, world: World, **options: Any) -> GuardedLLM:
    return GuardedLLM(wrapper, options={**world.settings, **options})


def chat(prompt: str) -> list[ChatMessage]:
    return [ChatMessage(role="user", content=prompt)]


def completed(asked: GuardedLLM) -> list[str]:
    return [asked.complete(prompt).text for prompt in PROMPTS]


def streamed(asked: GuardedLLM) -> list[str]:
    return [piece.delta or "" for prompt in PROMPTS for piece in asked.stream_complete(prompt)]


def chatted(asked: GuardedLLM) -> list[str]:
    return [asked.chat(chat(prompt)).message.content or "" for prompt in PROMPTS]


def chat_streamed(asked: GuardedLLM) -> list[str]:
    return [piece.delta or "" for prompt in PROMPTS for piece in asked.stream_chat(chat(prompt))]


def predicted(asked: GuardedLLM) -> list[str]:
    return [asked.predict(TEMPLATE, x=prompt) for prompt in PROMPTS]


def predictions_streamed(asked: GuardedLLM) -> list[str]:
    return ["".join(asked.stream(TEMPLATE, x=prompt)) for prompt in PROMPTS]


def awaited(asked: GuardedLLM) -> list[str]:
    async def ask() -> list[str]:
        texts = [(await asked.acomplete(prompt)).text for prompt in PROMPTS]
        texts += [(await asked.achat(chat(prompt))).message.content or "" for prompt in PROMPTS]
        texts += [piece.delta or "" async for piece in await asked.astream_complete("b")]
        return texts + [piece.delta or "" async for piece in await asked.astream_chat(chat("b"))]

    return asyncio.run(ask())


WAYS = [completed, streamed, chatted, chat_streamed, predicted, predictions_streamed, awaited]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_every_text_satisfies_the_constraint(world: World, way: Callable[[GuardedLLM], list[str]]) -> None:
    require_all(way(llm(guarded(world), world)))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_negative_control_without_its_check_a_text_gets_through(world: World, way: Any) -> None:
    with pytest.raises(AssertionError, match="got through"):
        require_all(way(llm(unchecked(world), world)))


def test_an_exhausted_budget_travels_as_it_is(world: World) -> None:
    for way in WAYS:
        with pytest.raises(BudgetExhausted) as caught:
            way(llm(hopeless(world), world))
        assert caught.value.report.ended == "max_attempts"


def test_reports_and_options(world: World) -> None:
    asked = llm(guarded(world), world, constraints=Regex("^c"))
    reply = asked.complete("b")
    assert reply.text.startswith("c")
    assert reply.raw["guardwrap"]["drawn_from"] == "exactly your model's own distribution, given the constraint (g)"
    answer = asked.chat(chat("b"), constraints=Regex("^d"), seed=1)
    assert answer.raw["guardwrap"]["seed"] == 1
    assert str(answer.message.content).startswith("d")
    assert asked.complete("b", constraints=Regex("c"), stop_strings=["c"]).text.endswith("c")
    with pytest.raises(UsageError, match="tools"):
        asked.complete("b", tools=[print])
    with pytest.raises(UsageError, match="did you mean 'temperature'"):
        asked.complete("b", temprature=1.0)


async def last_of(stream: Any) -> Any:
    return [piece async for piece in await stream][-1]


USES: dict[str, Callable[[GuardedLLM], Any]] = {
    "complete": lambda asked: asked.complete("b"),
    "stream_complete": lambda asked: [*asked.stream_complete("b")][-1],
    "acomplete": lambda asked: asyncio.run(asked.acomplete("b")),
    "chat": lambda asked: asked.chat(chat("b")),
    "stream_chat": lambda asked: [*asked.stream_chat(chat("b"))][-1],
    "achat": lambda asked: asyncio.run(asked.achat(chat("b"))),
    "astream_complete": lambda asked: asyncio.run(last_of(asked.astream_complete("b"))),
    "astream_chat": lambda asked: asyncio.run(last_of(asked.astream_chat(chat("b")))),
}


@pytest.mark.parametrize("way", USES)
def test_usage_is_where_callbacks_read_it(world: World, way: str) -> None:
    asked = llm(guarded(world), world, seed=2, proposal=Prompt("{prompt}aaa"))
    counter = TokenCountingHandler(tokenizer=list)
    asked.callback_manager = CallbackManager([counter])
    response = USES[way](asked)
    usage, report = response.raw["usage"], response.raw["guardwrap"]
    assert usage["prompt_tokens"] == report["prompt_tokens"] > 0
    assert report["usage"]["attempts"] > 1, "otherwise nothing was rejected"
    assert 0 < usage["completion_tokens"] < report["usage"]["tokens"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert response.additional_kwargs == usage
    counts = [(event.prompt_token_count, event.completion_token_count) for event in counter.llm_token_counts]
    assert counts == [(usage["prompt_tokens"], usage["completion_tokens"])], "each call is counted once"


def test_the_usage_of_a_fallback_is_that_of_its_prompt(world: World) -> None:
    spent = guarded(world, Length(min=100), budget=Budget(max_attempts=2), on_exhausted=Fallback("c" * 100))
    usage = llm(spent, world).complete("b").raw["usage"]
    assert usage["completion_tokens"] == 0
    assert usage["total_tokens"] == usage["prompt_tokens"] > 0


def test_metadata(world: World) -> None:
    metadata = llm(guarded(world), world).metadata
    assert metadata.model_name == guarded(world).session.model_name != ""
    assert metadata.context_window == world.model.config.max_position_embeddings
    assert metadata.num_output == world.max_new_tokens
    assert metadata.is_chat_model == (world.tokenizer.chat_template is not None)
    assert "guarded" not in llm(guarded(world), world).to_dict()


def test_metadata_of_an_endpoint() -> None:
    wrapper = GuardedGenerator(Endpoint("http://localhost:1/v1", model="tiny"), NO_VOWEL)
    metadata = GuardedLLM(wrapper, options={"max_new_tokens": 4}).metadata
    assert (metadata.model_name, metadata.num_output, metadata.is_chat_model) == ("tiny", 4, True)


@pytest.mark.slow
@pytest.mark.parametrize("schema", [Digit, {"enum": [0, 1]}])
def test_structured_values_are_guaranteed(world: World, schema: Any) -> None:
    asked = llm(guarded(world, ~Regex("0"), budget=Budget(max_attempts=100_000)), world)
    values = [asked.structured_predict(schema, TEMPLATE, x="b") for _ in range(4)]
    values.append(asked.structured_predict(schema, TEMPLATE, {"seed": 1}, x="b"))
    values.append(asyncio.run(asked.astructured_predict(schema, TEMPLATE, x="b")))
    values += list(asked.stream_structured_predict(schema, TEMPLATE, x="b"))
    values.append(asked.structured_predict(schema, ChatPromptTemplate(chat("{x}")), x="b"))

    async def later() -> list[Any]:
        return [value async for value in await asked.astream_structured_predict(schema, TEMPLATE, x="b")]

    values += asyncio.run(later())
    assert len(values) == 9
    if schema is Digit:
        values.append(asked.as_structured_llm(Digit).complete("b").raw)
        assert {type(value) for value in values} == {Digit}
    else:
        assert values == [1] * 9  # the wrapper's own constraint applies as well


def test_negative_control_a_value_of_a_text_without_its_schema(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from guardwrap.integrations.guarded_call import one as right

    monkeypatch.setattr(
        "guardwrap.integrations.llamaindex.one", lambda *given, schema=None, **more: right(*given, **more)
    )
    with pytest.raises(UsageError, match="does not hold for this text"):
        [llm(guarded(world), world).structured_predict(Digit, TEMPLATE, x="b") for _ in range(20)]


def test_asynchronous_calls_leave_the_event_loop_free(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, together = llm(guarded(world), world), threading.Barrier(3, timeout=60)
    run = asked.guarded.run

    def met(*prompts: Any, **options: Any) -> Any:
        together.wait()  # until all three calls have begun
        return run(*prompts, **options)

    monkeypatch.setattr(asked.guarded, "run", met)

    async def ask() -> list[Any]:
        async def streamed(stream: Any) -> list[Any]:
            return [piece async for piece in await stream]

        stream = streamed(asked.astream_chat(chat("b")))
        return await asyncio.gather(asked.achat(chat("b")), asked.acomplete("b"), stream)

    assert len(asyncio.run(ask())) == 3


@pytest.mark.slow
def test_a_value_after_reasoning() -> None:
    from tests.integrations.fixtures_tools import guarded_chat, tools_world

    world = tools_world("7")
    asked = llm(guarded_chat(world), world)
    assert [asked.structured_predict(Digit, TEMPLATE, x="x") for _ in range(8)] == [Digit(7)] * 8


def test_it_takes_a_wrapper_or_what_makes_one(world: World) -> None:
    require_all(completed(GuardedLLM(world.pipeline(), NO_VOWEL, options=world.settings)))
    with pytest.raises(UsageError, match="constraints= is missing"):
        GuardedLLM(world.pipeline())
