"""The wrapper in place of a pipeline: every way to get a text returns only texts that were judged."""

import asyncio
import threading
from typing import Any

import pytest
from transformers import AsyncTextIteratorStreamer, TextGenerationPipeline, TextIteratorStreamer, TextStreamer
from transformers.pipelines import Pipeline

from guardwrap import Budget, BudgetExhausted, GuardedGenerator, Length, Regex
from guardwrap.errors import PromptError, UsageError
from guardwrap.testing import World
from tests.fixtures_models import AUDIO, llava, picture, whisper

NO_VOWEL = ~Regex("[ae]")
NEVER = Length(min=100)


def guard(world: World, constraint: Any = NO_VOWEL, **options: Any) -> GuardedGenerator:
    return GuardedGenerator(world.pipeline(), constraint, **options)


def configured(world: World) -> TextGenerationPipeline:
    """Return a pipeline with all options set, as some of its methods do not accept any."""
    settings = {**world.settings, "return_full_text": False, "num_return_sequences": 40}
    return TextGenerationPipeline(model=world.model, tokenizer=world.tokenizer, task="text-generation", **settings)


def new_texts(pipe: Pipeline, world: World) -> list[str]:
    """Return the new texts of a configured pipeline for a prompt, from each way to call it."""
    ids = pipe.tokenizer("b", return_tensors="pt")["input_ids"]
    rows = pipe.model.generate(ids, **world.settings, num_return_sequences=40)
    texts: list[str] = pipe.tokenizer.batch_decode(rows[:, ids.shape[1] :], skip_special_tokens=True)
    answers = [
        pipe("b"),
        pipe(text_inputs="b"),
        *pipe(["b", "b"]),
        *pipe(each for each in "bb"),
        pipe.predict("b"),
        pipe.transform("b"),
    ]
    return texts + [record["generated_text"] for records in answers for record in records]


def test_it_has_what_a_pipeline_has(world: World) -> None:
    guarded, pipe = guard(world), world.pipeline()
    assert (guarded.task, guarded.device, guarded.framework) == (pipe.task, pipe.device, "pt")
    assert guarded.model.config is world.model.config
    assert guarded.tokenizer is world.tokenizer


def test_what_it_has_not_is_said_in_one_line(world: World) -> None:
    guarded: Any = guard(world)
    with pytest.raises(AttributeError) as caught:
        _ = guarded.tokeniser
    message = str(caught.value)
    assert "did you mean 'tokenizer'" in message
    assert "as_pipeline()" in message
    assert "\n" not in message
    for name in ("forward", "postprocess", "_forward", "__len__"):  # attributes of the pipeline are not forwarded
        assert not hasattr(guarded, name)


def test_prompts_may_be_given_by_the_name_that_the_pipeline_has_for_them(world: World) -> None:
    guarded = guard(world)
    assert guarded(text_inputs="b", seed=1, **world.settings) == guarded("b", seed=1, **world.settings)
    assert guarded.run(text_inputs=["b"], **world.settings)[0].prompt == "b"
    with pytest.raises(PromptError, match="no prompt"):
        guarded(inputs="b", **world.settings)


def test_a_pipeline_of_it_is_a_pipeline(world: World) -> None:
    guarded = guard(world)
    pipe = guarded.as_pipeline()
    assert isinstance(pipe, TextGenerationPipeline)
    assert isinstance(pipe.model, type(world.model))
    assert pipe("b", seed=4, **world.settings) == guarded("b", seed=4, **world.settings)
    assert pipe.guarded is guarded
    assert "Guarded" in repr(pipe)


def test_whatever_a_pipeline_of_it_is_asked_its_texts_are_judged(world: World) -> None:
    pipe = GuardedGenerator(configured(world), NO_VOWEL).as_pipeline()
    assert all(map(NO_VOWEL.accepts, new_texts(pipe, world)))
    for stage in (pipe.forward, pipe._forward):
        with pytest.raises(UsageError, match="as a whole"):
            stage(pipe.preprocess("b"))
    with pytest.raises(UsageError, match="as a whole"):
        pipe.run_single("b", {}, {}, {})


def test_the_wrapped_pipeline_and_its_model_stay_as_they_are(world: World) -> None:
    inner = configured(world)
    GuardedGenerator(inner, NO_VOWEL).as_pipeline()
    assert type(inner) is TextGenerationPipeline
    assert "generate" not in vars(world.model)
    assert not all(
        map(NO_VOWEL.accepts, new_texts(inner, world))
    )  # and the model does write texts that violate the constraint


def test_negative_control_a_model_with_its_own_generate_gets_through(world: World) -> None:
    pipe = GuardedGenerator(configured(world), NO_VOWEL).as_pipeline()
    del pipe.model.generate
    assert not all(map(NO_VOWEL.accepts, new_texts(pipe, world)))


def test_a_guarded_pipeline_is_not_wrapped_again(world: World) -> None:
    with pytest.raises(UsageError, match="guarded already"):
        GuardedGenerator(guard(world).as_pipeline(), NEVER)


@pytest.mark.parametrize(
    ("make", "given", "named", "sampling"),
    [
        (llava, {"images": picture(), "text": "<image>ab"}, {}, {"do_sample": True}),
        (whisper, AUDIO, {"inputs": AUDIO}, {"temperature": 1.0}),
    ],
)
def test_pipelines_of_images_and_speech(make: Any, given: Any, named: Any, sampling: Any) -> None:
    pipe = make()
    guarded = GuardedGenerator(pipe, ~Regex("[.]"))
    made, options = guarded.as_pipeline(), {**sampling, "max_new_tokens": 4, "seed": 1}
    assert isinstance(made, type(pipe))
    assert made(given, **options) == guarded(given, **options) == made(**(named or given), **options)
    with pytest.raises(UsageError, match="takes only token ids"):
        made.model.generate(**options)


