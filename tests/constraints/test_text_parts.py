"""Parts of a text as views: what is selected, sound verdicts while a text grows, and what comes out is drawn from g."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import (
    Budget,
    Constraint,
    Grammar,
    GuardedGenerator,
    JSONSchema,
    Keyword,
    Length,
    Masked,
    Regex,
    Verdict,
    constraint,
    qrs,
)
from guardwrap.constraints import Part, View, dump, parse, views
from guardwrap.constraints.kinds import text_constraint
from guardwrap.constraints.stop_strings import StopAt
from guardwrap.constraints.views import settled_parts, view
from guardwrap.errors import GuardwrapError, UsageError
from guardwrap.outcomes import Draw
from guardwrap.testing import check_constraint, goodness_of_fit, llama_world

V, U, S = Verdict.VIOLATED, Verdict.UNDECIDED, Verdict.SATISFIED
THOUGHT = Part(after="</t>")
CALLS = Part(between=("<c>", "</c>"))


def of(text: str, on: Any) -> list[str] | None:
    return view(Draw("", (), text), on)


@pytest.mark.parametrize(
    ("on", "text", "parts"),
    [
        (THOUGHT, "hm </t>\n yes \n", ["yes"]),
        (THOUGHT, "hm </t>a</t>b", ["a</t>b"]),
        (THOUGHT, "</t>", [""]),
        (THOUGHT, "hm </t", None),
        (CALLS, "a <c> 1 </c> b <c>2</c>", ["1", "2"]),
        (CALLS, "a <c>1</c> <c>2", ["1", "2"]),
        (CALLS, "a <c></c>", [""]),
        (CALLS, "</c> none <c", None),
        (Part(match="Answer: (.*)"), "So. Answer: B \nAnswer: C", ["B"]),
        (Part(match="[A-D]"), "It is B, not C", ["B"]),
        (Part(match="Answer: (.*)"), "No idea", None),
        (Part(line=2), "one\n\n two \nthree", ["two"]),
        (Part(line=-1), "one\ntwo\n\n", ["two"]),
        (Part(line=4), "one\ntwo", None),
        (Part(sentence=-2), "One. Two! Three?", ["Two!"]),
        (Part(paragraph=2), "a\nb\n \n\nc\nd\n\ne", ["c\nd"]),
        ("first_line", "\none\ntwo", ["one"]),
        ("last_line", "one\ntwo\n", ["two"]),
        ("paragraphs", "a\nb\n\nc", ["a\nb", "c"]),
        ("paragraphs", "", [""]),
        (Part(word=2), "It's well-known. Yes", ["well-known"]),
        (Part(word=-1), "so (they) say...", ["say"]),
        (Part(word=3), "one two", None),
        (Part(sentence=2, word=1), "One. «Two» is here.", ["Two"]),
        (Part(line=-1, word=-1), "a b\nc d!\n", ["d"]),
        (Part(each="sentence", word=2), "One two. Three. Four five six?", ["two", "five"]),
        (Part(each="line", word=1), "...", None),
        (Part(word=2), "机密", ["密"]),
        ("first_word", "«Yes», he said.", ["Yes"]),
        ("last_word", "«Yes», he said.", ["said"]),
        ("words", "a-b c'd -", ["a-b", "c'd"]),
    ],
)
def test_what_is_selected(on: Any, text: str, parts: list[str] | None) -> None:
    assert of(text, on) == parts


def test_a_missing_part_is_a_decision() -> None:
    whatever = Length(min=0, on=THOUGHT)
    assert not whatever.accepts("thinking")
    assert not (~whatever).accepts("thinking")  # a ban on an answer does not accept that there is none
    assert (~~whatever).accepts("x </t>")
    assert not (~~whatever).accepts("thinking")
    both = ~(Regex("1", on=THOUGHT) & Regex("2"))  # ~a | ~b
    assert [both.accepts(text) for text in ("1", "2", "</t>12", "</t>1")] == [True, False, False, True]
    either = ~(Regex("1", on=THOUGHT) | Regex("2"))  # ~a & ~b
    assert [either.accepts(text) for text in ("1", "</t>", "</t>1", "</t>2")] == [False, True, False, False]
    lenient = ~Regex("1", on=dataclasses.replace(THOUGHT, missing="pass"))
    assert [lenient.accepts(text) for text in ("1", "</t>1", "</t>")] == [True, False, True]
    assert Length(min=0, on=dataclasses.replace(THOUGHT, missing="pass")).accepts("thinking")
    assert not Regex("x", on=dataclasses.replace(THOUGHT, missing="pass")).accepts("</t>")
    called = constraint(on=Part(line=2, missing="pass"))(lambda text: text == "b")
    assert [called.accepts(text) for text in ("a", "a\nb", "a\nc")] == [True, True, False]
    assert not constraint(on=Part(line=2))(lambda text: True).accepts("a")


MARKED = st.lists(
    st.sampled_from(["</t>", "<c>", "</c>", "<", "/", "t", "c", ">", "1", "2", " ", "\n", "é"]), max_size=12
)
SPOKEN = st.lists(
    st.sampled_from(["a", "1", "-", "'", " ", ".", "\n", "3.", " M", "ä", "p.m.", "机", "。", "”", "«", "\u0301"]),
    max_size=12,
)
RULES: dict[str, Constraint] = {
    "ban after": ~Regex("1", on=THOUGHT),
    "search after": Regex("12", on=THOUGHT),
    "whole after": Regex("[12]*(é1)?", match="fullmatch", on=THOUGHT),
    "JSON after": JSONSchema({"type": "integer", "maximum": 20}, on=THOUGHT),
    "grammar after": Grammar('start: "1" "é"* "2"', on=THOUGHT),
    "keyword after": Keyword("1 2", on=THOUGHT),
    "length after": Length(max=3, on=THOUGHT),
    "pass": Regex("1", on=dataclasses.replace(THOUGHT, missing="pass")),
    "ban in calls": Keyword("1", match="none", on=CALLS),
    "JSON in calls": JSONSchema({"type": "integer"}, on=CALLS),
    "whole in calls": Regex("[12]( [12])*", match="fullmatch", on=CALLS),
    "line": Regex("1", on=Part(line=2)),
    "first line": Regex("1", on="first_line"),
    "last line": Regex("1", on="last_line"),
    "paragraphs": Regex("1", on="paragraphs"),
    "group": Regex("1", on=Part(match="<c>(.*?)</c>")),
    "words": Regex("1", on="words"),
    "first word": Regex("1", on="first_word"),
    "word": Regex("1", on=Part(word=2)),
    "word of a sentence": Regex("1", on=Part(sentence=2, word=1)),
    "word of each line": Regex("1", on=Part(each="line", word=2)),
    "last word of each sentence": Regex("1", on=Part(each="sentence", word=-1, missing="pass")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RULES)
@given(pieces=MARKED)
@settings(max_examples=150, deadline=None)
def test_verdicts_are_sound_however_a_text_is_cut(name: str, pieces: list[str]) -> None:
    check_constraint(RULES[name], ["".join(pieces)])


@pytest.mark.parametrize("name", RULES)
def test_python_and_yaml_are_one(name: str) -> None:
    read = parse(dump(RULES[name])).constraint
    assert read == RULES[name]
    assert read.spec() == RULES[name].spec()
    assert eval(repr(RULES[name].parts[0]), {**globals(), "Not": lambda of: ~of}).digest == RULES[name].digest


@given(
    pieces=MARKED | SPOKEN,
    rest=MARKED | SPOKEN,
    on=st.sampled_from(
        [
            *("first_line", "paragraphs", "lines", "words", "first_word", Part(line=1), Part(paragraph=2)),
            *(Part(word=1), Part(sentence=1, word=1), Part(sentence=2, word=2), Part(each="line", word=1)),
            *(Part(each="sentence", word=2), Part(each="sentence", word=-1), Part(paragraph=1, word=-1)),
        ]
    ),
)
@settings(max_examples=600, deadline=None)
def test_a_settled_part_never_changes(pieces: list[str], rest: list[str], on: View) -> None:
    prefix = "".join(pieces)
    fixed, parts = settled_parts(prefix, on), of(prefix + "".join(rest), on)
    assert fixed == (parts or [])[: len(fixed)]


@pytest.mark.parametrize(
    ("rule", "decided"),
    [
        ("JSON after", [("x 1 {", U), ("x </t>", U), ("x </t> 1", U), ("x </t> 1x", V)]),
        ("search after", [("12", U), ("12</t> 1", U), ("12</t> 12", S)]),
        ("ban after", [("1", U), ("1 </t> 2 1", V)]),
        ("JSON in calls", [("1 <c> 1", U), ("<c> x", V), ("<c> 1 2", V), ("<c>1</c> x <c>1</c>", U)]),
        ("whole in calls", [("<c>1 </c", U), ("<c>1  2", V), ("<c></c>", V)]),
        ("line", [("1\n2", U), ("1\n2\n", V), ("x\n1\n", S)]),
    ],
)
def test_a_part_ends_a_text_as_soon_as_it_is_dead(rule: str, decided: list[tuple[str, Verdict]]) -> None:
    for prefix, verdict in decided:
        assert RULES[rule].verdict(prefix) is verdict, prefix


def test_very_many_parts_are_read_in_one_piece() -> None:
    """Python's limit on nested calls is not in the way, and is not taken for a part that fails."""
    text = "<c>1</c>" * 1500  # more than the limit, and a fifth of the CPU time that a verdict may take
    rule = RULES["JSON in calls"]
    assert rule.accepts(text)
    assert rule.verdict(text) is U
    assert rule.verdict(text + "<c>x") is V


