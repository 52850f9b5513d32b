"""What the classes for other libraries have in common: one call of the wrapper, and what comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from guardwrap.constraints.files.coerce import as_constraint_file
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.errors import UsageError
from guardwrap.generator import GuardedGenerator
from guardwrap.outcomes import Outcome
from guardwrap.session.fallback import raise_if_short

__all__ = ["as_guarded", "complete_outcome", "content_of", "one", "run_prompts", "schema_constraint"]


def as_guarded(generator: Any, constraints: Any) -> GuardedGenerator:
    """Return a wrapper, or make one.

    Raises
    ------
    UsageError
        If a wrapper comes with further constraints, or anything else without.
    """
    if isinstance(generator, GuardedGenerator):
        if constraints is not None:
            raise UsageError("the wrapper has its constraint already; leave constraints= out")
        return generator
    if constraints is None:
        raise UsageError("say what must hold: give a GuardedGenerator, or a pipeline or model with constraints=")
    return GuardedGenerator(generator, constraints)


def run_prompts(
    guarded: GuardedGenerator,
    prompts: Sequence[Any],
    options: Mapping[str, Any],
    *,
    stop: Sequence[str] | None = None,
    schema: JSONSchema | None = None,
) -> list[Outcome]:
    """Draw for all prompts in one call, so that their attempts share the model's batches.

    Parameters
    ----------
    guarded
        The wrapper.
    prompts
        Strings or chats.
    options
        As the wrapper takes them.
    stop
        Where a text ends; it ends with the stop string, as that is what was judged.
    schema
        What must hold besides the constraint.

    Returns
    -------
    list of Outcome
        One a prompt, with or without all of its texts.
    """
    options = dict(options)
    if stop:
        if options.get("stop_strings"):
            raise UsageError("stop= and stop_strings= are the same; give one of them")
        options["stop_strings"] = list(stop)
    if schema is not None:
        given = options.get("constraints")
        constraint = guarded.constraint if given is None else as_constraint_file(given, allow_code=False).constraint
        options["constraints"] = constraint & schema
    return guarded.run(list(prompts), progress=False, **options)


def complete_outcome(guarded: GuardedGenerator, outcome: Outcome) -> Outcome:
    """Return an outcome that has all of its texts; there is no place for None in a reply.

    Raises
    ------
    BudgetExhausted
        If the budget ended first; ``Deterministic`` if the model does not sample.
    """
    raise_if_short("raise", [outcome], guarded.session.call_class.sampling)
    return outcome


def one(guarded: GuardedGenerator, prompt: Any, options: Mapping[str, Any], **more: Any) -> Outcome:
    """Draw for one prompt; see ``run_prompts`` and ``complete_outcome``."""
    (outcome,) = run_prompts(guarded, [prompt], options, **more)
    return complete_outcome(guarded, outcome)


def schema_constraint(schema: Any) -> JSONSchema:
    """Make a constraint of what a library calls a schema: a type that pydantic knows, or a JSON Schema.

    Raises
    ------
    UsageError
        If it describes a function: as a JSON Schema that would allow anything.
    """
    if isinstance(schema, JSONSchema):
        return schema
    if isinstance(schema, Mapping) and ({"parameters", "function"} & schema.keys()) and "properties" not in schema:
        raise UsageError("this describes a function; give the schema of its parameters")
    return JSONSchema(schema)


def content_of(content: Any) -> str:
    """Return the content of a message.

    Raises
    ------
    UsageError
        If it is more than text.
    """
    if not isinstance(content, str):
        raise UsageError("a message has more than text; call the wrapper itself for images")
    return content
