"""Where an endpoint, a constraint and the options of a call are put together: what ``session`` is for a pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from guardwrap.asking import Asking, require_whole
from guardwrap.backends.endpoint.backend import EndpointBackend
from guardwrap.backends.endpoint.law import read_settings
from guardwrap.backends.endpoint.server import Endpoint, line_to
from guardwrap.constraints.base import walk
from guardwrap.constraints.reading import Reader
from guardwrap.constraints.text import Length
from guardwrap.draws import Budget, Outcome
from guardwrap.errors import UsageError
from guardwrap.job import Asked, Job
from guardwrap.pipelines.remote import EndpointCall, TextWatch
from guardwrap.proposals import Masked, Prompt, merged
from guardwrap.samplers import Sampler
from guardwrap.scheduling.backend import Backend
from guardwrap.scheduling.request import Request

__all__ = ["EndpointJob", "EndpointSession"]

BATCH_SIZE = 32

_SEEDS = (
    "the same seed need not give the same texts again: the server does not promise it (Endpoint(repeats_seeds=True) "
    "says that it does)"
)
_DEFAULTS = "top_k, min_p and repetition_penalty are the server's own, as the endpoint was made with extra=False"


@dataclass(frozen=True, kw_only=True)
class EndpointJob(Job):
    """One call over an endpoint, ready to be served.

    Parameters
    ----------
    reader
        Reads growing texts for the call's constraint. A part whose verdicts took too long is not asked again.
    """

    reader: Reader

    def request(self, prompt: Any, asked: Asked | None = None) -> Request:
        """Make a request of a prompt."""
        asked = asked or self.asked
        _require_possible(asked, self.proposal is not None)
        reader = self.reader if asked.constraint is self.asked.constraint else Reader(asked.constraint)
        return Request(
            prompt=prompt,
            constraint=asked.constraint,
            sampler=asked.sampler,
            budget=asked.budget,
            seed=asked.seed,
            place=asked.place,
            draw_of=self.call.draw,
            watch=TextWatch(reader),
            notes=self.notes,
            proposal=None if self.proposal is None else self.proposal(asked.constraint),
        )

    def records(self, prompt: Any, outcome: Outcome) -> Any:
        """Render an outcome as the pipeline would, with None for texts that are missing."""
        missing = outcome.report.requested - len(outcome.texts)
        return self.call.records(prompt, [*outcome.texts, *[None] * missing])

    def backend(self) -> Backend:
        """Make the backend that draws its attempts."""
        return EndpointBackend(self.model, self.batch_size)


class EndpointSession(Asking):
    """An endpoint with a constraint and the defaults of calls.

    Parameters
    ----------
    generator
        The endpoint.
    constraints, tokenizer, sampler, proposal, adapter, budget, batch_size, seed, allow_code
        As ``GuardedGenerator`` takes them.

    Attributes
    ----------
    model : Endpoint
        The endpoint.
    batch_size : int
        Attempts side by side, at most.
    proposal : Prompt or None
        What attempts are drawn from, if not the user's prompts.
    adapter, tokenizer : None
        There is none here: the server has the model.
    """

    kind = EndpointCall
    weighs = False
    takes_chats = True
    adapter = None
    tokenizer = None

    def __init__(
        self,
        generator: Endpoint,
        constraints: Any,
        *,
        tokenizer: Any = None,
        sampler: str | Sampler | None = None,
        proposal: Any = None,
        adapter: Any = None,
        budget: Budget | None = None,
        batch_size: int | None = None,
        seed: int | None = None,
        allow_code: bool = False,
    ) -> None:
        super().__init__(constraints, sampler=sampler, budget=budget, seed=seed, allow_code=allow_code)
        if tokenizer is not None:
            raise UsageError("an endpoint's server has the tokenizer; leave tokenizer= out")
        self.model = generator
        self.batch_size = require_whole("batch_size", BATCH_SIZE if batch_size is None else batch_size, 1)
        proposal, adapter = merged((proposal, adapter), (self.file.proposal, self.file.adapter))
        self.proposal = _proposal(proposal, adapter)
        line_to(generator)  # the client library is looked for now, and not when prompts have been taken

    @property
    def pipe(self) -> NoReturn:
        """Refuse: there is no pipeline."""
        raise UsageError("an endpoint has no pipeline, model or device here; its texts come from calls of the wrapper")

    def use_adapter(self, given: Any, *, allow_mismatch: bool = False) -> None:
        """Refuse: the server has the model."""
        _proposal(None, given)

    def tensor_job(self, ids: Any, options: Mapping[str, Any]) -> NoReturn:
        """Refuse: there are no tokens."""
        raise UsageError("generate takes and returns token ids, which an endpoint has not; call the wrapper or run()")

    def draws_elsewhere(self, options: Mapping[str, Any]) -> bool:
        """Whether attempts of a call come from something else than the user's prompts."""
        return self._proposal_in(self._read(options)[0]) is not None

    def other_ways(self, options: Mapping[str, Any]) -> Iterator[tuple[bool, dict[str, Any]]]:
        """Yield options of the same call from the model itself, where they are others; no attempts have weights."""
        if self.draws_elsewhere(options):
            yield False, {**options, "proposal": False}

    def job(self, options: Mapping[str, Any]) -> EndpointJob:
        """Read the options of a call; see ``Asking.job``."""
        own, rest = self._read(options)
        full = rest.pop("return_full_text", None)
        if not (full is None or isinstance(full, bool)):
            raise UsageError(f"return_full_text={full!r}: give True or False")
        settings = read_settings(self.model, rest)
        proposal = self._proposal_in(own)
        asked = self._asked(own)
        _require_possible(asked, proposal is not None)
        size = self.batch_size if own.get("batch_size") is None else require_whole("batch_size", own["batch_size"], 1)
        notes = [f"a is {self.model.described} under {settings.words}"]
        notes += [] if self.model.extra else [_DEFAULTS]
        notes += [] if self.model.repeats_seeds else [_SEEDS]
        return EndpointJob(
            EndpointCall(settings, full is not False, None if proposal is None else proposal.apply),
            asked,
            size,
            self.model,
            notes=tuple(notes),
            proposal=None if proposal is None else lambda _: str(proposal),
            causal=True,
            each=self._each(own, asked),
            batches=self.batches,
            reader=Reader(asked.constraint),
        )

    def _proposal_in(self, own: Mapping[str, Any]) -> Prompt | None:
        """Read what attempts of a call are to be drawn from."""
        given = own.get("proposal")
        return _proposal(self.proposal if given is None else given, own.get("adapter"))


