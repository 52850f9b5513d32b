"""JSON, JSON Lines, TOML, YAML, CSV, and tables in Markdown, compared with the parser of markdown-it."""

from __future__ import annotations

import json
import tomllib

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from guardwrap import Parses
from guardwrap.constraints import Verdict
from guardwrap.constraints.checking import run_verdict
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.outcomes import Draw
from guardwrap.rules import formats
from guardwrap.testing import check_constraint
from tests.constraints.fixtures_strategies import assert_sound, json_values, judged, profile

TABLE = "| a | b |\n|---|:-:|\n| 1 | 2 |\n"
VALID = {
    "json": ["1", "{}", ' {"a": [1, null]} \n', '"é\\u00e9"', "[]"],
    "jsonl": ['{"a": 1}\n{"a": 2}', "1\n", " 1 \r\n[]", "null"],
    "toml": ["", "a = 1", "[a]\nb.c = [1, 2]\n[[d]]\n", 'a = """\n"""', "a = 1979-05-27T07:32:00Z", "a = {b = 1}"],
    "yaml": ["a: 1", "- a\n- b\n", "{a: [1, 2]}", "&a [*a]", "a: &b 1\nc: *b", "--- a\n", "a: !!str 1", "yes"],
    "csv": ["a", "a,b\n1,2", "a,b\r\n1,2\r\n", '"a\nb",c\n1,"2"', '"a""b",c', ",\n,", 'a b"c,d', " "],
    "markdown_table": [
        *(TABLE, TABLE[:-1], "|a|\n|-|", "| a\\|b |\n|:--|\n", "   |a|b|\n|-|-|\n||  |", TABLE.replace("\n", "\r\n")),
    ],
}
INVALID = {
    "json": ["", "{", "[1,]", "{'a': 1}", "01", "NaN", '{"a": 1, "a": 2}', "\ud800", '"\\ud800"', "1 2", "// a\n1"],
    "jsonl": ["", "\n", "1\n\n2", "{}\n[", "[\n1]", "1\n \n", "1\n2\n\n", "1\n'a'\n2"],
    "toml": ["a = ", "a = [", "[a]\n[a]", "a = 1 2", "a = 1\na = 2", "a = 01", "x", "a = '\n'", "\0"],
    "yaml": [
        *("", "a: [1", "a: b: c", "a: *b", "\ta: 1", "a\n---\nb\n", "!!python/object:os.system {}", "2024-13-01"),
        *("!x 1", "!!bool maybe", "!!int a", "a: '", "\0", "\ud800"),
    ],
    "csv": ["", "a,b\n1", "a\n\nb", "\n", 'a,"b"c', '"a', "a,b\n1,2\n\n", "a\n1,2\n", '"a"b\nc'],
    "markdown_table": [
        *("", "a", "| a |", "| a |\n", "|a|b|\n|-|\n", "|a|\n|-|\n|1|2|", "|a|\n|-|\n\n|1|", "|a|\n|b|", "a|b\n-|-\n"),
        *("|\n|\n", "|a|\n|-|\ntext", "    |a|\n|-|", "|a\\|\n|-|", "|a|\n|-|\n\n"),
    ],
}
PIECES = {
    "json": [*('{"a":', "}", "[", "]", ",", "1", "-", "e", '"', "\\", "u00", "true", "nul", " ", "\n"), "\0", "\ud800"],
    "jsonl": ["{}", "[", "]", "1", ",", '"a"', '"', "\n", "\n", "\r", " ", "\t", "\u2028", "\ud800", "tru"],
    "toml": ["a", "a = 1\n", ".", "=", "[", "]", "{", "}", '"', '"""', "'", "\\", "\n", "#", "1", "e", ",", "\r"],
    "yaml": [
        *("a: 1\n", "- ", "? ", ": ", "[", "]", "{", "}", "&a ", "*a", "!!int ", "!", "'", '"', "|\n", " ", "\n", "%"),
        *("---\n", "#", "<<: ", "\t", "1:2"),
    ],
    "csv": ["a", ",", ",", '"', '"', '""', "\n", "\n", "\r", "\r\n", " ", "'", "\0", "é", "\u2028", "\ud800", "\x0b"],
    "markdown_table": [
        *("| a ", "|", "|\n", "\n", "|-", "|:-:", "|--|\n", "\\", "\\|", " ", "    ", "\t", "a", "\r", "`", "\u2028"),
    ],
}
LANGUAGES = list(VALID)


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_parser_decides(language):
    constraint = Parses(language)
    assert [text for text in VALID[language] if not constraint.accepts(text) or constraint.fault(text)] == []
    assert [text for text in INVALID[language] if constraint.accepts(text) or not constraint.fault(text)] == []


