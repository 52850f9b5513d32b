"""Require that a classifier is confident about the last sentence, and run cheap checks first."""

import argparse

from guardwrap import Budget, Classifier, GuardedGenerator, Length

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="local", help="Hub id or path")
parser.add_argument(
    "--classifier", default="distilbert/distilbert-base-uncased-finetuned-sst-2-english", help="Hub id or path"
)
parser.add_argument("--label", default="POSITIVE")
parser.add_argument("--threshold", type=float, default=0.9)
options = parser.parse_args()

happy_end = Classifier(options.classifier, options.label, options.threshold, on="last_sentence", name="happy end")
guarded = GuardedGenerator(
    options.model,
    Length(min=2, unit="sentences") & happy_end,  # the classifier only runs on texts that are long enough
    budget=Budget(max_attempts=200),
    seed=0,
)

(outcome,) = guarded.run("It rained all day and the shop stayed empty.", max_new_tokens=40, num_return_sequences=2)
for text in outcome.texts:
    print(text.strip(), end="\n\n")
print(outcome.report)
