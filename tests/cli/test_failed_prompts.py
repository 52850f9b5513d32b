"""The summary of prompts without all their texts, by rule and by prompt."""

import dataclasses

from guardwrap import Budget, Report, Usage
from guardwrap.cli.generate_run import MOST, FailedPrompts
from guardwrap.outcomes import Closeness, Distribution

REPORT = Report(
    distribution=Distribution(Closeness.NOTHING),
    sampler="rejection",
    seed=1,
    requested=2,
    accepted=0,
    ended="max_attempts",
    usage=Usage(attempts=10),
    budget=Budget(),
    acceptance=None,
    rejected={"short": 3, "has a digit": 7},
    constraint="",
)


def test_prompts_are_grouped_by_the_rule_that_rejected_most():
    """And listed in input order, whichever ended first."""
    failed = FailedPrompts()
    failed.add(1, "in.txt:1", dataclasses.replace(REPORT, rejected={"short": 9, "has a digit": 1}))
    failed.add(5, "in.txt:5", REPORT)
    failed.add(2, "in.txt:2", dataclasses.replace(REPORT, accepted=1))
    failed.add(7, "in.txt:7", dataclasses.replace(REPORT, rejected={}, ended="max_seconds", usage=Usage()))
    assert failed.lines() == [
        "  'has a digit' rejected 14 of 20 attempts: in.txt:2 (1 of 2 texts), in.txt:5 (0 of 2 texts)",
        "  'short' rejected 9 of 10 attempts: in.txt:1 (0 of 2 texts)",
        "  no rule (ended by max_seconds) rejected 0 of 0 attempts: in.txt:7 (0 of 2 texts)",
    ]


def test_a_single_prompt_needs_no_summary_and_a_long_one_is_cut():
    failed = FailedPrompts()
    assert failed.lines() == []
    failed.add(1, "in.txt:1", REPORT)
    assert failed.lines() == []
    for number in range(2, MOST + 4):
        failed.add(number, f"in.txt:{number}", REPORT)
    (line,) = failed.lines()
    assert line.endswith(f"in.txt:{MOST} (0 of 2 texts) and 3 more")
    for number in range(MOST + 1):
        failed.add(99, "in.txt:99", dataclasses.replace(REPORT, rejected={f"rule {number:02}": 10}))
    lines = failed.lines()
    assert len(lines) == MOST + 1
    assert lines[0].startswith("  'has a digit'")
    assert lines[-1] == "  and 2 more rules"
