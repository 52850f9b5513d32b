"""Rows that fill the placeholders of constraint files, on the command line and in Ray's workers."""

import json
from pathlib import Path

import pytest

from guardwrap.constraints.files import template
from guardwrap.constraints.files.constraint_file import load
from guardwrap.errors import SpecError
from guardwrap.integrations.ray.ray_job import Recipe, Worker
from guardwrap.integrations.ray.rows import numbered
from tests.cli.fixtures_commands import assert_one_line, generate, records, run
from tests.cli.test_prompt_overrides import B, written

pytestmark = pytest.mark.usefixtures("command_line")
ROWS = [
    {"prompt": "ab", "must": "a", "n": 2},
    {"prompt": "ab", "must": ["b", "c"], "n": 1},
    {"prompt": "ab", "must": "d", "n": 1, "constraint": B},
    {"prompt": "ab", "must": "a", "n": 2, "seed": 7},
]
RULE = """\
guardwrap: 1
fields: [must, n]
constraint:
  - {kind: keyword, words: "{must}", whole_words: false}
  - {kind: length, min: "{n}"}
"""


@pytest.fixture
def row_rule(tmp_path):
    (tmp_path / "row.yaml").write_text(RULE)
    return "row.yaml"


def test_each_row_fills_the_rule(model, has_a, row_rule):
    options = (model, "--jsonl", written(ROWS), "-c", row_rule, "--top-k", 0)
    result = generate(*options, "--seed", 1)
    assert result.exit_code == 0, result.output
    found = records(result.stdout)
    for row, record in zip(ROWS, found, strict=True):
        rule = load(row_rule).filled(row).constraint
        assert rule.accepts(record["texts"][0])
        assert {name: record[name] for name in row} == row
        if "constraint" not in row:
            assert record["report"]["constraint"] == rule.digest
    assert found[0]["report"]["constraint"] == found[3]["report"]["constraint"] != found[1]["report"]["constraint"]
    # A row gets the texts that it would get from a file with its values written out.
    Path("out.yaml").write_text(
        "guardwrap: 1\nconstraint:\n- {kind: keyword, words: a, whole_words: false}\n- {kind: length, min: 2}\n"
    )
    assert (
        records(generate(model, "ab", "-c", "out.yaml", "--top-k", 0, "--seed", 1).stdout)[0]["texts"]
        == found[0]["texts"]
    )
    both = generate(*options, "-c", has_a, "--seed", 1)
    assert all("a" in record["texts"][0] for record in records(both.stdout))


def test_a_run_is_resumed_with_the_same_values(model, row_rule, tmp_path):
    options = ("--jsonl", "p.jsonl", "-c", row_rule, "--top-k", 0, "-o", "out.jsonl")
    written(ROWS)
    assert generate(model, *options, "--seed", 1).exit_code == 0
    whole = (tmp_path / "out.jsonl").read_text()
    (tmp_path / "out.jsonl").write_text("".join(whole.splitlines(keepends=True)[:2]))
    result = generate(model, *options, "--resume")
    assert result.exit_code == 0, result.output
    assert [r["texts"] for r in records((tmp_path / "out.jsonl").read_text())] == [r["texts"] for r in records(whole)]
    written([ROWS[0], {**ROWS[1], "n": 0}, *ROWS[2:]])
    assert_one_line(generate(model, *options, "--resume"), "out.jsonl:2")
    written(ROWS)
    (tmp_path / row_rule).write_text(RULE.replace("min:", "max:"))
    assert_one_line(generate(model, *options, "--resume"), "out.jsonl:1: was made with ", "constraint")


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"n": 1}, ["p.jsonl:2: has no field 'must', which row.yaml requires"]),
        ({"must": "a", "N": 1}, ["p.jsonl:2: has no field 'n', which row.yaml requires"]),
        ({"must": "a", "n": "1"}, ["p.jsonl:2: row.yaml:5: constraint.1.min: must be a whole number, not '1'"]),
        ({"must": "", "n": 1}, ["p.jsonl:2: row.yaml:4: constraint.0"]),
        ({"must": {"kind": "regex"}, "n": 1}, ["p.jsonl:2: ", "'must' must be a text, a number"]),
        ({"must": "a", "n": 1, "temperature": 1}, ["p.jsonl:2: unknown option 'temperature'"]),
    ],
)
def test_errors_come_before_drawing(model, row_rule, row, says):
    result = generate(model, "--jsonl", written([ROWS[0], {"prompt": "ab", **row}]), "-c", row_rule)
    assert_one_line(result, *says)
    assert result.stdout == ""


def test_prompts_without_fields_are_an_error(model, row_rule):
    Path("p.txt").write_text("ab\n")
    for prompts in (["ab"], ["--file", "p.txt"]):
        assert_one_line(
            generate(model, *prompts, "-c", row_rule), "row.yaml requires the fields 'must', 'n'", "--jsonl"
        )
        assert_one_line(run("plan", *prompts, "-c", row_rule, "--model", model), "row.yaml requires the fields")


def test_a_field_may_have_the_name_of_an_option(model):
    Path("t.yaml").write_text('guardwrap: 1\nfields: [topk]\nconstraint: {kind: length, max: "{topk}"}\n')
    result = generate(model, "--jsonl", written([{"prompt": "ab", "topk": 3}]), "-c", "t.yaml")
    assert len(records(result.stdout)[0]["texts"][0]) <= 3


@pytest.mark.slow
def test_plan_fills_the_rule(model, row_rule):
    args = ("--model", model, "--max-new-tokens", 8, "--pilot", 20, "--json", "--seed", 1)
    result = run("plan", "--jsonl", written(ROWS), "-c", row_rule, *args)
    assert result.exit_code == 0, result.output
    assert len(json.loads(result.stdout)["forecasts"]) == 4


def test_workers_fill_the_rule(model, row_rule):
    from guardwrap import Budget
    from guardwrap.calls.prompts import PromptSource, own_of

    file = load(row_rule)
    read_own = own_of("p.jsonl", file.constraint, Budget())
    items = list(PromptSource(path=written(ROWS), jsonl=True, read_own=read_own).items())
    options = {"seed": 1, "max_new_tokens": 6, "top_k": 0}
    worker = Worker(Recipe(model, file, options=options))
    assert worker.broken is None
    for item, (record, ok) in zip(items, worker.records(list(numbered(iter(items)))), strict=True):
        assert ok
        assert file.filled(item.fields).constraint.accepts(record["texts"][0])


def test_check_uses_the_sample(row_rule):
    assert run("check", row_rule).exit_code == 0
    Path(row_rule).write_text(RULE + "examples: {fields: {must: a, n: 2}, accepts: [ab], rejects: [a, bb]}\n")
    assert run("check", row_rule).exit_code == 0
    Path(row_rule).write_text(RULE + "examples: {fields: {must: a, n: 2}, accepts: [a]}\n")
    assert run("check", row_rule).exit_code == 1


def test_negative_control_values_that_are_read_again(monkeypatch, row_rule):
    """Text that is searched for placeholders again, as by ``str.format`` in a loop, changes the rule."""
    file = load(row_rule)
    expected = file.filled({"must": "{n}", "n": 3}).constraint
    assert expected.accepts("x{n}y")
    once = template.ConstraintTemplate._inserted

    def twice(self, node, values, place=()):
        return once(self, once(self, node, values, place), values, place)

    monkeypatch.setattr(template.ConstraintTemplate, "_inserted", twice)
    template._filled.cache_clear()
    with pytest.raises(SpecError, match="must be a string, not int"):
        file.filled({"must": "{n}", "n": 3})
    template._filled.cache_clear()
