"""Lines are written as prompts end, and sorted at the end: an interruption loses nothing that has ended."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guardwrap import GuardedGenerator
from guardwrap.cli import results
from guardwrap.errors import ModelError
from guardwrap.outcomes import Outcome
from tests.cli.fixtures_commands import ROOT, assert_one_line, generate, records, run, without_time

pytestmark = pytest.mark.usefixtures("command_line")

SLOW = {"prompt": "ab", "constraint": {"kind": "regex", "pattern": "[0-9]"}, "budget": {"max_attempts": 200}}
LINES: list[dict[str, Any]] = [
    {"prompt": "cd"},
    SLOW,
    {"prompt": "ef", "id": 1},
    {"prompt": "gh", "seed": 7},
    {"prompt": "ij", "constraint": {"kind": "length", "max": 6}},
    {"prompt": "ef"},
]
OUT = Path("out.jsonl")
_stream = GuardedGenerator.stream


def write(lines: list[dict[str, Any]]) -> None:
    Path("in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def numbers(path: Path = OUT) -> list[int]:
    return [record["report"]["number"] for record in records(path.read_text())]


@pytest.fixture
def options(has_a: str) -> tuple[Any, ...]:
    write(LINES)
    return ("--jsonl", "in.jsonl", "-c", has_a, "-n", 2, "--batch-size", 8, "--quiet")


class Drawn:
    """Counts the prompts that are generated for, and interrupts the run after a number of them has ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prompts = 0
        self.most: int | None = None
        self.error: BaseException = KeyboardInterrupt()
        monkeypatch.setattr(GuardedGenerator, "stream", lambda *given, **options: self.stream(*given, **options))

    def stream(self, guarded: GuardedGenerator, prompts: Any, *, on_outcome: Any, **options: Any) -> Iterator[Outcome]:
        ended = 0
        self.prompts = 0

        def counted() -> Iterator[Any]:
            for prompt in prompts:
                self.prompts += 1
                yield prompt

        def told(number: int, outcome: Outcome) -> None:
            nonlocal ended
            on_outcome(number, outcome)
            ended += 1
            if ended == self.most:
                raise self.error

        return _stream(guarded, counted(), on_outcome=told, **options)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    return Drawn(monkeypatch)


@pytest.fixture
def given_up(model: str, options: tuple[Any, ...], drawn: Drawn) -> Drawn:
    """A run that is interrupted while the slow prompt is the only one left."""
    drawn.most = 5
    told = generate(model, *options, "-o", OUT, "--seed", 1)
    assert told.exit_code == 130
    drawn.most = None
    assert told.stderr == (
        "guardwrap: interrupted: 5 of 6 prompts are in out.jsonl; continue with the same command and --resume\n"
    )
    return drawn


def whole(model: str, options: tuple[Any, ...], seed: int = 1) -> list[dict[str, Any]]:
    """Return the records of a run that nothing interrupts, to stdout."""
    return without_time(generate(model, *options, "--seed", seed).stdout)


@pytest.mark.parametrize("seed", [(), pytest.param(("--seed", 1), marks=pytest.mark.slow)])
def test_only_what_was_not_ready_is_drawn_for(
    model: str, options: tuple[Any, ...], given_up: Drawn, seed: tuple[Any, ...]
) -> None:
    assert numbers() == [1, 3, 4, 5, 6]
    before = OUT.read_bytes().splitlines(keepends=True)
    assert generate(model, *options, "-o", OUT, "--resume", *seed).exit_code == 3, "the slow one has no text"
    assert given_up.prompts == 1
    lines = OUT.read_bytes().splitlines(keepends=True)
    assert [*lines[:1], *lines[2:]] == before, "byte by byte"
    assert without_time(OUT.read_text()) == whole(model, options)
    assert not [name for name in os.listdir() if name.endswith(".tmp")]


def test_negative_control_a_file_that_is_not_sorted(
    model: str, options: tuple[Any, ...], given_up: Drawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "sort_lines", lambda path: None)
    assert generate(model, *options, "-o", OUT, "--resume").exit_code == 3
    assert numbers() == [1, 3, 4, 5, 6, 2]


def test_a_run_in_order_is_not_written_twice(model: str, has_a: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "write_whole", lambda *_: pytest.fail("it is written again"))
    assert generate(model, "ab", "cd", "ef", "-c", has_a, "-o", OUT, "--batch-size", 1).exit_code == 0
    assert numbers() == [1, 2, 3]


@pytest.mark.slow
def test_nothing_is_lost_by_a_second_interruption(model: str, options: tuple[Any, ...], drawn: Drawn) -> None:
    drawn.most = 3
    assert generate(model, *options, "-o", OUT, "--seed", 1, "--batch-size", 2).exit_code == 130
    first = set(OUT.read_bytes().splitlines(keepends=True))
    drawn.most = 1
    assert generate(model, *options, "-o", OUT, "--resume", "--batch-size", 1).exit_code == 130
    second = set(OUT.read_bytes().splitlines(keepends=True))
    assert first < second
    assert len(second) == len(first) + 1
    drawn.most = None
    assert generate(model, *options, "-o", OUT, "--resume").exit_code == 3
    assert without_time(OUT.read_text()) == whole(model, options)


