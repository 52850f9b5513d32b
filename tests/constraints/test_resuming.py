"""Kinds that keep a summary of a growing text judge each prefix as if they had read all of it."""

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import Length, NoCopy, Values, Verdict
from guardwrap.constraints.checking import Resuming
from guardwrap.constraints.field_checks import verdict_on_count
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.sentences import SentenceCount, settled_words
from guardwrap.rules import copies, values
from guardwrap.rules.numbers import numerals
from tests.constraints.fixtures_strategies import AWKWARD, MARKS, SPACES, profile

WORDS = ["a", "b", "Ab", "I", "茶", "あ", "ア", "ก", "า", "가", "\u1100", "好\u3099", "が", "\u3099", "\u00ad", "´"]
ENDS = [
    "。",
    "…",
    "; ",
    "ν; ",
    "«",
    " »",
    "“",
    "(",
    "—",
    "z. B. ",
    "3. ",
    "März",
    "Dr. ",
    "etc. ",
    "a. ",
    "m. ",
    "Inc.",
]
NUMBERS = ["1", "12", "３", "-", "−", "$", ",", ".", "，", "e", "E", "+", " 000", "\u202f000", "万", "千", " million"]
NUMBERS += [" mil", "lones", "H", "24.12.2024", "a-1 "]
TEXTS = st.lists(st.sampled_from([*WORDS * 2, *ENDS * 2, *AWKWARD, *MARKS, *SPACES, *"   \n"]), max_size=24)
QUOTATIONS = st.lists(st.sampled_from(["« Oui. ", "Non. ", "A", "a", ". » ", " » ", "»", "! ", "\n"]), max_size=8)
NUMBER_TEXTS = st.lists(st.sampled_from([*NUMBERS * 3, *"ab. \n", *SPACES]), max_size=16)


def _counted(rule: Length, prefix: str) -> Verdict:
    return verdict_on_count(rule.measure(prefix), rule.min, rule.max)


def _compared(rule: NoCopy, prefix: str) -> Verdict:
    words = copies._units(settled_words(copies._JOINT.sub(" ", copies._FOLDING.settled(prefix))))
    runs = {" ".join(words[at : at + rule.words]) for at in range(len(words) - rule.words + 1)}
    possible = (len(runs & document) <= (rule.share or 0) * len(document) for document in rule._sources)
    return Verdict.UNDECIDED if all(possible) else Verdict.VIOLATED


def _read(rule: Values, prefix: str) -> Verdict:
    right = map(rule._is_right, numerals(prefix, rule.locale, whole=False))
    return rule._verdict(values._Tally().with_more(right))


LENGTHS = [
    *(Length(max=most, unit="sentences") for most in range(5)),
    *(Length(min=3, max=5, unit=unit) for unit in ("characters", "words", "lines")),
    *(Length(min=2, unit=unit) for unit in ("characters", "words", "lines", "sentences")),
]
COPIES = [
    NoCopy("a b Ab", words=2),
    NoCopy(["a 茶あ b", "ก า 가 I a I"], words=3, share=0.2),
    NoCopy("茶が好 a İ ß fi", words=1, share=0.4),
]
VALUES = [
    *(Values(max=100, which=which) for which in ("all", "any", "first", "last")),
    Values(max_count=1),
    Values(min=0),
    Values(min=0, max=12, locale="fr", min_count=2, which="any"),
    Values(max=5_000_000, decimals=0, locale="es"),
    Values(max=13_000, locale="zh"),
]
KINDS: dict[str, tuple[Any, Callable[[Any, str], Verdict], st.SearchStrategy[list[str]]]] = {
    "length": (LENGTHS, _counted, TEXTS),
    "length, quotations": (LENGTHS, _counted, QUOTATIONS),
    "no copy": (COPIES, _compared, TEXTS),
    "values": (VALUES, _read, NUMBER_TEXTS),
}


def assert_judged_alike(rule: TextConstraint, whole: Callable[[Any, str], Verdict], pieces: Sequence[str]) -> None:
    """Compare the verdicts on a text that grows with those on the whole of it; what is final stays."""
    monitor, text, expected = rule.monitor(), "", Verdict.UNDECIDED
    assert isinstance(monitor, Resuming)
    for piece in ("", *pieces):
        text += piece
        monitor = monitor.read(piece)
        expected = expected or whole(rule, text)
        assert monitor.verdict is expected, (rule, text)
        assert rule.verdict(text) is whole(rule, text), (rule, text)


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@profile(100)
def test_a_text_in_pieces_is_judged_as_a_whole(kind: str, data: st.DataObject) -> None:
    rules, whole, texts = KINDS[kind]
    pieces = data.draw(texts)
    for rule in rules:
        assert_judged_alike(rule, whole, pieces)


def test_the_end_that_is_kept_is_short() -> None:
    for rule, text in (
        (Length(max=9_999, unit="sentences"), "Tea is good, or so they say. "),
        (NoCopy("a b c", words=3), "Tea is good, 茶很好 "),
        (Values(max_count=9_999), "Tea for 2, or for 1,000. "),
    ):
        monitor: Any = rule.monitor()
        for _ in range(200):
            monitor = monitor.read(text)
            assert len(monitor.read_so_far.rest) < 40
        assert not monitor.rereads


def test_a_quotation_mark_is_looked_for_in_the_sentences_before() -> None:
    rule = Length(max=2, unit="sentences")
    for before in ("« Oui. ", "Oui. "):
        assert_judged_alike(rule, _counted, [before, "Non. » ", "dit-il. ", "Si."])


def _forgetful(count: SentenceCount, text: str) -> tuple[SentenceCount, str]:
    grown, rest = GROWN(count, text)
    return grown._replace(start=0, place=grown.place - grown.start), rest[grown.start :]


GROWN = SentenceCount.grown


@pytest.mark.parametrize(
    ("rule", "whole", "pieces", "owner", "name", "broken"),
    [
        (LENGTHS[3], _counted, ["« Oui. ", "Oui ! ", "Non. » "], SentenceCount, "grown", _forgetful),
        (COPIES[0], _compared, ["a b", "b "], copies, "_last_edge", len),
        (COPIES[0], _compared, ["a b", "b "], copies, "_EDGE", regex.compile(r"(?r)\w")),
        (Values(min=0), _read, ["a-", "1 ", "a"], values, "SEEN_BEFORE", 1),
        (Values(max=100), _read, ["1", "50 ", "a"], values, "where_to_resume", lambda text, start: len(text)),
    ],
)
def test_negative_control_too_little_is_kept(
    rule: Any, whole: Any, pieces: list[str], owner: Any, name: str, broken: Any
) -> None:
    assert_judged_alike(rule, whole, pieces)
    with patch.object(owner, name, broken), pytest.raises(AssertionError):
        assert_judged_alike(rule, whole, pieces)
