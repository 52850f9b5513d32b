"""The mixture of distributions that replay's samples come from, with each sample's log-probability under each."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from guardwrap.backends.sequence_scores import is_exact
from guardwrap.training import shards
from guardwrap.training.branches import branches, pivots, reserved
from guardwrap.training.policy import Policy
from guardwrap.training.round_attempts import Drawn
from guardwrap.training.rounds import BASE, BRANCHES, POLICY, Round
from guardwrap.training.samples import Sample
from guardwrap.training.task import Task
from guardwrap.training.training_settings import TrainingSettings
from guardwrap.training.training_state import State

logger = logging.getLogger("guardwrap")

REMEMBERED = 3
"""Number of distributions whose samples replay keeps, without the model itself and its branches. Each one costs another
pass over every sample, and early ones are worth little: 10 000 attempts under a hint were worth 35 draws of g
("dragon")."""


class Mixture:
    """Adds samples to a training's buffer, with their log-probabilities under every law of the mixture."""

    def __init__(self, task: Task, policy: Policy, state: State, settings: TrainingSettings) -> None:
        self.task, self.policy, self.state, self.settings = task, policy, state, settings
        self._hinted = {template: task.hinted(template) for template in settings.hints}

    def extend(self, number: int, planned: Round, drawn: Sequence[Drawn], log_base: Sequence[Sequence[float]]) -> None:
        """Add a round's samples to the buffer, and compute all log-probabilities of old and new samples."""
        state, buffer = self.state, self.state.buffer
        names = [f"{POLICY} {number}" if law == POLICY else law for law, _ in planned.draws]
        new = [name for name in names if name not in state.laws]
        others = [name for name in state.laws if name not in (BASE, BRANCHES, *names)]
        for name in others[: max(0, len(others) + len({*names} - {BASE}) - REMEMBERED)]:
            buffer.forget(state.laws.index(name))
            state.laws.remove(name)
            state.policies.pop(name, None)
        for name in new:
            if name.startswith(POLICY):
                state.policies[name] = self.policy.state_dict()
            self._add_law(name)
        for name, each in zip(names, drawn, strict=True):
            place = state.laws.index(name)
            buffer.drawn[place] = [count + each.attempts for count in buffer.drawn[place]]
        for name, each, base in zip(names, drawn, log_base, strict=True):
            columns = {
                BASE: list(base),
                BRANCHES: self._log_branch(each.samples, base),
                name: self.log_law(name, each),
            }
            rest = {law: self._log_under(law, each.samples) for law in state.laws if law not in columns}
            laws = [(columns | rest)[law] for law in state.laws]
            buffer.extend(each.samples, state.laws.index(name), base, laws)

    def _add_law(self, name: str) -> None:
        state = self.state
        state.laws.append(name)
        state.buffer.log_laws.append(self._log_under(name, state.buffer.samples))
        state.buffer.drawn.append([0] * len(self.settings.prompts))

    def branch(self, number: int, planned: Round, drawn: Sequence[Drawn]) -> None:
        """Branch this round's attempts of the model itself at pivots, if there are such tokens."""
        state, buffer, laws = self.state, self.state.buffer, [law for law, _ in planned.draws]
        if BASE not in laws or not buffer.samples:
            return
        base = drawn[laws.index(BASE)]
        texts = [base.texts(prompt) for prompt in range(len(self.settings.prompts))]
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
        parents = [parent for each in begun for parent in each.parents]
        numbered = [(i, *start) for i, start in enumerate(starts)]
        seed = int(np.random.SeedSequence((self.settings.seed, number)).generate_state(1)[0])
        found = shards.mapped(lambda part: self.task.continued(part, seed), numbered)
        samples = [sample for sample, _ in found if sample is not None]
        parents = [parent for parent, (sample, _) in zip(parents, found, strict=True) if sample is not None]
        state.samples += len(starts)
        state.tokens += sum(tokens for _, tokens in found)
        if BRANCHES not in state.laws:
            self._add_law(BRANCHES)
        place = state.laws.index(BRANCHES)
        buffer.drawn[place] = [count + each.attempts for count, each in zip(buffer.drawn[place], begun, strict=True)]
        log_base = self.task.log_probabilities(self.task.model, samples)
        known = {BASE: log_base, BRANCHES: self._log_branch(samples, log_base)}
        columns = [known[law] if law in known else self._log_under(law, samples) for law in state.laws]
        # Branches of one attempt share a prefix, so they are held out together.
        buffer.extend(samples, place, log_base, columns, parents)

    def _log_branch(self, samples: Sequence[Sample], log_base: Sequence[float]) -> list[float]:
        """Return log a(y) for texts with a pivot, else -inf: the branches' distribution up to a factor."""
        tokens = {*self.state.pivots}
        return [
            a if tokens.intersection(sample.token_ids) else -math.inf
            for sample, a in zip(samples, log_base, strict=True)
        ]

    def log_law(self, law: str, drawn: Drawn) -> list[float]:
        """Return the samples' log-probabilities under the law they were drawn from."""
        if is_exact(self.policy.model if law.startswith(POLICY) else self.task.model):
            return drawn.log_seen
        return self._log_under(law, drawn.samples)

    def _log_under(self, law: str, samples: Sequence[Any]) -> list[float]:
        if law in self._hinted:
            return self.task.log_probabilities(self.task.model, samples, self._hinted[law])
        if law == BASE:
            return self.task.log_probabilities(self.task.model, samples)
        if law == BRANCHES:
            return self._log_branch(samples, self.state.buffer.log_base)
        now = self.policy.state_dict()
        self.policy.load_state_dict(self.state.policies.get(law, now))
        try:
            return self.task.log_probabilities(self.policy.model, samples)
        finally:
            self.policy.load_state_dict(now)
