"""``guardwrap init``: a constraint file to begin with, and what an editor needs to complete and check it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from guardwrap.cli.signals import ends_at_once
from guardwrap.constraints.files.constraint_file import TITLE, json_schema
from guardwrap.errors import UsageError

__all__ = ["editor_schema", "init"]

SCHEMA = "guardwrap.schema.json"

FILE = f"""\
# yaml-language-server: $schema=./{SCHEMA}
# What must hold of every text. Try it without a model:
#     guardwrap check PATH "I drink a cup of tea."
# Lines such as "# match: any" are defaults: take the "# " away and change the value.
guardwrap: 1
name: my-rules
description: Mentions a drink, gives no link, and is short.

# One constraint, or a list of constraints that must all hold. One is a mapping with a kind, the name of a ready-made
# one (guardwrap catalogue lists them), or another file beside this one, as in {{file: other.yaml}}.
constraint:
  - kind: keyword
    name: mentions a drink
    words: [tea, coffee]
    # match: any
    # case_sensitive: false
    # whole_words: true
    # min_count: null            # at least one, unless max_count is given
    # max_count: null
    # on: completion

  - kind: not
    name: no link
    of:
      kind: regex
      pattern: https?://
      # match: search
      # flags: []
      # timeout: 1.0
      # on: completion

  - kind: length
    name: short
    max: 40
    unit: words
    # min: null

  - catalogue:printable-text

# Which attempts become texts. With a proposal or an adapter, qrs and imh take texts back to the model's own law; with
# their defaults written out they are {{imh: {{steps: 10, move: accepted}}}} and {{qrs: {{pilot: 100}}}}.
# sampler: rejection

# What attempts are drawn from, if not the model itself: another prompt, as in
#     proposal: {{prompt: "Mention tea. {{prompt}}"}}
# or the model without tokens that the constraint rules out, where tokens with less than this share are not looked at:
#     proposal: {{masked: {{unseen: 0.001}}}}
# proposal: null

# A trained adapter, by its folder beside this file or its Hub id.
# adapter: null

# What may be spent on one prompt. null is no limit.
budget:
  max_attempts: 1000
  # max_tokens: null
  # max_seconds: null
  # deadline: null
  # max_computed_tokens: null

# Texts that show what is meant. guardwrap check holds the constraint against them.
examples:
  accepts:
    - I drink a cup of tea.
    - Coffee first. Then the world.
  rejects:
    - A glass of water.
    - Tea, as on https://example.com.
"""


def init(
    path: Annotated[Path, typer.Argument(show_default=True, help="The file to write.")] = Path("rules.yaml"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists.")] = False,
) -> None:
    """Write a constraint file to begin with.

    Beside it goes its JSON Schema, by which editors complete and check it without a network: VS Code with the YAML
    extension, and whatever else runs yaml-language-server.
    """
    schema = path.parent / SCHEMA
    if not path.parent.is_dir():
        raise UsageError(f"cannot write to {str(path)!r}: no such folder")
    if path.exists() and not overwrite:
        raise UsageError(
            f"{str(path)!r} exists; give another name, or --overwrite; the schema alone: guardwrap catalogue --schema"
        )
    if schema.exists() and not _is_ours(schema):
        raise UsageError(f"{str(schema)!r} is something else than the schema that belongs there; move it away")
    schema.write_text(json.dumps(editor_schema(), indent=1) + "\n", encoding="utf-8")
    path.write_text(FILE.replace("PATH", str(path)), encoding="utf-8")
    typer.echo(f'{path} is written, with {schema} for editors; try: guardwrap check {path} "I drink a cup of tea."')


def _is_ours(path: Path) -> bool:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("title") == TITLE


def editor_schema() -> dict[str, Any]:
    """Return the JSON Schema of constraint files, with the samplers that exist and their options."""
    with ends_at_once():
        from guardwrap.samplers.sampler_registry import sampler_schema  # scipy comes with it

    schema = json_schema()
    sampler = schema["properties"]["sampler"]
    schema["properties"]["sampler"] = {"description": sampler["description"], "default": None, **sampler_schema()}
    return schema
