"""Texts from transformers' loop are exactly those of our loop: g, log a', seeds, statuses."""

import math
import threading
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from transformers import LogitsProcessor

from guardwrap import Budget, Finished, GuardedGenerator, Keyword, Length, Regex, constraint
from guardwrap.engine import token_sampling, transformers_loop
from guardwrap.engine.generation_law import inverse_cdf
from guardwrap.engine.scheduling.backend import AttemptState
from guardwrap.models import prepare
from guardwrap.outcomes import Outcome
from guardwrap.support import transformers_internals
from guardwrap.testing import World, goodness_of_fit
from tests.fixtures_models import AUDIO, bart, law, llava, picture, t5, whisper

DRAWS = 10_000
FEW = 5_000
FITS = 1e-3
FAILS = 1e-9
LONGEST = 4

# A verdict that aborts, and a part that only whole texts decide.
CONSTRAINT = ~Regex("^b") & Regex("a$|b$|^$")
PROMPT = "ab a"
MODELS = {"t5": t5, "bart": bart}


def drawn(model: Any, tokenizer: Any, *, draws: int, batch_size: int = 1_000) -> Outcome:
    guarded = GuardedGenerator(model, CONSTRAINT, tokenizer=tokenizer, seed=1, budget=Budget(max_attempts=None))
    options: dict[str, Any] = {"do_sample": True, "top_k": 0, "max_new_tokens": LONGEST, "num_return_sequences": draws}
    (outcome,) = guarded.run(PROMPT, batch_size=batch_size, **options)
    return outcome


def gold(model: Any, tokenizer: Any) -> tuple[dict[tuple[int, ...], float], dict[tuple[int, ...], float]]:
    """Return a and g."""
    base = law(model, tokenizer(PROMPT)["input_ids"], longest=LONGEST)
    assert sum(base.values()) == pytest.approx(1, abs=1e-9)
    kept = {y: p for y, p in base.items() if CONSTRAINT.accepts(tokenizer.decode(y, skip_special_tokens=True))}
    total = sum(kept.values())
    assert 0.4 < total < 0.7
    return base, {y: p / total for y, p in kept.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_drawn_from_g_with_log_a(name: str) -> None:
    model, tokenizer = MODELS[name]("ab ")
    base, wanted = gold(model, tokenizer)
    outcome = drawn(model, tokenizer, draws=DRAWS)
    assert outcome.report.drawn_from == "exactly your model's own distribution, given the constraint (g)"
    assert outcome.report.mode == "generate"
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], wanted) > FITS
    for draw in outcome.draws[:2_000]:
        assert draw.log_proposal == pytest.approx(math.log(base[draw.token_ids]), abs=1e-5)
        assert draw.finished == (draw.token_ids[-1] == tokenizer.eos_token_id)


@pytest.mark.slow
def test_many_prompts_are_drawn_from_g() -> None:
    """Equal prompts share calls of generate, and each gets its own texts."""
    model, tokenizer = t5("ab ")
    guarded = GuardedGenerator(model, CONSTRAINT, tokenizer=tokenizer, seed=2, batch_size=500)
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": LONGEST}
    outcomes = guarded.run([PROMPT] * FEW, progress=False, **options)
    assert goodness_of_fit([outcome.draws[0].token_ids for outcome in outcomes], gold(model, tokenizer)[1]) > FITS


def test_negative_control_noise_shared_by_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def shared(scores: torch.Tensor, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return inverse_cdf(scores, uniform[:1].expand_as(uniform))

    monkeypatch.setattr(token_sampling, "inverse_cdf", shared)
    model, tokenizer = t5("ab ")
    outcome = drawn(model, tokenizer, draws=FEW)
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], gold(model, tokenizer)[1]) < FAILS


def test_negative_control_the_end_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_rows(attempts: Sequence[AttemptState]) -> list[int]:
        """As if padding were drawn: the end token is the padding, so it seems to repeat until the longest text ends."""
        return list(range(len(attempts)))

    model, tokenizer = t5("ab ")
    base, _ = gold(model, tokenizer)
    monkeypatch.setattr(transformers_loop, "_running", all_rows)
    outcome = drawn(model, tokenizer, draws=200)
    assert any(draw.token_ids not in base for draw in outcome.draws)


def prompts_and_settings(kind: str) -> tuple[Any, Any, dict[str, Any]]:
    if kind == "speech":
        return whisper(), [AUDIO, AUDIO[:11_000]], {"temperature": 1.5}
    if kind == "images":
        given = [{"images": picture(i), "text": "<image>ab"} for i in range(2)]
        # A placeholder token in the text would require an image when the text is scored.
        return llava(), given, {"do_sample": True, "suppress_tokens": [10]}
    return t5(), ["ab", "c de", "ab"], {"do_sample": True, "repetition_penalty": 1.3}


