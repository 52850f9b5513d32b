"""Streams that are closed or full, and Ctrl-C during imports: one line on stderr, and an exit code."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from guardwrap.cli.signals import Terminated, ends_in_order, exit_of
from guardwrap.testing import llama_world

ROOT = Path(__file__).parents[2]
CLOSED = "stdout was closed before everything was written"
FULL = "No space left on device"
START = "from guardwrap.cli import main; main()"


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a tiny model and a constraint."""
    folder = tmp_path_factory.mktemp("place")
    world = llama_world(letters="abcdef .\n")
    world.model.save_pretrained(folder / "model")
    world.tokenizer.save_pretrained(folder / "model")
    (folder / "a.yaml").write_text("guardwrap: 1\nconstraint: {kind: length, min: 0}\n")
    (folder / "many.txt").write_text("ab\n" * 2_000)
    return folder


def shell(place, line):
    """Run a shell line with the command ``guardwrap``, and return its exit code and stderr."""
    command = f'"{sys.executable}" -m guardwrap'
    script = line.replace("guardwrap", command, 1)
    done = subprocess.run(
        ["bash", "-c", f'{script}; exit "${{PIPESTATUS[0]}}"'],
        cwd=place,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("catalogue > /dev/full", FULL),
        ("catalogue >&-", CLOSED),
        ("catalogue --schema >&-", CLOSED),
        ("catalogue --schema | (exec 0<&-; sleep 2)", CLOSED),
        ("--help >&-", CLOSED),
        ("check a.yaml ab > /dev/full", FULL),
        ("generate ab -c a.yaml -m model > /dev/full", FULL),
        ("generate -f many.txt -c a.yaml -m model | head -1", CLOSED),  # more than the buffer of a pipe holds
    ],
)
def test_a_closed_or_full_stdout_is_one_line(place, command, says):
    code, stderr = shell(place, f"guardwrap {command}")
    assert code == 1
    assert len(stderr.splitlines()) == 1, stderr
    assert stderr.startswith("guardwrap: ")
    assert says in stderr
    if command.startswith("generate"):
        assert "done" in stderr


@pytest.mark.slow
def test_what_is_not_used_may_be_closed(place):
    code, stderr = shell(place, "guardwrap generate ab -c a.yaml -m model -o out.jsonl >&- <&-")
    assert (code, stderr) == (0, "")
    assert len((place / "out.jsonl").read_text().splitlines()) == 1
    assert shell(place, "guardwrap plan -c a.yaml <&-") == (2, "guardwrap: there is no prompt to plan for\n")


@pytest.mark.parametrize("to", ["2>&-", "2> /dev/full"])
def test_without_a_place_for_messages_the_code_says_it(place, to):
    assert shell(place, f"guardwrap nosuch {to}") == (2, "")


# The process sends itself the signal when it imports a module, so that the test does not depend on time.
AT_AN_IMPORT = """\
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the test runner is in the background
def hook(event, args):
    if event == "import" and args[0] == {name!r} and not sent:
        sent.append(True)
        os.kill(os.getpid(), signal.SIGINT)
sent = []
sys.addaudithook(hook)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["guardwrap.cli.typer_app", "typer", "pydantic", "scipy", "torch", "guardwrap.engine.scheduling.scheduler"],
)
def test_ctrl_c_during_imports_is_one_line(place, name):
    args = ["generate", "ab", "-c", "a.yaml", "-m", "model"]
    done = subprocess.run(
        [sys.executable, "-c", AT_AN_IMPORT.format(name=name) + START, *args],
        cwd=place,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr, done.stdout) == (130, "guardwrap: interrupted\n", "")


def test_ctrl_c_at_the_end_is_no_traceback(place):
    code = (
        "import atexit, os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code + START, "--version"],
        cwd=place,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (130, "guardwrap: interrupted\n")
    assert done.stdout.startswith("guardwrap ")


def test_a_second_sigterm_does_not_disturb_what_the_first_one_began():
    """torchrun and other supervisors send it to a process and to its whole group."""
    left = []

    def ends():
        with ends_in_order():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(60)  # another thread may receive the signal; Python handles it in this one, slightly later
                left.append("nothing came")
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                left.append("in order")

    with pytest.raises(Terminated) as caught:
        ends()
    assert left == ["in order"]
    assert exit_of(caught.value) == ("terminated", 143)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
