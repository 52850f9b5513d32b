"""What a command line of ``guardwrap generate`` asks for, once it and its constraint files are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from guardwrap.budget import Budget
from guardwrap.cli.proposal_options import describe_proposal, proposed_by
from guardwrap.cli.shared import generator_of, known
from guardwrap.cli.signals import ends_at_once
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.combinators import All
from guardwrap.constraints.files.constraint_file import ConstraintFile
from guardwrap.documents.validation import read_option
from guardwrap.errors import UsageError
from guardwrap.outcomes import plain
from guardwrap.prompt_files.prompts import Item
from guardwrap.samplers.protocol import Sampler

__all__ = ["GenerateRequest", "OutputOptions", "read_request"]


@dataclass(frozen=True)
class OutputOptions:
    """Where the results go, and what happens to results that are there.

    Parameters
    ----------
    path
        A file, or a folder with ``--ray``; None for stdout.
    resume, overwrite, retry_failed
        Whether to continue after the results that are there, to replace them, and to draw again first for prompts that
        did not get all their texts.
    quiet
        Whether no progress is shown.

    Raises
    ------
    UsageError
        If an option lacks the one that it belongs to.
    """

    path: Path | None
    resume: bool = False
    overwrite: bool = False
    retry_failed: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        if self.retry_failed and not self.resume:
            raise UsageError(
                "--retry-failed is about the lines of an output file; give --resume, and that file as --output"
            )
        if self.resume and self.path is None:
            raise UsageError("--resume needs --output, the file to go on with")


@dataclass(frozen=True)
class GenerateRequest:
    """What is drawn, from what, and within which limits.

    Parameters
    ----------
    constraints
        The constraint file, or several as one.
    generator
        What ``GuardedGenerator`` draws from: a model's name, or an ``Endpoint``.
    sampler, budget, batch_size
        Those of its parameters, by the command line before the constraint file.
    proposal, adapter
        What attempts are drawn from, as ``proposed_by`` returns it.
    count
        Texts per prompt.
    chat
        Whether plain prompts become user messages.
    generation
        Options of the generation that are given, such as ``"temperature"``.
    settings
        What result lines say about the model and its options.
    seed
        Seed of the run; None for a new one.
    """

    constraints: ConstraintFile
    generator: Any
    sampler: Sampler
    budget: Budget
    batch_size: int | None
    proposal: Any
    adapter: Any
    count: int
    chat: bool
    generation: Mapping[str, Any]
    settings: Mapping[str, Any]
    seed: int | None

    @property
    def wrapper(self) -> dict[str, Any]:
        """Options of ``GuardedGenerator``."""
        return {
            "sampler": self.sampler,
            "proposal": self.proposal,
            "adapter": self.adapter,
            "budget": self.budget,
            "batch_size": self.batch_size,
        }

    @property
    def options(self) -> dict[str, Any]:
        """Options of its calls, without the seed."""
        return {"num_return_sequences": self.count, **self.generation}

    @cached_property
    def _described_proposal(self) -> str | None:
        """What reports call the proposal. Reading an adapter's card takes long for each of many prompts."""
        return self._describe_proposal(self.constraints.constraint)

    def _describe_proposal(self, constraint: Constraint) -> str | None:
        served = not isinstance(self.generator, str)
        return describe_proposal(self.proposal, self.adapter, constraint, served=served)

    def made_with(self) -> dict[str, Any]:
        """Return what a resumed run must have in common with the one that began, by the names that messages use."""
        return {
            "constraint": self.constraints.constraint.digest,
            "sampler": self.sampler.name,
            "proposal": self._described_proposal,
            "number of texts": self.count,
            "budget": plain(self.budget),
            "settings": self.settings,
        }

    def report_of(self, item: Item) -> dict[str, Any]:
        """Return what the report of a prompt says when this request draws for it."""
        own = item.own
        report = {**self.made_with(), "requested": self.count, "seed": own.seed}
        if own.constraints is not None:
            both = All((self.constraints.constraint, own.constraints))
            report |= {"constraint": both.digest, "proposal": self._describe_proposal(both)}
        if own.sampler is not None:
            report["sampler"] = own.sampler.name
        if own.budget is not None:
            report["budget"] = plain(own.budget)
        return report


def read_request(
    constraints: ConstraintFile,
    *,
    model: str,
    endpoint: str | None,
    sampler: str | None,
    limits: Mapping[str, Any],
    proposal: str | None,
    masked: bool,
    adapter: str | None,
    no_proposal: bool,
    generation: Mapping[str, Any],
    **others: Any,
) -> GenerateRequest:
    """Put the options of the command line over those of the constraint file.

    Parameters
    ----------
    constraints
        The constraint file.
    model, endpoint, sampler, proposal, masked, adapter, no_proposal
        Options as they are given; ``sampler`` is a name or YAML.
    limits
        Fields of the budget that are given.
    generation, **others
        Fields of the request.

    Raises
    ------
    UsageError
        If a sampler or a budget is wrong, or options do not go together.
    """
    with ends_at_once():
        from guardwrap.samplers import sampler_named  # imports scipy, which help need not wait for

    named = constraints.sampler if sampler is None else read_option(sampler, "--sampler")
    chosen = sampler_named("rejection" if named is None else named, constraints.source if sampler is None else None)
    budget = dataclasses.replace(constraints.budget or Budget(), **limits)
    proposed, drawing = proposed_by(
        constraints, proposal=proposal, masked=masked, adapter=adapter, none=no_proposal, served=endpoint is not None
    )
    with_options = named if isinstance(named, dict) else None  # of others, reports say the name
    drawn_with = known({"endpoint": endpoint, "adapter": adapter, "sampler": with_options})
    return GenerateRequest(
        constraints=constraints,
        generator=generator_of(model, endpoint),
        sampler=chosen,
        budget=budget,
        proposal=proposed,
        adapter=drawing,
        generation=generation,
        settings={"model": model, "chat": others["chat"], **generation, **drawn_with},
        **others,
    )
