"""``guardwrap demo``."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from guardwrap import Constraint, Keyword, Regex
from guardwrap.cli.commands.demo_command import SCENES
from tests.cli.fixtures_commands import run

pytestmark = pytest.mark.usefixtures("command_line")


@pytest.mark.slow
def test_demo(model, monkeypatch):
    easy: list[Constraint | str] = [
        (Keyword("zebra", match="none") & ~Regex(r"\d")),
        "catalogue:no-contact-details",
        ~Regex(r"\d"),
    ]
    scenes = [
        replace(scene, constraint=constraint, prompt="the sea", max_new_tokens=8)
        for scene, constraint in zip(SCENES, easy, strict=True)
    ]
    monkeypatch.setattr("guardwrap.cli.commands.demo_command.SCENES", scenes)
    result = run("demo", "--model", model, "--seed", 3)
    assert result.exit_code == 0, result.output
    exact = "exactly your model's own distribution, given the constraint (g); sampler rejection, seed 3"
    assert result.stdout.count(exact) == 3
    _, *parts = re.split(r"^\d\. (?=[A-Z])", result.stdout, flags=re.MULTILINE)
    *parts, planned, told = parts
    for part, words in ((planned, "recommended: "), (told, "not follow your model's own distribution")):
        assert words in part
        (code,) = re.findall(r"^from guardwrap import .*\n.*\nprint\(.*\)$", part, re.MULTILINE)
        again: list[Any] = []
        exec(code, {"print": again.append})
        assert words in str(again[0])
    for scene, part in zip(scenes, parts, strict=True):
        assert part.startswith(scene.title)
        # The printed Python code gives the same texts.
        (code,) = re.findall(r"^from guardwrap import .*\n.*\nprint\(.*\)$", part, re.MULTILINE)
        printed: list[Any] = []
        exec(code, {"print": printed.append})
        texts = re.findall(r"^  \d\.  (.*\S)", part, re.MULTILINE)
        assert len(texts) == scene.count
        assert all(text in json.dumps(printed) for text in texts)


def test_the_scenes_of_the_demo_are_python():
    for scene in SCENES:
        code = scene.code("local", 1, chat=True)
        assert len(code.splitlines()) == 3
        names: dict[str, Any] = {}
        made = code.splitlines()[1]
        exec(code.splitlines()[0], names)
        names["GuardedGenerator"] = lambda generator, constraint, seed: constraint
        exec(made, names)
        assert names["guarded"] == scene.constraint
