"""How much of a classifier's verdict a model can predict, which limits any training for it.

    python benchmarks/knowable.py examples/training/happy-ending.yaml --model models/stories15M \\
        --classifier models/sentiment-minilm --thresholds 0.6 0.95 --out benchmarks/results/knowable

draws texts from the model, has the classifier judge them at each threshold, and fits a logistic regression to the
verdicts on two descriptions of a text: the set of tokens in the judged view, and the model's last hidden state after
the whole text. On held-out texts, used neither for the fit nor for its penalty, it reports the share of the verdict's
entropy (in nats) that the description explains. If a description of whole texts explains little, single tokens explain
little too, and a proposal, which is made of tokens, has little to learn from one text of g.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from engine import header
from loops import load
from scipy.special import entr

from guardwrap import Classifier, GuardedGenerator
from guardwrap.constraints.views import view
from guardwrap.metrics.intervals import mean_interval
from guardwrap.outcomes import Draw
from guardwrap.training import read_settings

PENALTIES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)  # of the squared weights of standardised features
SHARES = (0.7, 0.1, 0.2)  # of the texts: to fit, to choose the penalty, to measure
KNOWN = 5  # texts that hold a token, at least, for it to count


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="a file for guardwrap train, whose constraint is one classifier")
    parser.add_argument("--model", help="Hub id or path of a model; default: the embedded one")
    parser.add_argument("--classifier", help="Hub id or path")
    parser.add_argument("--thresholds", type=float, nargs="+", default=[0.6, 0.95])
    parser.add_argument("--attempts", type=int, default=2000, help="for each prompt")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("knowable"))
    options = parser.parse_args(sys.argv[1:] if arguments is None else list(arguments))
    torch.set_num_threads(options.threads)
    transformers.utils.logging.set_verbosity_error()
    options.chat, options.quick, options.repeats = None, False, 1  # for the header that all benchmarks have
    written = header(options)
    del written["cases"]
    settings, constraint = read_settings(options.config)
    if not isinstance(constraint, Classifier):
        parser.error("the constraint must be one classifier")
    judge = replace(constraint, model=options.classifier or constraint.model, threshold=0.0)
    model, tokenizer = load(options.model, settings.dtype or "float32")
    guarded = GuardedGenerator(model, judge, tokenizer=tokenizer, batch_size=settings.draw_batch_size or 128)
    prompts, law = settings.given_prompts, settings.generation
    drawn = guarded.attempts(prompts, options.attempts, weigh=False, seed=settings.seed, **law)
    draws = [attempt.draw for attempts in drawn for attempt in attempts]
    views = [" ".join(view(draw, judge.on) or ()) for draw in draws]
    scores = np.array(judge.probabilities(views))
    texts = {
        "tokens of the view": bags([tokenizer(text, add_special_tokens=False)["input_ids"] for text in views]),
        "last hidden state": states(model, tokenizer, draws),
    }
    order = np.random.default_rng(settings.seed).permutation(len(draws))
    parts = np.split(order, np.cumsum([int(share * len(order)) for share in SHARES[:2]]))
    written["settings"] |= {"texts": len(draws), "on": judge.on, "generation": settings.generation}
    written["known"] = {}
    for threshold in options.thresholds:
        verdicts = (scores > threshold).astype(np.float64)
        if len({*verdicts[parts[0]]}) == 1:
            parser.error(
                f"at threshold {threshold} all texts have one verdict; draw more with --attempts, or change it"
            )
        found: dict[str, Any] = {"acceptance rate": float(verdicts.mean())}
        written["known"][str(threshold)] = found
        for name, features in texts.items():
            found[name] = known(features, verdicts, parts)
            print(f"threshold {threshold}, AR {verdicts.mean():.4f}: {name}: {found[name]}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.with_suffix(".json").write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n")


def bags(texts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Say which tokens each text has, ``[texts, tokens]``, and how many."""
    counts = np.bincount([token for ids in texts for token in set(ids)])
    columns = {int(token): i for i, token in enumerate(np.flatnonzero(counts >= KNOWN))}
    found = torch.zeros(len(texts), len(columns) + 1)
    for row, ids in zip(found, texts, strict=True):
        row[[columns[token] for token in ids if token in columns]] = 1.0
        row[-1] = len(ids)
    return found


def states(model: Any, tokenizer: Any, draws: Sequence[Draw]) -> torch.Tensor:
    """Return the model's last hidden state at the end of each text, ``[texts, width]``."""
    found = []
    with torch.no_grad():
        for draw in draws:
            ids = torch.tensor([[*tokenizer(draw.prompt)["input_ids"], *draw.token_ids]])
            found.append(model(ids, output_hidden_states=True).hidden_states[-1][0, -1].float())
    return torch.stack(found)


def known(features: torch.Tensor, verdicts: np.ndarray, parts: Sequence[np.ndarray]) -> dict[str, float]:
    """Return the share of the verdicts' entropy that a logistic regression tells of the last part, 95 % interval."""
    fit, choose, measure = parts
    features = (features - features[fit].mean(0)) / features[fit].std(0).clamp(min=1e-6)
    target = torch.from_numpy(verdicts).float()
    best = min(
        (fitted(features[fit], target[fit], penalty) for penalty in PENALTIES),
        key=lambda weights: float(losses(features[choose], target[choose], weights).mean()),
    )
    rate = verdicts[fit].mean()
    entropy = float(entr(rate) + entr(1 - rate))
    blind = -np.where(verdicts[measure] > 0, np.log(rate), np.log1p(-rate))  # of one who knows the rate alone
    seen = losses(features[measure], target[measure], best).double().numpy()
    share = mean_interval((blind - seen) / entropy)
    return {name: round(getattr(share, name), 3) for name in ("value", "low", "high")}


def fitted(features: torch.Tensor, target: torch.Tensor, penalty: float) -> torch.Tensor:
    """Fit weights, and last the intercept."""
    rate = float(target.mean().clamp(1e-6, 1 - 1e-6))
    weights = torch.zeros(features.shape[1] + 1)
    weights[-1] = np.log(rate / (1 - rate))
    weights.requires_grad_()
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def objective() -> torch.Tensor:
        optimizer.zero_grad()
        loss = losses(features, target, weights).mean() + penalty * weights[:-1].square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(objective)  # type: ignore[no-untyped-call]
    return weights.detach()


def losses(features: torch.Tensor, target: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.binary_cross_entropy_with_logits(
        features @ weights[:-1] + weights[-1], target, reduction="none"
    )


if __name__ == "__main__":
    main()
