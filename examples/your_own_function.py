"""Use your own function as a constraint, and make it cheap by checking unfinished texts too."""

import argparse

from guardwrap import GuardedGenerator, Verdict, constraint

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="local", help="Hub id or path")
options = parser.parse_args()


def too_many_words(prefix: str) -> Verdict:
    # More text only adds words, so too many words are final. Return UNDECIDED when in doubt.
    return Verdict.VIOLATED if len(prefix.split()) > 12 else Verdict.UNDECIDED


@constraint(prefix=too_many_words)
def short_and_no_word_twice(text: str) -> bool:
    words = text.lower().split()
    return len(words) <= 12 and len(set(words)) == len(words)


guarded = GuardedGenerator(options.model, short_and_no_word_twice, seed=0)
(outcome,) = guarded.run("A good name for a boat is", max_new_tokens=12, num_return_sequences=3)
for text in outcome.texts:
    print(repr(text))
print(outcome.report)
