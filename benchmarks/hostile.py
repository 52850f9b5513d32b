"""The cost of the worst constraint files and texts: loading, judging, verdicts on prefixes, memory.

Each case runs in its own process, with a limit of 30 s and of 1 GiB more than Python and guardwrap need. It reports
CPU seconds and wall seconds.

    python benchmarks/hostile.py [--only NAME ...] [--out hostile.json]
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from guardwrap.constraints import dump, parse
from guardwrap.constraints.checking import judge, run_verdict
from guardwrap.errors import CheckFailed, ConstraintError, first_line
from guardwrap.outcomes import Draw

SECONDS, MEBIBYTES = 30, 1024
Make = Callable[[], str]


def file(constraint: Any) -> str:
    """Spell a constraint as YAML; JSON is YAML, and faster to write."""
    return '{"guardwrap": 1, "constraint": ' + json.dumps(constraint, ensure_ascii=False) + "}"


def regex(pattern: str, **more: Any) -> str:
    return file({"kind": "regex", "pattern": pattern, **more})


def keyword(words: list[str], **more: Any) -> str:
    return file({"kind": "keyword", "words": words, **more})


def schema(given: Any, **more: Any) -> str:
    return file({"kind": "json_schema", "schema": given, **more})


def nested(outer: Callable[[Any], Any], inner: Any, depth: int) -> Any:
    for _ in range(depth):
        inner = outer(inner)
    return inner


def doubling(depth: int) -> dict[str, Any]:
    """Return a schema whose top is judged by way of 2 ** depth paths."""
    parts: dict[str, Any] = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(depth)}
    return {"$defs": {**parts, f"d{depth}": {}}, "$ref": "#/$defs/d0"}


def cases(scale: float = 1.0) -> dict[str, tuple[Make, Make]]:
    """Return the cases, by name: a constraint file, and a text to judge. With a small scale all of them are small."""

    def n(count: int) -> int:
        return max(1, int(count * scale))

    def text(made: Make) -> tuple[Make, Make]:
        return made, str

    slow = r"^(?:\w|\w\w)+$"
    run: Callable[[], str] = lambda: "a" * n(100_000) + "!"  # noqa: E731
    words = lambda: "word " * n(200_000)  # noqa: E731
    ones = lambda: json.dumps([1] * n(300_000))  # noqa: E731
    mixed = lambda: json.dumps([x for i in range(n(16_000)) for x in (i, str(i), [i], {"a": i})])  # noqa: E731
    keys = lambda: json.dumps({f"k{i}": i for i in range(n(60_000))})  # noqa: E731
    sentences = lambda: "A b. " * n(200_000)  # noqa: E731
    deep_list: Callable[[], str] = lambda: "[" * n(900) + "]" * n(900)  # noqa: E731
    same_hash = lambda: json.dumps([i * (2**61 - 1) for i in range(n(40_000))])  # noqa: E731
    a_map = {"a": "b"}
    return {
        # ---- YAML
        "brackets": text(lambda: "[" * n(1_000_000)),
        "brackets on lines": text(lambda: "[\n" * n(400_000)),
        "braces": text(lambda: "{" * n(1_000_000)),
        "brackets and braces": text(lambda: "[{a: " * n(200_000)),
        "brackets and commas": text(lambda: "a: [" + "[],[[]]," * n(100_000)),
        "dashes": text(lambda: "- " * n(500_000)),
        "question marks": text(lambda: "? " * n(500_000)),
        "question marks on lines": text(lambda: "? a\n: b\n" * n(100_000)),
        "anchors": text(lambda: "&a " * n(300_000)),
        "anchors of values": text(lambda: "a: [" + ",".join(f"&a{i} b" for i in range(n(100_000))) + "]"),
        "aliases": text(lambda: "a: &a b\nc: [" + "*a," * n(300_000) + "]"),
        "aliases of long text": text(lambda: "a: &a " + "b" * n(500_000) + "\nc: [" + "*a," * n(10_000) + "]"),
        "tags": text(lambda: "!!x " * n(250_000)),
        "tags of values": text(lambda: "a: [" + "!!str b," * n(100_000) + "]"),
        "a long tag": text(lambda: "a: !" + "%41" * n(300_000) + " b"),
        "directives": text(lambda: "%X\n" * n(330_000) + "---\na: 1"),
        "tag directives": text(lambda: "".join(f"%TAG !a{i}! b\n" for i in range(n(60_000))) + "---\na: 1"),
        "documents": text(lambda: "--- a\n" * n(160_000)),
        "comments": text(lambda: "#\n" * n(490_000)),
        "a long comment": text(lambda: "#" * n(990_000)),
        "newlines": text(lambda: "\n" * n(990_000)),
        "values in a line": text(lambda: "a: [" + "b," * n(490_000) + "]"),
        "values on lines": text(lambda: "a:\n" + "- b\n" * n(19_900)),
        "keys on lines": text(lambda: "".join(f"k{i}: a\n" for i in range(n(19_900)))),
        "unknown fields": text(
            lambda: "guardwrap: 1\nconstraint:\n  kind: length\n" + "".join(f"  k{i}: a\n" for i in range(n(9_900)))
        ),
        "pairs": text(lambda: "a: {" + "".join(f"k{i}: 1," for i in range(n(70_000))) + "}"),
        "quoted keys": text(lambda: "a: {" + '"a":1,' * n(150_000) + "}"),
        "plain text on lines": text(lambda: "a:\n" + " b\n" * n(330_000)),
        "plain words": text(lambda: "a: " + "b " * n(490_000)),
        "quoted lines": text(lambda: 'a: "' + "b\n" * n(490_000) + '"'),
        "quoted empty lines": text(lambda: 'a: "' + "\n" * n(990_000) + '"'),
        "single quotes": text(lambda: "a: '" + "''" * n(490_000) + "'"),
        "escapes": text(lambda: 'a: "' + "\\x41" * n(240_000) + '"'),
        "folded lines": text(lambda: "a: >\n" + " b\n" * n(330_000)),
        "folded empty lines": text(lambda: "a: >\n" + " \n" * n(490_000)),
        "numbers": text(lambda: "a: [" + "1.5e3," * n(160_000) + "]"),
        "a long number": text(lambda: "a: " + "1:" * n(490_000) + "1"),
        "wrong types": text(lambda: file({"kind": "keyword", "words": list(range(n(19_000)))})),
        # ---- parts
        "parts": text(lambda: file({"kind": "all", "of": [{"kind": "finished"}] * n(6_000)})),
        "keyword parts": (
            lambda: file({"kind": "all", "of": [{"kind": "keyword", "words": [f"w{i}"]} for i in range(n(4_000))]}),
            words,
        ),
        "required and banned": text(
            lambda: file(
                {
                    "kind": "all",
                    "of": [
                        {"kind": "keyword", "words": [f"w{i}-{j}-{match}" for j in range(9)], "match": match}
                        for i in range(n(250))
                        for match in ("any", "none")
                    ],
                }
            )
        ),
        "nots": (lambda: file(nested(lambda x: {"kind": "not", "of": x}, {"kind": "finished"}, 56)), words),
        "nots of parts": (
            lambda: file(
                nested(
                    lambda x: {
                        "kind": "all",
                        "of": [{"kind": "not", "of": x}, {"kind": "length", "min": 1}],
                        "name": "n",
                    },
                    {"kind": "keyword", "words": ["w" * n(90_000)]},
                    14,
                )
            ),
            words,
        ),
        "slow expressions": (
            lambda: file({"kind": "any", "of": [{"kind": "regex", "pattern": slow, "timeout": 1}] * n(500)}),
            run,
        ),
        "slow expressions, each in time": (
            lambda: file({"kind": "all", "of": [{"kind": "regex", "pattern": "a{1,3000}b"}] * n(500)}),
            lambda: "a" * n(20_000),
        ),
        # ---- regular expressions
        "a day's timeout": text(lambda: regex("a", timeout=86400)),
        "backtracking": (lambda: regex(slow), run),
        "backtracking in full": (lambda: regex("(?:a|aa)+b", match="fullmatch"), run),
        "backtracking in sentences": (lambda: regex(slow, on="sentences"), lambda: (("a" * 60) + "! ") * n(10_000)),
        "backtracking in lines": (lambda: regex(slow, on="lines"), lambda: (("a" * 60) + "!\n") * n(10_000)),
        "many sentences": (lambda: regex("zzz|[A-Z]", on="sentences"), sentences),
        "many lines": (lambda: regex("^a", on="lines"), lambda: "a\n" * n(490_000)),
        "spaces": (lambda: regex("a", on="last_sentence"), lambda: " " * n(500_000) + "\n" * n(490_000)),
        "quotes": (lambda: regex("a", on="sentences"), lambda: '."' + '"' * n(300_000) + " a"),
        "checksums": (lambda: regex(r"(?:\d[ -]?)+", checksum="luhn"), lambda: "1" * n(990_000)),
        "alternatives": (lambda: regex("|".join(f"w{i}" for i in range(n(14_000)))), words),
        "a fuzzy match": (lambda: regex("(?:" + "ab" * n(5_000) + "){e<=40}"), words),
        "fuzzy matches": (lambda: regex("(?:a{1,3}){e<=3}" * n(5_000)), words),
        "a long expression": text(lambda: regex("a?" * n(50_000))),
        "long expressions": text(
            lambda: file({"kind": "all", "of": [{"kind": "regex", "pattern": "a*" * n(49_000)}] * 9})
        ),
        "a long set": text(lambda: regex("[" + "".join(chr(256 + i % 30_000) for i in range(n(190_000))) + "]")),
        "long sets": text(
            lambda: file(
                {
                    "kind": "all",
                    "of": [
                        {
                            "kind": "regex",
                            "pattern": "[" + "".join(chr(256 + (7 * i + j) % 9999) for i in range(n(90_000))) + "]",
                        }
                        for j in range(3)
                    ],
                }
            )
        ),
        "sets of either case": text(lambda: regex("[a-zé]" * n(33_000), flags=["ignorecase"])),
        "clusters": (lambda: regex(r"\X" * n(50_000)), words),
        "groups": text(lambda: regex("(a)" * n(30_000))),
        "named groups": text(lambda: regex("".join(f"(?P<n{i}>a)" for i in range(n(10_000))))),
        "groups in groups": text(lambda: regex("(" * n(5_000) + "a" + ")" * n(5_000))),
        "repeats of repeats": (lambda: regex("(?:" * 30 + "a*" + ")*" * 30 + "b"), run),
        "repeats written out": text(lambda: regex("(?:a{300}){300}")),
        "repeats beyond memory": text(lambda: regex("(((a{1000}){1000}){1000}){1000}")),
        "looking behind": (lambda: regex("(?<=a.{0,1000})b" * n(500)), run),
        "a comment in an expression": text(lambda: regex("(?x)" + " " * n(290_000) + "a")),
        # ---- keywords
        "words": (lambda: keyword([f"word{i}" for i in range(n(10_000))], match="none"), words),
        "words, each required": (lambda: keyword([f"w{i}" for i in range(n(3_000))], match="all"), words),
        "words in words": (
            lambda: keyword(["a" * (i + 1) for i in range(n(430))], max_count=3, whole_words=False),
            run,
        ),
        "words counted": (lambda: keyword([f"w{i}" for i in range(n(14_000))], max_count=3), words),
        "too many words": text(lambda: keyword([f"word{i}" for i in range(n(19_900))])),
        "a long word": (
            lambda: keyword(["a" * n(99_000)], whole_words=False),
            lambda: "a" * n(98_000) + "b" * n(900_000),
        ),
        "words of sentences": (lambda: keyword(["a", "b"], on="sentences"), sentences),
        # ---- JSON schemas
        "anchors in a schema": (
            lambda: schema(
                {
                    "$defs": {f"d{i}": {"$anchor": f"a{i}", "minimum": 0} for i in range(n(3_000))},
                    "allOf": [{"$ref": f"#a{i}"} for i in range(n(3_000))],
                }
            ),
            lambda: "1",
        ),
        "references doubling": (lambda: schema(doubling(26)), lambda: "1"),
        "references in a circle": (lambda: schema({"$ref": "#"}), lambda: "1"),
        "references in a wide circle": (lambda: schema({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}), lambda: "1"),
        "references in a chain": (
            lambda: schema(
                {
                    "$defs": {**{f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(n(4_000))}, f"d{n(4_000)}": {}},
                    "$ref": "#/$defs/d0",
                }
            ),
            lambda: "1",
        ),
        "dynamic references": (lambda: schema({"$dynamicAnchor": "n", "items": {"$dynamicRef": "#n"}}), deep_list),
        "ids": (lambda: schema({"allOf": [{"$id": f"a{i}", "$ref": "#"} for i in range(n(5_000))]}), lambda: "1"),
        "references to ids": (
            lambda: schema(
                {
                    "$id": "http://a/b",
                    "$defs": {f"d{i}": {"$id": f"d{i}", "$dynamicAnchor": "n", "items": True} for i in range(n(2_000))},
                    "items": {"anyOf": [{"$ref": f"d{i}#n"} for i in range(n(2_000))]},
                    "contains": {"$dynamicRef": "d0#n"},
                }
            ),
            ones,
        ),
        "references to the meta-schema": (
            lambda: schema({"items": {"$ref": "https://json-schema.org/draft/2020-12/schema"}}),
            lambda: json.dumps([{"items": {"not": {"type": "null"}}}] * n(20_000)),
        ),
        "formats": (
            lambda: schema({"items": {"format": "iri"}}),
            lambda: json.dumps(["http://a/" + "é" * n(9_000)] * 90),
        ),
        "formats of expressions": (
            lambda: schema({"items": {"format": "regex"}}),
            lambda: json.dumps(["(a)*b" * n(4_000)] * 45),
        ),
        "properties": (lambda: schema({"properties": {f"k{i}": {"type": "integer"} for i in range(n(6_000))}}), keys),
        "an enum": (lambda: schema({"items": {"enum": [f"k{i}" for i in range(n(19_000))]}}), ones),
        "required": (lambda: schema({"required": [f"k{i}" for i in range(n(19_000))]}), keys),
        "schemas": (lambda: schema({"items": {"allOf": [{"type": "integer"}] * n(5_000)}}), ones),
        "a deep schema": (lambda: schema(nested(lambda x: {"not": x}, {}, 54)), lambda: "1"),
        "patterns": (
            lambda: schema({"items": {"allOf": [{"pattern": f"(a|b|ab)*{i}"} for i in range(n(4_000))]}}),
            lambda: json.dumps(["ab" * 20] * n(20_000)),
        ),
        "patterns of properties": (
            lambda: schema(
                {"patternProperties": {f"x{i}$": {} for i in range(n(4_000))}, "unevaluatedProperties": False}
            ),
            keys,
        ),
        "a slow pattern": (
            lambda: schema({"items": {"pattern": slow}}),
            lambda: json.dumps(["a" * 40 + "!"] * n(20_000)),
        ),
        "a slow pattern of another draft": (
            lambda: schema(
                {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": slow, "not": {"$ref": "#"}}
            ),
            lambda: json.dumps(run()),
        ),
        "unique items": (lambda: schema({"uniqueItems": True}), mixed),
        "unique items of one hash": (lambda: schema({"uniqueItems": True}), same_hash),
        "unique deep items": (
            lambda: schema({"items": {"uniqueItems": True}}),
            lambda: json.dumps([[[[[[1]]]]]] * n(50_000)),
        ),
        "unevaluated items": (
            lambda: schema({"contains": {"minimum": 5}, "unevaluatedItems": {"type": "integer"}}),
            ones,
        ),
        "unevaluated properties": (
            lambda: schema({"anyOf": [{"properties": {"k1": {}}}] * 9, "unevaluatedProperties": {"type": "integer"}}),
            keys,
        ),
        "items": (lambda: schema({"items": {"type": ["string", "integer"]}}), ones),
        "wrong items": (lambda: schema({"anyOf": [{"items": {"type": "string"}}] * 50}), ones),
        "deep JSON": (lambda: schema({"items": {"$ref": "#"}}), lambda: "[" * n(490_000) + "]" * n(490_000)),
        "half-deep JSON": (lambda: schema({"items": {"$ref": "#"}}), deep_list),
        "deep unique JSON": (lambda: schema({"uniqueItems": True}), lambda: "[" + deep_list() + "]"),
        "empty lists": (lambda: schema({}), lambda: "[" + "[]," * n(320_000) + "1]"),
        "small objects": (lambda: schema({"items": {"type": "object"}}), lambda: json.dumps([a_map] * n(80_000))),
        "an open list": (lambda: schema({"type": "array"}), lambda: "[1," * n(330_000)),
        "a number beyond a double": (lambda: schema({"multipleOf": 0.1}), lambda: "1e400"),
        "long numbers": (lambda: schema({"items": {"multipleOf": 0.1}}), lambda: json.dumps([10**300 + 1] * n(3_000))),
        "fences": (lambda: schema({}, where="fenced"), lambda: "```json\n" * n(120_000)),
        "empty fences": (lambda: schema({}, where="fenced"), lambda: "```\n" * n(240_000)),
        "schemas on lines": (lambda: schema({"minimum": 0}, on="lines"), lambda: "1\n" * n(490_000)),
        # ---- lengths
        "length in sentences": (
            lambda: file({"kind": "length", "max": 10**6, "unit": "sentences", "on": "lines"}),
            sentences,
        ),
        "length of sentences": (
            lambda: file({"kind": "length", "max": 5, "unit": "words", "on": "sentences"}),
            sentences,
        ),
        "length in words": (lambda: file({"kind": "length", "min": 10**6, "unit": "words"}), words),
    }


def spent(since: tuple[float, float]) -> list[float]:
    """Return seconds of the processor and on the wall."""
    return [round(time.process_time() - since[0], 3), round(time.perf_counter() - since[1], 3)]


def start() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def measured(constraint_file: str, text: str) -> dict[str, Any]:
    """Load a file and judge a text, in this process."""
    found: dict[str, Any] = {"load": [0.0, 0.0], "verdict": [0.0, 0.0], "judge": [0.0, 0.0]}
    since = start()
    try:
        made = parse(constraint_file).constraint
        found["outcome"] = "loaded"
        assert made.digest
        assert made.title
        dump(made)
    except ConstraintError as error:
        found["outcome"] = f"refused: {first_line(error)[:120]}"
        return found
    finally:
        found["load"] = spent(since)
    for end in (len(text) * i // 8 for i in range(1, 9)):
        since = start()
        run_verdict(made, text[:end])
        found["verdict"] = max(found["verdict"], spent(since))
    since = start()
    try:
        found["outcome"] = str(judge(made, [Draw("", (0,), text)])[0].satisfied)
    except CheckFailed as error:
        found["outcome"] = f"CheckFailed: {first_line(error)[-120:]}"
    found["judge"] = spent(since)
    return found


def peak() -> float:
    """Return the most memory that this process has held since it was last asked to forget, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1000


