"""Encoder-decoder models, images and speech: the pipelines' record formats, and errors."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutomaticSpeechRecognitionPipeline,
    Pipeline,
    TextGenerationPipeline,
    TextToAudioPipeline,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
)
from transformers.generation import MaxTimeCriteria

from guardwrap import Budget, Fallback, GuardedGenerator, Keyword, Length, Regex
from guardwrap.errors import BudgetExhausted, Deterministic, PromptError, UsageError
from guardwrap.testing import character_tokenizer
from tests.fixtures_models import AUDIO, LETTERS, bart, llava, picture, speech_to_text, t5, whisper

ANYTHING = Length(min=0)
NEVER = Length(min=100)
SEES = Keyword("b", whole_words=False)
CHAT = [{"role": "user", "content": [{"type": "image", "image": picture(1)}, {"type": "text", "text": "ab"}]}]
PREFILL = [*CHAT, {"role": "assistant", "content": [{"type": "text", "text": "de"}]}]


@pytest.fixture(scope="module")
def vision() -> Pipeline:
    return llava()


@pytest.fixture(scope="module")
def speech() -> Pipeline:
    return whisper()


def audios() -> Iterator[np.ndarray]:
    yield from (AUDIO, AUDIO[:11_000])


IMAGES = {
    "dict": lambda: {"images": picture(), "text": "<image>ab"},
    "text": lambda: "abc",
    "chat": lambda: CHAT,
    "prefill": lambda: PREFILL,
    "chats": lambda: [CHAT, PREFILL],
    "texts": lambda: ["abc", "d"],
}
IMAGE_SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "new text": {"return_full_text": False},
    "special tokens": {"skip_special_tokens": False, "return_full_text": False},
    "stop": {"stop_sequence": "c"},
    "beams": {"generate_kwargs": {"num_beams": 3, "num_return_sequences": 2}},
    "repetition": {"generate_kwargs": {"repetition_penalty": 1.7, "min_new_tokens": 5}},
}


@pytest.mark.slow
@pytest.mark.parametrize("given", IMAGES)
@pytest.mark.parametrize("setting", IMAGE_SETTINGS)
def test_images_same_as_the_pipeline(vision: Pipeline, given: str, setting: str) -> None:
    def settings() -> dict[str, Any]:  # new objects, as the pipeline modifies its arguments
        return {name: dict(v) if isinstance(v, dict) else v for name, v in IMAGE_SETTINGS[setting].items()}

    ours = GuardedGenerator(vision, ANYTHING)(IMAGES[given](), max_new_tokens=6, **settings())
    prompts = {("images" if given == "dict" else "text"): IMAGES[given]()}
    theirs = vision(**prompts, max_new_tokens=6, **settings())
    if setting == "beams" and len(vision(text="abc", max_new_tokens=6, **settings())) == 1:
        pytest.skip("the image pipeline of this release of transformers returns one text of several")
    assert ours == theirs


def test_several_images(vision: Pipeline) -> None:
    """The pipeline mistakes a list of these for a chat, but accepts a generator of them."""
    prompts = [{"images": picture(i), "text": "<image>ab"} for i in range(3)]
    guarded = GuardedGenerator(vision, ANYTHING)
    each = [vision(prompt, max_new_tokens=6) for prompt in prompts]
    assert guarded(prompts, max_new_tokens=6) == each
    lazy = guarded((prompt for prompt in prompts), max_new_tokens=6)
    assert not isinstance(lazy, list)
    assert list(lazy) == list(vision((prompt for prompt in prompts), max_new_tokens=6)) == each
    assert [o.texts[0] for o in guarded.stream(prompts, max_new_tokens=6)] == [
        record[0]["generated_text"].removeprefix("<image>ab") for record in each
    ]


def test_an_image_and_a_text_as_arguments(vision: Pipeline) -> None:
    theirs = vision(picture(), text="<image>ab", max_new_tokens=6)
    guarded = GuardedGenerator(vision, ANYTHING)
    assert guarded(picture(), text="<image>ab", max_new_tokens=6) == theirs
    assert guarded(images=picture(), text="<image>ab", max_new_tokens=6) == theirs
    assert guarded(text=CHAT, max_new_tokens=6) == vision(text=CHAT, max_new_tokens=6)
    tensors, expected = (pipe("ab", max_new_tokens=6, return_tensors=True) for pipe in (guarded, vision))
    assert tensors[0]["generated_token_ids"].tolist() == expected[0]["generated_token_ids"].tolist()


def test_images_what_the_user_gets_is_what_was_judged(vision: Pipeline) -> None:
    judged = SEES & ~Regex("c")
    guarded = GuardedGenerator(vision, judged)
    options: dict[str, Any] = {"do_sample": True, "num_return_sequences": 5, "max_new_tokens": 6, "seed": 3}
    for prompt, text in (({"images": picture(), "text": "<image>ab"}, "<image>ab"), (CHAT, "ab."), (PREFILL, "abde")):
        (outcome,) = guarded.run([prompt], **options)
        assert outcome.ok
        assert outcome.report.mode == "generate"
        assert outcome.prompt == prompt
        assert {draw.prompt for draw in outcome.draws} == {text}
        assert all(judged.accepts(text) for text in outcome.texts)
        new = guarded(prompt, return_full_text=False, **options)
        assert [record["generated_text"] for record in new] == list(outcome.texts)
        full = [record["generated_text"] for record in guarded(prompt, **options)]
        if prompt is PREFILL:
            assert [f[-1]["content"][-1]["text"] for f in full] == ["de" + text for text in outcome.texts]
        elif prompt is CHAT:
            assert [f[-1] for f in full] == [{"role": "assistant", "content": text} for text in outcome.texts]
        else:
            assert full == ["<image>ab" + text for text in outcome.texts]


SPEECH_SETTINGS: dict[str, dict[str, Any]] = {
    "beams, the pipeline's own": {},
    "greedy": {"num_beams": 1},
    "several beams": {"num_beams": 3, "generate_kwargs": {"length_penalty": 2.0}},
    "language": {"return_language": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("setting", SPEECH_SETTINGS)
def test_speech_same_as_the_pipeline(speech: Pipeline, setting: str) -> None:
    settings = {"max_new_tokens": 9, **SPEECH_SETTINGS[setting]}
    guarded = GuardedGenerator(speech, ANYTHING)
    raw = {"raw": AUDIO, "sampling_rate": 16_000, "speaker": "Ada"}
    assert guarded(AUDIO, **settings) == speech(AUDIO, **settings)
    assert guarded(raw, **settings) == speech(dict(raw), **settings)
    assert raw.keys() == {"raw", "sampling_rate", "speaker"}, "the user's dictionary was modified"
    assert guarded([AUDIO, AUDIO[:11_000]], **settings) == speech([AUDIO, AUDIO[:11_000]], **settings)
    lazy = guarded(audios(), **settings)
    assert not isinstance(lazy, list)
    assert list(lazy) == list(speech(audios(), **settings))


@pytest.mark.parametrize("num_beams", [1, 5])
def test_speech_of_another_model_same_as_the_pipeline(num_beams: int) -> None:
    pipe = speech_to_text()
    audio = np.random.default_rng(0).normal(size=16_000).astype(np.float32)
    options = {"max_new_tokens": 8, "num_beams": num_beams}
    assert GuardedGenerator(pipe, ANYTHING)(audio, **options) == pipe(audio, **options)


def test_speech_is_drawn_when_asked(speech: Pipeline) -> None:
    judged = SEES & ~Regex("c")
    guarded = GuardedGenerator(speech, judged)
    options: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 9, "num_return_sequences": 5, "seed": 2}
    (outcome,) = guarded.run(AUDIO, **options)
    assert outcome.report.drawn_from == "exactly your model's own distribution, given the constraint (g)"
    assert outcome.report.usage.attempts > 5
    assert len(set(outcome.texts)) > 1
    assert all(judged.accepts(text) for text in outcome.texts)
    assert {draw.prompt for draw in outcome.draws} == {""}
    assert guarded(AUDIO, **options) == [{"text": text} for text in outcome.texts]
    with pytest.raises(Deterministic, match=r"pass temperature=1\.0"):
        guarded(AUDIO, constraints=NEVER, max_new_tokens=9)


@pytest.mark.slow
@pytest.mark.parametrize("make", [t5, bart])
def test_encoder_decoder_models(make: Any) -> None:
    model, tokenizer = make()
    free = GuardedGenerator(model, ANYTHING, tokenizer=tokenizer)
    batch = tokenizer(["ab", "cde a", "b"], padding=True, return_tensors="pt")
    batch.pop("token_type_ids", None)
    for settings in ({}, {"num_beams": 3, "num_return_sequences": 2}, {"repetition_penalty": 1.5, "min_new_tokens": 3}):
        ours = free.generate(**batch, max_new_tokens=6, **settings)
        theirs = model.generate(**batch, max_new_tokens=6, **settings)
        assert ours.tolist() == theirs.tolist()
    output = free.generate(**batch, max_new_tokens=6, num_beams=2, return_dict_in_generate=True)
    assert output.sequences.tolist() == model.generate(**batch, max_new_tokens=6, num_beams=2).tolist()

    guarded = GuardedGenerator(model, SEES, tokenizer=tokenizer)
    options: dict[str, Any] = {"do_sample": True, "max_new_tokens": 6, "num_return_sequences": 3, "seed": 1}
    records = guarded(["ab", "c"], **options)
    outcomes = guarded.run(["ab", "c"], **options)
    assert records == [[{"generated_text": text} for text in outcome.texts] for outcome in outcomes]
    assert all(SEES.accepts(text) for outcome in outcomes for text in outcome.texts)
    assert [outcome.report.mode for outcome in outcomes] == ["generate"] * 2
    ids = guarded("ab", return_tensors=True, **options)
    assert [r["generated_token_ids"] for r in ids] == [[0, *draw.token_ids] for draw in outcomes[0].draws]
    # Only the full view contains the whole words of the prompt.
    assert guarded("ab", **options, constraints=Regex("^ab", on="full"))[0]["generated_text"][:2] != "ab"
    with pytest.raises(Deterministic, match="do_sample=True"):
        guarded("ab", constraints=NEVER, max_new_tokens=3)


def test_a_path_of_an_encoder_decoder_model(tmp_path: Any) -> None:
    model, tokenizer = bart()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    records = GuardedGenerator(tmp_path, ANYTHING)("ab", max_new_tokens=6)
    assert records == GuardedGenerator(model, ANYTHING, tokenizer=tokenizer)("ab", max_new_tokens=6)


def test_missing_texts_and_fallbacks(vision: Pipeline, speech: Pipeline) -> None:
    budget = Budget(max_attempts=2)
    image = {"images": picture(), "text": "<image>ab"}
    none: dict[str, Any] = {"budget": budget, "on_exhausted": "none"}
    options: dict[str, Any] = {"do_sample": True, "max_new_tokens": 2, "num_return_sequences": 2}
    missing = {"input_text": "<image>ab", "generated_text": None}
    assert GuardedGenerator(vision, NEVER, **none)(image, **options) == [missing] * 2
    assert GuardedGenerator(speech, NEVER, **none)(AUDIO, temperature=1.0, max_new_tokens=2) == {"text": None}
    with pytest.raises(BudgetExhausted):
        GuardedGenerator(speech, NEVER, budget=budget)(AUDIO, temperature=1.0, max_new_tokens=2)

    long = "a" * 100
    polite: dict[str, Any] = {"budget": budget, "on_exhausted": Fallback(long)}
    guarded = GuardedGenerator(vision, NEVER, **polite)
    assert guarded(image, do_sample=True, max_new_tokens=2)[0]["generated_text"] == "<image>ab" + long
    assert guarded(PREFILL, do_sample=True, max_new_tokens=2)[0]["generated_text"][-1]["content"] == [
        {"type": "text", "text": "de" + long}
    ]
    assert GuardedGenerator(speech, NEVER, **polite)(AUDIO, temperature=1.0, max_new_tokens=2) == {"text": long}


def ctc() -> Pipeline:
    convolution = {"conv_dim": (4,), "conv_stride": (2,), "conv_kernel": (3,), "num_feat_extract_layers": 1}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = Wav2Vec2ForCTC(Wav2Vec2Config(vocab_size=10, **convolution, **positions, **small)).eval()
    return AutomaticSpeechRecognitionPipeline(
        model=model, tokenizer=character_tokenizer(LETTERS), feature_extractor=Wav2Vec2FeatureExtractor()
    )


def text_to_audio() -> Pipeline:
    pipe = TextToAudioPipeline.__new__(TextToAudioPipeline)
    pipe.task = "text-to-audio"
    return pipe


def text_generation() -> Pipeline:
    model, tokenizer = t5()
    return TextGenerationPipeline(model=model, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (ctc, "Wav2Vec2ForCTC is not supported: it gives one transcription"),
        (text_to_audio, "no text to judge"),
        (text_generation, "pass the model itself"),
    ],
)
def test_pipelines_that_cannot_work(make: Any, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        GuardedGenerator(make(), ANYTHING)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_calls_that_cannot_work(vision: Pipeline, speech: Pipeline) -> None:
    hear, see = GuardedGenerator(speech, ANYTHING), GuardedGenerator(vision, ANYTHING)
    model, tokenizer = bart()
    read = GuardedGenerator(model, ANYTHING, tokenizer=tokenizer)
    short: dict[str, Any] = {"max_new_tokens": 4}
    wrong: dict[str, tuple[type, Any]] = {
        "return_timestamps is not supported": (UsageError, lambda: hear(AUDIO, return_timestamps=True, **short)),
        "return_timestamps is not supported: with": (
            UsageError,
            lambda: hear(AUDIO, return_timestamps="word", **short),
        ),
        "pass shorter audio": (UsageError, lambda: hear(np.tile(AUDIO, 3), **short)),
        "cut into 3 pieces": (PromptError, lambda: hear(AUDIO, chunk_length_s=1.5, **short)),
        "pass temperature=1.0": (UsageError, lambda: hear(AUDIO, do_sample=True, num_beams=1, **short)),
        "logprob_threshold": (UsageError, lambda: hear(AUDIO, temperature=(0.0, 1.0), logprob_threshold=-1.0, **short)),
        "did you mean 'temperature'": (UsageError, lambda: hear(AUDIO, temprature=1.0, **short)),
        "num_return_sequences=2": (UsageError, lambda: hear(AUDIO, num_beams=1, num_return_sequences=2, **short)),
        "beam_sample": (UsageError, lambda: see("ab", do_sample=True, num_beams=2, **short)),
        "streamer": (UsageError, lambda: see("ab", generate_kwargs={"streamer": object()}, **short)),
        "there is no prompt": (PromptError, lambda: see(**short)),
        "is not a string, a chat or {": (PromptError, lambda: see([{"image": picture()}], **short)),
        "prompt 0: ": (PromptError, lambda: hear("no such file", **short)),
        "[{'images': ..., 'text': '...'}, ...]": (PromptError, lambda: see([picture()], text=["a"], **short)),
        "takes only token ids": (UsageError, lambda: see.generate(torch.tensor([[1, 2]]), **short)),
        "does not read text": (
            UsageError,
            lambda: GuardedGenerator(speech.model, ANYTHING, tokenizer=speech.tokenizer),
        ),
        "40 tokens and the model's context 32": (PromptError, lambda: read("ab" * 20, **short)),
        "decoder_input_ids": (
            UsageError,
            lambda: read.generate(torch.tensor([[1]]), decoder_input_ids=torch.tensor([[0, 1]]), **short),
        ),
        "decoder_input_ids is not supported": (
            UsageError,
            lambda: read.generate(torch.tensor([[1], [2]]), decoder_input_ids=torch.tensor([[5, 1], [6, 1]]), **short),
        ),
        "max_time=": (UsageError, lambda: read("ab", stopping_criteria=[MaxTimeCriteria(1.0)], **short)),
    }
    for says, (kind, call) in wrong.items():
        with pytest.raises(kind) as caught:
            call()
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_model_that_rewrites_what_was_drawn_is_refused(vision: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = vision.model.generate
    monkeypatch.setattr(vision.model, "generate", lambda **options: generate(**options)[:, 1:])
    with pytest.raises(UsageError, match="changes drawn tokens"):
        GuardedGenerator(vision, ANYTHING)("ab", max_new_tokens=4)
