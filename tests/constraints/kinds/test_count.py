"""Counts and shares, against statements of their own, with sound verdicts on every prefix."""

import unicodedata
from collections.abc import Callable
from typing import Any, get_args
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import Count, Verdict
from guardwrap.constraints.kinds.count import _RULES, Item
from guardwrap.testing import check_constraint

EXAMPLES: dict[str, dict[str, int]] = {
    "letters": {"Tea, 茶 and чай!": 10, "123": 0, "e\u0301": 1},
    "uppercase_letters": {"ÄbC d": 2},
    "lowercase_letters": {"ÄbC d": 2, "ß": 1},
    "vowels": {"Education": 5, "rhythm": 0},
    "consonants": {"Education": 4, "é": 0},
    "digits": {"1,25 ٣": 4},
    "punctuation": {"Hi, you! «a» 。": 5, "a+b": 0},
    "emoji": {"👩‍💻 🇩🇪🇫🇷 ❤️ 👍🏽": 5, "❤ © 1": 0, "😀😀": 2},
    "words": {"It's a well-known fact.": 4, "a - b": 2, "": 0, "naïve e\u0301t": 2},
    "capital_words": {"NASA and ESA's A-1 OK.": 3, "I am": 1, "ÄÖ Äö 12": 1},
    "lowercase_words": {"a B cD it's ÄÖ äö 12": 3},
    "palindromes": {"Level, Anna! No; aa 12321 Otto-otto x's": 4, "été": 1},
    "pronouns": {"I told her: it’s MINE, they're ours.": 4},
    "conjunctions": {"And yet, so or band": 4},
    "stop_words": {"The cat didn’t see me": 3},
    "statements": {"One. Two? (Three.) Four! Mr. Five": 2, "机密。是吗？": 1},
    "questions": {"One. Two? “Three?” Four! Five": 2, "**Why?** No. _Who?_": 2, "机密。是吗？": 1, "لماذا؟": 1},
    "exclamations": {"One. Two? Three! ¡Four! Five": 2},
    "numbers": {"1,250.5 and 3-4, a5 or -7": 4, "2. Tea": 1},
    "bullets": {"* a\n- b\n  • c\n*d\n- ": 3},
    "numbered_items": {"1. a\n2) b\n3 c\n10.d": 2},
    "headings": {"# A\n## B\n#C\na # b": 2},
    "placeholders": {"Dear [name], [a [b] [] [x\ny]": 2},
    "highlights": {"*a* **b c** * d * **e": 2, "***": 0},
}


def test_every_item_has_examples() -> None:
    assert set(EXAMPLES) == set(get_args(Item))


@pytest.mark.parametrize("item", EXAMPLES)
def test_what_counts(item: Any) -> None:
    for text, number in EXAMPLES[item].items():
        assert Count(item, min=0).measure(text) == number, text
        assert Count(item, min=number, max=number).accepts(text)
        assert not Count(item, min=number + 1).accepts(text)


ALPHABET = "aA1.,'-*#[] \n_é\u0301ßİ’•)(👩\u200d💻🇩🇪❤\ufe0f🏽©茶"
TEXTS = st.text(alphabet=ALPHABET, max_size=14)
CHARACTERS: dict[str, Callable[[str], bool]] = {
    "letters": lambda char: unicodedata.category(char).startswith("L"),
    "uppercase_letters": lambda char: unicodedata.category(char) == "Lu",
    "lowercase_letters": lambda char: unicodedata.category(char) == "Ll",
    "vowels": lambda char: char in "aeiouAEIOU",
    "consonants": lambda char: char.isascii() and char.isalpha() and char not in "aeiouAEIOU",
    "digits": lambda char: unicodedata.category(char) == "Nd",
    "punctuation": lambda char: unicodedata.category(char).startswith("P"),
}


@pytest.mark.parametrize("item", CHARACTERS)
@given(text=TEXTS)
def test_characters(item: Any, text: str) -> None:
    members = [char for char in text if CHARACTERS[item](char)]
    assert Count(item, min=0).measure(text) == len(members)
    assert Count(item, min=0, unique=True).measure(text) == len(set("".join(members).casefold()))
    total = sum(char.isalpha() for char in text)
    share = Count(item, share_of="letters", min=0).measure(text)
    letters = sum(CHARACTERS["letters"](char) for char in text)
    assert share == (len(members) / letters if letters else 0)
    assert total == letters


