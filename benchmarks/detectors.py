"""How often ``Language``, ``PersonalData`` and ``Secrets`` are wrong on real texts, and what they cost.

The texts are Debian's package descriptions. Fetch them into a folder first:

    apt-get -o Dir::State::lists=LISTS -o Acquire::Languages=en,de,fr,es,it,pl,pt,ru,uk,cs,sk,da,ja,ko update
    python benchmarks/detectors.py LISTS

For each language it prints the share of its own texts that ``Language`` rejects and leaves uncertain, the share of
texts in other languages that it accepts, and the number of texts with hits of the other rules. Then it hides numbers,
addresses, keys and words in 2 000 of the texts, in many spellings, and prints how many are missed, and the number of
hits in 2 000 entries of the packages' index, which are full of versions, sizes and checksums.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from guardwrap import Constraint, Keyword, Language, PersonalData, Secrets

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


KEY = "AKIA" + "IOSFODNN7EXAMPLE"
HIDDEN: dict[str, tuple[Constraint, tuple[str, ...]]] = {
    "card": (PersonalData(["card"]), ("4111 1111 1111 1111", "3782 822463 10005", "5555 5555 5555 4444")),
    "phone": (PersonalData(["phone"]), ("+1 202 555 0143", "+49 30 1234 5678", "+33 1 42 68 53 00")),
    "iban": (PersonalData(["iban"]), ("DE89 3704 0044 0532 0130 00", "GB82 WEST 1234 5698 7654 32")),
    "national id": (
        PersonalData(["national_id"], countries=["br", "de", "es", "fr", "gb", "in", "us"]),
        (
            *("390.533.447-05", "36 574 261 809", "54362315-K", "2 95 10 99 126 111 93", "943 476 5870"),
            *("2341 2341 2346", "536-90-4399"),
        ),
    ),
    "email": (PersonalData(["email"]), ("ada@example.org", "j.doe+x@mail.example.co.uk")),
    "ip": (PersonalData(["ip"]), ("192.0.2.7",)),
    "secret": (Secrets(), (KEY, "ghp_" + "a1B2" * 9)),
    "word": (Keyword(["secret", "hidden"], match="none"), ("secret", "hidden")),
}


def digits(zero: str) -> Callable[[str], str]:
    """Return what writes the digits of a text in another script."""
    return lambda text: "".join(chr(ord(zero) + int(char)) if char.isdecimal() else char for char in text)


def separated(separator: str) -> Callable[[str], str]:
    """Return what replaces the separators of a number."""
    return lambda text: re.sub(r"(?<=\w)[ \-.](?=\w)", separator, text)


def spread(invisible: str) -> Callable[[str], str]:
    """Return what puts something between the characters of a text."""
    return lambda text: text[0] + invisible.join(text[i : i + 3] for i in range(1, len(text), 3))


SPELLINGS: dict[str, list[Callable[[str], str]]] = {
    "as written": [str],
    "separators": [separated(char) for char in "\u00a0\u202f\u2009\u3000\u2011\u2012\u2013\u2212\t./·"],
    "invisible": [spread(char) for char in "\u200b\u00ad\u2060\ufeff\u202c\u200f\ufe0f\u0336"],
    "characters": [
        *map(digits, "٠۰०০๐𝟎"),
        lambda text: "".join(chr(ord(char) + 0xFEE0) if "!" <= char <= "~" else char for char in text),
        lambda text: text.translate(str.maketrans("0123456789", "⓪①②③④⑤⑥⑦⑧⑨")),
        lambda text: text.translate(str.maketrans("0123456789", "〇一二三四五六七八九")),
    ],
    "escapes": [
        lambda text: "".join(f"\\u{ord(char):04x}" for char in text),
        lambda text: '{"e": "\\n' + text + '"}',
        lambda text: json.dumps({"a": json.dumps({"b": f"\t{text}"})}),
        lambda text: "".join(f"%{ord(char):02X}" for char in text),
        lambda text: f"?k%3D{text}",
        lambda text: "".join(f"&#{ord(char)};" for char in text),
    ],
}


def misses(texts: list[str]) -> None:
    """Print how many of the hidden items are missed, of each kind and sort of spelling."""
    generator = random.Random(7)
    for kind, (rule, items) in HIDDEN.items():
        hosts = [text for text in texts if rule.accepts(text)]
        cells = []
        for sort, spellings in SPELLINGS.items():
            grouped = kind in ("card", "phone", "iban", "national id")
            trials = [(spell, item) for spell in spellings for item in items for _ in range(20)]
            missed = 0
            for spell, item in trials if grouped or sort != "separators" else []:
                words = generator.choice(hosts).split(" ")
                place = generator.randrange(len(words) + 1)
                missed += rule.accepts(" ".join([*words[:place], spell(item), *words[place:]]))
            cells.append(f"{missed} of {len(trials)}" if grouped or sort != "separators" else "")
        print(f"| {kind} | {' | '.join(cells)} |", flush=True)


def index_entries(folder: Path) -> list[str]:
    """Return entries of the packages' index."""
    (file,) = folder.glob("*_debian_dists_*[!s]_main_binary-*_Packages.lz4")
    read = subprocess.run(["/usr/lib/apt/apt-helper", "cat-file", str(file)], capture_output=True, check=True)
    entries = read.stdout.decode("utf-8", "replace").split("\n\n")
    random.Random(1).shuffle(entries)
    return entries[:2000]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lists", type=Path)
    folder = parser.parse_args().lists
    samples = sampled(folder)
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
    everything = [text for each in samples.values() for text in each["paragraphs"]]
    random.Random(0).shuffle(everything)
    misses(everything[:2000])
    every: Any = ("br", "de", "es", "fr", "gb", "in", "it", "nl", "pl", "us")
    entries = index_entries(folder)
    for kind in ("card", "ip", "iban", "phone", "national_id"):
        kinds: Any = [kind]
        personal = PersonalData(kinds, countries=every if kind in ("phone", "national_id") else ())
        print(f"{kind} in the index: {rejected(personal, entries)}", flush=True)


if __name__ == "__main__":
    main()
