"""A small model to serve: its folder, its settings, and a server process."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from guardwrap.testing import llama_world

ROOT = Path(__file__).parents[2]
MESSAGES: list[Any] = [{"role": "user", "content": "ab"}]
ASKED: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "max_tokens": 12, "seed": 1}
HAS_A = {"guardwrap": {"constraint": "has-a"}}
ENDLESS = {"guardwrap": {"constraint": "endless"}}
MASKED = {"guardwrap": {"proposal": "masked"}}
LETTERS = 'abcdef {}":1'
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
RULES = {
    "has-a": "description: It has an a.\nconstraint: {kind: regex, name: has an a, pattern: a}\n",
    "never": "constraint: {kind: regex, name: has a z, pattern: z}\n",
    "endless": "constraint: {kind: python, name: endless, function: 'slow:endless'}\nbudget: {max_attempts: null}\n",
    "late": "constraint: {kind: python, name: late, function: 'slow:late'}\n",
    "once": "constraint: {kind: python, name: once, function: 'slow:once'}\nbudget: {max_attempts: null}\n",
    "hanging": "constraint: {kind: python, name: hanging, function: 'slow:hanging'}\n",
}
SLOW = """\
import time

def endless(text):
    time.sleep(0.02)
    return False

def late(text):
    time.sleep(0.5)
    return True

taken = []

def once(text):  # equal texts are checked together, and a long one occurs only once
    time.sleep(0.02)
    taken.extend([text] * (len(text) > 9))
    return taken == [text]

def hanging(text):
    time.sleep(60)
    return True
"""
SETTINGS = """\
model: model
name: tiny
aliases: [gpt-tiny]
constraints: rules
allow_code: true
proposals: {careful: {prompt: "ab{prompt}"}}
limits:
  running: 2
  queue: 1
  body_seconds: 1.5
  checker_seconds: 1.5
  attempts: 1000000000
  seconds: 60
  grace_seconds: 4
"""


def world():
    made = llama_world(letters=LETTERS, max_new_tokens=12)
    made.tokenizer.chat_template = TEMPLATE
    return made


def furnish(folder: Path) -> Path:
    """Write a model, rules and settings to a folder."""
    made = world()
    made.model.save_pretrained(folder / "model")
    made.tokenizer.save_pretrained(folder / "model")
    (folder / "rules").mkdir()
    for name, text in RULES.items():
        (folder / "rules" / f"{name}.yaml").write_text("guardwrap: 1\n" + text)
    (folder / "slow.py").write_text(SLOW)
    (folder / "serve.yaml").write_text(SETTINGS)
    return folder


class Server:
    """``guardwrap serve`` in a separate process, on a free port."""

    def __init__(self, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "guardwrap", "serve", "--config", "serve.yaml", "--port", "0", *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self.log = folder / "log.txt"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("guardwrap serves tiny on http://127.0.0.1:"), self.log.read_text()
        self.url = line.split()[-1]
        self.port = int(self.url.rpartition(":")[2])

    def log_with(self, pattern: str) -> str:
        """Return the log once it has a pattern: the line of a request is written after its reply was sent."""
        for _ in range(200):
            if re.search(pattern, log := self.log.read_text()):
                return log
            time.sleep(0.05)
        raise AssertionError(f"{pattern!r} is not in the log: {log}")

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def figures(http, model="tiny"):
    """Return the metrics of a model by their names and other labels."""
    text = http.get("/metrics").text
    for label in (f'{{model="{model}"}}', f'model="{model}",', f',model="{model}"'):
        text = text.replace(label, "")
    lines = text.splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def wait_until(http, model="tiny", **wanted):
    """Wait until the metrics of a model have these values."""
    for _ in range(400):
        found = figures(http, model)
        if all(found[f"guardwrap_{name}"] == value for name, value in wanted.items()):
            return found
        time.sleep(0.05)
    raise AssertionError(f"{wanted} never came; {found}")