@pytest.mark.parametrize("whole", [True, False])
def test_a_streamer_is_handed_the_text_when_it_has_been_accepted(world: World, whole: bool) -> None:
    guarded = guard(world)
    said = guarded("b", seed=2, return_full_text=whole, **world.settings)[0]["generated_text"]
    streamer = TextIteratorStreamer(world.tokenizer, skip_prompt=not whole, timeout=5)
    assert guarded("b", seed=2, return_full_text=whole, streamer=streamer, **world.settings) == [
        {"generated_text": said}
    ]
    assert "".join(streamer) == said


def test_a_streamer_of_generate(world: World) -> None:
    streamer = TextIteratorStreamer(world.tokenizer, skip_prompt=True, timeout=5)
    inputs = world.tokenizer("b", return_tensors="pt")
    model = guard(world).as_pipeline().model
    (row,) = model.generate(**inputs, streamer=streamer, **world.settings)
    assert list(streamer) == [world.tokenizer.decode(row[1:], skip_special_tokens=True)]


def test_a_streamer_of_the_event_loop(world: World) -> None:
    async def read(guarded: GuardedGenerator) -> tuple[Any, list[str]]:
        streamer = AsyncTextIteratorStreamer(world.tokenizer, skip_prompt=True, timeout=5)
        options = {**world.settings, "streamer": streamer, "return_full_text": False}
        call = asyncio.to_thread(guarded, "b", **options)
        ended = await asyncio.gather(call, return_exceptions=True)
        return ended[0], [text async for text in streamer]

    records, texts = asyncio.run(read(guard(world)))
    assert [record["generated_text"] for record in records] == texts
    error, texts = asyncio.run(read(guard(world, NEVER, budget=Budget(max_attempts=2))))
    assert isinstance(error, BudgetExhausted)
    assert not texts


@pytest.mark.parametrize("on_exhausted", ["raise", "none"])
def test_a_stream_without_a_text_ends(world: World, on_exhausted: str) -> None:
    guarded = guard(world, NEVER, budget=Budget(max_attempts=2), on_exhausted=on_exhausted)
    streamer = TextIteratorStreamer(world.tokenizer, timeout=5)
    caught: list[Exception] = []

    def call() -> None:
        try:
            guarded("b", streamer=streamer, **world.settings)
        except BudgetExhausted as error:
            caught.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    assert list(streamer) == []
    thread.join()
    assert len(caught) == (on_exhausted == "raise")


def test_streamers_that_cannot_work(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    guarded, streamer = guard(world), TextStreamer(world.tokenizer)
    for prompts, options in ((["b", "c"], {}), ((each for each in "b"), {}), ("b", {"num_return_sequences": 2})):
        with pytest.raises(UsageError, match="a streamer takes one text"):
            guarded(prompts, streamer=streamer, **options, **world.settings)
    with pytest.raises(UsageError, match="not a TextStreamer"):
        guarded("b", streamer=print)
    with pytest.raises(UsageError, match="streamer"):
        guarded.run("b", streamer=streamer)
    assert capsys.readouterr().out == ""


class Pieces(TextStreamer):
    """Collects what it receives, and whether that is the end."""

    def __init__(self, tokenizer: Any, **options: Any) -> None:
        super().__init__(tokenizer, **options)
        self.received: list[tuple[str, bool]] = []

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self.received.append((text, stream_end))


@pytest.mark.parametrize("skip_prompt", [True, False])
def test_a_streamer_receives_a_text_while_it_is_drawn(world: World, skip_prompt: bool) -> None:
    guarded, longest = guard(world, Length(min=1)), 0
    for seed in range(9):
        streamer = Pieces(world.tokenizer, skip_prompt=skip_prompt)
        said = guarded("b", seed=seed, streamer=streamer, **world.settings)[0]["generated_text"]
        assert "".join(text for text, _ in streamer.received) == said[skip_prompt:]
        assert [end for _, end in streamer.received] == [False] * (len(streamer.received) - 1) + [True]
        longest = max(longest, len(streamer.received))
    assert longest > 3


def test_a_streamer_that_waits_holds_up_its_own_call_only(world: World) -> None:
    """It blocks until another call in the same batch has ended."""
    guarded, others = guard(world, Length(min=1)), threading.Event()

    class Slow(Pieces):
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            begun.set()
            assert others.wait(20)
            super().on_finalized_text(text, stream_end)

    begun, streamer = threading.Event(), Slow(world.tokenizer, skip_prompt=True)
    texts: list[Any] = []
    call = threading.Thread(target=lambda: texts.append(guarded("b", seed=1, streamer=streamer, **world.settings)))
    call.start()
    assert begun.wait(20)
    assert guarded.run("b", seed=2, **world.settings)[0].ok
    assert not texts
    others.set()
    call.join()
    assert "b" + "".join(text for text, _ in streamer.received) == texts[0][0]["generated_text"]


def test_what_a_streamer_raises_reaches_its_caller(world: World) -> None:
    class Broken(TextStreamer):
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        guard(world, Length(min=1))("b", seed=1, streamer=Broken(world.tokenizer), **world.settings)