@pytest.mark.parametrize(
    ("language", "text"),
    [("json", "1e999"), ("json", "9" * 5_000), ("toml", "a = " + "9" * 5_000), ("yaml", "1" + ":30" * 1_000)],
)
def test_numbers_beyond_all_limits_are_rejected(language, text):
    assert not Parses(language).accepts(text)


@pytest.mark.parametrize("language", LANGUAGES)
def test_verdicts_are_sound(language):
    check_constraint(Parses(language), VALID[language] + INVALID[language])


@pytest.mark.parametrize("language", LANGUAGES)
@profile(300)
@given(data=st.data())
def test_verdicts_are_sound_on_fragments(language, data):
    assert_sound(Parses(language), data.draw(st.lists(st.sampled_from(PIECES[language]), max_size=12).map("".join)))


@profile(60)
@given(st.lists(json_values, min_size=1, max_size=4))
def test_lines_of_json_are_accepted(values):
    text = "\n".join(map(json.dumps, values))
    assert Parses("jsonl").accepts(text)
    assert_sound(Parses("jsonl"), text)


@pytest.mark.parametrize(
    ("language", "prefix"),
    [("json", "[1,]"), ("json", "{1"), ("jsonl", "1\n[1,]"), ("jsonl", "[\n"), ("jsonl", "1\n\n"),
     ("csv", "a,b\n1\n"), ("csv", "a\n\n"), ("csv", '"a"b\n'),
     ("markdown_table", "a\n"), ("markdown_table", "|a|\n|b|\n"), ("markdown_table", "|a|\n|-|\n|1|2|\n")],
)  # fmt: skip
def test_prefixes_that_cannot_be_mended_are_violated(language, prefix):
    assert run_verdict(Parses(language), prefix) is Verdict.VIOLATED
    assert run_verdict(Parses(language), prefix[:-1]) is Verdict.UNDECIDED


def test_negative_control_a_line_that_may_continue_is_judged(monkeypatch):
    broken = property(lambda self: Verdict.VIOLATED if formats.fault_in_json(self.line) else Verdict.UNDECIDED)
    monkeypatch.setattr(formats.JSONLinesMonitor, "verdict", broken)
    with pytest.raises(AssertionError, match="unsound"):
        check_constraint(Parses("jsonl"), ["[1]\n[2]"])


@profile(150)
@given(st.lists(st.sampled_from(PIECES["toml"]), max_size=10).map("".join))
def test_toml_agrees_with_tomllib(text):
    try:
        tomllib.loads(text)
        holds = True
    except tomllib.TOMLDecodeError:
        holds = False
    assert Parses("toml").accepts(text) is holds


@profile(150)
@given(st.lists(st.sampled_from(PIECES["yaml"]), max_size=10).map("".join))
def test_yaml_that_pyyaml_loads_is_accepted_and_the_rest_is_composed(text):
    """PyYAML also rejects keys that Python cannot hash; that is no matter of syntax."""
    try:
        loaded = yaml.safe_load(text) is not None
    except Exception:
        loaded = False
    accepted = Parses("yaml").accepts(text)
    assert accepted or not loaded
    assert not accepted or yaml.compose(text, yaml.SafeLoader) is not None


LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 30))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 10)}]}}\n" for i in range(1, 30))


