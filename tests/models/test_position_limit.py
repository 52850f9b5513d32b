"""Texts that would outgrow a position table raise UsageError; models that compute positions are not limited."""

import asyncio
from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedTokenizerFast,
)

from guardwrap import GuardedGenerator, Length, Prompt, Regex
from guardwrap.errors import UsageError
from guardwrap.testing import character_tokenizer
from tests import fixtures_models

ENDS = {"eos_token_id": 0, "pad_token_id": 0, "bos_token_id": None}
TABLES: dict[str, tuple[type, Any]] = {
    "gpt2": (GPT2LMHeadModel, GPT2Config(n_positions=16, n_embd=16, n_layer=1, n_head=2, vocab_size=10, **ENDS)),
    "opt": (
        OPTForCausalLM,
        OPTConfig(
            max_position_embeddings=16,
            hidden_size=16,
            ffn_dim=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            word_embed_proj_dim=16,
            vocab_size=10,
            **ENDS,
        ),
    ),
    "gptj": (
        GPTJForCausalLM,
        GPTJConfig(n_positions=16, n_embd=16, n_layer=1, n_head=2, rotary_dim=4, vocab_size=10, **ENDS),
    ),
}
OPTIONS: dict[str, Any] = {"do_sample": True, "top_k": 0}


def made(name: str) -> tuple[Any, PreTrainedTokenizerFast]:
    model = fixtures_models.made(*TABLES[name])
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = 0
    return model, character_tokenizer(fixtures_models.LETTERS)


def wrapped(name: str) -> GuardedGenerator:
    model, tokenizer = made(name)
    return GuardedGenerator(model, Regex(""), tokenizer=tokenizer, seed=1, batch_size=4)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_positions_is_a_limit(name: str) -> None:
    guarded = wrapped(name)
    with pytest.raises(
        UsageError, match=r"a table of 16 positions, and 3 tokens with max_new_tokens=15 need more; pass "
    ):
        guarded("abc", max_new_tokens=15, **OPTIONS)
    longest = guarded.run("abc", max_new_tokens=14, num_return_sequences=40, constraints=Length(min=14), **OPTIONS)[0]
    assert {len(text) for text in longest.texts} == {14}  # the limit that the message suggests works


@pytest.mark.parametrize("name", TABLES)
def test_it_is_where_generate_fails(name: str) -> None:
    """The limit is that of transformers, whose own loop fails with one token more."""
    model, tokenizer = made(name)
    ids = tokenizer("abc", return_tensors="pt")["input_ids"]
    plain = {"do_sample": False, "suppress_tokens": [0]}
    assert model.generate(ids, max_new_tokens=14, **plain).shape == (1, 17)
    with pytest.raises((IndexError, RuntimeError)):
        model.generate(ids, max_new_tokens=15, **plain)


def test_others_in_the_batch_are_none_the_worse() -> None:
    guarded = wrapped("gpt2")
    alone = guarded.run("ab", max_new_tokens=10, num_return_sequences=3, seed=2, **OPTIONS)[0].texts

    async def both() -> list[Any]:
        calls = [
            guarded.arun("ab", max_new_tokens=10, num_return_sequences=3, seed=2, **OPTIONS),
            guarded.arun("ab", max_new_tokens=100, num_return_sequences=3, seed=2, **OPTIONS),
        ]
        return await asyncio.gather(*calls, return_exceptions=True)

    fine, refused = asyncio.run(both())
    assert fine[0].texts == alone
    assert isinstance(refused, UsageError)


def test_rows_of_generate_and_beams_are_held_to_it() -> None:
    guarded = wrapped("gpt2")
    ids = torch.tensor([[1, 2, 3]])
    for options in (OPTIONS, {"num_beams": 2, "do_sample": False}):
        with pytest.raises(UsageError, match="a table of 16 positions"):
            guarded.generate(ids, max_new_tokens=15, **options)


def test_another_prompt_takes_positions_too() -> None:
    model, tokenizer = made("gpt2")
    hinted = Prompt("a" * 10 + "{prompt}")
    guarded = GuardedGenerator(model, Regex(""), tokenizer=tokenizer, proposal=hinted, seed=1)
    assert guarded("a", max_new_tokens=6, **OPTIONS)
    with pytest.raises(UsageError, match="a table of 16 positions, and 11 tokens with max_new_tokens=7"):
        guarded("a", max_new_tokens=7, **OPTIONS)


def test_a_decoder_has_a_table_of_its_own() -> None:
    model, tokenizer = fixtures_models.bart()
    guarded = GuardedGenerator(model, Regex(""), tokenizer=tokenizer, seed=1)
    assert guarded("abc", max_new_tokens=32, num_beams=1, **OPTIONS)
    with pytest.raises(UsageError, match=r"a table of 32 positions, and 1 tokens .* pass max_new_tokens=32 or less$"):
        guarded("abc", max_new_tokens=33, num_beams=1, **OPTIONS)


def test_computed_positions_have_no_limit() -> None:
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = fixtures_models.made(
        LlamaForCausalLM, LlamaConfig(vocab_size=10, max_position_embeddings=16, **small, **ENDS)
    )
    guarded = GuardedGenerator(model, Length(min=20), tokenizer=character_tokenizer(fixtures_models.LETTERS), seed=1)
    assert len(guarded.run("abc", max_new_tokens=25, **OPTIONS)[0].texts[0]) >= 20
