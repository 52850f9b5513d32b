"""CSV, and tables in Markdown, compared with the parser of markdown-it."""

from __future__ import annotations

import pytest
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
from tests.constraints.fixtures_strategies import assert_sound, judged, profile

TABLE = "| a | b |\n|---|:-:|\n| 1 | 2 |\n"
VALID = {
    "csv": ["a", "a,b\n1,2", "a,b\r\n1,2\r\n", '"a\nb",c\n1,"2"', '"a""b",c', ",\n,", 'a b"c,d', " "],
    "markdown_table": [
        *(TABLE, TABLE[:-1], "|a|\n|-|", "| a\\|b |\n|:--|\n", "   |a|b|\n|-|-|\n||  |", TABLE.replace("\n", "\r\n")),
    ],
}
INVALID = {
    "csv": ["", "a,b\n1", "a\n\nb", "\n", 'a,"b"c', '"a', "a,b\n1,2\n\n", "a\n1,2\n", '"a"b\nc'],
    "markdown_table": [
        *("", "a", "| a |", "| a |\n", "|a|b|\n|-|\n", "|a|\n|-|\n|1|2|", "|a|\n|-|\n\n|1|", "|a|\n|b|", "a|b\n-|-\n"),
        *("|\n|\n", "|a|\n|-|\ntext", "    |a|\n|-|", "|a\\|\n|-|", "|a|\n|-|\n\n"),
    ],
}
PIECES = {
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


@pytest.mark.parametrize("language", LANGUAGES)
def test_verdicts_are_sound(language):
    check_constraint(Parses(language), VALID[language] + INVALID[language])


@pytest.mark.parametrize("language", LANGUAGES)
@profile(300)
@given(data=st.data())
def test_verdicts_are_sound_on_fragments(language, data):
    assert_sound(Parses(language), data.draw(st.lists(st.sampled_from(PIECES[language]), max_size=12).map("".join)))


@pytest.mark.parametrize(
    ("language", "prefix"),
    [
        ("csv", "a,b\n1\n"),
        ("csv", "a\n\n"),
        ("csv", '"a"b\n'),
        ("markdown_table", "a\n"),
        ("markdown_table", "|a|\n|b|\n"),
        ("markdown_table", "|a|\n|-|\n|1|2|\n"),
    ],
)
def test_a_row_that_does_not_fit_is_violated(language, prefix):
    assert run_verdict(Parses(language), prefix) is Verdict.VIOLATED
    assert run_verdict(Parses(language), prefix[:-1]) is Verdict.UNDECIDED


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


HOSTILE = {
    "csv": ['"' * 29_999, "," * 29_999, "a\n" * 14_000, '"' + "a\n" * 14_000],
    "markdown_table": [
        *("|" * 29_999, "|" + "\\|" * 14_000, "|" + "-" * 29_000, "|a|\n|" + ":-" * 14_000, "|a|\n|" + " " * 29_000),
        *("|a|\n|-|\n" * 3_000, "|" + "\\" * 29_000),
    ],
}


@pytest.mark.parametrize(("language", "text"), [(name, text) for name, texts in HOSTILE.items() for text in texts])
def test_hostile_texts_are_judged(language, text):
    assert judged(Parses(language), Draw("", (), text)) in (True, False, None)
    assert run_verdict(Parses(language), text) in Verdict
