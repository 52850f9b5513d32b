"""The cost of the worst texts for every line of the cookbook: judging, verdicts on prefixes, memory.

Each line judges hostile texts of a length that a model may return, in a process of its own. The largest figures of
each line are printed: CPU milliseconds of a judgement and of one verdict, and megabytes. An outcome must be a judgement
or ``CheckFailed``.

    python benchmarks/hostile_texts.py [--characters 30000] [--only TEXT] [--out hostile-texts.jsonl]
"""

import argparse
import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hostile import peak

from guardwrap.constraints import parse
from guardwrap.constraints.checking import judge, run_verdict
from guardwrap.errors import CheckFailed, first_line
from guardwrap.outcomes import Draw

COOKBOOK = Path(__file__).parents[1] / "docs" / "cookbook.md"
SECONDS = 300
"""Limit for all texts of one line."""


def lines() -> list[str]:
    """Return the rules of the cookbook, as YAML."""
    cells = re.findall(r"^\|.*\| `(.*)` \|$", COOKBOOK.read_text(encoding="utf-8"), re.MULTILINE)
    return [cell.replace(r"\|", "|") for cell in cells]


def texts(characters: int) -> dict[str, str]:
    """Return hostile texts, each of about so many characters."""
    rng = random.Random(7)
    everything = [chr(code) for code in range(0x20, 0x3000) if chr(code).isprintable()]

    def filled(piece: str) -> str:
        return piece * max(characters // len(piece), 1)

    def counted(form: str) -> str:
        return "".join(form.format(number) for number in range(characters // (len(form) + 2)))

    return {
        "one letter": filled("a"),
        "one capital": filled("A"),
        "one digit": filled("7"),
        "one word": filled("tea "),
        "words": counted("w{} "),
        "words on lines": counted("- w{} tea\n"),
        "sentences": filled("A b? "),
        "abbreviations": filled("z. B. "),
        "marks": filled(".!?"),
        "quotes": filled("\"'«"),
        "spaces": filled(" "),
        "line breaks": filled("\n"),
        "blank lines": filled("a\n\n"),
        "brackets": filled("["),
        "brackets and braces": filled('[{"a":'),
        "brackets closed": "[" * (characters // 2) + "]" * (characters // 2),
        "parentheses": filled("(") + filled(")"),
        "sums": filled("1+") + "1 = 2",
        "equations": counted("{0} + 1 = {0}. "),
        "powers": filled("9^") + "9 = 1",
        "minus signs": filled("-") + "1",
        "amounts": counted("{} EUR on 2024-02-30, 5 km, "),
        "dates": counted("3 May {} and 4/5/2020, "),
        "a long number": filled("9") + ".5",
        "numbers with separators": filled("1,000."),
        "e-mail": filled("a@b.") + "com",
        "at signs": filled("a@"),
        "cards": filled("4111 1111 1111 1111 "),
        "telephones": filled("+49 30 1234567 "),
        "accounts": filled("DE89 3704 0044 0532 0130 00 "),
        "hexadecimal": filled("deadbeef0123"),
        "Base64": "".join(rng.choice("ABCxyz0189+/") for _ in range(characters)),
        "assignments": filled('password = "hunter2hunter2"\n'),
        "tags": filled("<a>"),
        "open tags": filled("<a b='"),
        "entities": '<!DOCTYPE a [<!ENTITY b "' + filled("&b;") + '">]><a>&b;</a>',
        "anchors": filled("&a [*a, "),
        "headings": filled("# a\n"),
        "nested bullets": "".join(" " * (depth % 900) + "- a\n" for depth in range(characters // 450)),
        "tables": filled("|a|-|\n"),
        "fences": filled("```python\n"),
        "functions": counted("def f{}(a): return a\n"),
        "nested code": "".join(" " * depth + "if a:\n" for depth in range(int(characters**0.5))),
        "statements": filled("SELECT (a) FROM b UNION "),
        "nested statements": filled("SELECT * FROM ("),
        "commas": filled(","),
        "emoji": filled("👩‍👩‍👧‍👦"),
        "combining marks": filled("á̂̃̄"),
        "Chinese": filled("机密。很好"),
        "Thai": filled("ภาษาไทย"),
        "Korean": filled("사과는 "),
        "Arabic": filled("والسر، "),
        "invisible": filled("a\u00ad\u200b"),
        "placeholders": filled("[your name]"),
        "links": filled("https://a.example/b?c=d "),
        "random": "".join(rng.choice(everything) for _ in range(characters)),
    }


def measured(rule: str, characters: int) -> dict[str, Any]:
    """Judge all texts by one rule, in this process."""
    constraint = parse(f"guardwrap: 1\nconstraint: {rule}\n").constraint
    constraint.accepts("A text.")  # loads what is loaded once
    figures: dict[str, Any] = {
        "rule": rule,
        "judge": [0.0, ""],
        "verdict": [0.0, ""],
        "memory": [0.0, ""],
        "failed": {},
    }
    for name, text in texts(characters).items():
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # forget the peak
        before, began = peak(), time.process_time()
        try:
            judge(constraint, [Draw("", (0,), text)])
        except CheckFailed as error:
            figures["failed"][name] = first_line(error)[-100:]
        spent = 1000 * (time.process_time() - began)
        began = time.process_time()
        run_verdict(constraint, text[: len(text) // 2])
        verdict = 1000 * (time.process_time() - began)
        for key, figure in (("judge", spent), ("verdict", verdict), ("memory", peak() - before)):
            figures[key] = max(figures[key], [round(figure, 1), name])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--characters", type=int, default=30_000, help="length of each text (default: 30000)")
    parser.add_argument("--only", default="", help="lines of the cookbook that contain this")
    parser.add_argument("--out", type=Path, help="file for the figures, as JSON Lines")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    rules = lines()
    if options.one is not None:
        print(json.dumps(measured(rules[options.one], options.characters), ensure_ascii=False))
        return
    results = []
    print(f"{'judge ms':>9} {'verdict ms':>10} {'MB':>6}  rule")
    for number, rule in enumerate(rules):
        if options.only not in rule:
            continue
        command = [sys.executable, __file__, "--characters", str(options.characters), "--one", str(number)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
        except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
            stderr = error.stderr.decode() if isinstance(error.stderr, bytes) else error.stderr or ""
            print(f"{type(error).__name__}: {stderr.strip().splitlines()[-1:]}  {rule}", flush=True)
            continue
        result = json.loads(done.stdout.splitlines()[-1])
        results.append(result)
        (judged, text), (verdict, _), (memory, _) = (result[key] for key in ("judge", "verdict", "memory"))
        failed = f"  CheckFailed: {', '.join(result['failed'])}" if result["failed"] else ""
        print(f"{judged:9.0f} {verdict:10.0f} {memory:6.0f}  {rule}  ({text}){failed}", flush=True)
        if options.out:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result, ensure_ascii=False) + "\n")
    for key in ("judge", "verdict", "memory"):
        worst = max(results, key=lambda result: result[key][0])
        print(f"worst {key}: {worst[key][0]}, {worst['rule']}, {worst[key][1]}")


if __name__ == "__main__":
    main()
