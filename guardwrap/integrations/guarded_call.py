"""Functions that the integrations share: calls of the wrapper, and conversion of their arguments and results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from guardwrap.calls.missing_texts import Fallback, raise_if_short, require_accepted
from guardwrap.constraints.files.constraint_file import ConstraintFile, as_constraint_file
from guardwrap.constraints.json.json_schema import JSONSchema
from guardwrap.constraints.json.tool_calls import NO_CALLS, ToolCalls
from guardwrap.constraints.stop_strings import stopped
from guardwrap.constraints.views import Part
from guardwrap.errors import UsageError
from guardwrap.generator import GuardedGenerator
from guardwrap.models.parsed_message import answer_message, has_template, shown_texts
from guardwrap.models.templates import family_of, writes_parts
from guardwrap.outcomes import Outcome


def as_guarded(generator: Any, constraints: Any) -> GuardedGenerator:
    """Return the given ``GuardedGenerator``, or create one from a pipeline or model with constraints."""
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

    ``options``: options of ``GuardedGenerator.run``. For chats, ``tools``, ``tool_choice`` and
    ``parallel_tool_calls`` constrain the calls of tools; see ``tool_rule``.

    ``schema``: a JSON Schema constraint that applies in addition to the wrapper's constraint. In a chat whose answers
    are parsed into messages, it applies to the answer, which may be missing if the message calls a tool.
    """
    options = dict(options)
    stops = tuple(stop or ())
    if stops and options.get("stop_strings"):
        raise UsageError("stop= and stop_strings= are the same; give one of them")
    if stops:
        options["stop_strings"] = list(stops)
    tools = None
    if not all(isinstance(prompt, str) for prompt in prompts):
        tools = tool_rule(*(options.pop(name, None) for name in ("tools", "tool_choice", "parallel_tool_calls")))
        if tools is not None and tools.choice != "none":
            options["tools"] = tools.definitions
        if tools is not None or writes_parts(guarded.tokenizer):
            options.setdefault("parse_messages", True)
            tools = NO_CALLS if tools is None else tools
    elif options.get("tools") or options.get("tool_choice"):
        raise UsageError("tools= and tool_choice= are for chats; give a list of messages, or leave them out")
    if schema is not None and schema.on == "completion" and options.get("parse_messages"):
        optional = tools is not None and tools.choice != "none"
        schema = replace(schema, on=Part(message="answer", missing="pass" if optional else "fail"))
    added = [rule for rule in (schema, tools) if rule is not None]
    if added or stops:
        replaced = options.get("constraints")
        file = as_constraint_file(guarded.constraint if replaced is None else replaced, allow_code=False)
        constraint = file.constraint
        for rule in added:
            constraint &= rule
        file = replace(file, constraint=stopped(constraint, stops))
        options["constraints"] = file if replaced is not None else replace(file, fallback=_fallback(guarded, file))
    outcomes = guarded.run(list(prompts), progress=False, **options)
    return [replace(outcome, texts=shown_texts(outcome, stops)) for outcome in outcomes]


def _fallback(guarded: GuardedGenerator, file: ConstraintFile) -> str | None:
    """Return the fallback of the wrapper's file, which a call's file replaces, unless a rule of the call rejects it."""
    if (fallback := guarded.session.file.fallback) is not None:
        with suppress(UsageError):
            require_accepted(Fallback(fallback), file.constraint, guarded.tokenizer)
            return fallback
    return None


def tool_rule(tools: Any, choice: Any, parallel: Any) -> ToolCalls | None:
    """Return the rule for the calls of a message; None without tools.

    ``choice``: ``"auto"`` or None: any number of calls; ``"required"``, ``"any"`` or True: at least one; ``"none"``
    or False: no call; the name of a tool, or a mapping with it: at least one, and only of this tool.
    """
    words = {None: "auto", "any": "required", True: "required", False: "none"}
    choice = words.get(choice, choice) if isinstance(choice, str | bool | None) else choice
    if not tools:
        if choice not in ("auto", "none"):
            raise UsageError("tool_choice requires tools; pass them, or leave it out")
        return None
    if isinstance(choice, str) and choice not in ("auto", "required", "none"):
        choice = {"name": choice}
    rule = ToolCalls(tools, choice=choice, parallel=True if parallel is None else parallel, name="the tools")
    # Other libraries hold the arguments of a call in a dict, and a schema may leave their type out.
    objects = [{**tool, "parameters": {"type": "object", **tool["parameters"]}} for tool in rule.tools]
    return replace(rule, tools=objects)


def calls_tools(guarded: GuardedGenerator) -> bool:
    """Whether the calls in the model's answers to chats can be parsed."""
    return has_template(guarded.tokenizer) or family_of(guarded.tokenizer) is not None


def reply_messages(outcome: Outcome, stop: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return the message of each text: ``content``, ``reasoning_content`` and ``tool_calls``, as in OpenAI's API."""
    messages = [answer_message(draw, tuple(stop or ())) for draw in outcome.draws]
    return messages + [{"content": text} for text in outcome.texts[len(messages) :]]


def token_counts(outcome: Outcome) -> list[dict[str, int] | None]:
    """Return the usage of each text, as in OpenAI's API; None if the tokens of the prompt are not known.

    A text's tokens include its end-of-sequence token, and reasoning and calls if it is a message. A fallback has none.
    Those of rejected attempts are in the report.
    """
    prompt, missing = outcome.report.prompt_tokens, len(outcome.texts) - len(outcome.draws)
    if prompt is None:
        return [None] * len(outcome.texts)
    lengths = [*(len(draw.token_ids) for draw in outcome.draws), *[0] * missing]
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return [dict(zip(names, (prompt, length, prompt + length), strict=True)) for length in lengths]


def complete_outcome(guarded: GuardedGenerator, outcome: Outcome) -> Outcome:
    """Return the outcome if it has all of its texts: the replies of other libraries cannot contain None."""
    raise_if_short("raise", [outcome], guarded.session.call_class.sampling)
    return outcome


def one(guarded: GuardedGenerator, prompt: Any, options: Mapping[str, Any], **more: Any) -> Outcome:
    """Generate for one prompt; see ``run_prompts`` and ``complete_outcome``."""
    (outcome,) = run_prompts(guarded, [prompt], options, **more)
    return complete_outcome(guarded, outcome)


def schema_constraint(schema: Any) -> JSONSchema:
    """Return the constraint for a schema: a JSON Schema, or a type that pydantic supports."""
    if isinstance(schema, JSONSchema):
        return schema
    if isinstance(schema, Mapping) and ({"parameters", "function"} & schema.keys()) and "properties" not in schema:
        raise UsageError("this describes a function; give the schema of its parameters")
    return JSONSchema(schema)


def content_of(content: Any) -> str:
    """Return the text of a message."""
    if not isinstance(content, str):
        raise UsageError("only messages of text are supported; for images, call the GuardedGenerator itself")
    return content
