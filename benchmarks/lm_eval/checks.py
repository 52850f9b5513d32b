"""Items of two tasks of lm-evaluation-harness, and their metrics: whether the answer has its format, and is right."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset

from guardwrap.constraints import load

RULES = {name: load(Path(__file__).with_name("rules") / f"{name}.yaml").constraint for name in ("number", "letter")}
TEMPLATES: dict[str, Callable[[int, int], int]] = {
    "{name} has {a} {things} and gets {b} more. How many {things} does {name} have?": lambda a, b: a + b,
    "{name} has {a} {things} and gives away {b}. How many {things} are left?": lambda a, b: a - b,
    "There are {b} boxes with {a} {things} each. How many {things} are there?": lambda a, b: a * b,
}


def items(**_: Any) -> dict[str, Dataset]:
    """Return 100 sums, with four options each."""
    chance, rows = random.Random(1), []
    for number in range(100):
        template, compute = list(TEMPLATES.items())[number % 3]
        b = chance.randint(1, 4)
        a = chance.randint(b, 9)
        name, things = chance.choice(("Ann", "Ben", "Eva", "Joe")), chance.choice(("books", "coins", "pens", "plums"))
        answer = compute(a, b)
        options = [answer, *chance.sample([x for x in range(max(0, answer - 4), answer + 6) if x != answer], 3)]
        chance.shuffle(options)
        listed = "\n".join(f"{letter}. {option}" for letter, option in zip("ABCD", options, strict=True))
        question, letter = template.format(name=name, things=things, a=a, b=b), "ABCD"[options.index(answer)]
        rows.append({"question": question, "options": listed, "answer": str(answer), "letter": letter})
    return {"test": Dataset.from_list(rows)}


def number(doc: dict[str, str], results: list[str]) -> dict[str, float]:
    """Judge an answer that should have one number."""
    (text,) = results
    right = re.findall(r"\d+", text) == [doc["answer"]]
    return {"accepts": float(RULES["number"].accepts(text)), "correct": float(right)}


def letter(doc: dict[str, str], results: list[str]) -> dict[str, float]:
    """Judge an answer that should be one letter."""
    (text,) = results
    return {"accepts": float(RULES["letter"].accepts(text)), "correct": float(text.strip() == doc["letter"])}
