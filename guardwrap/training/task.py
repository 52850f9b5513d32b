"""The task of a training: draws and scores for a model under a constraint with given prompts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from guardwrap.adapters.lora import require_plain
from guardwrap.calls.source import backend_for
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.checking import judge, run_verdict
from guardwrap.constraints.files.template import fill
from guardwrap.constraints.verdicts import Verdict
from guardwrap.engine.scheduling.backend import Launch, draw_all
from guardwrap.engine.sequence_scores import Continuation, log_probabilities
from guardwrap.errors import UsageError
from guardwrap.generator import GuardedGenerator
from guardwrap.models.prepare import PreparedPrompt
from guardwrap.models.proposal_draws import ProposedCall, require_weighable
from guardwrap.models.task_calls import call_of
from guardwrap.proposals import Prompt, Unweighable, only_masks
from guardwrap.samplers import Attempt
from guardwrap.training import shards


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample that satisfies the constraint."""

    prompt: int  # index of its prompt
    token_ids: tuple[int, ...]  # its new tokens; shape ``[length]``
    decided: int  # number of tokens after which no continuation can violate the constraint; ``length`` if there is none


@dataclass
class Task:
    """A model, a constraint, prompts and generation settings, which together define g."""

    guarded: GuardedGenerator  # the model under its constraint
    given: Sequence[Any]  # the prompts, in any form that ``GuardedGenerator`` accepts
    generation: Mapping[str, Any]  # arguments of ``generate``, which define a(y)
    fields: Sequence[Mapping[str, Any]] | None = None  # the values of the constraint's fields for each prompt

    def __post_init__(self) -> None:
        self._constraints = [fill(self.guarded.constraint, values) for values in self.fields or [{}] * len(self.given)]
        pipe, session = self.guarded.pipeline, self.guarded.session
        self.model: Any = self.guarded.model  # the model itself, whose distribution is a
        require_plain(pipe.model)
        if not session.call_class.causal:
            raise UsageError("training requires a text-generation pipeline or a causal language model")
        if session.proposal is not None:
            raise UsageError("training draws from the model itself; pass a wrapper without a proposal")
        self._call = call_of(pipe, self.generation)
        self._read = list(enumerate(session.call_class.read_prompts(list(self.given)).prompts))
        self.prompts: list[PreparedPrompt] = list(self._call.prompts(self._read, len(self._read)))
        for prompt in self.prompts:
            try:
                require_weighable(dataclasses.replace(prompt, target=prompt.law))
            except Unweighable as error:
                needed = ", ".join(f"{name}={value}" for name, value in error.settings.items())
                raise UsageError(f"{error.why}; pass {needed} as generation settings") from None
        self._stable = self._call.stable_prefix()

    def draw(
        self, count: int, seed: int, source: Any = None, on_attempt: Callable[[], None] | None = None
    ) -> list[list[Attempt]]:
        """Draw and judge attempts, ``count`` for each prompt, with weights if the source masks or twists the model."""
        options = {"proposal": source, "adapter": False, "on_attempt": on_attempt, **self.generation}
        options |= {} if self.fields is None else {"fields": list(self.fields)}
        return self.guarded.attempts(list(self.given), count, weigh=only_masks(source), seed=seed, **options)

    def continued(
        self, prefixes: Sequence[tuple[int, int, tuple[int, ...]]], seed: int
    ) -> list[tuple[Sample | None, int]]:
        """Continue prefixes, each with a number for its randomness and its prompt; return samples and new tokens."""
        launches = []
        for number, prompt, ids in prefixes:
            law = self.prompts[prompt].law
            if len(law.prompt_ids) + len(ids) < law.max_length:
                whole = torch.cat([law.prompt_ids, law.prompt_ids.new_tensor(ids)])
                launches.append(Launch(dataclasses.replace(law, prompt_ids=whole, count=1), seed, number, 0))
        backend = backend_for(self.model, self.guarded.batch_size)
        continuations = {attempt.launch.prompt: attempt for attempt in draw_all(backend, launches)}
        draws = []
        for number, prompt, ids in prefixes:
            more = continuations.get(number)
            token_ids = ids if more is None else (*ids, *more.token_ids)
            draws.append(
                self._call.draw(self.prompts[prompt], token_ids, more is not None and more.status == "finished")
            )
        satisfied = [False] * len(draws)
        rows_of: dict[Constraint, list[int]] = {}
        for row, (_, prompt, _) in enumerate(prefixes):
            rows_of.setdefault(self._constraints[prompt], []).append(row)
        for constraint, rows in rows_of.items():
            for row, judgement in zip(rows, judge(constraint, [draws[row] for row in rows]), strict=True):
                satisfied[row] = judgement.satisfied
        return [
            (self.sample(prompt, draw.token_ids) if fits else None, len(draw.token_ids) - len(ids))
            for (_, prompt, ids), draw, fits in zip(prefixes, draws, satisfied, strict=True)
        ]

    def sample(self, prompt: int, token_ids: tuple[int, ...]) -> Sample:
        """Return a sample of a text that satisfies the constraint."""
        return Sample(prompt, token_ids, self._decided(prompt, token_ids))

    def _decided(self, prompt: int, ids: Sequence[int]) -> int:
        """Return the number of tokens after which the verdict is SATISFIED, by bisection: it stays so."""
        if not self._stable.works or self._call.parses or not self._satisfied(prompt, ids):
            return len(ids)
        low, high = 0, len(ids)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._satisfied(prompt, ids[:middle]) else (middle, high)
        return high

    def _satisfied(self, prompt: int, ids: Sequence[int]) -> bool:
        return run_verdict(self._constraints[prompt], self._stable(ids)) is Verdict.SATISFIED

    def hinted(self, template: str) -> list[PreparedPrompt]:
        """Return the prompts under a constraint-aware prompt."""
        call = ProposedCall(**vars(self._call), source=self._call, rewrite=Prompt(template).apply)
        return list(call.prompts(self._read, len(self._read)))

    def text_of(self, sample: Sample) -> str:
        """Return the text of a sample that the constraint judged."""
        return self._call.draw(self.prompts[sample.prompt], sample.token_ids).text

    def texts(self, samples: Sequence[Sample], prompts: Sequence[PreparedPrompt] | None = None) -> list[Continuation]:
        """Return samples as input of ``engine.sequence_scores``, under their own prompts or under ``prompts``."""
        prompts = self.prompts if prompts is None else prompts
        return [(prompts[sample.prompt].law, sample.token_ids) for sample in samples]

    def log_probabilities(
        self, model: Any, samples: Sequence[Sample], prompts: Sequence[PreparedPrompt] | None = None
    ) -> list[float]:
        """Compute log-probabilities in nats, once for equal samples; several processes share the work."""
        different = list(dict.fromkeys(samples))
        logs = shards.mapped(lambda part: log_probabilities(model, self.texts(part, prompts)), different)
        known = dict(zip(different, logs, strict=True))
        return [known[sample] for sample in samples]
