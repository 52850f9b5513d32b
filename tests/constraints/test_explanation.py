"""Explanations of rejected texts: every part that rejects, with its reason and its path."""

import pytest

from guardwrap import (
    Arithmetic,
    Case,
    Count,
    Draw,
    Edges,
    JSONSchema,
    Keyword,
    Length,
    NoCopy,
    OneOf,
    OnlyFrom,
    Order,
    PersonalData,
    Quotes,
    Regex,
    Secrets,
    Split,
    Values,
    constraint,
)
from guardwrap.constraints.base import All
from guardwrap.constraints.explanation import Explanation, Rejection, explain_draws
from guardwrap.constraints.field_checks import excerpt
from guardwrap.errors import CheckFailed

SCHEMA = {"properties": {"items": {"items": {"type": "string"}}}}


def explained(rule, text, *, ids=(), tokens_known=False):
    (found,) = explain_draws(rule, [Draw("", ids, text)], tokens_known=tokens_known)
    return found


def test_every_part_that_rejects_is_named_with_its_reason():
    rule = Regex("a", name="has an a") & Length(max=3) & Regex("x")
    found = explained(rule, "xyz!")
    assert not found.accepted
    assert found.rejections == (
        Rejection("has an a"),
        Rejection("Length(max=3)", "has 4 characters, not at most 3"),
    )
    assert str(found) == ("rejected by 2 parts:\n  'has an a'\n  'Length(max=3)' (has 4 characters, not at most 3)")
    assert explained(rule, "xa") == Explanation("xa")
    assert str(explained(rule, "xa")) == "accepted"


def test_values_in_json_have_a_path():
    (rejection,) = explained(JSONSchema(SCHEMA, name="list"), '{"items": ["a", 1]}').rejections
    assert rejection == Rejection("list", "1 is not of type 'string'", "$.items[1]")
    assert str(rejection) == "'list' ($.items[1]: 1 is not of type 'string')"
    by_key = JSONSchema({"properties": {"a: b": {"type": "string"}}})
    (rejection,) = explained(by_key, '{"a: b": 1}').rejections
    assert (rejection.path, rejection.reason) == ("$['a: b']", "1 is not of type 'string'"), "a key may have a colon"
    (broken,) = explained(JSONSchema(SCHEMA, name="list"), "{").rejections
    assert broken.path is None
    assert broken.reason.startswith("is not JSON: ")


def test_a_part_that_combines_others_names_those_that_failed():
    either = Length(max=2) | Keyword("tea", name="tea")
    (rejection,) = explained(either, "coffee").rejections
    assert rejection.reason == "'Length(max=2)' (has 6 characters, not at most 2), 'tea'"
    both = All([Length(max=2), Keyword("coffee")], name="both")
    (rejection,) = explained(both, "coffee").rejections
    assert (rejection.part, rejection.reason) == ("both", "'Length(max=2)' (has 6 characters, not at most 2)")


