"""What ``guardwrap generate`` and ``plan`` draw: options of the command line, merged with the constraint files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Self

from guardwrap.budget import Budget
from guardwrap.calls.prompts import Item, PromptSource, constraint_of, own_of, prompt_source_of
from guardwrap.calls.records import DIGESTS, VERSIONS, rule_digests, run_digests, versions
from guardwrap.cli.options import DrawOptions, GenerateOptions
from guardwrap.cli.shared import known, load_generator, read_constraints
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.files.constraint_file import ConstraintFile
from guardwrap.constraints.files.file_fields import adapter_spelt, proposal_spelt, read_repair, repair_spelt
from guardwrap.constraints.files.template import require_filled
from guardwrap.errors import UsageError, nearest
from guardwrap.outcomes import plain
from guardwrap.proposals import Adapter, Masked, Prompt, Twisted, merge_proposals
from guardwrap.support.network import source_digest
from guardwrap.support.validation import Invalid, read_option

if TYPE_CHECKING:
    from guardwrap.generator import GuardedGenerator
    from guardwrap.samplers.protocol import Sampler

_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class DrawRequest:
    """What to draw from, and within which limits. Options take precedence over the constraint file."""

    options: DrawOptions
    constraints: ConstraintFile  # the constraint file, or several files merged into one
    budget: Budget
    proposal: Any  # the results of ``proposed_by``
    adapter: Any
    generator: Any  # name of the model, or an ``Endpoint``

    @classmethod
    def read(cls, options: Any) -> Self:
        """Read the constraint files, and merge the options with them."""
        constraints = read_constraints(options.constraints, allow_code=options.allow_code)
        budget = dataclasses.replace(constraints.budget or Budget(), **options.limits)
        proposal, adapter = proposed_by(constraints, options)
        return cls(options, constraints, budget, proposal, adapter, _generator_of(options))

    @property
    def wrapper(self) -> dict[str, Any]:
        """Keyword arguments of ``GuardedGenerator``."""
        return {
            "proposal": self.proposal,
            "adapter": self.adapter,
            "budget": self.budget,
            "batch_size": self.options.batch_size,
        }

    def load(self) -> GuardedGenerator:
        """Load the model."""
        return load_generator(self.generator, self.constraints, dtype=self.options.dtype, **self.wrapper)

    def prompts(self, *, parquet: str | None = None, limits: Mapping[str, Any] | None = None) -> PromptSource:
        """Return the source of the prompts, which may have options of their own.

        ``limits`` replace those of single prompts.
        """
        options, constraint = self.options, self.constraints.constraint
        source = prompt_source_of(options.prompts or [], options.file, options.jsonl, parquet)
        if not (source.jsonl or source.parquet):
            require_filled(constraint)
        if source.path is None:
            return source
        return dataclasses.replace(source, read_own=own_of(source.path, constraint, self.budget, limits))


@dataclass(frozen=True)
class GenerateRequest(DrawRequest):
    """What ``guardwrap generate`` draws, and what its records say of it."""

    options: GenerateOptions

    @classmethod
    def read(cls, options: GenerateOptions) -> Self:
        """Read the constraint files, and merge the options with them."""
        request = super().read(options)
        if options.repair is None:
            return request
        constraints = dataclasses.replace(request.constraints, repair=_repair_turns(options.repair))
        return dataclasses.replace(request, constraints=constraints)

    @cached_property
    def _named_sampler(self) -> Any:
        option = self.options.sampler
        return self.constraints.sampler if option is None else read_option(option, "--sampler")

    @cached_property
    def sampler(self) -> Sampler:
        """The sampler, with its options."""
        from guardwrap.samplers import sampler_named  # imports scipy, which --help does not need

        named = self._named_sampler
        source = self.constraints.source if self.options.sampler is None else None
        return sampler_named("rejection" if named is None else named, source)

    @property
    def wrapper(self) -> dict[str, Any]:
        """Keyword arguments of ``GuardedGenerator``."""
        return {**super().wrapper, "sampler": self.sampler, "deterministic": self.options.deterministic}

    @property
    def call_options(self) -> dict[str, Any]:
        """Keyword arguments of its calls, without the seed."""
        return {"num_return_sequences": self.options.count, **self.options.generation}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The settings that a resumed run must share, as they are in the records: the model and its options."""
        options, repair = self.options, self.constraints.repair
        drawn_with = {
            "dtype": options.dtype,
            "endpoint": options.endpoint,
            "proposal": proposal_spelt(self.proposal) if self.proposal else None,
            "adapter": adapter_spelt(self.adapter) if isinstance(self.adapter, Adapter) else self.adapter or None,
            # of a sampler without options, reports have the name
            "sampler": self._named_sampler if isinstance(self._named_sampler, dict) else None,
            "repair": None if repair is None else repair_spelt(repair),
            "deterministic": options.deterministic or None,
        }
        return {"model": options.model, "chat": options.chat, **options.generation, **known(drawn_with)}

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
            "number of texts": self.options.count,
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
            "requested": self.options.count,
            "seed": own.seed,
        }


def _generator_of(options: DrawOptions) -> Any:
    """Return the generator to wrap: the name of a model, or an endpoint."""
    if options.dtype is not None and options.dtype not in _DTYPES:
        meant = nearest(options.dtype, _DTYPES)
        raise UsageError(f"--dtype {options.dtype!r} is not one of {', '.join(_DTYPES)}{meant}")
    if options.endpoint is None:
        return options.model
    if options.dtype is not None:
        raise UsageError("--dtype does not work with --endpoint, whose server has loaded the model; leave it out")
    if options.model == "local":
        raise UsageError("--endpoint needs --model, the model's name on the server")
    from guardwrap.engine.endpoint.server import Endpoint

    return Endpoint(options.endpoint, model=options.model)


def proposed_by(file: ConstraintFile, options: DrawOptions) -> tuple[Any, Any]:
    """Return the proposal and the adapter for ``GuardedGenerator``. False means none, even if the file has one."""
    if options.no_proposal:
        if options.used_proposals:
            used = " and ".join(options.used_proposals)
            raise UsageError(f"--no-proposal draws from the model itself; leave out either --no-proposal or {used}")
        return False, False
    if options.masked and options.twisted:
        raise UsageError("give either --masked or --twisted, not both")
    prompt = None if options.proposal is None else Prompt(options.proposal)
    adapter: Any = options.adapter
    if adapter is not None and options.endpoint is None:
        adapter = Adapter(adapter)
    try:
        proposal, adapter = merge_proposals((prompt, adapter), (file.proposal, file.adapter))
    except UsageError:
        raise UsageError("give either --proposal or --adapter, not both") from None
    kind = Masked if options.masked else Twisted if options.twisted else None
    if kind is None or isinstance(proposal, kind):
        return proposal, adapter
    # The option replaces the file's mask or twist.
    return kind(proposal.proposal if isinstance(proposal, Masked | Twisted) else proposal), adapter


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
