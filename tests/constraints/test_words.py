"""Words in scripts with and without spaces; counts that never fall; words that no later text changes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import Count, Length, Regex
from guardwrap.constraints.words import count_spaced_words, settled_words, words_of
from guardwrap.testing import check_constraint

PIECES = st.lists(
    st.sampled_from(
        ["a", "é", "e\u0301", "1", "_", "-", "'", "’", " ", "\n", ".", "机", "か", "カー", "사과", "ไทย", "ـ", "ال"]
    ),
    max_size=12,
).map("".join)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's a well-known fact.", ["It's", "a", "well-known", "fact"]),
        ("Straße – naïve e\u0301t", ["Straße", "naïve", "e\u0301t"]),
        ("这是机密。", list("这是机密")),
        ("コーヒーを飲む", ["コーヒー", "を", "飲", "む"]),
        ("AI模型", ["AI", "模", "型"]),
        ("나는 사과를 먹었다.", ["나는", "사과를", "먹었다"]),
        ("ไทย ดี", ["ไทย", "ดี"]),
        ("नमस्ते दुनिया।", ["नमस्ते", "दुनिया"]),
        ("كتاب، قلم؟", ["كتاب", "قلم"]),
        ("a_b 12 - --", ["a_b", "12"]),
    ],
)
def test_words_of(text: str, words: list[str]) -> None:
    assert words_of(text) == words
    assert Count("words", min=0).measure(text) == len(words)


def test_lengths_in_words() -> None:
    lengths = {"It's well-known - yes.": 4, "这是机密。": 4, "AI模型 ok": 4, "コーヒーを飲む": 4, "机密 — 。": 4, "": 0}
    assert {text: count_spaced_words(text) for text in lengths} == lengths
    assert not Length(max=4, unit="words").accepts("这份文件是机密的")


@given(text=st.text(alphabet="abé1.-'!? \n", max_size=20))
def test_texts_in_spaced_scripts_have_the_length_that_they_had(text: str) -> None:
    assert count_spaced_words(text) == len(text.split())


@given(text=PIECES, rest=PIECES)
@settings(max_examples=400, deadline=None)
def test_what_a_prefix_says_stays_true(text: str, rest: str) -> None:
    assert count_spaced_words(text) <= count_spaced_words(text + rest)
    fixed = settled_words(text)
    assert words_of(text + rest)[: len(fixed)] == fixed
    assert len(words_of(text)) - len(fixed) <= 1


@pytest.mark.parametrize("rule", [Length(max=3, unit="words"), Length(min=2, unit="words"), Regex("^a", on="words")])
@given(text=PIECES)
@settings(max_examples=100, deadline=None)
def test_laws(rule: Length | Regex, text: str) -> None:
    check_constraint(rule, [text])


def test_long_texts_take_linear_time() -> None:
    for text in ("a-" * 50_000, "机" * 100_000, "'" * 100_000, "a机" * 50_000, "e" + "\u0301" * 100_000):
        words_of(text), settled_words(text), count_spaced_words(text)
