"""Constraint files with fields, whose placeholders are filled with values."""

import json

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import JSONSchema, Keyword, Length, Regex
from guardwrap.constraints.base import All, walk
from guardwrap.constraints.files.constraint_file import dump, parse
from guardwrap.constraints.files.template import ConstraintTemplate
from guardwrap.errors import GuardwrapError, SpecError, UsageError

MENTION = """\
guardwrap: 1
fields: [must_mention, n]
constraint:
  - {kind: keyword, words: "{must_mention}", match: all}
  - {kind: length, unit: words, min: "{n}"}
"""
HOSTILE = [
    "{other}", "{n}", "{must_mention}", ".*", "'", '"', "\"'", "a: b", "- x", "}, {kind: regex, pattern: a", "]",
    "&a *a", "catalogue:no-urls", "!!python/object:os.system", "a|b", "(?i)", "\\", "\\d", "[a-z]", "^$", "#", "\n",
    "{0.__class__}",
    "%s", "${n}", "true", "1", "null", "...", "ü", "京都", "\u202e", "a" * 500,
]  # fmt: skip


def read(text, path="m.yaml"):
    return parse(text, path=path)


def rule(line, *names):
    return f"guardwrap: 1\nfields: [{', '.join(names or ('x',))}]\nconstraint: {line}\n"


def test_values_keep_their_type():
    file = read(MENTION)
    assert file.fields == ("must_mention", "n")
    filled = file.filled({"must_mention": ["tea", "milk"], "n": 3, "other": object()}).constraint
    assert filled == All([Keyword(["tea", "milk"], match="all"), Length(min=3, unit="words")])
    assert filled.digest == All([Keyword(["tea", "milk"], match="all"), Length(min=3, unit="words")]).digest
    number = read(rule('{kind: regex, pattern: "{x}"}')).filled({"x": 3})
    assert number.constraint == Regex("3")
    with pytest.raises(SpecError, match=r"m.yaml:5: constraint.1.min: must be a whole number, not '3'"):
        file.filled({"must_mention": "tea", "n": "3"})


@pytest.mark.parametrize("value", [None, {}, {"a": 1}, [["a"]], b"a", float("nan"), "\ud800", "a" * 200_000, [None]])
def test_other_values_are_errors(value):
    with pytest.raises(UsageError, match="'must_mention'") as error:
        read(MENTION).filled({"must_mention": value, "n": 1})
    assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match=r"has no field 'n', which m.yaml requires"):
        read(MENTION).filled({"must_mention": "tea"})


def test_only_declared_names_are_placeholders():
    plain = "guardwrap: 1\nconstraint: {kind: regex, pattern: 'a{2}{n}'}\n"
    assert read(plain).constraint == Regex("a{2}{n}")
    assert read(plain).fields == ()
    assert read(plain).filled({"n": 1}).constraint == Regex("a{2}{n}")
    file = read(rule("{kind: keyword, words: ['{x}', '{y}', '{x!r}', '{x.a}', '{x:>9}', '{ x }']}"))
    assert file.filled({"x": "t"}).constraint == Keyword(["t", "{y}", "{x!r}", "{x.a}", "{x:>9}", "{ x }"])


def structure(constraint):
    return [type(part) for part in walk(constraint)]


@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_values_do_not_change_the_structure(value):
    line = '[{kind: json_schema, schema: {const: "{x}"}}, {kind: regex, match: fullmatch, pattern: "{x}"}]'
    filled = read(rule(line)).filled({"x": value}).constraint
    schema, pattern = sorted(filled.of, key=lambda part: part.kind)
    assert structure(filled) == [All, JSONSchema, Regex]
    assert schema.accepts(json.dumps(value))
    assert not schema.accepts('"zzz"')
    assert pattern.accepts(value)
    assert not pattern.accepts(f"{value}{value}")
    assert not pattern.accepts("zzz")


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30), st.sampled_from(["", "verbose"]))
def test_a_value_in_an_expression_stands_for_itself(value, flag):
    file = read(rule(f'{{kind: regex, match: fullmatch, pattern: "{{x}}", flags: [{flag}]}}'))
    filled = file.filled({"x": value}).constraint
    assert filled.accepts(value)
    assert not filled.accepts(regex.sub(r".", "Q", value, flags=regex.DOTALL) + "Q")
    part = read(rule('{kind: regex, pattern: "a", on: {match: "{x}"}}')).filled({"x": value + "a"}).constraint
    assert part.accepts(f"b{value}a")
    assert not part.accepts("")