def test_a_negation_of_what_holds_a_rule_on_a_part() -> None:
    inner = Regex("1", on=THOUGHT)
    ban = ~StopAt(inner, ("STOP",))
    assert [ban.accepts(text) for text in ("1", "</t>1", "</t>2", "</t>2STOP1")] == [False, False, True, True]


def test_nothing_is_read_before_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monitor = RULES["JSON after"].monitor()
    inner = type(monitor.start)  # type: ignore[attr-defined]
    original = inner.read

    def noted(self: Any, text: str) -> Any:
        read.append(text)
        return original(self, text)

    monkeypatch.setattr(inner, "read", noted)
    for piece in ("Let me think. {", '"a": </', "t> ", " 1", "2"):
        monitor = monitor.read(piece)
    assert read == ["1", "2"]


def test_values_of_a_part() -> None:
    schema = JSONSchema({"type": "object", "required": ["a"]}, on=THOUGHT)
    assert schema.parse('So {"a": 0}. </t>\n{"a": 1}') == {"a": 1}
    assert JSONSchema({}, on=dataclasses.replace(THOUGHT, missing="pass")).parse("no part") is None
    with pytest.raises(UsageError, match="only on='completion' or one part can be parsed"):
        JSONSchema({}, on=CALLS).parse("<c>1</c>")


