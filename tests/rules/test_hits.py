"""What must not occur, in a prefix that stays so and in every spelling that readers take for the same."""

from __future__ import annotations

from typing import Any

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import PersonalData, Secrets, Verdict
from guardwrap.constraints.escapes import decodings
from guardwrap.constraints.kinds.text_folding import TextFolding
from guardwrap.constraints.verdicts import READ_ALWAYS
from guardwrap.rules import hits, secrets
from guardwrap.rules.hits import HitRule, first_hit, hit_monitor
from guardwrap.support.time_limits import TimeLimit, time_limit
from guardwrap.testing import check_constraint
from tests.constraints.fixtures_strategies import profile

NUMBER = HitRule(regex.compile(r"[0-9]++"), lambda run: "an even number" if int(run) % 2 == 0 else None)


def test_the_first_hit_is_named():
    assert first_hit([NUMBER], "3 and 14") == "an even number"
    assert first_hit([NUMBER], "3 and 15") is None
    assert first_hit([], "14") is None


def test_a_run_that_may_go_on_is_no_hit_yet():
    verdicts = [hit_monitor((NUMBER,)).read(text).verdict for text in ("14", "14 ", "14x", "15 ")]
    assert verdicts == [Verdict.UNDECIDED, Verdict.VIOLATED, Verdict.VIOLATED, Verdict.UNDECIDED]


def test_work_stops_at_the_time_limit():
    with pytest.raises(TimeLimit), time_limit(-1.0):  # the clock may go back by 0.01 s
        first_hit([NUMBER], "3 " * 10)


def test_negative_control_a_run_that_is_judged_too_early(monkeypatch):
    early = [rule._replace(tail=0) for rule in secrets._RULES]
    key = "AKIAIOSFODNN7EXAMPLE"
    check_constraint(Secrets(), [f"{key}B."])
    assert Secrets().verdict(key) is Verdict.UNDECIDED
    monkeypatch.setattr(secrets, "_RULES", tuple(early))
    with pytest.raises(AssertionError, match=r"unsound|depends on how"):
        check_constraint(Secrets(), [f"{key}B."])


pytest.importorskip("stdnum")
pytest.importorskip("phonenumbers")

KEY = "AKIA" + "IOSFODNN7EXAMPLE"
ITEMS = {
    "card": "4111 1111 1111 1111",
    "phone": "+1 202 555 0143",
    "iban": "DE89 3704 0044 0532 0130 00",
    "us": "536-90-4399",
    "fr": "2 95 10 99 126 111 93",
    "es": "54362315-K",
    "br": "390.533.447-05",
    "in": "2341 2341 2346",
    "de": "36 574 261 809",
    "gb": "943 476 5870",
    "it": "RCC MNL 83S18 D969H",
    "nl": "1112.22.333",
    "pl": "440514 01359",
}
SEPARATORS = "\u00a0\u202f\u2009\u3000\t-\u2011\u2012\u2013\u2014\u2212./·・_"
INVISIBLE = "\u200b\u200d\u00ad\u2060\ufeff\u200f\u202c\u2066\ufe0f\u0336\u20e3\u034f\x00"
ZEROS = "０٠۰०০๐௦𝟎𝟘"  # the other digits follow


def rule_for(name: Any) -> PersonalData:
    if name in ("card", "iban"):
        return PersonalData([name])
    return PersonalData(["phone"]) if name == "phone" else PersonalData(["national_id"], countries=[name])


def separated(item: str, separator: str) -> str:
    return "".join(separator if char in " .-" else char for char in item)


def spread(item: str, invisible: str) -> str:
    return item[0] + invisible.join(item[i : i + 2] for i in range(1, len(item), 2))


def in_digits(item: str, zero: str) -> str:
    return "".join(chr(ord(zero) + int(char)) if char.isdecimal() else char for char in item)