def wrapped(pipe: Any, judged: Any, **options: Any) -> GuardedGenerator:
    if isinstance(pipe, tuple):
        return GuardedGenerator(pipe[0], judged, tokenizer=pipe[1], **options)
    return GuardedGenerator(pipe, judged, **options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "images", "speech"])
def test_seeds_belong_to_attempts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, prompts, settings = prompts_and_settings(kind)
    guarded = wrapped(pipe, Keyword("b", whole_words=False) & ~Regex("f"))

    def texts(batch_size: int, seed: int = 5) -> list[tuple[str, ...]]:
        options = {"num_return_sequences": 4, "max_new_tokens": 6, "progress": False, **settings}
        return [o.texts for o in guarded.run(prompts, seed=seed, batch_size=batch_size, **options)]

    state = torch.random.get_rng_state()
    one = texts(1)
    assert texts(5) == one
    assert texts(32) == one
    assert texts(32, seed=6) != one
    assert torch.equal(state, torch.random.get_rng_state()), "a seeded call touched the global generator"

    # Negative control: random numbers per batch instead of per attempt.
    generator = torch.Generator().manual_seed(0)

    class Shared:
        def __next__(self) -> float:
            return float(torch.rand((), generator=generator))

    monkeypatch.setattr(token_sampling, "uniforms", lambda *_: Shared())
    first = texts(1)
    generator.manual_seed(0)
    assert texts(5) != first


def test_log_proposal_of_images_is_that_of_a_forward_pass() -> None:
    pipe, (prompt, _), settings = prompts_and_settings("images")
    (outcome,) = GuardedGenerator(pipe, Length(min=0), seed=1).run(
        prompt, num_return_sequences=20, max_new_tokens=6, temperature=0.8, top_k=0, **settings
    )
    inputs = pipe.preprocess(prompt)
    length = inputs["input_ids"].shape[1]
    for draw in outcome.draws:
        ids = torch.cat([inputs["input_ids"], torch.tensor([draw.token_ids])], dim=1)
        with torch.no_grad():
            logits = pipe.model(input_ids=ids, pixel_values=inputs["pixel_values"]).logits[0, length - 1 : -1]
        logits[:, 10] = float("-inf")
        steps = (logits.double() / 0.8).log_softmax(-1).gather(1, torch.tensor(draw.token_ids)[:, None])
        assert draw.log_proposal == pytest.approx(float(steps.sum()), abs=1e-4)


def test_log_proposal_of_speech_is_that_of_a_forward_pass() -> None:
    pipe = whisper()
    options: dict[str, Any] = {"num_return_sequences": 20, "max_new_tokens": 6, "temperature": 1.5, "top_k": 0}
    (outcome,) = GuardedGenerator(pipe, Length(min=0), seed=1).run(AUDIO, **options)
    features = next(iter(pipe.preprocess(AUDIO)))["input_features"]
    begin = pipe.model.generation_config.decoder_start_token_id, pipe.model.generation_config.no_timestamps_token_id
    for draw in outcome.draws:
        decoder = torch.tensor([[*begin, *draw.token_ids]])
        with torch.no_grad():
            logits = pipe.model(input_features=features, decoder_input_ids=decoder).logits[0, len(begin) - 1 : -1]
        logits[:, pipe.model.generation_config.suppress_tokens] = float("-inf")
        steps = (logits.double() / 1.5).log_softmax(-1).gather(1, torch.tensor(draw.token_ids)[:, None])
        assert draw.log_proposal == pytest.approx(float(steps.sum()), abs=1e-4)


def test_how_attempts_end() -> None:
    model, tokenizer = t5()
    guarded = GuardedGenerator(model, ~Regex("c"), tokenizer=tokenizer, seed=1, batch_size=8)
    options: dict[str, Any] = {"do_sample": True, "max_new_tokens": 5, "num_return_sequences": 40, "stop_strings": "d"}
    (outcome,) = guarded.run("ab", **options)
    assert {draw.finished for draw in outcome.draws} == {True, False}
    for draw in outcome.draws:
        assert "d" not in draw.text[:-1]
        assert draw.finished == (draw.token_ids[-1] == tokenizer.eos_token_id or draw.text.endswith("d"))
        assert draw.finished or len(draw.token_ids) == 5


