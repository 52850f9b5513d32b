"""SQL by sqlglot: statements, dialects, and what its log must not contain."""

from __future__ import annotations

import logging

import pytest

from guardwrap import Parses
from guardwrap.errors import CheckFailed, ConstraintError
from guardwrap.outcomes import Draw
from guardwrap.rules import parses
from guardwrap.support.time_limits import TimeLimit
from guardwrap.testing import check_constraint
from tests.constraints.fixtures_strategies import judged

sqlglot = pytest.importorskip("sqlglot")

VALID = [
    "SELECT a, count(*) FROM t WHERE b > 1 GROUP BY a",
    "select 1; select 2;",
    "WITH x AS (SELECT 1) SELECT * FROM x",
    "(SELECT 1) UNION SELECT 2",
    "INSERT INTO t (a) VALUES (1)",
    "UPDATE t SET a = 1 WHERE b",
    "DELETE FROM t",
    "CREATE TABLE t (a INT PRIMARY KEY)",
    "DROP TABLE t",
    "ALTER TABLE t ADD COLUMN b TEXT",
    "-- a comment\nSELECT 1",
]
INVALID = [
    *("", ";", "-- a comment", "hello", "hello world", "SELECT a FROM", "SELECT * FRM t x y", "SELECT 'a", "SELECT (1"),
    *("VACUUM everything now", "GRANT x y z", "1 + 1", "Here is the query: SELECT 1", "CREATE TABLE t (a INT"),
    *("SELECT 1; nonsense words", "```sql\nSELECT 1\n```"),
]


def test_statements_are_accepted():
    constraint = Parses("sql")
    assert [text for text in VALID if not constraint.accepts(text)] == []
    assert [text for text in INVALID if constraint.accepts(text) or not constraint.fault(text)] == []
    check_constraint(constraint, VALID + INVALID)


def test_dialects_differ():
    backticks = "SELECT `a` FROM `t`"
    assert Parses("sql", dialect="mysql").accepts(backticks)
    assert not Parses("sql", dialect="postgres").accepts(backticks)
    check_constraint(Parses("sql", dialect="mysql"), [backticks])
    with pytest.raises(ConstraintError, match="did you mean 'postgres'"):
        Parses("sql", dialect="postgre")
    with pytest.raises(ConstraintError, match="is not one of"):
        Parses("sql", dialect="mysql, normalization_strategy=lowercase")


def test_the_log_does_not_quote_checked_texts(caplog, monkeypatch):
    assert not Parses("sql").accepts("VACUUM secret")
    assert caplog.text == ""
    sqlglot.parse("VACUUM secret")  # the user's own call still warns
    assert "secret" in caplog.text
    caplog.clear()
    monkeypatch.setattr(logging.getLogger("sqlglot"), "filters", [])
    assert not Parses("sql").accepts("VACUUM secret")
    assert "secret" in caplog.text  # negative control: without the filter it is quoted
    parses._silence.cache_clear()


@pytest.mark.parametrize(
    "text",
    [
        "SELECT " + "(" * 29_000,
        "SELECT " + "f(" * 14_000,
        "SELECT " + "CASE WHEN " * 2_900,
        "SELECT " + "a OR " * 5_000 + "a",
        "SELECT " + "NOT " * 7_000 + "a",
        "SELECT " + "a," * 11_000 + "a",
        "SELECT 1 UNION " * 1_900 + "SELECT 1",
        "SELECT * FROM a" + " JOIN a" * 4_000,
        "SELECT 1;" * 3_000,
        "SELECT '" + "'" * 29_000,
        "/*" * 14_000,
        "$" * 29_000,
        "SELECT " + "CAST(" * 20 + "a" + " AS INT)" * 20,
        "SELECT " + "ARRAY<" * 4_000,
    ],
)
@pytest.mark.parametrize("dialect", [None, "postgres", "bigquery", "clickhouse"])
def test_hostile_texts_are_judged(dialect, text):
    assert judged(Parses("sql", dialect=dialect), Draw("", (), text)) in (True, False, None)


NESTED = {
    **{
        f"{name}(": ("SELECT ", f"{name}(", "1", ")")
        for name in ("DECIMAL", "VARCHAR", "TIMESTAMP", "DATE", "CHAR", "TIME", "ENUM", "OBJECT", "STRUCT", "f")
    },
    "types of three kinds": ("SELECT ", "ARRAY(STRUCT(DECIMAL(", "1", ")))"),
    "ARRAY[": ("SELECT ", "ARRAY[", "1", "]"),
    "ARRAY<": ("SELECT CAST(x AS ", "ARRAY<", "INT", ">"),
    "MAP<": ("SELECT CAST(x AS ", "MAP<INT, ", "INT", ">"),
    "an index": ("SELECT a", "[1]", "", ""),
    "a cast": ("SELECT ", "CAST(", "1", " AS DECIMAL(1))"),
    "a subquery": ("SELECT * FROM ", "(SELECT * FROM ", "t", ")"),
    "a CTE": ("", "WITH a AS (", "SELECT 1", ") SELECT 1"),
    "CASE": ("SELECT ", "CASE WHEN ", "1", " THEN 1 END"),
    "NOT": ("SELECT ", "NOT ", "1", ""),
    "brackets": ("SELECT ", "(", "1", ")"),
    "a lambda": ("SELECT f(", "x -> ", "1", ""),
    "a union": ("SELECT 1", " UNION SELECT 1", "", ""),
    "an interval": ("SELECT ", "INTERVAL ", "1", ""),
    "a join": ("SELECT * FROM ", "(a JOIN ", "b", ")"),
    "operators": ("SELECT 1", " + 1", "", ""),
}


