"""The command line: happy paths, exit codes, resuming, interruption."""

import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from typer.testing import CliRunner

from guardwrap import Budget, Constraint, GuardedGenerator, Keyword, Prompt, Regex, __version__
from guardwrap.adapters import describe, save_adapter
from guardwrap.cli import app
from guardwrap.cli.common import printable
from guardwrap.cli.demo import SCENES
from guardwrap.constraints.files import as_constraint_file, catalogue_names
from tests.adapted import trained

pytestmark = pytest.mark.usefixtures("command_line")

ROOT = Path(__file__).parents[2]
COMMANDS = ["demo", "generate", "plan", "evaluate", "train", "report", "check", "catalogue"]
LETTERS = "abcdefghijklmnopqrstuvwxyz .,"
HAS_A = "guardwrap: 1\nconstraint: {kind: regex, name: has an a, pattern: a}\n"
NEVER = "guardwrap: 1\nconstraint: {kind: regex, name: has a digit, pattern: '[0-9]'}\n"
TWO_PARTS = """\
guardwrap: 1
name: two-parts
constraint:
  kind: all
  of:
    - {kind: regex, name: has an a, pattern: a}
    - {kind: length, name: short, max: 5, unit: characters}
examples:
  accepts: [abc, a]
  rejects: [xyz, aaaaaaaaaaa]
"""
TEMPLATE = "{% for m in messages %}{{ m['content'] }}.{% endfor %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny random model over letters, on disk; loading it takes no time and no network."""
    folder = tmp_path_factory.mktemp("model")
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<s>", "</s>", *LETTERS])}
    tokens = Tokenizer(models.WordLevel(vocabulary, unk_token="."))
    tokens.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokens.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="."
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def has_a(tmp_path):
    path = tmp_path / "has-a.yaml"
    path.write_text(HAS_A)
    return str(path)


@pytest.fixture
def never(tmp_path):
    path = tmp_path / "never.yaml"
    path.write_text(NEVER)
    return str(path)


def run(*args, stdin=None):
    return CliRunner().invoke(app, [str(arg) for arg in args], input=stdin)


def generate(model, *args, stdin=None):
    return run("generate", "--model", model, "--max-new-tokens", 8, *args, stdin=stdin)


def records(text):
    return [json.loads(line) for line in text.splitlines()]


def assert_one_line(result, *parts, code=2):
    """Assert an exit code and exactly one line on stderr that has all the parts, and nothing on stdout."""
    assert result.exit_code == code, result.output
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert result.stderr.startswith("guardwrap: ")
    for part in parts:
        assert part in result.stderr
    assert not result.stdout