@pytest.mark.parametrize("name", ITEMS)
def test_no_spelling_hides_a_number(name):
    rule, item = rule_for(name), ITEMS[name]
    spellings = [
        *(separated(item, separator) for separator in SEPARATORS),
        *(spread(item, invisible) for invisible in INVISIBLE),
        *(in_digits(item, zero) for zero in ZEROS),
        item.translate(str.maketrans("0123456789", "〇一二三四五六七八九")),
        item.translate(str.maketrans("0123456789", "⓪①②③④⑤⑥⑦⑧⑨")),
        item.translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")),
        f"番号{item}です",
        f"번호{item}입니다",
    ]
    assert [ascii(each) for each in spellings if rule.accepts(f"No: {each}, yes.")] == []
    wrong = item[:-1] + ("7" if item[-1] not in "7K" else "L" if item[-1] == "K" else "8")
    if name not in ("phone", "us"):  # these have no check digit
        assert [
            ascii(each) for each in (wrong, separated(wrong, "\u00a0")) if not rule.accepts(f"No: {each}, yes.")
        ] == []


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("iban", ["de89370400440532013000", "DE89-3704-0044-0532-0130-00", "DE 89 3704 0044 0532 0130 00"]),
        ("iban", ["gb82 west 1234 5698 7654 32 is mine"]),
        ("es", ["54362315 K", "54.362.315-k", "54362315/K", "X-1234567-L", "x1234567l"]),
        ("it", ["rccmnl83s18d969h"]),
        ("fr", ["295109912611193", "2951099126111 93"]),
        ("br", ["390533447-05", "39053344705"]),
    ],
)  # fmt: skip
def test_forms_that_people_write(name, texts):
    assert [text for text in texts if rule_for(name).accepts(f"No. {text}.")] == []


def test_addresses_and_keys():
    texts = ["alice@\u200bexample.com", "alice＠example．com", "alice%40example.com", "alice&#64;example.com"]
    assert [text for text in texts if PersonalData(["email"]).accepts(text)] == []
    texts = ["１９２．０．２．７", "192.0.\u200b2.7", "地址192.0.2.7在"]
    assert [text for text in texts if PersonalData(["ip"]).accepts(text)] == []
    texts = [
        *(f"?k%3D{KEY}", f"a%20{KEY}", f"'\\n{KEY}'", f"\\u0022{KEY}", f"k&#61;{KEY}", spread(KEY, "\u200b")),
        *("".join(chr(ord(char) + 0xFEE0) for char in KEY), f"{KEY}²", f"{KEY}\u200bX", f"密钥{KEY}。"),
    ]
    assert [ascii(text) for text in texts if Secrets().accepts(text)] == []


@pytest.mark.parametrize(
    ("rule", "texts"),
    [
        (
            PersonalData(["email"]),
            ["git@github.com:org/repo.git", "ssh://git@host.org/x", "root@srv.example.org:/var/www", "icon@2x.png"],
        ),
        (
            PersonalData(["phone"], countries=["us", "de", "gb"]),
            [*("hosted-eu-20260812-09", "build-2025550143", "20260812 0915", "log.20260812-09"), "since 2017 - 2025"],
        ),
        (PersonalData(["card"]), ["0.4111111111111111", "2019 2020 2021 2022", "+4111111111111111"]),
        (PersonalData(["national_id"], countries=["es"]), ["en 20240115 y", "desde 54362315 k"]),
    ],
)
def test_what_only_resembles_them(rule, texts):
    assert [text for text in texts if not rule.accepts(text)] == []


PIECES = st.sampled_from(
    [*"411²①１١一\u200b\u0336\u0301\ufe0f %3D\\u003&#;\u2011\u00a0.", "4111", "1111 1111", KEY[:9], KEY[9:], "DE89"]
)


@pytest.mark.slow
@profile(150)
@given(text=st.lists(PIECES, max_size=9).map("".join))
def test_verdicts_on_spellings_are_sound(text):
    check_constraint(
        PersonalData(["card", "iban", "email"]), [f"4111 1111 1111 1111{text}", f"DE89 3704 0044 0532 0130 00{text}"]
    )
    check_constraint(Secrets(), [f"{KEY}{text}"])