def steps_of(monkeypatch, text, dialect=None):
    """Return how many steps the parser takes for a text, and the fault."""
    steps: list[None] = []
    monkeypatch.setattr(parses, "check_deadline", lambda: steps.append(None))
    fault = Parses("sql", dialect=dialect).fault(text)
    return len(steps), fault


@pytest.mark.parametrize(
    "dialect", [None, *(pytest.param(name, marks=pytest.mark.slow) for name in ("databricks", "athena"))]
)
@pytest.mark.parametrize("nested", NESTED)
def test_no_nesting_takes_more_than_its_steps(nested, dialect, monkeypatch):
    """18 types within each other took 8 s, and each further one twice as long."""
    begin, opening, middle, closing = NESTED[nested]
    monkeypatch.setattr(parses, "_STEPS", 2_000)
    for levels in (8, 24, 63, 400, 10_000):
        text = (begin + opening * levels + middle + closing * levels)[:29_000]
        steps, _ = steps_of(monkeypatch, text, dialect)
        assert steps <= 2_000 + 4 * len(text)


def test_negative_control_steps_that_are_not_counted(monkeypatch):
    text = "SELECT " + "DECIMAL(" * 14 + "1" + ")" * 14
    assert steps_of(monkeypatch, text)[1] == "is nested too deeply"
    monkeypatch.setattr(parses, "_STEPS", 10**9)
    steps, fault = steps_of(monkeypatch, text)
    assert (steps > 100_000, fault) == (True, "")


def test_what_people_write_is_not_too_deep(monkeypatch):
    """Strings and names with brackets are none, and comparisons are not types."""
    texts = [
        "SELECT " + " AND ".join(f"a < {n}" for n in range(100)),
        "SELECT " + ", ".join("'(' || \"[\"" for _ in range(100)),
        "SELECT " + ", ".join(f"x[{n}] IN (1, 2)" for n in range(100)),
        "CREATE TABLE t (" + ", ".join(f"c{n} ARRAY<ARRAY<INT>>" for n in range(100)) + ")",
        "SELECT DATE(TIMESTAMP(DATE(TIMESTAMP(CAST('2024-01-01' AS DATE)))))",
        "SELECT CAST(x AS STRUCT<a ARRAY<STRUCT<b INT64, c ARRAY<STRUCT<d STRING>>>>>)",
        "SELECT " + "DECIMAL(" * 10 + "1" + ")" * 10,
        "SELECT " + "coalesce(" * 40 + "a" + ", 1)" * 40,
    ]
    for text in texts:
        steps, fault = steps_of(monkeypatch, text, "bigquery" if "STRUCT<" in text else None)
        assert (text[:40], fault) == (text[:40], "")
        if "DECIMAL" not in text:
            assert steps < 20 * len(text)


def test_where_steps_cannot_be_counted_brackets_are(monkeypatch):
    """With sqlglot's compiled parsers, whose classes have no subclasses."""

    def compiled(parser):
        raise TypeError("interpreted classes cannot inherit from compiled")

    monkeypatch.setattr(parses, "_counting_class", compiled)
    deep = "SELECT " + "DECIMAL(" * 17 + "1" + ")" * 17
    assert Parses("sql").fault(deep) == "is nested too deeply"
    assert Parses("sql").accepts("SELECT " + "f(" * 15 + "1" + ")" * 15)


@pytest.mark.parametrize(
    ("text", "dialect"),
    [
        ("SELECT MAP(1)", "hive"),
        ("SELECT DATETIME_ADD()", "bigquery"),
        ("SELECT HASHBYTES(1)", "tsql"),
        ("SELECT LEVENSHTEIN_LESS_EQUAL()", "postgres"),
    ],
)
def test_a_text_at_which_the_parser_fails_is_rejected(text, dialect):
    rule = Parses("sql", dialect=dialect)
    assert rule.fault(text).startswith("the parser fails: ")
    assert "MAP" not in rule.fault(text)
    assert rule.check([Draw("", (), text), Draw("", (), "SELECT 1")]) == [False, True]


@pytest.mark.parametrize("error", [TimeLimit(1, shared=True), MemoryError()], ids=repr)
def test_what_says_nothing_about_the_text_is_no_rejection(monkeypatch, error):
    def broken(self, *arguments):
        raise error

    monkeypatch.setattr(sqlglot.parser.Parser, "_parse_statement", broken)
    with pytest.raises(CheckFailed):
        Parses("sql").accepts("SELECT 1")
