"""``guardwrap train``: a run, an interrupted run, bad input, exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from html import unescape
from pathlib import Path

import pytest

from guardwrap import GuardedGenerator
from guardwrap.adapters import Card
from guardwrap.testing import llama_world
from guardwrap.training import read_settings
from tests.cli.fixtures_commands import assert_one_line
from tests.cli.fixtures_commands import run as command

pytestmark = pytest.mark.usefixtures("command_line")

ROOT = Path(__file__).parents[3]
START = """\
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the test runner is in the background
from guardwrap.cli import main
main()
"""
CONFIG = """\
model: model
name: tiny/llama
constraint: {kind: regex, name: doubled, pattern: aa|bb}
prompts: [a]
generation: {max_new_tokens: 4, temperature: 1.0, top_k: 0}
samples: 400
rounds: 2
updates: 10
look: 5
rank: 2
learning_rate: 0.005
gold_attempts: 300
final_attempts: 200
"""


@pytest.fixture
def config(tmp_path):
    world = llama_world()
    for part in (world.model, world.tokenizer):
        part.save_pretrained(tmp_path / "model")
    (tmp_path / "train.yaml").write_text(CONFIG)
    return tmp_path / "train.yaml"


run = partial(command, "train")


def test_a_run(config, tmp_path):
    result = run("train.yaml", "--out", "out")
    assert result.exit_code == 0, result.output
    progress = [line for line in result.stderr.splitlines() if line.startswith("round ")]
    assert len(progress) == 3
    for name in ("samples", "tokens", "AR", "Z", "KL(g‖a')"):
        assert name in progress[1]
    assert "acceptance after: " in result.stdout
    assert "KL is measured on " in result.stdout
    assert result.stdout.splitlines()[-1] == str(Path("out/adapter"))
    out = tmp_path / "out"
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")
    rows = [json.loads(line) for line in (out / "curve.jsonl").read_text().splitlines()]
    written = json.loads((out / "result.json").read_text())
    assert [row["samples"] for row in rows] == [100, 220, 400] == [row["samples"] for row in written["curve"]]
    assert written["settings"]["seed"] == 0
    card = Card.read(out / "adapter" / "card.yaml")
    assert card.base.name == "tiny/llama"
    assert card.samples == 400
    before, after = card.figures.acceptance_before, card.figures.acceptance_after
    assert before is not None
    assert before.high is not None
    assert after is not None
    assert after.low > before.high
    # It loads into an app.
    settings, constraint = read_settings(config)
    guarded = GuardedGenerator(settings.model, constraint, adapter=out / "adapter")
    assert guarded.run("a", seed=1, **settings.generation)[0].ok


@pytest.mark.slow
def test_each_part_says_how_far_it_is(config, monkeypatch):
    told = []

    @contextmanager
    def shown(state, total, what, _console):
        yield
        told.append((what, state().done, state().kept, total))

    monkeypatch.setattr("guardwrap.cli.commands.train_command.progress_shown", shown)
    assert run("train.yaml", "-o", "out").exit_code == 0
    assert told == [("gold attempt", 300, 0, 300), ("sample", 400, 0, 400), ("final attempt", 200, 0, 200)]
    told.clear()
    assert run("train.yaml", "-o", "out").exit_code == 0  # samples of an earlier run do not count for the ETA
    assert [(what, done, kept) for what, done, kept, *_ in told] == [
        ("gold attempt", 300, 300),
        ("sample", 400, 400),
        ("final attempt", 200, 200),
    ]


@pytest.mark.slow
def test_a_run_can_be_shown(config, tmp_path):
    assert run("train.yaml", "-o", "out", "--samples", 100).exit_code == 0
    for name in ("curve.png", "acceptance.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
    written = json.loads((tmp_path / "out" / "result.json").read_text())
    assert written["versions"].keys() == {"guardwrap", "torch", "transformers", "peft", "numpy"}
    shown = command("report", "out")
    assert shown.exit_code == 0, shown.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Training a proposal for doubled" in page
    assert f"{written['figures']['kl_gold_proposal']['value']:.3g} [" in page
    assert "Learning curves: KL(g‖a') [nats] against samples" in unescape(page)


@pytest.mark.slow
def test_the_command_again_changes_nothing_and_a_raised_budget_goes_on(config, tmp_path):
    first = run("train.yaml", "-o", "out", "--tokens", 200)
    assert first.exit_code == 0, first.output
    weights = tmp_path / "out" / "adapter" / "adapter_model.safetensors"
    before = weights.read_bytes()
    again = run("train.yaml", "-o", "out", "--tokens", 200)
    assert again.stdout == first.stdout
    assert "round" not in again.stderr
    assert weights.read_bytes() == before
    more = run("train.yaml", "-o", "out")
    assert more.exit_code == 0
    # What the second of three rounds could not draw and the third would have drawn, in as many rounds as planned.
    assert [line[:8] for line in more.stderr.splitlines()] == ["round 2:", "round 3:"]
    assert " 400 samples" in more.stderr.splitlines()[-1]
    assert weights.read_bytes() != before


@pytest.mark.slow
def test_a_card_has_no_path(config, tmp_path):
    config.write_text(CONFIG.replace("name: tiny/llama\n", ""))
    assert run("train.yaml", "-o", "out", "--samples", 100).exit_code == 0
    text = "".join((tmp_path / "out" / "adapter" / name).read_text() for name in ("card.yaml", "README.md"))
    assert str(tmp_path) not in text
    assert Card.read(tmp_path / "out" / "adapter" / "card.yaml").base.name == "model"


@pytest.mark.parametrize(
    ("args", "change", "parts"),
    [
        (["nowhere.yaml", "-o", "out"], ("", ""), ["cannot read 'nowhere.yaml'"]),
        (["train.yaml", "-o", "train.yaml"], ("", ""), ["it is not a folder"]),
        (["train.yaml", "-o", "out", "--method", "ppo"], ("", ""), ["method: 'ppo' is not one of replay, dpg, sft"]),
        (["train.yaml", "-o", "out", "--method", "repaly"], ("", ""), [": method: ", "(did you mean 'replay'?)"]),
        (["train.yaml", "-o", "out", "--seconds", "0"], ("", ""), ["seconds: ", "must be above 0"]),
        (["train.yaml", "-o", "out", "--samples", "0"], ("", ""), ["--samples"]),
        (["train.yaml"], ("", ""), ["--out"]),
        (["train.yaml", "-o", "out"], ("samples: 400", "sample: 400"), ["train.yaml:6", "sample"]),
        (["train.yaml", "-o", "out"], ("[a]", "[]"), ["train.yaml:4"]),
        (["train.yaml", "-o", "out"], ("pattern: aa|bb", "pattern: '('"), ["train.yaml:3"]),
        (["train.yaml", "-o", "out"], ("top_k: 0", "top_k: 2"), ["pass top_k=0 as generation settings"]),
        (["train.yaml", "-o", "out"], ("rounds: 2", "hints: [say aa]"), ["train.yaml:7", "needs {prompt}"]),
        (["train.yaml", "-o", "out"], ("rounds: 2", "trackers: [carrierpigeon]"), ["trackers: ", "carrierpigeon"]),
        (["train.yaml", "-o", "out"], ("model: model", "model: ./nothing"), ["./nothing"]),
    ],
)
def test_bad_input_is_one_line(config, args, change, parts):
    config.write_text(CONFIG.replace(*change))
    assert_one_line(run(*args), *parts)


def test_hints_beyond_a_budget_of_the_command_line(config):
    config.write_text(CONFIG + "hints: ['b{prompt}']\nwarm_samples: 200\n")
    assert_one_line(run("train.yaml", "-o", "out", "--samples", "100"), "warm_samples=200", "samples=100")


@pytest.mark.slow
@pytest.mark.parametrize("start", [False, True])
def test_nothing_learned_is_exit_code_3(config, tmp_path, start):
    if start:
        assert run("train.yaml", "-o", "first", "--samples", 100).exit_code == 0
        config.write_text(CONFIG + "start: first/adapter\n")
    for _ in range(2):  # also if the training is done already
        result = run("train.yaml", "-o", "out", "--seconds", 1e-9)
        assert result.exit_code == 3, result.output
        assert result.stderr.splitlines()[-1].startswith("guardwrap: nothing was learned; raise samples")
        effect = "equals the one it started from" if start else "has no effect"
        assert f"nothing was learned: the adapter {effect}" in result.stdout
        assert result.stdout.splitlines()[-1] == str(Path("out/adapter"))
    assert Card.read(tmp_path / "out" / "adapter" / "card.yaml").figures.acceptance_after is not None


@pytest.mark.slow
def test_the_folder_of_another_training(config):
    assert run("train.yaml", "-o", "out", "--samples", 100).exit_code == 0
    again = run("train.yaml", "-o", "out", "--seed", 1)
    assert_one_line(again, "'out' contains another training, which differs in seed")


def test_trackers_that_are_not_installed(config, monkeypatch):
    config.write_text(CONFIG + "trackers: [tensorboard]\n")
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", list)
    assert_one_line(run("train.yaml", "-o", "out"), "'tensorboard' is not installed", "pip install")


@pytest.mark.slow
def test_tensorboard(config, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config.write_text(CONFIG + "trackers: [tensorboard]\n")
    result = run("train.yaml", "-o", "out")
    assert result.exit_code == 0, result.output
    found = EventAccumulator(str(tmp_path / "out" / "guardwrap"))
    found.Reload()
    assert {"acceptance", "effective", "kl", "kl_gold", "partition", "mixture", "held_out"} <= set(
        found.Tags()["scalars"]
    )
    assert [event.step for event in found.Scalars("acceptance")] == [100, 220, 400]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_who_ends_it_finds_what_is_trained_and_the_same_command_goes_on(config, tmp_path, sent, code, word):
    """Ctrl-C, or the signal of a job scheduler."""
    config.write_text(CONFIG.replace("samples: 400", "samples: 4000").replace("rounds: 2", "rounds: 40"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", START, "train", "train.yaml", "-o", "out"]
    process = subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    curve = tmp_path / "out" / "curve.jsonl"
    try:
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up and not curve.exists():
            time.sleep(0.05)
        process.send_signal(sent)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code
    assert stdout == ""
    assert re.search(rf"^guardwrap: {word}: .*; continue with the same command", stderr.splitlines()[-1])
    card = Card.read(tmp_path / "out" / "adapter" / "card.yaml")
    assert card.notes == ["interrupted: nothing was measured"]
    assert 0 < card.samples < 4000
    result = run("train.yaml", "-o", "out", "--tokens", card.tokens)  # only the final measurement is left
    assert result.exit_code == 0, result.output
    assert Card.read(tmp_path / "out" / "adapter" / "card.yaml").figures.acceptance_after is not None
