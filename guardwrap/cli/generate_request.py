"""Validated options of ``guardwrap generate``, from the command line and the constraint files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from guardwrap.budget import Budget
from guardwrap.cli.shared import generator_of, known
from guardwrap.cli.signals import ends_at_once
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.files.constraint_file import ConstraintFile
from guardwrap.constraints.files.proposal_fields import adapter_spelt, proposal_spelt
from guardwrap.constraints.files.repair_field import read_repair, repair_spelt
from guardwrap.documents.validation import Invalid, read_option
from guardwrap.environment.network import source_digest
from guardwrap.errors import UsageError
from guardwrap.outcomes import plain
from guardwrap.prompt_files.overrides import constraint_of
from guardwrap.prompt_files.prompts import Item
from guardwrap.prompt_files.records import DIGESTS, VERSIONS, rule_digests, run_digests, versions
from guardwrap.proposals import Adapter, Masked, Prompt, Twisted, merge_proposals

if TYPE_CHECKING:
    from guardwrap.samplers.protocol import Sampler


@dataclass(frozen=True)
class OutputOptions:
    """Where to write results, and what to do with existing ones."""

    path: Path | None  # a file, or a folder with ``--ray``; None for stdout
    # whether to continue existing results, to replace them, and to first retry prompts that did not get all their texts
    resume: bool = False
    overwrite: bool = False
    retry_failed: bool = False
    quiet: bool = False  # whether to show no progress
    show_rejected: int = 0  # the most rejected attempts to print for each prompt

    def __post_init__(self) -> None:
        if self.retry_failed and not self.resume:
            raise UsageError("--retry-failed retries lines of an output file; give --resume, and this file as --output")
        if self.resume and self.path is None:
            raise UsageError("--resume needs --output, the file to continue")


@dataclass(frozen=True)
class GenerateRequest:
    """What to generate, with which model, and within which limits."""

    constraints: ConstraintFile  # the constraint file, or several files merged into one
    generator: Any  # name of the model, or an ``Endpoint``
    dtype: str | None  # data type in which the model computes; None for that of its stored weights
    sampler: Sampler  # arguments of ``GuardedGenerator``. The command line takes precedence over the constraint file.
    budget: Budget
    batch_size: int | None
    deterministic: bool
    proposal: Any  # the result of ``proposed_by``
    adapter: Any
    count: int  # number of texts per prompt
    chat: bool  # whether plain prompts become user messages
    generation: Mapping[str, Any]  # generation options from the command line, such as ``"temperature"``
    settings: Mapping[str, Any]  # the model and its options, to be written to the results
    seed: int | None  # seed of the run; None for a new one

    @property
    def wrapper(self) -> dict[str, Any]:
        """Keyword arguments of ``GuardedGenerator``."""
        return {
            "sampler": self.sampler,
            "proposal": self.proposal,
            "adapter": self.adapter,
            "budget": self.budget,
            "batch_size": self.batch_size,
            "deterministic": self.deterministic,
        }

    @property
    def options(self) -> dict[str, Any]:
        """Keyword arguments of its calls, without the seed."""
        return {"num_return_sequences": self.count, **self.generation}

    @cached_property
    def digests(self) -> dict[str, str | None]:
        """What identifies the files that the run uses: model, adapter, learned twist, and what its rules read."""
        model = self.generator if isinstance(self.generator, str) else None
        return run_digests(model, self.proposal, self.adapter, self.constraints.constraint, self._source_digest)

    def settings_of(self, item: Item) -> dict[str, Any]:
        """Return the settings in the record of a prompt: the options of the run, versions, and digests of files."""
        digests = self.digests
        if item.own.constraints is not None or item.own.fields is not None:
            digests = digests | rule_digests(self.constraint_of(item), self._source_digest)
        return {**self.settings, VERSIONS: versions(), DIGESTS: digests}

    def constraint_of(self, item: Item) -> Constraint:
        """Return the constraint of a prompt's texts."""
        return constraint_of(self.constraints.constraint, item.own)

    @cached_property
    def _source_digest(self) -> Callable[[str], str | None]:
        return cache(source_digest)  # for this run only, as a file may change before the next one

    def made_with(self) -> dict[str, Any]:
        """Return the settings that a resumed run must share with the first one, by their names in messages."""
        return {
            "constraint": self.constraints.constraint.digest,
            "sampler": self.sampler.name,
            "number of texts": self.count,
            "budget": plain(self.budget),
            "settings": {**self.settings, VERSIONS: versions(), DIGESTS: self.digests},
        }

    def report_of(self, item: Item) -> dict[str, Any]:
        """Return the fields that the report of a prompt has if this request generates for it."""
        own = item.own
        return {
            "constraint": self.constraint_of(item).digest,
            "sampler": self.sampler.name if own.sampler is None else own.sampler.name,
            "budget": plain(self.budget if own.budget is None else own.budget),
            "requested": self.count,
            "seed": own.seed,
        }


