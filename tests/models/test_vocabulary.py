"""Vocabularies as bytes: tokens add what decoding shows, and a trie contains each token once."""

import itertools
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from guardwrap.models.vocabulary import Vocabulary
from guardwrap.testing import character_tokenizer
from tests.fixtures_models import byte_tokenizer, fallback_tokenizer, fast, storyteller

PIECES: list[str | bytes] = ["a", "b.", " a", ".", b"\xc3", b"\xa9", b"\xf0\x9f", b"\x98", b"\x80!", "é", "🙂"]
SINGLE: list[str | bytes] = ["a", " ", " a", ".", "é", b"\x0a", b"\xc3", b"\xa9", b"\xf0", b"\x9f", b"\x98", b"\x80"]


def suffixed() -> PreTrainedTokenizerFast:
    """A tokenizer that adds spaces depending on the previous token, so that no token always adds the same text."""
    tokenizer = Tokenizer(models.BPE({"<end>": 0, "a</w>": 1, "b</w>": 2, "a": 3, ".</w>": 4}, []))
    tokenizer.decoder = decoders.BPEDecoder()
    return fast(tokenizer)


def read(tokenizer: Any) -> Vocabulary:
    return Vocabulary(tokenizer, lambda ids: tokenizer.decode(ids, skip_special_tokens=True), skips=True)


TOKENIZERS = {
    "byte-level": lambda: byte_tokenizer(PIECES),
    "byte fallback": lambda: fallback_tokenizer(SINGLE),
    "characters": lambda: character_tokenizer("ab. é"),
    "words": lambda: storyteller()[1],
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_what_tokens_add_is_what_decoding_shows(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    vocabulary = read(tokenizer)
    assert vocabulary.works
    some = range(min(len(tokenizer), 13))
    for ids in itertools.chain.from_iterable(itertools.product(some, repeat=size) for size in (1, 2, 3)):
        ahead, text = vocabulary.ahead(ids), tokenizer.decode(ids, skip_special_tokens=True)
        assert ahead.whole == text
        for token in some:  # later tokens do not change this
            assert tokenizer.decode([*ids, token], skip_special_tokens=True).startswith(ahead.text)


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("begins", [False, True])
def test_a_trie_holds_each_token_that_shows_once(name: str, begins: bool) -> None:
    tokenizer = TOKENIZERS[name]()
    vocabulary = read(tokenizer)
    trie = vocabulary.trie(begins=begins)
    found = dict(walked(trie, 0, b""))
    assert sorted(found) == sorted(trie.order.tolist())
    apart = {*vocabulary.hidden.tolist(), *vocabulary.single}
    assert found.keys() | apart == set(range(len(tokenizer)))
    assert not found.keys() & apart
    before = [] if begins else tokenizer("a", add_special_tokens=False)["input_ids"]
    start = tokenizer.decode(before)
    for token, raw in found.items():
        text = tokenizer.decode([*before, token], skip_special_tokens=True)
        assert start + raw.decode("utf-8", "replace") == text


def walked(trie: Any, node: int, before: bytes) -> Any:
    whole = before + trie.labels[node]
    yield from ((int(token), whole) for token in trie.order[trie.first[node] : trie.own[node]])
    below = trie.below[node]
    assert len({trie.labels[inner][0] for inner in below}) == len(below)
    parts = [np.arange(trie.first[inner], trie.last[inner]) for inner in below]
    assert np.concatenate([[], *parts]).tolist() == list(range(trie.own[node], trie.last[node]))
    for inner in below:
        yield from walked(trie, int(inner), whole)


def test_a_tokenizer_whose_tokens_add_what_the_one_before_them_says_is_not_read() -> None:
    assert not read(suffixed()).works


def test_one_that_decodes_otherwise_than_its_tokens_say_is_not_read() -> None:
    tokenizer = byte_tokenizer(PIECES)
    shouting = Vocabulary(
        tokenizer, lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)).upper(), skips=True
    )
    assert not shouting.works
