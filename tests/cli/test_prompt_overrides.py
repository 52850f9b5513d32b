"""Options of single prompts in JSON Lines: constraints, samplers, budgets and seeds."""

import json
from pathlib import Path
from typing import Any

import pytest

from guardwrap import GuardedGenerator, Regex
from tests.cli.fixtures_commands import assert_one_line, generate, records

pytestmark = pytest.mark.usefixtures("command_line")


def written(lines, name="p.jsonl"):
    Path(name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return name


B = {"kind": "regex", "pattern": "b"}
NO_C = {"kind": "not", "of": {"kind": "regex", "pattern": "c"}}
LINES: list[dict[str, Any]] = [
    {"prompt": "ab", "id": 1},
    {"prompt": "ab", "constraint": B, "meta": {"temperature": 3}},
    {"prompt": "cd", "constraints": [B, NO_C], "budget": {"max_attempts": 4321}},
    {"prompt": "ab", "constraint": {"file": "b.yaml"}, "seed": 7},
    {"prompt": "ef", "constraint": "catalogue:no-urls", "sampler": {"imh": {"steps": 2}}},
    {"messages": [{"role": "user", "content": "ab"}], "seed": 7, "constraint": None},
]


def test_each_line_has_its_own(model, has_a, tmp_path):
    (tmp_path / "b.yaml").write_text("guardwrap: 1\nconstraint: {kind: regex, pattern: b}\n")
    result = generate(model, "--jsonl", written(LINES), "-c", has_a, "--seed", 1, "--masked", "-n", 2, "--top-k", 0)
    assert result.exit_code == 0, result.output
    found = records(result.stdout)
    guarded = GuardedGenerator(model, Regex("a", name="has an a"), proposal=None)
    for line, record in zip(LINES, found, strict=True):
        assert {name: record[name] for name in line} == line  # the fields of the input are copied
        assert all("a" in text for text in record["texts"])
    for number in (1, 2, 3):
        assert all("b" in text for text in found[number]["texts"])
    assert not any("c" in text for text in found[2]["texts"])
    reports = [record["report"] for record in found]
    assert [report["sampler"] for report in reports] == ["rejection"] * 4 + ["imh", "rejection"]
    assert [report["seed"] for report in reports] == [1, 1, 1, 7, 1, 7]
    assert [report["budget"]["max_attempts"] for report in reports] == [1000, 1000, 4321, 1000, 1000, 1000]
    assert reports[1]["constraint"] == (guarded.constraint & Regex("b")).digest == reports[3]["constraint"]
    # The first line, which has no options, gets the texts of a run without the options of the others.
    plain = generate(model, "ab", "-c", has_a, "--seed", 1, "--masked", "-n", 2, "--top-k", 0)
    assert records(plain.stdout)[0]["texts"] == found[0]["texts"]
    # A line with a seed gets the same texts as it would alone.
    alone = generate(model, "--jsonl", written(LINES[3:4], "q.jsonl"), "-c", has_a, "--masked", "-n", 2, "--top-k", 0)
    assert records(alone.stdout)[0]["texts"] == found[3]["texts"]
    # Negative control: without its constraint, the texts of a line may have no b.
    without = [{"prompt": "ab"}] * 8
    assert not all(
        "b" in r["texts"][0] for r in records(generate(model, "--jsonl", written(without), "-c", has_a).stdout)
    )


@pytest.mark.slow
def test_lines_are_read_as_they_come_from_stdin(model, has_a):
    stdin = "".join(json.dumps(line) + "\n" for line in LINES[:3])
    result = generate(model, "--jsonl", "-", "-c", has_a, "--seed", 1, stdin=stdin)
    expected = generate(model, "--jsonl", written(LINES[:3]), "-c", has_a, "--seed", 1)
    assert result.exit_code == expected.exit_code == 0
    assert [r["texts"] for r in records(result.stdout)] == [r["texts"] for r in records(expected.stdout)]


@pytest.mark.slow
def test_a_run_of_such_lines_is_resumed(model, has_a, tmp_path):
    (tmp_path / "b.yaml").write_text("guardwrap: 1\nconstraint: {kind: regex, pattern: b}\n")
    options = ("--jsonl", "p.jsonl", "-c", has_a, "--masked", "--top-k", 0, "-o", "out.jsonl")
    written(LINES)
    assert generate(model, *options, "--seed", 1).exit_code == 0
    whole = (tmp_path / "out.jsonl").read_text()
    for done in (1, 4, 5):
        (tmp_path / "out.jsonl").write_text("".join(whole.splitlines(keepends=True)[:done]))
        result = generate(model, *options, "--resume")
        assert result.exit_code == 0, result.output
        again = records((tmp_path / "out.jsonl").read_text())
        assert [r["texts"] for r in again] == [r["texts"] for r in records(whole)]
    for number, change, says in (
        (1, {"constraint": NO_C}, "out.jsonl:2: was made with another constraint than p.jsonl:2 has"),
        (2, {"budget": {"max_attempts": 5}}, "out.jsonl:3: was made with another budget"),
        (3, {"seed": 8}, "out.jsonl:4: was made with another seed"),
        (4, {"sampler": {"imh": {"steps": 3}}}, "out.jsonl:5: was made with another sampler"),
    ):
        written([{**line, **(change if i == number else {})} for i, line in enumerate(LINES)])
        assert_one_line(generate(model, *options, "--resume"), says)
    written(LINES)
    (tmp_path / "b.yaml").write_text("guardwrap: 1\nconstraint: {kind: regex, pattern: bb}\n")
    assert_one_line(generate(model, *options, "--resume"), "out.jsonl:4: was made with other constraints")


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"constrains": B}, "unknown option 'constrains': did you mean \"constraints\"?; put your own data under"),
        ({"Constraint": B}, 'did you mean "constraint"?'),
        ({"temperature": 1.0}, "unknown option 'temperature': it is the same for all lines: give --temperature"),
        ({"max_new_tokens": 5}, "give --max-new-tokens"),
        ({"max-new-tokens": 5}, "give --max-new-tokens"),
        ({"top_k": 5}, "give --top-k"),
        ({"topk": 5}, "give --top-k"),
        ({"do_sample": True}, "it is not an option of this command"),
        ({"max_attempts": 5}, '"budget": {"max_attempts": ...}'),
        ({"constraint": {"kind": "regx"}}, "constraint.kind: unknown kind 'regx' (did you mean 'regex'?)"),
        ({"constraints": [B, {"kind": "regex", "patern": "a"}]}, "constraints.1.patern: unknown field 'patern'"),
        ({"constraint": B, "constraints": [B]}, "not both"),
        ({"constraint": "catalogue:no-url"}, "unknown catalogue entry 'no-url' (did you mean 'no-urls'?)"),
        ({"constraint": {"file": "nowhere.yaml"}}, "there is no file 'nowhere.yaml'"),
        ({"constraint": {"file": "/etc/hosts"}}, "is an absolute path"),
        ({"constraint": {"kind": "not", "of": {"kind": "regex", "pattern": "a"}}}, "no text can satisfy both"),
        ({"constraint": {"kind": "python", "function": "os:system"}}, "which a line of prompts cannot run"),
        ({"constraint": {"file": "code.yaml"}}, "names Python code"),
        (
            {"budget": {"max_atempts": 5}},
            "budget.max_atempts: unknown field 'max_atempts' (did you mean 'max_attempts'?)",
        ),
        ({"budget": {"max_attempts": 0}}, "budget"),
        ({"budget": 5}, "budget"),
        ({"seed": -1}, "seed: -1 is not a whole number"),
        ({"seed": True}, "seed: True is not a whole number"),
        ({"seed": 1.0}, "seed: 1.0 is not a whole number"),
        ({"sampler": "qsr"}, "unknown sampler 'qsr' (did you mean 'qrs'?)"),
        ({"sampler": {"qrs": {"pilt": 3}}}, "sampler.qrs.pilt: unknown field"),
    ],
)
def test_what_is_wrong_with_a_line_is_found_before_the_work_begins(has_a, tmp_path, more, says):
    (tmp_path / "code.yaml").write_text("guardwrap: 1\nconstraint: {kind: python, function: 'os:system'}\n")
    written([{"prompt": "ab"}, {"prompt": "ab", **more}])
    for options in ((), ("--allow-code",)):  # the option allows code in files of -c only
        assert_one_line(generate("no-model", "--jsonl", "p.jsonl", "-c", has_a, *options), "p.jsonl:2: ", says)


@pytest.mark.parametrize(
    "name", ["id", "meta", "sample", "topic", "contains", "constraint_id", "label", "model", "text"]
)
def test_other_fields_are_data(model, has_a, name):
    (record,) = records(generate(model, "--jsonl", written([{"prompt": "ab", name: {"x": 1}}]), "-c", has_a).stdout)
    assert record[name] == {"x": 1}


@pytest.mark.parametrize("several", [False, True])
def test_a_setting_that_rules_all_texts_out_is_named_in_options(model, several):
    """Both where a text is shown and where records are written, and before the advice."""
    Path("rule.yaml").write_text("guardwrap: 1\nconstraint: {kind: regex, pattern: '[^a-z]+', match: fullmatch}\n")
    given = ("--jsonl", written([{"prompt": "ab"}])) if several else ("ab",)
    result = generate(model, *given, "-c", "rule.yaml", "--top-k", 1)
    told = " ".join((result.stderr + result.stdout).split())
    assert "--top-k 1 leaves out all possible first tokens, which have probability " in told
    assert "pass --top-k 0, weaken the constraint" in told