@pytest.mark.parametrize(
    ("rule", "text", "reason"),
    [
        (Keyword(["coffee", "tea", "mate"], match="none"), "I drink Tea and coffee.", "has 'coffee', 'tea'"),
        (~Keyword(["coffee", "tea"]), "a Tea, please", "has 'tea'"),
        (Keyword(["ü", *(f"w{n}" for n in range(3000))], match="none"), "w7 w2999", "has 'w7', 'w2999'"),
        (Keyword(["tea"], match="none", stem="en"), "teas", "has 'tea'"),
        (Keyword(["a", "b", "c", "d", "e"], match="none"), "e d c b", "has 'b', 'c', 'd', …"),
        (Keyword(["tea", "milk"], match="all"), "tea", "lacks 'milk'"),
        (Keyword("tea", max_count=1), "tea, tea", "has 'tea'"),
        (~Regex(r"\d{2,}"), "a 1 and 234 b 56", "has '234'"),
        (~Regex(r"\d+", checksum="luhn"), "not 41, but 18 is", "has '18'"),
        (~Regex("a b"), "one a b", "has 'a b'"),
        (~Regex(".*", match="fullmatch"), "x", ""),
        (Secrets(), "key: AKIAIOSFODNN7EXAMPLE, keep", "has a AWS access key, 'AKIAIOSFODNN…'"),
        (PersonalData(["email"]), "Write (to ada@example.org), soon.", "has an e-mail address, 'ada@example.org'"),
        (PersonalData(["card"]), "Pay 4111 1111 1111 1111 now", "has a card number, '4111 1111 1111 1111'"),
        (~Length(min=2, unit="words"), "a b c", "has 3 words"),
        (Count(pattern="t.", max=1), "ta tb ta", "has 3 matches, not at most 1: 'ta', 'tb'"),
        (Count("words", max=1, each=True), "a b a", "has words that do not occur at most 1 times each: 'a'"),
        (~Count("words", min=2), "a b", "has 2 words"),
        (~OneOf(["yes", "no"]), " yes", "is 'yes'"),
        (~Edges(start=["Dear", "Hi"]), "Hi all", "begins with 'Hi'"),
        (Case("upper"), "TEA and MILK", "has 'and'"),
        (Split(";", each=Keyword("a")), "a; b", "part 2 is 'b'"),
        (Split(";", different=True), "a; b; a", "part 3 is repeated: 'a'"),
        (Order("lines", "increasing", by="text"), "a\nc\nb", "has 'c' before 'b'"),
        (Arithmetic(), "1 + 1 = 2\n2 + 2 = 5", "1 of 2 equations are wrong, the first in '2 + 2 = 5'"),
        (Values("number", max=3), "2 and 4.5", "1 of its 2 values are not as required, such as 4.5"),
        (~Values("number", max=3), "2.5", "has 2.5"),
        (OnlyFrom(["A1"], pattern="[A-Z][0-9]"), "A1 B2", "has 1 of 2 matches that are not on the list: 'B2'"),
        (Quotes("Late."), "“We open at 9”", "has 1 of 1 quotations that are not in the source: 'We open at 9'"),
        (NoCopy("You are Ada the best", words=3), "you are ADA!", "has 1 runs of 3 words of the source: 'you are ada'"),
        (~(Keyword("x", name="x") | Keyword("tea", name="tea")), "tea", "'tea' (has 'tea')"),
        (~All([Keyword("x", name="x"), Length(max=9, name="short")]), "x", "'x' (has 'x'), 'short' (has 1 character)"),
        (~~Keyword("tea", match="all"), "x", "lacks 'tea'"),
        (~Keyword("tea", on="first_word"), "tea", "has 'tea'"),
    ],
)  # fmt: skip
def test_what_matched_is_named(rule, text, reason):
    (rejection,) = explained(rule, text).rejections
    assert rejection.reason == reason


def test_negative_control_an_excerpt_that_matches_by_chance():
    """The words of a match are kept whole: a shorter number may match as well."""
    text = "Call 4111 1111 1111 1111 123, not 5"
    assert excerpt(text, lambda piece: "4111 1111 1111 1111" in piece) == "4111 1111 1111 1111"
    assert excerpt("a steam, b", lambda piece: "tea" in piece) == "steam"
    assert excerpt("", lambda _: True) == ""
    assert excerpt("no match", lambda _: False) == "no match"


def test_tokens_are_counted_only_if_they_are_known():
    rule = Length(max=1, unit="tokens") & Regex("a")
    unknown = explained(rule, "abc")
    assert unknown.accepted
    assert unknown.unchecked == ("Length(max=1, unit='tokens')",)
    assert str(unknown) == """accepted\n  not checked: "Length(max=1, unit='tokens')" counts tokens"""
    known = explained(rule, "abc", ids=(1, 2), tokens_known=True)
    assert [each.part for each in known.rejections] == ["Length(max=1, unit='tokens')"]


def test_a_message_that_cannot_be_parsed_is_not_judged():
    draws = [Draw("", (), "b", fault="message: cut off"), Draw("", (), "b")]
    one, other = explain_draws(Regex("a", name="a"), draws, tokens_known=False)
    assert one.rejections == (Rejection("message: cut off"),)
    assert other.rejections == (Rejection("a"),)


def test_a_crash_is_an_error_and_no_rejection():
    @constraint
    def bad(text):
        raise ValueError(text)

    with pytest.raises(CheckFailed):
        explained(bad, "a")
