"""Chat with a constraint file: the rules are in YAML, next to the code."""

import argparse
from pathlib import Path

from guardwrap import Fallback, GuardedGenerator

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="local", help="Hub id or path")
options = parser.parse_args()

guarded = GuardedGenerator(
    options.model,
    constraints=Path(__file__).with_name("concise.yaml"),
    on_exhausted=Fallback("I would rather talk about tea."),  # checked like any other text
    seed=4,
)
chat = [{"role": "user", "content": "What should I drink this morning? Answer in one sentence."}]

(outcome,) = guarded.run(chat, max_new_tokens=50)
print(outcome.texts[0])
print(outcome.report)
