import gc
import logging
import os
import signal
import sys
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from transformers.utils import logging as transformers_logging

from guardwrap.models.embedded_model import load_local
from guardwrap.testing import World, llama_world
from tests.fixtures_device import put_models_on

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # read when haystack is imported
torch.set_num_threads(1)
if accelerator := os.environ.get("GUARDWRAP_TEST_DEVICE"):
    put_models_on(accelerator)
# No timings in tests: how long an example takes is the machine's affair. The same examples each time.
settings.register_profile("guardwrap", deadline=None, derandomize=True)
settings.load_profile("guardwrap")

FIRST = ("test_examples", "test_paper", "training", "engine", "outcomes", "test_exactness", "test_docs", "cli")
"""Files and folders that take longest."""


@pytest.fixture(autouse=True)
def usual_sigterm() -> Iterator[None]:
    """Restore the handler of SIGTERM: torch's elastic launcher, which a test runs, leaves its own to later tests."""
    yield
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes longest first; the tests of a file are run by one worker, as they share what is costly to make."""
    items.sort(key=lambda item: _turn(item.path))


@cache
def _place(path: Path) -> str:
    return path.relative_to(Path(__file__).parent).with_suffix("").as_posix()


@cache
def _turn(path: Path) -> int:
    return next((i for i, first in enumerate(FIRST) if _place(path).startswith(first)), len(FIRST))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Where no seed is given torch's generator makes one: give each test its own, whatever ran before it."""
    torch.manual_seed(zlib.crc32(f"{_place(item.path)}::{item.name}".encode()))


def pytest_collection_finish() -> None:
    """Take what was imported out of the garbage collector's rounds: it is most of all objects, and stays to the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(scope="session")
def world() -> World:
    """A random Llama over a few letters; fast enough for everything that needs no real model."""
    world = llama_world(letters="abcdef .\n", max_new_tokens=6)
    world.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}.{% endfor %}"
    return world


@pytest.fixture(scope="session")
def local() -> tuple[Any, Any]:
    """The embedded model and its tokenizer, for the tests of a file to share: each model is tried first, for 3 s."""
    return load_local()


@pytest.fixture
def watchdog() -> Iterator[None]:
    """End a test that hangs."""

    def bark(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, bark)
    signal.alarm(120)  # the slowest test takes 5 s alone, and 25 s beside four busy processes on two cores
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run a test of commands in its own folder, and undo what a command sets for its whole process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "200")
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    yield
    transformers_logging.set_verbosity(verbosity)
    if bars:
        transformers_logging.enable_progress_bar()
    logger = logging.getLogger("guardwrap")
    logger.handlers, logger.level = [], logging.NOTSET
