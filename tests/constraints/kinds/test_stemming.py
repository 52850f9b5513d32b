"""Keywords that find inflected forms."""

from __future__ import annotations

import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import Keyword, Verdict
from guardwrap.constraints.kinds import text_folding
from guardwrap.constraints.kinds.text_folding import TextFolding
from guardwrap.errors import ConstraintError
from guardwrap.metrics.texts import spans
from guardwrap.testing import check_constraint
from tests.constraints.fixtures_strategies import profile

snowballstemmer = pytest.importorskip("snowballstemmer")

FORMS = [
    ("german", "Haus", "Die HÄUSER sind alt.", True),
    ("german", "Straße", "zwei STRASSEN", True),
    ("german", "Haus", "Das Hausboot schwimmt.", False),
    ("english", "leak", "It leaked, leaking.", True),
    ("french", "secret", "des secrets", True),
    ("spanish", "canción", unicodedata.normalize("NFD", "dos canciones"), True),
    ("portuguese", "segredo", "muitos segredos", True),
    ("russian", "код", "Скажи часть кода.", True),
    ("russian", "секрет", "с секретами", True),
    ("turkish", "sınır", "SINIRLAR", True),
    ("turkish", "kitap", "KİTAPLAR", True),
    ("german", "geheime Akte", "der geheimen\nAkten", True),
    ("de", "gehen", "Er GING weg.", True),
    ("de", "Haus", "zwei Ha\u0308user", True),
    ("de", "Straße", "zwei STRASSEN", True),
    ("de", "Kündigung", "Er ist kundig.", False),
    ("el", "άνθρωπος", "ΈΝΑΣ ΆΝΘΡΩΠΟΣ", True),
    ("el", "άνθρωπος", "οι άνθρωποι", True),
    ("tr", "kitap", "KİTAPLAR", True),
]


@pytest.mark.slow
@pytest.mark.parametrize(("language", "word", "text", "occurs"), FORMS)
def test_inflected_forms(language: str, word: str, text: str, occurs: bool) -> None:
    ban = Keyword(word, match="none", stem=language)
    assert ban.accepts(text) is not occurs
    check_constraint(ban, [text, f"{text} {word}en"])


PIECES = [
    "haus",
    "häus",
    "ha\u0308us",
    "er",
    "ern",
    "es",
    "boot",
    " ",
    ". ",
    "-",
    "ß",
    "n",
    "\u0308",
    "\u00ad",
    "机",
    "HAUS",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
FIELDS = st.sampled_from([{"match": "none"}, {"min_count": 2}, {"max_count": 1}, {"match": "all"}])


@pytest.mark.slow
@profile(300)
@given(TEXTS, FIELDS)
def test_verdicts_are_sound(text: str, fields: dict[str, object]) -> None:
    check_constraint(Keyword(["Haus", "Boot"], stem="german", **fields), [text])  # type: ignore[arg-type]


@profile(300)
@given(TEXTS)
def test_occurrences_are_the_words_with_the_same_stem(text: str) -> None:
    plain = unicodedata.normalize("NFC", text.replace("\u00ad", "")).casefold()
    stem = snowballstemmer.stemmer("german").stemWord
    words = re.split(r"[ .机-]+", plain)
    assert Keyword("Haus", stem="german").accepts(text) is ("haus" in map(stem, words))


def test_negative_control_a_stem_before_the_end_of_the_word(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Haus-"
    check_constraint(Keyword("haus", match="none", stem="german"), [text + "boot", "Haus " + text])
    monkeypatch.setattr(TextFolding, "settled", lambda self, prefix: self.fold(prefix) + " ")
    with pytest.raises(AssertionError):
        check_constraint(Keyword("haus", match="none", stem="german"), ["Hausboot"])


def test_spans_are_those_of_whole_words() -> None:
    assert spans("Die Häuser, das Haus.", Keyword("Haus", stem="german")) == [(4, 10), (16, 20)]


def test_invalid_options() -> None:
    with pytest.raises(ConstraintError, match=r"stem='germn' is not one of .* \(did you mean 'german'\?\)"):
        Keyword("a", stem="germn")
    with pytest.raises(ConstraintError, match="stem='xx' is not one of"):
        Keyword("a", stem="xx")
    for fields in ({"whole_words": False}, {"case_sensitive": True}):
        with pytest.raises(ConstraintError, match="stem needs whole words, and ignores case"):
            Keyword("a", stem="german", **fields)  # type: ignore[arg-type]


def test_without_the_library_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "snowballstemmer", None)
    monkeypatch.setitem(sys.modules, "simplemma", None)
    text_folding._lemmatizer.cache_clear()
    with pytest.raises(ConstraintError, match=r"pip install 'guardwrap\[lemma\]'"):
        Keyword("a", stem="de")
    with pytest.raises(ConstraintError, match=r"pip install 'guardwrap\[stem\]'"):
        Keyword("a", stem="german")
    assert Keyword("a").verdict("a ") is Verdict.SATISFIED
