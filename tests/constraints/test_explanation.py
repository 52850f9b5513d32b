"""Explanations of rejected texts: every part that rejects, with its reason and its path."""

import pytest

from guardwrap import Draw, JSONSchema, Keyword, Length, Regex, constraint
from guardwrap.constraints.combinators import All
from guardwrap.constraints.explanation import Explanation, Rejection, explain_draws
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
