"""Hold JSONSchema against the official test suite of JSON Schema.

    python benchmarks/schema_suite.py --suite JSON-Schema-Test-Suite

The suite is https://github.com/json-schema-org/JSON-Schema-Test-Suite; the source distribution of ``jsonschema`` has a
copy in its folder ``json``. The files of draft 2020-12 are judged with ``formats=False``, as ``format`` only annotates
in the draft itself; those in ``optional/format`` with ``formats=True``. Each case agrees, or is refused, by name, when
its schema is loaded, or is wrong. Nothing is fetched, so schemas that need other documents are refused.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from guardwrap import JSONSchema
from guardwrap.errors import ConstraintError

DRAFT = "tests/draft2020-12"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how many cases agree, are refused and are wrong; return the exit code, 1 if any is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=Path, required=True, help="folder of the suite")
    parser.add_argument("--verbose", action="store_true", help="name what is refused, and why")
    options = parser.parse_args(sys.argv[1:] if arguments is None else list(arguments))
    folder = options.suite / DRAFT
    if not any(folder.glob("*.json")):
        parser.error(f"no files in {str(folder)!r}; --suite is the folder that has 'tests' in it")
    wrong = 0
    for title, files, formats in (("required", folder, False), ("formats", folder / "optional" / "format", True)):
        counts: Counter[str] = Counter()
        for name, verdict in cases(files, formats=formats):
            counts[verdict.partition(":")[0]] += 1
            if verdict == "wrong" or (options.verbose and verdict != "agreed"):
                print(f"{name}: {verdict}")
        print(f"{title}: {counts['agreed']} agreed, {counts['refused']} refused, {counts['wrong']} wrong")
        wrong += counts["wrong"]
    return min(wrong, 1)


def cases(folder: Path, *, formats: bool) -> Iterator[tuple[str, str]]:
    """Yield the name of each case, and ``agreed``, ``wrong`` or ``refused: why``."""
    for path in sorted(folder.glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            name = f"{path.name}: {group['description']}"
            try:
                constraint = JSONSchema(group["schema"], formats=formats)
            except ConstraintError as error:
                yield from ((f"{name}: {case['description']}", f"refused: {error}") for case in group["tests"])
                continue
            yield from ((f"{name}: {case['description']}", judged(constraint, case)) for case in group["tests"])


def judged(constraint: JSONSchema, case: dict[str, Any]) -> str:
    """Whether the verdict on a case is the suite's."""
    return "agreed" if constraint.accepts(json.dumps(case["data"])) is case["valid"] else "wrong"


if __name__ == "__main__":
    sys.exit(main())
