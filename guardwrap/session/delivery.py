"""The last step of a call: fill in missing texts or raise, collect outcomes, render records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from guardwrap.constraints.base import Constraint
from guardwrap.environment.process import tracked
from guardwrap.errors import GuardwrapError
from guardwrap.outcomes import Outcome
from guardwrap.pipelines.prepare import PreparedPrompt
from guardwrap.scheduling.request import OnOutcome, Request
from guardwrap.session.endpoint_session import EndpointSession
from guardwrap.session.fallback import completed, raise_if_short
from guardwrap.session.job import Job
from guardwrap.session.local_session import LocalSession


@dataclass(frozen=True)
class Delivery:
    """Completes, collects and renders the outcomes of a wrapper's jobs."""

    session: LocalSession | EndpointSession  # the session that made the jobs

    def completed(self, job: Job, prompt: PreparedPrompt, constraint: Constraint, outcome: Outcome) -> Outcome:
        """Fill missing texts with the fallback, if there is one, and add the outcome to the call's span."""
        begun = job.call.begun(prompt)
        outcome = completed(job.on_exhausted, outcome, prompt.text, constraint, self.session.tokenizer, begun=begun)
        return outcome if job.span is None else job.span.note(prompt, constraint, outcome)

    def require_all(self, job: Job, outcomes: Sequence[Outcome]) -> None:
        """Raise if texts are missing and the job's ``on_exhausted`` does not allow that."""
        raise_if_short(job.on_exhausted, outcomes, self.session.call_class.sampling)

    def outcomes(
        self,
        prompts: Iterable[Any],
        job: Job,
        *,
        first: int = 0,
        alone: bool = False,
        on_outcome: OnOutcome | None = None,
    ) -> Iterator[tuple[PreparedPrompt, Outcome]]:
        """Yield each prompt with its outcome."""
        ended: dict[int, Outcome] = {}

        if on_outcome is not None:

            def on_end(request: Request, outcome: Outcome) -> None:
                prompt: Any = request.prompt
                ended[prompt.number] = self.completed(job, prompt, request.spec.constraint, outcome)
                on_outcome(prompt.number, ended[prompt.number])

            job = replace(job, hooks=replace(job.hooks, on_end=on_end))
        for prompt, constraint, outcome in job.served(job.requests(prompts, first=first), alone=alone):
            early = ended.pop(prompt.number, None)  # already completed in on_end; a fallback function is called once
            yield prompt, self.completed(job, prompt, constraint, outcome) if early is None else early

    def collected(
        self, prompts: Any, job: Job, *, progress: bool | None = None, render: bool = False
    ) -> tuple[list[Outcome], list[Any]]:
        """Return all outcomes and, with ``render``, records. Rendered one by one, so that images can be freed early."""
        served = tracked(self.outcomes(prompts, job), prompts, progress)
        outcomes: list[Outcome] = []
        records: list[Any] = []
        try:
            for prompt, outcome in served:
                outcomes.append(outcome)  # outcomes before an error are attached to it
                if render:
                    records.append(job.source.records(prompt, outcome))
        except GuardwrapError as error:
            error.outcomes = (*outcomes, *error.outcomes)
            raise
        return outcomes, records

    def records(self, prompts: Iterable[Any], job: Job) -> Iterator[Any]:
        """Yield records one by one. Prompts are consumed as needed."""
        for prompt, outcome in self.outcomes(prompts, job, alone=True):
            self.require_all(job, [outcome])
            yield job.source.records(prompt, outcome)