PLACES = [
    '{kind: "{x}"}',
    '"{x}"',
    '["{x}"]',
    '{kind: all, of: ["{x}"]}',
    '{kind: not, of: "{x}"}',
    '{kind: split, by: ";", each: "{x}"}',
    '{kind: keyword, words: tea, on: "{x}"}',
    '{kind: regex, pattern: tea, flags: ["{x}"]}',
    '{kind: python, function: "os:{x}"}',
    '{kind: grammar, grammar: "start: {x}"}',
    '{kind: json_schema, schema: {type: "{x}"}}',
    '{kind: json_schema, schema: {$ref: "{x}"}}',
    '{kind: json_schema, schema: {required: ["{x}"], properties: {"{x}": {}}}}',
    '{kind: classifier, model: "{x}", label: a, threshold: 0.5}',
]
WITHIN = [
    '{kind: keyword, words: "my {x}"}',
    '{kind: keyword, words: [tea, "{x}{x}"]}',
    '{kind: regex, pattern: "[{x}]"}',
    '{kind: regex, pattern: "a{{x}}"}',
    '{kind: regex, pattern: tea, on: {match: "a{x}"}}',
    "{kind: judge, question: 'Is {x} said? {text}', model: gpt2, threshold: 0.5}",
]


@pytest.mark.parametrize(
    ("lines", "problem"), [(PLACES, "could change what"), (WITHIN, 'write only "{x}" here, and give')]
)
def test_no_placeholder_where_a_value_could_change_the_rule(lines, problem):
    for line in lines:
        with pytest.raises(SpecError, match=rf"^m.yaml:3: constraint.*{problem}") as error:
            read(rule(line))
        assert "\n" not in str(error.value)


def test_the_question_of_a_judge_may_be_a_value():
    file = read(rule("{kind: judge, question: '{x}', model: gpt2, threshold: 0.5}"))
    assert file.filled({"x": "Is {y} said? {text}"}).constraint.question == "Is {y} said? {text}"


def test_parts_of_messages_are_known_without_values():
    on = {"answer": "answer", "{message: reasoning}": "reasoning", "lines": None, "[a]": None}
    for view, part in on.items():
        line = f"[{{kind: keyword, words: '{{x}}'}}, {{kind: length, max: 3, on: {view}}}]"
        assert read(rule(line)).constraint.reads_message == part
    tools = "[{kind: tool_calls, tools: [{name: f, parameters: {type: object}}]}, {kind: keyword, words: '{x}'}]"
    assert read(rule(tools)).constraint.reads_message == "tool_calls"


def test_errors_of_the_file():
    for text, problem in {
        rule("{kind: keyword, words: tea}"): r"m.yaml:2: fields.0: 'x' is not used",
        rule("{kind: keyword, words: '{seed}'}", "seed"): r"m.yaml:2: fields.0: 'seed' is not a name",
        rule("{kind: keyword, words: '{a b}'}", "a b"): r"m.yaml:2: fields.0: 'a b' is not a name",
        rule("[{file: a.yaml}, {kind: keyword, words: '{x}'}]"): r"m.yaml:3: .*cannot name other files",
        rule("{kind: keyword, words: '{x}'}")
        + "examples: {accepts: [tea]}": r"m.yaml:4: examples: needs a field 'fields'",
        rule("{kind: keyword, words: '{x}'}")
        + "examples: {fields: {y: a}}": r"m.yaml:4: .*not one of the file's fields",
        rule("{kind: keyword, wrods: '{x}'}") + "examples: {fields: {x: a}}": r"m.yaml:3: .*'wrods'",
        "guardwrap: 1\nfields: []\nconstraint: {kind: keyword, words: a}": r"m.yaml:2: fields",
        "guardwrap: 1\nfields: x\nconstraint: {kind: keyword, words: a}": r"m.yaml:2: fields",
    }.items():
        with pytest.raises(SpecError, match=problem):
            read(text)


def test_a_template_is_compiled_once_for_each_value():
    file = read(MENTION)
    first = file.filled({"must_mention": "tea", "n": 1}).constraint
    assert file.filled({"n": 1, "must_mention": "tea", "id": 7}).constraint is first
    assert read(MENTION).filled({"must_mention": "tea", "n": 1}).constraint is first
    count = rule("{kind: json_schema, schema: {const: '{x}'}}")
    values = [1, True, "1", "true", [1], 2]
    filled = [read(count).filled({"x": value}).constraint for value in values]
    assert len({id(one) for one in filled}) == len({one.digest for one in filled}) == len(values)
    assert filled[0].accepts("1")
    assert not filled[1].accepts("1")
    assert filled[2].accepts('"1"')


def test_a_template_judges_nothing_and_round_trips():
    text = MENTION + "examples: {fields: {must_mention: tea, n: 2}, accepts: [my tea], rejects: [tea]}\n"
    file = read(text)
    assert isinstance(file.constraint, ConstraintTemplate)
    again = parse(dump(file))
    assert again.constraint.digest == file.constraint.digest
    assert again.sample == file.sample
    assert file.constraint.digest != read(MENTION.replace("min:", "max:")).constraint.digest
    with pytest.raises(GuardwrapError, match=r"m.yaml requires the fields 'must_mention', 'n'"):
        file.constraint.accepts("tea")
    both = file.constraint & Regex("a")
    with pytest.raises(GuardwrapError):
        both.accepts("tea")
