"""Verdicts are sound, and decided where they can be."""

from __future__ import annotations

import pytest
from hypothesis import find, given
from hypothesis import strategies as st

from guardwrap.constraints import All, JSONSchema, Keyword, Length, Regex, Verdict
from guardwrap.constraints.views import view
from guardwrap.errors import CheckFailed, ConstraintError
from guardwrap.outcomes import Draw
from tests.constraints.fixtures_strategies import (
    AWKWARD_PATTERNS,
    FLAGS,
    PIECES,
    THEMES,
    assert_sound,
    json_schemas,
    keywords,
    lengths,
    mixed_texts,
    profile,
    regexes,
    texts,
    texts_of,
    trees,
    trees_of,
)

pytestmark = pytest.mark.slow

V, U, S = Verdict.VIOLATED, Verdict.UNDECIDED, Verdict.SATISFIED


@pytest.mark.slow
@pytest.mark.parametrize("theme", THEMES)
@profile(300)
@given(data=st.data())
def test_regexes_are_sound(theme, data):
    assert_sound(data.draw(regexes(THEMES[theme])), data.draw(texts_of(THEMES[theme])))


@pytest.mark.slow
@pytest.mark.parametrize("theme", THEMES)
@profile(150)
@given(data=st.data())
def test_keywords_are_sound(theme, data):
    assert_sound(data.draw(keywords(THEMES[theme])), data.draw(texts_of(THEMES[theme])))


@pytest.mark.slow
@pytest.mark.parametrize("theme", THEMES)
@profile(200)
@given(data=st.data(), prompt=texts, finished=st.booleans())
def test_trees_are_sound(theme, data, prompt, finished):
    constraint, text = data.draw(trees_of(THEMES[theme])), data.draw(texts_of(THEMES[theme]))
    assert_sound(constraint, text, prompt=prompt, finished=finished)


@profile(400)
@given(lengths(), texts)
def test_lengths_are_sound(constraint, text):
    assert_sound(constraint, text)


@profile(500)
@given(json_schemas(), mixed_texts)
def test_json_schemas_are_sound(constraint, text):
    assert_sound(constraint, text)


SHORT_TEXTS = ["", "ab", "ab\n", "ab\nb", "aab b", "a\n", "abb.b", "18 59", "185", "ABs", "555-1234x", "aaaab\r\n"]


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), *[(flag,) for flag in FLAGS]])
@pytest.mark.parametrize("match", ["search", "fullmatch"])
def test_awkward_patterns_are_sound(flags, match):
    for pattern in AWKWARD_PATTERNS:
        try:
            constraint = Regex(pattern, match=match, flags=flags, timeout=0.02)
        except ConstraintError:
            continue
        for text in SHORT_TEXTS:
            assert_sound(constraint, text)


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        (Regex(r"(?-m:a$)", flags=["multiline"]), "a\nb"),
        (Regex(r"(?m:a$)"), "a\nb"),
        (Regex(r"\d+", checksum="luhn"), "185"),
        (Regex(r"\d+?(?: \d+)?", checksum="luhn"), "18 5"),
        (Regex(r"\d{2,4}(?!\d)", checksum="luhn"), "18591"),
        (Regex(r"(?>abb|a)b"), "abb"),
        (Regex("a*+a|b$"), "b\n\n"),
        (JSONSchema({}), "1.5"),
        (JSONSchema({}), "[1e+5, -0.0E-1]"),
        (JSONSchema({"type": "number"}), " -1.25e3 "),
        (Keyword(["ab"], max_count=1), "ab abc"),
        (Keyword(["a", "a b"], max_count=1), "a b"),
        (Keyword(["a", "aa"], min_count=2, whole_words=False), "aa"),
        (Keyword(["ı", "IIXX"], max_count=1, whole_words=False), "IIXX"),
        (Keyword(["İ", "iixx"], max_count=1, whole_words=False), "iixx"),
        (Keyword(["aba"], max_count=1, whole_words=False), "ababa"),
        (Length(max=1, unit="lines"), "a\r\n"),
        (Length(max=1, unit="sentences"), "Mr. \n"),
        (Regex("a$", on="lines"), "a\r\nba\x85"),
        (Regex("^a", on="first_sentence"), " Mr. a! b"),
    ],
    ids=repr,
)
def test_once_unsound(constraint, text):
    assert_sound(constraint, text)


# ------------------------------------------------------------------------------------- does the property see anything?


class PartialRegex(Regex):
    """Use partial matching for all expressions, which is wrong with zero-width assertions."""

    def prefix_verdict(self, prefix):
        found = self.compiled.fullmatch(prefix, partial=True)
        return U if found else V


class HastyRegex(Regex):
    """Take a match for final wherever it ends."""

    def prefix_verdict(self, prefix):
        return S if self.compiled.search(prefix) else U


class HastyLuhn(Regex):
    """Take the end of a match for final."""

    def prefix_verdict(self, prefix):
        return S if self.holds(prefix) else U


class HastyKeyword(Keyword):
    """Count an occurrence though more letters may follow."""

    def prefix_verdict(self, prefix):
        return U if self.holds(prefix) else V