@pytest.mark.slow
def test_a_run_whose_first_prompt_is_slow_continues_with_its_seed(
    model: str, options: tuple[Any, ...], drawn: Drawn
) -> None:
    write(LINES[1:])
    drawn.most = 4
    told = generate(model, *options, "-o", OUT, "--seed", 5)
    assert "4 of 5 prompts are in out.jsonl" in told.stderr
    drawn.most = None
    assert_one_line(generate(model, *options, "-o", OUT, "--resume", "--seed", 6), "--seed 5")
    assert generate(model, *options, "-o", OUT, "--resume").exit_code == 3
    assert drawn.prompts == 1
    assert without_time(OUT.read_text()) == whole(model, options, seed=5)


def test_an_error_keeps_what_has_ended(model: str, options: tuple[Any, ...], drawn: Drawn) -> None:
    drawn.most, drawn.error = 5, ModelError("lost")
    told = generate(model, *options, "-o", OUT, "--seed", 1)
    assert_one_line(told, "lost; 5 of 6 prompts are in out.jsonl; continue with the same command and --resume")
    assert numbers() == [1, 3, 4, 5, 6]


def test_prompts_from_stdin_that_have_no_line_are_drawn_for(model: str, has_a: str) -> None:
    prompts = "ab\ncd\nef\ngh\n"
    given = ("-c", has_a, "-o", OUT, "--seed", 1)
    assert generate(model, *given, stdin=prompts).exit_code == 0
    ready = OUT.read_text()
    lines = ready.splitlines(keepends=True)
    OUT.write_text(lines[2] + lines[0])
    assert generate(model, *given, "--resume", stdin=prompts).exit_code == 0
    assert without_time(OUT.read_text()) == without_time(ready)
    OUT.write_text(lines[2] + lines[0])
    assert_one_line(generate(model, *given, "--resume", stdin="ab\n"), "out.jsonl:1: there are fewer prompts than")


def line(number: Any, text: str = "a") -> bytes:
    report = {"seed": 1, "constraint": "", "settings": {}, "number": number}
    return json.dumps({"prompt": "p", "texts": [text], "ok": True, "report": report}).encode() + b"\n"


def test_the_last_line_of_a_prompt_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(line(3) + line(1) + line(3, "new") + line(2) + line(4)[:20])
    path.chmod(0o640)
    (tmp_path / "link.jsonl").symlink_to(path)
    results.sort_lines(tmp_path / "link.jsonl")
    in_order = line(1) + line(2) + line(3, "new")
    assert path.read_bytes() == in_order
    assert (tmp_path / "link.jsonl").is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    results.sort_lines(path)  # nothing to do
    path.write_bytes(line(2) + line(1))
    with pytest.raises(OSError, match="cannot write the results: No space left"):
        results.sort_lines(path)
    assert path.read_bytes() == line(2) + line(1)
    assert sorted(name.name for name in tmp_path.iterdir() if "out" in name.name) == ["out.jsonl"]


@pytest.mark.parametrize("number", [None, 0, -1, True, "1", 1.5])
def test_a_line_without_its_number_is_of_another_version(model: str, has_a: str, number: Any) -> None:
    OUT.write_bytes(line(number))
    told = generate(model, "ab", "-c", has_a, "-o", OUT, "--resume")
    assert_one_line(told, "out.jsonl:1: does not have the number of its prompt; write to another --output")
    assert OUT.read_bytes() == line(number)


KILLED = """
import os, signal
from guardwrap.cli import generate_run, main
append, left = generate_run.to_bytes, [4]
def to_bytes(record):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    return append(record)
generate_run.to_bytes = to_bytes
main()
"""


@pytest.mark.slow
@pytest.mark.parametrize("retry", [False, True])
def test_a_killed_run_leaves_whole_lines_that_are_sorted_when_it_is_resumed(
    model: str, options: tuple[Any, ...], has_a: str, retry: bool
) -> None:
    limit, again = ("--max-attempts", 600), ("--resume", "--retry-failed", "--seed", 2) if retry else ()
    given = [*options, "-o", OUT, *limit]
    if retry:
        write([{"prompt": letters} for letters in ("ab", "cd", "ef", "gh", "ij", "kl", "mn", "op")])
        assert generate(model, *options, "-o", OUT, "--max-attempts", 1, "--seed", 1).exit_code == 3
        assert sum(not record["ok"] for record in records(OUT.read_text())) >= 4
    before = numbers() if retry else []
    arguments = ["generate", "--model", model, "--max-new-tokens", 8, *given, *(again or ("--seed", 1))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    killed = subprocess.run([sys.executable, "-c", KILLED, *map(str, arguments)], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(numbers()) == len(before) + 3
    assert run("check", has_a, "--file", OUT).exit_code == 0, "whole lines, and in a retry the old ones beside new ones"
    more = ("--resume", *(again[1:-1] if retry else ()), *((3,) if retry else ()))
    assert generate(model, *given, *more).exit_code == (0 if retry else 3)
    assert numbers() == list(range(1, len(before or LINES) + 1))
    if not retry:
        assert without_time(OUT.read_text()) == whole(model, (*options, *limit))