@pytest.mark.parametrize("text", [LAUGHS, MERGES])
def test_aliases_are_not_expanded(text):
    """Expanded, each text has 10 to the power of 29 values."""
    assert Parses("yaml").accepts(text)


HOSTILE = {
    "json": ["[" * 100_000, "9" * 100_000, '{"a":' * 50_000],
    "jsonl": ["1\n" * 50_000, "\n" * 100_000],
    "toml": [
        *("a = " + "[" * 29_000, "a." * 14_000 + "a = 1", '"\\"".' * 5_000 + "a = 1", "[" + "a . " * 7_000 + "a]"),
        *('"\\' * 15_000, "a" * 30_000, "a = {b = " * 3_000, "[[a]]\n" * 4_900),
    ],
    "yaml": [
        *("[" * 29_000, "- " * 14_000, "{a: " * 7_000, "? " * 14_000, "%YAML 1.1\n" * 2_900, "a: 0x" + "f" * 29_000),
        *("!" * 29_000, "&a " * 9_000, "- a\n" * 7_000),
    ],
    "csv": ['"' * 29_999, "," * 29_999, "a\n" * 14_000, '"' + "a\n" * 14_000],
    "markdown_table": [
        *("|" * 29_999, "|" + "\\|" * 14_000, "|" + "-" * 29_000, "|a|\n|" + ":-" * 14_000, "|a|\n|" + " " * 29_000),
        *("|a|\n|-|\n" * 3_000, "|" + "\\" * 29_000),
    ],
}


@pytest.mark.parametrize(("language", "text"), [(name, text) for name, texts in HOSTILE.items() for text in texts])
def test_hostile_texts_are_judged(language, text):
    """A text that takes too long raises CheckFailed, which ``judged`` turns into None; a test that hangs fails."""
    assert judged(Parses(language), Draw("", (), text)) in (True, False, None)
    assert run_verdict(Parses(language), text) in Verdict


def test_a_long_key_in_toml_is_rejected():
    assert Parses("toml").accepts("a." * 60 + "a = 1")
    assert not Parses("toml").accepts("a." * 64 + "a = 1")
    assert not Parses("toml").accepts('"\\"".' * 64 + "a = 1")
    assert Parses("toml").accepts(f"a = {'.' * 1_000!r}")


def test_negative_control_an_open_quote_is_an_error(monkeypatch):
    faults = formats._csv_faults
    monkeypatch.setattr(formats, "_csv_faults", lambda text, complete=True: faults(text, complete=True))
    with pytest.raises(AssertionError, match="unsound"):
        check_constraint(Parses("csv"), ['"a\nb",c\n'])


def test_negative_control_a_row_that_has_not_ended_is_judged(monkeypatch):
    judge = formats.markdown_table_verdict
    monkeypatch.setattr(Parses, "prefix_verdict", lambda self, prefix: judge(prefix + "\n"))
    monkeypatch.setattr(Parses, "monitor", TextConstraint.monitor)
    with pytest.raises(AssertionError, match="unsound"):
        check_constraint(Parses("markdown_table"), [TABLE])


ROWS = ["| a ", "| b", "|", "|\n", "|-", "|:-:", "|-|-|\n", "| a | b |\n", "|a|\n|-|\n", "\\|", "x", " "]


@profile(300)
@example("\\||a|\n|-|\n")
@example("||\n|-\\||")
@given(st.lists(st.sampled_from(ROWS), max_size=9).map("".join))
def test_accepted_tables_are_one_table_for_markdown_it(text):
    if not Parses("markdown_table").accepts(text):
        return
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    assert [token.type for token in tokens if token.level == 0] == ["table_open", "table_close"]
    rows = text.removesuffix("\n").split("\n")
    assert sum(token.type == "tr_open" for token in tokens) == len(rows) - 1  # all except the row of dashes
    cells = sum(token.type in ("th_open", "td_open") for token in tokens)
    assert cells == len(formats._cells(rows[0]) or []) * (len(rows) - 1)
