"""Quotations that occur in a source."""

from contextlib import suppress
from typing import Any
from unittest.mock import patch

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import Draw, Part, Quotes, Verdict
from guardwrap.constraints.checking import run_check
from guardwrap.constraints.kinds.text_folding import TextFolding
from guardwrap.constraints.verdicts import Context
from guardwrap.errors import CheckFailed
from guardwrap.rules import copies
from guardwrap.testing import check_constraint

U, V = Verdict.UNDECIDED, Verdict.VIOLATED
SHOP = "The shop opens at nine,\nand it doesn’t close before six. Café Ñandú is next to it."
PIECES = st.lists(
    st.sampled_from(
        ["“", "”", '"', "«", "»", "„", "‘", "’", "a b c", "a", "b", " c", "A", " ", "\n", "\n\n", "[…]", "[", "...",
         "]", ".",
         ",", "e", "\u0301", "\u0323", "\u00ad", "é", "茶", "茶 好", "的", "5", "ก", "Σ"]
    ),
    max_size=12,
).map("".join)  # fmt: skip
SOURCES = ["a b c", "a  b, c e\u0301 茶好的 a", "A b\nc. “a” b c’ab 5 ca", "c a b c e\u0323\u0301 ΣΑ"]


@pytest.mark.parametrize(
    ("source", "accepted", "rejected"),
    [
        (
            SHOP,
            ["It says “The shop opens at nine”.", "No quote.", "“at nine,” it says", 'So "opens\n at  nine".',
             "“The shop”"],
            ["“the shop opens”", "“The shop opens at ten.”", "“hop opens at nine”", "“shop opens at nin”",
             "“opens at night"],
        ),
        (
            SHOP,
            ["“The shop […] close before six”", "“opens [...] it doesn't close”", "‘it doesn’t close’",
             "“Cafe\u0301 Ñandú is”"],
            ["“and it […] The shop opens”", "“opens […] at ten now”", "‘it doesn’t open’", "“Cafe Nandu is”"],
        ),
        (SHOP, ['a 5" pipe and a 6" one', "an “odd” “new one”", "“The shop opens\n\nToday"], ['"never so closed']),
        ("Der Laden öffnet um neun.", ["„Der Laden öffnet“", "»Laden öffnet um«",
        "‚um neun‘"], ["„Der Laden schließt“"]),
        ("Le magasin ouvre à neuf heures.", ["« Le magasin ouvre »", "«magasin ouvre à»"], ["« Le magasin ferme à »"]),
        ("La tienda abre a las nueve.", ["«La tienda abre»", "“abre a las nueve”"], ["«La tienda cierra a»"]),
        ("A loja abre às nove horas.", ["“A loja abre”"], ["“A loja fecha às”"]),
        ("Sklep jest czynny od dziewiątej.", ["„Sklep jest czynny”",
        "«jest czynny od»"], ["„Sklep jest zamknięty od”"]),
        ("Dükkân saat dokuzda açılır.", ["“saat dokuzda açılır”"], ["“saat onda açılır”"]),
        ("Магазин открыт с девяти утра.", ["«Магазин открыт с»", "„открыт с девяти“"], ["«Магазин закрыт с»"]),
        ("يفتح المحل في التاسعة صباحا", ["«يفتح المحل في»"], ["«يغلق المحل في»"]),
        ("दुकान नौ बजे खुलती है।", ["“नौ बजे खुलती है”"], ["“नौ बजे बंद होती है”"]),
        (
            "商店早上九点开门。",
            ["他说：“早上九点开门。”", "「早上九点」", '他说"早上\n九点"'],
            ["他说：“早上十点开门。”", "「十点开门」"],
        ),
        ("店は九時に開きます。", ["「九時に開きます」と", "『店は九時』"], ["「十時に開きます」"]),
        ("ร้านเปิดเก้าโมงเช้าทุกวัน", ["“เปิดเก้าโมงเช้า”"], ["“ปิดสิบโมงเช้าทุกวัน”"]),
        ("가게는 아홉 시에 문을 엽니다.", ["“아홉 시에 문을”", "‘가게는 아홉 시’"], ["“열 시에 문을”"]),
        (["one two three", "four five six"], ["“one two three” “four five six”"], ["“three four five”",
        "“one […] five six”"]),
    ],
)  # fmt: skip
def test_what_is_accepted(source: Any, accepted: list[str], rejected: list[str]) -> None:
    rule = Quotes(source)
    assert [text for text in accepted if not rule.accepts(text)] == []
    assert [text for text in rejected if rule.accepts(text)] == []
    check_constraint(rule, [*accepted, *rejected])


