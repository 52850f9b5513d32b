"""Compare early verdicts on a part of a message with a function that judges its end.

The embedded model continues chats whose answers begin with reasoning. The rule is a JSON Schema for the answer after
it, once as ``JSONSchema(..., on="answer")`` and once as a function of the same view. Both draw the same texts.

    python benchmarks/messages.py
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from guardwrap import Budget, GuardedGenerator, JSONSchema, constraint

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
RULE = JSONSchema(SCHEMA)
SHOWN = [("Ada", 36), ("Bob", 52), ("Cleo", 19)]
ASKED = ["Dora is 41 years old.", "Emil, who is 8, likes trains.", "My aunt Fay turned 70.", "Gus (33) plays chess."]


@constraint(on="answer")
def is_person(text: str) -> bool:
    """Judge a whole answer."""
    return RULE.accepts(text)


def chat(sentence: str) -> list[dict[str, str]]:
    """Return a chat with examples of reasoning and an answer."""
    messages = []
    for name, age in SHOWN:
        messages.append({"role": "user", "content": f"{name} is {age} years old."})
        thought = f"<think>The name is {name}, and the age is {age}.</think>\n"
        messages.append({"role": "assistant", "content": thought + json.dumps({"name": name, "age": age})})
    return [*messages, {"role": "user", "content": sentence}]


def drawn(rule: Any, texts: int, tokens: int) -> tuple[list[str], int, int]:
    """Return the accepted texts, the computed tokens and the attempts."""
    guarded = GuardedGenerator("local", rule, budget=Budget(max_attempts=4000))
    settings: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "max_new_tokens": tokens, "seed": 1}
    outcomes = guarded.run([chat(sentence) for sentence in ASKED], num_return_sequences=texts, **settings)
    said = [text for outcome in outcomes for text in outcome.texts]
    usage = [outcome.report.usage for outcome in outcomes]
    return said, sum(each.computed_tokens for each in usage), sum(each.attempts for each in usage)


def main() -> None:
    """Print the figures as a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=100)
    options = parser.parse_args()
    rows = {
        "JSONSchema(on='answer')": drawn(JSONSchema(SCHEMA, on="answer"), options.texts, options.tokens),
        "a function of the end": drawn(is_person, options.texts, options.tokens),
    }
    print(f"{'rule':26}{'texts':>7}{'attempts':>10}{'computed tokens':>17}{'per text':>10}")
    for name, (texts, computed, attempts) in rows.items():
        print(f"{name:26}{len(texts):7}{attempts:10}{computed:17,}{computed / max(1, len(texts)):10,.0f}")
    (early, least, _), (late, most, _) = rows.values()
    print(f"ratio {least / most:.2f}; the same texts: {early == late}")


if __name__ == "__main__":
    main()
