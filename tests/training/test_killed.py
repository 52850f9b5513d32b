"""After a kill at any moment the next run resumes from the last step, with the same result."""

import json
import multiprocessing
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from guardwrap.adapters.adapter_folder import WEIGHTS
from tests.training.fixtures_kills import WATCHED, Moment, run
from tests.training.fixtures_training import PRELOADED

# One process imports torch for all tests of this file. The others are forked from it, and it has no threads that they
# would miss.
FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(PRELOADED)


def trained(folder: Path, *options: Any) -> int | None:
    process = FORKED.Process(target=run, args=(str(folder), *options))
    process.start()
    process.join()
    return process.exitcode


def result(folder: Path) -> tuple[bytes, list[dict[str, Any]]]:
    rows = [json.loads(line) for line in (folder / "curve.jsonl").read_text().splitlines()]
    return (folder / "adapter" / WEIGHTS).read_bytes(), [{**row, "seconds": None} for row in rows]


def written(folder: Path) -> int:
    """Return the number of the last checkpoint."""
    return max((int(path.name[:8]) for path in (folder / "checkpoints").glob("*-*")), default=0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return uninterrupted trainings by method, each made at its first use."""
    made: dict[str, Path] = {}

    def of(method: str) -> Path:
        if method not in made:
            made[method] = tmp_path_factory.mktemp(method)
            assert trained(made[method], method) == 0
        return made[method]

    return of


@pytest.mark.slow
@pytest.mark.parametrize(("method", "kills", "updates"), [("replay", 10, 16), ("dpg", 4, 5)])
def test_killed_at_random_moments_it_gives_the_same_adapter(tmp_path, whole, method, kills, updates):
    # killed in one of this many first calls of a run
    calls = {"draw_round": 1, "update": updates, "write_checkpoint": 2}
    counts = json.loads((whole(method) / "counts.json").read_text())
    chance = np.random.default_rng(5)
    reached = []
    for kill in range(kills):
        function = WATCHED[kill % len(WATCHED)]
        call = int(chance.integers(calls[function]))
        moment = Moment(function, call, int(chance.integers(0.9 * min(counts[function]))))
        assert trained(tmp_path, method, moment) == -signal.SIGKILL, moment
        reached.append(written(tmp_path))
    assert trained(tmp_path, method) == 0
    assert result(tmp_path) == result(whole(method))
    # The moments are spread over the whole training.
    last = written(whole(method))
    assert written(tmp_path) == last
    assert min(reached) < last / 5
    assert max(reached) > last / 3


@pytest.mark.slow
@pytest.mark.parametrize("forgotten", ["adam", "step"])
def test_negative_control_a_checkpoint_that_lacks_something(tmp_path, whole, forgotten):
    assert trained(tmp_path, "replay", Moment("update", 7, 100), forgotten) == -signal.SIGKILL
    assert trained(tmp_path, "replay", None, forgotten) == 0
    assert result(tmp_path)[0] != result(whole("replay"))[0]
