"""The mixture of distributions that replay's samples come from, and branches of the model's attempts.

Attempts of a proposal that looks ahead (a mask or a twist) come with weights P(y) / a'(y), but log a' of other samples
would cost a mask at each of their tokens. Multiple importance sampling is unbiased for any shares of the laws in the
weights that sum to 1 for each text (Veach and Guibas 1995), so the mixture takes a(y) / Ẑ for a'(y): weighed, its
attempts are draws of g. Each of its samples has the factor a(y) / (Ẑ a'(y)), its weight over the mean weight. Ẑ is the
mean over all prompts: that of a prompt whose few attempts missed g would be far too low, and make them count.

Branches give more draws of g if a single word decides the constraint. A keyword that the model rarely writes begins
with a token, the pivot, that is rarely drawn but has a probability at every step. So an attempt y of the model contains
more information than whether it satisfies the constraint. For each t up to its first pivot, W_t = Σ_v a(v | y_<t), over
pivots v, is the probability that a pivot comes next. The text with a pivot at t, continued by the model, is a draw from
a among the texts whose first pivot is at t. With (attempt, t) chosen in proportion to W_t, the result is a draw from a
among all texts with a pivot, and each branch is worth 1 / mean(Σ_t W_t) attempts (conditional Monte Carlo; Owen, *Monte
Carlo theory*, chapter 8).

On the story model and "dragon", 6 000 attempts with 1 000 branches gave 188 effective draws; without branches 8. 57
branches, the effective sample size of Σ_t W_t, were too few: its largest values are before "dragons", which does not
satisfy the constraint.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from guardwrap.constraints.files.file_fields import NAMED
from guardwrap.engine.sequence_scores import is_exact, scored
from guardwrap.metrics.intervals import Floats
from guardwrap.training import shards
from guardwrap.training.policy import Policy
from guardwrap.training.rounds import BASE, BRANCHES, POLICY, Drawn, Round
from guardwrap.training.task import Sample, Task
from guardwrap.training.training_settings import TrainingSettings
from guardwrap.training.training_state import State, systematic

logger = logging.getLogger("guardwrap")

REMEMBERED = 3
"""Number of distributions whose samples replay keeps, without the model itself and its branches. Each one costs another
pass over every sample, and early ones are worth little: 10 000 attempts under a hint were worth 35 draws of g
("dragon")."""

_LEAST_SHARE = 0.05
"""Least share of g with a pivot in the text."""

_LEAST_RATE = 0.3
"""Least share of the texts with a pivot that satisfy the constraint."""


class Mixture:
    """Adds samples to a training's buffer, with their log-probabilities under every law of the mixture."""

    def __init__(self, task: Task, policy: Policy, state: State, settings: TrainingSettings) -> None:
        self.task, self.policy, self.state, self.settings = task, policy, state, settings
        self._hinted = {hint: task.hinted(hint) for hint in settings.hints if hint not in NAMED}

    def extend(self, number: int, planned: Round, drawn: Sequence[Drawn], log_base: Sequence[Sequence[float]]) -> None:
        """Add a round's samples to the buffer, and compute all log-probabilities of old and new samples."""
        state = self.state
        names = [f"{POLICY} {number}" if law == POLICY else law for law, _ in planned.draws]
        others = [name for name in state.laws if name not in (BASE, BRANCHES, *names)]
        for name in others[: max(0, len(others) + len({*names} - {BASE}) - REMEMBERED)]:
            state.buffer.forget(state.laws.index(name))
            state.laws.remove(name)
            state.policies.pop(name, None)
        for name in names:
            if name.startswith(POLICY):
                state.policies[name] = self.policy.state_dict()
        for name, each in zip(names, drawn, strict=True):
            if name in NAMED:
                weights = np.concatenate(each.log_weights(each.seen_weights))
                state.log_z[name] = float(np.logaddexp.reduce(weights) - np.log(len(weights)))
            self._add_law(name)
        for name, each, base in zip(names, drawn, log_base, strict=True):
            self._add(name, each.samples, base, self.log_law(name, each, base), [each.attempts] * each.prompts)

    def _add_law(self, name: str) -> None:
        state, buffer = self.state, self.state.buffer
        if name not in state.laws:
            state.laws.append(name)
            buffer.log_laws.append(self._log_under(name, buffer.samples, buffer.log_base))
            buffer.drawn.append([0] * buffer.prompts)

    def _add(
        self,
        law: str,
        samples: Sequence[Sample],
        log_base: Sequence[float],
        log_law: Sequence[float],
        attempts: Iterable[float],
        places: Sequence[int] | None = None,
    ) -> None:
        """Add samples of a law, which stand for a number of attempts for each prompt."""
        state, buffer = self.state, self.state.buffer
        place, known = state.laws.index(law), {BASE: log_base} | ({} if law in NAMED else {law: log_law})
        buffer.drawn[place] = [before + more for before, more in zip(buffer.drawn[place], attempts, strict=True)]
        columns = [known[name] if name in known else self._log_under(name, samples, log_base) for name in state.laws]
        buffer.extend(samples, place, log_base, columns, places, np.subtract(columns[place], log_law).tolist())

    def branch(self, number: int, planned: Round, drawn: Sequence[Drawn]) -> None:
        """Branch this round's attempts of the model itself at pivots, if there are such tokens."""
        state, buffer, laws = self.state, self.state.buffer, [law for law, _ in planned.draws]
        if BASE not in laws or not buffer.samples:
            return
        base = drawn[laws.index(BASE)]
        if not base.attempts:  # the budget ended before
            return
        texts = [base.texts(prompt) for prompt in range(base.prompts)]
        if not state.pivots:
            weights = np.exp(buffer.log_weights())
            every = [ids for each in texts for ids in each]
            z = float(buffer.partition().mean())
            state.pivots = pivots(buffer.samples, weights / weights.sum(), z, every, self.task.prompts[0].law.end_ids)
            logger.info("pivots: %s", state.pivots)
        if not state.pivots:
            return
        count = reserved(planned.draws[laws.index(BASE)][1])
        begun = branches(self.task, texts, state.pivots, count, self.settings.seed, number)
        starts = [(prompt, ids) for prompt, each in enumerate(begun) for ids in each.token_ids]
        seed = int(np.random.SeedSequence((self.settings.seed, number)).generate_state(1)[0])
        numbered = [(i, *start) for i, start in enumerate(starts)]
        continued = shards.mapped(lambda part: self.task.continued(part, seed), numbered)
        state.samples += len(starts)
        state.tokens += sum(tokens for _, tokens in continued)
        samples = [sample for sample, _ in continued if sample is not None]
        parents = [parent for each in begun for parent in each.parents]
        parents = [parent for parent, (sample, _) in zip(parents, continued, strict=True) if sample is not None]
        self._add_law(BRANCHES)
        log_base = self.task.log_probabilities(self.task.model, samples)
        log_branch = self._log_under(BRANCHES, samples, log_base)
        # Branches of one attempt share a prefix, so they are held out together.
        self._add(BRANCHES, samples, log_base, log_branch, [each.attempts for each in begun], parents)

    def log_law(self, law: str, drawn: Drawn, log_base: Sequence[float]) -> list[float]:
        """Return the samples' log-probabilities under the law they were drawn from."""
        if law in NAMED:
            return [a - weight for a, weight in zip(log_base, drawn.seen_weights, strict=True)]
        if is_exact(self.policy.model if law.startswith(POLICY) else self.task.model):
            return drawn.log_seen
        return self._log_under(law, drawn.samples, ())

    def _log_under(self, law: str, samples: Sequence[Sample], log_base: Sequence[float]) -> list[float]:
        if law in NAMED:
            log_z = self.state.log_z[law]
            return [log - log_z if log_z > -math.inf else -math.inf for log in log_base]
        if law in self._hinted:
            return self.task.log_probabilities(self.task.model, samples, self._hinted[law])
        if law == BASE:
            return self.task.log_probabilities(self.task.model, samples)
        if law == BRANCHES:  # log a(y) for texts with a pivot: the branches' distribution up to a factor
            tokens = {*self.state.pivots}
            return [
                log if tokens.intersection(sample.token_ids) else -math.inf
                for sample, log in zip(samples, log_base, strict=True)
            ]
        now = self.policy.state_dict()
        self.policy.load_state_dict(self.state.policies.get(law, now))
        try:
            return self.task.log_probabilities(self.policy.model, samples)
        finally:
            self.policy.load_state_dict(now)


