"""Functions that the integrations share: calls of the wrapper, and conversion of their arguments and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from guardwrap.constraints.files.coerce import as_constraint_file
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.stop_strings import cut, stopped
from guardwrap.errors import UsageError
from guardwrap.generator import GuardedGenerator
from guardwrap.outcomes import Outcome
from guardwrap.session.fallback import raise_if_short

__all__ = ["as_guarded", "complete_outcome", "content_of", "one", "run_prompts", "schema_constraint"]


def as_guarded(generator: Any, constraints: Any) -> GuardedGenerator:
    """Return the given ``GuardedGenerator``, or create one from a pipeline or model with constraints.

    Raises
    ------
    UsageError
        If a ``GuardedGenerator`` comes with constraints, or a pipeline or model without.
    """
    if isinstance(generator, GuardedGenerator):
        if constraints is not None:
            raise UsageError("the wrapper has its constraint already; leave constraints= out")
        return generator
    if constraints is None:
        raise UsageError("constraints= is missing; give it with the pipeline or model, or give a GuardedGenerator")
    return GuardedGenerator(generator, constraints)


def run_prompts(
    guarded: GuardedGenerator,
    prompts: Sequence[Any],
    options: Mapping[str, Any],
    *,
    stop: Sequence[str] | None = None,
    schema: JSONSchema | None = None,
) -> list[Outcome]:
    """Generate for all prompts in one call, so that their attempts share batches.

    Parameters
    ----------
    guarded
        The wrapper.
    prompts
        Strings or chats.
    options
        Options of ``GuardedGenerator.run``.
    stop
        Stop strings. A text ends before the first one, and is checked without it.
    schema
        A JSON Schema constraint that applies in addition to the wrapper's constraint.

    Returns
    -------
    list of Outcome
        One outcome per prompt, with or without all of its texts.
    """
    options = dict(options)
    stops = tuple(stop or ())
    if stops and options.get("stop_strings"):
        raise UsageError("stop= and stop_strings= are the same; give one of them")
    if stops:
        options["stop_strings"] = list(stops)
    if schema is not None or stops:
        given = options.get("constraints")
        file = as_constraint_file(guarded.constraint if given is None else given, allow_code=False)
        constraint = file.constraint if schema is None else file.constraint & schema
        options["constraints"] = replace(file, constraint=stopped(constraint, stops))
    outcomes = guarded.run(list(prompts), progress=False, **options)
    return [replace(outcome, texts=tuple(cut(text, stops) for text in outcome.texts)) for outcome in outcomes]


def complete_outcome(guarded: GuardedGenerator, outcome: Outcome) -> Outcome:
    """Return the outcome if it has all of its texts: the replies of other libraries cannot contain None.

    Raises
    ------
    BudgetExhausted
        If the budget was spent first.
    Deterministic
        If the model does not sample, so that its one text was rejected.
    """
    raise_if_short("raise", [outcome], guarded.session.call_class.sampling)
    return outcome


def one(guarded: GuardedGenerator, prompt: Any, options: Mapping[str, Any], **more: Any) -> Outcome:
    """Generate for one prompt; see ``run_prompts`` and ``complete_outcome``."""
    (outcome,) = run_prompts(guarded, [prompt], options, **more)
    return complete_outcome(guarded, outcome)


def schema_constraint(schema: Any) -> JSONSchema:
    """Return the constraint for a schema: a JSON Schema, or a type that pydantic supports.

    Raises
    ------
    UsageError
        If it describes a function, which would be a JSON Schema that allows anything.
    """
    if isinstance(schema, JSONSchema):
        return schema
    if isinstance(schema, Mapping) and ({"parameters", "function"} & schema.keys()) and "properties" not in schema:
        raise UsageError("this describes a function; give the schema of its parameters")
    return JSONSchema(schema)


def content_of(content: Any) -> str:
    """Return the text of a message.

    Raises
    ------
    UsageError
        If it contains anything else.
    """
    if not isinstance(content, str):
        raise UsageError("only messages of text are supported; for images, call the GuardedGenerator itself")
    return content
