"""The lower bound on a prompt's token count is never too high, and prompts that are too long are rejected by it."""

import random
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from guardwrap import GuardedGenerator, Length
from guardwrap.errors import PromptError
from guardwrap.models.context_length import fewest_tokens
from guardwrap.testing import llama_world


def bytewise(*merges: str, **more: Any) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs: list[Any] = [tuple(merge.split()) for merge in merges]
    names = dict.fromkeys([*alphabet, *("".join(pair) for pair in pairs)])
    made = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, pairs))
    made.pre_tokenizer = more.get("pre_tokenizer", pre_tokenizers.ByteLevel(add_prefix_space=False))
    made.decoder = decoders.ByteLevel()
    if "normalizer" in more:
        made.normalizer = more["normalizer"]
    made.add_special_tokens(more.get("added", []))
    return PreTrainedTokenizerFast(tokenizer_object=made)


TEXTS = ["", "a", "aaaa" * 50, "the end " * 40, " \n\t" * 30, "é🙂x" * 20, "<s>" * 20, "a b<s>c  d"]


@pytest.mark.parametrize(
    "tokenizer",
    [
        bytewise(),
        bytewise("a a", "aa aa", "t h", "Ġ e"),
        bytewise("a a", added=["<s>", "<long name>"]),
        bytewise("a a", pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)),
        bytewise(
            "a a",
            pre_tokenizer=pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
            ),
        ),
    ],
)
def test_no_text_has_fewer_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    chance = random.Random(0)
    random_texts = ["".join(chance.choice("a th\né<s>1") for _ in range(chance.randrange(200))) for _ in range(200)]
    for text in [*TEXTS, *random_texts]:
        assert fewest_tokens(tokenizer, text, 10**6) <= len(tokenizer(text)["input_ids"])
    assert fewest_tokens(tokenizer, "a" * 100_000, 10**6) > 5_000


@pytest.mark.parametrize(
    "tokenizer",
    [
        bytewise(normalizer=normalizers.Strip()),
        bytewise(added=[AddedToken("<s>", lstrip=True)]),
        bytewise(
            pre_tokenizer=pre_tokenizers.Sequence(
                [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
            )
        ),
    ],
)
def test_nothing_is_known_where_text_is_left_out(tokenizer: PreTrainedTokenizerFast) -> None:
    assert fewest_tokens(tokenizer, "a" * 100_000, 10**6) == 0


def test_words_are_told_apart() -> None:
    assert fewest_tokens(bytewise("a a"), "aa " * 500, 10**6) == max(500, 1500 // 2)
    assert fewest_tokens(bytewise("Ġ a"), "a " * 500, 10**6) == 500
    ended = bytewise("Ġ a", added=["<|end|>"])
    assert [fewest_tokens(ended, "a " * 500, enough) for enough in (20, 200, 1_000)] == [143, 201, 500]


def test_a_prompt_of_a_megabyte_is_refused_before_it_is_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    world = llama_world(letters="ab", max_new_tokens=2)
    pipe = world.pipeline()
    pipe.model = GPT2LMHeadModel(
        GPT2Config(vocab_size=2**10, n_positions=64, n_embd=16, n_layer=1, n_head=2, eos_token_id=0)
    ).eval()
    pipe.tokenizer = bytewise("a a", added=["<|end|>"])
    pipe.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] | trim }}{% endfor %}"
    guarded = GuardedGenerator(pipe, Length(min=0))

    def asked(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was tokenized")

    monkeypatch.setattr(pipe, "preprocess", asked)
    monkeypatch.setattr("guardwrap.models.calls.own_method", lambda *_: None)  # it is not the user's
    chat = [{"role": "user", "content": "word " * 200_000}]
    for prompt in ("word " * 200_000, chat):
        with pytest.raises(PromptError, match=r"has at least \d{5,} tokens and the model's context"):
            guarded.run(prompt)
    spaces = [{"role": "user", "content": " " * 1_000_000 + "a"}]  # the template leaves this out
    with pytest.raises(PromptError, match="it was tokenized"):
        guarded.run(spaces)
