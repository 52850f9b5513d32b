"""Formats of JSON Schema: what they accept, how long they take, and when they are checked."""

from __future__ import annotations

import json

import jsonschema
import pytest

from guardwrap.constraints import JSONSchema, dump, parse
from guardwrap.constraints.json.formats import FORMATS, names_format
from guardwrap.errors import ConstraintError

CASES: dict[str, tuple[list[str], list[str]]] = {
    "date": (["2024-02-29", "0000-02-29"], ["2023-02-29", "2024-13-01", "2024-1-01", "2024-01-00", "٢٠24-01-01", ""]),
    "date-time": (
        ["2024-02-29T23:59:59Z", "2024-01-01t00:00:00.5+14:00", "1998-12-31T15:59:60-08:00"],
        ["2024-02-29 23:59:59Z", "2024-02-29T23:59:59", "2024-02-29T23:59:59Z\n", "2023-02-29T00:00:00Z", "2024-01-01"],
    ),
    "time": (
        ["00:00:00Z", "23:59:60Z", "00:29:60+00:30", "23:29:60-00:30"],
        ["24:00:00Z", "12:00:60Z", "23:59:60-00:30", "12:00:00", "12:00Z"],
    ),
    "duration": (
        ["P1Y2M3DT4H5M6S", "PT36H", "P2W", "P1D", "P1YT1S"],
        ["P", "PT", "P1Y1D", "PT1H1S", "P1W1D", "PT0.5S", "1D", "P1D\n"],
    ),
    "email": (
        ["a.b+c@example.com", '"a @ b"@example.com', "a@[127.0.0.1]", "a@[IPv6:::1]", "a@b"],
        ["@", "a@", "@b", "a..b@c", ".a@b", "a@b_c", "a@[127.0.0.256]", "a@[::1]", "a b@c", "é@b", "a" * 65 + "@b"],
    ),
    "idn-email": (["é@b", "é@é.example"], ["é@-é", "@é", "é@"]),
    "hostname": (["a", "a-b.c", "xn--nxasmq6b.com"], ["-a", "a-", "a_b", "a..b", ".a", "a.", "a" * 64, "", "xn--X"]),
    "idn-hostname": (["é.example", "例え.jp"], ["-é", "é..b", "〮한", "a" * 64, "é" * 300]),
    "ipv4": (["127.0.0.1", "255.255.255.255"], ["256.0.0.1", "1.2.3", "01.2.3.4", "1.2.3.4\n", "1.2.3.4.5", "١.2.3.4"]),
    "ipv6": (["::", "1::8", "::ffff:1.2.3.4"], ["1::2::3", ":::", "fe80::a%eth1", "::1/64", "12345::", "[::1]"]),
    "uri": (
        ["http://a", "urn:a:b", "http://u:p@[::1]:80/a?b#c", "http://[v1.a]/", "a:", "mailto:a@b.c", "a://b/%41?c/d?e"],
        ["//a", "a", "http://a b", "http://a/%4", "http://[::1::]", "http://a\n", "http://é", "1:a", "http://a:b", ""],
    ),
    "uri-reference": (["", "a", "//a/b", "../a?b", "#a", "./a:b", "http://a"], ["a b", "1:a", "\\", "#a#b", "//[a]"]),
    "iri": (["http://é/é?\ue000#é", "http://a"], ["é", "http://a/\ue000", "http://a/<", "http://a\ufdd0"]),
    "iri-reference": (["é", "", "é/a:b"], ["é é", "#\ue000"]),
    "uri-template": (
        ["", "http://a/{b}", "{+a,b:3,c*}", "{?a.b,c}", "é{%41}"],
        ["{", "}", "{}", "{a", "{a:0}", "{a:12345}", "{a,}", "{a*:1}", "<a>", "a b", "{-a}"],
    ),
    "json-pointer": (["", "/", "/a/~0~1", "/é b"], ["a", "/~", "/~2", "#/a"]),
    "relative-json-pointer": (["0", "0#", "12/a", "1/~0"], ["", "/a", "01", "0##", "-1", "0a", "٣"]),
    "regex": (["a+", r"\d{2}", r"^[^\]]$", r"(?<a>b)\w"], ["(", "[a", r"\Z", r"\a", "a{99999999999}"]),
    "uuid": (
        ["2eb8aa08-aa98-11ea-b4aa-73b441d16380", "2EB8AA08-AA98-11EA-B4AA-73B441D16380"],
        [
            "2eb8aa08aa9811eab4aa73b441d16380",
            "2eb8aa08-aa98-11ea-b4aa-73b441d1638",
            "{2eb8aa08-aa98-11ea-b4aa-73b441d16380}",
        ],
    ),
}


