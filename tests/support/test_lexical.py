"""JSON texts: exact numbers, and strings with lone surrogates."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from guardwrap.constraints import JSONSchema, Verdict
from guardwrap.support.lexical import Exact, has_lone_surrogate, is_multiple, is_whole, load_exact, load_json
from guardwrap.testing import check_constraint
from tests.constraints.fixtures_strategies import profile


def test_every_amount_of_cents_is_a_multiple_of_a_cent() -> None:
    cents = JSONSchema({"type": "number", "multipleOf": 0.01})
    amounts = [f"{cent // 100}.{cent % 100:02d}" for cent in range(3000)]
    assert [text for text in amounts if not cents.accepts(text)] == []
    assert [text for text in amounts if cents.verdict(text + " ") is not Verdict.UNDECIDED] == []
    assert [text for text in amounts if cents.accepts(text + "5")] == []
    assert cents.verdict("4.025 ") is Verdict.VIOLATED
    assert 4.02 % 0.01 > 1e-3, "doubles say otherwise"


class Price(BaseModel):
    amount: float = Field(multiple_of=0.01, ge=0.1)


def test_types_are_judged_alike() -> None:
    for constraint in (JSONSchema(Price), JSONSchema(Price.model_json_schema())):
        accepted = ['{"amount": 4.02}', '{"amount": 0.1}', '{"amount": 1e2}']
        assert [text for text in accepted if not constraint.accepts(text)] == []
        assert not constraint.accepts('{"amount": 4.025}')
        assert not constraint.accepts('{"amount": 0.09}')
        check_constraint(constraint, [*accepted, '{"amount": 4.025}'])


digits = st.integers(-9999, 9999)
numbers = digits | st.builds(lambda n, e: Exact(f"{n}e{e}"), digits, st.integers(-8, 8))


@pytest.mark.slow
@profile(400)
@given(numbers, numbers.filter(lambda n: n > 0))
def test_multiples_are_those_of_fractions(value: int | Exact, step: int | Exact) -> None:
    assert is_multiple(value, step) is ((Fraction(value) / Fraction(step)).denominator == 1)
    assert is_whole(Decimal(value)) is (Fraction(value).denominator == 1)


@pytest.mark.parametrize(
    ("schema", "accepted", "rejected"),
    [
        ({"multipleOf": 0.1}, ["1e300", "0.2", "-0.30", "0e999999"], ["0.25", "1e-400", "1e-999999999999999"]),
        ({"multipleOf": 5e-324}, ["1e308", "0"], ["1e-400"]),
        ({"multipleOf": 1e300}, ["3e300", "0.0"], ["1e299", "1"]),
        ({"multipleOf": 3}, ["9" * 300, "9.0e2"], ["1e300", "0.3"]),
        ({"const": 0.1}, ["0.1", "1e-1", "0.10", "10e-2"], ["0.1000000000000000055", "0.1000000000000000000001"]),
        ({"enum": [1e23, {"a": 0.5}]}, ["1e23", "1" + "0" * 23, '{"a": 0.50}'], ["99999999999999991611392"]),
        ({"minimum": 0.3}, ["0.3", "0.30000000000000000000001"], ["0.29999999999999999999", "-1e308"]),
        ({"exclusiveMinimum": 0}, ["1e-400", "1e-999999999999999"], ["0", "-1e-400", "0e-9"]),
        ({"maximum": 9007199254740992}, ["9007199254740992.0"], ["9007199254740993", "9007199254740992.5"]),
        ({"type": "integer"}, ["1.0", "1.5e1", "1e308", "0e-400"], ["1.5", "1e-400", "9007199254740993.5"]),
        ({"uniqueItems": True}, ["[0.1, 0.10000000000000000001]"], ["[0.1, 1e-1]", "[1.0, 1]"]),
        ({"contains": {"const": 0.1}}, ["[0.10]"], ["[0.11]"]),
        # Numbers beyond the range of a double are not interoperable JSON.
        ({}, ["1e308", "1e-400"], ["1e400", "-1e999999999999", "1e-9999999999999999999999", "1" + "0" * 400]),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_numbers_are_what_they_are_written_as(
    schema: dict[str, object], accepted: list[str], rejected: list[str]
) -> None:
    constraint = JSONSchema(schema)
    assert [text for text in accepted if not constraint.accepts(text)] == []
    assert [text for text in rejected if constraint.accepts(text)] == []
    assert [text for text in rejected if constraint.verdict(text + " ") is not Verdict.VIOLATED] == []
    check_constraint(constraint, [*accepted, *rejected])


def test_values_are_plain_and_messages_too() -> None:
    assert type(load_json("4.02")) is float
    assert type(load_exact("4.02")) is Exact
    assert JSONSchema({"multipleOf": 0.01}).parse("[4.02]") == [4.02]
    assert JSONSchema({"multipleOf": 0.01}).fault("4.025") == "4.025 is not a multiple of 0.01"
    assert JSONSchema({"items": {"maximum": 0.5}}).fault("[0.75]") == "$[0]: 0.75 is greater than the maximum of 0.5"


LONE = [
    *(
        '"\\ud800"',
        '"\\udc00"',
        '"a\\uD83Db"',
        '"\\udc00\\ud800"',
        '"\\ud800\\ud800\\udc00"',
        '{"\\udfff": 1}',
        '"\ud800"',
    ),
    *('"\\ud83d\\n"', '"\\\\\\ud800"', '["\\ud83d", "\\ude00"]', '"\\ud800\udc00"'),
]
PAIRED = [
    '"\\ud83d\\ude00"',
    '"\\\\ud800"',
    '"\\u0041\\ud7ff\\ue000"',
    '"\\\\\\ud83d\\uDE00"',
    '"🐲"',
    '{"\\ud83d\\ude00": 1}',
]


class Text(BaseModel):
    text: str


@pytest.mark.parametrize("text", [*LONE, *PAIRED], ids=ascii)
def test_half_of_a_surrogate_pair_is_no_character(text: str) -> None:
    assert has_lone_surrogate(text) is (text in LONE)
    constraint = JSONSchema(True)
    assert constraint.accepts(text) is (text in PAIRED)
    verdict = constraint.verdict(text + " ")
    assert verdict is (Verdict.UNDECIDED if text in PAIRED else Verdict.VIOLATED)
    assert constraint.monitor().read(text[:5]).read(text[5:] + " ").verdict is verdict
    check_constraint(constraint, [text])
    whole = f'{{"text": {text}}}'
    if text[0] == '"':
        schema = Text.model_json_schema()
        assert JSONSchema(Text).accepts(whole) is JSONSchema(schema).accepts(whole) is (text in PAIRED)
    else:
        assert json.loads(text)


@pytest.mark.parametrize(
    ("prefix", "dead"),
    [
        ('"\\ud83d', False),
        ('"\\ud83d\\', False),
        ('"\\ud83d\\ud', False),
        ('"\\ud83d\\ude', False),
        ('"\\ud83d\\ud8', True),
        ('"\\ud83d\\u0', True),
        ('"\\ud83d\\n', True),
        ('"\\ud83da', True),
        ('"\\udc', True),
        ('"\\ud', False),
    ],
)
def test_it_is_noticed_at_once(prefix: str, dead: bool) -> None:
    assert JSONSchema(True).verdict(prefix) is (Verdict.VIOLATED if dead else Verdict.UNDECIDED)
