"""Compare the rules in rules.yaml with the public checkers of IFEval and IFBench, text by text.

    python benchmarks/instructions/compare.py

runs in the environment of ``make test-instructions``. Each rule, as a reward function, judges random texts and those of
the embedded model (``model_texts.json.gz``). A disagreement is expected if one of the classes in expected.py explains
it; any other one makes the exit code 1, and so does a rule that has no text with one of the two verdicts.
"""

import argparse
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import checkers
import expected
import yaml
from random_texts import mixed, spoken, texts

from guardwrap import Language
from guardwrap.constraints import Constraint, parse
from guardwrap.integrations.trl import reward

FOLDER = Path(__file__).parent


def constraint_of(rule: Any) -> Constraint:
    document = {"guardwrap": 1, "constraint": rule}
    return parse(yaml.safe_dump(document, allow_unicode=True, width=10_000)).constraint


def model_texts() -> list[str]:
    texts: list[str] = json.loads(gzip.decompress((FOLDER / "model_texts.json.gz").read_bytes()))
    return [text for text in texts if text.strip()]


def judged(check: checkers.Check, text: str) -> bool | str:
    """Return a checker's verdict, or the name of the exception with which it crashed."""
    try:
        return bool(check(text))
    except Exception as error:
        return type(error).__name__


def compared(row: dict[str, Any], check: checkers.Check, judge: Constraint, drawn: list[str]) -> dict[str, Any]:
    """Return counts, and the texts of disagreements that no class explains."""
    counts: dict[str, Any] = {"n": len(drawn), "agree": 0, "we accept": 0, "they accept": 0, "accepted": 0}
    counts |= {"classes": {}, "unexplained": []}
    for text, value in zip(drawn, reward(judge)([""] * len(drawn), drawn), strict=True):
        ours, theirs = value == 1.0, judged(check, text)
        counts["accepted"] += ours
        if ours is theirs:
            counts["agree"] += 1
            continue
        counts["they accept" if theirs is True else "we accept"] += theirs is True or ours
        name = expected.explanation(row, text, ours, theirs)
        if name is None:
            counts["unexplained"].append((text, ours, theirs))
        else:
            counts["classes"][name] = counts["classes"].get(name, 0) + 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=2000, help="random ones per rule")
    parser.add_argument("--only", help="a part of the identifiers to compare")
    parser.add_argument("--show", type=int, default=1, help="unexplained texts to print per rule")
    parser.add_argument("--out", type=Path, help="a file for the counts")
    options = parser.parse_args()
    classes, of_model, failed, lines = checkers.load(), model_texts(), [], []
    rows = yaml.safe_load((FOLDER / "rules.yaml").read_text(encoding="utf-8"))
    for row in rows:
        if row["set"] not in classes or (options.only and options.only not in row["id"]):
            continue
        try:
            judge = constraint_of(row["rule"])
        except Exception as error:
            failed.append(f"{row['id']}: not readable")
            print(f"{row['id']}: {error}", flush=True)
            continue
        seeds = expected.SATISFYING.get(row["id"], [])
        draw = spoken if any(isinstance(part, Language) for part in judge.parts) else mixed
        drawn = texts(seeds, options.texts, zlib.crc32(row["id"].encode()), draw) + of_model
        for package, check in checkers.checks(classes, row).items():
            counts = compared(row, check, judge, drawn)
            unexplained = counts.pop("unexplained")
            line = {"id": row["id"], "package": package, **counts, "unexplained": len(unexplained)}
            lines.append(line)
            print(json.dumps(line, ensure_ascii=False), flush=True)
            for text, ours, theirs in unexplained[: options.show]:
                print(f"    ours {ours}, theirs {theirs}: {text!r}", flush=True)
            if unexplained:
                failed.append(f"{row['id']} ({package}): {len(unexplained)} unexplained")
            if counts["accepted"] in (0, len(drawn)):
                failed.append(f"{row['id']} ({package}): one verdict only")
    if options.out:
        options.out.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    print(f"{len(lines)} comparisons; failures:", *failed, sep="\n  ")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
