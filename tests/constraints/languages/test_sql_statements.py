"""SQL by sqlglot: statements, dialects, and what its log must not contain.

Covers ``constraints/languages/sql_statements.py``.
"""

from __future__ import annotations

import logging

import pytest

from guardwrap import Parses
from guardwrap.constraints.languages import sql_statements
from guardwrap.errors import ConstraintError
from guardwrap.outcomes import Draw
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
    sql_statements._silence.cache_clear()


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
