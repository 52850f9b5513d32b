"""Draw the texts that the checkers of instruction sets are compared on, from the embedded model.

    python benchmarks/instructions/model_texts.py

writes ``model_texts.json.gz`` beside this file: texts of each prompt in ``PROMPTS``, at temperature 0.7, with no rule.
The seed is fixed, so the file can be made again with the same versions of torch and transformers.
"""

import gzip
import json
from pathlib import Path

import torch
import transformers

from guardwrap import GuardedGenerator, Regex, load_local

PROMPTS = (
    "Write a line about tea and a river.",
    "List three things to pack for a hike as bullet points.",
    "Write a letter to a friend, with a P.S. at the end.",
    "Give a JSON object that describes a cup of tea.",
    "Ask me three questions about my day, then answer them!",
    "Write a short story about Emma and Noah, with a title in double angle brackets.",
    "Answer in capital letters: what is a river?",
    "Answer in lower case: what is tea?",
    "Schreibe zwei Sätze über Tee.",
    "Is tea better than coffee? Answer yes, no or maybe.",
    "Write a CSV table of three cities, their countries and years.",
    "Write two paragraphs about the sea, separated by ***.",
    "Describe your mood in five words with emoji.",
    "Quote a proverb and explain what it means.",
    "List the multiples of 7 from 14 to 49.",
    "Write a poem of four lines about winter.",
    "Write an outline with bullets and sub-bullets on how to make bread.",
    "Name five capitals of Europe, separated by commas.",
    "Explain in 30 words (or fewer) why the sky is blue.",
    "Highlight two *important* words in a sentence about health.",
)
EACH = 26
SETTINGS = {"do_sample": True, "temperature": 0.7, "top_k": 0, "max_new_tokens": 64}


def main() -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    model, tokenizer = load_local()
    guarded = GuardedGenerator(model, Regex("(?s).*"), tokenizer=tokenizer, batch_size=EACH)
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    attempts = [guarded.attempts([chat], EACH, weigh=False, seed=1, **SETTINGS)[0] for chat in chats]
    texts = [attempt.draw.text for drawn in attempts for attempt in drawn]
    # No time of day in the header, so that equal texts make equal files.
    packed = gzip.compress(json.dumps(texts, ensure_ascii=False, indent=0).encode(), mtime=0)
    Path(__file__).with_name("model_texts.json.gz").write_bytes(packed)
    print(len(texts), "texts,", len(set(texts)), "different")


if __name__ == "__main__":
    main()
