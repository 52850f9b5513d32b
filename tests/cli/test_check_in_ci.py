"""The pre-commit hook and the GitHub Action, run as pre-commit and GitHub would, without either of them."""

import os
import re
import shlex
import subprocess
import sys

import pytest
import yaml

from tests.cli.fixtures_commands import HAS_A, ROOT, TWO_PARTS

BROKEN = "guardwrap: 1\nconstraint: {kind: regx, pattern: a}\n"
CODE = "guardwrap: 1\nconstraint: {kind: python, function: 'ci_rules:good'}\nexamples: {accepts: [a]}\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with rules, in which ``guardwrap`` is the command of this checkout."""
    command = tmp_path / "bin" / "guardwrap"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m guardwrap "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    folder = tmp_path / "repository"
    (folder / "rules").mkdir(parents=True)
    (folder / "rules" / "two parts.yaml").write_text(TWO_PARTS)
    (folder / "other.yaml").write_text("title: not a rule\n")
    return folder


def git(folder, *args):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    done = subprocess.run(["git", *identity, *args], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def pre_commit(folder):
    """Run the hook on the staged files that it selects."""
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["language"], hook["types"], hook.get("pass_filenames", True)) == ("python", ["yaml"], True)
    staged = git(folder, "diff", "--staged", "--name-only", "--no-ext-diff", "-z", "--diff-filter=ACMRTUXB")
    files = [name for name in staged.split("\0") if re.search(hook["files"], name) and name.endswith((".yaml", ".yml"))]
    command = [*shlex.split(hook["entry"]), *hook.get("args", []), *files]
    return files, subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.slow
def test_the_hook_checks_the_staged_rules_and_nothing_else(here):
    git(here, "init", "--quiet")
    git(here, "add", ".")
    files, done = pre_commit(here)
    assert files == ["rules/two parts.yaml"]
    assert (done.returncode, done.stderr) == (0, "")
    git(here, "commit", "--quiet", "--message", "Add rules")
    (here / "rules.yaml").write_text(HAS_A)
    (here / "rules" / "broken.yml").write_text(BROKEN)
    git(here, "add", ".")
    files, done = pre_commit(here)
    assert files == ["rules.yaml", "rules/broken.yml"]
    assert done.returncode == 2
    assert "rules/broken.yml:2: " in done.stderr
    (here / "rules" / "broken.yml").write_text(HAS_A + "examples: {accepts: [b]}\n")
    git(here, "add", ".")
    assert pre_commit(here)[1].returncode == 1


def test_the_hook_is_installed_as_the_command_that_it_runs():
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    command, *_ = shlex.split(hook["entry"])
    assert f'\n{command} = "guardwrap.cli:main"\n' in (ROOT / "pyproject.toml").read_text()


ACTION = yaml.safe_load((ROOT / "deploy" / "check-action" / "action.yml").read_text())
STEPS = ACTION["runs"]["steps"]


def action(folder, **inputs):
    """Run the last step of the action, with its inputs where GitHub puts them."""
    inputs = {name.replace("_", "-"): value for name, value in inputs.items()}
    assert set(inputs) <= set(ACTION["inputs"])
    values = {name: inputs.get(name, each.get("default")) for name, each in ACTION["inputs"].items()}
    step = STEPS[-1]
    filled = {key: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda m: values[m[1]], v) for key, v in step["env"].items()}
    bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    return subprocess.run(bash, cwd=folder, capture_output=True, text=True, env={**os.environ, **filled})


@pytest.mark.slow
def test_the_action_checks_files_folders_and_texts(here):
    done = action(here, files="rules\n\n  catalogue:no-urls  \n")
    assert (done.returncode, done.stderr) == (0, "")
    assert "rules/two parts.yaml: valid, 2 parts" in done.stdout
    assert done.stdout.endswith("2 files: 2 as expected\n")
    (here / "texts.jsonl").write_text('{"text": "xyz", "expected": "fail"}\n')
    assert action(here, files="rules/two parts.yaml", texts="texts.jsonl").returncode == 0
    (here / "more.txt").write_text("xyz\n")
    assert action(here, files="rules/two parts.yaml", texts="texts.jsonl\nmore.txt").returncode == 1
    assert action(here, files="other.yaml").returncode == 2
    assert "FILE_OR_NAME" in action(here, files="\n").stderr


@pytest.mark.slow
def test_the_action_runs_code_only_if_allowed(here):
    (here / "code.yaml").write_text(CODE)
    (here / "ci_rules.py").write_text("def good(text):\n    return 'a' in text\n")
    assert action(here, files="code.yaml").returncode == 2
    assert action(here, files="--allow-code\ncode.yaml").returncode == 2, "a file, not an option"
    assert action(here, files="code.yaml", allow_code="yes").returncode == 2
    assert action(here, files="code.yaml", allow_code="true").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "script", ["$(touch done)", "`touch done`", "x; touch done", '"; touch done; "', "' || touch done #"]
)
def test_inputs_of_the_action_are_not_run(here, script):
    action(here, files=script, texts=script, allow_code=script)
    assert not (here / "done").exists()


def test_inputs_are_never_written_into_a_script():
    scripts = [step["run"] for step in STEPS if "run" in step]
    assert len(scripts) == 2
    assert not [script for script in scripts if "${{" in script]
    assert all(step["shell"] == "bash" for step in STEPS if "run" in step)


def test_the_action_installs_the_version_that_it_belongs_to():
    """``GITHUB_ACTION_PATH`` is the action's folder, in a checkout of the whole repository at the ref of ``uses``."""
    install = next(step for step in STEPS if step.get("name") == "Install guardwrap")
    (path,) = re.findall(r'"\$GITHUB_ACTION_PATH/([./]+)"', install["run"])
    assert (ROOT / "deploy" / "check-action" / path).resolve() == ROOT