def python(code, *args, **options):
    """Start another Python that imports this checkout."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", code, *map(str, args)], env=environment, text=True, **options)


# The app itself


def test_version_and_help():
    assert run("--version").stdout == f"guardwrap {__version__}\n"
    for args in ([], ["--help"], ["-h"]):
        result = run(*args)
        assert result.exit_code == 0
        assert all(command in result.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_documented(command):
    result = run(command, "--help")
    assert result.exit_code == 0
    undocumented = [p.name for p in _command(command).params if p.name != "help" and not getattr(p, "help", None)]
    assert not undocumented


def _command(name):
    from typer.main import get_command

    commands: Any = get_command(app)
    return commands.commands[name]


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["generate", "--help"],
        ["plan", "--help"],
        ["evaluate", "--help"],
        ["train", "--help"],
        ["report", "--help"],
        ["check", "catalogue:no-urls", "text"],
        ["catalogue"],
        ["catalogue", "--schema"],
    ],
)
def test_starts_without_torch(args):
    code = (
        "import sys\nfrom guardwrap.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    process = python(code, *args, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.communicate()[1] == ""
    assert process.returncode == 0


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator")
def test_memory_that_is_freed_is_kept():
    def faults(call):
        code = (
            "import resource\nfrom guardwrap.cli.common import keep_freed_memory\n"
            f"{call}\n"
            "for _ in range(20):\n    del bytearray(b'1' * 2**26)[:]\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)\n"
        )
        return int(python(code, stdout=subprocess.PIPE).communicate()[0])

    pages = 20 * 2**26 // os.sysconf("SC_PAGESIZE")
    assert faults("pass") - faults("keep_freed_memory()") > pages / 2


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["genrate"], "Did you mean 'generate'?"),
        (["generate", "hi"], "--constraints"),
        (["generate", "hi", "-c", "catalogue:no-urls", "--nope"], "--nope"),
        (["generate", "hi", "-c", "catalogue:no-urls", "-n", "many"], "integer"),
        (["check"], "FILE_OR_NAME"),
    ],
)
def test_a_wrong_command_line_is_one_line(args, part):
    assert_one_line(run(*args), part)


def test_an_unexpected_error_is_one_line_without_its_message(model, has_a, monkeypatch):
    def crash(*args, **options):
        raise RuntimeError("an unchecked text")

    monkeypatch.setattr("guardwrap.generator.GuardedGenerator.stream", crash)
    result = generate(model, "hi", "-c", has_a)
    assert_one_line(result, "RuntimeError", "-vv", code=1)
    assert "unchecked" not in result.stderr
    assert "Traceback" in generate(model, "hi", "-c", has_a, "-vv").stderr


# demo


def test_demo(model, monkeypatch):
    easy: list[Constraint | str] = [
        (Keyword("zebra", match="none") & ~Regex(r"\d")),
        "catalogue:no-contact-details",
        ~Regex(r"\d"),
    ]
    scenes = [
        replace(scene, constraint=constraint, prompt="the sea", max_new_tokens=8)
        for scene, constraint in zip(SCENES, easy, strict=True)
    ]
    monkeypatch.setattr("guardwrap.cli.demo.SCENES", scenes)
    result = run("demo", "--model", model, "--seed", 3)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("exactly g (sampler rejection, seed 3)") == 3
    assert result.stdout.count("acceptance") == 3
    _, *parts = re.split(r"^\d\. (?=[A-Z])", result.stdout, flags=re.MULTILINE)
    for scene, part in zip(scenes, parts, strict=True):
        assert part.startswith(scene.title)
        # The Python that it prints does the same.
        (code,) = re.findall(r"^from guardwrap import .*\n.*\nprint\(.*\)$", part, re.MULTILINE)
        printed: list[Any] = []
        exec(code, {"print": printed.append})
        texts = re.findall(r"^  \d\.  (.*\S)", part, re.MULTILINE)
        assert len(texts) == scene.count
        assert all(text in json.dumps(printed) for text in texts)


def test_the_scenes_of_the_demo_are_python():
    for scene in SCENES:
        code = scene.code("local", 1, chat=True)
        assert len(code.splitlines()) == 3
        names: dict[str, Any] = {}
        made = code.splitlines()[1]
        exec(code.splitlines()[0], names)
        names["GuardedGenerator"] = lambda generator, constraint, seed: constraint
        exec(made, names)
        assert names["guarded"] == scene.constraint


# plan


def test_plan(model, has_a):
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
    assert "choose sampler='rejection'" in result.stdout
    plan = json.loads(run(*args, "--json", "--proposal", "a{prompt}", "--top-k", 0).stdout)
    assert [forecast["prompt"] for forecast in plan["forecasts"]] == ["ab", "cd"]
    assert all(forecast["texts"] == 3 and forecast["pilot"] == 40 for forecast in plan["forecasts"])
    assert plan["sampler"] in ("qrs", "rejection")
    assert_one_line(run("plan", "ab", "-c", has_a, "--model", model, "--proposal", "a"), "{prompt}")


# generate


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
    assert reports["rejection"]["drawn_from"] == "g' of the prompt 'ca{prompt}', not g"
    assert reports["qrs"]["drawn_from"].startswith("approximately g: QRS, β = ")
    assert reports["imh"]["evidence"]["steps"] == 10
    (plain,) = records(generate(model, *options).stdout)
    assert (plain["report"]["sampler"], plain["report"]["proposal"]) == ("rejection", None)
    # As the Python twin draws them.
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
    assert_one_line(result, "2 of 2 prompts", "max_attempts", "has a digit", code=3)
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
    assert "1 of 1 text after" in result.stdout
    assert '"report"' not in result.stdout


def test_terminal_escapes_are_not_printed():
    assert printable("a\x1b[31mb\n\tü\x07") == "a\ufffd[31mb\n\tü\ufffd"


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
        (["a" * 99, "-c", "has-a.yaml"], None, ["argument 1", "99 tokens", "64"]),
        (["hi", "-c", "has-a.yaml", "--temperature", "0"], None, ["temperature"]),
        (["hi", "-c", "has-a.yaml", "--batch-size", "0"], None, ["batch_size"]),
        (["hi", "-c", "has-a.yaml", "--seed", "-1"], None, ["seed"]),
        (["hi", "-c", "has-a.yaml", "--max-attempts", "0"], None, ["max_attempts"]),
        (["hi", "-c", "has-a.yaml", "--model", "./no-model"], None, ["./no-model"]),
        (["--file", "a\0b", "-c", "has-a.yaml"], None, ["cannot read 'a"]),
        (["hi", "-c", "has-a.yaml", "--sampler", ""], None, ["unknown sampler ''"]),
        (["hi", "-c", "has-a.yaml", "--sampler", "qsr"], None, ["qsr", "did you mean 'qrs'"]),
        (["hi", "-c", "has-a.yaml", "--proposal", "a"], None, ["{prompt}"]),
        (["hi", "-c", "has-a.yaml", "--proposal", "a{prompt}", "--sampler", "qrs"], None, ["top_k=0"]),
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


def test_what_was_done_before_a_bad_prompt_is_kept(model, has_a, tmp_path):
    stdin = '{"prompt": "ab"}\n' * 9 + "{broken\n"
    result = generate(
        model, "--jsonl", "-", "-c", has_a, "-o", "out.jsonl", "--seed", 1, "--batch-size", 1, stdin=stdin
    )
    assert_one_line(result, "stdin:10", "not JSON", "prompts are in out.jsonl", "--resume")
    kept = records((tmp_path / "out.jsonl").read_text())
    assert 0 < len(kept) <= 9
    assert f"{len(kept)} prompts are in" in result.stderr


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
    assert run("check", "code.yaml", "--allow-code", "xyz").exit_code == 1


@pytest.mark.usefixtures("watchdog")
def test_a_named_pipe_is_no_file_of_settings(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    for args in (
        ("check", "pipe.yaml", "a"),
        ("generate", "ab", "-c", "pipe.yaml"),
        ("plan", "ab", "-c", "pipe.yaml"),
        ("train", "pipe.yaml", "-o", "out"),
        ("evaluate", "pipe.yaml", "-o", "out"),
    ):
        assert_one_line(run(*args), "cannot read 'pipe.yaml': it is a named pipe, and a file is needed")
    (tmp_path / "results").mkdir()
    for file in ("result.json", "curve.jsonl", "evaluation.json"):
        os.mkfifo(tmp_path / "results" / file)
        assert_one_line(run("report", "results"), f"results/{file}': it is a named pipe")
        (tmp_path / "results" / file).unlink()


def test_what_the_shell_opened_may_be_a_pipe():
    """As in ``guardwrap check <(yq .rules all.yaml) "a text"``."""
    read, write = os.pipe()
    os.write(write, HAS_A.encode())
    os.close(write)
    assert run("check", f"/dev/fd/{read}", "a").exit_code == 0
    os.close(read)


@pytest.mark.usefixtures("watchdog")
def test_results_may_go_to_a_device_or_a_pipe(model, has_a, tmp_path):
    assert generate(model, "ab", "-c", has_a, "-o", "/dev/null").exit_code == 0
    assert_one_line(generate(model, "ab", "-c", has_a, "-o", "/dev/null", "--resume"), "is a device", "leave --resume")
    full = generate(model, "ab", "-c", has_a, "-o", "/dev/full")
    assert_one_line(full, "cannot write the results: No space left on device: /dev/full; no prompt was done", code=1)
    os.mkfifo(tmp_path / "pipe")
    assert_one_line(generate(model, "ab", "-c", has_a, "-o", "pipe", "--resume"), "is a named pipe", "leave --resume")


@pytest.mark.parametrize("line", ['{"prompt": "ab", "x": NaN}', '{"prompt": "ab", "x": [1e999]}'])
def test_numbers_that_json_has_not_are_not_copied(has_a, tmp_path, line):
    (tmp_path / "p.jsonl").write_text(line + "\n")
    assert_one_line(generate("no-model", "--jsonl", "p.jsonl", "-c", has_a), "p.jsonl:1: ", "is no number that JSON")


@pytest.mark.parametrize("code", [0, 3])
def test_a_rule_that_ends_the_program_has_crashed(tmp_path, code):
    """Else the exit code would be the rule's: 0 says that every text is accepted."""
    (tmp_path / f"ending_rules{code}.py").write_text(f"import sys\ndef rule(text):\n    sys.exit({code})\n")
    rule = f"guardwrap: 1\nconstraint: {{kind: python, function: 'ending_rules{code}:rule'}}\n"
    (tmp_path / "c.yaml").write_text(rule)
    assert_one_line(run("check", "c.yaml", "ab", "--allow-code"), "raised SystemExit")


