"""Values in JSON as parts of a text: paths, what is judged, and verdicts that no continuation contradicts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import Budget, Constraint, GuardedGenerator, JSONSchema, Keyword, Length, Regex, Values, Verdict, qrs
from guardwrap.constraints import Part, dump, parse, views
from guardwrap.constraints.json_paths import read_path, settled_values, values_at
from guardwrap.constraints.views import view
from guardwrap.errors import ConstraintError, UsageError
from guardwrap.outcomes import Draw
from guardwrap.testing import check_constraint, goodness_of_fit, llama_world

V, U = Verdict.VIOLATED, Verdict.UNDECIDED
ITEMS = '[{"name": "tea", "price": 1.10}, {"name": "milk", "price": "5 €"}, {"x": null}]'
ORDER = f'{{"items": {ITEMS}, "a b": {{"c\\"d": [true]}}}}'


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("$.items[*].price", ["1.10", "5 €"]),
        ("$.items[0].name", ["tea"]),
        ("$.items[-2].name", ["milk"]),
        ("$.items[3]", []),
        ("$.items[*].x", ["null"]),
        ("$['a b'].*", ["[true]"]),
        ('$["a b"]["c\\"d"][0]', ["true"]),
        ("$.items[1]", ['{"name": "milk", "price": "5 €"}']),
        ("$.items.name", []),
        ("$[0]", []),
        ("$.nothing", []),
        ("$.items[0]", ['{"name": "tea", "price": 1.10}']),
    ],
)
def test_values_at_a_path(path: str, values: list[str]) -> None:
    assert values_at(ORDER, read_path(path)) == values


@pytest.mark.parametrize("path", ["", "items", "$items", "$.", "$..name", "$[?@.a]", "$[a]", "$.a-b", "$[1", 5])
def test_what_is_no_path(path: Any) -> None:
    with pytest.raises(ConstraintError, match=r"json=.* is not a path"):
        Part(json=path)


@pytest.mark.parametrize("text", ["", "no JSON", '{"a": 1} and more', '{"a": NaN}', '{"a": 1, "a": 1}', "[" * 100_000])
def test_a_text_that_is_not_json_lacks_the_part(text: str) -> None:
    assert view(Draw("", (), text), Part(json="$.a")) is None
    assert view(Draw("", (), text), Part(json="$.a", missing="pass")) == []
    assert not Regex("", on=Part(json="$.a")).accepts(text)
    assert not (~Regex("x", on=Part(json="$.a"))).accepts(text)


def test_numbers_are_judged_as_they_are_written() -> None:
    text = '{"a": [1.10, {"b": -0, "c": 1e5, "d": 123456789012345678901234567890, "e": "\\ud83d\\ude00"}]}'
    inner = '{"b": -0, "c": 1e5, "d": 123456789012345678901234567890, "e": "😀"}'
    assert values_at(text, read_path("$.a")) == [f"[1.10, {inner}]"]
    assert values_at(text, read_path("$.a[1]")) == [inner]
    assert values_at(text, read_path("$.a[*]")) == ["1.10", inner]
    assert values_at("[1e400]", read_path("$[*]")) == []
    here = Part(json="$.a")
    assert not JSONSchema({"items": {"maximum": 1}}, on=here).accepts('{"a": [1.00000000000000000001]}')
    assert Values(decimals=2, on=here).accepts('{"a": [1.10, 2.50]}')
    assert not Values(decimals=2, on=here).accepts('{"a": [1.1]}')


def test_what_is_no_json_takes_no_verdict_back() -> None:
    """A verdict on a longer text does not depend on whether an attempt was asked about after a shorter one."""
    rule = Keyword("b", match="any", on=Part(json="$[*]"))
    for wrong in ("é", "nul,", "-]", '"\x01"', '"\\q"', '"\\ud800x"', "[" * 300, "\ud800"):
        assert rule.verdict(f'["a",\n{wrong}') is V
    check_constraint(rule, ['["a",😀', '["é",\n"a", nul,'])


SHORT = Length(max=2, unit="words", on=Part(json="$.summary"))
PRICES = Values("money", max=5, currency="EUR", on=Part(json="$.items[*].price", missing="pass"))
NO_TEA = Keyword("tea", match="none", on=Part(json="$.items[*]"))
RULES: dict[str, tuple[Constraint, list[str]]] = {
    "short": (SHORT, ['{"summary": "a b"}', '{"summary": "a b c", "x": 1}', '{"summary": 5}', '{"a": 1}', "a"]),
    "negated": (~SHORT, ['{"summary": "a b"}', '{"summary": "a b c", "x": 1}', '{"summary": "a b c" oh']),
    "prices": (PRICES, ['{"items": [{"price": "3 €"}, {"price": "9 €"}, {"price": 1}]}', '{"items": []}', "{}"]),
    "no tea": (NO_TEA, ['{"items": ["tea", "a"]}', '{"items": ["a", ["tea"], {"b": "tea"}]}', '{"items": ["a"]}']),
    "or": (SHORT | Regex("x"), ['{"summary": "a b c"} x', '{"summary": "a b"}']),
    "after": (Regex("^a", on=Part(after=":", json="$[0]")), [': ["ab"]', ': ["b"]', '["a"]', ":"]),
}


@pytest.mark.parametrize(("rule", "texts"), RULES.values(), ids=RULES)
def test_verdicts_are_sound(rule: Constraint, texts: list[str]) -> None:
    check_constraint(rule, texts)
    assert parse(dump(rule)).constraint.digest == rule.digest


def test_a_value_is_judged_as_soon_as_it_is_complete() -> None:
    assert SHORT.verdict('{"summary": "a b c') is U  # the string may still be escaped, or the text not JSON
    assert SHORT.verdict('{"summary": "a b c"') is V
    assert (~SHORT).verdict('{"summary": "a b c"') is U  # the negation rejects a text that is not JSON
    assert NO_TEA.verdict('{"items": ["a", "tea"') is V
    assert Regex("a", on=Part(json="$[-1]")).verdict('["b"') is U
    assert Regex("a", on=Part(json="$[0]", missing="pass")).verdict('["b"') is U
    assert Regex("1.10", on=Part(json="$[0]")).verdict("[1.1, ") is U


def test_negative_control_the_negation_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guardwrap.constraints.base.Not._waits", False)
    with pytest.raises(AssertionError):
        check_constraint(~SHORT, ['{"summary": "a b c" oh'])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text('aé"\\\n1'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=8,
)


@given(value=JSON, path=st.sampled_from(["$", "$.*", "$[*].a", "$.a[*]", "$[1]", "$.b.a", "$[*][*]"]), data=st.data())
def test_settled_values_stay(value: Any, path: str, data: st.DataObject) -> None:
    text, steps = json.dumps(value, ensure_ascii=data.draw(st.booleans())), read_path(path)
    prefix = text[: data.draw(st.integers(0, len(text)))]
    settled, whole = settled_values(prefix, steps), values_at(text, steps)
    assert whole[: len(settled)] == settled or all(settled.count(each) <= whole.count(each) for each in settled)


def test_negative_control_every_value_counts_as_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    rule, texts = Regex("12", on=Part(json="$[*]")), ['["12", 12]']
    check_constraint(rule, texts)
    monkeypatch.setattr(views, "settled_values", lambda prefix, steps: values_at(prefix + "]", steps))
    with pytest.raises(AssertionError):
        check_constraint(rule, texts)


# ----------------------------------------------------------------------------------------------------------------- law

WORLD = llama_world(letters='[]"a1', max_new_tokens=4)
RULE = Regex("1|^$|a", on=Part(json="$"))


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [None, qrs(1.0)], ids=["rejection", "QRS"])
def test_drawn_from_g(sampler: Any) -> None:
    gold = WORLD.gold(RULE)
    guarded = GuardedGenerator(WORLD.pipeline(), RULE, seed=5, budget=Budget(max_attempts=None), sampler=sampler)
    (outcome,) = guarded.run(WORLD.prompt, num_return_sequences=500, **WORLD.settings)
    assert outcome.ok
    assert goodness_of_fit((draw.token_ids for draw in outcome.draws), gold) > 1e-3


def test_a_schema_of_a_value_is_not_parsed() -> None:
    rule = JSONSchema({"type": "integer"}, on=Part(json="$.age"))
    assert rule.accepts('{"age": 5}')
    assert not rule.accepts('{"age": "x"}')
    with pytest.raises(UsageError, match="can be parsed"):
        rule.parse('{"age": 5}')
