"""``--show-rejected``: rejected attempts on stderr for those who ask, and for nobody else."""

import pytest

from guardwrap import Draw, Regex, constraint
from guardwrap.cli.generate_run import RejectedTexts
from guardwrap.engine.scheduling.request import RejectedAttempt
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
