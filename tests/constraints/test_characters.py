"""Bytes that end within a character: which characters they begin, and which of them an expression tells apart."""

import pytest
import regex

from guardwrap.constraints import patterns
from guardwrap.constraints.characters import characters, split

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
    """What one of the kinds may begin, continue or end, any character may that is not among them, and no other can."""
    found = patterns.kinds(pattern, flags, partial)
    assert found is not None
    compiled = patterns.compile_pattern(pattern, flags)
    befores = ("", "x", "1", "é", "199", "ab", "a")

    def fits(char: str) -> tuple[bool, ...]:
        return tuple(bool(compiled.fullmatch(before + char, partial=True)) for before in befores)

    assert set(map(fits, found)) == set(map(fits, characters(partial)))
    assert set(found) <= set(characters(partial))


def test_an_expression_of_very_many_sets_is_not_looked_at() -> None:
    assert patterns.kinds("".join(map(regex.escape, EVERY[:200])), (), b"\xc3") is None
