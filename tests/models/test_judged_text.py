"""The judged text is the text that the caller reads: for every entry point, view and kind of decoder."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from guardwrap import Budget, BudgetExhausted, Constraint, GuardedGenerator, Regex
from guardwrap.constraints.checking import run_check
from guardwrap.constraints.views import TEXT_VIEWS
from guardwrap.models.calls import Call, TensorCall
from guardwrap.outcomes import Draw
from guardwrap.testing import TableConfig, TableModel, _with_end

WORDS = ["there", "was", "a", "little", "cat", ".", ","]
PROMPT = "there was a"
TEXTS = 6
SETTINGS: dict[str, Any] = {"do_sample": True, "max_new_tokens": 5, "num_return_sequences": TEXTS, "seed": 5}


def tokenizer(pieces: list[str], decoder: Any, before: Any, normalizer: Any = None, **options: Any) -> Any:
    # The second token is the one that a Llama tokenizer puts first.
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(["<end>", "<s>", *pieces]))}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<s>"))
    made.pre_tokenizer = before
    if normalizer is not None:
        made.normalizer = normalizer
    if decoder is not None:
        made.decoder = decoder
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="<end>", pad_token="<end>", bos_token="<s>", padding_side="left", **options
    )
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return fast


SPACED = [f"▁{word}" for word in WORDS]
STRIPPING = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
DECODERS: dict[str, Callable[[], Any]] = {
    "Llama's, which strips a space": lambda: tokenizer(
        [*SPACED, *WORDS, "<0x2E>"],
        decoders.Sequence(STRIPPING),
        pre_tokenizers.Split("▁", "merged_with_next"),
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
    ),
    "metaspace": lambda: tokenizer([*SPACED, *WORDS], decoders.Metaspace(), pre_tokenizers.Metaspace()),
    "bytes": lambda: tokenizer(
        [*(f"Ġ{word}" for word in WORDS), *WORDS],
        decoders.ByteLevel(),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ),
    "WordPiece": lambda: tokenizer(
        [*WORDS, "##a", "##little"], decoders.WordPiece(cleanup=False), pre_tokenizers.Whitespace()
    ),
    "WordPiece, cleaned up": lambda: tokenizer(
        [*WORDS, "##a", "##s"], decoders.WordPiece(), pre_tokenizers.Whitespace()
    ),
    "BPE with ends of words": lambda: tokenizer(
        [*WORDS, *(f"{word}</w>" for word in WORDS)], decoders.BPEDecoder(), pre_tokenizers.Whitespace()
    ),
    "none, so spaces between all tokens": lambda: tokenizer(WORDS, None, pre_tokenizers.Whitespace()),
    "cleaned up by transformers": lambda: tokenizer(
        WORDS, None, pre_tokenizers.Whitespace(), clean_up_tokenization_spaces=True
    ),
}
RULES = {
    "words apart": r"a little|\ba cat",
    "space before a point": r" [.,]",
    "words together": "alittle|acat|catwas",
    "a space at the beginning": r"^ ",
    "no space at the beginning": r"^[^ ]",
}
EASY = list(RULES)[:2]  # enough if prompt and text are not decoded together


def model_of(tokens: Any) -> Any:
    config = TableConfig(vocab_size=len(tokens), max_position_embeddings=24)
    model = TableModel(config)
    with torch.no_grad():
        model.table.copy_(torch.randn(model.table.shape, generator=torch.Generator().manual_seed(0)))
        model.table[..., 1] = -1e9
    return _with_end(model, tokens).eval()


Reading = tuple[str, str, str]  # the prompt, the new text, and both together, as the caller reads them


def calls(guarded: GuardedGenerator) -> dict[str, Callable[[], Iterator[Reading]]]:
    """Every entry point, with the texts that its caller reads."""
    tokens = guarded.tokenizer
    ids = tokens(PROMPT, return_tensors="pt")
    padded = tokens([PROMPT, "a"], return_tensors="pt", padding=True)
    chat = [{"role": "user", "content": PROMPT}]
    rendered = tokens.decode(tokens(PROMPT)["input_ids"], skip_special_tokens=True)

    def decode(row: Any) -> str:
        return str(tokens.decode(row, skip_special_tokens=True))

    def texts(records: Any) -> Iterator[str]:
        found = (record["generated_text"] for record in records)
        return (text for text in found if text is not None)  # no text satisfies this rule

    def whole(records: Any) -> Iterator[Reading]:
        for text in texts(records):
            yield PROMPT, text.removeprefix(PROMPT), text

    def new_text() -> Iterator[Reading]:
        for text in texts(guarded(PROMPT, return_full_text=False, **SETTINGS)):
            yield PROMPT, text, PROMPT + text

    def token_ids() -> Iterator[Reading]:
        for record in guarded(PROMPT, return_tensors=True, **SETTINGS):
            row, start = record["generated_token_ids"], ids["input_ids"].shape[1]
            if row is not None:
                yield PROMPT, decode(row[start:]), decode(row)

    def messages() -> Iterator[Reading]:
        for record in guarded(chat, **SETTINGS):
            if record["generated_text"] is not None:
                text = record["generated_text"][-1]["content"]
                yield rendered, text, rendered + text

    def run() -> Iterator[Reading]:
        for text in guarded.run(PROMPT, **SETTINGS)[0].texts:
            yield PROMPT, text, PROMPT + text

    def stream() -> Iterator[Reading]:
        for outcome in guarded.stream([PROMPT], **SETTINGS):
            for text in outcome.texts:
                yield PROMPT, text, PROMPT + text

    def rows(inputs: Any) -> Iterator[Reading]:
        start = inputs["input_ids"].shape[1]
        for row in guarded.generate(**inputs, **SETTINGS):
            yield decode(row[:start]), decode(row[start:]), decode(row)

    return {
        "call": lambda: whole(guarded(PROMPT, **SETTINGS)),
        "several prompts": lambda: whole(itertools.chain(*guarded([PROMPT, PROMPT], **SETTINGS))),
        "a generator": lambda: whole(itertools.chain(*guarded((p for p in [PROMPT]), **SETTINGS))),
        "new text": new_text,
        "token ids": token_ids,
        "chat": messages,
        "run": run,
        "stream": stream,
        "generate": lambda: rows(ids),
        "generate, padded": lambda: rows(padded),
    }


def violations(kind: str, only: str | None = None) -> tuple[int, list[str]]:
    """Return the number of cases, and the entry points that returned a violation as their caller reads it."""
    tokens = DECODERS[kind]()
    model = model_of(tokens)
    found, cases = [], 0
    for view in TEXT_VIEWS:
        for name in RULES if view == "full" else EASY:
            rule: Constraint = ~Regex(RULES[name], on=view)  # type: ignore[arg-type]  # each of TEXT_VIEWS is a View
            guarded = GuardedGenerator(model, rule, tokenizer=tokens, on_exhausted="none", budget=Budget(40))
            for way, read in calls(guarded).items():
                if only is not None and way != only:
                    continue
                try:
                    draws = [Draw(prompt, (0,), text, full=full) for prompt, text, full in read()]
                except BudgetExhausted:  # generate has no place for a text that is missing
                    continue
                cases += bool(draws)
                found += [f"{way}, {view}, {name}" for ok in run_check(rule, draws) if not ok]
    return cases, found


@pytest.mark.slow
@pytest.mark.parametrize("kind", DECODERS)
def test_what_is_judged_is_what_the_caller_reads(kind: str) -> None:
    cases, found = violations(kind)
    assert found == []
    assert cases > 120


def test_negative_control_prompt_and_text_decoded_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TensorCall, "full", lambda *_: None)
    assert any("full, " in case for case in violations("Llama's, which strips a space", "generate")[1])
    monkeypatch.setattr(Call, "full", lambda *_: None)
    assert any("full, " in case for case in violations("Llama's, which strips a space", "token ids")[1])
