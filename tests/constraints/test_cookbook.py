"""Every row of docs/cookbook.md does what it says, by the texts in cookbook.yaml."""

import re
from pathlib import Path

import pytest
import yaml

from guardwrap.constraints import Constraint, dump, parse
from guardwrap.outcomes import Draw
from guardwrap.testing import check_constraint
from tests.fixtures_stand_in_models import use_stand_ins

PAGE = (Path(__file__).parents[2] / "docs/cookbook.md").read_text(encoding="utf-8")
TEXTS: dict[str, dict[str, list[str]]] = yaml.safe_load(
    Path(__file__).with_name("cookbook.yaml").read_text(encoding="utf-8")
)
SOURCE = "guardwrap: 1\nconstraint: "


def table_rows(page: str) -> list[tuple[str, str]]:
    """Return what each row wants and its line, without Markdown's escapes."""
    rows = re.findall(r"^\| (.+?) \| (`+) ?(.+?) ?\2 \|$", page, re.M)
    return [(re.sub(r"\\([*|])", r"\1", want), line.replace(r"\|", "|")) for want, _, line in rows]


ROWS = table_rows(PAGE)


@pytest.fixture(autouse=True)
def stand_in_models(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_ins(monkeypatch)


def constraint_of(line: str) -> Constraint:
    return parse(SOURCE + line + "\n").constraint


def misjudged(constraint: Constraint, texts: dict[str, list[str]]) -> list[str]:
    draws = [Draw("", (), text, finished=field != "rejects_cut_off") for field in texts for text in texts[field]]
    expected = [field == "accepts" for field in texts for _ in texts[field]]
    judged = constraint.check(draws)
    return [draw.text for draw, right, passed in zip(draws, expected, judged, strict=True) if passed is not right]


def incomplete(texts: dict[str, list[str]] | None) -> bool:
    return not texts or not texts.get("accepts") or not (texts.get("rejects") or texts.get("rejects_cut_off"))


def test_there_are_120_rows_and_each_has_texts() -> None:
    wants = [want for want, _ in ROWS]
    assert len(wants) >= 120
    assert sorted(wants) == sorted(TEXTS)
    assert len(PAGE.split("\n| ")) - 1 == len(ROWS) + PAGE.count("| I want |")
    assert [want for want in wants if incomplete(TEXTS.get(want))] == []


@pytest.mark.parametrize(("want", "line"), ROWS, ids=[want for want, _ in ROWS])
def test_a_row_is_right_and_its_verdicts_are_sound(want: str, line: str) -> None:
    constraint, texts = constraint_of(line), TEXTS[want]
    assert misjudged(constraint, texts) == []
    swapped = {"accepts": texts["rejects"], "rejects": texts["accepts"]}
    assert misjudged(constraint, swapped) == texts["rejects"] + texts["accepts"], "a wrong expectation is noticed"
    assert parse(dump(constraint)).constraint.digest == constraint.digest
    check_constraint(constraint, [text for field in texts.values() for text in field])


def test_a_row_without_texts_is_noticed() -> None:
    assert incomplete(None)
    assert incomplete({"accepts": ["a"], "rejects": []})
    assert incomplete({"accepts": [], "rejects": ["a"]})
    assert table_rows("| a | `{b: 'c\\|d'}` |\n| e | ```` {f: '```'} ```` |\n") == [
        ("a", "{b: 'c|d'}"),
        ("e", "{f: '```'}"),
    ]
