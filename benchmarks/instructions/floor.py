"""The least that sound verdicts on prefixes could leave of the cost of ``cost_prompts.yaml``.

    python benchmarks/instructions/floor.py --out benchmarks/results/instructions-floor.jsonl

draws full attempts for each prompt and looks, in each rejected one, for the longest prefix that one of some written
continuations completes to a text that satisfies the rules. No sound verdict can end the attempt before that prefix. So
the tokens up to there, and those of accepted attempts, are a lower bound of what attempts cost; their share of all
tokens bounds the ratio that ``cost.py`` measures. Tokens up to where our verdict ends attempts are reported beside it.
Prompts with a line are skipped; ``--summary`` prints the figures.
"""

import itertools
from functools import partial
from statistics import fmean
from typing import Any

from cost import SETTINGS, arguments, run

from guardwrap import Constraint, GuardedGenerator
from guardwrap.constraints import Python, Verdict
from guardwrap.constraints.checking import run_verdict

HELP: dict[str, list[str]] = {
    "three_sentences": [". A b.", " a. A b.", " a. A b. A b.", " a. A b. A b. A b.", " a.", "."],
    "words_20_40": [" a" * count for count in (1, 3, 8, 15, 20)],
    "over_40": [" a" * count for count in (10, 20, 30, 41)],
    "exclaim": ["!"],
    "question": ["?", " a?"],
    "quoted": ['"', '" a"', ' a"'],
    "title": [" <<a>>", "a>>", ">>", "<a>>"],
    "postscript": [" P.S. a", "S. a", ".S. a"],
    "three_bullets": ["\n- a" * count for count in (1, 2, 3)] + [" a"],
    "three_numbers": [" 1", " 1 2", " 1 2 3", " a"],
    "unique_15": [" b c d f g h i j k l m n o p q r s t u v"],
    "pronouns_4": [" I you he it", " he", " I it", " you he it"],
    "conjunctions_2": [" a and b or", " or b", " and b"],
    "few_stop_words": [" pig cow dog hat cup fox sun sky owl jam ivy fig"],
    "two_paragraphs": ["\n\nA", "\nA", "A"],
    "tea": [" tea", "a tea"],
    "tea_twice": [" tea", " tea tea"],
    "river": [" river"],
    "winter": [" winter"],
    "starts_dear": ["Dear", "ear", "ar", "r"],
    "parentheses": [" (a)", "a)", ")"],
}
"""What may complete a text by each rule of the kind "at least"."""


def continuations(rules: list[str]) -> list[str]:
    """Return what may complete a text by all rules: in any order, each with nothing beside it."""
    choices = [["", *HELP.get(rule, [])] for rule in rules]
    joined = {"".join(order) for chosen in itertools.product(*choices) for order in itertools.permutations(chosen)}
    return sorted({form for text in joined for form in (text, text.upper(), text.lower())}, key=len)


def lengths(rule: Constraint, texts: list[str], endings: list[str]) -> tuple[int, int]:
    """Return how many tokens of a rejected attempt are unavoidable, and how many our verdict lets pass.

    Parameters
    ----------
    rule
        The rule.
    texts
        The attempt's texts after each of its tokens.
    endings
        Continuations to try.
    """
    ours = next(
        (count for count, text in enumerate(texts, 1) if run_verdict(rule, text) is Verdict.VIOLATED), len(texts)
    )
    for count in range(ours - 1, 0, -1):
        if any(rule.accepts(texts[count - 1] + ending) for ending in endings):
            return count + 1, ours  # the token after the prefix is drawn before a verdict can end the attempt
    return 1, ours


def measured(attempts: int, model: Any, tokenizer: Any, row: dict[str, Any], rule: Constraint) -> dict[str, Any]:
    guarded = GuardedGenerator(model, Python(rule.accepts), tokenizer=tokenizer)
    chat = [{"role": "user", "content": row["prompt"]}]
    (drawn,) = guarded.attempts([chat], attempts, weigh=False, seed=3, **SETTINGS)
    endings = continuations(row["rules"])
    tokens = {"full": 0, "least": 0, "ours": 0}
    accepted = 0
    for attempt in drawn:
        ids = list(attempt.draw.token_ids)
        least = ours = len(ids)
        if attempt.satisfied:
            accepted += 1
        else:
            texts = [tokenizer.decode(ids[:count], skip_special_tokens=True) for count in range(1, len(ids) + 1)]
            least, ours = lengths(rule, texts, endings)
        for key, count in (("full", len(ids)), ("least", least), ("ours", ours)):
            tokens[key] += count
    return {**row, "attempts": len(drawn), "accepted": accepted, "tokens": tokens}


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    total = {key: sum(line["tokens"][key] for line in lines) for key in ("full", "least", "ours")}
    return {
        "prompts": len(lines),
        "mean ratio": {
            key: round(fmean(line["tokens"][key] / line["tokens"]["full"] for line in lines), 3)
            for key in ("least", "ours")
        },
        "ratio of all tokens": {key: round(total[key] / total["full"], 3) for key in ("least", "ours")},
        "acceptance": round(sum(line["accepted"] for line in lines) / sum(line["attempts"] for line in lines), 3),
    }


def main() -> None:
    parser = arguments(__doc__, "instructions-floor.jsonl")
    parser.add_argument("--attempts", type=int, default=24, help="for each prompt (default: 24)")
    options = parser.parse_args()
    run(options, summary, partial(measured, options.attempts))


if __name__ == "__main__":
    main()
