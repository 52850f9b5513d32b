"""What a JSON line of prompts asks for on its own: its constraint, sampler, budget and seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic import TypeAdapter

from guardwrap.budget import Budget
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.combinators import All
from guardwrap.constraints.files.coerce import PerPromptOptions
from guardwrap.constraints.files.constraint_file import read_constraint
from guardwrap.constraints.files.kind_registry import kinds
from guardwrap.documents.validation import Invalid, validated
from guardwrap.documents.yaml_nodes import reading, short
from guardwrap.errors import GuardwrapError, PromptError, is_count

__all__ = ["OPTIONS", "ReadOwn", "own_of"]

OPTIONS = ("constraint", "constraints", "sampler", "budget", "seed")
"""Fields of a line that are heeded."""

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
}
"""What holds for a whole run, with its option of the command line, if it has one."""

_LIMITS = tuple(f.name for f in dataclasses.fields(Budget) if f.name.startswith("max_"))

# As close to an option as a misspelling of it, and what data sets call their rows.
_WORDS = ("sample", "samples")
_CLOSE = 0.88  # "constrains" and "topk" are, "contains" and "constraint_id" are not

ReadOwn = Callable[[str, Mapping[str, Any]], PerPromptOptions]


def own_of(path: str, constraint: Constraint, budget: Budget, limits: Mapping[str, Any] | None = None) -> ReadOwn:
    """Return what reads the options of a line, from where it stands and its fields.

    Parameters
    ----------
    path
        Of the file: files that its constraints name stand beside it.
    constraint, budget
        Of the run. A line's constraint must hold besides; the limits that it gives replace those of the run.
    limits
        Those of a budget that replace a line's, too.
    """
    kinds()  # other packages' are imported before the clock runs

    def read(where: str, fields: Mapping[str, Any]) -> PerPromptOptions:
        for name in fields:
            _require_no_option(where, name)
        try:
            with reading(path):
                own = _own(fields, constraint, budget)
        except Invalid as invalid:
            raise PromptError(f"{where}: {invalid}") from None
        except GuardwrapError as error:
            raise PromptError(f"{where}: {error}") from None
        if own.budget is None or not limits:
            return own
        return dataclasses.replace(own, budget=dataclasses.replace(own.budget, **limits))

    return read


def _own(fields: Mapping[str, Any], constraint: Constraint, budget: Budget) -> PerPromptOptions:
    from guardwrap.samplers.sampler_registry import read_sampler  # scipy comes with it

    given = {name: fields[name] for name in OPTIONS if fields.get(name) is not None}
    if "constraint" in given and "constraints" in given:
        raise Invalid(("constraints",), "a line has a constraint, or several constraints, not both")
    name = "constraints" if "constraints" in given else "constraint"
    own = None
    if name in given:
        try:
            own = read_constraint(given[name])
        except Invalid as invalid:
            raise Invalid((name, *invalid.location), _without_code(invalid.problem)) from None
        All((constraint, own))  # says where two parts exclude each other
    sampler = None
    if "sampler" in given:
        try:
            sampler = read_sampler(given["sampler"])
        except Invalid as invalid:
            raise Invalid(("sampler", *invalid.location), invalid.problem) from None
    seed = given.get("seed")
    if seed is not None and not is_count(seed):
        raise Invalid(("seed",), f"{short(seed)} is no whole number of at least 0")
    replaced = _replaced(budget, given["budget"]) if "budget" in given else None
    return PerPromptOptions(own, sampler, replaced, seed)


def _replaced(budget: Budget, given: Any) -> Budget:
    try:
        read = validated(given, TypeAdapter(Budget))
    except Invalid as invalid:
        raise Invalid(("budget", *invalid.location), invalid.problem) from None
    return dataclasses.replace(budget, **{name: getattr(read, name) for name in given})


def _without_code(problem: str) -> str:
    """Say of code what can be done about it: whoever writes prompts is not to run code, whatever the files may."""
    way_out = "which no line of prompts may; write it into a constraint file, for -c and --allow-code"
    return problem.replace("; pass allow_code=True if you trust the file", f", {way_out}")


def _require_no_option(where: str, name: str) -> None:
    """Raise PromptError for a field that is meant to change what is drawn, and would not."""
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
        way_out = f'a line says it as "budget": {{"{meant}": ...}}'
    else:
        option = _OF_THE_RUN[meant]
        way_out = "it is the same for all lines" + (f": give {option}" if option else ", and no option of this command")
    raise PromptError(f'{where}: unknown option {short(name)}: {way_out}; data of your own goes under "meta"')
