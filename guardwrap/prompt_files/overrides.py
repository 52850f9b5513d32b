"""Options of single prompts: the constraint, sampler, budget and seed of a line of JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import TypeAdapter

from guardwrap.budget import Budget
from guardwrap.constraints.base import All, Constraint
from guardwrap.constraints.files.constraint_data import read_constraint
from guardwrap.constraints.files.constraint_file import PerPromptOptions
from guardwrap.constraints.files.kind_registry import kinds
from guardwrap.constraints.files.template import fill, names_of_fields
from guardwrap.documents.validation import Invalid, code_needs, validated
from guardwrap.documents.yaml_nodes import reading, short
from guardwrap.errors import GuardwrapError, PromptError, is_count

OPTIONS = ("constraint", "constraints", "sampler", "budget", "seed")
"""Fields of a line that are options, and not data."""

_OF_THE_RUN = {
    "adapter": "--adapter",
    "batch_size": "--batch-size",
    "do_sample": "",
    "masked": "--masked",
    "max_length": "--max-new-tokens",
    "max_new_tokens": "--max-new-tokens",
    "num_beams": "",
    "num_return_sequences": "-n",
    "proposal": "--proposal",
    "repetition_penalty": "",
    "stop_strings": "",
    "temperature": "--temperature",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "twisted": "--twisted",
}
"""Options that are the same for a whole run, with their command-line option, if there is one."""

_NO_CODE = ", which a line of prompts cannot run; put it into a constraint file, for -c and --allow-code"
"""What errors say of code in lines of prompts, which never run it, even with ``--allow-code``."""

_LIMITS = tuple(f.name for f in dataclasses.fields(Budget) if f.name.startswith("max_"))

# Common names of columns in data sets, which are as similar to an option as a typo of it.
_WORDS = ("sample", "samples")
_CLOSE = 0.88  # reports "constrains" and "topk", but not "contains" and "constraint_id"

ReadOwn = Callable[[str, Mapping[str, Any]], PerPromptOptions]


def own_of(path: str, constraint: Constraint, budget: Budget, limits: Mapping[str, Any] | None = None) -> ReadOwn:
    """Return a function that reads the options of a line, given its place and its fields.

    ``constraint, budget``: constraint and budget of the run. A line's constraint applies in addition; its limits
    replace those of the run. A line must have the fields for which the constraint has placeholders.
    """
    names = names_of_fields(constraint)
    kinds()  # imports the kinds of other packages before the time limit for reading a line starts

    def read(where: str, fields: Mapping[str, Any]) -> PerPromptOptions:
        for name in fields:
            if name not in names:
                _require_no_option(where, name)
        try:
            with reading(path):
                values = {name: fields[name] for name in names if name in fields}
                own = dataclasses.replace(_own(fields, fill(constraint, values), budget), fields=values or None)
        except Invalid as invalid:
            raise PromptError(f"{where}: {invalid}") from None
        except GuardwrapError as error:
            raise PromptError(f"{where}: {error}") from None
        if own.budget is None or not limits:
            return own
        return dataclasses.replace(own, budget=dataclasses.replace(own.budget, **limits))

    return read


def constraint_of(constraint: Constraint, own: PerPromptOptions) -> Constraint:
    """Return the constraint of a prompt's texts, from that of the run and the prompt's options."""
    filled = fill(constraint, own.fields)
    return filled if own.constraints is None else All((filled, own.constraints))


def _own(fields: Mapping[str, Any], constraint: Constraint, budget: Budget) -> PerPromptOptions:
    from guardwrap.samplers.sampler_registry import read_sampler  # imports scipy

    options = {name: fields[name] for name in OPTIONS if fields.get(name) is not None}
    if "constraint" in options and "constraints" in options:
        raise Invalid(("constraints",), "give either constraint or constraints, not both")
    name = "constraints" if "constraints" in options else "constraint"
    own = None
    if name in options:
        try:
            with code_needs(_NO_CODE):
                own = read_constraint(options[name])
        except Invalid as invalid:
            raise Invalid((name, *invalid.location), invalid.problem) from None
        All((constraint, own))  # raises if two parts exclude each other
    sampler = None
    if "sampler" in options:
        try:
            sampler = read_sampler(options["sampler"])
        except Invalid as invalid:
            raise Invalid(("sampler", *invalid.location), invalid.problem) from None
    seed = options.get("seed")
    if seed is not None and not is_count(seed):
        raise Invalid(("seed",), f"{short(seed)} is not a whole number of at least 0")
    replaced = _replaced(budget, options["budget"]) if "budget" in options else None
    return PerPromptOptions(own, sampler, replaced, seed)


def _replaced(budget: Budget, fields: Any) -> Budget:
    try:
        read = validated(fields, TypeAdapter(Budget))
    except Invalid as invalid:
        raise Invalid(("budget", *invalid.location), invalid.problem) from None
    return dataclasses.replace(budget, **{name: getattr(read, name) for name in fields})


def _require_no_option(where: str, name: str) -> None:
    """Raise PromptError for a field that looks like an option but would have no effect."""
    if name in OPTIONS or name in ("prompt", "messages") or name.lower() in _WORDS:
        return
    plain = name.lower().replace("-", "_")
    known = (*OPTIONS, *_OF_THE_RUN, *_LIMITS)
    meant = plain if plain in known else next(iter(get_close_matches(plain, known, n=1, cutoff=_CLOSE)), None)
    if meant is None:
        return
    if meant in OPTIONS:
        way_out = f'did you mean "{meant}"?'
    elif meant in _LIMITS:
        way_out = f'in a line, write "budget": {{"{meant}": ...}}'
    else:
        option = _OF_THE_RUN[meant]
        way_out = f"it is the same for all lines: give {option}" if option else "it is not an option of this command"
    raise PromptError(f'{where}: unknown option {short(name)}: {way_out}; put your own data under "meta"')
