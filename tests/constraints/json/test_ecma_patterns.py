r"""ECMA-262 expressions: what each matches, by a table that was made with a JavaScript engine, and what is refused."""

from __future__ import annotations

import json

import pytest
import regex

from guardwrap.constraints import JSONSchema, Verdict
from guardwrap.constraints.json.ecma_patterns import compile_expression, is_expression, translate
from guardwrap.errors import ConstraintError
from guardwrap.support.limits import MAX_ITEMS
from guardwrap.testing import check_constraint

# Expression, texts in which RegExp(expression, "u") finds a match, and texts in which it finds none.
MATCHES: list[tuple[str, list[str], list[str]]] = [
    ("a$", ["a", "ba"], ["a\n", "a\u2028", "ab"]),
    ("^a", ["ab"], ["\na", "ba"]),
    ("^$", [""], ["\n"]),
    ("$^", [""], ["a"]),
    (r"\d", ["5"], ["\u0661", "\uff15", "a"]),
    (r"^\D$", ["\u0661", "a", "\n"], ["5", ""]),
    (r"\w", ["a", "Z", "_", "0"], ["é", "ß", "ſ", "\u212a", "-"]),
    (r"^\W$", ["é", "ſ", " ", "🐲"], ["a", "_"]),
    (r"\s", [*" \t\n\v\f\r\u00a0\ufeff\u2028\u2029\u1680\u3000"], ["\x1c", "\x85", "\u200b", "a"]),
    (r"^\S$", ["\x1c", "\x85", "é"], ["\ufeff", "\u00a0"]),
    (r"^.$", ["a", "\x85", "🐲", "\x0b"], ["\n", "\r", "\u2028", "\u2029", "", "ab"]),
    (r"\ba", ["a", "éa", "-a"], ["ba", "_a"]),
    (r"a\b", ["aé", "a"], ["ab"]),
    (r"a\Ba", ["aa"], ["a a"]),
    (r"^é\Bé$", ["éé"], []),
    (r"^\cJ$", ["\n"], ["J"]),
    (r"^\ca$", ["\x01"], ["a"]),
    (r"^\0$", ["\x00"], ["0"]),
    (r"^[\b]$", ["\x08"], ["b"]),
    (r"^\x41\u0042\u{43}$", ["ABC"], ["x41"]),
    (r"^\u{1F432}+$", ["🐲", "🐲🐲"], ["u{1F432}"]),
    (r"^\uD83D\uDC32+$", ["🐲🐲"], ["\uff3d"]),
    ("^🐲*$", ["", "🐲🐲"], ["🐉"]),
    ("^[🐲x]$", ["🐲", "x"], ["🐉", "🐲🐲"]),
    (r"^[\u{1F400}-\u{1F4FF}]$", ["🐲"], ["a"]),
    (r"^\p{L}+$", ["aéß"], ["1", "-"]),
    (r"^\p{Letter}cole$", ["école"], ["1cole"]),
    (r"^\p{digit}$", ["\u0661", "1"], ["a"]),
    (r"^\P{Lu}$", ["a", "1"], ["É"]),
    (r"^\p{Script=Greek}\p{sc=Cyrillic}$", ["αя"], ["яα"]),
    (r"^\p{gc=Nd}\p{General_Category=Decimal_Number}$", ["1\u0661"], ["ab"]),
    (r"^\p{ASCII}\P{ASCII}$", ["aé"], ["éa"]),
    (r"^\p{Any}$", ["\n", "🐲"], [""]),
    (r"^\p{Emoji_Presentation}$", ["🐲"], ["1"]),
    (r"^[\p{L}\d-]+$", ["a-1é"], ["_"]),
    (r"^[^\P{L}a]$", ["é", "b"], ["a", "1"]),
    ("(?<year>[0-9]{4})", ["2024"], ["202"]),
    (r"^(?<q>['\"])a\k<q>$", ["'a'", '"a"'], ["'a\""]),
    (r"^(['\"])a\1$", ["'a'"], ["'a\""]),
    (r"^(?:(a)|b)\1$", ["aa", "b"], ["ab", "ba"]),
    ("[]", [], ["", "a", "]"]),
    ("^[^]$", ["\n", "a", "🐲"], [""]),
    ("^a[]?$", ["a"], ["a]"]),
    (r"^\/\.\-\_\@\"\&\~$", ['/.-_@"&~'], []),
    (r"^[\w-.]+$", ["a-.b"], ["a b"]),
    (r"^[\d-x]+$", ["5-x"], ["a"]),
    ("^[-a]$", ["-", "a"], ["b"]),
    ("^[a-]$", ["-", "a"], ["b"]),
    ("^[+--]$", ["+", ",", "-"], ["."]),
    ("^[[a]$", ["[", "a"], ["]"]),
    ("^[a&&b]$", ["&", "a", "b"], ["c"]),
    ("^[ab~~c]$", ["~", "a", "c"], ["d"]),
    ("^[[:alpha:]]$", ["[]", ":]", "a]"], ["b", "z"]),
    ("^[\\]]$", ["]"], ["\\"]),
    ("^a{2}$", ["aa"], ["a", "a{2}"]),
    ("^a{2,}b{0,1}?$", ["aa", "aaab"], ["ab"]),
    ("^{a}$", ["{a}"], ["a"]),
    ("^a{,b$", ["a{,b"], ["b"]),
    ("^a{1$", ["a{1"], ["a"]),
    ("^(?=a)[^]b$", ["ab"], ["cb"]),
    ("(?<=a+)b", ["aab"], ["cb", "b"]),
    ("(?<!a)b", ["cb", "b"], ["ab"]),
    ("^(?!a)", ["b", ""], ["a"]),
    ("a||b", ["", "x"], []),
    ("#[ ]x", ["# x"], ["x"]),
    ("^&&--~~$", ["&&--~~"], []),
    (r"^[\s\S]*$", ["", "a\nb\u2028"], []),
    ("^(?P<n>a)$", ["a"], ["b"]),  # the syntax of Go, Rust and Python, which has no other meaning
]


