"""Personal data: parameters, and which texts have addresses and numbers of persons in several countries."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import PersonalData, Verdict
from guardwrap.constraints import parse
from guardwrap.errors import CheckFailed, ConstraintError
from guardwrap.rules import personal_data
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
    hasty = tuple(rule._replace(tail=0) for rule in personal_data.CARDS)
    monkeypatch.setattr(personal_data, "CARDS", hasty)
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


HITS = {
    "email": [
        "ada@example.org",
        "Schreib an <ada.l+x@mail.example.co.uk>!",
        "邮箱：ada@example.cn。",
        "jürgen@müller.de",
    ],
    "card": [
        "4111 1111 1111 1111 5th",
        "n° 4111-1111-1111-1111.",
        "378282246310005",
        "3782 822463 10005",
        "卡 5555555555554444",
    ],
    "ip": [
        "von 10.0.0.1:80, ja",
        "10.0.0.1-10.0.0.9",
        "2001:db8::1.",
        "[192.0.2.7]",
        "fd00::1%eth0 2001:db8:0:0:0:0:0:1",
    ],
}
PASSED = {
    "email": ["@ada", "ada at example dot org", "a@b", "x@1.5", "pip install a@latest", "user@localhost"],
    "card": [
        "4111 1111 1111 1112",
        "0000 0000 0000 0000",
        "1234 5678 9012 3456",
        "41111111111111111",
        "4111 11 11 1111 1111",
    ],
    "ip": [
        "v1.2.3",
        "127.0.0.1 ::1",
        "std::string",
        "ADA::DB",
        "256.1.1.1",
        "1.2.3.4.5",
        "1.2.3.4-5",
        "12:30:45",
        "169.254.0.0/16",
    ],
}


@pytest.mark.parametrize("kind", HITS)
def test_addresses_and_cards(kind):
    rule = PersonalData([kind])
    assert {text for text in HITS[kind] + PASSED[kind] if not rule.accepts(text)} == set(HITS[kind])


def test_bank_accounts():
    pytest.importorskip("stdnum")
    rule = PersonalData(["iban"])
    hits = ["DE89 3704 0044 0532 0130 00 JETZT", "GB82WEST12345698765432", "IBAN FR14 2004 1010 0505 0001 3M02 606."]
    passed = ["DE89 3704 0044 0532 0130 01", "DE89370400440532013000X", "XX12 3456 7890 1234", "AB12"]
    assert {text for text in hits + passed if not rule.accepts(text)} == set(hits)


PHONES = {
    "us": ["(415) 555-2671 or", "call 415-555-2671"],
    "gb": ["call 020 7946 0958 8 times", "07400 123456"],
    "de": ["Tel. 030 123456", "Mobil: 0151 23456789", "0171/12-34567"],
    "fr": ["Tél. 01 42 68 53 00", "Tél. 01.42.68.53.00", "01-42-68-53-00", "06/12/34/56/78."],
    "es": ["llame al 912 345 678"],
    "it": ["tel. 06 6982 1234"],
    "pl": ["tel. 22 345 67 89"],
    "nl": ["bel 020 123 4567", "06-12-345678"],
    "br": ["fone (11) 2345-6789"],
    "in": ["फ़ोन 074104 10123"],
}


@pytest.mark.parametrize("country", PHONES)
def test_phone_numbers_as_they_are_dialed_in_a_country(country):
    pytest.importorskip("phonenumbers")
    rule = PersonalData(["phone"], countries=[country])
    assert [text for text in PHONES[country] if rule.accepts(text)] == []
    passed = [
        "am 2024-01-15 um 12",
        "12.10.2024",
        "01.10.2024-02.10.2024",
        "2024-01-15-12-30",
        "30.90.18.20",
        "3.14159265",
        "10 000 000",
        "1 2 3 4 5 6 7",
        "ISBN 978-3-16-148410-0",
    ]
    assert [text for text in passed if not rule.accepts(text)] == []


def test_phone_numbers_with_a_country_code_need_no_country():
    pytest.importorskip("phonenumbers")
    rule = PersonalData(["phone"])
    texts = ["+49 30 12345678 ok", "+1 (415) 555-2671", "+33 1 42 68 53 00", "+91 74104 10123", "電話：+81 3-1234-5678"]
    assert [text for text in texts if rule.accepts(text)] == []
    assert rule.accepts("030 12345678, +1 2 3, +999 123 456 789, 5+49 30 12345678x")


IDS = {
    "br": ("390.533.447-05", "231.002.999-00"),
    "de": ("36 574 261 809", "36 574 261 808"),
    "es": ("54362315K", "54362315Z"),
    "fr": ("2 95 10 99 126 111 93", "2 95 10 99 126 111 94"),
    "gb": ("943 476 5870", "943 476 5871"),
    "in": ("2341 2341 2346", "2341 2341 2347"),
    "it": ("RCCMNL83S18D969H", "RCCMNL83S18D969X"),
    "nl": ("1112.22.333", "1112.52.333"),
    "pl": ("44051401359", "44051401358"),
    "us": ("536-90-4399", "666-90-4399"),
}


@pytest.mark.parametrize("country", IDS)
def test_national_ids_have_the_right_check_digits(country):
    pytest.importorskip("stdnum")
    rule = PersonalData(["national_id"], countries=[country])
    valid, invalid = IDS[country]
    for text in (valid, f"n. {valid}, 3 abc", f"7 {valid} x1", f"({valid})", f"编号{valid}"[2:]):
        assert not rule.accepts(text)
        assert rule.fault(text).startswith("has a national id, '")
    assert rule.accepts(invalid)
    assert rule.accepts(f"x{valid}x")