def test_every_format_of_the_draft_is_here() -> None:
    assert set(CASES) == set(FORMATS)
    known = set(jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers)
    assert known <= set(FORMATS)
    assert len(FORMATS) == 19


@pytest.mark.parametrize("name", CASES)
def test_formats(name: str) -> None:
    accepted, rejected = CASES[name]
    constraint = JSONSchema({"items": {"format": name}})
    assert [text for text in accepted if not constraint.accepts(json.dumps([text]))] == []
    assert [text for text in rejected if constraint.accepts(json.dumps([text]))] == []
    assert constraint.accepts("[1, null, true, {}]"), "a format is one of strings"
    assert JSONSchema({"items": {"format": name}}, formats=False).accepts(json.dumps(rejected))


def test_negative_control_the_library_itself_accepts_what_is_no_address() -> None:
    library = jsonschema.Draft202012Validator({"format": "email"}, format_checker=jsonschema.FormatChecker())
    assert library.is_valid("@")
    assert not JSONSchema({"format": "email"}).accepts('"@"')


UNITS = [
    "a",
    "1",
    "a.",
    "1:",
    ":",
    "/",
    "~0",
    "%41",
    "%",
    "-",
    "{a}",
    "{",
    "é",
    "@",
    "a@",
    "[",
    "(a)*",
    "[a",
    "0",
    "\\",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_hostile_strings_stay_within_the_limits(name: str) -> None:
    """A check that takes more than two seconds raises CheckFailed."""
    constraint = JSONSchema({"format": name})
    for unit in UNITS:
        long = (unit * 100_000)[:100_000]
        for text in (long, f"http://{long} ", f"P{long}!", f"2020-01-01T00:00:00.{long}Z"):
            assert isinstance(constraint.accepts(json.dumps(text)), bool)


def test_a_format_that_the_draft_does_not_have_says_nothing() -> None:
    """Section 7.2.3: an unknown format must not end or fail a validation."""
    assert JSONSchema({"format": "phone"}).accepts('"a"')


def test_formats_hold_wherever_a_schema_is_applied() -> None:
    day = {"format": "date"}
    for schema in (
        {"properties": {"a": day}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"additionalProperties": day}}},
        {"unevaluatedProperties": day},
        {"patternProperties": {"a": {"anyOf": [day, {"type": "integer"}]}}},
        {"if": {"properties": {"a": day}}, "else": False},
    ):
        constraint = JSONSchema(schema)
        assert [constraint.accepts(json.dumps({"a": day})) for day in ("2024-01-31", "2024-01-32")] == [True, False]


def test_the_digest_says_whether_formats_hold_and_is_the_old_one_where_there_are_none() -> None:
    shipped = "806296cba68212f047485531bacd6d53d2b37c184dc087f15aa7704c5498f933"  # of adapters/json-object
    assert JSONSchema({"type": "object"}, name="one JSON object").digest == shipped
    assert JSONSchema({"type": "object"}, formats=False).digest == shipped
    day = {"properties": {"a": {"format": "date"}}}
    on, off = JSONSchema(day), JSONSchema(day, formats=False)
    assert (on.spec()["formats"], off.spec()["formats"]) == (True, False)
    assert on != off
    for constraint in (on, off):
        assert parse(dump(constraint)).constraint == constraint
        assert parse(dump(constraint)).constraint.accepts('{"a": "b"}') is constraint.accepts('{"a": "b"}')
    with pytest.raises(ConstraintError, match="formats must be"):
        JSONSchema({}, formats="no")  # type: ignore[arg-type]


def test_what_names_a_format() -> None:
    assert names_format([{"a": {"format": "date"}}])
    assert not any(map(names_format, [True, {"format": "phone"}, {"properties": {"format": {"type": "string"}}}, {}]))
