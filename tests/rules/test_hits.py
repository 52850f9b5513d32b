"""Finding what must not occur: hits in a prefix stay in every continuation."""

import pytest
import regex

from guardwrap import Secrets, Verdict
from guardwrap.documents.time_limits import TimeLimit, time_limit
from guardwrap.rules import secrets
from guardwrap.rules.hits import HitMonitor, HitRule, first_hit
from guardwrap.testing import check_constraint

NUMBER = HitRule(regex.compile(r"[0-9]++"), lambda run: "an even number" if int(run) % 2 == 0 else None)


def test_the_first_hit_is_named():
    assert first_hit([NUMBER], "3 and 14") == "an even number"
    assert first_hit([NUMBER], "3 and 15") is None
    assert first_hit([], "14") is None


def test_a_run_that_may_go_on_is_no_hit_yet():
    verdicts = [HitMonitor((NUMBER,)).read(text).verdict for text in ("14", "14 ", "14x", "15 ")]
    assert verdicts == [Verdict.UNDECIDED, Verdict.VIOLATED, Verdict.VIOLATED, Verdict.UNDECIDED]


def test_work_stops_at_the_time_limit():
    with pytest.raises(TimeLimit), time_limit(0.0):
        first_hit([NUMBER], "3 " * 10)


def test_negative_control_a_run_that_is_judged_too_early(monkeypatch):
    early = [rule._replace(tail=0) for rule in secrets._RULES]
    key = "AKIAIOSFODNN7EXAMPLE"
    check_constraint(Secrets(), [f"{key}B."])
    assert Secrets().verdict(key) is Verdict.UNDECIDED
    monkeypatch.setattr(secrets, "_RULES", tuple(early))
    with pytest.raises(AssertionError, match=r"unsound|depends on how"):
        check_constraint(Secrets(), [f"{key}B."])