def test_a_verdict_waits_for_what_changes_the_folding():
    rule = PersonalData(["card"])
    texts = [f"４{'１' * 15}{end}" for end in ("\u200b1", "\u03361", " \u0301", "\u200b.", "²")]
    check_constraint(rule, texts)
    assert [rule.verdict(f"４{'１' * 15}{end}") is Verdict.VIOLATED for end in ("", "\u200b", " ")] == [
        False,
        False,
        True,
    ]


def test_negative_control_folded_text_is_taken_as_settled(monkeypatch):
    rule, texts, settled = PersonalData(["card"]), [f"４{'１' * 15}1"], TextFolding.settled
    check_constraint(rule, texts)
    monkeypatch.setattr(TextFolding, "settled", lambda self, prefix: f"{settled(self, prefix)} ")
    with pytest.raises(AssertionError, match=r"unsound|depends on how"):
        check_constraint(rule, texts)


def test_negative_control_text_as_it_is_written_hides_them(monkeypatch):
    assert not PersonalData(["card"]).accepts("4111\u00a01111\u00a01111\u00a01111")
    monkeypatch.setattr(hits, "_plain", lambda folded: "")
    assert PersonalData(["card"]).accepts("4111\u00a01111\u00a01111\u00a01111")


LAST = ("4111 1111 1111 1111, ", f"{KEY} ", "DE89370400440532013000 ....", "ada@example.org ", "+49 30 12345678 ....")


@pytest.mark.slow
@pytest.mark.parametrize("rule", [PersonalData(["card", "email", "iban", "phone"]), Secrets()], ids=["data", "secrets"])
def test_a_long_text_before_changes_no_verdict(rule):
    for before in ("wort " * 100, "x" * 500, "１2 é " * 100, "12 " * 150, '"a\\n" ' * 50):
        for hit in LAST:
            monitor, text = rule.monitor(), f"{before}\n{hit}"
            for char in text:
                monitor = monitor.read(char)
            assert monitor.verdict is rule.verdict(text)
            assert (monitor.verdict is Verdict.VIOLATED) is not rule.accepts(text)


LETTERS = HitRule(regex.compile(r"[A-Z\"\n]++"), lambda run: "AB" if "AB" in regex.sub(r"\W", "", run) else None)
ESCAPED = st.sampled_from([*'\\"\nu&; xA', "u0041", "41", "\\u0042", "&#66;", "%255c", "%42", "B", "é"])


@profile(300)
@given(pieces=st.lists(ESCAPED, max_size=16))
def test_what_is_decoded_piece_by_piece_is_what_the_whole_text_is_decoded_to(pieces):
    monitor, text = hit_monitor((LETTERS,)), "".join(pieces) + ' "'
    for piece in (*pieces, ' "'):
        monitor = monitor.read(piece)
    assert (monitor.verdict is Verdict.VIOLATED) == (first_hit([LETTERS], text) is not None)


def test_what_is_decoded_twice_follows_what_was_decoded_once():
    monitor = hit_monitor((LETTERS,)).read('&#65;"')
    assert monitor.verdict is Verdict.UNDECIDED
    assert monitor.read('%2542"x"').verdict is Verdict.VIOLATED


def test_negative_control_what_is_decoded_once_is_not_decoded_again(monkeypatch):
    text = '"\\\\u0041B "'
    assert hit_monitor((LETTERS,)).read(text).verdict is Verdict.VIOLATED
    monkeypatch.setattr(hits, "decodings", lambda text, anywhere: list(decodings(text, anywhere=anywhere))[:1])
    assert hit_monitor((LETTERS,)).read(text).verdict is Verdict.UNDECIDED


def test_a_long_run_that_does_not_end_is_read_as_what_is_read_again_is():
    monitor = hit_monitor((NUMBER,)).read("3" * READ_ALWAYS)
    assert not monitor.rereads
    assert monitor.read("3").rereads
    assert not monitor.read("3 ").rereads
    assert monitor.read("34 ").verdict is Verdict.VIOLATED