class LastSentence(Regex):
    """Judge the view of the prefix as if the text were complete."""

    def verdict(self, prefix):
        return U if all(self.holds(text) for text in view(Draw("", (), prefix), self.on) or ()) else V


@pytest.mark.slow
@pytest.mark.parametrize(
    "unsound",
    [
        PartialRegex(r"a\Bb", match="fullmatch"),
        PartialRegex(r"a(?!$)b", match="fullmatch"),
        HastyRegex(r"ab\b"),
        HastyRegex(r"a$"),
        HastyRegex(r"a(?!b)"),
        HastyRegex(r"a\Z"),
        HastyLuhn(r"\d+", checksum="luhn"),
        HastyKeyword("ab", match="none"),
        LastSentence("a", on="last_sentence"),
        LastSentence("a", on="lines"),
    ],
    ids=lambda constraint: f"{type(constraint).__name__}-{getattr(constraint, 'pattern', constraint.digest[:4])}",
)
def test_unsound_verdicts_are_caught(unsound):
    def caught(text):
        try:
            assert_sound(unsound, text)
        except AssertionError:
            return True
        return False

    text = find(texts, caught, settings=profile(5000))
    with pytest.raises(AssertionError, match=r"is (VIOLATED|SATISFIED) on"):
        assert_sound(unsound, text)


# ------------------------------------------------------------------------------------------------ something is decided


@pytest.mark.parametrize(
    ("constraint", "prefix", "verdict"),
    [
        (~Regex(r"\d{3}-\d{4}"), "call 555-1234", V),
        (~Regex(r"\d{3}-\d{4}"), "call 555-1234 now", V),
        (~Regex(r"\d{3}-\d{4}"), "call 555-123", U),
        (Regex(r"\d{3}-\d{4}"), "call 555-1234 now", S),
        (~Regex(r"\b\d{3}\b"), "555", U),
        (~Regex(r"\b\d{3}\b"), "555 ", V),
        (~Regex(r"a(?!bc)"), "abd", V),
        (~Regex(r"a$", flags=["multiline"]), "a\nb", V),
        (~Regex(r"(?m:a$)"), "a\nb", V),
        (~Regex(r"^#+ ", flags=["multiline"]), "x\n## y", V),
        (~Regex(r"(?:\d[ -]?){13,16}", checksum="luhn"), "4111 1111 1111 1111 and so on, and so on", V),
        (Regex("[ab]*", match="fullmatch"), "abc", V),
        (Regex("[ab]*", match="fullmatch"), "abab", U),
        (Regex("(?i)yes|no", match="fullmatch"), "Y", U),
        (Regex("(?i)yes|no", match="fullmatch"), "May", V),
        (Keyword("cup", match="none"), "a cup ", V),
        (Keyword("cup", match="none"), "a cup", U),
        (Keyword("cup", match="none", whole_words=False), "a cup", V),
        (Keyword(["mug", "cup"]), "a Cup.", S),
        (Keyword(["mug", "cup"], match="all"), "a cup.", U),
        (Keyword(["mug", "cup"], match="all"), "a cup. A mug. ", S),
        (Keyword("cup", max_count=1), "a cup, a cup, ", V),
        (Keyword("cup", min_count=2), "a cup, a cup, ", S),
        (Length(max=3), "abcd", V),
        (Length(max=3), "abc", U),
        (Length(min=3), "abc", S),
        (Length(max=2, unit="words"), "a b c", V),
        (Length(max=1, unit="sentences"), "A b. C", V),
        (Length(max=1, unit="lines"), "a\nb", V),
        (Length(max=3, on="lines"), "abcd\n", V),
        (Length(max=3, on="first_sentence"), "Abcd. E", V),
        (Length(min=3, on="first_sentence"), "Abcd. E", S),
        (Length(max=3, on="sentences"), "A. Abcd! E", V),
        (Keyword("a", match="none", on="first_sentence"), "Not. E", S),
        (JSONSchema({"type": "object"}), "Sure", V),
        (JSONSchema({"type": "object"}), "[", V),
        (JSONSchema({"type": "object"}), ' {"a": [1', U),
        (JSONSchema({"type": "object"}), '{"a" 1', V),
        (JSONSchema({"type": ["array", "null"]}), "n", U),
        (JSONSchema({"type": ["array", "null"]}), "t", V),
        (JSONSchema({}), "{'", V),
        (JSONSchema({}), "{} {", V),
        (JSONSchema({}), "NaN", V),
        (All([Length(max=3), Keyword("a")]), "bbbb", V),
        (Length(max=3) | Keyword("a"), "a bbbb", S),
        (~(Length(min=1) & Keyword("a")), "a bbbb", V),
    ],
    ids=repr,
)
def test_decides_where_it_can(constraint, prefix, verdict):
    assert constraint.verdict(prefix) is verdict


@profile(300)
@given(trees, st.lists(st.sampled_from(PIECES), min_size=4, max_size=10).map("".join))
def test_a_decided_prefix_stays_decided_in_every_text_that_follows(constraint, text):
    try:
        verdict = constraint.verdict(text[:3])
        if verdict is not U:
            assert constraint.accepts(text) is (verdict is S)
    except CheckFailed:
        pass
