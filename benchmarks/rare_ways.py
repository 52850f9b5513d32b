"""What texts with a word cost at every distance from g, by each way to draw them: the figures of a picture.

    python benchmarks/rare.py bank --model PATH --bank FOLDER --batches 63
    python benchmarks/rare_ways.py --model PATH --bank FOLDER --out benchmarks/results/rare-ways.jsonl

``docs/cost_picture.py`` draws them. Each word has a line with the ways rejection, a hint ("A story about a king.") and
``Twisted()``, the last two as they are and with QRS and IMH: pairs of attempts for each text and TVD from g. Distances
follow from the log-weights of exact draws of g, and acceptance rates from 1 024 attempts. The attempts that a twist
learns from are shared among 64 texts. Words that the file has are not measured again.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rare import (
    ROWS,
    SETTINGS,
    TEXTS,
    Bank,
    learned,
    learning_of,
    lines_of,
    log_weights,
    parser_of,
    passing,
    qrs_at,
    written,
)

from guardwrap import Keyword, Prompt, Twisted

WORDS = ("king", "night")
HINT = "A story about a {}. <s>{{prompt}}"
STEPS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)
BETAS = 40
Points = list[tuple[float, float]]


def by_qrs(logs: np.ndarray[Any, Any], share: float, rate: float) -> Points:
    """Return attempts a text and TVD for values of β up to the largest weight.

    Values that would accept more attempts than pass are left out: what they accept is too rare among the draws.
    """
    points = [qrs_at(logs, share, beta) for beta in np.linspace(logs.min(), logs.max(), BETAS)]
    return [(attempts, tvd) for tvd, attempts in points if attempts >= 1 / rate]


def by_imh(logs: np.ndarray[Any, Any], share: float, rate: float) -> Points:
    """Return attempts a text and TVD for chains of some steps, each of which ends with a text.

    The law is computed on the exact draws and on one more state: all texts of g' whose weights are so small that none
    of them is among the draws. Chains may begin there, and go there only from there.
    """
    weights = np.exp(logs)
    proposed = share / rate / weights / len(weights)  # g' of each draw
    unseen = max(0.0, 1 - float(proposed.sum()))
    proposed *= (1 - unseen) / proposed.sum()
    moves = proposed[None, :] * np.minimum(1, weights[None, :] / weights[:, None])
    moves += np.diag(1 - moves.sum(1))
    law, rest, points = proposed, unseen, []
    for step in range(1, max(STEPS) + 1):
        law, rest = law @ moves + rest * proposed, rest * unseen
        if step in STEPS:
            points.append(((step + 1) / rate, float((np.abs(law - 1 / len(law)).sum() + rest) / 2)))
    return points


def hint_weights(bank: Bank, hint: str, rows: Sequence[Sequence[int]]) -> np.ndarray[Any, Any]:
    """Return the log-weights of texts under a hint in nats, ``[texts]``."""
    start = [bank.tokenizer.bos_token_id]
    before = bank.tokenizer(hint.format(prompt="")).input_ids

    def log_probability(first: list[int], row: Sequence[int]) -> float:
        with torch.no_grad():
            logits = bank.model(torch.tensor([[*first, *row[:-1]]])).logits[0, len(first) - 1 :]
        return float(logits.double().log_softmax(-1)[range(len(row)), list(row)].sum())

    return np.array([log_probability(start, row) - log_probability(before, row) for row in rows])


def ways_of(bank: Bank, word: str, seed: int) -> dict[str, Any]:
    """Return the line of a word."""
    exact, count = bank.exact(word, None)
    share = count / len(bank.rows)
    rule, hint = Keyword(word), HINT.format(word)
    twisted = bank.guarded(rule, Twisted())
    twist = learned(twisted, seed)
    (outcome,) = twisted.run("", seed=seed, **SETTINGS)
    learning, _ = learning_of(outcome.report.notes)
    ways: dict[str, Points] = {"rejection": [(1 / share, 0.0)]}
    for name, guarded, logs, before in (
        ("hint", bank.guarded(rule, Prompt(hint)), hint_weights(bank, hint, exact), 0.0),
        ("twist", twisted, log_weights(bank.model, twist, exact, bank.tokenizer.bos_token_id), learning / TEXTS),
    ):
        passed, drawn = passing(guarded, 2 * ROWS, seed)
        rate = passed / drawn
        alone = float(np.maximum(1 - share / rate * np.exp(-logs), 0).mean())
        points = {
            name: [(1 / rate, alone)],
            f"{name}, QRS": by_qrs(logs, share, rate),
            f"{name}, IMH": by_imh(logs, share, rate),
        }
        for way, some in points.items():
            ways[way] = [(round(before + attempts, 2), round(tvd, 4)) for attempts, tvd in some]
    return {"word": word, "Z": share, "exact draws": count, "seed": seed, "ways": ways}


def main() -> None:
    parser = parser_of(__doc__, WORDS, 3)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    bank = Bank.read(options.model, options.bank)
    finished = {line["word"] for line in lines_of(options.out)}
    for word in options.words.split(","):
        if word not in finished:
            written(options.out, ways_of(bank, word, options.seed))


if __name__ == "__main__":
    main()
