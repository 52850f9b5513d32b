"""Folded texts: stable under normalization, in pieces, and with more text at the end."""

from __future__ import annotations

import sys
import unicodedata
from itertools import product
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import Keyword
from guardwrap.constraints.kinds.text_folding import TextFolding, last_piece, without_last_hangul
from guardwrap.metrics.texts import spans
from tests.constraints.fixtures_strategies import profile

Form = Literal["NFC", "NFD", "NFKC", "NFKD"]

COMPOSED: tuple[Literal["NFC", "NFKC"], ...] = ("NFC", "NFKC")
FOLDINGS = [
    TextFolding(form, case, invisible, capital_i)
    for form, (case, invisible, capital_i) in product(COMPOSED, product([False, True], repeat=3))
]
NASTY = [
    *"aiIıİßﬁﷺΣς'’‑Å\u0301\u0323\u0307\u0345\u05b0\u00ad\u034f\u200d\ufe0f",
    *"\x00\u0336\u20ddیکہ४③①²㎏🅰\u202e",
    *"가각사\u1100\u1161\u11a8ㄱㅏﾡￂﾞｶガか\u3099\u0640\u0651سأ\u0915\u093c\u094d\u0958",
]
TEXTS = st.lists(st.sampled_from(NASTY), max_size=10).map("".join)


@pytest.mark.slow
@pytest.mark.parametrize("folding", FOLDINGS, ids=str)
@profile(150)
@given(text=TEXTS, more=TEXTS)
def test_what_is_settled_stays(folding: TextFolding, text: str, more: str) -> None:
    assert folding.fold(text + more).startswith(folding.settled(text))
    cut = last_piece(text)
    assert folding.fold(text + more).startswith(folding.fold(text[:cut]))
    assert folding.fold(text) == folding.fold(text[:cut]) + folding.fold(text[cut:])


@pytest.mark.parametrize("folding", FOLDINGS, ids=str)
@profile(100)
@given(text=TEXTS)
def test_places_are_those_of_the_folded_text(folding: TextFolding, text: str) -> None:
    folded, origins = folding.located(text)
    assert folded == folding.fold(text)
    assert len(origins) == len(folded)
    assert origins == sorted(origins)


@pytest.mark.parametrize("folding", [each for each in FOLDINGS if each.ignore_invisible], ids=str)
@profile(100)
@given(text=TEXTS)
def test_equivalent_texts_are_folded_alike(folding: TextFolding, text: str) -> None:
    visible = "".join(char for char in text if char not in "\x00\u202e\u00ad\u034f\u200d\ufe0f\u0640\u0651")
    forms: list[Form] = ["NFC", "NFD", "NFKC", "NFKD"]
    forms = forms if folding.form == "NFKC" else forms[:2]
    assert {folding.fold(unicodedata.normalize(form, visible)) for form in forms} == {folding.fold(text)}


@pytest.mark.slow
@pytest.mark.parametrize("form", COMPOSED)
def test_case_folding_needs_one_pass(form: Literal["NFC", "NFKC"]) -> None:
    """Folding the case of a decomposed character gives decomposed characters: no second normalization is needed."""
    folding = TextFolding(form, False, True, False)
    decomposed: Form = "NFD" if form == "NFC" else "NFKD"
    for code in range(sys.maxunicode + 1):
        if 0xD800 <= code < 0xE000 or 0xAC00 <= code < 0xD7A4 or 0x1100 <= code < 0x1200:
            continue
        folded = folding.fold(chr(code))
        again = unicodedata.normalize(decomposed, folded)
        assert folding.fold(folded) == folded, hex(code)
        assert again == folded or any("\uac00" <= char <= "\ud7a3" for char in folded), hex(code)


def test_every_joining_character_stays_with_the_one_before() -> None:
    """Whatever may be sorted before, or composed with, another character does not begin a piece."""
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if 0xD800 <= code < 0xE000:
            continue
        first = unicodedata.normalize("NFKD", char)[0]
        if unicodedata.combining(first) or "\u1161" <= first <= "\u11ff":
            assert last_piece("a" + char) == 0, hex(code)


def test_many_marks_take_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call to ``normalize`` gets a longer run of marks than 30, because it sorts them in quadratic time."""
    longest = 0
    normalize = unicodedata.normalize

    def measured(form: Form, text: str) -> str:
        nonlocal longest
        longest = max(longest, len(text))
        return normalize(form, text)

    monkeypatch.setattr(unicodedata, "normalize", measured)
    text = "a" + "\u0301\u0323" * 5_000
    assert len(FOLDINGS[0].fold(text)) == len(text)
    assert longest <= 31


def test_spans_are_those_of_the_text() -> None:
    assert spans("ge\u00adheim, GEHEIM", Keyword("geheim")) == [(0, 7), (9, 15)]
    assert spans("Die STRASSE, die Straße", Keyword("Straße")) == [(4, 11), (17, 23)]
    assert spans("cafe\u0301 au lait", Keyword("café")) == [(0, 5)]
    assert spans("이것은 비밀입니다", Keyword("비밀")) == [(4, 6)]


def test_the_hangul_at_the_end() -> None:
    assert without_last_hangul("a 사과\u1100") == "a "
    assert without_last_hangul("사과.") == "사과."
    assert without_last_hangul("") == ""