WRONG: list[tuple[Any, str]] = [
    ({}, "exactly one of after, between, match, message, line, sentence, paragraph, word or json, not none"),
    ({"after": "a", "line": 1}, "not after and line"),
    ({"before": "a"}, "unknown field 'before' of a part"),
    ({"after": " "}, "a marker must be a string that is not blank"),
    ({"between": ["a"]}, "between needs two markers"),
    ({"match": "("}, "missing )"),
    ({"line": 0}, "line=0: give a whole number of at least 1"),
    ({"line": 1, "sentence": 1, "word": 1}, "not line and sentence and word"),
    ({"after": "a", "word": 1}, "not after and word"),
    ({"each": "sentence"}, "exactly one of"),
    ({"each": "line", "line": 1, "word": 1}, "not line and word and each"),
    ({"each": "word", "word": 1}, "each='word' is not one of line, sentence, paragraph"),
    ({"word": 0}, "word=0: give a whole number"),
    ({"line": 1.5}, "line=1.5: give a whole number"),
    ({"after": "a", "missing": "skip"}, "missing='skip' is neither 'fail' nor 'pass'"),
    ("first_lines", "did you mean 'first_line'"),
]


@pytest.mark.parametrize(("on", "message"), WRONG)
def test_a_part_that_cannot_be_is_refused(on: Any, message: str) -> None:
    with pytest.raises(GuardwrapError, match=re.escape(message)):
        Regex("a", on=on)


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ("{aftr: x}", "<string>:4: constraint.on.aftr: unknown field 'aftr' (did you mean 'after'?)"),
        ("{line: 1, sentence: 1}", "<string>:4: constraint.on: select a part by exactly one of"),
        ("{line: 0}", "<string>:4: constraint.on"),
        ("frist_line", "did you mean 'first_line'"),
    ],
)
def test_a_mistake_in_a_file_has_its_line(on: str, message: str) -> None:
    with pytest.raises(GuardwrapError, match=re.escape(message)):
        parse(f"guardwrap: 1\nconstraint:\n  kind: regex\n  on: {on}\n  pattern: a\n")


