"""Text of unfinished attempts: what later tokens cannot change, decoded whole or by its last tokens."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import load_local
from guardwrap.models import early_abort
from guardwrap.models.early_abort import LONG, WINDOW, StablePrefix
from tests.fixtures_models import byte_tokenizer, fallback_tokenizer, storyteller

BYTES: list[str | bytes] = ["a", "1", " b", b"\xc3", b"\xa9", b"\xf0\x9f", b"\x98\x80", b"\xe4\xb8", b"\xad"]
TOKENIZERS: dict[str, Callable[[], Any]] = {
    "byte-level": partial(byte_tokenizer, BYTES),
    "byte fallback": partial(fallback_tokenizer, ["a", " a", "1", "é", b"\xc3", b"\xa9", b"\x0a"]),
    "embedded": lambda: load_local()[1],
    "words": lambda: storyteller()[1],
}
MADE: dict[str, tuple[Any, StablePrefix]] = {}


def stable_of(name: str) -> tuple[Any, StablePrefix]:
    if name not in MADE:
        tokenizer = TOKENIZERS[name]()
        MADE[name] = tokenizer, StablePrefix(tokenizer, partial(tokenizer.decode, skip_special_tokens=True))
    return MADE[name]


def read_along(stable: StablePrefix, ids: Sequence[int]) -> list[str]:
    """Return what each prefix reads as, each from the one before."""
    texts = [""]
    for end in range(1, len(ids) + 1):
        texts.append(stable(ids[:end], texts[-1]))
    return texts


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_last_tokens_tell_what_is_added(name: str, data: Any) -> None:
    tokenizer, stable = stable_of(name)
    assert stable.works
    assert stable._is_local  # otherwise everything is decoded whole, and nothing is tested
    length = data.draw(st.integers(LONG + 1, LONG + 3 * WINDOW))
    token = st.integers(0, len(tokenizer) - 1)
    ids = data.draw(st.lists(token, min_size=length, max_size=length))
    if data.draw(st.booleans()):  # runs of one token: of a byte, of half a character
        ids = [token for token in ids for _ in range(data.draw(st.integers(1, 3)))]
    assert read_along(stable, ids) == [stable(ids[:end]) for end in range(len(ids) + 1)]


def test_long_texts_are_decoded_by_their_last_tokens() -> None:
    tokenizer, _ = stable_of("words")
    decoded: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        decoded.append(len(ids))
        return str(tokenizer.decode(ids, skip_special_tokens=True))

    stable = StablePrefix(tokenizer, decode)
    ids = tokenizer("once there was a cat " * 60, add_special_tokens=False)["input_ids"]
    decoded.clear()
    read_along(stable, ids)
    assert len(ids) > 2 * LONG
    assert max(decoded) == LONG


def test_characters_of_several_tokens_are_decoded_by_the_last_ones() -> None:
    tokenizer, _ = stable_of("embedded")
    decoded: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        decoded.append(len(ids))
        return str(tokenizer.decode(ids, skip_special_tokens=True))

    stable = StablePrefix(tokenizer, decode)
    text = "今天天气很好我们一起去公园散步然后回家吃饭" * 10
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) > 2 * len(text)
    decoded.clear()
    assert read_along(stable, ids)[-1] == text
    assert max(decoded) == LONG


def test_negative_control_a_window_that_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that begins in a run of bytes does not read as the whole run does."""
    tokenizer, stable = stable_of("byte fallback")
    ids = tokenizer.convert_tokens_to_ids(["a"] * LONG + ["<0xC3>", "<0xA9>"] * WINDOW + ["a"])
    whole = [stable(ids[:end]) for end in range(len(ids) + 1)]
    assert whole[-1].count("é") == WINDOW
    assert read_along(stable, ids) == whole

    def careless(self: StablePrefix, ids: Sequence[int], before: str, decode: Any) -> str:
        window = ids[-WINDOW:]
        return before + self(window, decode=decode)[len(self(window[:-1], decode=decode)) :]

    monkeypatch.setattr(early_abort.StablePrefix, "_extended", careless)
    assert read_along(stable, ids) != whole


def test_a_decoder_that_looks_back_far_is_asked_for_the_whole_text() -> None:
    """What a window adds is used only if its text is the end of the text that is known."""
    tokenizer, _ = stable_of("words")

    def decode(ids: Sequence[int]) -> str:
        text = str(tokenizer.decode(ids, skip_special_tokens=True))
        return "".join(f"{letter}{number}" for number, letter in enumerate(text))

    stable = StablePrefix(tokenizer, decode)
    ids = tokenizer("once there was a cat " * 30, add_special_tokens=False)["input_ids"]
    assert len(ids) > LONG + WINDOW
    assert read_along(stable, ids) == [stable(ids[:end]) for end in range(len(ids) + 1)]
