"""LangChain's kinds of calls: each text that they return is checked."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.globals import set_llm_cache
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate
from pydantic import BaseModel, RootModel, ValidationError

from guardwrap import Budget, BudgetExhausted, GuardedGenerator, JSONSchema, Length, Regex
from guardwrap.constraints.files.constraint_file import parse
from guardwrap.errors import Deterministic, UsageError
from guardwrap.integrations.langchain import GuardedChatModel, GuardedLLM
from guardwrap.testing import World
from tests.integrations.fixtures_models import (
    DIGIT,
    NO_VOWEL,
    PROMPTS,
    count_runs,
    guarded,
    hopeless,
    require_all,
    small_world,
    unchecked,
)
from tests.integrations.fixtures_tools import call_text, f, guarded_chat, tools_world


class Digit(RootModel[int]):
    """A type whose schema accepts a text of one digit."""


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


def model(kind: Any, wrapper: GuardedGenerator, world: World, **options: Any) -> Any:
    return kind(wrapper, options={**world.settings, **options})


def content(reply: Any) -> str:
    return str(reply.content if isinstance(reply, AIMessage) else reply)


def invoked(asked: Any) -> list[str]:
    return [content(asked.invoke(prompt)) for prompt in PROMPTS]


def batched(asked: Any) -> list[str]:
    return [content(reply) for reply in asked.batch(PROMPTS)]


def streamed(asked: Any) -> list[str]:
    return [content(piece) for prompt in PROMPTS for piece in asked.stream(prompt)]


def generated(asked: Any) -> list[str]:
    values = [asked._convert_input(prompt) for prompt in PROMPTS]
    return [each.text for one in asked.generate_prompt(values).generations for each in one]


def awaited(asked: Any) -> list[str]:
    async def ask() -> list[str]:
        return [content(await asked.ainvoke(prompt)) for prompt in PROMPTS]

    return asyncio.run(ask())


def batched_later(asked: Any) -> list[str]:
    return [content(reply) for reply in asyncio.run(asked.abatch(PROMPTS))]


def streamed_later(asked: Any) -> list[str]:
    async def ask() -> list[str]:
        return [content(piece) for prompt in PROMPTS async for piece in asked.astream(prompt)]

    return asyncio.run(ask())


def as_completed(asked: Any) -> list[str]:
    return [content(reply) for _, reply in asked.batch_as_completed(PROMPTS)]


WAYS = [invoked, batched, streamed, generated, awaited, batched_later, streamed_later, as_completed]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [GuardedLLM, GuardedChatModel])
@pytest.mark.parametrize("way", WAYS)
def test_every_text_satisfies_the_constraint(world: World, kind: Any, way: Callable[[Any], list[str]]) -> None:
    require_all(way(model(kind, guarded(world), world)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [GuardedLLM, GuardedChatModel])
@pytest.mark.parametrize("way", WAYS)
def test_negative_control_without_its_check_a_text_gets_through(world: World, kind: Any, way: Any) -> None:
    with pytest.raises(AssertionError, match="got through"):
        require_all(way(model(kind, unchecked(world), world)))


@pytest.mark.parametrize("kind", [GuardedLLM, GuardedChatModel])
def test_a_batch_is_one_call_of_the_wrapper(world: World, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = guarded(world, seed=3)
    asked = model(kind, wrapper, world)
    runs = count_runs(wrapper, monkeypatch)
    texts = batched(asked)
    assert runs == [len(PROMPTS)]
    batched_later(asked)
    assert runs == [len(PROMPTS)] * 2
    assert asked.batch([]) == []
    asked.invoke("b")  # texts of the batch are not returned again
    assert runs == [len(PROMPTS), len(PROMPTS), 1]
    prompts = [[{"role": "user", "content": each}] if kind is GuardedChatModel else each for each in PROMPTS]
    outcomes = guarded(world, seed=3).run(prompts, **world.settings)
    assert texts == [outcome.texts[0] for outcome in outcomes]


@pytest.mark.parametrize("kind", [GuardedLLM, GuardedChatModel])
def test_a_stream_is_one_piece_the_text(world: World, kind: Any) -> None:
    text = content(model(kind, guarded(world, seed=1), world).invoke("b"))
    assert [content(piece) for piece in model(kind, guarded(world, seed=1), world).stream("b")] == [text]


def test_reports(world: World) -> None:
    result = model(GuardedLLM, guarded(world), world).generate(["b", "c"])
    assert [report["drawn_from"] for report in result.llm_output["guardwrap"]] == [
        "exactly your model's own distribution, given the constraint (g)"
    ] * 2
    assert result.generations[1][0].generation_info["guardwrap"] == result.llm_output["guardwrap"][1]
    reply = model(GuardedChatModel, guarded(world), world).invoke("b")
    assert reply.response_metadata["guardwrap"]["ended"] == "complete"
    assert reply.response_metadata["guardwrap"]["accepted"] == 1


@pytest.mark.parametrize("kind", [GuardedLLM, GuardedChatModel])
def test_options_of_a_call_replace_the_models_own(world: World, kind: Any) -> None:
    asked = model(kind, guarded(world), world, constraints=Regex("b"))
    assert "b" in content(asked.invoke("b"))
    assert content(asked.invoke("b", constraints=Regex("^c"), seed=1)).startswith("c")
    assert content(asked.bind(constraints=Regex("^d")).invoke("b")).startswith("d")
    with pytest.raises(UsageError, match="did you mean 'temperature'"):
        asked.invoke("b", temprature=1.0)


@pytest.mark.parametrize("kind", [GuardedLLM, GuardedChatModel])
def test_a_text_ends_before_a_stop_string_and_is_judged_without_it(world: World, kind: Any) -> None:
    asked = model(kind, guarded(world, ~Regex("c")), world)
    texts = [content(asked.invoke("b", stop=["c"])) for _ in range(20)]
    assert not any("c" in text for text in texts)
    assert any(texts)
    plain = model(kind, guarded(world, Length(min=0)), world)
    assert any("c" in content(plain.invoke("b", seed=seed)) for seed in range(20))  # the model does write it
    assert not any("c" in content(reply) for reply in asked.batch(PROMPTS, stop=["c"]))
    with pytest.raises(UsageError, match="give one of them"):
        asked.invoke("b", stop=["c"], stop_strings=["d"])


def test_tools_are_for_chats(world: World) -> None:
    asked = model(GuardedLLM, guarded(world), world)
    with pytest.raises(UsageError, match="are for chats; give a list of messages, or leave them out"):
        asked.invoke(PROMPTS[0], tools=[f])


def test_a_stop_string_is_no_list_of_letters(world: World) -> None:
    asked = model(GuardedChatModel, guarded(world, Length(min=0)), world, seed=3)
    texts, same = ([reply.text for reply in asked.batch(PROMPTS, stop=stop)] for stop in ("ab", ["ab"]))
    assert texts == same
    assert any("a" in text for text in texts)


@pytest.mark.parametrize("kind", [GuardedLLM, GuardedChatModel])
def test_an_exhausted_budget_travels_as_it_is(world: World, kind: Any) -> None:
    asked = model(kind, hopeless(world), world)
    for way in WAYS:
        with pytest.raises(BudgetExhausted) as caught:
            way(asked)
        assert caught.value.report.ended == "max_attempts"
    assert all(isinstance(each, BudgetExhausted) for each in asked.batch(PROMPTS, return_exceptions=True))
    with pytest.raises(Deterministic, match="do_sample=True"):
        asked.invoke("b", do_sample=False, top_k=None, temperature=None)


def test_the_fallback_of_the_wrappers_file_stays(world: World) -> None:
    """Rules that a call adds keep it, unless they reject it: stop strings, tools, and that others call none."""
    file = parse("guardwrap: 1\nconstraint: {kind: regex, pattern: zz}\nbudget: {max_attempts: 2}\nfallback: zzc\n")
    for kind in (GuardedLLM, GuardedChatModel):
        asked = model(kind, guarded(world, file), world)
        assert [content(asked.invoke("b")), content(asked.invoke("b", stop=["c"]))] == ["zzc", "zz"]
        with pytest.raises(BudgetExhausted):
            asked.invoke("b", response_schema=JSONSchema(DIGIT))
    chat = GuardedChatModel(guarded_chat(tools_world(), file), options=tools_world().settings)
    assert chat.invoke("x").text == chat.bind_tools([f]).invoke("x").text == "zzc"


def test_a_batch_of_chats_keeps_what_was_accepted(world: World) -> None:
    wrapper = guarded(world, Regex("c", on="full"), budget=Budget(max_attempts=1))
    replies = model(GuardedChatModel, wrapper, world).batch(["c", "b"] * 100, return_exceptions=True)
    assert {type(reply) for reply in replies[::2]} == {AIMessage}
    assert {type(reply) for reply in replies[1::2]} == {AIMessage, BudgetExhausted}


@pytest.mark.parametrize("kind", [GuardedLLM, GuardedChatModel])
def test_what_ends_a_whole_batch(world: World, kind: Any) -> None:
    asked = model(kind, guarded(world), world)
    with pytest.raises(UsageError, match="Budget"):
        asked.batch(["b", "c"], budget={})
    assert [type(each) for each in asked.batch(["b", "c"], return_exceptions=True, budget={})] == [UsageError] * 2


def test_a_chat_of_a_batch_that_cannot_be_read(world: World) -> None:
    image = HumanMessage([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}])
    asked = model(GuardedChatModel, guarded(world), world)
    with pytest.raises(UsageError, match="only messages of text"):
        asked.batch(["b", [image]])
    errors = asked.batch(["b", [image]], return_exceptions=True)
    assert ["only messages of text" in str(error) for error in errors] == [True, True]


def test_each_chat_of_a_batch_is_told_to_callbacks(world: World) -> None:
    class Told(BaseCallbackHandler):
        def __init__(self) -> None:
            self.began: list[Any] = []
            self.ended: list[str] = []

        def on_chat_model_start(self, serialized: Any, messages: Any, **_: Any) -> None:
            self.began.append(messages[0][0].content)

        def on_llm_end(self, response: Any, **_: Any) -> None:
            self.ended.append(response.generations[0][0].text)

    told = Told()
    replies = model(GuardedChatModel, guarded(world), world).batch(["b", "c"], {"callbacks": [told]})
    assert told.began == ["b", "c"]
    assert told.ended == [reply.content for reply in replies]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [GuardedLLM, GuardedChatModel])
@pytest.mark.parametrize("schema", [DIGIT, Digit, JSONSchema(Digit)])
def test_structured_output_is_guaranteed(world: World, kind: Any, schema: Any) -> None:
    asked = model(kind, guarded(world, ~Regex("0"), budget=Budget(max_attempts=100_000)), world)
    structured = asked.with_structured_output(schema, method="json_schema", strict=True)
    wanted = 1 if schema is DIGIT else Digit(1)
    values = [structured.invoke("b") for _ in range(5)] + structured.batch(["b", "c"]) + list(structured.stream("b"))
    values.append(asyncio.run(structured.ainvoke("b")))
    assert all(type(value) is type(wanted) for value in values)
    if schema is DIGIT:
        assert values == [1] * len(values)  # the wrapper's own constraint applies as well
    raw = asked.with_structured_output(schema, include_raw=True).invoke("b")
    assert raw["parsing_error"] is None
    assert json.loads(content(raw["raw"])) == getattr(raw["parsed"], "root", raw["parsed"])


def test_negative_control_structured_output_without_its_schema(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that was not checked by the schema is not parsed."""
    asked = model(GuardedChatModel, guarded(world), world)
    structured = asked.with_structured_output(Digit)
    name = "guardwrap.integrations.langchain.run_prompts"
    from guardwrap.integrations.guarded_call import run_prompts as right

    monkeypatch.setattr(name, lambda *arguments, schema, **more: right(*arguments, **more))
    with pytest.raises(UsageError, match="does not hold for this text"):
        [structured.invoke("b") for _ in range(20)]