@pytest.mark.parametrize("kind", ["text", "images", "speech"])
def test_a_violated_prefix_ends_an_attempt_and_changes_no_text(kind: str) -> None:
    pipe, prompts, settings = prompts_and_settings(kind)
    options = {"max_new_tokens": 6, "num_return_sequences": 20, "seed": 1, **settings}
    judged, undecided = ~Regex("[abc]"), constraint(lambda text: not set("abc") & set(text))
    (early,) = wrapped(pipe, judged).run(prompts[:1], **options)
    (late,) = wrapped(pipe, undecided).run(prompts[:1], **options)
    assert early.report.notes == ()
    assert early.texts == late.texts
    assert early.report.usage.attempts == late.report.usage.attempts > 20
    assert early.report.usage.tokens < late.report.usage.tokens


def other_thread_meanwhile() -> tuple[Any, Any]:
    """Return texts of a call, and of another call that runs completely while the first one draws."""
    model, tokenizer = t5()
    model.generation_config.stop_strings = ["d"]
    options: dict[str, Any] = {
        "do_sample": True,
        "max_new_tokens": 6,
        "min_new_tokens": 6,
        "num_return_sequences": 20,
        "seed": 1,
    }
    guarded = GuardedGenerator(model, Length(min=0), tokenizer=tokenizer)
    alone = guarded.run("ab", **options)[0].texts
    found: list[Any] = []

    class Meanwhile(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            if not found:
                thread = threading.Thread(target=lambda: found.append(guarded.run("ab", **options)[0].texts))
                thread.start()
                thread.join(60)
            return scores

    assert guarded.run("ab", **options, logits_processor=[Meanwhile()])[0].texts == alone
    assert any(text.endswith("d") for text in alone)
    assert model.generation_config.stop_strings == ["d"]
    return alone, found[0]


def test_threads_share_the_stop_strings_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, other = other_thread_meanwhile()
    assert other == alone
    if Version(transformers.__version__) < Version("5.20"):
        return  # it passes generate() a copy of the model's configuration, so nothing is shared

    # Negative control: hidden while texts are drawn.
    class Open(ExitStack):
        def close(self) -> None:
            pass

    monkeypatch.setattr(prepare, "ExitStack", Open)
    for place in (prepare, transformers_internals):
        monkeypatch.setattr(place, "library_lock", nullcontext())
    alone, other = other_thread_meanwhile()
    assert other != alone


def test_a_deadline_abandons_and_says_so() -> None:
    model, tokenizer = t5()
    guarded = GuardedGenerator(model, Length(min=0), tokenizer=tokenizer, seed=1)
    options: dict[str, Any] = {"do_sample": True, "min_new_tokens": 5, "max_new_tokens": 5, "num_return_sequences": 3}
    (outcome,) = guarded.run("ab", budget=Budget(deadline=1e-9), **options)
    assert outcome.report.ended == "deadline"
    assert outcome.texts == ()
    assert outcome.report.usage.surplus_tokens == 3, "one token each"
    assert outcome.report.drawn_from == "biased by a deadline"


def test_memory_that_runs_out_halves_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = t5()
    options = {"do_sample": True, "max_new_tokens": 5, "num_return_sequences": 9, "seed": 1}
    guarded = GuardedGenerator(model, Keyword("b", whole_words=False), tokenizer=tokenizer, batch_size=16)
    plenty = guarded.run(["ab", "c"], progress=False, **options)
    rows: list[int] = []
    run = transformers_loop._draw

    def scarce(attempts: Sequence[AttemptState]) -> None:
        if len(attempts) > 3:
            raise torch.OutOfMemoryError
        rows.append(len(attempts))
        run(attempts)

    monkeypatch.setattr(transformers_loop, "_draw", scarce)
    little = guarded.run(["ab", "c"], progress=False, **options)
    assert [o.texts for o in little] == [o.texts for o in plenty]
    assert max(rows) == 2


@pytest.mark.parametrize("kind", ["own loop", "whole"])
def test_max_time_cuts_texts_and_the_report_says_so(world: World, kind: str) -> None:
    guarded = wrapped(t5() if kind == "whole" else world.pipeline(), Length(min=0), seed=1)
    options: dict[str, Any] = {"do_sample": True, "max_new_tokens": 6, "min_new_tokens": 6, "num_return_sequences": 3}
    for max_time, tokens in ((1e-9, 1), (1e6, 6)):
        (outcome,) = guarded.run("ab", max_time=max_time, **options)
        assert [len(draw.token_ids) for draw in outcome.draws] == [tokens] * 3
        assert not any(draw.finished for draw in outcome.draws)
        assert outcome.report.ended == "complete"
        (note,) = outcome.report.notes
        assert "max_time" in note
    (outcome,) = guarded.run("ab", **options)
    assert not outcome.report.notes
    (outcome,) = guarded.run("ab", max_time=1e-9, constraints=Finished(), budget=Budget(max_attempts=5), **options)
    assert outcome.report.usage.attempts == 5, "a text that the clock cuts is judged like any"
