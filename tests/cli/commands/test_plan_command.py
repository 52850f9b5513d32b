"""``guardwrap plan``."""

import inspect
import json
import re

import pytest

from guardwrap import GuardedGenerator
from guardwrap.cli.commands.plan_command import plan as command
from guardwrap.cli.commands.plan_command import switched_to
from guardwrap.cli.shared import in_flags
from guardwrap.outcomes import ITSELF, Origin, Shape
from tests.cli.fixtures_commands import NEVER, assert_one_line, run

pytestmark = pytest.mark.usefixtures("command_line")


@pytest.mark.slow
def test_plan(model, has_a, tmp_path):
    args = [
        "plan",
        "ab",
        "cd",
        "-c",
        has_a,
        "--model",
        model,
        "--max-new-tokens",
        8,
        "--pilot",
        40,
        "-n",
        3,
        "--seed",
        1,
    ]
    result = run(*args)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("recommended: ") == 1
    assert "--sampler " in result.stdout
    assert "sampler=" not in result.stdout
    assert "inf" not in result.stdout
    assert (
        "(a twist was not tried, as it takes hundreds of attempts to learn; pass --pilot 64 or more)" in result.stdout
    )
    assert "other prompts" not in result.stdout
    (tmp_path / "prompts").write_text("ab\n" * 12)
    some = run("plan", "--file", tmp_path / "prompts", *args[3:])
    assert some.stdout.count(f"3 texts for {tmp_path / 'prompts'}:") == 8
    assert "4 other prompts were not tried; if they are like these, all prompts take " in some.stdout.splitlines()[-1]
    (tmp_path / "never.yaml").write_text(NEVER)
    never = run(*args[:4], tmp_path / "never.yaml", *args[5:])
    assert "inf" not in never.stdout, "bounds where nothing was accepted"
    assert "at least" in never.stdout
    plan = json.loads(run(*args, "--json", "--proposal", "a{prompt}", "--top-k", 0).stdout)
    assert [forecast["prompt"] for forecast in plan["forecasts"]] == ["ab", "cd"]
    assert all(forecast["texts"] == 3 and forecast["pilot"] == 40 for forecast in plan["forecasts"])
    assert plan["sampler"] in ("qrs", "rejection")
    assert_one_line(run("plan", "ab", "-c", has_a, "--model", model, "--proposal", "a"), "{prompt}")


@pytest.mark.slow
def test_lines_have_rules_and_budgets_of_their_own(model, has_a, tmp_path):
    never = {"prompt": "cd", "constraint": {"kind": "regex", "pattern": "[0-9]"}}
    few = {"prompt": "ab", "budget": {"max_attempts": 1}, "sampler": "imh", "id": 7}
    lines = tmp_path / "in.jsonl"
    lines.write_text("".join(json.dumps(line) + "\n" for line in [{"prompt": "ab"}, never, few]))
    args = ["-c", has_a, "--model", model, "--max-new-tokens", 8, "--pilot", 40, "--seed", 1]
    told = run("plan", "--jsonl", lines, *args)
    assert told.exit_code == 0, told.output
    assert told.stdout.count("  acceptance   below ") == 1
    assert (
        f"recommended: a larger pilot first, --pilot 256: {lines}:2 had no text in 40 attempts, so at most "
        in told.stdout
    )
    assert "(this plan itself took " in told.stdout
    easy, hard, short = json.loads(run("plan", "--jsonl", lines, *args, "--json").stdout)["forecasts"]
    assert easy["acceptance"]["value"] > hard["acceptance"]["value"] == 0
    assert easy["suffices"] > 0.99 > short["suffices"]
    lines.write_text('{"prompt": "ab", "constrains": []}\n')
    assert_one_line(run("plan", "--jsonl", lines, *args), "unknown option 'constrains': did you mean \"constraints\"?")