def test_ctrl_c_is_one_line_in_every_command(has_a, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("guardwrap.constraints.text.Regex.check", interrupted)
    result = run("check", has_a, "ab")
    assert (result.exit_code, result.stderr.strip()) == (130, "guardwrap: interrupted")


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


def without_time(text):
    rows = records(text)
    for row in rows:
        del row["report"]["usage"]
    return rows


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
        (("--sampler", "imh"), "another --proposal or --adapter, or with none"),
        (("--sampler", "imh", "--proposal", "b{prompt}"), "another --proposal or --adapter, or with none"),
    ]:
        assert_one_line(generate(model, *options, "--resume", *other), "out.jsonl:1: was made with", says)
        assert (tmp_path / "out.jsonl").read_text() == part
    assert generate(model, *options, "--resume", *drawn).exit_code == 0
    rows, wanted = without_time((tmp_path / "out.jsonl").read_text()), without_time(whole)
    for row in (*rows, *wanted):
        # Weights are rounded as the batch has it, in the seventh digit.
        del row["report"]["evidence"]["autocorrelation"]
    assert rows == wanted
    # Written before reports named a proposal: that was none.
    assert generate(model, *options[:-1], "old.jsonl").exit_code == 0
    rows = records((tmp_path / "old.jsonl").read_text())
    del rows[0]["report"]["proposal"]
    (tmp_path / "old.jsonl").write_text(json.dumps(rows[0]) + "\n")
    assert_one_line(generate(model, *options[:-1], "old.jsonl", "--resume", "--proposal", "a{prompt}"), "with none")
    assert generate(model, *options[:-1], "old.jsonl", "--resume").exit_code == 0


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
        assert [record["report"]["drawn_from"].count(f"g' of the {name}") for record in records(whole)] == [1, 1]
        part = whole.splitlines(keepends=True)[0]
        (tmp_path / "out.jsonl").write_text(part)
        assert_one_line(generate(model, *options, "--resume"), "another --proposal or --adapter, or with none")
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
    # Written before lines named settings: whatever they were.
    row = json.loads(first)
    del row["report"]["settings"]
    (tmp_path / "out.jsonl").write_text(json.dumps(row) + "\n")
    assert generate(model, *options, "--resume").exit_code == 0
    (tmp_path / "out.jsonl").write_text(json.dumps({**row, "report": {**row["report"], "settings": 1}}) + "\n")
    assert_one_line(generate(model, *options, "--resume"), "out.jsonl:1: is not a line")


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
        ((*given[:4], *given[6:]), "with max_attempts 50, and this run is with 1000"),
        ((*given[:6], "--max-seconds", 98), "with max_seconds 99"),
        ((*given, "--max-tokens", 7), "without max_tokens, and this run is with 7"),
        ((*given[:6],), "with max_seconds 99.0, and this run is without"),
        (("-c", "c.yaml", *given[2:]), "without deadline, and this run is with 900"),  # no part of its constraint
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
    assert generate(model, *options).exit_code == 0  # no such file yet: it begins
    before = (tmp_path / "out.jsonl").read_bytes()
    monkeypatch.setattr(sys.modules["guardwrap.cli.generate"], "load_generator", None)  # not even loaded
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
        (("ab", "zz", "-c", has_a), "out.jsonl:2: is not about the prompt of argument 2"),
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


