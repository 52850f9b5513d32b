"""Decoded readings: whatever is banned is refused in every spelling that JSON, code, HTML and URLs have for it."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import GuardedGenerator, JSONSchema, Keyword, PersonalData, Regex, Secrets, Verdict
from guardwrap.constraints import escapes
from guardwrap.constraints.escapes import decodings, json_strings
from guardwrap.constraints.json.schema_notes import bans_as_written
from guardwrap.rules import hits
from guardwrap.testing import check_constraint, table_world
from tests.constraints.fixtures_strategies import profile

# Put together here, so that no scanner takes this file for a leak.
KEY = "AKIA" + "IOSFODNN7EXAMPLE"
LETTERS = dict(zip('\b\f\n\r\t"\\/', ("\\b", "\\f", "\\n", "\\r", "\\t", '\\"', "\\\\", "\\/"), strict=True))
HIDDEN = ["secret", "Straße", "機密", "код", "e-mail", "🙂", "a b", "سر"]


@st.composite
def spelled(draw: st.DrawFn, text: str) -> str:
    """Return a JSON string of a text, with some characters escaped."""
    pieces = []
    for char in text:
        code = "".join(f"\\u{unit:04x}" for unit in memoryview(char.encode("utf-16-le", "surrogatepass")).cast("H"))
        short = [LETTERS[char]] if char in LETTERS else [char]
        pieces.append(draw(st.sampled_from([code, *short])))
    return f'"{"".join(pieces)}"'


@st.composite
def documents(draw: st.DrawFn, hidden: str, most: int = 3) -> str:
    """Return a text with JSON in it that has a string with something hidden, perhaps in a document within a string."""
    around = st.text(st.sampled_from('\n\t .:,(😀"\\{}'), max_size=3)
    text = f"{draw(around)}\n{hidden}\t{draw(around)}"
    for _ in range(draw(st.integers(1, most))):
        string = draw(spelled(text))
        text = draw(st.sampled_from([f'{{"a": [1, {string}]}}', f'{{{string}: null, "x": ""}}', f"[{string}]"]))
    return draw(st.sampled_from(["{}", "Here:\n```json\n{}\n```\n", 'He said "yes", {} or so'])).replace("{}", text, 1)


@pytest.mark.slow
@profile(150)
@given(data=st.data(), word=st.sampled_from(HIDDEN))
def test_a_banned_word_is_refused_in_every_json_spelling(data, word):
    text = data.draw(documents(word))
    assert not Keyword(word, match="none").accepts(text)
    assert not (~Keyword(word)).accepts(text)
    assert Keyword(word).accepts(text)  # what is banned if it occurs, occurs
    assert not (~Regex(word, on="json_strings")).accepts(text)
    assert not (~Regex(word, flags=["folded"])).accepts(text)


@profile(60)
@given(data=st.data())
def test_what_detectors_find_is_refused_in_every_json_spelling(data):
    for rule, hit in ((Secrets(), KEY), (PersonalData(["card", "email"]), "4111 1111 1111 1111")):
        assert not rule.accepts(data.draw(documents(hit)))


@profile(40)
@given(data=st.data(), word=st.sampled_from(HIDDEN))
def test_verdicts_on_spellings_are_sound(data, word):
    text = data.draw(documents(word, most=1))
    check_constraint(Keyword(word, match="none"), [text])
    check_constraint(~Regex(word, on="json_strings"), [text])
    check_constraint(Regex(word, flags=["folded"]), [text])


@profile(12)
@given(data=st.data())
def test_verdicts_of_detectors_on_spellings_are_sound(data):
    check_constraint(Secrets(), [data.draw(documents(KEY, most=1))])
    check_constraint(PersonalData(["card"]), [data.draw(documents("4111 1111 1111 1111", most=1))])


TOKENS = st.sampled_from([*'"\\u{}0041dD83eE%&#x;nN \n/', "\\ud83d", "\\ude00", "&amp;", "&lt;", "%5C", "&#92;", "A"])


@given(text=st.lists(TOKENS, max_size=12).map("".join), end=st.sampled_from('"\n'), more=st.lists(TOKENS).map("".join))
def test_what_is_decoded_before_a_quotation_mark_or_line_break_stays(text, end, more):
    for code in (True, False):
        whole = list(decodings(text + end + more, anywhere=code))
        for number, decoded in enumerate(decodings(text + end, anywhere=code)):
            assert whole[number].startswith(decoded)


def test_negative_control_an_escape_that_has_begun_is_taken_as_it_is(monkeypatch):
    rule, texts = PersonalData(["card"]), ["&#52;111 1111 1111 1111\\u0031"]
    check_constraint(rule, texts)
    monkeypatch.setattr(hits, "_CLOSING", '"\n\\')
    with pytest.raises(AssertionError, match=r"unsound|depends on how"):
        check_constraint(rule, texts)


def test_negative_control_documents_are_decoded_once(monkeypatch):
    text = json.dumps({"a": json.dumps({"b": "\nsecret"})})
    assert not Keyword("secret", match="none").accepts(text)
    monkeypatch.setattr(escapes, "DEPTH", 1)
    assert Keyword("secret", match="none").accepts(text)


@pytest.mark.parametrize(
    "text",
    [
        "x = '\\x73ecret'",
        "\\u{73}ecret",
        "\\U00000073ecret",
        "s&#101;cret",
        "s&#x65;cret",
        "a%20%73ecret",
        "&nbsp;secret",
    ],
)
def test_escapes_of_code_html_and_urls(text):
    assert not Keyword("secret", match="none").accepts(text)


@pytest.mark.parametrize(
    "text", ["C:\\new\\bin\\text", "$\\nin \\theta \\frac{1}{2}$", 'the "mass" \\alpha \\nin', "50 %"]
)
def test_paths_and_formulas_have_no_escapes(text):
    assert Keyword(["in", "ew", "heta", "rac", "ext"], match="none").accepts(text)
    assert list(decodings("C:\\new\\bin")) == []


def test_decoding_ends():
    assert list(decodings("plain, 50 % & more")) == []
    assert len(list(decodings("%25" * 3 + "25" * 9))) <= escapes.DEPTH
    assert list(decodings("\\U99999999 \\ud83d")) == ["\\U99999999 \ud83d"]
    for unit in ("\\", '"\\', "%", "%4", "&#", "\\u", '"\\u005c', "[", '{"a":', '["', "[x"):
        list(decodings(unit * 5000, anywhere=True))


def test_strings_of_documents():
    nested = json.dumps({"b": ["in", "ner"]})
    text = f'[1] {{"a": {json.dumps(nested)}, "a": "twice"}} or ["cut'
    assert list(json_strings(text)) == ["a", nested, "b", "in", "ner", "a", "twice", "cut"]
    assert list(json_strings(' "alone" ')) == ["alone"]
    assert list(json_strings('He said "no", [sic] {and} went.')) == []
    assert list(json_strings(json.dumps([nested]), depth=1)) == [nested]


def test_a_ban_on_strings_holds_if_no_string_has_it():
    ban = ~Regex("AKIA[A-Z0-9]{16}", on="json_strings")
    assert ban.accepts(f"{KEY} outside of JSON")
    assert ban.accepts("")
    assert not ban.accepts(f'{{"e": "ok", "f": ["\\n{KEY}", "x"]}}')
    assert ban.accepts('["AKIA", "IOSFODNN7EXAMPLE"]')


def test_an_early_end_where_a_decoded_string_violates():
    assert Secrets().verdict(f'{{"e": "\\n{KEY}", ') is Verdict.VIOLATED


def test_a_ban_that_escapes_can_hide_gets_a_note(caplog):
    schema = JSONSchema({"type": "object"})
    note = "judges JSON as it is written, so \\u escapes can hide what it bans; write on: json_strings to judge"
    for rule in (~Regex("x", name="no x"), Regex("^(?!.*x)", name="no x"), ~(Regex("x", name="no x") | Keyword("y"))):
        (found,) = bans_as_written(schema & rule)
        assert found.startswith(f"'no x' {note}")
        assert bans_as_written(rule) == []
    for rule in (Regex("x"), ~Regex("x", on="json_strings"), ~Regex("x", flags=["folded"]), ~Keyword("x")):
        assert bans_as_written(schema & rule) == []
    caplog.set_level(logging.WARNING, "guardwrap")
    GuardedGenerator(table_world().pipeline(), schema & ~Regex("x", name="no x"))
    assert [note in each.message for each in caplog.records if each.name == "guardwrap"] == [True]
