"""Reading levels: the formulas by hand, syllables in nine languages, limits and files."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import Readability, Verdict
from guardwrap.constraints import parse
from guardwrap.errors import CheckFailed
from guardwrap.rules.readability import _syllables
from guardwrap.serve.request_models import GuardwrapFields
from guardwrap.serve.request_policy import RequestPolicy, constraints_of
from guardwrap.testing import check_constraint

SYLLABLES = {
    "de": {"Haus": 1, "Häuser": 2, "Donaudampfschiff": 4, "E-Mail": 2, "Rhythmus": 2},
    "en": {"cat": 1, "late": 1, "table": 2, "walked": 1, "wanted": 2, "banana": 3, "the": 1, "rhythms": 1},
    "es": {"gato": 2, "bueno": 2, "camión": 2, "ordenador": 4},
    "fr": {"petites": 2, "belle": 1, "maison": 2, "le": 1, "université": 5},
    "it": {"gatto": 2, "buono": 2, "università": 5},
    "nl": {"huis": 1, "boeken": 2, "fietsenmaker": 4},
    "pt": {"gato": 2, "coração": 3, "computador": 4},
    "ru": {"кот": 1, "молоко": 3, "Россия": 3},
    "tr": {"kedi": 2, "bilgisayar": 4, "saat": 2},
}


@pytest.mark.parametrize("language", SYLLABLES)
def test_syllables(language):
    assert {word: _syllables(word, language) for word in SYLLABLES[language]} == SYLLABLES[language]


@pytest.mark.parametrize(
    ("formula", "language", "text", "value"),
    [
        ("flesch", "en", "The cat sat. It ran.", 206.835 - 1.015 * 2.5 - 84.6),
        ("flesch_kincaid", "en", "The cat sat. It ran.", 0.39 * 2.5 + 11.8 - 15.59),
        ("flesch", "de", "Das Haus ist alt.", 180 - 4 - 58.5),
        ("flesch", "ru", "Кот пьёт молоко. Да.", 206.835 - 1.3 * 2 - 60.1 * 6 / 4),
        ("flesch", "tr", "Kedi süt içer.", 198.825 - 40.175 * 5 / 3 - 2.61 * 3),
        ("lix", None, "Das Eichhörnchen schläft. Es ist müde.", 6 / 2 + 100 * 2 / 6),
    ],
)
def test_the_formulas_by_hand(formula, language, text, value):
    assert Readability(formula, language=language, min=0).measure(text) == pytest.approx(value)


def test_easy_texts_are_easier_in_each_language():
    pairs = {
        "de": (
            "Der Hund ist da. Er hat Durst.",
            "Die Berücksichtigung organisatorischer Voraussetzungen erfordert Abstimmung.",
        ),
        "es": (
            "El gato es gris. Come pan.",
            "Las consideraciones institucionales necesitan deliberaciones extraordinarias.",
        ),
        "it": ("Il gatto è qui. Ha sete.", "Le considerazioni istituzionali necessitano deliberazioni straordinarie."),
    }
    language: Any
    for language, (easy, hard) in pairs.items():
        rule = Readability("flesch", language=language, min=60)
        assert (rule.accepts(easy), rule.accepts(hard)) == (True, False)
        assert "not at least 60" in rule.fault(hard)


def test_a_text_without_words_is_rejected():
    for text in ("", "12 + 3", "…"):
        assert not Readability("lix", max=100).accepts(text)
        assert Readability("lix", max=100).fault(text) == "has no words"


@given(text=st.text(alphabet="aeél td.-' \n", max_size=12))
def test_no_prefix_decides(text):
    check_constraint(Readability("flesch", language="en", min=50), [text])
    check_constraint(Readability("lix", max=20, on="sentences"), [text])


def test_files_and_requests_may_use_it():
    rule = parse("guardwrap: 1\nconstraint: {kind: readability, formula: flesch, language: en, min: 60}\n").constraint
    assert rule == Readability("flesch", language="en", min=60.0)
    fields = {"constraint": {"kind": "readability", "formula": "lix", "max": 40}}
    (file,) = constraints_of(GuardwrapFields.model_validate(fields), RequestPolicy(models=("m",)))
    assert file.constraint == Readability("lix", max=40)


@pytest.mark.parametrize(
    "text", ["a" * 30_000, "a-" * 30_000, "be " * 30_000, "be. " * 30_000, "'" * 30_000, "\ud800a" * 10**4]
)
def test_hostile_texts_end(text):
    rule = Readability("flesch", language="en", min=0)
    with contextlib.suppress(CheckFailed):
        assert rule.accepts(text) in (True, False)
    assert rule.verdict(text) is Verdict.UNDECIDED