def test_structured_output_by_any_method_and_strictness(world: World) -> None:
    """The schema always holds, so JSON mode and ``strict`` change nothing."""
    asked = model(GuardedChatModel, guarded(world, budget=Budget(max_attempts=100_000)), world)
    for how in ({"method": "json_mode"}, {"strict": False}, {"strict": None}):
        assert asked.with_structured_output(DIGIT, **how).invoke("b") in (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("include_raw", [True, False])
def test_structured_output_by_a_call(include_raw: bool) -> None:
    class F(BaseModel):
        a: int

    world = tools_world(call_text("F", {"a": 1}), call_text("F", {"a": "one"}))
    asked = GuardedChatModel(guarded_chat(world), options=world.settings)
    schemas = (F, F.model_json_schema(), {"name": "F", "parameters": F.model_json_schema()})
    for schema, value in zip(schemas, (F(a=1), {"a": 1}, {"a": 1}), strict=True):
        structured = asked.with_structured_output(schema, method="function_calling", include_raw=include_raw)
        results = [structured.invoke("x", {"configurable": {}}), *structured.batch(["x"] * 3), *structured.stream("x")]
        assert [each["parsed"] if include_raw else each for each in results[:4]] == [value] * 4


def test_what_structured_output_does_not_take(world: World) -> None:
    asked = model(GuardedChatModel, guarded(world), world)
    refused: list[dict[str, Any]] = [{"method": "tools"}, {"strict": 1.5}, {"tools": []}]
    for wrong in refused:
        with pytest.raises(UsageError, match=next(iter(wrong))):
            asked.with_structured_output(DIGIT, **wrong)
    with pytest.raises(UsageError, match="describes a function"):
        asked.with_structured_output({"name": "add", "parameters": {"type": "object"}})
    with pytest.raises(UsageError, match="add a title"):
        asked.with_structured_output(DIGIT, method="function_calling")
    with pytest.raises(UsageError, match="requires a GuardedChatModel"):
        model(GuardedLLM, guarded(world), world).with_structured_output(DIGIT, method="function_calling")
    with pytest.raises(UsageError, match="response_format"):
        asked.invoke("b", response_format={"type": "json_object"})


def test_a_response_format_of_openais_api(world: World) -> None:
    asked = model(GuardedChatModel, guarded(world, budget=Budget(max_attempts=100_000)), world)
    wanted = {"type": "json_schema", "json_schema": {"name": "digit", "schema": DIGIT}}
    assert {asked.invoke("b", response_format=wanted).content.strip() for _ in range(5)} <= {"0", "1"}


@pytest.mark.parametrize("kind", [GuardedLLM, GuardedChatModel])
def test_standard_parameters_of_langchain(world: World, kind: Any) -> None:
    asked = kind(guarded(world, Length(min=0)), max_tokens=1, temperature=1.0, stop=["c"], options={"top_k": 0})
    texts = [content(reply) for reply in asked.batch(PROMPTS)]
    assert {len(text) for text in texts} <= {0, 1}
    assert len({*texts}) > 1
    assert "c" not in texts
    assert max(len(content(reply)) for reply in asked.batch(PROMPTS, max_new_tokens=4)) > 1
    greedy = kind(guarded(world, Length(min=0)), max_tokens=3, temperature=0)
    assert len({content(reply) for reply in greedy.batch(["b"] * 9)}) == 1
    with pytest.raises(UsageError, match=r"temprature is not a parameter.*did you mean 'temperature'"):
        kind(guarded(world), temprature=1.0)


@pytest.mark.slow
def test_reasoning_is_not_part_of_the_answer() -> None:
    world = tools_world()
    asked = GuardedChatModel(guarded_chat(world, Regex("^x+$", on="answer")), options=world.settings)
    replies = asked.batch(["x"] * 30)
    assert {*"".join(reply.text for reply in replies)} == {"x"}
    assert any(reply.additional_kwargs.get("reasoning_content") for reply in replies)
    assert {reply.response_metadata["model_name"] for reply in replies} == {asked.guarded.session.model_name}


@pytest.mark.slow
def test_a_schema_applies_to_the_answer_after_reasoning() -> None:
    world = tools_world('{"a": 1}')
    asked = GuardedChatModel(guarded_chat(world), options=world.settings)
    structured = asked.with_structured_output({"type": "object", "required": ["a"]}, include_raw=True)
    results = structured.batch(["x"] * 10)
    assert [each["parsed"] for each in results] == [{"a": 1}] * 10
    assert any(each["raw"].additional_kwargs for each in results)


def test_streaming_tells_callbacks_each_message(world: World) -> None:
    class Heard(BaseCallbackHandler):
        def __init__(self) -> None:
            self.tokens: list[str] = []

        def on_llm_new_token(self, token: str, **_: Any) -> None:
            self.tokens.append(token)

    heard = Heard()
    asked = GuardedChatModel(guarded(world), options=world.settings, streaming=True)
    reply = asked.invoke("b", {"callbacks": [heard]})
    assert heard.tokens == [reply.text]


def test_in_a_chain(world: World) -> None:
    chain = ChatPromptTemplate.from_messages([("system", "a"), ("human", "{x}")]) | model(
        GuardedChatModel, guarded(world), world
    )
    require_all(reply.content for reply in chain.batch([{"x": each} for each in PROMPTS]))


def test_messages_become_the_pipelines_chat(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = guarded(world)
    asked = model(GuardedChatModel, wrapper, world)
    seen: list[Any] = []
    run = wrapper.run
    monkeypatch.setattr(wrapper, "run", lambda prompts, **more: run(seen.__iadd__(prompts), **more))
    asked.invoke([SystemMessage("a"), HumanMessage("b"), AIMessage("c"), HumanMessage([{"type": "text", "text": "d"}])])
    assert [(turn["role"], turn["content"]) for turn in seen[0]] == [
        ("system", "a"),
        ("user", "b"),
        ("assistant", "c"),
        ("user", "d"),
    ]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(UsageError, match="only messages of text"):
        asked.invoke([HumanMessage([image])])


@pytest.mark.parametrize("kind", [GuardedLLM, GuardedChatModel])
def test_no_cache_gives_a_text_of_another_constraint(world: World, kind: Any) -> None:
    set_llm_cache(InMemoryCache())
    try:
        asked = model(kind, guarded(world, budget=Budget(max_attempts=100_000)), world)
        texts = {content(asked.invoke("b", constraints=Regex(f"^{first}"))) for first in "bcdf"}
        assert {text[0] for text in texts} == set("bcdf")
    finally:
        set_llm_cache(None)
    with pytest.raises(UsageError, match="cache"):
        kind(guarded(world), cache=True)
    with pytest.raises(ValidationError, match="frozen"):
        asked.cache = True


@pytest.mark.parametrize("kind", [GuardedLLM, GuardedChatModel])
def test_it_takes_a_wrapper_or_what_makes_one(world: World, kind: Any) -> None:
    asked = kind(world.pipeline(), NO_VOWEL, options=world.settings)
    require_all(batched(asked))
    with pytest.raises(UsageError, match="constraints= is missing"):
        kind(world.pipeline())
    with pytest.raises(UsageError, match="already"):
        kind(guarded(world), NO_VOWEL)
    assert asked._identifying_params["constraint"] == NO_VOWEL.digest
