"""Results that an interrupted run finished ahead of a slow prompt are saved, and used by the next run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guardwrap import GuardedGenerator
from guardwrap.cli.commands import generate_command as module
from guardwrap.cli.out_of_order_cache import keep_ahead, path_of, read_ahead
from guardwrap.errors import ModelError, UsageError
from guardwrap.outcomes import Outcome
from tests.cli.fixtures_commands import assert_one_line, generate, records, without_time

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
OUT, AHEAD = Path("out.jsonl"), Path("out.jsonl.ahead")
_stream = GuardedGenerator.stream


def write(lines: list[dict[str, Any]]) -> None:
    Path("in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


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
        "guardwrap: interrupted: 1 of 6 prompts is in out.jsonl, and 4 waiting for a slow one (in.jsonl:2) in "
        "out.jsonl.ahead; continue with the same command and --resume\n"
    )
    return drawn


def whole(model: str, options: tuple[Any, ...], seed: int = 1) -> list[dict[str, Any]]:
    return without_time(generate(model, *options, "--seed", seed).stdout)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [(), ("--seed", 1)])
def test_only_what_was_not_ready_is_drawn_for(
    model: str, options: tuple[Any, ...], given_up: Drawn, seed: tuple[Any, ...]
) -> None:
    kept, seed_kept = read_ahead(OUT)
    assert sorted(kept) == [2, 3, 4, 5]
    assert seed_kept == 1
    assert generate(model, *options, "-o", OUT, "--resume", *seed).exit_code == 3, "the slow one has no text"
    assert given_up.prompts == 1
    lines = OUT.read_bytes().splitlines(keepends=True)
    assert {number: lines[number] for number in kept} == kept, "byte by byte"
    assert without_time(OUT.read_text()) == whole(model, options)
    assert not AHEAD.exists()


@pytest.mark.slow
def test_nothing_is_lost_by_a_second_interruption(model: str, options: tuple[Any, ...], drawn: Drawn) -> None:
    """Lines of the first run that were not used yet are kept, wherever the second one is interrupted."""
    drawn.most = 3
    assert generate(model, *options, "-o", OUT, "--seed", 1, "--batch-size", 2).exit_code == 130
    first, _ = read_ahead(OUT)
    done = OUT.read_bytes().count(b"\n")
    drawn.most = 1
    assert generate(model, *options, "-o", OUT, "--resume", "--batch-size", 1).exit_code == 130
    second, _ = read_ahead(OUT)
    now = OUT.read_bytes().count(b"\n")
    still = {number: line for number, line in first.items() if number >= now}
    assert still
    assert {number: second.get(number) for number in still} == still
    assert len(second) + now > len(first) + done
    drawn.most = None
    assert generate(model, *options, "-o", OUT, "--resume").exit_code == 3
    assert without_time(OUT.read_text()) == whole(model, options)


@pytest.mark.slow
def test_a_run_without_a_line_goes_on_with_its_seed(model: str, options: tuple[Any, ...], drawn: Drawn) -> None:
    write(LINES[1:])
    drawn.most = 4
    told = generate(model, *options, "-o", OUT, "--seed", 5)
    assert "no prompt is in out.jsonl, and 4 waiting for a slow one (in.jsonl:1)" in told.stderr
    drawn.most = None
    assert_one_line(generate(model, *options, "-o", OUT, "--resume", "--seed", 6), "--seed 5")
    assert generate(model, *options, "-o", OUT, "--resume").exit_code == 3
    assert drawn.prompts == 1
    assert without_time(OUT.read_text()) == whole(model, options, seed=5)


CHANGES: dict[str, dict[str, Any]] = {
    "another prompt": {"prompt": "kl"},
    "another rule": {"prompt": "ef", "constraint": {"kind": "regex", "pattern": "b"}},
    "another budget": {"prompt": "ef", "budget": {"max_attempts": 77}},
    "another seed": {"prompt": "ef", "seed": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_line_of_another_run_is_drawn_again(
    model: str, options: tuple[Any, ...], given_up: Drawn, change: str
) -> None:
    write([*LINES[:5], CHANGES[change]])
    assert generate(model, *options, "-o", OUT, "--resume").exit_code == 3
    assert given_up.prompts == 2
    assert without_time(OUT.read_text()) == whole(model, options)


@pytest.mark.slow
def test_negative_control_lines_that_are_not_compared(
    model: str, options: tuple[Any, ...], given_up: Drawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "is_of_run", lambda *_, **__: True)
    write([*LINES[:5], CHANGES["another rule"]])
    assert generate(model, *options, "-o", OUT, "--resume").exit_code == 3
    assert given_up.prompts == 1
    assert without_time(OUT.read_text()) != whole(model, options)


@pytest.mark.slow
def test_a_run_of_its_own_takes_nothing(model: str, options: tuple[Any, ...], given_up: Drawn) -> None:
    assert generate(model, *options, "-o", OUT, "--overwrite", "--seed", 2).exit_code == 3
    assert given_up.prompts == 6
    assert without_time(OUT.read_text()) == whole(model, options, seed=2)
    assert not AHEAD.exists()


def test_an_error_keeps_what_is_ready_too(model: str, options: tuple[Any, ...], drawn: Drawn) -> None:
    drawn.most, drawn.error = 5, ModelError("lost")
    told = generate(model, *options, "-o", OUT, "--seed", 1)
    assert_one_line(
        told, "lost; 1 of 6 prompts is in out.jsonl, and 4 waiting for a slow one (in.jsonl:2) in out.jsonl.ahead"
    )


@pytest.mark.parametrize("content", ["mine\n", "1 {}\n", "x {}\n", '1 {"seed": 1}\n1 [', "\xff"])
def test_a_file_of_somebody_else_is_left_alone(
    model: str, options: tuple[Any, ...], drawn: Drawn, content: str
) -> None:
    AHEAD.write_text(content, encoding="latin-1")
    told = generate(model, *options, "-o", OUT, "--seed", 1)
    assert_one_line(told, "'out.jsonl.ahead' was not written by guardwrap generate; remove or rename it")
    assert AHEAD.exists()
    assert not OUT.exists()


def test_what_was_drawn_again_need_not_wait_for_its_turn(
    model: str, options: tuple[Any, ...], drawn: Drawn, tmp_path: Path
) -> None:
    """With --retry-failed, lines replace old ones, so no file beside the output is needed."""
    assert generate(model, *options, "-o", OUT, "--seed", 1, "--max-attempts", 1).exit_code == 3
    short = [number for number, record in enumerate(records(OUT.read_text())) if not record["ok"]]
    assert 1 in short[:-2], "the slow one, and some behind it"
    drawn.most = len(short) - 1
    again = ("--resume", "--retry-failed", "--max-attempts", 600, "--seed", 2)
    told = generate(model, *options, "-o", OUT, *again)
    assert told.exit_code == 130
    assert f"{len(short) - 1} of {len(short)} prompts were retried and are in out.jsonl" in told.stderr
    assert [number for number, record in enumerate(records(OUT.read_text())) if not record["ok"]] == [1]


def test_files_of_their_own(tmp_path: Path) -> None:
    output = tmp_path / "o"
    line = b'{"report": {"seed": 3}}\n'
    keep_ahead(output, {12: line, 3: line})
    assert read_ahead(output) == ({3: line, 12: line}, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["o.ahead"]
    keep_ahead(output, {})
    keep_ahead(output, {})
    assert read_ahead(output) == ({}, None)
    assert not list(tmp_path.iterdir())
    path_of(output).mkdir()
    with pytest.raises(UsageError, match="cannot read"):
        read_ahead(output)
