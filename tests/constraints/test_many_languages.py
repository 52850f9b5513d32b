"""Sentences and bans in many languages are judged as a reader would, by the cases in many_languages.yaml."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from guardwrap import Keyword
from guardwrap.constraints.sentences import sentences
from guardwrap.testing import check_constraint

Case = dict[str, Any]

CASES: dict[str, list[Case]] = yaml.safe_load(
    Path(__file__).with_name("many_languages.yaml").read_text(encoding="utf-8")
)
PAGE = (Path(__file__).parents[2] / "docs/rules.md").read_text(encoding="utf-8")
LEAST_RIGHT = 0.95
LANGUAGES = {"de", "fr", "es", "pt", "pl", "tr", "ru", "ar", "hi", "zh", "ja", "th", "ko"}


def text_of(case: Case) -> str:
    """Return the text of a case of ``sentences``."""
    return str(case.get("joined_by", " ").join(case["sentences"]))


def ban(case: Case) -> Keyword:
    return Keyword(**case["keyword"], match="none")


def is_split_right(case: Case) -> bool:
    return [sentence.strip() for sentence in sentences(text_of(case))] == case["sentences"]


def is_judged_right(case: Case) -> bool:
    rule = ban(case)
    return not any(map(rule.accepts, case["contains"])) and all(map(rule.accepts, case["lacks"]))


RIGHT: dict[str, Callable[[Case], bool]] = {"sentences": is_split_right, "bans": is_judged_right}


def unexpected(cases: Iterable[Case], right: dict[str, bool]) -> list[str]:
    """Return the ids of the cases that are right though marked wrong, or wrong though not marked."""
    return [case["id"] for case in cases if right[case["id"]] is case.get("wrong", False)]


@pytest.mark.parametrize("group", CASES)
def test_nearly_all_are_right_and_exactly_the_others_are_marked(group: str) -> None:
    cases = CASES[group]
    right = {case["id"]: RIGHT[group](case) for case in cases}
    assert unexpected(cases, right) == []
    turned = [{**case, "wrong": not case.get("wrong", False)} for case in cases]
    assert unexpected(turned, right) == [case["id"] for case in cases], "a mark too few or too many is noticed"
    assert len(right) == len(cases) >= 40
    assert {name.split("-")[0] for name in right} >= LANGUAGES
    assert sum(right.values()) >= LEAST_RIGHT * len(cases)


def test_negative_control_another_answer_is_wrong() -> None:
    first = CASES["sentences"][0]
    assert not is_split_right({**first, "sentences": [text_of(first)]})
    second = CASES["bans"][0]
    assert not is_judged_right({**second, "contains": second["lacks"], "lacks": second["contains"]})


@pytest.mark.slow
def test_lists_of_lemmas_know_nearly_all_forms_that_stemmers_know() -> None:
    stemmed = [case for case in CASES["bans"] if len(case["keyword"].get("stem", "")) > 2]
    listed = [{**case, "keyword": {**case["keyword"], "stem": case["id"].split("-")[0]}} for case in stemmed]
    wrong = [case["id"] for case in listed if not is_judged_right(case)]
    assert len(listed) == 15
    assert wrong == ["pl-3"]  # kota, of kot, is also a word of its own


@pytest.mark.parametrize("case", CASES["sentences"], ids=lambda case: case["id"])
def test_no_boundary_moves_while_a_text_grows(case: Case) -> None:
    text = text_of(case)
    whole = sentences(text)
    for end in range(len(text)):
        settled = sentences(text[:end])[:-1]
        assert settled == whole[: len(settled)]


@pytest.mark.parametrize("case", CASES["bans"], ids=lambda case: case["id"])
def test_verdicts_on_the_beginnings_are_sound(case: Case) -> None:
    check_constraint(ban(case), [*case["contains"], *case["lacks"]])


def test_the_page_lists_what_is_wrong() -> None:
    sections = dict(zip(CASES, PAGE.split("\n### ")[-2:], strict=True))
    for group, cases in CASES.items():
        listed = re.findall(r"^\| (\w\w-\d+) \|", sections[group], re.M)
        assert listed == [case["id"] for case in cases if case.get("wrong", False)]