@pytest.mark.parametrize(("expression", "found", "missing"), MATCHES, ids=lambda value: repr(value)[:40])
def test_matches(expression: str, found: list[str], missing: list[str]) -> None:
    compiled = compile_expression(expression).compiled
    assert [text for text in found if not compiled.search(text)] == []
    assert [text for text in missing if compiled.search(text)] == []
    assert is_expression(expression)


@pytest.mark.parametrize(("expression", "found", "missing"), MATCHES, ids=lambda value: repr(value)[:40])
def test_patterns_and_names_of_properties_are_judged_by_it(
    expression: str, found: list[str], missing: list[str]
) -> None:
    texts = [json.dumps(text, ensure_ascii=False) for text in (*found, *missing)]
    pattern = JSONSchema({"type": "string", "pattern": expression})
    keys = JSONSchema({"patternProperties": {expression: True}, "additionalProperties": False})
    names = JSONSchema({"propertyNames": {"pattern": expression}})
    expected = [True] * len(found) + [False] * len(missing)
    assert [pattern.accepts(text) for text in texts] == expected
    assert [keys.accepts(f"{{{text}: 1}}") for text in texts] == expected
    assert [names.accepts(f"{{{text}: 1}}") for text in texts] == expected
    check_constraint(pattern, texts)
    check_constraint(keys, [f"{{{text}: 1}}" for text in texts])