def pivots(
    samples: Sequence[Sample], shares: Floats, partition: float, texts: Sequence[Sequence[int]], ends: frozenset[int]
) -> list[int]:
    """Find tokens that are frequent in texts of g and rare elsewhere."""
    inside: dict[int, float] = {}
    for sample, share in zip(samples, shares, strict=True):
        for token in {*sample.token_ids} - ends:
            inside[token] = inside.get(token, 0.0) + float(share)
    everywhere: dict[int, int] = {}
    for ids in texts:
        for token in set(ids):
            everywhere[token] = everywhere.get(token, 0) + 1
    return sorted(
        token
        for token, share in inside.items()
        if share >= _LEAST_SHARE and share * partition >= _LEAST_RATE * everywhere.get(token, 0) / len(texts)
    )


def reserved(attempts: int) -> int:
    """Return how many of the planned attempts of the model are reserved for branches."""
    return attempts // 7


@dataclass(frozen=True)
class Begun:
    """Prefixes for the branches of one prompt; the last token of each is a pivot."""

    token_ids: list[tuple[int, ...]]  # new tokens of each prefix; ``[branches][length]``
    parents: list[int]  # index of the attempt that each branches from; ``[branches]``
    attempts: float  # number of attempts of the model that all branches together are worth


def branches(
    task: Task, texts: Sequence[Sequence[Sequence[int]]], tokens: Sequence[int], count: int, *words: int
) -> list[Begun]:
    """Choose ``count`` branches for each prompt at pivot ``tokens``, with ``words`` as the seed.

    ``texts``: new tokens of all attempts of the model itself; ``[prompts][attempts][length]``.
    """
    begun = []
    for prompt, ids in enumerate(texts):
        samples = [Sample(prompt, tuple(each), len(each)) for each in ids]
        chances = shards.mapped(lambda part: _chances(task, part, tokens), samples)
        total = np.array([each.sum() for each in chances])
        if not total.sum() or not count:
            begun.append(Begun([], [], 0.0))
            continue
        steps = [(i, t, v) for i, each in enumerate(chances) for t in range(len(each)) for v in tokens]
        weights = np.concatenate([each.flatten() for each in chances])
        chosen = [steps[row] for row in systematic(weights, count, np.random.default_rng([*words, prompt]).random())]
        prefixes = [(*ids[i][:t], v) for i, t, v in chosen]
        begun.append(Begun(prefixes, [i for i, _, _ in chosen], count / float(total.mean())))
    return begun


@torch.no_grad()
def _chances(task: Task, samples: Sequence[Sample], tokens: Sequence[int]) -> list[Floats]:
    """Return a(v | y_<t) for each attempt, ``[steps, pivots]``, at the steps up to its first pivot."""
    steps = [
        next((t for t, token in enumerate(sample.token_ids) if token in tokens), len(sample.token_ids) - 1) + 1
        for sample in samples
    ]
    # Only the tokens before the last of these steps matter, and many attempts end at their first token.
    cut = [replace(each, token_ids=each.token_ids[:count]) for each, count in zip(samples, steps, strict=True)]
    keys = [(each.prompt, each.token_ids[:-1]) for each in cut]
    different = [*dict(zip(keys, cut, strict=True)).values()]
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    # One allocation for all: small arrays allocated between large ones fragmented the heap by 19 GB.
    chances = np.zeros((len(different), max(steps, default=0), len(tokens)))
    for batch in scored(task.model, task.texts(different)):
        for i, scores in batch:
            law = scores[:, list(tokens)].double() - scores.logsumexp(-1, keepdim=True).double()
            chances[i, : len(law)] = law.exp().cpu().numpy()
    return [chances[number[key], :count] for key, count in zip(keys, steps, strict=True)]
