"""Texts that satisfy the rules of instruction sets, which ``make test-instructions`` changes and compares."""

import runpy
from pathlib import Path

import pytest
import yaml

from guardwrap.constraints import Constraint, parse

FOLDER = Path(__file__).parents[2] / "benchmarks/instructions"
RULES = {row["id"]: row["rule"] for row in yaml.safe_load((FOLDER / "rules.yaml").read_text(encoding="utf-8"))}
SATISFYING: dict[str, list[str]] = runpy.run_path(str(FOLDER / "expected.py"))["SATISFYING"]


def rule_of(name: str) -> Constraint:
    document = {"guardwrap": 1, "constraint": RULES[name]}
    return parse(yaml.safe_dump(document, allow_unicode=True, width=10_000)).constraint


@pytest.mark.parametrize("name", SATISFYING)
def test_rules_tell_these_texts_from_others(name: str) -> None:
    rule = rule_of(name)
    assert any(map(rule.accepts, SATISFYING[name]))
    assert not all(
        map(rule.accepts, ["Apple, sstring zzz (a.\n\n\n'x' 7 7 7 \"", 'It is. It is? "', "*-*", "a7. a7. a7. b?"])
    )