# ----------------------------------------------------------------------------------------------------------------- law

WORLD = llama_world(letters="abc", max_new_tokens=5)
AFTER_B = ~Regex("a", on=Part(after="b"))
BETWEEN = Regex("(ab)+|c", match="fullmatch", on=Part(between=("b", "c"), missing="pass"))


@pytest.mark.slow
@pytest.mark.parametrize("rule", [AFTER_B, BETWEEN], ids=["after", "between"])
@pytest.mark.parametrize("options", [{}, {"proposal": Masked(), "sampler": qrs(1.0)}], ids=["rejection", "QRS"])
def test_drawn_from_g(rule: Constraint, options: dict[str, Any]) -> None:
    gold = WORLD.gold(rule)
    guarded = GuardedGenerator(WORLD.pipeline(), rule, seed=5, budget=Budget(max_attempts=40_000), **options)
    (outcome,) = guarded.run(WORLD.prompt, num_return_sequences=3000, **WORLD.settings)
    assert outcome.ok
    assert goodness_of_fit((draw.token_ids for draw in outcome.draws), gold) > 1e-3


def test_negative_control_a_verdict_before_the_part_is_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    """A monitor that reads from the beginning rejects texts whose thoughts break the rule."""

    def inside(part: Part, start: Any, holds: Any) -> Any:
        return views.PartMonitor(part, start, holds, inner=start)

    monkeypatch.setattr(text_constraint, "PartMonitor", inside)
    guarded = GuardedGenerator(WORLD.pipeline(), AFTER_B, seed=5, budget=Budget(max_attempts=40_000))
    (outcome,) = guarded.run(WORLD.prompt, num_return_sequences=3000, **WORLD.settings)
    assert goodness_of_fit((draw.token_ids for draw in outcome.draws), WORLD.gold(AFTER_B)) < 1e-9


def test_negative_control_a_closing_marker_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "begun_length", lambda text, markers: 0)
    with pytest.raises(AssertionError):
        check_constraint(RULES["whole in calls"], ["<c>1</c>"])


def test_texts_end_as_soon_as_the_part_is_dead() -> None:
    """What a function of one's own that judges whole texts costs, against a rule on the part."""
    world = llama_world(letters="abc", max_new_tokens=12)

    def end_is_fine(text: str) -> bool:
        _, marker, rest = text.partition("b")
        return bool(marker) and "a" not in rest

    spent = []
    for rule in (AFTER_B, constraint(end_is_fine)):
        guarded = GuardedGenerator(world.pipeline(), rule, seed=1, budget=Budget(max_attempts=100_000))
        (outcome,) = guarded.run(world.prompt, num_return_sequences=50, **world.settings)
        assert outcome.ok
        spent.append(outcome.report.usage.tokens)
    assert spent[0] < 0.8 * spent[1]
