"""JSONSchema of Python types: texts that pydantic rejects are rejected, and accepted texts have a value."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import decimal
import pickle
from collections.abc import Callable
from typing import Annotated, Any, NewType

import hypothesis
import pytest
import typing_extensions
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    Field,
    NaiveDatetime,
    TypeAdapter,
    field_validator,
)

from guardwrap.constraints import All, Constraint, JSONSchema, Length, dump, parse
from guardwrap.constraints.json.json_schema import parser_of
from guardwrap.errors import CheckFailed, ConstraintError, UsageError
from guardwrap.outcomes import Draw
from guardwrap.testing import check_constraint
from tests.constraints.fixtures_strategies import profile


class Person(BaseModel):
    name: str
    born: datetime.date | None = Field(None, alias="birthday")


class Even(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def _even(cls, n: int) -> int:
        if n == 13:
            raise ZeroDivisionError(n)
        if n % 2:
            raise ValueError(f"{n} is odd")
        return n


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Movie(typing_extensions.TypedDict):
    title: str
    year: typing_extensions.NotRequired[int]


@pytest.mark.parametrize(
    ("given", "text", "value", "rejected"),
    [
        (
            Person,
            '{"name": "Ada", "birthday": "1815-12-10"}',
            Person(name="Ada", birthday=datetime.date(1815, 12, 10)),
            ['{"name": "Ada", "birthday": "1815-12-32"}', '{"birthday": null}', "[]"],
        ),
        (Point, '{"x": 1, "y": 2}', Point(1, 2), ['{"x": 1}', '{"x": 1, "y": "a"}']),
        (Movie, '{"title": "M", "year": 1931}', {"title": "M", "year": 1931}, ['{"title": 1}']),
        (list[Point], '[{"x": 0, "y": 0}]', [Point(0, 0)], ["[1]", "{}"]),
        (Point | None, "null", None, ["1"]),
        (TypeAdapter(dict[str, int]), '{"a": 1}', {"a": 1}, ['{"a": "b"}']),
        (Annotated[int, AfterValidator(lambda n: n + 1)], "1", 2, ["1.5"]),
        (Even, '{"n": 2}', Even(n=2), ['{"n": 3}']),
        (decimal.Decimal, '"1.50"', decimal.Decimal("1.50"), ['"abc"', "null"]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_types(given: Any, text: str, value: Any, rejected: list[str]) -> None:
    constraint = JSONSchema(given)
    assert constraint.accepts(text)
    assert constraint.parse(text) == value
    assert type(constraint.parse(text)) is type(value)
    assert [text for text in rejected if constraint.accepts(text)] == []
    assert JSONSchema(constraint.schema).accepts(text), "the schema is the type's"
    check_constraint(constraint, [text, *rejected, "", " "])


class Times(BaseModel):
    took: datetime.timedelta | None = None
    began: datetime.datetime | None = None
    at: datetime.time | None = None


UTC, SOME_DAYS = datetime.UTC, datetime.timedelta(days=400, microseconds=5)
DURATIONS = st.timedeltas() | st.sampled_from([datetime.timedelta(days=-1), datetime.timedelta(0), SOME_DAYS])
ZONES = st.sampled_from([None, UTC, datetime.timezone(datetime.timedelta(hours=-3, minutes=-30))])


@pytest.mark.slow
@hypothesis.given(took=DURATIONS, began=st.datetimes(timezones=ZONES), at=st.times(timezones=ZONES))
@profile(150)
def test_what_pydantic_writes_satisfies_its_schema(took: Any, began: Any, at: Any) -> None:
    times = Times(took=took, began=began, at=at)
    rule = JSONSchema(Times)
    assert rule.accepts(times.model_dump_json()), times.model_dump_json()
    assert rule.parse(times.model_dump_json()) == times
    assert JSONSchema(rule.schema).accepts(times.model_dump_json()), "the schema is the type's"


def test_what_is_no_time_and_times_that_must_have_an_offset() -> None:
    rule = JSONSchema(JSONSchema(Times).schema)
    for name, texts in {
        "took": ["P", "PT", "-P", "P1H", "PT1D", "1 day", "P1DT", "PT1.S", "P1.5D"],
        "began": ["2024-01-02", "2024-13-02T00:00:00", "2024-01-02T24:00:00", "2024-01-02 00:00"],
        "at": ["1:02:03", "24:00:00", "01:02"],
    }.items():
        assert [text for text in texts if rule.accepts(f'{{"{name}": "{text}"}}')] == []
    assert not JSONSchema(AwareDatetime).accepts('"2024-01-02T00:00:00"')
    assert not JSONSchema(NaiveDatetime).accepts('"2024-01-02T00:00:00Z"')
    check_constraint(JSONSchema(Times), ['{"took": "-P1DT2H3.5S"}', '{"began": "2024-01-02T00:00:00"}', '{"at": "P"}'])


UserId = NewType("UserId", int)
Ids = typing_extensions.TypeAliasType("Ids", list[UserId])
Tree = typing_extensions.TypeAliasType("Tree", "dict[str, Tree] | int")


@pytest.mark.parametrize(
    ("kind", "text", "wrong"), [(UserId, "5", '"5a"'), (Ids, "[5]", "5"), (Tree, '{"a": {"b": 1}}', '{"a": []}')]
)
def test_names_of_types(kind: Any, text: str, wrong: str) -> None:
    for rule in (JSONSchema(kind), JSONSchema(JSONSchema(kind).schema, type=kind)):
        assert rule.accepts(text)
        assert not rule.accepts(wrong)
        assert rule.parse(text) == TypeAdapter(kind).validate_json(text)


def test_negative_control_the_schema_alone_says_less() -> None:
    """Negative control: without pydantic, texts are accepted that have no value."""
    for given, text in ((Even, '{"n": 3}'), (decimal.Decimal, '"abc"')):
        assert JSONSchema(JSONSchema(given).schema).accepts(text)
        assert not JSONSchema(given).accepts(text)


def test_a_type_is_in_the_digest_and_in_no_file() -> None:
    constraint, plain = JSONSchema(Person), JSONSchema(Person.model_json_schema())
    assert constraint.schema == plain.schema
    assert constraint != plain
    assert constraint == JSONSchema(Person)
    assert (constraint.in_memory, plain.in_memory) == (True, False)
    assert parse(dump(plain)).constraint == plain
    with pytest.raises(ConstraintError, match="made from an object in memory"):
        dump(constraint)
    with pytest.raises(ConstraintError, match="a file cannot name a Python type; give its schema"):
        parse("guardwrap: 1\nconstraint: {kind: json_schema, schema: {}, type: 'a:B'}\n")


def test_a_type_with_a_schema_of_ones_own() -> None:
    narrow = JSONSchema({"required": ["born"], "properties": {"x": {"maximum": 3}}}, type=Point)
    assert JSONSchema({"properties": {"x": {"maximum": 3}}}, type=Point).parse('{"x": 3, "y": 4}') == Point(3, 4)
    assert not narrow.accepts('{"x": 3, "y": 4}')
    assert not JSONSchema({}, type=Point).accepts('{"x": 3}')


def test_copies_keep_the_type() -> None:
    class Local(BaseModel):
        a: int

    for given in (Even, Local, list[Even], TypeAdapter(Even)):
        made = JSONSchema(given, where="fenced")
        copies = [copy.copy(made), copy.deepcopy(made)]
        if given is not Local:
            copies.append(pickle.loads(pickle.dumps(made)))
        for copied in copies:
            assert copied == made
            assert copied.accepts('```\n{"a": 1, "n": 3}\n```') is made.accepts('```\n{"a": 1, "n": 3}\n```')
        named = dataclasses.replace(made, name="named")
        assert named.adapter is not None
    with pytest.raises((AttributeError, pickle.PicklingError), match="Local"):
        pickle.dumps(JSONSchema(Local))
    one, other = JSONSchema(Local), JSONSchema(Local)
    assert one == one
    assert one != other, "another class may have the same name"


def test_a_validator_that_crashes_is_no_violation() -> None:
    with pytest.raises(CheckFailed, match="ZeroDivisionError") as caught:
        JSONSchema(Even).accepts('{"n": 13}')
    assert "13" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Callable[[int], int], "pydantic has no JSON Schema for .*; pass your own schema, and the type as type="),
        (type("Unknown", (), {}), "pydantic does not support the type Unknown"),
        (list["Nowhere"], "Nowhere"),  # type: ignore[name-defined]  # noqa: F821
    ],
    ids=str,
)
def test_types_that_have_no_schema(given: Any, message: str) -> None:
    with pytest.raises(ConstraintError, match=message) as caught:
        JSONSchema(given)
    assert len(str(caught.value).splitlines()) == 1


def test_a_type_twice_or_none() -> None:
    with pytest.raises(ConstraintError, match="not both"):
        JSONSchema(Point, type=Point)
    with pytest.raises(ConstraintError, match="type must be a type"):
        JSONSchema({}, type="Point")


def test_parse() -> None:
    assert JSONSchema({}, where="fenced").parse("A:\n```json\n[1, 2.5]\n```") == [1, 2.5]
    with pytest.raises(UsageError, match="does not hold for this text") as caught:
        JSONSchema(Even).parse('{"n": 33333}')
    assert "33333" not in str(caught.value)
    with pytest.raises(UsageError, match="on='completion'"):
        JSONSchema({}, on="lines").parse("1")


def test_which_part_parses() -> None:
    one, other, short = JSONSchema(Even), JSONSchema({}), Length(max=9)
    holding: list[Constraint] = [one, one & short, short & (one & short), All([one, short], name="a") & short]
    for constraint in holding:
        parse_ = parser_of(constraint)
        assert parse_ is not None
        assert parse_(Draw("", (), '{"n": 2}')) == Even(n=2)
    assert parser_of(one & one) is not None
    lines = JSONSchema({}, on="lines")
    for constraint in (short, one & other, one | other, ~one, lines, (one | short) & short):
        assert parser_of(constraint) is None
