"""The laws of constraints hold for every kind on every part: verdicts are sound, however a text is cut into tokens."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import (
    Arithmetic,
    Case,
    Constraint,
    Copy,
    Count,
    Depth,
    Edges,
    Finished,
    Grammar,
    JSONSchema,
    Keyword,
    Language,
    Length,
    NoCopy,
    NumbersFrom,
    OneOf,
    OnlyFrom,
    Order,
    Parses,
    Part,
    PersonalData,
    Quotes,
    Readability,
    Regex,
    Secrets,
    Share,
    Split,
    ToolCalls,
    Values,
    constraint,
)
from guardwrap.constraints.checking import judge_parts
from guardwrap.constraints.files.constraint_data import kinds
from guardwrap.outcomes import Draw
from guardwrap.support.time_limits import StepOver, step_limit
from guardwrap.testing import check_constraint
from tests.constraints.fixtures_strategies import profile

KINDS: dict[str, Callable[[Any], Constraint]] = {
    "arithmetic": lambda on: Arithmetic(on=on),
    "case": lambda on: Case("title", on=on),
    "copy": lambda on: Copy(on=on),
    "count": lambda on: Count("words", min=1, max=2, on=on),
    "depth": lambda on: Depth("brackets", max=1, on=on),
    "edges": lambda on: Edges(start="a", end=".", on=on),
    "grammar": lambda on: Grammar('start: ("a" | "b" | "1")+ "."?\n%ignore " "', on=on),
    "json_schema": lambda on: JSONSchema({"type": ["integer", "array"], "maximum": 5}, on=on),
    "keyword": lambda on: Keyword(["ab", "é"], match="none", on=on),
    "language": lambda on: Language("en", on=on),
    "length": lambda on: Length(min=1, max=2, unit="words", on=on),
    "no_copy": lambda on: NoCopy("a b a b 1", words=2, on=on),
    "numbers_from": lambda on: NumbersFrom("1 and 12", on=on),
    "one_of": lambda on: OneOf(["a", "ab", "b 1"], on=on),
    "only_from": lambda on: OnlyFrom(["a.com"], of="hosts", on=on),
    "order": lambda on: Order("words", "increasing", on=on),
    "parses": lambda on: Parses("json", on=on),
    "personal_data": lambda on: PersonalData(["email", "phone"], on=on),
    "quotes": lambda on: Quotes("a b 1", on=on),
    "readability": lambda on: Readability("flesch_kincaid", language="en", max=5, on=on),
    "regex": lambda on: Regex("^a", on=on),
    "secrets": lambda on: Secrets(on=on),
    "split": lambda on: Split("-", max=2, each=Length(max=3), on=on),
    "values": lambda on: Values(max=11, on=on),
}
MODELS = {"classifier", "entails", "judge", "similar"}
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
NO_TEXT: dict[str, Constraint] = {
    "all": Length(max=9) & Regex("a"),
    "any": Length(max=0) | Regex("a"),
    "not": ~Keyword("a"),
    "code": Regex("a"),  # a name in YAML for a constraint declared in Python
    "finished": Finished(),
    "python": constraint(lambda text: "a" in text),
    "share": Share(Regex("a"), at_most=0.5),
    "tool_calls": ToolCalls([TOOL]),
}

VIEWS = ("completion", "first_sentence", "sentences", "last_line", "lines", "paragraphs", "first_word", "words")
PARTS = (
    *({"after": ":"}, {"between": ("<", ">")}, {"match": "a(.*)"}, {"line": 2}, {"line": -1}, {"sentence": 1}),
    *({"sentence": -2}, {"paragraph": 1}, {"word": 2}, {"word": -1}, {"line": 1, "word": 1}),
    *({"sentence": 1, "word": 1}, {"sentence": 2, "word": -1}, {"paragraph": 1, "word": 1}),
    *({"each": "line", "word": 1}, {"each": "sentence", "word": 1}, {"each": "paragraph", "word": 2}),
    *({"json": "$.a"}, {"json": "$[*]"}, {"json": "$[-1]"}, {"after": ":", "json": "$[0]"}),
)
SELECTIONS: list[Any] = [
    *VIEWS,
    *(Part(**part, missing=missing) for part, missing in product(PARTS, ("fail", "pass"))),  # type: ignore[arg-type]
]
PIECES = [
    *("a", "b", "ab", "1", "12", "é", "機", "。", " ", "\n", "\r\n", "\r", "\n\n", ".", "! ", ":", "<", ">", '"', "'"),
    *("{", "}", "[", "]", ",", "-", "\u0301", "\u2028", "A", "Mr.", "3. ", "”", '["a",', '{"a": "b"', "1.0", "\\u00"),
    *("😀", "a.com", "a@b.co", "(", ")", "=", "+"),
]


def test_every_kind_is_here() -> None:
    assert {*KINDS, *MODELS, *NO_TEXT} == {*kinds()}


TEXT = "ab 1.\n" * 20
MESSAGE = Draw("", (), TEXT, parts=(("tool_calls", ('{"name": "f", "arguments": {"a": 1}}',)),))
INTERRUPTED = {"json_schema", "tool_calls"}


@pytest.mark.parametrize("kind", [*KINDS, *NO_TEXT])
def test_the_end_of_a_step_is_no_failure_of_a_checker(kind: str) -> None:
    """A text is then judged elsewhere, in its own time."""
    rule = NO_TEXT[kind] if kind in NO_TEXT else KINDS[kind]("completion")
    judge_parts([rule], [MESSAGE])
    interrupted = False
    with step_limit(-1):  # over for longer than the clock may go back when it reads the CPU time, 0.01 s
        try:
            judge_parts([rule], [MESSAGE])
        except StepOver:
            interrupted = True
    assert interrupted or kind not in INTERRUPTED


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@given(on=st.sampled_from(SELECTIONS), pieces=st.lists(st.sampled_from(PIECES), max_size=8))
@profile(50)
def test_verdicts_are_sound_however_a_text_is_cut(kind: str, on: Any, pieces: list[str]) -> None:
    check_constraint(KINDS[kind](on), ["".join(pieces)])


WORDS = [Part(sentence=1, word=1), Part(each="sentence", word=1), Part(paragraph=1, word=1), Part(each="line", word=1)]


@pytest.mark.parametrize("on", WORDS, ids=str)
@pytest.mark.parametrize("text", ["b\r\n", "b \n", "b\n\n", "b\u2028 ", "b. \n a", "\n b\t"])
def test_white_space_behind_a_word_settles_it(on: Part, text: str) -> None:
    check_constraint(Regex("^a", on=on), [text])
