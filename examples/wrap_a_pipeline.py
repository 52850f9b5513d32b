"""Wrap an existing pipeline with one line."""

import argparse

from transformers import pipeline

from guardwrap import GuardedGenerator, Keyword, Regex, load_local

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", help="Hub id or path; default: the embedded model")
options = parser.parse_args()

# Your app has a pipeline …
if options.model:
    pipe = pipeline("text-generation", model=options.model)
else:
    model, tokenizer = load_local()
    pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)

# … and after one line each text says what the house looks like and has no digits.
pipe = GuardedGenerator(pipe, Keyword(["old", "small", "large", "beautiful"]) & ~Regex(r"\d"), seed=0)

for record in pipe("The old house by the sea was", max_new_tokens=30, num_return_sequences=3):
    print(record["generated_text"], end="\n\n")
