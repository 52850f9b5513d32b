"""Pipelines whose users have overridden a stage: what it renders is judged, or it is refused by name."""

from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
from transformers import TextGenerationPipeline
from transformers.pipelines import PIPELINE_REGISTRY

from guardwrap import Budget, GuardedGenerator, Masked, Regex, Twisted
from guardwrap.errors import ModelError, UsageError
from guardwrap.models import calls
from guardwrap.models.rendering import own_method, require_callable
from guardwrap.testing import World, goodness_of_fit, table_world
from tests import fixtures_models

LETTERS = "ab ."
NO_LIMIT = Budget(max_attempts=None)


def world() -> World:
    made = table_world(0, letters=LETTERS, max_new_tokens=4)
    made.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return made


def first_sentence(text: str) -> str:
    return text.split(".")[0]


def changed(records: Any, change: Callable[[str], str]) -> Any:
    """Return records whose texts, or last messages, are changed."""
    for record in records:
        value = record["generated_text"]
        if isinstance(value, str):
            record["generated_text"] = change(value)
        else:
            record["generated_text"] = [*value[:-1], {**value[-1], "content": change(value[-1]["content"])}]
    return records


class FirstSentence(TextGenerationPipeline):
    def postprocess(self, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        return changed(super().postprocess(outputs, *args, **kwargs), first_sentence)


class WithScores(TextGenerationPipeline):
    def postprocess(self, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        records = changed(super().postprocess(outputs, *args, **kwargs), str.upper)
        return [{**record, "length": 3} for record in records]


class Backwards:
    """A mixin, and no option of ``postprocess``."""

    def postprocess(self, outputs: Any) -> Any:
        (ids,) = outputs["generated_sequence"][0].tolist()
        new = ids[outputs["input_ids"].shape[1] :]
        return {"generated_text": self.tokenizer.decode(new, skip_special_tokens=True)[::-1]}  # type: ignore[attr-defined]


class Reversed(Backwards, TextGenerationPipeline):
    def _sanitize_parameters(self, **options: Any) -> Any:
        preprocess, forward, _ = super()._sanitize_parameters(**options)
        return preprocess, forward, {}


class Trimmed(TextGenerationPipeline):
    def _forward(self, inputs: Any, **kwargs: Any) -> Any:
        outputs = super()._forward(inputs, **kwargs)
        start = outputs["input_ids"].shape[1]
        outputs["generated_sequence"] = outputs["generated_sequence"][:, :, : start + 2]
        return outputs


class TrimmedAround(TextGenerationPipeline):
    def forward(self, inputs: Any, **kwargs: Any) -> Any:
        outputs = super().forward(inputs, **kwargs)
        outputs["generated_sequence"] = outputs["generated_sequence"][:, :, : outputs["input_ids"].shape[1] + 2]
        return outputs


def patched(kind: type, made: World) -> Any:
    """Return a pipeline of transformers whose own attribute is this class's ``postprocess``."""
    pipe = made.pipeline()

    def postprocess(self: Any, outputs: Any, **kwargs: Any) -> Any:
        return changed(TextGenerationPipeline.postprocess(self, outputs, **kwargs), first_sentence)

    pipe.postprocess = MethodType(postprocess, pipe)
    return pipe


def built(kind: Any, made: World) -> Any:
    return kind(model=made.model, tokenizer=made.tokenizer, task="text-generation")


KINDS: dict[str, Callable[[World], Any]] = {
    kind.__name__: (lambda made, kind=kind: built(kind, made))
    for kind in (FirstSentence, WithScores, Reversed, Trimmed, TrimmedAround)
} | {"an attribute": lambda made: patched(FirstSentence, made)}
OPTIONS: dict[str, dict[str, Any]] = {
    "full text": {},
    "new text": {"return_full_text": False},
    "special tokens": {"skip_special_tokens": False, "return_full_text": False},
    "cleaned up": {"clean_up_tokenization_spaces": True},
    "a prefix": {"prefix": "b", "return_full_text": False},
}
CHAT = [{"role": "user", "content": "a."}]
PROMPTS: dict[str, Any] = {
    "a text": "a",
    "a text with an end": "a.",
    "a chat": CHAT,
    "a chat that goes on": [*CHAT, {"role": "assistant", "content": "b"}],
}


NEVER = {(options, "a text with an end") for options in ("full text", "cleaned up")}
"""The first sentence of these texts is the prompt's own."""


def as_returned(record: Any) -> str:
    value = record["generated_text"]
    return str(value if isinstance(value, str) else value[-1]["content"])


@pytest.mark.slow
@pytest.mark.parametrize("given", PROMPTS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_returned_is_what_was_judged(kind: str, options: str, given: str) -> None:
    """The record is the pipeline's own for the same tokens, and its text, without the prompt's, is the one judged."""
    made, prompt = world(), PROMPTS[given]
    pipe = KINDS[kind](made)
    rule = Regex("[bB]")
    guarded = GuardedGenerator(pipe, rule, budget=Budget(max_attempts=200), batch_size=32, on_exhausted="none")
    how = {**made.settings, **OPTIONS[options], "num_return_sequences": 12, "seed": 1}
    (outcome,) = guarded.run(prompt, **how)
    records = guarded(prompt, **how)[: len(outcome.texts)]
    never = kind in ("FirstSentence", "an attribute") and (options, given) in NEVER
    assert bool(outcome.texts) is not never
    before = prompt if isinstance(prompt, str) else prompt[-1]["content"] if given == "a chat that goes on" else ""
    if "return_full_text" in OPTIONS[options] or (kind == "Reversed" and given == "a chat that goes on"):
        before = ""
    for text, draw, record in zip(outcome.texts, outcome.draws, records, strict=True):
        assert rule.accepts(text)
        returned = as_returned(record)
        assert returned == (text if draw.full is not None or not before else before + text)
    assert any("may change a text once it is complete" in note for note in outcome.report.notes)
    assert outcome.report.usage.tokens >= sum(len(draw.token_ids) for draw in outcome.draws)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["FirstSentence", "Trimmed", "an attribute"])
def test_drawn_from_g(kind: str) -> None:
    made = world()
    law = made.law()
    cuts: dict[str, Callable[[Any], str]] = {
        "Trimmed": lambda ids: made.tokenizer.decode(ids[:2], skip_special_tokens=True),
    }
    rendered = cuts.get(kind, lambda ids: first_sentence(made.tokenizer.decode(ids, skip_special_tokens=True)))
    kept = {ids: p for ids, p in law.items() if "b" in rendered(ids)}
    expected = {ids: p / sum(kept.values()) for ids, p in kept.items()}
    guarded = GuardedGenerator(KINDS[kind](made), Regex("b"), budget=NO_LIMIT, batch_size=64)
    (outcome,) = guarded.run(made.prompt, **made.settings, num_return_sequences=600, seed=2, return_full_text=False)
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], expected) > 1e-3