def run_one(name: str) -> None:
    """Run a case in this process and print what it cost."""
    constraint_file, text = (make() for make in cases()[name])
    parse('{"guardwrap": 1, "constraint": {"kind": "finished"}}')
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    before = peak()
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MEBIBYTES * 2**20,) * 2)
    found = measured(constraint_file, text)
    print(json.dumps({"name": name, **found, "megabytes": round(peak() - before, 1)}))


def main(arguments: list[str] | None = None) -> None:
    """Run the cases, each in its own process, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="names of cases")
    parser.add_argument("--out", type=Path, help="file for the figures, as JSON")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one:
        run_one(given.one)
        return
    results = []
    print(f"{'case':32} {'load s':>7} {'wall':>6} {'judge s':>8} {'wall':>6} {'verdict s':>9} {'MB':>6}  outcome")
    for name in given.only or cases():
        command = [sys.executable, __file__, "--one", name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired:
            found = {"name": name, "outcome": f"KILLED after {SECONDS} s"}
        except subprocess.CalledProcessError as error:
            found = {"name": name, "outcome": f"CRASHED: {(error.stderr or '').strip().splitlines()[-1:]}"}
        results.append(found)
        load, judged, verdict = (found.get(key, [SECONDS, SECONDS]) for key in ("load", "judge", "verdict"))
        figures = f"{load[0]:7.2f} {load[1]:6.2f} {judged[0]:8.2f} {judged[1]:6.2f} {verdict[0]:9.3f}"
        print(f"{name:32} {figures} {found.get('megabytes', MEBIBYTES):6.0f}  {found['outcome'][:90]}", flush=True)
    worst = {key: max(results, key=lambda r: r.get(key, [SECONDS])[0]) for key in ("load", "judge", "verdict")}
    for key, found in worst.items():
        print(f"worst {key}: {found.get(key, [SECONDS])[0]} s, {found['name']}")
    largest = max(results, key=lambda r: r.get("megabytes", MEBIBYTES))
    print(f"most memory: {largest.get('megabytes', MEBIBYTES)} MB, {largest['name']}")
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
