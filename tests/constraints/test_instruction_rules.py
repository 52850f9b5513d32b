"""The rules in benchmarks/instructions/rules.yaml can be read, and their verdicts are sound."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from guardwrap.constraints import Constraint, dump, parse
from guardwrap.constraints.files.constraint_data import kinds
from guardwrap.testing import check_constraint

ROWS: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parents[2] / "benchmarks/instructions/rules.yaml").read_text(encoding="utf-8")
)
NEEDED = {"ifeval": 25, "ifbench": 45, "ifrlvr": 29}
TEXTS = [
    'Tea, TEA! I like tea. Is "tea (a [cup])" good? It is... 12 × 3 = 36, 3-4.\n\n***\n- a 😀\n  * b\n',
    "Write a line about tea. ****** Write a line about tea.",
    "Zimbabwe\nZambia\nUganda\n * level *Anna*\n<<title>> P.S. My answer is yes.",
]


def rule_of(row: dict[str, Any]) -> Constraint:
    document = {"guardwrap": 1, "constraint": row["rule"]}
    return parse(yaml.safe_dump(document, allow_unicode=True, width=10_000)).constraint


def names(rule: Any) -> set[str]:
    """Return the kinds in a rule, at any depth."""
    if isinstance(rule, list):
        return {name for part in rule for name in names(part)}
    if isinstance(rule, dict):
        inner = {name for part in rule.values() for name in names(part)}
        return inner | ({rule["kind"]} if "kind" in rule else set())
    return set()


def test_each_set_has_enough_rules() -> None:
    keys = [(row["set"], row["id"]) for row in ROWS]
    assert len({*keys}) == len(keys)
    assert {name: sum(row["set"] == name for row in ROWS) >= least for name, least in NEEDED.items()} == dict.fromkeys(
        NEEDED, True
    )
    assert all({"set", "id", "kwargs", "rule"} <= {*row} <= {"set", "id", "kwargs", "rule", "note"} for row in ROWS)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['set']}-{row['id']}")
def test_rules_can_be_read_and_are_sound(row: dict[str, Any]) -> None:
    if unknown := names(row["rule"]) - {*kinds()}:
        pytest.skip(f"there is no kind {unknown}")
    rule = rule_of(row)
    assert parse(dump(rule)).constraint.digest == rule.digest
    check_constraint(rule, TEXTS)