def test_options() -> None:
    assert Quotes(SHOP, ignore_case=True).accepts("“THE SHOP OPENS”")
    assert Quotes(SHOP, shortest=1).accepts("“shop”")
    assert not Quotes(SHOP, shortest=1).accepts("“bank”")
    assert not Quotes(SHOP, min=1).accepts("No “quote”.")
    assert Quotes(SHOP, min=1).accepts("It “opens at nine”.")
    assert Quotes("Straße ΣΟΦΟΣ ist da", ignore_case=True).accepts("“STRASSE σοφος ist”")
    assert "1 of 2 quotations" in Quotes(SHOP).fault("“opens at nine” “opens at ten”")
    assert "0 quotations" in Quotes(SHOP, min=1).fault("none")


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES)
@given(text=PIECES)
@settings(max_examples=250, deadline=None)
def test_laws(source: str, text: str) -> None:
    for shortest in (1, 3):
        check_constraint(Quotes(source, shortest=shortest, ignore_case=shortest == 1), [text])
    for on in ("lines", "first_sentence", Part(after=".", missing="pass")):
        check_constraint(Quotes(source, shortest=1, on=on), [text])


@given(
    words=st.lists(st.sampled_from(["a", "b", "c", "é", "A", "e\u0301", "茶"]), min_size=3, max_size=8),
    start=st.integers(0, 5),
    size=st.integers(1, 8),
    marks=st.sampled_from(["“”", "«»", '""', "„“", "「」", "‘’"]),
    space=st.sampled_from([" ", "  ", "\n", " \u200b"]),
)
@settings(max_examples=300, deadline=None)
def test_what_the_source_has_may_be_quoted(words: Any, start: int, size: int, marks: str, space: str) -> None:
    quoted = words[start : start + size]
    rule = Quotes(" ".join(words), shortest=1)
    text = f"So {marks[0]}{space.join(quoted)}{marks[1]}, it says"
    assert rule.accepts(text)
    assert V not in [rule.verdict(text[:end]) for end in range(len(text))]
    assert not rule.accepts(f"So {marks[0]}{space.join([*quoted, 'x'])}{marks[1]}")


def test_a_prefix_ends_where_it_cannot_be_continued() -> None:
    rule = Quotes(SHOP)
    for text, dead in {
        "“The shop opens at t": True,
        "“The shop opens at n": False,
        "“The bank c": False,  # it may end here, and two words are not compared
        "“The bank closes ": True,
        "“The shop [.": False,
        "“The shop […] bef": False,
        "“The shop […] aft": False,
        "“The shop […] aft ": True,
        "“The bank closes” an": True,
    }.items():
        assert (rule.verdict(text) is V) == dead, text


def test_the_prompt_is_the_source() -> None:
    rule = Quotes()
    text = "“opens at nine” it"
    assert run_check(rule, [Draw(SHOP, (), text), Draw("other", (), text), Draw(SHOP, (), text)]) == [True, False, True]
    assert rule.verdict("“closes at ten o") is U
    assert rule.monitor_in(Context(prompt=SHOP)).read("“opens at ten o").verdict is V
    assert rule.monitor_in(Context(prompt=SHOP)).read("“opens at nine”").verdict is U
    assert rule.monitor_in(Context()).read("“closes at ten o").verdict is U
    assert "1 of 1" in rule.fault_of(Draw("other", (), text)).reason


def test_negative_controls() -> None:
    text = "“hop opens at nine”"
    assert not Quotes(SHOP).accepts(text)
    with patch.object(copies, "_LETTER", regex.compile(r"(?!)")):  # words without edges
        assert Quotes(SHOP).accepts(text)
    whole = TextFolding.fold  # what a prefix folds to, although a mark may follow
    with patch.object(TextFolding, "settled", whole), pytest.raises(AssertionError):
        check_constraint(Quotes("a e\u0323\u0301 b", shortest=1), ["“a e\u0301\u0323 b”"])


@pytest.mark.parametrize(
    "text",
    ["“" * 50_000, '"a b c" ' * 20_000, "“" + "a " * 50_000, "[…]" * 30_000, "“a b c[…]" * 10_000, "\n" * 100_000,
     "“" + "\u0301\u0323" * 50_000, "’a" * 50_000, "‘a’" * 30_000, "“" + "\u200b" * 100_000],
)  # fmt: skip
def test_hostile_texts_end_by_the_time_limit(text: str) -> None:
    for source in ("a " * 100_000 + "b", "c " * 1000):
        rule = Quotes(source)
        with suppress(CheckFailed):
            rule.accepts(text)
        rule.verdict(text)