def test_negative_control_what_is_drawn_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "own_method", lambda *_: None)
    made = world()
    guarded = GuardedGenerator(built(FirstSentence, made), Regex("b"), budget=NO_LIMIT)
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


class Called(TextGenerationPipeline):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return changed(super().__call__(*args, **kwargs), first_sentence)


class Single(TextGenerationPipeline):
    def run_single(self, *args: Any, **kwargs: Any) -> Any:
        return changed(super().run_single(*args, **kwargs), first_sentence)


@pytest.mark.parametrize(("kind", "method"), [(Called, "Called.__call__"), (Single, "Single.run_single")])
def test_what_happens_around_the_stages_is_refused(kind: Any, method: str) -> None:
    with pytest.raises(UsageError, match=rf"^{method} is not supported, .*move what it does into preprocess"):
        GuardedGenerator(built(kind, world()), Regex("b"))


def rendering(render: Callable[[Any, Any], Any]) -> Any:
    """Return a pipeline that renders texts in its own way."""
    kind: Any = type("Own", (TextGenerationPipeline,), {})

    def postprocess(self: Any, outputs: Any, **kwargs: Any) -> Any:
        return render(TextGenerationPipeline.postprocess(self, outputs, **kwargs), outputs)

    kind.postprocess = postprocess
    return built(kind, world())


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "no text": (lambda records, _: [{"answer": 1}], "without 'generated_text'"),
    "a text beside": (lambda records, _: [{**records[0], "raw": "b"}], "'raw' beside 'generated_text'"),
    "a list beside": (lambda records, _: [{**records[0], "raw": ["b"]}], "'raw' beside 'generated_text'"),
    "two records": (lambda records, _: records * 2, "2 records for one text"),
    "no record": (lambda records, _: [], "0 records for one text"),
    "a crash": (lambda records, _: records[0]["b"], "raised KeyError"),
    "a plain string": (lambda records, _: "b", "without 'generated_text'"),
    "a number": (lambda records, _: [{"generated_text": 1}], "no text and no chat"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_judged_is_refused(name: str) -> None:
    render, message = REFUSED[name]
    guarded = GuardedGenerator(rendering(render), Regex("b"), budget=Budget(max_attempts=200))
    with pytest.raises(UsageError, match=rf"^Own\.postprocess .*{message}") as raised:
        guarded("a", seed=1, **world().settings)
    assert "\n" not in str(raised.value)


def test_earlier_messages_stay_as_they_are() -> None:
    def render(records: Any, _: Any) -> Any:
        messages = records[0]["generated_text"]
        return [{"generated_text": [{"role": "user", "content": messages[-1]["content"]}, messages[-1]]}]

    with pytest.raises(UsageError, match="change only the answer"):
        GuardedGenerator(rendering(render), Regex("b"), budget=NO_LIMIT)(CHAT, seed=1, **world().settings)


def test_a_text_that_changes_each_time_is_not_returned() -> None:
    count = iter(range(10**9))
    pipe = rendering(lambda records, _: changed(records, lambda text: f"{text} b{next(count)}"))
    with pytest.raises(UsageError, match=r"Own\.postprocess gives another text when it is called again"):
        GuardedGenerator(pipe, Regex("b"), budget=NO_LIMIT)("a", seed=1, **world().settings)


@pytest.mark.parametrize("proposal", [Masked(), Twisted()])
def test_what_is_unknown_before_the_end_cannot_be_masked_or_weighed(proposal: Any) -> None:
    made = world()
    with pytest.raises(UsageError, match=r"\(\) has to judge unfinished texts, .*FirstSentence.postprocess may change"):
        GuardedGenerator(built(FirstSentence, made), Regex("b"))("a", proposal=proposal, **made.settings)


def test_other_options_that_cannot_be_combined() -> None:
    made = world()
    guarded = GuardedGenerator(built(FirstSentence, made), Regex("b"))
    with pytest.raises(UsageError, match=r"return_tensors is not supported with FirstSentence\.postprocess"):
        guarded("a", return_tensors=True, **made.settings)
    with pytest.raises(UsageError, match=r"FirstSentence\.postprocess gives texts that are made otherwise"):
        guarded(CHAT, constraints=Regex("b", on="answer"), **made.settings)


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


def test_a_message_of_a_template_that_the_pipeline_changes_is_judged() -> None:
    made = fixtures_models.with_template(table_world(1, letters="a12()[]", max_new_tokens=4))

    class Louder(TextGenerationPipeline):
        def postprocess(self, outputs: Any, *args: Any, **kwargs: Any) -> Any:
            records = super().postprocess(outputs, *args, **kwargs)
            message = records[0]["generated_text"][-1]
            message["content"] = message.get("content", "").replace("a", "1")
            return records

    guarded = GuardedGenerator(built(Louder, made), ~Regex("1"), budget=NO_LIMIT, batch_size=64)
    chat = [{"role": "user", "content": "a"}]
    records = guarded(chat, **made.settings, num_return_sequences=60, seed=1)
    (outcome,) = guarded.run(chat, **made.settings, num_return_sequences=60, seed=1)
    assert [record["generated_text"][-1] for record in records] == [*outcome.messages]
    assert not [record for record in records if "1" in str(record["generated_text"][-1])]
    assert any(record["generated_text"][-1].get("reasoning_content") for record in records)


@pytest.mark.parametrize("name", ["llava", "whisper", "speech_to_text"])
def test_images_and_speech(name: str) -> None:
    pipe = getattr(fixtures_models, name)()
    given = {"images": fixtures_models.picture(), "text": "b<image>"} if name == "llava" else fixtures_models.AUDIO
    key = "generated_text" if name == "llava" else "text"
    kind = type(pipe)

    def postprocess(self: Any, *args: Any, **kwargs: Any) -> Any:
        records = kind.postprocess(self, *args, **kwargs)
        for record in records if isinstance(records, list) else [records]:
            record[key] = record[key].replace("a", "") + "!"
        return records

    pipe.postprocess = MethodType(postprocess, pipe)
    guarded = GuardedGenerator(pipe, ~Regex("a") & Regex("!"), budget=NO_LIMIT, seed=1)
    how = {"temperature": 1.0} if name == "whisper" else {"do_sample": True, "num_beams": 1}
    options = {"max_new_tokens": 4, "num_return_sequences": 5, **how}
    records = guarded(given, **(options if name == "llava" else {"generate_kwargs": options}))
    assert all("a" not in record[key] and "!" in record[key] for record in records)


def test_a_registered_task_of_ones_own_is_read_by_its_class() -> None:
    made = world()
    PIPELINE_REGISTRY.register_pipeline("sentences", pipeline_class=FirstSentence)
    pipe = FirstSentence(model=made.model, tokenizer=made.tokenizer, task="sentences")
    records = GuardedGenerator(pipe, Regex("b"), budget=NO_LIMIT)("a", seed=1, num_return_sequences=20, **made.settings)
    assert all("b" in record["generated_text"] for record in records)


def test_methods_of_libraries_are_no_users_own() -> None:
    made = world()
    pipe = made.pipeline()
    assert own_method(pipe, ("__call__", "preprocess", "_forward", "forward", "postprocess")) is None
    assert own_method(made.tokenizer, ("decode", "batch_decode")) is None
    assert own_method(made.model, ("generate",)) is None
    assert own_method(built(Called, made), ("__call__",)) == "Called.__call__"
    require_callable(pipe)
    assert own_method(patched(FirstSentence, made), ("postprocess",)) == "TextGenerationPipeline.postprocess"


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
