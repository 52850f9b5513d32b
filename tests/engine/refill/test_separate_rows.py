"""Rows that are computed one at a time: the model's own logits, and texts that no company changes."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from guardwrap import Budget, Endpoint, GuardedGenerator, Keyword, Length, Prompt, Regex
from guardwrap.engine.refill.mode_selection import select_rows
from guardwrap.engine.refill.row_states import Separate, SeparatePlain
from guardwrap.engine.transformers_loop import GenerateBackend
from guardwrap.errors import UsageError
from guardwrap.testing import character_tokenizer
from tests.engine.refill.test_row_states import LETTERS, PLAIN, REFILL, same_as_generate, tiny

pytestmark = pytest.mark.filterwarnings("ignore")
SETTINGS: dict[str, Any] = {"max_new_tokens": 6, "num_return_sequences": 3, "temperature": 1.5}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFILL)
def test_it_draws_as_generate_does(name: str) -> None:
    model = tiny(name, REFILL[name])
    assert select_rows(model, separate=True) is Separate
    same_as_generate(model, deterministic=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAIN)
def test_models_whose_cache_does_not_work(name: str) -> None:
    model = tiny(name, PLAIN[name])
    assert select_rows(model, separate=True) is SeparatePlain
    guarded = wrapped(model)
    (outcome,) = guarded.run("ab", seed=0, max_new_tokens=4)
    assert outcome.ok
    assert "separate, without a cache" in str(outcome.report)
    with with_noise(model):
        assert texts(guarded, 1) == texts(guarded, 7)


def wrapped(model: Any, **options: Any) -> GuardedGenerator:
    options = {"deterministic": True, "budget": Budget(max_attempts=None), **options}
    return GuardedGenerator(model, ~Regex("c"), tokenizer=character_tokenizer(LETTERS), **options)


def texts(guarded: GuardedGenerator, batch_size: int, **options: Any) -> list[tuple[str, ...]]:
    prompts = ["ab", "a", "cde a b", "ab", "e. d"]
    outcomes = guarded.run(prompts, batch_size=batch_size, seed=11, progress=False, **{**SETTINGS, **options})
    return [outcome.texts for outcome in outcomes]


@contextmanager
def with_noise(model: Any) -> Iterator[None]:
    """Let the logits depend on the shape of the batch, as rounding does, but more and on every processor."""

    def noisy(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        rows, columns = kwargs["attention_mask"].shape
        output.logits = output.logits * (1 + 0.3 * math.sin(3 * rows + 7 * columns))
        return output

    handle = model.register_forward_hook(noisy, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@pytest.fixture
def model() -> Any:
    return tiny("llama", {"initializer_range": 0.5})


def test_a_batch_changes_no_text(model: Any) -> None:
    guarded = wrapped(model)
    with with_noise(model):
        one = texts(guarded, 1)
        assert texts(guarded, 7) == one
        assert texts(guarded, 64) == one


def test_negative_control_a_batch_changes_texts(model: Any) -> None:
    guarded = wrapped(model, deterministic=False)
    with with_noise(model):
        assert texts(guarded, 1) != texts(guarded, 64)


def test_other_callers_change_no_text(model: Any) -> None:
    guarded = wrapped(model)
    with with_noise(model), ThreadPoolExecutor(4) as pool:
        alone = texts(guarded, 16)
        others = [pool.submit(guarded.run, "b c", seed=i, max_new_tokens=9, num_return_sequences=4) for i in range(12)]
        again = [pool.submit(texts, guarded, 16) for _ in range(3)]
        assert [each.result() for each in again] == [alone] * 3
        assert all(outcome.ok for each in others for outcome in each.result())


@pytest.mark.parametrize("deterministic", [True, False])
def test_weights_are_those_of_the_text_alone(deterministic: bool, model: Any) -> None:
    guarded = wrapped(model, proposal=Prompt("b {prompt}"), deterministic=deterministic)

    def weights(batch_size: int) -> list[float | None]:
        settings: dict[str, Any] = {
            "max_new_tokens": 6,
            "temperature": 1.5,
            "top_k": 0,
            "batch_size": batch_size,
            "seed": 3,
        }
        return [each.log_weight for each in guarded.attempts("ab", 24, **settings)[0]]

    weights(1)  # the model is tested without noise
    with with_noise(model):
        assert (weights(1) == weights(24)) is deterministic


def test_half_precision(model: Any) -> None:
    """Real rounding, which depends on the processor. So only what must be equal is tested."""
    guarded = wrapped(model.to(torch.bfloat16))
    assert texts(guarded, 1, top_k=0) == texts(guarded, 13, top_k=0)


def test_the_library_s_own_loop_gets_one_attempt_at_a_time() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": len(LETTERS) + 1, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = T5Config(**sizes, decoder_start_token_id=0, pad_token_id=0, eos_token_id=0)
    two_parts = T5ForConditionalGeneration(config).eval()
    for deterministic in (True, False):
        guarded = wrapped(two_parts, deterministic=deterministic)
        backend = guarded.session.job({"do_sample": True}).source.backend(32)
        assert isinstance(backend, GenerateBackend)
        assert (backend.room == 1) is deterministic


def test_a_server_decides_for_itself() -> None:
    with pytest.raises(UsageError, match="deterministic="):
        GuardedGenerator(Endpoint("http://127.0.0.1:1/v1", model="m"), Length(min=1), deterministic=True)


def test_the_mode_is_in_the_report(model: Any) -> None:
    (outcome,) = wrapped(model).run("ab", seed=0, max_new_tokens=4)
    assert outcome.report.mode == "separate"
    assert not any("slower" in note for note in outcome.report.notes)


@pytest.mark.slow
def test_a_keyword_in_few_texts(model: Any) -> None:
    """Attempts that are stopped make room for others, whose rows begin while others are in the middle."""
    guarded = GuardedGenerator(
        model, Keyword("qu", whole_words=False), tokenizer=character_tokenizer(LETTERS), deterministic=True,
        budget=Budget(max_attempts=None),
    )  # fmt: skip
    with with_noise(model):
        assert texts(guarded, 5) == texts(guarded, 1)
