"""Haystack's kinds of calls: each reply is checked."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from haystack import Pipeline
from haystack.components.builders import PromptBuilder
from haystack.dataclasses import ChatMessage

from guardwrap import BudgetExhausted, GuardedGenerator, Regex, constraint
from guardwrap.errors import ConstraintError, UsageError
from guardwrap.integrations.haystack import GuardedChatGenerator, GuardedTextGenerator
from guardwrap.testing import World
from tests.integrations.fixtures_models import NO_VOWEL, PROMPTS, guarded, hopeless, require_all, small_world, unchecked

ALLOWED = ["guardwrap.integrations.haystack"]


@pytest.fixture(scope="module")
def world() -> World:
    return small_world()


@pytest.fixture(scope="module")
def folder(world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model in a folder, which is loaded like a Hub id."""
    path = tmp_path_factory.mktemp("model")
    world.model.save_pretrained(path)
    world.tokenizer.save_pretrained(path)
    return str(path)


def texts_of(found: Any) -> list[str]:
    return [str(reply.text if isinstance(reply, ChatMessage) else reply) for reply in found["replies"]]


def run(wrapper: GuardedGenerator, settings: Any) -> list[str]:
    component = GuardedTextGenerator(wrapper, generation_kwargs=settings)
    return [text for prompt in PROMPTS for text in texts_of(component.run(prompt))]


def run_later(wrapper: GuardedGenerator, settings: Any) -> list[str]:
    component = GuardedTextGenerator(wrapper, generation_kwargs=settings)
    return [text for prompt in PROMPTS for text in texts_of(asyncio.run(component.run_async(prompt)))]


def chat(wrapper: GuardedGenerator, settings: Any) -> list[str]:
    component = GuardedChatGenerator(wrapper, generation_kwargs=settings)
    return [text for prompt in PROMPTS for text in texts_of(component.run([ChatMessage.from_user(prompt)]))]


def chat_later(wrapper: GuardedGenerator, settings: Any) -> list[str]:
    component = GuardedChatGenerator(wrapper, generation_kwargs=settings)
    return [text for prompt in PROMPTS for text in texts_of(asyncio.run(component.run_async(prompt)))]


def in_a_pipeline(wrapper: GuardedGenerator, settings: Any) -> list[str]:
    pipe = Pipeline()
    pipe.add_component("prompt", PromptBuilder("{{x}}", required_variables=["x"]))
    pipe.add_component("llm", GuardedTextGenerator(wrapper, generation_kwargs=settings))
    pipe.connect("prompt.prompt", "llm.prompt")
    return [text for x in PROMPTS for text in texts_of(pipe.run({"prompt": {"x": x}})["llm"])]


WAYS = [run, run_later, chat, chat_later, in_a_pipeline]


@pytest.mark.parametrize("way", WAYS)
def test_every_reply_satisfies_the_constraint(world: World, way: Callable[..., list[str]]) -> None:
    require_all(way(guarded(world), world.settings))


@pytest.mark.parametrize("way", WAYS)
def test_negative_control_without_its_check_a_reply_gets_through(world: World, way: Any) -> None:
    with pytest.raises(AssertionError, match="got through"):
        require_all(way(unchecked(world), world.settings))


@pytest.mark.parametrize("way", WAYS[:-1])
def test_an_exhausted_budget_travels_as_it_is(world: World, way: Any) -> None:
    with pytest.raises(BudgetExhausted) as caught:
        way(hopeless(world), world.settings)
    assert caught.value.report.ended == "max_attempts"


def test_replies_and_their_meta(world: World) -> None:
    component = GuardedTextGenerator(guarded(world), generation_kwargs={**world.settings, "constraints": Regex("^c")})
    found = component.run("b", {"num_return_sequences": 3})
    assert len(found["replies"]) == len(found["meta"]) == 3
    assert all(text.startswith("c") for text in found["replies"])
    assert found["meta"][0]["guardwrap"]["accepted"] == 3
    found = GuardedChatGenerator(guarded(world), generation_kwargs=world.settings).run("b", {"num_return_sequences": 2})
    assert [reply.meta["guardwrap"]["drawn_from"] for reply in found["replies"]] == [
        "exactly your model's own distribution, given the constraint (g)"
    ] * 2
    with pytest.raises(UsageError, match="did you mean 'temperature'"):
        component.run("b", {"temprature": 1.0})


def test_a_model_of_a_folder_is_named_without_its_path(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.model, "name_or_path", "/home/someone/models/small")
    found = GuardedTextGenerator(guarded(world), generation_kwargs=world.settings).run("b")
    assert found["meta"][0]["model"] == "small"


@pytest.mark.parametrize("kind", [GuardedTextGenerator, GuardedChatGenerator])
def test_a_pipelines_file_has_model_and_constraint(world: World, folder: str, kind: Any) -> None:
    pipe = Pipeline()
    pipe.add_component("llm", kind(folder, NO_VOWEL, generation_kwargs=world.settings))
    again = Pipeline.loads(pipe.dumps(), allowed_modules=ALLOWED)
    name = "prompt" if kind is GuardedTextGenerator else "messages"
    require_all(text for prompt in PROMPTS for text in texts_of(again.run({"llm": {name: prompt}})["llm"]))


def test_negative_control_a_file_without_its_constraint(world: World, folder: str) -> None:
    pipe = Pipeline()
    pipe.add_component("llm", GuardedTextGenerator(folder, NO_VOWEL, generation_kwargs=world.settings))
    data = pipe.to_dict()
    settings = data["components"]["llm"]["init_parameters"]
    settings["constraints"] = "guardwrap: 1\nconstraint: {kind: length, min: 0}\n"
    again = Pipeline.from_dict(data, allowed_modules=ALLOWED)
    with pytest.raises(AssertionError, match="got through"):
        require_all(text for prompt in PROMPTS for text in texts_of(again.run({"llm": {"prompt": prompt}})["llm"]))


def test_the_model_is_loaded_when_it_is_needed(folder: str, tmp_path: Path) -> None:
    component = GuardedTextGenerator(str(tmp_path / "nothing"), NO_VOWEL)  # nothing is loaded before the first run
    assert component.to_dict()["init_parameters"]["generator"].endswith("nothing")
    loaded = GuardedTextGenerator(folder, NO_VOWEL)
    loaded.warm_up()
    assert texts_of(loaded.run("b", {"max_new_tokens": 2}))


def test_what_no_file_can_hold(world: World, folder: str) -> None:
    with pytest.raises(UsageError, match="object in memory"):
        GuardedTextGenerator(guarded(world)).to_dict()
    with pytest.raises(ConstraintError, match="object in memory"):
        GuardedTextGenerator(folder, constraint(lambda text: True)).to_dict()
    data = GuardedTextGenerator(folder, NO_VOWEL).to_dict()
    data["init_parameters"]["constraints"] = "guardwrap: 1\nconstraint: {kind: python, function: 'os:getcwd'}\n"
    with pytest.raises(ConstraintError, match="names Python code"):
        GuardedTextGenerator.from_dict(data)


def test_it_takes_a_wrapper_or_what_makes_one(world: World) -> None:
    require_all(
        texts_of(
            GuardedTextGenerator(world.pipeline(), NO_VOWEL).run("b", {"num_return_sequences": 20, **world.settings})
        )
    )
    with pytest.raises(UsageError, match="constraints= is missing"):
        GuardedTextGenerator(world.pipeline())
    with pytest.raises(UsageError, match="constraints= is missing"):
        GuardedTextGenerator("local")