@pytest.mark.slow
def test_of_many_lines_each_rule_and_budget_is_tried(model, has_a, tmp_path):
    """The first lines alone would not show a prompt that gets no text."""
    easy = {"prompt": "ab"}
    never = {"prompt": "cd", "constraint": {"kind": "regex", "pattern": "[0-9]"}}
    few = {"prompt": "ef", "budget": {"max_attempts": 1}}
    lines = tmp_path / "in.jsonl"
    lines.write_text("".join(json.dumps(line) + "\n" for line in [*[easy] * 20, never, *[few] * 3, easy, never]))
    args = ["plan", "--jsonl", lines, "-c", has_a, "--model", model, "--max-new-tokens", 8, "--pilot", 20, "--seed", 1]
    told = run(*args).stdout
    prompts = [line.split(" for ")[1] for line in told.splitlines() if line.startswith("1 text for ")]
    places = [f"{lines}:{number}" for number in (1, 2, 3, 4, 5, 6, 21, 22)]
    assert prompts == [f"{at}: {of}" for at, of in zip(places, [*["'ab'"] * 6, "'cd'", "'ef'"], strict=True)]
    assert f": {lines}:21 had no text in 20 attempts" in told
    assert told.splitlines()[-1] == "18 other prompts were not tried", "one kind has no accepted text"
    # Their cost is estimated from prompts of the same kind.
    lines.write_text("".join(json.dumps(line) + "\n" for line in [*[easy] * 10, *[few] * 2]))
    told = run(*args).stdout
    forecasts = json.loads(run(*args, "--json").stdout)["forecasts"]
    simple, hard = (sum(each["attempts"]["value"] for each in some) for some in (forecasts[:7], forecasts[7:]))
    assert told.splitlines()[-1] == (
        "4 other prompts were not tried; if prompts with the same constraint and budget are alike, all prompts take "
        f"{simple / 7 * 10 + hard * 2:,.0f} attempts"
    )
    # Prompts of kinds that were not tried are counted separately.
    kinds = [{"prompt": "ab", "budget": {"max_attempts": 10 + i}} for i in range(10)]
    lines.write_text("".join(json.dumps(line) + "\n" for line in [*kinds, kinds[0]]))
    told = run(*args).stdout.splitlines()[-1]
    assert told.startswith(
        "3 other prompts were not tried, 2 of them with a constraint, sampler or budget that no tried prompt has; if "
        "prompts with the same constraint and budget are alike, all prompts except those 2 take "
    )


@pytest.mark.slow
def test_advice_on_lines_of_a_file_names_them(model, has_a, tmp_path):
    """Whatever the proposal quotes."""
    lines = tmp_path / "in.jsonl"
    never = {"prompt": "ab", "constraint": {"kind": "regex", "pattern": "zz"}}
    lines.write_text("".join(json.dumps(line) + "\n" for line in ({"prompt": "ab"}, never)))
    args = ["plan", "--jsonl", lines, "-c", has_a, "--model", model, "--max-new-tokens", 4, "--pilot", 40, "--seed", 1]
    told = run(*args, "--proposal", "As prompt 2 had no text: {prompt}").stdout
    assert f"pilot 256: {lines}:2 had no text in 40 attempts" in told
    lines.write_text("".join(json.dumps(line) + "\n" for line in (never, never)))
    assert f"2 of 2 prompts (the first is {lines}:1) had no text in 40 attempts" in run(*args).stdout


@pytest.mark.slow
def test_a_sampler_is_planned_for_by_its_name(model, has_a):
    args = ["plan", "ab", "-c", has_a, "--model", model, "--max-new-tokens", 8, "--pilot", 40, "--seed", 1]
    args += ["--proposal", "a{prompt}", "--top-k", 0]
    for name in ("rejection", "qrs"):
        assert json.loads(run(*args, "--sampler", name, "--json").stdout)["sampler"] == name
    assert_one_line(run(*args, "--sampler", "qsr"), "unknown sampler 'qsr' (did you mean 'qrs'?)")
    assert_one_line(run(*args, "--sampler", "imh"), "a plan can estimate only rejection and qrs, not imh")


