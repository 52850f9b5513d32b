"""Pipelines whose users have overridden a stage: own prompts are drawn from, and what may change a text is refused."""

from types import MethodType
from typing import Any

import pytest
from transformers import TextGenerationPipeline
from transformers.pipelines import PIPELINE_REGISTRY

from guardwrap import Budget, GuardedGenerator, Regex
from guardwrap.errors import ModelError, UsageError
from guardwrap.models import calls
from guardwrap.models.calls import own_method, require_callable
from guardwrap.testing import World, table_world
from tests import fixtures_models

NO_LIMIT = Budget(max_attempts=None)


def world() -> World:
    return table_world(0, letters="ab .", max_new_tokens=4)


def built(kind: Any, made: World) -> Any:
    return kind(model=made.model, tokenizer=made.tokenizer, task="text-generation")


def first_sentences(records: Any) -> Any:
    for record in records:
        record["generated_text"] = record["generated_text"].split(".")[0]
    return records


def overriding(method: str) -> type[TextGenerationPipeline]:
    """Return a pipeline with a method of the user's, which changes records if it returns some."""

    def own(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = getattr(TextGenerationPipeline, method)(self, *args, **kwargs)
        return first_sentences(result) if isinstance(result, list) else result

    return type("Own", (TextGenerationPipeline,), {method: own})


METHODS = {
    "postprocess": "it may change a text after it was judged; change texts after the call",
    "_forward": "it may change a text",
    "forward": "it may change a text",
    "__call__": "guardwrap runs the pipeline's stages itself; change prompts in preprocess",
    "run_single": "guardwrap runs the pipeline's stages itself",
}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_that_may_change_a_text_is_refused(method: str) -> None:
    with pytest.raises(UsageError, match=rf"^Own\.{method} is not supported, because {METHODS[method]}") as raised:
        GuardedGenerator(built(overriding(method), world()), Regex("b"))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["text", "llava", "whisper", "speech_to_text"])
def test_an_attribute_that_comes_later_is_refused_by_the_next_call(name: str) -> None:
    made = world()
    pipe = made.pipeline() if name == "text" else getattr(fixtures_models, name)()
    guarded = GuardedGenerator(pipe, Regex("b"))
    pipe.postprocess = MethodType(lambda self, *args, **kwargs: type(self).postprocess(self, *args, **kwargs), pipe)
    with pytest.raises(UsageError, match=rf"^{type(pipe).__name__}\.postprocess is not supported"):
        guarded("a")


def test_negative_control_without_the_refusal_what_is_drawn_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "own_method", lambda *_: None)
    made = world()
    guarded = GuardedGenerator(built(overriding("postprocess"), made), Regex("b"), budget=NO_LIMIT)
    records = guarded("a", seed=1, num_return_sequences=60, return_full_text=False, **made.settings)
    assert [record for record in records if "b" not in record["generated_text"]]


class AnotherPrompt(TextGenerationPipeline):
    def preprocess(self, prompt: Any, **kwargs: Any) -> Any:
        return super().preprocess("b" + prompt, **kwargs)


def test_the_prompt_that_a_pipeline_makes_is_the_one_drawn_from_judged_and_returned() -> None:
    made = world()
    pipe = built(AnotherPrompt, made)
    (drawn,) = pipe("a", **made.settings)
    guarded = GuardedGenerator(pipe, Regex("^ba", on="full"), seed=1)
    (outcome,) = guarded.run("a", **made.settings, num_return_sequences=20)
    records = guarded("a", seed=1, **made.settings, num_return_sequences=20)
    assert [record["generated_text"] for record in records] == [f"ba{text}" for text in outcome.texts]
    assert drawn["generated_text"].startswith("ba")
    assert outcome.prompt == "a"
    assert {draw.prompt for draw in outcome.draws} == {"ba"}
    assert not any("no early abort" in note for note in outcome.report.notes)
    (dead,) = guarded.run("a", constraints=~Regex("a"), **made.settings, num_return_sequences=2000, seed=1)
    assert dead.report.usage.tokens < 4 * dead.report.usage.attempts  # attempts end with the first a


class Rewritten(type(world().tokenizer)):  # type: ignore[misc]
    """A tokenizer that rewrites text where the model has written a certain word, which random tokens may not show."""

    def decode(self, *args: Any, **kwargs: Any) -> Any:
        return super().decode(*args, **kwargs).replace("abab", "b")


def test_a_tokenizer_with_its_own_decode_gets_no_early_verdicts() -> None:
    made = world()
    made.tokenizer.__class__ = Rewritten
    guarded = GuardedGenerator(made.pipeline(), ~Regex("a"), budget=NO_LIMIT)
    (outcome,) = guarded.run(".", **made.settings, num_return_sequences=300, seed=1)
    drawn = {made.tokenizer.convert_tokens_to_string(list(map(str, draw.token_ids))) for draw in outcome.draws}
    assert drawn
    assert any("rewrites text" in note for note in outcome.report.notes)
    assert all("a" not in text for text in outcome.texts)


def test_a_registered_task_of_ones_own_is_read_by_its_class() -> None:
    made = world()
    PIPELINE_REGISTRY.register_pipeline("sentences", pipeline_class=AnotherPrompt)
    pipe = AnotherPrompt(model=made.model, tokenizer=made.tokenizer, task="sentences")
    records = GuardedGenerator(pipe, Regex("b"), budget=NO_LIMIT)("a", seed=1, num_return_sequences=20, **made.settings)
    assert all("b" in record["generated_text"].removeprefix("ba") for record in records)


def test_methods_of_libraries_are_no_users_own() -> None:
    made = world()
    pipe = made.pipeline()
    assert own_method(pipe, ("__call__", "preprocess", "_forward", "forward", "postprocess")) is None
    assert own_method(made.tokenizer, ("decode", "batch_decode")) is None
    assert own_method(made.model, ("generate",)) is None
    require_callable(pipe)


@pytest.mark.parametrize("change", ["one less", "another", "two rounds"])
def test_a_model_whose_generate_changes_what_is_drawn_is_refused(change: str) -> None:
    made = world()
    right = type(made.model).generate

    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = right(self, *args, **kwargs)
        if change == "two rounds":
            return right(self, *args, **kwargs)
        tokens = output.sequences if hasattr(output, "sequences") else output
        if change == "one less":
            tokens = tokens[:, :-1]
        else:
            tokens[:, -1] = 1
        if hasattr(output, "sequences"):
            output.sequences = tokens
            return output
        return tokens

    made.model.generate = MethodType(generate, made.model)
    guarded = GuardedGenerator(made.model, Regex("b"), tokenizer=made.tokenizer)
    for call in (
        lambda: guarded("a", **made.settings),
        lambda: guarded.generate(**made.tokenizer("a", return_tensors="pt"), **made.settings),
    ):
        with pytest.raises((UsageError, ModelError), match="its generate changes drawn tokens"):
            call()
