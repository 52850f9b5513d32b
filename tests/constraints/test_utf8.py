"""Incomplete UTF-8: the characters that bytes may begin, and how an expression groups these characters."""

import pytest
import regex

from guardwrap.constraints import Constraint, JSONSchema, Regex, regex_analysis
from guardwrap.constraints.checking import Rereading
from guardwrap.constraints.json import json_monitor
from guardwrap.constraints.verdicts import characters, split
from guardwrap.testing import check_constraint

EVERY = [char for char in map(chr, range(0x80, 0x110000)) if not "\ud800" <= char <= "\udfff"]
PARTIAL = [b"\xc3", b"\xdf", b"\xe0", b"\xe2", b"\xe2\x80", b"\xed", b"\xed\x9f", b"\xf0", b"\xf0\x9f\x98", b"\xf4"]


@pytest.mark.parametrize("partial", PARTIAL)
def test_characters_are_those_whose_bytes_begin_so(partial: bytes) -> None:
    assert characters(partial) == "".join(char for char in EVERY if char.encode().startswith(partial))


@pytest.mark.parametrize("raw", ["aé🙂", "é", b"a\xf0\x9f", b"\xf0\x9f\xc3", b"\xff\xe2\x80", b"\xa9a\xe0\x80", b""])
def test_splitting_is_decoding_cut_short(raw: str | bytes) -> None:
    raw = raw.encode() if isinstance(raw, str) else raw
    text, pending = split(raw)
    assert text == raw[: len(raw) - len(pending)].decode("utf-8", "replace")
    assert split(pending) == ("", pending)
    assert (raw + b"\x80").decode("utf-8", "replace").startswith(text), "whatever comes next"


PATTERNS = [
    ("[1-5]", ()),
    (r"\d{4}-\d\d", ()),
    (r"\w+é[^à-ö]", ()),
    (r"[à-ö]x|.", ()),
    (r"É\w", ("ignorecase",)),
    (r"[^\W\d]\s", ()),
    (r"\w\d", ("ascii",)),
    (r"(?i:Ω)k", ()),
    ("a.b", ("dotall",)),
]


@pytest.mark.parametrize(("pattern", "flags"), PATTERNS)
@pytest.mark.parametrize("partial", [b"\xc3", b"\xe2\x84", b"\xd9", b"\xce", b"\xe2\x80"])
def test_one_character_of_each_kind_stands_for_all(pattern: str, flags: tuple[str, ...], partial: bytes) -> None:
    """All characters of a group can begin, continue or end the same matches, and one of each group is returned."""
    found = regex_analysis.character_kinds(pattern, flags, partial)
    assert found is not None
    compiled = regex_analysis.compile_pattern(pattern, flags)
    befores = ("", "x", "1", "é", "199", "ab", "a")

    def fits(char: str) -> tuple[bool, ...]:
        return tuple(bool(compiled.fullmatch(before + char, partial=True)) for before in befores)

    assert set(map(fits, found)) == set(map(fits, characters(partial)))
    assert set(found) <= set(characters(partial))


def test_an_expression_of_very_many_sets_is_not_looked_at() -> None:
    assert regex_analysis.character_kinds("".join(map(regex.escape, EVERY[:200])), (), b"\xc3") is None


WORDS = JSONSchema({"type": "object", "properties": {"é": {"enum": ["ö", "🙂a"]}}, "additionalProperties": False})


@pytest.mark.parametrize("constraint", [Regex("[é🙂]+a?", match="fullmatch"), WORDS, JSONSchema({"pattern": "é$"})])
def test_monitors_take_the_bytes_of_what_may_come(constraint: Constraint) -> None:
    check_constraint(constraint, ["é🙂a", "aé", '{"é": "ö"}', '{"é": "🙂a"}', '{"ö": 1}', '"aé"', '"é🙂"', "\u2028"])


def test_monitors_refuse_the_bytes_of_what_may_not() -> None:
    reading = WORDS.monitor()
    for text, begins in (
        ("", []),
        ('{"', [b"\xc3"]),
        ('{"é": ', []),
        ('{"é": "', [b"\xc3", b"\xf0"]),
        ('{"é": "🙂', []),
    ):
        after = reading.read(text)
        assert [lead for lead in (b"\xc3", b"\xe2", b"\xf0") if after.may_begin(lead)] == begins
    assert JSONSchema({}).monitor().read('"').may_begin(b"\xe2")


def test_negative_controls_of_the_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rereading, "may_begin", lambda *_: False)
    with pytest.raises(AssertionError, match="rejects bytes"):
        check_constraint(Regex("é+", match="fullmatch"), ["éé"])
    monkeypatch.setattr(json_monitor.JSONMonitor, "key", 1)
    with pytest.raises(AssertionError, match="the same key"):
        check_constraint(JSONSchema({"type": "integer"}), ["12", "1a"])
