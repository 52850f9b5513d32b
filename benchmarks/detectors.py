"""How often ``Language``, ``PersonalData`` and ``Secrets`` are wrong on real texts, and what they cost.

The texts are Debian's package descriptions. Fetch them into a folder first:

    apt-get -o Dir::State::lists=LISTS -o Acquire::Languages=en,de,fr,es,it,pl,pt,ru,uk,cs,sk,da,ja,ko update
    python benchmarks/detectors.py LISTS

For each language it prints the share of its own texts that ``Language`` rejects and leaves uncertain, the share of
texts in other languages that it accepts, and the number of texts with hits of the other rules.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from guardwrap import Constraint, Language, PersonalData, Secrets

UNCERTAIN: Any = ("pass", "fail")
OF_NO_COUNTRY: Any = ("email", "card", "ip", "iban")
TEXTS = 4000  # per language
SHORTEST = 80  # characters of a paragraph; 40 in Chinese, Japanese and Korean
COUNTRIES: Any = {
    "en": ("us", "gb", "in"),
    "pt": ("br",),
    **{code: (code,) for code in ("de", "es", "fr", "it", "nl", "pl")},
}


def descriptions(file: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and the paragraphs of each description."""
    read = subprocess.run(["/usr/lib/apt/apt-helper", "cat-file", str(file)], capture_output=True, check=True)
    for entry in read.stdout.decode("utf-8", "replace").split("\n\n"):
        match = re.search(r"^Description-(?!md5)\S+: (.*)((?:\n .*)*)", entry, re.MULTILINE)
        if match:
            paragraphs = match[2].replace("\n .\n", "\n\n").split("\n\n")
            yield match[1], [" ".join(each.split()) for each in paragraphs if each.strip() and "\n  " not in each]


def sampled(folder: Path) -> dict[str, dict[str, list[str]]]:
    """Return titles and paragraphs by language, at most ``TEXTS`` of each, without those that are left in English."""
    files = {path.name.split("Translation-")[1].split(".")[0]: path for path in sorted(folder.glob("*_main_i18n_*"))}
    everything = {code: list(descriptions(path)) for code, path in files.items() if "%" not in code and "_" not in code}
    english = {text for title, paragraphs in everything["en"] for text in [title, *paragraphs]}
    chosen = {}
    for code, entries in everything.items():
        left_out = set() if code == "en" else english
        shortest = SHORTEST // 2 if code in ("ja", "ko", "zh") else SHORTEST
        titles = sorted({title for title, _ in entries} - left_out)
        paragraphs = sorted({text for _, texts in entries for text in texts if len(text) >= shortest} - left_out)
        generator = random.Random(code)
        generator.shuffle(titles)
        generator.shuffle(paragraphs)
        if min(len(titles), len(paragraphs)) >= 1500:
            chosen[code] = {"titles": titles[:TEXTS], "paragraphs": paragraphs[:TEXTS]}
    return chosen


def rejected(rule: Constraint, texts: list[str]) -> int:
    """Return how many texts a rule rejects."""
    return sum(not rule.accepts(text) for text in texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lists", type=Path)
    samples = sampled(parser.parse_args().lists)
    for kind in ("titles", "paragraphs"):
        for code, texts in samples.items():
            own, rule = texts[kind], Language(code)
            start = time.process_time()
            wrong = rejected(rule, own) / len(own)
            seconds = (time.process_time() - start) / len(own)
            unsure = rejected(Language(code, uncertain="fail"), own) / len(own) - wrong
            others = [text for other, each in samples.items() if other != code for text in each[kind][:200]]
            passed, sure = (1 - rejected(Language(code, uncertain=rest), others) / len(others) for rest in UNCERTAIN)
            figures = f"{len(own)} | {wrong:.2%} | {unsure:.1%} | {passed:.2%} | {sure:.2%} | {seconds * 1e3:.2f} ms"
            print(f"| {kind} | {code} | {figures} |", flush=True)
    for code, texts in samples.items():
        mixed = (texts["paragraphs"] + texts["titles"])[:TEXTS]
        places: Any = COUNTRIES.get(code, ())
        rules: dict[str, Constraint] = {kind: PersonalData([kind]) for kind in OF_NO_COUNTRY}
        rules["phone"] = PersonalData(["phone"], countries=places)
        if places:
            rules["national_id"] = PersonalData(["national_id"], countries=places)
        rules |= {"secrets": Secrets(), "random strings": Secrets(random_strings=True)}
        hits = ", ".join(f"{name} {rejected(rule, mixed)}" for name, rule in rules.items())
        print(f"| {code} | {len(mixed)} | {hits} |", flush=True)


if __name__ == "__main__":
    main()