def read_request(
    constraints: ConstraintFile,
    *,
    model: str,
    dtype: str | None,
    endpoint: str | None,
    sampler: str | None,
    limits: Mapping[str, Any],
    proposal: str | None,
    masked: bool,
    twisted: bool,
    adapter: str | None,
    no_proposal: bool,
    repair: str | None,
    generation: Mapping[str, Any],
    **others: Any,
) -> GenerateRequest:
    """Merge the options of the command line with those of the constraint file, and validate them.

    ``model, dtype, endpoint, sampler, proposal, masked, twisted, adapter, no_proposal, repair``: options of the
    command line. ``sampler`` is a name or YAML, and ``repair`` a number or YAML.
    """
    with ends_at_once():
        from guardwrap.samplers import sampler_named  # imports scipy, which --help does not need

    named = constraints.sampler if sampler is None else read_option(sampler, "--sampler")
    chosen = sampler_named("rejection" if named is None else named, constraints.source if sampler is None else None)
    budget = dataclasses.replace(constraints.budget or Budget(), **limits)
    proposed, drawing = proposed_by(
        constraints,
        proposal=proposal,
        masked=masked,
        twisted=twisted,
        adapter=adapter,
        none=no_proposal,
        served=endpoint is not None,
    )
    if repair is not None:
        constraints = dataclasses.replace(constraints, repair=_repair_turns(repair))
    turns = None if constraints.repair is None else repair_spelt(constraints.repair)
    with_options = named if isinstance(named, dict) else None  # of others, reports say the name
    drawn_with = known(
        {
            "dtype": dtype,
            "endpoint": endpoint,
            "proposal": proposal_spelt(proposed) if proposed else None,
            "adapter": adapter_spelt(drawing) if isinstance(drawing, Adapter) else drawing or None,
            "sampler": with_options,
            "repair": turns,
            "deterministic": others["deterministic"] or None,
        }
    )
    return GenerateRequest(
        constraints=constraints,
        generator=generator_of(model, endpoint, dtype),
        dtype=dtype,
        sampler=chosen,
        budget=budget,
        proposal=proposed,
        adapter=drawing,
        generation=generation,
        settings={"model": model, "chat": others["chat"], **generation, **drawn_with},
        **others,
    )


def proposed_by(
    file: ConstraintFile,
    *,
    proposal: str | None = None,
    masked: bool = False,
    twisted: bool = False,
    adapter: str | None = None,
    none: bool = False,
    served: bool = False,
) -> tuple[Any, Any]:
    """Return the proposal and the adapter for ``GuardedGenerator``. False means none, even if the file has one."""
    others = {
        "--proposal": proposal is not None,
        "--masked": masked,
        "--twisted": twisted,
        "--adapter": adapter is not None,
    }
    if none and any(others.values()):
        named = " and ".join(flag for flag, is_given in others.items() if is_given)
        raise UsageError(f"--no-proposal draws from the model itself; leave out either --no-proposal or {named}")
    if none:
        return False, False
    if masked and twisted:
        raise UsageError("give either --masked or --twisted, not both")
    prompt = None if proposal is None else Prompt(proposal)
    from_options = (prompt, adapter if adapter is None or served else Adapter(adapter))
    try:
        merged, merged_adapter = merge_proposals(from_options, (file.proposal, file.adapter))
    except UsageError:
        raise UsageError("give either --proposal or --adapter, not both") from None
    kind = Masked if masked else Twisted if twisted else None
    if kind is None or isinstance(merged, kind):
        return merged, merged_adapter
    # The option replaces the file's mask or twist.
    return kind(merged.proposal if isinstance(merged, Masked | Twisted) else merged), merged_adapter


def _repair_turns(option: str) -> Mapping[str, Any] | None:
    """Return the turns of ``--repair``, which is a number or YAML; None for 0."""
    value = read_option(option, "--repair")
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if value == 0:
        return None
    try:
        return read_repair(value)
    except Invalid as invalid:
        raise UsageError(f"--repair: {invalid}") from None
