"""How often each entry of the catalogue rejects real texts: paragraphs of Debian's package descriptions.

Fetch them as ``benchmarks/detectors.py`` says, then:

    python benchmarks/false_alarms.py LISTS

An entry whose name ends with a language is tried on that language alone, the others on all.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from detectors import rejected, sampled

from guardwrap.constraints import catalogue
from guardwrap.constraints.files.constraint_data import catalogue_names

EACH = 250  # texts of each language for an entry of no language
MOST = 3000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("lists", type=Path)
    samples = {code: texts["paragraphs"] for code, texts in sampled(parser.parse_args().lists).items()}
    everything = [text for texts in samples.values() for text in texts[:EACH]]
    for name in catalogue_names():
        # A model judges positive-ending, and the lists in Chinese have a name that is not read here.
        if name not in ("positive-ending", "no-refusal-zh"):
            texts = samples.get(name.rpartition("-")[2], everything)[:MOST]
            count = rejected(catalogue(name).constraint, texts)
            print(f"| `{name}` | {len(texts)} | {count / len(texts):.2%} |", flush=True)


if __name__ == "__main__":
    main()