def test_negative_control_regex_itself_reads_them_otherwise() -> None:
    """Negative control: without the translation, these match."""
    assert regex.search("a$", "a\n")
    assert regex.search(r"\d", "\u0661")
    assert regex.search(r"\w", "é")
    assert not regex.search(r"\ba", "éa")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (r"a\Z", r"\\Z at position 1 is not an escape of ECMA-262; write \$"),
        (r"\Aa", r"\\A at position 0 is not an escape of ECMA-262; write \^"),
        (r"\a", r"\\a at position 0 is not an escape of ECMA-262; to match the letter, write a"),
        ("(?i)a", r"'\(\?i' at position 0: inline flags are not supported; write letters in both cases"),
        ("(?i:a)", "inline flags are not supported"),
        ("(?>a)", r"'\(\?>' at position 0 does not begin a group; ECMA-262 has"),
        ("(?#a)", "does not begin a group"),
        ("(a)(?P=n)", "does not begin a group"),
        ("(?(1)a)", "does not begin a group"),
        ("a++", r"'\+' at position 2 has nothing to repeat"),
        ("a*+", "has nothing to repeat"),
        ("*a", "has nothing to repeat"),
        ("(?=a)*", "has nothing to repeat"),
        (r"\b+", "has nothing to repeat"),
        ("^*", "has nothing to repeat"),
        ("a{,3}", r"'{,' at position 1 does not begin a quantifier; write {0,n}"),
        ("a{3,2}", "has its numbers in the wrong order"),
        ("[^]]", r"ends an empty set; to match a ']', write \\]"),
        ("[]a]", "ends an empty set"),
        ("[b-a]", "out of order"),
        ("[a", "the set at position 0 is not closed"),
        ("(a", "a group is not closed"),
        ("a)", "unmatched '\\)'"),
        ("a\\", "it ends with a backslash"),
        (r"\x4", r"\\x at position 0 is incomplete; write \\xHH"),
        (r"\u00g0", r"\\u at position 0 is incomplete"),
        (r"\u{110000}", "beyond the last character"),
        (r"\c1", r"\\c at position 0 is incomplete"),
        (r"\01", r"\\0 at position 0 is incomplete"),
        (r"\k", r"write \\k<name>"),
        (r"\p", r"write \\p"),
        (r"\p{Nonsense}", r"\\p{Nonsense} names an unknown Unicode property"),
        (r"\p{Script=Nowhere}", "names an unknown Unicode property"),
        (r"\ud83d", "half of a surrogate pair"),
        (r"[\ud800-\udbff]", "half of a surrogate pair"),
        (r"\1", r"\\1 at position 0 refers to a group that does not exist"),
        (r"(a)\2", "refers to a group that does not exist"),
        (r"\k<n>", "refers to a group that does not exist"),
        (r"[\1]", "is not allowed in a set"),
        (r"[\B]", "is not allowed in a set"),
        (r"\1(a)", "not closed before it"),
        (r"(\1a)", "not closed before it"),
        (r"(a)*\1", "repeated"),
        (r"(?:(a)|b)*\1", "repeated"),
        (r"(?<=(a))\1", "look-around"),
        (r"(?!(a))\1", "look-around"),
        ("(?<n>a)|(?<n>b)", "two groups have the name 'n'"),
        ("(?<1>a)", "not a valid group name"),
        ("\b", "to which double quotes turn"),
        ("(?:a{1000}){1000}", "expands to"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_refused_by_name(expression: str, message: str) -> None:
    with pytest.raises(ConstraintError, match=message) as caught:
        JSONSchema({"pattern": expression})
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("expression", "valid"),
    [
        (r"(a)*\1", True),  # valid, but cannot be translated
        ("(?i:a)", True),
        (r"\1(a)", True),
        (r"\Z", False),
        ("(", False),
        (r"\1", False),
        ("^[a-z]+$", True),
        ("a" * 20_001, False),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_the_format_regex_is_what_the_standard_allows(expression: str, valid: bool) -> None:
    assert JSONSchema({"format": "regex"}).accepts(json.dumps(expression)) is valid


def test_translations_stay_small() -> None:
    """Limits apply to the translation, and errors quote the original."""
    assert len(translate(r"\S" * 100)) < 100 * 300
    with pytest.raises(ConstraintError, match=r"regular expression '\\S\\S"):
        compile_expression(r"\S" * MAX_ITEMS)


def test_prefixes_die_as_early_as_before() -> None:
    for expression in (r"^\d{3}$", "^[0-9]{3}$", "^(?:[0-9]{3})$"):
        assert JSONSchema({"pattern": expression}).verdict('"12a') is Verdict.VIOLATED
        assert JSONSchema({"pattern": expression}).verdict('"1234') is Verdict.VIOLATED
        assert JSONSchema({"pattern": expression}).verdict('"123\\n') is Verdict.VIOLATED
