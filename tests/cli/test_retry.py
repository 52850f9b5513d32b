"""``guardwrap generate --resume --retry-failed``, and its messages."""

import json
import os
import re
from pathlib import Path

import pytest

from guardwrap.calls.records import record_of
from guardwrap.cli import generate_run
from tests.cli.fixtures_commands import assert_one_line, generate, records

pytestmark = pytest.mark.usefixtures("command_line")

RARE = "guardwrap: 1\nconstraint: {kind: regex, name: begins with a, pattern: '^a'}\nbudget: {max_attempts: 25}\n"
PROMPTS = ("ab", "cd", "ef", "gh", "ij", "kl", "mn", "op")
OPTIONS = (*PROMPTS, "-c", "rare.yaml", "-o", "out.jsonl")


@pytest.fixture(scope="module")
def first_run(model, tmp_path_factory):
    """The lines of a run to the end with some prompts that get no text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("first"))
        Path("rare.yaml").write_text(RARE)
        result = generate(model, *OPTIONS, "--seed", 1)
        assert result.exit_code == 3
        assert "retry them with --resume --retry-failed, with another --seed or without one" in result.stderr
        return Path("out.jsonl").read_text()


@pytest.fixture
def some_failed(first_run):
    """Write the lines of that run, and return them with the numbers of those that failed."""
    Path("rare.yaml").write_text(RARE)
    Path("out.jsonl").write_text(first_run)
    found = first_run.splitlines(keepends=True)
    failed = [number for number, line in enumerate(found) if not json.loads(line)["ok"]]
    assert 2 <= len(failed) <= len(found) - 2
    return found, failed


def test_what_failed_is_drawn_again_and_nothing_else(model, some_failed, monkeypatch):
    before, failed = some_failed
    mode = Path("out.jsonl").stat().st_mode
    result = generate(model, *OPTIONS, "--resume", "--retry-failed", "--max-attempts", 2000)
    assert result.exit_code == 0, result.output
    after = Path("out.jsonl").read_text().splitlines(keepends=True)
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        assert (old == new) is (number not in failed)
        record = json.loads(new)
        assert record["prompt"] == PROMPTS[number]
        assert record["ok"]
        if number in failed:
            assert record["report"]["settings"]["drawn_again"] == 1
            assert record["report"]["seed"] != 1
    assert Path("out.jsonl").stat().st_mode == mode
    assert os.listdir() == sorted(os.listdir()) or "out.jsonl.new" not in os.listdir()
    # No prompt is left, so no model is loaded.
    (ready,) = {Path("out.jsonl").read_text()}
    assert (
        generate("no-model", *OPTIONS, "--resume", "--retry-failed", "--max-attempts", 2000).exit_code == 2
    )  # settings
    assert generate(model, *OPTIONS, "--resume", "--retry-failed").exit_code == 0
    assert Path("out.jsonl").read_text() == ready


@pytest.mark.slow
def test_a_line_is_not_given_up_for_one_with_fewer_texts(model):
    """With a smaller budget most new lines have fewer texts; the better one of each stays."""
    Path("rare.yaml").write_text(RARE)
    many = (*OPTIONS, "-n", 20)
    assert generate(model, *many, "--seed", 1, "--max-attempts", 60).exit_code == 3
    before = records(Path("out.jsonl").read_text())
    for seed in (2, 3):
        result = generate(model, *many, "--resume", "--retry-failed", "--max-attempts", 30, "--seed", seed)
        assert result.exit_code == 3, result.output
        after = records(Path("out.jsonl").read_text())
        assert all(len(new["texts"]) >= len(old["texts"]) for old, new in zip(before, after, strict=True))
        assert any(old == new for old, new in zip(before, after, strict=True))
        before = after


def test_what_is_short_still_is_told_by_its_line_and_its_reason(model, some_failed):
    """After a retry as after the first run; a resumed run that generates nothing does not know the reason."""
    told = generate(model, *OPTIONS, "--resume", "--retry-failed", "--max-attempts", 1, "--seed", 2).stderr
    _, failed = some_failed
    assert f"did not get all their texts; the first, argument {failed[0] + 1}: ended by max_attempts; " in told
    assert told.count("raise the budget") == 1
    before, _ = some_failed
    Path("out.jsonl").write_text("".join(before[: failed[0] + 1]))
    told = generate(model, *OPTIONS, "--resume").stderr
    assert f"; the first of this run, argument {failed[1] + 1}: ended by max_attempts; " in told
    told = generate(model, *OPTIONS, "--resume").stderr
    assert "did not get all their texts; raise the budget; retry them with --resume --retry-failed" in told


@pytest.mark.slow
def test_a_budget_that_is_named_replaces_that_of_lines(model):
    Path("rare.yaml").write_text(RARE)
    lines = [{"prompt": prompt, "budget": {"max_attempts": 15}} for prompt in PROMPTS]
    Path("p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ("--jsonl", "p.jsonl", "-c", "rare.yaml", "-o", "out.jsonl")
    assert generate(model, *options, "--seed", 1).exit_code == 3
    again = ("--resume", "--retry-failed")
    kept = Path("out.jsonl").read_text()
    assert generate(model, *options, *again, "--seed", 2).exit_code == 3, "a line's own stays where none is named"
    assert generate(model, *options, *again, "--seed", 3, "--max-attempts", 2000).exit_code == 0
    made = records(Path("out.jsonl").read_text())
    assert {record["report"]["budget"]["max_attempts"] for record in made} == {15, 2000}
    assert [record["budget"] for record in made] == [line["budget"] for line in lines]
    # Or the lines themselves have another one.
    Path("out.jsonl").write_text(kept)
    Path("p.jsonl").write_text("".join(json.dumps({**line, "budget": {"max_attempts": 2000}}) + "\n" for line in lines))
    assert_one_line(generate(model, *options, "--resume"), "was made with another budget than p.jsonl:")
    assert generate(model, *options, *again, "--seed", 3).exit_code == 0
    assert generate(model, *options, "--resume").exit_code == 2, "lines that were not retried have the old one"


@pytest.mark.slow
def test_the_texts_are_those_of_the_seed_that_is_given(model, some_failed):
    _, failed = some_failed
    more = ("--resume", "--retry-failed", "--max-attempts", 2000, "--seed", 9)
    assert generate(model, *OPTIONS, *more).exit_code == 0
    again = records(Path("out.jsonl").read_text())
    whole = records(generate(model, *OPTIONS[:-2], "--seed", 9, "--max-attempts", 2000).stdout)
    for number in failed:
        assert again[number]["texts"] == whole[number]["texts"]
        assert again[number]["report"]["seed"] == 9
    # Negative control: the other lines have different ones.
    assert any(again[i]["texts"] != whole[i]["texts"] for i in range(len(PROMPTS)) if i not in failed)


def test_what_fails_again_is_counted(model, some_failed):
    _, failed = some_failed
    for times in (1, 2):
        Path("rare.yaml").write_text(RARE)
        result = generate(model, *OPTIONS, "--resume", "--retry-failed", "--max-attempts", 1, "--seed", 1000 + times)
        now = records(Path("out.jsonl").read_text())
        short = [number for number, record in enumerate(now) if not record["ok"]]
        assert set(short) <= set(failed)
        if not short:
            pytest.fail("this seed has luck; take another one")
        assert result.exit_code == 3
        assert f"{len(short)} of {len(PROMPTS)} prompts did not get all their texts" in result.stderr
        assert {now[number]["report"]["settings"]["drawn_again"] for number in short} == {times}
    # Retried lines do not prevent a plain --resume.
    assert generate(model, *OPTIONS, "--resume").exit_code == 3


def test_then_the_run_goes_on(model, some_failed):
    before, failed = some_failed
    cut = failed[1] + 1
    Path("out.jsonl").write_text("".join(before[:cut]) + before[cut][:20])
    result = generate(model, *OPTIONS, "--resume", "--retry-failed")
    now = Path("out.jsonl").read_text().splitlines(keepends=True)
    assert result.exit_code in (0, 3), result.output
    for number, (old, new) in enumerate(zip(before, now, strict=True)):
        if number < cut:
            assert (old == new) is (number not in failed)
        else:  # the rest has the run's own seed
            assert json.loads(new)["texts"] == json.loads(old)["texts"]
            assert json.loads(new)["report"]["seed"] == 1


@pytest.mark.slow
def test_lines_of_their_own_are_drawn_again_with_theirs(model, tmp_path):
    Path("rare.yaml").write_text(RARE)
    lines = [{"prompt": p, "constraint": {"kind": "regex", "pattern": "b"}, "seed": i} for i, p in enumerate(PROMPTS)]
    Path("p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ("--jsonl", "p.jsonl", "-c", "rare.yaml", "-o", "out.jsonl")
    assert generate(model, *options).exit_code == 3
    result = generate(model, *options, "--resume", "--retry-failed", "--max-attempts", 5000)
    assert result.exit_code == 0, result.output
    for record in records(Path("out.jsonl").read_text()):
        assert all(text.startswith("a") and "b" in text for text in record["texts"])


def test_bad_calls(model, some_failed, has_a):
    before, _ = some_failed
    Path("out.jsonl").write_text("".join(before))
    assert_one_line(generate(model, *OPTIONS, "--retry-failed"), "give --resume")
    again = (*OPTIONS, "--resume", "--retry-failed")
    assert_one_line(generate(model, *again, "--seed", 1), "was made with --seed 1, so a retry needs a different one")
    assert_one_line(generate(model, *again, "--temperature", 2.0), "was made without --temperature")
    assert_one_line(generate(model, *again, "-n", 2), "was made with -n 1")
    assert_one_line(generate(model, *PROMPTS, "-c", has_a, "-o", "out.jsonl", *again[-2:]), "other constraints")
    assert_one_line(generate(model, "zz", *OPTIONS[1:], *again[-2:]), "is for another prompt than")
    assert_one_line(generate(model, *OPTIONS, "--resume", "--max-attempts", 99), "was made with max_attempts 25")
    assert Path("out.jsonl").read_text() == "".join(before)


def test_ctrl_c_keeps_what_was_drawn_again(model, some_failed, monkeypatch):
    before, failed = some_failed

    def second_is_interrupted(fields, *others):
        if fields["prompt"] == PROMPTS[failed[1]]:
            raise KeyboardInterrupt
        return record_of(fields, *others)

    monkeypatch.setattr(generate_run, "record_of", second_is_interrupted)
    result = generate(model, *OPTIONS, "--resume", "--retry-failed", "--max-attempts", 2000)
    assert result.exit_code == 130
    # All that had ended by then.
    said = re.findall(rf"(\d) of {len(failed)} prompts (?:was|were) retried and (?:is|are) in out.jsonl", result.stderr)
    assert result.stderr.endswith("; continue with the same command\n")
    now = Path("out.jsonl").read_text().splitlines(keepends=True)
    changed = [number for number, (old, new) in enumerate(zip(before, now, strict=True)) if old != new]
    assert len(changed) == int(*said or [0])
    assert failed[1] not in changed
    assert set(changed) <= set(failed)
