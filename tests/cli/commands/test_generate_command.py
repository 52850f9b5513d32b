"""``guardwrap generate``: happy paths, exit codes, resuming, interruption."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from typing import Any

import pytest
from transformers import LlamaForCausalLM

from guardwrap import Budget, GuardedGenerator, Prompt, Regex, Repair, imh
from guardwrap.adapters import describe, save_adapter
from guardwrap.cli.shared import printable_text
from guardwrap.constraints.files.constraint_file import as_constraint_file
from tests.cli.fixtures_commands import (
    HAS_A,
    NEVER,
    assert_one_line,
    generate,
    python,
    records,
    run,
    without_time,
)
from tests.fixtures_adapters import trained

pytestmark = pytest.mark.usefixtures("command_line")


def test_prompts_from_arguments(model, has_a):
    result = generate(model, "ab", "cd", "-c", has_a, "-n", 2, "--seed", 1, "--temperature", 1.5, "--top-k", 20)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    first, second = records(result.stdout)
    assert [first["prompt"], second["prompt"]] == ["ab", "cd"]
    for record in (first, second):
        assert list(record) == ["prompt", "texts", "ok", "report"]
        assert record["ok"] is True
        assert len(record["texts"]) == 2
        assert all("a" in text for text in record["texts"])
        assert record["report"]["seed"] == 1
        assert record["report"]["requested"] == record["report"]["accepted"] == 2


@pytest.mark.slow
def test_a_sampler_and_a_proposal(model, has_a, tmp_path):
    options = ("ab", "-c", has_a, "-n", 3, "--seed", 1, "--top-k", 0, "--max-attempts", 5000)
    reports = {}
    for sampler in ("rejection", "qrs", "imh"):
        result = generate(model, *options, "--sampler", sampler, "--proposal", "ca{prompt}")
        assert result.exit_code == 0, result.output
        (record,) = records(result.stdout)
        assert record["prompt"] == "ab"
        assert all("a" in text for text in record["texts"])
        reports[sampler] = record["report"]
        assert (record["report"]["sampler"], record["report"]["proposal"]) == (sampler, "the prompt 'ca{prompt}'")
    assert (
        reports["rejection"]["drawn_from"]
        == "not your model's own distribution: attempts came from the prompt 'ca{prompt}' (g')"
    )
    assert reports["qrs"]["drawn_from"].startswith(
        "approximately your model's own distribution, given the constraint (g): QRS, β = "
    )
    assert reports["imh"]["evidence"]["steps"] == 10
    (plain,) = records(generate(model, *options).stdout)
    assert (plain["report"]["sampler"], plain["report"]["proposal"]) == ("rejection", None)
    # The same call in Python gives the same texts.
    made = GuardedGenerator(model, Regex("a"), sampler="imh", proposal=Prompt("ca{prompt}"))
    settings: dict[str, Any] = {"num_return_sequences": 3, "seed": 1, "top_k": 0, "max_new_tokens": 8}
    (outcome,) = made.run("ab", budget=Budget(max_attempts=5000), **settings)
    (record,) = records(generate(model, *options, "--sampler", "imh", "--proposal", "ca{prompt}").stdout)
    assert record["texts"] == list(outcome.texts)
    assert record["report"]["usage"]["attempts"] == outcome.report.usage.attempts
    # An option replaces what a file says.
    (tmp_path / "c.yaml").write_text(HAS_A + "sampler: imh\n")
    for more, name in (((), "imh"), (("--sampler", "rejection"), "rejection")):
        (record,) = records(generate(model, "ab", "-c", "c.yaml", *more).stdout)
        assert record["report"]["sampler"] == name
    # Options are the same in a file, on the command line and in Python.
    told = {"imh": {"steps": 3}}
    (tmp_path / "c.yaml").write_text(HAS_A + "sampler: {imh: {steps: 3}}\n")
    made = GuardedGenerator(model, Regex("a"), sampler=imh(3), proposal=Prompt("ca{prompt}"))
    (outcome,) = made.run("ab", budget=Budget(max_attempts=5000), **settings)
    for said in (("-c", "c.yaml"), ("-c", has_a, "--sampler", "imh: {steps: 3}")):
        result = generate(model, "ab", *options[3:], *said, "--proposal", "ca{prompt}")
        (record,) = records(result.stdout)
        assert record["texts"] == list(outcome.texts)
        assert record["report"]["evidence"]["steps"] == 3
        assert record["report"]["settings"]["sampler"] == told


@pytest.mark.slow
def test_every_source_of_prompts_gives_the_same(model, has_a, tmp_path):
    (tmp_path / "p.txt").write_bytes("\ufeffab\r\ncd".encode())
    (tmp_path / "p.jsonl").write_text('{"prompt": "ab"}\n{"prompt": "cd"}\n')
    options = ("-c", has_a, "--seed", 1)
    expected = [(r["prompt"], r["texts"]) for r in records(generate(model, "ab", "cd", *options).stdout)]
    for args, stdin in [
        (["--file", "p.txt"], None),
        (["--jsonl", "p.jsonl"], None),
        (["-"], "ab\ncd\n"),
        ([], "ab\ncd\n"),
        (["--jsonl", "-"], '{"prompt": "ab"}\n{"prompt": "cd"}\n'),
    ]:
        result = generate(model, *args, *options, stdin=stdin)
        assert result.exit_code == 0, result.output
        assert [(r["prompt"], r["texts"]) for r in records(result.stdout)] == expected


def test_jsonl_fields_pass_through_in_order(model, has_a, tmp_path):
    lines: list[dict[str, Any]] = [
        {"id": 7, "prompt": "ab", "meta": {"tags": ["x", None], "ü": 1.5}},
        {"messages": [{"role": "user", "content": "ab"}], "id": "chat", "half": "\ud800"},
        {"prompt": "zz", "id": None, "texts": "replaced"},
    ]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = generate(model, "--jsonl", "p.jsonl", "-c", has_a, "-o", "out.jsonl", "--seed", 1)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    written = records((tmp_path / "out.jsonl").read_text(encoding="utf-8"))
    for line, record in zip(lines, written, strict=True):
        ours = {name: record.pop(name) for name in ("texts", "ok", "report")}
        assert record == {name: value for name, value in line.items() if name != "texts"}
        assert all("a" in text for text in ours["texts"])


@pytest.mark.parametrize("line", [{"prompt": "\ud800"}, {"messages": [{"role": "user", "content": "a\udfff"}]}])
def test_half_of_a_surrogate_pair_is_found_before_the_work_begins(has_a, tmp_path, line):
    (tmp_path / "p.jsonl").write_text('{"prompt": "\\ud83d\\ude00"}\n' + json.dumps(line) + "\n")
    assert_one_line(generate("no-model", "--jsonl", "p.jsonl", "-c", has_a), "p.jsonl:2: has half of a surrogate pair")
    assert_one_line(generate("no-model", "ab", "c\udcff", "-c", has_a), "argument 2: not UTF-8 text")


@pytest.mark.slow
def test_repair_turns(model, tmp_path):
    """They are in a file, on the command line and in Python alike; ``--repair 0`` leaves out those of a file."""
    rule = "guardwrap: 1\nconstraint: {kind: regex, name: ab, pattern: '^[abc]'}\n"  # the model knows no other letters
    (tmp_path / "rule.yaml").write_text(rule)
    (tmp_path / "repair.yaml").write_text(rule + "repair: {max_turns: 4, message: '{reasons}'}\n")
    options = ("ab", "cd", "ef", "--chat", "--max-attempts", 1, "--seed", 3)
    turns = ("--repair", "{max_turns: 4, message: '{reasons}'}")
    plain = generate(model, *options, "-c", "rule.yaml")
    assert plain.exit_code == 3
    repaired = generate(model, *options, "-c", "rule.yaml", *turns)
    assert repaired.exit_code == 0, repaired.output
    lines = records(repaired.stdout)
    assert all(text[0] in "abc" for line in lines for text in line["texts"])
    assert any("a repair turn followed" in note for line in lines for note in line["report"]["notes"])
    in_file = generate(model, *options, "-c", "repair.yaml", "-o", "out.jsonl")
    assert in_file.exit_code == 0, in_file.output
    assert without_time((tmp_path / "out.jsonl").read_text()) == without_time(repaired.stdout)
    without = generate(model, *options, "-c", "repair.yaml", "--repair", 0)
    assert without_time(without.stdout) == without_time(plain.stdout)
    other = generate(model, *options, "-c", "rule.yaml", "--repair", 2, "-o", "out.jsonl", "--resume")
    assert_one_line(other, "out.jsonl:1", "--repair")
    repair = Repair(max_turns=4, message="{reasons}")
    guarded = GuardedGenerator(model, Regex("^[abc]", name="ab"), budget=Budget(max_attempts=1), on_exhausted=repair)
    chats = [[{"role": "user", "content": letters}] for letters in ("ab", "cd", "ef")]
    outcomes = guarded.run(chats, seed=3, max_new_tokens=8)
    assert [line["texts"] for line in lines] == [list(outcome.texts) for outcome in outcomes]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--repair", 1), "a repair turn continues a chat, and this prompt is plain text: add --chat"),
        (("--chat", "--repair", "two"), "--repair: must be a whole number, not 'two'"),
        (("--chat", "--repair", "{message: again}"), "--repair: message: needs {reasons} where the reasons belong"),
        (("--timeout", -1), "Budget(timeout=-1.0): give seconds above 0"),
        (("--timeout", 1, "--ray", "auto"), "--timeout does not work with --ray"),
    ],
)
def test_mistakes_in_repair_turns_and_timeouts(model, has_a, options, says):
    assert_one_line(generate(model, "ab", "-c", has_a, *options), says)


def test_a_timeout_ends_the_run_with_what_there_is(model, has_a):
    result = generate(model, "ab", "cd", "-c", has_a, "--timeout", 1e-6)
    assert result.exit_code == 3
    for line in records(result.stdout):
        assert line["report"]["ended"] == "timeout"
        assert line["report"]["budget"]["timeout"] == 1e-6
    assert generate(model, "ab", "-c", has_a, "--timeout", 600).exit_code == 0


def test_chat_makes_a_user_message_of_a_plain_prompt(model, has_a, tmp_path):
    (tmp_path / "p.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "ab"}]}) + "\n")
    plain = records(generate(model, "ab", "--chat", "-c", has_a, "--seed", 1).stdout)
    chat = records(generate(model, "--jsonl", "p.jsonl", "-c", has_a, "--seed", 1).stdout)
    templated = records(generate(model, "ab.", "-c", has_a, "--seed", 1).stdout)
    assert plain[0]["texts"] == chat[0]["texts"] == templated[0]["texts"]
    assert plain[0]["prompt"] == "ab"


def test_several_constraints_must_all_hold(model, has_a, tmp_path):
    (tmp_path / "b.yaml").write_text(HAS_A.replace("an a", "a b").replace("pattern: a", "pattern: b"))
    result = generate(model, "ab", "-c", has_a, "-c", "b.yaml", "-n", 3, "--seed", 1)
    assert result.exit_code == 0, result.output
    (record,) = records(result.stdout)
    assert all("a" in text and "b" in text for text in record["texts"])
    assert set(record["report"]["rejections"]) == {"has an a", "has a b"}


def test_a_budget_that_ends_first_keeps_results(model, has_a, never, tmp_path):
    result = generate(model, "ab", "cd", "-c", never, "--max-attempts", 5, "-o", "out.jsonl")
    assert result.exit_code == 3
    error, summary, hint = result.stderr.splitlines()
    assert hint == "this model has a chat template, and the prompts are plain text; try --chat"
    chat = generate(model, "ab", "--chat", "-c", never, "--max-attempts", 5)
    assert "chat template" not in chat.stderr
    assert error.startswith("guardwrap: 2 of 2 prompts did not get all their texts; the first, argument 1: ended by ")
    prompts = "argument 1 (0 of 1 texts), argument 2 (0 of 1 texts)"
    assert summary == f"  'has a digit' rejected 10 of 10 attempts: {prompts}"
    for record in records((tmp_path / "out.jsonl").read_text()):
        assert record["ok"] is False
        assert record["texts"] == []
        assert record["report"]["usage"]["attempts"] == 5
    result = generate(model, "ab", "-c", has_a, "-n", 50, "--max-tokens", 200, "--seed", 1)
    assert result.exit_code == 3
    (record,) = records(result.stdout)
    assert record["report"]["ended"] == "max_tokens"
    assert record["texts"]
    assert all("a" in text for text in record["texts"])


def test_the_budget_of_a_file_is_kept_where_no_option_replaces_it(model, tmp_path):
    (tmp_path / "c.yaml").write_text(NEVER + "budget: {max_attempts: 7, max_tokens: 900}\n")
    (record,) = records(generate(model, "ab", "-c", "c.yaml").stdout)
    assert record["report"]["usage"]["attempts"] == 7
    (record,) = records(generate(model, "ab", "-c", "c.yaml", "--max-attempts", 3).stdout)
    assert record["report"]["budget"] == {
        "max_attempts": 3,
        "max_tokens": 900,
        "max_seconds": None,
        "deadline": None,
        "max_computed_tokens": None,
        "timeout": None,
    }


def test_without_a_seed_texts_differ_and_the_report_has_it(model, has_a):
    first, second = (records(generate(model, "ab", "-c", has_a).stdout)[0] for _ in range(2))
    assert first["report"]["seed"] != second["report"]["seed"]
    (again,) = records(generate(model, "ab", "-c", has_a, "--seed", first["report"]["seed"]).stdout)
    assert again["texts"] == first["texts"]


def test_a_terminal_gets_text_for_people(model, has_a, monkeypatch):
    monkeypatch.setattr("typer.testing._NamedTextIOWrapper.isatty", lambda self: True, raising=False)
    result = generate(model, "ab", "-c", has_a, "--seed", 1)
    assert result.exit_code == 0, result.output
    assert "'ab'" in result.stdout
    assert "1 text, exactly as your model writes it" in result.stdout
    assert '"report"' not in result.stdout


def test_terminal_escapes_are_not_printed():
    assert printable_text("a\x1b[31mb\n\tü\x07") == "a\ufffd[31mb\n\tü\ufffd"


@pytest.mark.parametrize(
    ("args", "stdin", "parts"),
    [
        (["hi", "-c", "catalogue:no-url"], None, ["no-url", "did you mean 'no-urls'"]),
        (["hi", "-c", "no-urls"], None, ["catalogue:no-urls"]),
        (["hi", "-c", "missing.yaml"], None, ["missing.yaml", "No such file"]),
        (["hi", "-c", "malformed.yaml"], None, ["malformed.yaml:", "malformed YAML"]),
        (["hi", "-c", "code.yaml"], None, ["code.yaml", "--allow-code"]),
        (["", "-c", "has-a.yaml"], None, ["argument 1", "empty"]),
        (["--file", "missing.txt", "-c", "has-a.yaml"], None, ["missing.txt", "No such file"]),
        (["--file", ".", "-c", "has-a.yaml"], None, ["directory"]),
        (["--file", "gap.txt", "-c", "has-a.yaml"], None, ["gap.txt:2", "empty line"]),
        (["--file", "latin.txt", "-c", "has-a.yaml"], None, ["latin.txt:1", "UTF-8"]),
        (["--file", "none.txt", "-c", "has-a.yaml"], None, ["no prompts"]),
        (["-c", "has-a.yaml"], "", ["no prompts"]),
        (["--jsonl", "bad.jsonl", "-c", "has-a.yaml"], None, ["bad.jsonl:3", "not JSON"]),
        (["--jsonl", "neither.jsonl", "-c", "has-a.yaml"], None, ["neither.jsonl:1", '"prompt"', '"messages"']),
        (["--jsonl", "number.jsonl", "-c", "has-a.yaml"], None, ["number.jsonl:1", "not a string"]),
        (["--jsonl", "chat.jsonl", "-c", "has-a.yaml"], None, ["chat.jsonl:1", "not a chat"]),
        (["hi", "--file", "gap.txt", "-c", "has-a.yaml"], None, ["one place"]),
        (["hi", "-c", "has-a.yaml", "--temperature", "0"], None, ["temperature"]),
        (["hi", "-c", "has-a.yaml", "--batch-size", "0"], None, ["batch_size"]),
        (["hi", "-c", "has-a.yaml", "--seed", "-1"], None, ["seed"]),
        (["hi", "-c", "has-a.yaml", "--max-attempts", "0"], None, ["max_attempts"]),
        (["hi", "-c", "has-a.yaml", "--model", "./no-model"], None, ["./no-model"]),
        (["--file", "a\0b", "-c", "has-a.yaml"], None, ["cannot read 'a"]),
        (["hi", "-c", "has-a.yaml", "--sampler", ""], None, ["unknown sampler ''"]),
        (["hi", "-c", "has-a.yaml", "--sampler", "qsr"], None, ["qsr", "did you mean 'qrs'"]),
        (
            ["hi", "-c", "has-a.yaml", "--sampler", "qrs: {bta: 1}"],
            None,
            [": sampler.qrs.bta: ", "did you mean 'beta'"],
        ),
        (["hi", "-c", "has-a.yaml", "--sampler", "qrs: {beta: x}"], None, [": sampler.qrs.beta: ", "must be a number"]),
        (["hi", "-c", "has-a.yaml", "--sampler", "qrs: {"], None, ["--sampler:1: malformed YAML"]),
        (["hi", "-c", "has-a.yaml", "--proposal", "a"], None, ["{prompt}"]),
        (
            ["hi", "-c", "has-a.yaml", "--proposal", "a{prompt}", "--sampler", "qrs"],
            None,
            ["--top-k, here 50, keeps", "--top-k 0, or --sampler rej"],
        ),
        (["hi", "-c", "has-a.yaml", "--resume"], None, ["--output"]),
        (["hi", "-c", "has-a.yaml", "-o", "no/folder/out"], None, ["no such folder"]),
        (["hi", "-c", "has-a.yaml", "-o", "."], None, ["folder"]),
        (["hi", "-c", "has-a.yaml", "-o", "gap.txt"], None, ["exists", "--resume", "--overwrite"]),
        (["hi", "-c", "has-a.yaml", "-o", "gap.txt", "--resume"], None, ["gap.txt:1", "another --output"]),
        (["hi", "-c", "has-a.yaml", "-o", "o", "--resume", "--overwrite"], None, ["one of them"]),
        (["--file", "gap.txt", "-c", "has-a.yaml", "-o", "gap.txt", "--overwrite"], None, ["holds the prompts"]),
    ],
)
def test_bad_input_is_one_line(model, has_a, tmp_path, args, stdin, parts):
    (tmp_path / "malformed.yaml").write_text("guardwrap: 1\nconstraint: {kind: [\n")
    (tmp_path / "code.yaml").write_text("guardwrap: 1\nconstraint: {kind: python, function: 'rules:good'}\n")
    (tmp_path / "gap.txt").write_text("ab\n\ncd\n")
    (tmp_path / "none.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes("Grüße\n".encode("latin-1"))
    (tmp_path / "bad.jsonl").write_text('{"prompt": "ab"}\n{"prompt": "cd"}\n{"prompt": "secret\n')
    (tmp_path / "neither.jsonl").write_text('{"text": "ab"}\n')
    (tmp_path / "number.jsonl").write_text('{"prompt": 1}\n')
    (tmp_path / "chat.jsonl").write_text('{"messages": [{"content": "ab"}]}\n')
    before = (tmp_path / "gap.txt").read_text()
    if "--model" not in args:
        args = ["--model", model, *args]
    assert_one_line(run("generate", *args, stdin=stdin), *parts)
    assert (tmp_path / "gap.txt").read_text() == before


def test_a_model_without_chat_template_says_so(model, has_a, tmp_path):
    from transformers import AutoTokenizer, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "plain")
    LlamaForCausalLM.from_pretrained(model).save_pretrained(tmp_path / "plain")
    assert_one_line(generate("plain", "ab", "--chat", "-c", has_a), "argument 1", "chat template", "--chat")


@pytest.mark.slow
def test_what_was_done_before_a_bad_prompt_is_kept(model, has_a, tmp_path):
    stdin = '{"prompt": "ab"}\n' * 9 + "{broken\n"
    result = generate(
        model, "--jsonl", "-", "-c", has_a, "-o", "out.jsonl", "--seed", 1, "--batch-size", 1, stdin=stdin
    )
    assert_one_line(result, "stdin:10", "not JSON", " in out.jsonl", "--resume")
    kept = records((tmp_path / "out.jsonl").read_text())
    assert 0 < len(kept) <= 9
    assert re.search(rf"{len(kept)} prompts? (is|are) in", result.stderr)


def test_settings_that_cannot_work_leave_an_old_output_alone(model, has_a, tmp_path):
    (tmp_path / "out.jsonl").write_text("old\n")
    result = generate(model, "ab", "-c", has_a, "-o", "out.jsonl", "--overwrite", "--temperature", 0)
    assert_one_line(result, "temperature")
    assert (tmp_path / "out.jsonl").read_text() == "old\n"
    assert generate(model, "ab", "-c", has_a, "-o", "out.jsonl", "--overwrite").exit_code == 0
    assert len(records((tmp_path / "out.jsonl").read_text())) == 1


def test_python_constraints_come_from_the_current_folder(model, tmp_path):
    (tmp_path / "cli_rules.py").write_text("def good(text):\n    return 'a' in text\n")
    (tmp_path / "code.yaml").write_text("guardwrap: 1\nconstraint: {kind: python, function: 'cli_rules:good'}\n")
    result = generate(model, "ab", "-c", "code.yaml", "--allow-code")
    assert result.exit_code == 0, result.output
    assert "a" in records(result.stdout)[0]["texts"][0]
    assert run("check", "code.yaml", "--allow-code", "--text", "xyz").exit_code == 1


@pytest.mark.usefixtures("watchdog")
def test_a_named_pipe_is_no_file_of_settings(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    for args in (
        ("check", "pipe.yaml", "--text", "a"),
        ("generate", "ab", "-c", "pipe.yaml"),
        ("plan", "ab", "-c", "pipe.yaml"),
        ("train", "pipe.yaml", "-o", "out"),
        ("evaluate", "pipe.yaml", "-o", "out"),
    ):
        assert_one_line(run(*args), "cannot read 'pipe.yaml': it is a named pipe; give a regular file")
    (tmp_path / "results").mkdir()
    for file in ("result.json", "curve.jsonl", "evaluation.json"):
        os.mkfifo(tmp_path / "results" / file)
        assert_one_line(run("report", "results"), f"results/{file}': it is a named pipe")
        (tmp_path / "results" / file).unlink()


def test_what_the_shell_opened_may_be_a_pipe():
    """As in ``guardwrap check <(yq .rules all.yaml) --text "a text"``."""
    read, write = os.pipe()
    os.write(write, HAS_A.encode())
    os.close(write)
    assert run("check", f"/dev/fd/{read}", "--text", "a").exit_code == 0
    os.close(read)


@pytest.mark.usefixtures("watchdog")
def test_results_may_go_to_a_device_or_a_pipe(model, has_a, tmp_path):
    assert generate(model, "ab", "-c", has_a, "-o", "/dev/null").exit_code == 0
    assert_one_line(generate(model, "ab", "-c", has_a, "-o", "/dev/null", "--resume"), "is a device", "leave --resume")
    full = generate(model, "ab", "-c", has_a, "-o", "/dev/full")
    assert_one_line(full, "cannot write the results: No space left on device: /dev/full; no prompt is done", code=1)
    os.mkfifo(tmp_path / "pipe")
    assert_one_line(generate(model, "ab", "-c", has_a, "-o", "pipe", "--resume"), "is a named pipe", "leave --resume")


@pytest.mark.parametrize("line", ['{"prompt": "ab", "x": NaN}', '{"prompt": "ab", "x": [1e999]}'])
def test_numbers_that_json_has_not_are_not_copied(has_a, tmp_path, line):
    (tmp_path / "p.jsonl").write_text(line + "\n")
    assert_one_line(generate("no-model", "--jsonl", "p.jsonl", "-c", has_a), "p.jsonl:1: ", "is not a JSON number")


@pytest.mark.parametrize("code", [0, 3])
def test_a_rule_that_ends_the_program_has_crashed(tmp_path, code):
    """Otherwise the exit code would be that of the constraint: 0 says that every text is accepted."""
    (tmp_path / f"ending_rules{code}.py").write_text(f"import sys\ndef rule(text):\n    sys.exit({code})\n")
    rule = f"guardwrap: 1\nconstraint: {{kind: python, function: 'ending_rules{code}:rule'}}\n"
    (tmp_path / "c.yaml").write_text(rule)
    assert_one_line(run("check", "c.yaml", "--text", "ab", "--allow-code"), "raised SystemExit")


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("config.json", "[]", "cannot load the model 'damaged': AttributeError"),
        ("model.safetensors", "xx", "cannot load the model 'damaged': SafetensorError"),
        ("tokenizer.json", "{}", "cannot load the model 'damaged': KeyError"),
        ("chat_template.jinja", "{{ 1 / 0 }}", "argument 1: prompt 0: ZeroDivisionError"),
        ("chat_template.jinja", "{% for", "argument 1: prompt 0: unexpected"),
    ],
)
def test_a_damaged_model(model, has_a, tmp_path, file, content, says):
    shutil.copytree(model, tmp_path / "damaged")
    (tmp_path / "damaged" / file).write_text(content)
    assert_one_line(generate("damaged", "ab", "--chat", "-c", has_a), says)


# Resuming


@pytest.fixture
def prompts(tmp_path):
    (tmp_path / "many.txt").write_text("".join(f"prompt {chr(97 + i)}\n" for i in range(12)))
    return "many.txt"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("done", "half", "seed"),
    [
        (0, "", ["--seed", 3]),
        (0, '{"prompt": "prompt a", "texts": ["x', ["--seed", 3]),
        (1, "", []),  # the file says which seed it was
        (5, "", ["--seed", 3]),
        (5, "{", []),
        (11, '{"prompt": "prompt l", "texts"', []),
    ],
)
def test_resume_gives_what_an_uninterrupted_run_would(model, has_a, prompts, tmp_path, done, half, seed):
    options = ("--file", prompts, "-c", has_a, "-n", 2, "--batch-size", 4)
    assert generate(model, *options, "-o", "whole.jsonl", "--seed", 3).exit_code == 0
    whole = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "part.jsonl").write_text("".join(whole[:done]) + half)
    result = generate(model, *options, "-o", "part.jsonl", "--resume", *seed)
    assert result.exit_code == 0, result.output
    part = (tmp_path / "part.jsonl").read_text()
    assert part.splitlines(keepends=True)[:done] == whole[:done]
    assert without_time(part) == without_time("".join(whole))


@pytest.mark.slow
def test_resume_goes_on_with_the_same_sampler_and_proposal(model, has_a, tmp_path):
    options = ("ab", "cd", "ef", "-c", has_a, "--top-k", 0, "--seed", 1, "-o", "out.jsonl")
    drawn = ("--sampler", "imh", "--proposal", "a{prompt}")
    assert generate(model, *options, *drawn).exit_code == 0
    whole = (tmp_path / "out.jsonl").read_text()
    part = whole.splitlines(keepends=True)[0]
    (tmp_path / "out.jsonl").write_text(part)
    for other, says in [
        ((), "another sampler"),
        (("--sampler", "qrs", "--proposal", "a{prompt}"), "another sampler"),
        (("--sampler", "imh"), "--proposal {'prompt': 'a{prompt}'}"),
        (("--sampler", "imh", "--proposal", "b{prompt}"), "--proposal {'prompt': 'a{prompt}'}"),
    ]:
        assert_one_line(generate(model, *options, "--resume", *other), "out.jsonl:1: was made with", says)
        assert (tmp_path / "out.jsonl").read_text() == part
    more = ("--sampler", "imh: {steps: 3}", *drawn[2:])
    assert_one_line(generate(model, *options, "--resume", *more), "without --sampler; resume with the same settings")
    assert generate(model, *options, "--resume", *drawn).exit_code == 0
    rows, wanted = without_time((tmp_path / "out.jsonl").read_text()), without_time(whole)
    for row in (*rows, *wanted):
        # The rounding of weights depends on the batch, in the seventh digit.
        del row["report"]["evidence"]["autocorrelation"]
    assert rows == wanted


@pytest.mark.slow
def test_an_adapter(model, has_a, tmp_path):
    base = LlamaForCausalLM.from_pretrained(model)
    constraint = as_constraint_file(has_a).constraint
    card = describe(base, constraint, ["ab"], name="tiny", settings={}, method="none", seed=0, samples=1)
    save_adapter(tmp_path / "small", trained(base), card)
    LlamaForCausalLM.from_pretrained(model).save_pretrained(tmp_path / "full")
    options = ("ab", "cd", "-c", has_a, "--seed", 1, "-o", "out.jsonl")
    for folder, name in (
        ("small", "adapter 'small' (KL(g‖g') is not known: its"),
        ("full", "checkpoint 'full' (KL(g‖g')"),
    ):
        result = generate(model, *options, "--adapter", folder, "--overwrite")
        assert result.exit_code == 0, result.output
        whole = (tmp_path / "out.jsonl").read_text()
        assert [
            record["report"]["drawn_from"].count(f"attempts came from the {name}") for record in records(whole)
        ] == [1, 1]
        part = whole.splitlines(keepends=True)[0]
        (tmp_path / "out.jsonl").write_text(part)
        assert_one_line(generate(model, *options, "--resume"), f"was made with --adapter {folder}")
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        shutil.copytree(folder, tmp_path / "elsewhere" / folder)
        other = ("--resume", "--adapter", f"elsewhere/{folder}")
        assert_one_line(generate(model, *options, *other), f"was made with --adapter {folder}; resume with the same")
        assert generate(model, *options, "--resume", "--adapter", folder).exit_code == 0
        assert without_time((tmp_path / "out.jsonl").read_text()) == without_time(whole)
    plan = json.loads(
        run("plan", "ab", "-c", has_a, "--model", model, "--adapter", "small", "--json", "--top-k", 0).stdout
    )
    assert plan["sampler"] == "qrs"  # rejection is what it chooses for the model itself
    assert_one_line(generate(model, "ab", "-c", has_a, "--adapter", "nowhere"), "there is no folder 'nowhere'")
    (tmp_path / "other.yaml").write_text(NEVER)
    assert_one_line(generate(model, "ab", "-c", "other.yaml", "--adapter", "small"), "trained for another constraint")
    assert_one_line(generate(model, "ab", "-c", has_a, "--adapter", "small", "--proposal", "a{prompt}"), "proposal")


@pytest.mark.slow
def test_a_file_says_what_is_drawn_from(model, has_a, tmp_path):
    base = LlamaForCausalLM.from_pretrained(model)
    card = describe(
        base, as_constraint_file(has_a).constraint, ["ab"], name="t", settings={}, method="none", seed=0, samples=1
    )
    (tmp_path / "rules").mkdir()
    save_adapter(tmp_path / "rules" / "small", trained(base), card)
    for said, options in (
        ("proposal: {prompt: 'ca{prompt}'}", ("--proposal", "ca{prompt}")),
        ("proposal: masked", ("--masked",)),
        ("adapter: small", ("--adapter", "rules/small")),
        ("adapter: small\nproposal: masked", ("--adapter", "rules/small", "--masked")),
    ):
        (tmp_path / "rules" / "c.yaml").write_text(HAS_A + said + "\n")
        in_file, by_option, plain = (
            records(generate(model, "ab", "cd", "--seed", 1, "-c", *more).stdout)
            for more in (("rules/c.yaml",), (has_a, *options), ("rules/c.yaml", "--no-proposal"))
        )
        for one, other, without in zip(in_file, by_option, plain, strict=True):
            assert one["texts"] == other["texts"]
            assert one["report"]["proposal"] == other["report"]["proposal"] is not None
            assert without["report"]["proposal"] is None
        # A run must be resumed with the same settings.
        (tmp_path / "out.jsonl").write_text(generate(model, "ab", "--seed", 1, "-c", "rules/c.yaml").stdout)
        again = (model, "ab", "cd", "-o", "out.jsonl", "--resume", "-c")
        assert_one_line(generate(*again, has_a), "out.jsonl:1: was made with --")
        assert generate(*again, "rules/c.yaml").exit_code == 0
    # The command line takes precedence over the file.
    result = generate(model, "ab", "-c", "rules/c.yaml", "--proposal", "ca{prompt}")
    assert records(result.stdout)[0]["report"]["proposal"] == "the prompt 'ca{prompt}'"
    (tmp_path / "rules" / "c.yaml").write_text(HAS_A + "proposal: {prompt: 'ca{prompt}'}\n")
    result = generate(model, "ab", "-c", "rules/c.yaml", "--masked")
    assert records(result.stdout)[0]["report"]["proposal"] == "the prompt 'ca{prompt}', masked"
    plans = [
        json.loads(
            run(
                "plan", "ab", "--model", model, "--json", "--top-k", 0, "--pilot", 8, "--max-new-tokens", 4, "-c", *more
            ).stdout
        )["ways"]
        for more in (("rules/c.yaml",), (has_a, "--proposal", "ca{prompt}"), ("rules/c.yaml", "--no-proposal"))
    ]
    names = [[way["source"] for way in ways] for ways in plans]
    assert names[0] == names[1] != names[2]
    assert_one_line(generate(model, "ab", "-c", has_a, "--masked", "--no-proposal"), "--no-proposal draws from")


def test_resume_goes_on_with_the_same_settings(model, has_a, tmp_path):
    options = ("ab", "cd", "-c", has_a, "--seed", 1, "-o", "out.jsonl")
    law = ("--temperature", 0.9, "--top-p", 0.8, "--top-k", 0, "--max-new-tokens", 6)
    assert generate(model, *options, *law).exit_code == 0
    whole = (tmp_path / "out.jsonl").read_text()
    first = whole.splitlines(keepends=True)[0]
    for other, says in [
        (("--temperature", 1.1, *law[2:]), "with --temperature 0.9"),
        (law[2:], "with --temperature 0.9"),
        ((*law[:2], "--top-p", 0.7, *law[4:]), "with --top-p 0.8"),
        ((*law[:4], "--top-k", 6, *law[6:]), "with --top-k 0"),
        ((*law[:6], "--max-new-tokens", 7), "with --max-new-tokens 6"),
        ((*law, "--chat"), "without --chat"),
    ]:
        (tmp_path / "out.jsonl").write_text(first)
        assert_one_line(generate(model, *options, "--resume", *other), f"out.jsonl:1: was made {says}; resume with")
        assert (tmp_path / "out.jsonl").read_text() == first
    assert_one_line(generate("./elsewhere", *options, "--resume", *law), f"with --model {model}")
    assert generate(model, *options, "--resume", *law, "--batch-size", 3).exit_code == 0
    assert without_time((tmp_path / "out.jsonl").read_text()) == without_time(whole)
    row = json.loads(first)
    row["report"]["settings"] = 1
    (tmp_path / "out.jsonl").write_text(json.dumps(row) + "\n")
    assert_one_line(generate(model, *options, "--resume"), "out.jsonl:1: was not written by guardwrap generate")


def test_resume_goes_on_with_the_same_number_of_texts_and_the_same_budget(model, has_a, tmp_path):
    (tmp_path / "c.yaml").write_text(HAS_A + "budget: {deadline: 900}\n")
    options = ("ab", "cd", "--seed", 1, "-o", "out.jsonl")
    given = ("-c", has_a, "-n", 2, "--max-attempts", 50, "--max-seconds", 99)
    assert generate(model, *options, *given).exit_code == 0
    whole = (tmp_path / "out.jsonl").read_text()
    part = whole.splitlines(keepends=True)[0]
    (tmp_path / "out.jsonl").write_text(part)
    for other, says in [
        ((*given[:2], *given[4:]), "with -n 2"),
        ((*given, "-n", 3), "with -n 2"),
        ((*given[:4], *given[6:]), "with max_attempts 50, but this run has 1000"),
        ((*given[:6], "--max-seconds", 98), "with max_seconds 99"),
        ((*given, "--max-tokens", 7), "without max_tokens, but this run has 7"),
        ((*given[:6],), "with max_seconds 99.0, but this run has none"),
        (
            ("-c", "c.yaml", *given[2:]),
            "without deadline, but this run has 900",
        ),  # the deadline does not change the constraint
    ]:
        assert_one_line(generate(model, *options, *other, "--resume"), f"out.jsonl:1: was made {says}", "resume with")
        assert (tmp_path / "out.jsonl").read_text() == part
    assert generate(model, *options, *given, "--resume").exit_code == 0
    assert without_time((tmp_path / "out.jsonl").read_text()) == without_time(whole)


def test_negative_control_settings_that_are_not_compared(model, has_a, tmp_path, monkeypatch):
    options = ("ab", "cd", "-c", has_a, "--seed", 1, "-o", "out.jsonl")
    assert generate(model, *options, "--temperature", 0.1).exit_code == 0
    whole = (tmp_path / "out.jsonl").read_text()
    (tmp_path / "out.jsonl").write_text(whole.splitlines(keepends=True)[0])
    monkeypatch.setattr("guardwrap.cli.results._require_same", lambda *args: None)
    assert generate(model, *options, "--resume", "--temperature", 9.0).exit_code == 0
    assert without_time((tmp_path / "out.jsonl").read_text()) != without_time(whole), "two laws in one file"


def test_resuming_a_finished_run_changes_nothing(model, has_a, prompts, tmp_path, monkeypatch):
    options = ("--file", prompts, "-c", has_a, "-o", "out.jsonl", "--resume")
    assert generate(model, *options).exit_code == 0  # without an output file, the run starts from the beginning
    before = (tmp_path / "out.jsonl").read_bytes()
    monkeypatch.setattr("guardwrap.cli.generate_request.load_generator", None)  # the model is not loaded either
    assert generate(model, *options).exit_code == 0
    assert (tmp_path / "out.jsonl").read_bytes() == before


def test_resuming_counts_the_short_prompts_of_before(model, never, tmp_path):
    options = ("ab", "cd", "-c", never, "--max-attempts", 2, "-o", "out.jsonl")
    assert generate(model, *options).exit_code == 3
    assert_one_line(generate(model, *options, "--resume"), "2 of 2 prompts", code=3)


def test_resume_refuses_what_is_not_the_same_run(model, has_a, never, prompts, tmp_path):
    assert generate(model, "ab", "cd", "-c", has_a, "-o", "out.jsonl", "--seed", 1).exit_code == 0
    before = (tmp_path / "out.jsonl").read_bytes()
    for args, part in [
        (("ab", "zz", "-c", has_a), "out.jsonl:2: is for another prompt than argument 2"),
        (("ab", "-c", has_a), "out.jsonl:2: there are fewer prompts"),
        (("ab", "cd", "ef", "-c", never), "other constraints"),
        (("ab", "cd", "ef", "-c", has_a, "--seed", 2), "--seed 1"),
    ]:
        assert_one_line(generate(model, *args, "-o", "out.jsonl", "--resume"), part)
        assert (tmp_path / "out.jsonl").read_bytes() == before


START = """\
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the test runner is in the background
from guardwrap.cli import main
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_who_ends_it_finds_complete_lines_and_how_to_go_on(model, has_a, tmp_path, sent, code):
    """Ctrl-C, or the signal of a job scheduler."""
    (tmp_path / "many.txt").write_text("some prompt\n" * 100_000)
    options = ["generate", "-m", model, "-f", "many.txt", "-c", has_a, "-o", "out.jsonl", "--seed", "3"]
    options += ["--max-new-tokens", "8", "--batch-size", "4"]
    process = python(START, *options, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output = tmp_path / "out.jsonl"
    try:
        give_up = time.monotonic() + 50
        while time.monotonic() < give_up and (not output.exists() or output.read_bytes().count(b"\n") < 5):
            time.sleep(0.05)
        process.send_signal(sent)
        stdout, stderr = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code
    assert stdout == ""
    written = output.read_text()
    assert written.endswith("\n")
    done = len(records(written))
    assert done >= 5
    assert len(stderr.splitlines()) == 1
    (said,) = map(int, re.findall(r"(\d+) of 100000 prompts (?:is|are) in out\.jsonl[;,].*--resume", stderr))
    assert said in (done, done - 1)
    # An uninterrupted run has the same lines. They are written as prompts end, so an earlier one may still be missing.
    rows = without_time(written)
    numbers = [row["report"]["number"] for row in rows]
    (tmp_path / "few.txt").write_text("some prompt\n" * max(numbers))
    result = generate(model, "-f", "few.txt", "-c", has_a, "--seed", 3, "--batch-size", 4)
    whole = {row["report"]["number"]: row for row in without_time(result.stdout)}
    assert rows == [whole[number] for number in numbers]


@pytest.mark.slow
def test_masked(model, has_a, tmp_path):
    out = ("-n", 3, "-o", "out.jsonl", "--masked", "--sampler", "imh", "--seed", 1)
    assert generate(model, "ab", "-c", has_a, *out).exit_code == 0
    (record,) = records((tmp_path / "out.jsonl").read_text())
    assert record["report"]["proposal"] == "the model itself, masked"
    assert record["report"]["sampler"] == "imh"
    assert all("a" in text for text in record["texts"])
    again = generate(model, "ab", "b", "-c", has_a, *out, "--resume")
    assert again.exit_code == 0, again.output
    other = generate(model, "ab", "b", "-c", has_a, "-n", 3, "-o", "out.jsonl", "--sampler", "imh", "--resume")
    assert_one_line(other, "proposal")


@pytest.mark.slow
def test_twisted(model, tmp_path):
    for name, said in (
        ("c", ""),
        ("t", "proposal: twisted\n"),
        ("m", "proposal: {masked: {proposal: {prompt: 'b{prompt}'}}}\n"),
    ):
        rule = "guardwrap: 1\nconstraint: {kind: keyword, words: a, whole_words: false}\n"
        (tmp_path / f"{name}.yaml").write_text(rule + said)
    out = ("ab", "-n", 3, "--seed", 1, "--sampler", "qrs", "--top-k", 0)
    by_option, in_file, plain, shaped = (
        records(generate(model, *out, "-c", *more).stdout)[0]
        for more in (("c.yaml", "--twisted"), ("t.yaml",), ("t.yaml", "--no-proposal"), ("m.yaml", "--twisted"))
    )
    assert by_option["report"]["proposal"] == in_file["report"]["proposal"] == "the model itself, twisted"
    assert by_option["texts"] == in_file["texts"]
    assert all("a" in text for text in by_option["texts"])
    assert any("the twist was learned from" in note for note in by_option["report"]["notes"])
    assert plain["report"]["proposal"] is None
    assert shaped["report"]["proposal"] == "the prompt 'b{prompt}', twisted"
    both = generate(model, *out, "-c", "c.yaml", "--masked", "--twisted")
    assert_one_line(both, "give either --masked or --twisted, not both")
    none = generate(model, *out, "-c", "c.yaml", "--twisted", "--no-proposal")
    assert_one_line(none, "leave out either --no-proposal or --twisted")
    plan = run("plan", "ab", "--model", model, "-c", "c.yaml", "--twisted", "--pilot", 8, "--top-k", 0, "--json")
    assert json.loads(plan.stdout)["ways"][0]["source"] == "the model itself, twisted"


def test_a_budget_of_computed_tokens(model, tmp_path):
    (tmp_path / "c.yaml").write_text(NEVER)
    options = ("--max-attempts", 100_000, "--max-computed-tokens", 5)
    result = generate(model, "ab", "-c", "c.yaml", *options)
    (record,) = records(result.stdout)
    assert record["report"]["ended"] == "max_computed_tokens"


def test_attempts_that_are_computed_alone(model, has_a):
    one, other = (generate(model, "ab", "-c", has_a, "--seed", 1, *more) for more in ((), ("--deterministic",)))
    (one,), (other,) = records(one.stdout), records(other.stdout)
    assert (one["report"]["mode"], other["report"]["mode"]) == ("refill", "separate")
    assert one["texts"] == other["texts"]  # in this precision
