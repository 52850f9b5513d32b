"""The log of a server must not stop it."""

import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest

from guardwrap.serve import lifecycle
from guardwrap.serve.lifecycle import RequestLog
from tests.serve.fixtures_server import ROOT, furnish

REQUESTS = 500  # each leaves a line of more than 150 characters: more than a pipe holds
DIRECT = """\
import logging, sys
import guardwrap.serve.lifecycle as log
writer = logging.StreamHandler(sys.stderr)
log._Lines.enqueue = lambda self, record: writer.handle(record)
"""


def answered(folder, before=""):
    """Return how many requests a server answers while nobody reads its log, and its exit code after SIGTERM."""
    command = [
        sys.executable,
        "-c",
        f"{before}from guardwrap.cli import main\nmain()",
        "serve",
        "--config",
        "serve.yaml",
        "--port",
        "0",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            count = 0
            with httpx.Client(base_url=url, timeout=5, headers={"x-request-id": "i" * 128}) as http:
                try:
                    for _ in range(REQUESTS):
                        count += http.get("/v1/models").status_code == 200
                except httpx.TimeoutException:
                    return count, None
            process.send_signal(signal.SIGTERM)
            return count, process.wait(30)
        finally:
            process.kill()


@pytest.mark.slow
def test_a_log_that_nobody_reads_stops_no_request(tmp_path):
    assert answered(furnish(tmp_path)) == (REQUESTS, 0)


@pytest.mark.slow
def test_negative_control_written_in_the_event_loop_it_does(tmp_path):
    count, code = answered(furnish(tmp_path), DIRECT)
    assert 100 < count < REQUESTS
    assert code is None


@pytest.fixture
def log():
    logger = logging.getLogger("guardwrap.serve")
    before = logger.handlers, logger.propagate, logger.level
    yield logger
    logger.handlers, logger.propagate = before[:2]
    logger.setLevel(before[2])


def test_lost_lines_are_counted(log, monkeypatch, capsys):
    monkeypatch.setattr(lifecycle, "MOST_LINES", 4)
    reading, written = threading.Event(), logging.StreamHandler.emit

    def emit(self, record):
        reading.wait(10)
        written(self, record)

    monkeypatch.setattr(logging.StreamHandler, "emit", emit)
    lines = RequestLog()
    for number in range(20):
        log.info("line %d", number)
    reading.set()
    lines.close(10)
    log.info("the last line")
    lines.close(10)
    said = ""
    while "the last line" not in said:
        time.sleep(0.02)
        said += capsys.readouterr().err
    numbers = [int(line.split()[-1]) for line in said.splitlines() if " line " in line and "last" not in line]
    assert numbers == list(range(len(numbers)))
    assert 4 <= len(numbers) <= 6
    # Counted in two parts if the thread that writes comes between.
    assert sum(map(int, re.findall(r"(\d+) lines of this log were lost", said))) == 20 - len(numbers)
