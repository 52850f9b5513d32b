"""Two processes share the work of one, with the same draws and the same policy."""

import json
import multiprocessing
import socket
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from guardwrap.adapters import Card
from guardwrap.support.files import CARD
from tests.training.fixtures_training import PRELOADED
from tests.training.fixtures_two_processes import run, start

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(PRELOADED)


def trained(folder: Path, processes: int, *options: Any) -> list[int | None]:
    """Return the exit codes of a training's processes."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    given = [(rank, processes, port, str(folder), *options) for rank in range(processes)]
    running = [FORKED.Process(target=start, args=each) for each in given]
    for process in running:
        process.start()
    for process in running:
        process.join(120)
        assert process.exitcode is not None, "a process waits for the other"
    return [process.exitcode for process in running]


def results(folder: Path, processes: int) -> list[dict[str, Any]]:
    paths = [folder / f"process-{rank}-of-{processes}.json" for rank in range(processes)]
    return [json.loads(path.read_text()) for path in paths]


def values(card: Card) -> dict[str, float]:
    return {name: figure.value for name, figure in card.figures if figure is not None}


@pytest.mark.slow
@pytest.mark.parametrize(
    "others",
    [
        {},
        {"method": "dpg", "hints": ["b{prompt}"], "warm_samples": 100, "gold_attempts": 90, "seconds": 1000.0},
        # If there is only one sample or one chunk, one process has no work.
        {"batch_size": 1, "samples": 60, "updates": 4, "look": 2, "tokens": 10_000},
        {"hints": ["masked"], "warm_samples": 200},
        {"hints": ["twisted"], "warm_samples": 200},
    ],
    ids=["replay", "dpg", "little to do", "masked", "twisted"],
)
def test_they_draw_what_one_draws_and_come_to_the_same(tmp_path, others):
    assert trained(tmp_path / "one", 1, others) == [0]
    assert trained(tmp_path / "two", 2, others) == [0, 0]
    (one,), two = results(tmp_path / "one", 1), results(tmp_path / "two", 2)
    assert [each["buffer"] for each in two] == [one["buffer"]] * 2
    counts = [sum(each["drawn"]) for each in two]
    assert sum(counts) == sum(one["drawn"])
    assert min(counts) >= 0.25 * sum(counts)
    assert two[0]["policy"] == two[1]["policy"]
    # The same numbers are summed in another order.
    assert two[0]["kl"] == pytest.approx(one["kl"], abs=1e-4)
    cards = [Card.read(tmp_path / folder / "adapter" / CARD) for folder in ("one", "two")]
    assert cards[0].samples == cards[1].samples
    assert values(cards[0]) == pytest.approx(values(cards[1]), abs=1e-4)


@pytest.mark.slow
def test_after_a_crash_they_go_on_together(tmp_path):
    assert trained(tmp_path / "whole", 2) == [0, 0]
    # The other process notices that the first one ended.
    codes = trained(tmp_path / "crashed", 2, {}, 6)
    assert codes[0] == 1
    assert codes[1] != 0
    assert trained(tmp_path / "crashed", 2) == [0, 0]
    whole, crashed = results(tmp_path / "whole", 2), results(tmp_path / "crashed", 2)
    assert [each["policy"] for each in crashed] == [each["policy"] for each in whole]


@pytest.mark.slow
def test_negative_control_gradients_that_are_not_added_up(tmp_path):
    assert trained(tmp_path, 2, {"rounds": 1}, None, True) == [0, 0]
    left, right = results(tmp_path, 2)
    assert left["policy"] != right["policy"]


@pytest.mark.slow
def test_torchrun_starts_them(tmp_path):
    """Use the function behind ``torchrun --standalone --nproc-per-node 2``, with processes that import torch once."""
    config = LaunchConfig(1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id="two",
                          start_method="forkserver", monitor_interval=0.1)  # fmt: skip
    elastic_launch(config, run)(str(tmp_path), {"rounds": 1, "samples": 100})
    assert len(results(tmp_path, 2)) == 2