def _proposal(given: Any, adapter: Any) -> Prompt | None:
    """Return another prompt that attempts are drawn from, or raise UsageError for what a server cannot draw from."""
    if adapter is not None and adapter is not False:
        raise UsageError(
            "adapter= is for a model in this process; have the server load it, and give its name there as "
            "Endpoint(model=...)"
        )
    if given is None or given is False:
        return None
    if isinstance(given, Prompt):
        return given
    if isinstance(given, Masked):
        raise UsageError(
            "Masked() needs the probabilities of all next tokens, which an endpoint does not give; leave it out"
        )
    raise UsageError(
        "over an endpoint a proposal is a Prompt('...'); draw from another model with an Endpoint of its own"
    )


def _require_possible(asked: Asked, proposal: bool) -> None:
    """Refuse what needs token ids or probabilities."""
    if proposal and asked.sampler.weighs:
        raise UsageError(
            f"the sampler {asked.sampler.name!r} weighs the texts of a proposal, and an endpoint gives no "
            "probabilities; pass sampler='rejection', or no proposal="
        )
    for part in walk(asked.constraint):
        if isinstance(part, Length) and part.unit == "tokens":
            raise UsageError(
                f"{part.title} counts tokens, and an endpoint gives text; use unit='characters' or 'words', or "
                "max_new_tokens="
            )