def require_sound(rule: Count, text: str) -> None:
    """Assert that no prefix of the text has a verdict that the text contradicts."""
    contradicted = Verdict.VIOLATED if rule.accepts(text) else Verdict.SATISFIED
    assert contradicted not in {rule.verdict(text[:end]) for end in range(len(text) + 1)}


@pytest.mark.parametrize("item", EXAMPLES)
def test_laws_of_constraints(item: Any) -> None:
    each: dict[str, Any] = {"max": 1, "each": True}
    for options in ({"max": 1}, {"min": 1, "unique": True}, {"share_of": "letters", "max": 0.5}, each):
        check_constraint(Count(item, **options), [*EXAMPLES[item], "", "a1 😀 [x] *y* - z\n- z"])


def test_negative_control_a_word_that_counts_before_it_has_ended() -> None:
    """ "A" and then "Ab": the first is a word in capitals only until the second letter comes."""
    with (
        patch.dict(_RULES, {"capital_words": _RULES["capital_words"]._replace(begun=True)}),
        pytest.raises(AssertionError),
    ):
        require_sound(Count("capital_words", max=0), "Ab")


@pytest.mark.slow
@pytest.mark.parametrize("unique", [False, True])
@pytest.mark.parametrize("item", EXAMPLES)
@given(text=TEXTS, limit=st.integers(0, 3))
def test_verdicts_are_sound(item: Any, unique: bool, text: str, limit: int) -> None:
    for limits in ({"min": limit}, {"max": limit}, {"min": limit, "max": limit + 1}):
        require_sound(Count(item, unique=unique, **limits), text)  # type: ignore[arg-type]
        if not unique:
            require_sound(Count(item, each=True, **limits), text)  # type: ignore[arg-type]
        if item not in CHARACTERS:
            require_sound(Count(item, unique=unique, shortest=2, **limits), text)  # type: ignore[arg-type]


PATTERNS = ["a", "a{1,3}", r"a\b", "(?<=b)a", "[ab]+", "a(?=b)", "ab|a", "a.", "^a"]


@pytest.mark.slow
@pytest.mark.parametrize("pattern", PATTERNS)
@given(text=st.text(alphabet="abA \n", max_size=12), limit=st.integers(0, 2))
def test_verdicts_on_patterns_are_sound(pattern: str, text: str, limit: int) -> None:
    for options in ({}, {"ignore_case": True}, {"unique": True}):
        require_sound(Count(pattern=pattern, max=limit, **options), text)  # type: ignore[arg-type]
        require_sound(Count(pattern=pattern, min=limit, **options), text)  # type: ignore[arg-type]


def test_an_attempt_ends_at_the_first_item_too_many() -> None:
    verdicts = {
        Count("words", max=2): ("a b", "a b c"),
        Count("words", max=1, unique=True): ("a b", "a b c "),
        Count("numbers", max=0): ("a ", "a 1"),
        Count("capital_words", max=0): ("NASA", "NASA is"),
        Count("bullets", max=1): ("- a\n-", "- a\n- b"),
        Count(pattern="a", max=1): ("ba", "baa"),
    }
    for rule, (undecided, dead) in verdicts.items():
        assert rule.verdict(undecided) is Verdict.UNDECIDED
        assert rule.verdict(dead) is Verdict.VIOLATED
    assert Count("emoji", min=1).verdict("Hi 😀") is Verdict.SATISFIED
    assert Count("vowels", share_of="letters", max=0.1).verdict("aaaa") is Verdict.UNDECIDED