def test_ctrl_c_leaves_complete_lines_and_says_how_to_go_on(model, has_a, tmp_path):
    (tmp_path / "many.txt").write_text("some prompt\n" * 100_000)
    options = ["generate", "-m", model, "-f", "many.txt", "-c", has_a, "-o", "out.jsonl", "--seed", "3"]
    options += ["--max-new-tokens", "8", "--batch-size", "4"]
    process = python(START, *options, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output = tmp_path / "out.jsonl"
    try:
        give_up = time.monotonic() + 50
        while time.monotonic() < give_up and (not output.exists() or output.read_bytes().count(b"\n") < 5):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert stdout == ""
    written = output.read_text()
    assert written.endswith("\n")
    done = len(records(written))
    assert done >= 5
    assert len(stderr.splitlines()) == 1
    (said,) = map(int, re.findall(r"(\d+) of 100000 prompts are in out\.jsonl; .*--resume", stderr))
    assert said in (done, done - 1)
    # What is there is what an uninterrupted run would have begun with.
    (tmp_path / "few.txt").write_text("some prompt\n" * done)
    result = generate(model, "-f", "few.txt", "-c", has_a, "--seed", 3, "--batch-size", 4)
    assert without_time(result.stdout) == without_time(written)


# check


def test_check_runs_the_examples(tmp_path):
    (tmp_path / "two.yaml").write_text(TWO_PARTS)
    result = run("check", "two.yaml")
    assert result.exit_code == 0, result.output
    assert "two.yaml: valid, 2 parts" in result.stdout
    assert "4 of 4 examples as expected" in result.stdout


def test_check_names_all_failing_parts(tmp_path):
    (tmp_path / "two.yaml").write_text(TWO_PARTS)
    result = run("check", "two.yaml", "zzzzzzzzz", "abc", "xyz")
    assert result.exit_code == 1
    first, second, third = result.stdout.splitlines()[-3:]
    assert first == "text 1 rejected by 'has an a', 'short': 'zzzzzzzzz'"
    assert second == "text 2 accepted: 'abc'"
    assert third == "text 3 rejected by 'has an a': 'xyz'"
    (tmp_path / "texts.txt").write_text("abc\n\n")
    result = run("check", "two.yaml", "--file", "texts.txt")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "text 2 rejected by 'has an a': ''"
    assert run("check", "two.yaml", "abc", "--file", "-", stdin="ba\n").exit_code == 0


def test_check_lists_examples_that_are_wrong(tmp_path):
    wrong = TWO_PARTS.replace("[abc, a]", "[abc, zzzzzzz]").replace("[xyz, ", "[xyz, ab, ")
    (tmp_path / "two.yaml").write_text(wrong)
    result = run("check", "two.yaml")
    assert result.exit_code == 1
    assert "3 of 5 examples as expected" in result.stdout
    assert "listed under accepts, but rejected by 'has an a', 'short': 'zzzzzzz'" in result.stdout
    assert "listed under rejects, but is accepted by every part: 'ab'" in result.stdout


def test_check_as_json(tmp_path):
    (tmp_path / "two.yaml").write_text(TWO_PARTS)
    result = run("check", "two.yaml", "--json", "zzzzzzzzz")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert data["ok"] is False
    assert data["parts"] == ["has an a", "short"]
    assert data["examples"][2] == {"text": "xyz", "expected": False, "failed": ["has an a"], "accepted": False}
    assert data["texts"] == [{"text": "zzzzzzzzz", "accepted": False, "failed": ["has an a", "short"]}]
    assert run("check", "two.yaml", "--digest").stdout == data["digest"] + "\n"


def test_check_bad_files(tmp_path):
    (tmp_path / "bad.yaml").write_text("guardwrap: 1\nconstraint: {kind: regx, pattern: a}\n")
    assert_one_line(run("check", "bad.yaml"), "bad.yaml:2", "did you mean 'regex'")
    assert_one_line(run("check", "missing.yaml"), "missing.yaml")
    assert_one_line(run("check", "catalogue:no-url"), "did you mean 'no-urls'")
    assert_one_line(run("check", "bad.yaml", "--json"), "bad.yaml:2")


def test_check_says_when_a_checker_crashes_without_quoting_the_text(tmp_path):
    (tmp_path / "cli_crash.py").write_text("def bad(text):\n    raise ValueError(text)\n")
    (tmp_path / "code.yaml").write_text("guardwrap: 1\nconstraint: {kind: python, function: 'cli_crash:bad'}\n")
    result = run("check", "code.yaml", "--allow-code", "secret")
    assert_one_line(result, "cli_crash:bad", "ValueError")
    assert "secret" not in result.output


# catalogue


def test_catalogue_lists_and_prints(monkeypatch):
    result = run("catalogue")
    assert result.exit_code == 0
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [name for name, _, kind in rows if kind == "constraint"] == catalogue_names()
    assert [name for name, _, kind in rows if kind == "adapter"] == ["dragon", "json-object"]
    assert all(about for _, about, _ in rows)
    for name in ("no-urls", "catalogue:no-urls"):
        assert run("catalogue", name).stdout == (ROOT / "constraints" / "no-urls.yaml").read_text()
    monkeypatch.setattr("typer.testing._NamedTextIOWrapper.isatty", lambda self: True, raising=False)
    table = run("catalogue").stdout
    assert all(name in table for name in catalogue_names())
    assert "-c catalogue:NAME" in table
    assert "--adapter catalogue:NAME" in table


def test_catalogue_schema():
    from jsonschema import Draft202012Validator
    from yaml import safe_load

    schema = json.loads(run("catalogue", "--schema").stdout)
    Draft202012Validator.check_schema(schema)
    assert Draft202012Validator(schema).is_valid(safe_load(TWO_PARTS))
    assert not Draft202012Validator(schema).is_valid(safe_load(TWO_PARTS.replace("constraint:", "constrain:")))


def test_catalogue_bad_calls():
    assert_one_line(run("catalogue", "no-url"), "did you mean 'no-urls'")
    assert_one_line(run("catalogue", "../pyproject"), "unknown catalogue entry")
    assert_one_line(run("catalogue", "no-urls", "--schema"), "--schema")
