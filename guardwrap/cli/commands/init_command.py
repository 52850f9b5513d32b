"""``guardwrap init``: write a first constraint file, and its JSON Schema for editors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from guardwrap.constraints.files.constraint_file import TITLE, json_schema, parse
from guardwrap.errors import UsageError
from guardwrap.support.files import PREFIX

SCHEMA = "guardwrap.schema.json"

HEAD = f"""\
# yaml-language-server: $schema=./{SCHEMA}
# Rules for every text. Try them without a model:
#     guardwrap check PATH --text "I drink a cup of tea."
"""

FILE = (
    HEAD
    + """\
guardwrap: 1
name: my-rules
description: Mentions a drink, gives no link, and is short.

# One constraint, or a list of constraints that must all hold. A constraint is a mapping with a kind, the name of a
# ready-made one (guardwrap catalogue lists them), or a file relative to this one, as in {file: other.yaml}.
constraint:
  - {kind: keyword, name: mentions a drink, words: [tea, coffee]}
  - {kind: not, name: no link, of: {kind: regex, pattern: "https?://"}}
  - {kind: length, name: short, max: 40, unit: words}
  - catalogue:printable-text

# Lines such as "# sampler: qrs" are suggestions. To follow one, remove the "# ".

# How texts are selected from attempts; default: rejection. With a proposal or an adapter, qrs and imh restore the
# model's own distribution.
# sampler: qrs

# What to draw attempts from instead of the model itself: without tokens that the constraint rules out, with "twisted"
# for tokens weighed by how likely they are to lead to a satisfying text, or with {prompt: "Mention tea. {prompt}"}.
# proposal: masked

# A trained adapter: its folder, relative to this file, its Hub id, or one of the catalogue.
# adapter: catalogue:json-object

# Limits for one prompt. Others are max_seconds, deadline, max_computed_tokens and timeout.
budget:
  max_attempts: 1000
  # max_tokens: 20000

# Chats only: turns in which the model repairs a rejected answer after the budget is spent.
# repair: {max_turns: 2, message: "Your answer was rejected: {reasons}. Answer again."}

# Examples of texts. guardwrap check tests the constraint with them.
examples:
  accepts:
    - I drink a cup of tea.
    - Coffee first. Then the world.
  rejects:
    - A glass of water.
    - Tea, as on https://example.com.
"""
)


def init(
    path: Annotated[Path, typer.Argument(show_default=True, help="The file to write.")] = Path("rules.yaml"),
    mention: Annotated[list[str] | None, typer.Option(help="A word or phrase that must occur. Repeatable.")] = None,
    never: Annotated[list[str] | None, typer.Option(help="A word or phrase that must not occur. Repeatable.")] = None,
    max_sentences: Annotated[int | None, typer.Option(min=1, help="The most sentences.")] = None,
    min_words: Annotated[int | None, typer.Option(min=1, help="The fewest words; 1 excludes the empty text.")] = None,
    max_words: Annotated[int | None, typer.Option(min=1, help="The most words.")] = None,
    finished: Annotated[
        bool, typer.Option("--finished", help="The model must end the text itself, before the token limit.")
    ] = False,
    language: Annotated[list[str] | None, typer.Option(help="Language of the text, such as de. Repeatable.")] = None,
    parses: Annotated[str | None, typer.Option(help="Format that the text must be in, such as json.")] = None,
    use: Annotated[
        list[str] | None, typer.Option(help="A ready-made constraint, by its name in the catalogue. Repeatable.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Write a first constraint file: with the rules of the options, or without options an example to edit.

    Also writes its JSON Schema to the same folder. With it, editors complete and check the file offline: VS Code with
    the YAML extension, and others with yaml-language-server.
    """
    schema = path.parent / SCHEMA
    if not path.parent.is_dir():
        raise UsageError(f"cannot write to {str(path)!r}: no such folder")
    if path.exists() and not overwrite:
        raise UsageError(
            f"{str(path)!r} exists; give another name, or --overwrite; for the schema: guardwrap catalogue --schema"
        )
    if schema.exists() and not _is_ours(schema):
        raise UsageError(f"{str(schema)!r} exists and is not a guardwrap schema; move it away")
    limits = {"sentences": {"max": max_sentences}, "words": {"min": min_words, "max": max_words}}
    rules = _rules(mention or (), never or (), limits, language or (), parses, use or ())
    rules += [{"kind": "finished"}] if finished else []
    text = (_document(rules) if rules else FILE).replace("PATH", str(path), 1)  # "PATH" may also be a word of a rule
    parse(text, path=str(path))
    schema.write_text(json.dumps(editor_schema(), indent=1) + "\n", encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    typer.echo(f'wrote {path}, and {schema} for editors; try: guardwrap check {path} --text "I drink a cup of tea."')


def _rules(
    mention: Sequence[str],
    never: Sequence[str],
    limits: Mapping[str, Mapping[str, int | None]],
    languages: Sequence[str],
    parses: str | None,
    ready_made: Sequence[str],
) -> list[dict[str, Any] | str]:
    """Return what the options ask for, as the items of a constraint file."""
    rules: list[dict[str, Any] | str] = []
    for words, match in ((mention, "all"), (never, "none")):
        if words:
            rules.append({"kind": "keyword", "words": list(words), "match": match})
    for unit, bounds in limits.items():
        if wanted := {name: bound for name, bound in bounds.items() if bound is not None}:
            rules.append({"kind": "length", **wanted, "unit": unit})
    if languages:
        rules.append({"kind": "language", "languages": list(languages)})
    if parses is not None:
        rules.append({"kind": "parses", "language": parses})
    return rules + [PREFIX + name.removeprefix(PREFIX) for name in ready_made]


def _document(rules: Sequence[dict[str, Any] | str]) -> str:
    lines = [
        yaml.safe_dump(rule, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10_000)
        for rule in rules
    ]
    items = [line.removesuffix("...\n").strip() for line in lines]
    return HEAD + "guardwrap: 1\nconstraint:\n" + "".join(f"  - {item}\n" for item in items)


def _is_ours(path: Path) -> bool:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("title") == TITLE


def editor_schema() -> dict[str, Any]:
    """Return the JSON Schema of constraint files, with the installed samplers and their options."""
    from guardwrap.samplers.sampler_registry import sampler_schema  # imports scipy

    schema = json_schema()
    sampler = schema["properties"]["sampler"]
    schema["properties"]["sampler"] = {"description": sampler["description"], "default": None, **sampler_schema()}
    return schema