def test_each_item_by_itself() -> None:
    once = Count("words", each=True, max=1)
    assert {text for text in ("a b", "A b a", "", "a aa") if once.accepts(text)} == {"a b", "", "a aa"}
    assert once.verdict("tea a te") is Verdict.UNDECIDED
    assert once.verdict("tea a tea") is Verdict.UNDECIDED  # it may become teapot
    assert once.verdict("tea a tea  ") is Verdict.VIOLATED
    assert once.verdict("机密机") is Verdict.UNDECIDED
    assert Count("letters", each=True, max=1).verdict("aA") is Verdict.VIOLATED
    twice = Count(pattern="[ab]", each=True, min=2, max=3)
    assert {text for text in ("aabb", "aab", "xx", "aaaa") if twice.accepts(text)} == {"aabb", "xx"}
    assert once.fault("a a") == "has words that do not occur at most 1 times each: 'a'"


def test_an_emoji_may_still_be_joined_to_another_one() -> None:
    for rule, text in (
        (Count("emoji", each=True, max=1), "👩 👩\u200d❤\ufe0f\u200d👨"),
        (Count("emoji", unique=True, max=1), "👩\u200d❤\ufe0f 👩\u200d❤\ufe0f"),
    ):
        assert rule.accepts(text)
        require_sound(rule, text)


def test_negative_control_a_word_that_has_not_ended_is_no_repetition() -> None:
    with (
        patch.dict(_RULES, {"words": _RULES["words"]._replace(tail=0)}),
        pytest.raises(AssertionError),
    ):
        require_sound(Count("words", each=True, max=1), "a ab")


def test_items_of_some_length() -> None:
    long = Count("palindromes", shortest=5, min=2)
    assert {text for text in ("level Anna radar", "level anna noon", "racecar kayak") if long.accepts(text)} == {
        "level Anna radar",
        "racecar kayak",
    }
    assert Count("words", shortest=4, max=1).verdict("a bcd efgh ijk") is Verdict.UNDECIDED
    assert Count("words", shortest=4, max=1).verdict("a bcd efgh ijkl") is Verdict.VIOLATED


@pytest.mark.parametrize(
    ("item", "language", "text", "number"),
    [
        ("pronouns", "de", "Ich sah IHN, und sie gab mir Äpfel.", 4),
        ("pronouns", "ru", "Я вижу её и тебя", 3),
        ("pronouns", "tr", "Ben seni gördüm", 2),
        ("pronouns", "fr", "Il m'a vu, je le crois", 3),
        ("conjunctions", "es", "pan y agua o vino, pero no", 3),
        ("conjunctions", "pl", "chleb i woda lub wino", 2),
        ("stop_words", "pt", "o gato não está em casa", 4),
        ("stop_words", "de", "Die Katze ist nicht hier", 4),
    ],
)
def test_word_lists_by_language(item: Any, language: str, text: str, number: int) -> None:
    assert Count(item, language=language, min=0).measure(text) == number
    check_constraint(Count(item, language=language, max=1), [text])


def test_the_ratio_of_questions_to_statements() -> None:
    two_to_one = Count("questions", share_of="statements", min=0.5, max=0.5)
    assert two_to_one.accepts("One. Two? Three.")
    assert not two_to_one.accepts("One. Two?")


def test_shares_and_their_limits() -> None:
    rule = Count("vowels", share_of="letters", min=0.25, max=0.5)
    assert {text for text in ("bbba", "aabb", "aaab", "bbbb", "", "a") if rule.accepts(text)} == {"bbba", "aabb"}
    assert Count("emoji", share_of="words", max=1).accepts("hi 😀")
    assert rule.fault("aaab") == "has 0.75 vowels per letter, not at least 0.25 and at most 0.5"
    assert Count("words", unique=True, min=3).fault("a A b") == "has 2 different words, not at least 3"
    assert Count(pattern="x", max=1).fault("xx") == "has 2 matches, not at most 1: 'x'"
    assert Count("letters", max=1234).fault("a" * 12_345) == "has 12345 letters, not at most 1234"


@pytest.mark.slow
@pytest.mark.parametrize("item", EXAMPLES)
def test_long_and_strange_texts_take_little_time(item: Any) -> None:
    """A check that exceeds its time limit raises CheckFailed."""
    pieces = ("a" * 10, "a-", "[", "*a", "**", "1,", "\u0301", "👩\u200d", "🇩", " ", "- ", "# ", "\n- x")
    for piece in pieces:
        text = piece * (40_000 // len(piece))
        assert Count(item, min=0).accepts(text)
        Count(item, max=10, unique=True).accepts(text)
