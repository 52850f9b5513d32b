"""The constraint ``PersonalData``: kinds, countries, sound verdicts, files, and absent libraries."""

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import PersonalData, Verdict
from guardwrap.constraints import parse
from guardwrap.constraints.detectors import personal_data, personal_numbers
from guardwrap.errors import CheckFailed, ConstraintError
from guardwrap.serve.request_models import GuardwrapFields
from guardwrap.serve.request_policy import RequestPolicy, constraints_of
from guardwrap.testing import check_constraint

OWN_KINDS: Any = ["email", "card", "ip"]  # those without a library


def test_the_kind_of_hit_is_named_with_its_text():
    rule = PersonalData(OWN_KINDS)
    assert rule.fault("Karte 4111 1111 1111 1111") == "has a card number, '4111 1111 1111 1111'"
    assert rule.fault("Ada <ada@example.org>") == "has an e-mail address, 'ada@example.org'"


def test_verdicts_wait_until_no_continuation_can_undo_a_hit():
    rule = PersonalData(OWN_KINDS)
    card = "4111 1111 1111 1111"
    expected = {
        card: False,
        f"{card} ": True,
        f"{card}.": True,
        f"{card}1": False,
        f"{card}\u0301": True,
        f"{card} 123": True,
    }
    assert {text: rule.verdict(text) is Verdict.VIOLATED for text in expected} == expected
    assert rule.accepts(f"{card}1")
    assert rule.verdict("ada@example.org") is Verdict.UNDECIDED
    assert rule.verdict("ada@example.org ") is Verdict.VIOLATED


PIECES = st.sampled_from(
    (
        *("4111", "1111", "4111 1111 1111 1111", "378282246310005", "ada@", "example.org", "10.0.0.1", "2001:db8::1"),
        *("DE89", "3704 0044 0532 0130 00", "+49 30", "12345678", "020 7946 0958", "123-45-6789", "54362315", "K"),
        *("44051401359", *" 19a-.:/(Z@+é\n"),
    )
)


@pytest.mark.slow
@given(text=st.lists(PIECES, max_size=6).map("".join))
def test_verdicts_are_sound(text):
    check_constraint(PersonalData(OWN_KINDS), [text])


@pytest.mark.slow
@settings(max_examples=50)
@given(text=st.lists(PIECES, max_size=6).map("".join))
def test_verdicts_on_national_numbers_are_sound(text):
    pytest.importorskip("stdnum")
    pytest.importorskip("phonenumbers")
    rule = PersonalData(["phone", "iban", "national_id"], countries=["us", "gb", "es", "pl", "nl"])
    check_constraint(rule, [text])


def test_negative_control_a_card_that_is_judged_too_early(monkeypatch):
    texts = ["4111 1111 1111 1111000."]
    check_constraint(PersonalData(["card"]), texts)
    hasty = tuple(rule._replace(tail=0) for rule in personal_numbers.CARDS)
    monkeypatch.setattr(personal_numbers, "CARDS", hasty)
    with pytest.raises(AssertionError, match=r"unsound|depends on how"):
        check_constraint(PersonalData(["card"]), texts)


def test_files_and_requests_may_use_it():
    rule = parse("guardwrap: 1\nconstraint: {kind: personal_data, kinds: [ip, email]}\n").constraint
    assert rule == PersonalData(["email", "ip", "ip"])
    assert rule.digest != PersonalData(["email"]).digest
    fields = {"constraint": {"kind": "personal_data", "kinds": ["card"]}}
    (file,) = constraints_of(GuardwrapFields.model_validate(fields), RequestPolicy(models=("m",)))
    assert file.constraint == PersonalData(["card"])


def test_a_view_is_judged_alone():
    rule = PersonalData(["email"], on="first_line")
    texts = ["Hello\nada@example.org", "ada@example.org\nHello"]
    assert [rule.accepts(text) for text in texts] == [True, False]
    check_constraint(rule, texts)


@pytest.mark.parametrize(
    ("kinds", "options", "message"),
    [
        ([], {}, "at least one of email"),
        ("email", {}, "kinds must be a list"),
        (["mail"], {}, "is not one of"),
        (["email"], {"countries": ["de"]}, "phone and national_id only"),
        (["national_id"], {}, "needs countries"),
        (["phone"], {"countries": ["xx"]}, "is not one of"),
        ([["email"]], {}, "is not one of"),
    ],
)
def test_invalid_parameters(kinds, options, message):
    with pytest.raises(ConstraintError, match=message):
        PersonalData(kinds, **options)


@pytest.mark.parametrize(
    ("kind", "library"), [("phone", "phonenumbers"), ("iban", "stdnum"), ("national_id", "stdnum")]
)
def test_a_missing_library_is_named_with_its_extra(kind, library, monkeypatch):
    monkeypatch.setattr(personal_data, "find_spec", lambda name: None)
    with pytest.raises(ConstraintError, match=rf"requires {library}: pip install 'guardwrap\[pii\]'$"):
        PersonalData([kind], countries=["us"] if kind == "national_id" else ())
    assert not PersonalData(OWN_KINDS).accepts("ada@example.org")  # these need none


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        *("1" * 20_000, "1 " * 20_000, "a@" * 20_000, "a@a." * 20_000, ":" * 20_000, "1.1.1.1." * 20_000),
        *("4111 " * 20_000, "DE89 " * 20_000, "+49 30 1234 " * 20_000, "A1-" * 20_000, "(" * 20_000),
        *("\ud800" * 1000, "٤" * 20_000),
    ],
)
def test_hostile_texts_end(text):
    pytest.importorskip("stdnum")
    pytest.importorskip("phonenumbers")
    rule = PersonalData(["email", "card", "ip", "iban", "phone", "national_id"], countries=["us", "fr", "in", "br"])
    with contextlib.suppress(CheckFailed):
        assert rule.accepts(text) in (True, False)
    assert rule.verdict(text) in Verdict
