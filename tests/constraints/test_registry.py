"""Constraint kinds and samplers of other packages come in through entry points."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PLUGIN = '''
from dataclasses import dataclass, field
from typing import Literal
from guardwrap.constraints import TextConstraint, View
from guardwrap.samplers import rejection

@dataclass(frozen=True, eq=False, repr=False)
class Shouted(TextConstraint):
    """All in capitals."""
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["shouted"] = field(default="shouted", kw_only=True)

    def holds(self, text: str) -> bool:
        return text == text.upper()

other = rejection._replace(name="other")
'''
USE = """
from guardwrap.constraints import dump, parse
from guardwrap.errors import GuardwrapError
from guardwrap.samplers import sampler_named, sampler_names

constraint = parse("guardwrap: 1\\nconstraint: {kind: not, of: {kind: shouted}}").constraint
assert constraint.accepts("quiet") and not constraint.accepts("LOUD")
assert parse(dump(constraint)).constraint == constraint
assert sampler_named("other").name == "other" and "rejection" in sampler_names()
for wrong in (lambda: parse("guardwrap: 1\\nconstraint: {kind: shoutd}"), lambda: sampler_named("othr")):
    try:
        wrong()
    except GuardwrapError as error:
        print(error)
"""


def run(folder: Path, code: str, **entries: str) -> subprocess.CompletedProcess[str]:
    (folder / "shouting.py").write_text(PLUGIN)
    info = folder / "shouting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    groups = "".join(f"[guardwrap.{group}]\n{line}\n" for group, line in entries.items())
    (info / "entry_points.txt").write_text(groups)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)


def test_new_kinds_and_samplers(tmp_path: Path) -> None:
    done = run(tmp_path, USE, constraints="shouted = shouting:Shouted", samplers="other = shouting:other")
    assert done.returncode == 0, done.stderr
    kind, sampler = done.stdout.splitlines()
    assert "did you mean 'shouted'" in kind
    assert "did you mean 'other'" in sampler


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"constraints": "regex = shouting:Shouted"}, "takes the constraint kind 'regex', which exists"),
        ({"constraints": "new = shouting:other"}, "not a frozen dataclass"),
        ({"samplers": "rejection = shouting:other"}, "no new Sampler of its own name"),
        ({"samplers": "new = shouting:Shouted"}, "no new Sampler of its own name"),
    ],
)
def test_plugins_that_cannot_be_added(tmp_path: Path, entries: dict[str, str], says: str) -> None:
    done = run(tmp_path, "import guardwrap.samplers as s; s.sampler_names()\n" + USE, **entries)
    assert done.returncode != 0
    assert says in done.stderr
