"""What a run shows of its failures: prompts without all their texts, and with ``--show-rejected`` rejected attempts."""

import dataclasses
import json

import pytest

from guardwrap import Budget, Draw, Regex, Report, Usage, constraint
from guardwrap.cli.generate_run import MOST, FailedPrompts, RejectedTexts
from guardwrap.engine.scheduling.request import RejectedAttempt
from guardwrap.outcomes import Closeness, Distribution
from tests.cli.fixtures_commands import NEVER, assert_one_line, generate, records

pytestmark = pytest.mark.usefixtures("command_line")

SEED = ("--seed", 1)


def attempt(text, number=0, prompt=0, rule=None, part="has a b"):
    rule = Regex("b", name="has a b") if rule is None else rule
    return RejectedAttempt(prompt, number, Draw("", (1,), text), part, None, True, rule)


def test_the_first_ones_of_each_prompt_are_printed(capsys):
    show = RejectedTexts(2, lambda prompt: f"in.txt:{prompt + 1}")
    for number in range(3):
        show(attempt("a\nc\x1b[2J", number))
    show(attempt("", 7, prompt=1))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "in.txt:1, attempt 1, rejected by 'has a b':",
        "    a",
        "    c\ufffd[2J",
        "in.txt:1, attempt 2, rejected by 'has a b':",
        "    a",
        "    c\ufffd[2J",
        "in.txt:2, attempt 8, rejected by 'has a b':",
        "    (no text)",
    ]


def test_a_crash_while_explaining_does_not_end_the_run(capsys):
    @constraint
    def bad(text):
        raise ValueError(text)

    RejectedTexts(1, lambda _: "argument 1")(attempt("a", rule=bad, part="bad"))
    assert capsys.readouterr().err == "argument 1, attempt 1, rejected by 'bad':\n    a\n"


def heads(result):
    return [line for line in result.stderr.splitlines() if ", rejected by " in line]


def test_rejected_texts_are_shown_on_request_only(model, never, has_a, tmp_path):
    plain = generate(model, "ab", "cd", "-c", never, "--max-attempts", 5, *SEED)
    assert (plain.exit_code, heads(plain)) == (3, [])
    shown = generate(model, "ab", "cd", "-c", never, "--max-attempts", 5, *SEED, "--show-rejected", 2)
    assert sorted(head.partition(", rejected")[0] for head in heads(shown)) == [
        "argument 1, attempt 1",
        "argument 1, attempt 2",
        "argument 2, attempt 1",
        "argument 2, attempt 2",
    ]
    assert all(head.endswith("rejected by 'has a digit':") for head in heads(shown))
    assert [each["texts"] for each in records(shown.stdout)] == [[], []]
    accepted = generate(model, "ab", "-c", has_a, *SEED, "--show-rejected", 100)
    (record,) = records(accepted.stdout)
    assert len(heads(accepted)) == sum(record["report"]["rejections"].values())
    assert not any("a" in line for line in accepted.stderr.splitlines() if line.startswith("    "))


def test_retries_show_theirs_too(model, never):
    options = ("ab", "-c", never, "--max-attempts", 2, "-o", "out.jsonl")
    assert generate(model, *options).exit_code == 3
    again = generate(model, *options, "--resume", "--retry-failed", "--show-rejected", 1)
    assert len(heads(again)) == 1


def test_with_ray_it_is_an_error(model, tmp_path):
    (tmp_path / "never.yaml").write_text(NEVER)
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n')
    options = ("--jsonl", "in.jsonl", "--ray", "auto", "-o", "out", "--show-rejected", 1)
    assert_one_line(generate(model, "-c", "never.yaml", *options), "--show-rejected does not work with --ray")
    assert_one_line(
        generate(model, "-c", "never.yaml", *options[:-2], "--keep-rejected", 1),
        "--keep-rejected does not work with --ray",
    )


@pytest.mark.parametrize(("flags", "told", "texts"), [([], 0, 0), (["-v"], 2, 0), (["-vv"], 2, 10)])
def test_v_logs_results_and_vv_rejected_texts_too(model, never, flags, told, texts):
    result = generate(model, "ab", "cd", "-c", never, "--max-attempts", 5, *SEED, *flags)
    lines = result.stderr.splitlines()
    results = [line for line in lines if line.startswith("INFO prompt ") and " is argument " not in line]
    assert len(results) == told
    assert len([line for line in lines if line.startswith("INFO prompt ")]) == 2 * told
    assert len([line for line in lines if line.startswith("DEBUG prompt ") and "rejected by" in line]) == texts
    assert all("'has a digit' rejected 5 of 5" in line for line in results)


def test_logs_name_the_place_of_each_prompt(model, never):
    options = ("-c", never, "--max-attempts", 2, "-o", "out.jsonl", "--resume")
    assert generate(model, "ab", *options).exit_code == 3
    lines = generate(model, "ab", "cd", *options, "-v").stderr.splitlines()
    assert [line for line in lines if " is argument " in line] == ["INFO prompt 1 is argument 2"]


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


def test_rejected_texts_are_kept_on_request(model, has_a, tmp_path):
    def lines(name, *options):
        done = generate(model, "ab", "cd", "-c", has_a, *SEED, "-n", 3, "-o", tmp_path / name, *options)
        assert (done.exit_code, heads(done)) == (0, [])
        return records((tmp_path / name).read_text())

    plain, kept = lines("plain"), lines("kept", "--keep-rejected", 2)
    assert [line["texts"] for line in kept] == [line["texts"] for line in plain]
    assert not any("rejected" in line for line in plain)
    for line in kept:
        assert len(line["rejected"]) == min(2, sum(line["report"]["rejections"].values()))
        assert not any("a" in text for text in line["rejected"])
    assert any(line["rejected"] for line in kept)
    (tmp_path / "kept").write_text(json.dumps(kept[0]) + "\n")
    lines("kept", "--keep-rejected", 2, "--resume")
    again = records((tmp_path / "kept").read_text())
    assert [(line["texts"], line["rejected"]) for line in again] == [(each["texts"], each["rejected"]) for each in kept]
