"""Run JSONSchema against the official test suite of JSON Schema, for each draft.

    python benchmarks/schema_suite.py --suite JSON-Schema-Test-Suite

The suite is https://github.com/json-schema-org/JSON-Schema-Test-Suite; the source distribution of ``jsonschema`` has a
copy in its folder ``json``. Files of drafts 4 to 7 do not declare their draft, so ``$schema`` is added. In the drafts,
``format`` is only an annotation, so it is checked (``formats=True``) only in the files of ``optional/format``. A case
agrees, or its schema is rejected with an error that names the keyword, or it is wrong. Its text is also read character
by character: a verdict on a prefix that contradicts the whole text counts as wrong. Nothing is fetched, so schemas that
refer to other documents are rejected. Skipped are files on optional behavior that guardwrap does not implement:
``dependencies`` in drafts that no longer define it, and decoding the contents of strings.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from guardwrap import JSONSchema, Verdict
from guardwrap.constraints.json.drafts import DRAFTS
from guardwrap.errors import ConstraintError

FOLDERS = {f"draft{draft.name.removeprefix('draft ')}": draft for draft in DRAFTS}
LEFT_OUT = ("content.json", "dependencies-compatibility.json")
PARTS = {"required": ("", False), "optional": ("optional", False), "formats": ("optional/format", True)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print how many cases agree, are refused and are wrong; return the exit code, 1 if any is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=Path, required=True, help="folder of the suite")
    parser.add_argument("--only", nargs="+", choices=list(FOLDERS), help="folders of drafts; all if left out")
    parser.add_argument("--verbose", action="store_true", help="name what is refused, and why")
    options = parser.parse_args(sys.argv[1:] if arguments is None else list(arguments))
    wrong = 0
    for draft in options.only or FOLDERS:
        folder = options.suite / "tests" / draft
        if not any(folder.glob("*.json")):
            parser.error(f"no files in {str(folder)!r}; --suite is the folder that has 'tests' in it")
        for part, (inner, formats) in PARTS.items():
            counts: Counter[str] = Counter()
            for name, verdict in cases(folder / inner, draft, formats=formats):
                counts[verdict.partition(":")[0]] += 1
                if verdict.startswith("wrong") or (options.verbose and verdict != "agreed"):
                    print(f"{draft}/{name}: {verdict}")
            wrong += counts["wrong"]
            figures = ", ".join(f"{counts[verdict]} {verdict}" for verdict in ("agreed", "refused", "wrong"))
            print(f"{draft}, {part}: {figures}")
    return min(wrong, 1)


def cases(folder: Path, draft: str, *, formats: bool) -> Iterator[tuple[str, str]]:
    """Yield the name of each case, and ``agreed``, ``wrong: how`` or ``refused: why``."""
    for path in sorted(folder.glob("*.json")):
        if folder.name == "optional" and path.name in LEFT_OUT:
            continue
        for group in json.loads(path.read_text(encoding="utf-8")):
            name = f"{path.name}: {group['description']}"
            try:
                constraint = JSONSchema(declared(group["schema"], draft), formats=formats)
            except ConstraintError as error:
                yield from ((f"{name}: {case['description']}", f"refused: {error}") for case in group["tests"])
                continue
            yield from ((f"{name}: {case['description']}", judged(constraint, case)) for case in group["tests"])


def declared(schema: Any, draft: str) -> Any:
    """Return a schema that says of which draft it is, where the files of that draft leave it out."""
    if not FOLDERS[draft].ref_is_alone or not isinstance(schema, dict) or "$schema" in schema:
        return schema
    return {"$schema": f"{FOLDERS[draft].meta_schema}#", **schema}


def judged(constraint: JSONSchema, case: dict[str, Any]) -> str:
    """Whether the verdict on a case is the suite's, and those on its prefixes hold for it."""
    for text in {json.dumps(case["data"]), json.dumps(case["data"], ensure_ascii=False)}:
        if constraint.accepts(text) is not case["valid"]:
            return "wrong: the whole text"
        reading = constraint.monitor()
        for i, char in enumerate(text + " "):
            reading = reading.read(char)
            if reading.verdict is (Verdict.VIOLATED if case["valid"] else Verdict.SATISFIED):
                return f"wrong: {reading.verdict.name} after {i + 1} characters"
    return "agreed"


if __name__ == "__main__":
    sys.exit(main())