@pytest.mark.slow
def test_options_of_the_run(model, has_a):
    """The plan uses the proposal, settings and limits of the run."""
    args = ["plan", "ab", "-c", has_a, "--model", model, "--max-new-tokens", 8, "--pilot", 40, "--seed", 1]
    usual = json.loads(run(*args, "--json").stdout)
    assert [way["source"] for way in usual["ways"]] == ["the model itself", "the model itself, masked"]
    masked = json.loads(run(*args, "--masked", "--top-k", 0, "--json").stdout)
    assert masked["ways"][0]["source"] == "the model itself, masked"
    narrow = json.loads(run(*args, "--top-p", 0.01, "--json").stdout)
    assert narrow["forecasts"][0]["acceptance"] != usual["forecasts"][0]["acceptance"]
    assert run(*args, "--batch-size", 1).exit_code == 0
    for name, unit in (("attempts", "attempts"), ("tokens", "tokens"), ("computed-tokens", "computed tokens")):
        told = run(*args, f"--max-{name}", 1).stdout
        limit = f"1 {unit}" if name == "attempts" else f"1000 attempts and 1 {unit}"
        assert f"a budget of {limit} is enough with probability " in told.replace(",", "")
    assert "and 0.5 seconds is enough with probability above 0.99" in run(*args, "--max-seconds", 0.5).stdout
    assert_one_line(run(*args, "--proposal", "a{prompt}", "--sampler", "qrs"), "--top-k 0, or --sampler rejection")


@pytest.mark.parametrize(
    ("used", "itself", "masked"),
    [
        ([], " with --no-proposal", ", with --masked"),
        (["--masked"], " without --masked, with", ", with --masked"),
        (["--adapter", "--masked"], " without --adapter and --masked, with", ", without --adapter, with --masked"),
    ],
)
def test_advice_can_be_followed_with_the_options_that_are_given(used, itself, masked):
    assert switched_to(ITSELF, used) == itself
    assert switched_to(Origin(shape=Shape.MASKED), used) == masked
    assert switched_to(Origin("the prompt 'x'", Shape.MASKED), used) == " with"


@pytest.mark.slow
def test_a_sampler_that_the_run_would_not_take_is_said_to_be_named(model, has_a):
    args = ["plan", "ab", "-c", has_a, "--model", model, "--max-new-tokens", 8, "--pilot", 40, "--seed", 1]
    args += ["--masked", "--top-k", 0]
    told = run(*args).stdout
    assert told.splitlines()[1] == (
        "(planned for --sampler qrs: pass it to the run as well; otherwise texts are not distributed as g)"
    )
    assert told.startswith("recommended: ")
    for named in (["--sampler", "qrs"], ["--sampler", "rejection"]):
        assert "planned for" not in run(*args, *named).stdout
    both = run("generate", "ab", "-c", has_a, "--model", model, "--masked", "--no-proposal")
    assert_one_line(both, "--no-proposal draws from the model itself; leave out either --no-proposal or --masked")


@pytest.mark.parametrize(
    ("advice", "said"),
    [
        ("sampler='rejection' and the budget as it is", "--sampler rejection and the budget as it is"),
        ("sampler='qrs' and Budget(max_attempts=80) without max_tokens", "--sampler qrs and --max-attempts 80 without"),
        ("sampler='qrs' and Budget(max_attempts=80), enough", "--sampler qrs and --max-attempts 80, enough"),
        ("few attempts gave a text, so pilot=256 would give", "few attempts gave a text, so --pilot 256 would give"),
        ("top_k keeps the proposal from texts; pass top_k=0, or sampler='rejection'", "--top-k 0, or --sampler rej"),
        ("allow the model more texts: top_k=0, a larger max_new_tokens", "--top-k 0, a larger --max-new-tokens"),
        ("top_p=0.9 leaves out all possible first tokens; pass top_p=1.0, weaken", "pass --top-p 1.0, weaken"),
        ("hint at it (proposal=Prompt(...)), train", "hint at it (--proposal '... {prompt}'), train"),
        (
            "masked, with --masked sampler='qrs', with Budget(max_attempts=9, max_computed_tokens=7)",
            "masked, with --masked --sampler qrs, with --max-attempts 9 --max-computed-tokens 7",
        ),
    ],
)
def test_advice_names_options_of_the_command(advice, said):
    told = in_flags(advice)
    assert said in told
    assert not re.search(r"\w=|Budget|Prompt\(", told)


def test_its_pilot_is_that_of_python():
    assert inspect.signature(command).parameters["pilot"].default is None
    assert inspect.signature(GuardedGenerator.plan).parameters["pilot"].default is None
