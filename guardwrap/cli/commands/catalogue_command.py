"""``guardwrap catalogue``: list the ready-made constraint files and adapters."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any

import typer
import yaml

from guardwrap.constraints.files.constraint_data import catalogue_descriptions, catalogue_path
from guardwrap.constraints.files.constraint_file import json_schema
from guardwrap.constraints.sentences import sentences
from guardwrap.errors import UsageError
from guardwrap.support.files import CARD, PREFIX, adapters

PROGRAM = "guardwrap catalogue"


def catalogue(
    name: Annotated[
        str | None, typer.Argument(show_default=False, help="Print this file instead of the list, or search.")
    ] = None,
    word: Annotated[str | None, typer.Argument(show_default=False, help="What to search for, after search.")] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of constraint files, for editors.")
    ] = False,
) -> None:
    """List the ready-made constraint files and adapters, or print a constraint file.

    `guardwrap catalogue search WORD` lists the constraint files with the word in their name or description.

    Use a constraint with `-c catalogue:NAME`, or edit a copy. Use an adapter with `--adapter catalogue:NAME`.
    """
    if schema and name:
        raise UsageError("--schema is the same for every file; leave the name out")
    if schema:
        typer.echo(json.dumps(editor_schema(), indent=2))
    elif name == "search":
        _search(word)
    elif word:
        raise UsageError(f"unexpected argument; to search: {PROGRAM} search WORD")
    elif name:
        typer.echo(catalogue_path(name.removeprefix(PREFIX)).read_text(encoding="utf-8"), nl=False)
    else:
        _print_list()


def _print_list() -> None:
    files = [(name, _in_short(about)) for name, about in catalogue_descriptions().items()]
    trained = [(name, _about(yaml.safe_load((path / CARD).read_text(encoding="utf-8"))))
               for name, path in adapters().items()]  # fmt: skip
    if not sys.stdout.isatty():  # one line per entry, for other programs
        for kind, rows in (("constraint", files), ("adapter", trained)):
            for name, about in rows:
                typer.echo(f"{name}\t{about}\t{kind}")
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    for title, rows, use in (
        ("constraint", files, f"Use one with -c {PREFIX}NAME. Print its file with guardwrap catalogue NAME."),
        ("adapter", trained, f"Use one with --adapter {PREFIX}NAME, with the model and constraint of its description."),
    ):
        table = Table(title, "description", box=None, header_style="bold", padding=(0, 2, 0, 0))
        table.columns[0].no_wrap = True
        table.columns[0].style = "cyan"
        for row in rows:
            table.add_row(*row)
        console.print(table)
        console.print(f"\n{use}\n", style="dim")


def _search(word: str | None) -> None:
    if not word or not word.strip():
        raise UsageError(f"search for what? {PROGRAM} search WORD")
    wanted = word.strip().casefold()
    files = catalogue_descriptions()
    hits = {name: about for name, about in files.items() if wanted in name or wanted in about.casefold()}
    if not hits:
        close = get_close_matches(wanted, files, n=3, cutoff=0.4)
        raise UsageError(f"no ready-made constraint fits; the nearest names: {', '.join(close) or 'none'}")
    for name in sorted(hits, key=lambda name: (wanted not in name, name)):
        typer.echo(f"{name}\t{_in_short(hits[name])}")


def _in_short(description: str) -> str:
    """Return the first sentence of a description, and the one about what is not caught."""
    parts = sentences(description) or [""]
    return " ".join([parts[0], *(part for part in parts[1:] if part.startswith("Not caught"))])


def _about(card: Mapping[str, Any]) -> str:
    """Describe an adapter by its card, which is read without the class ``Card`` because that imports torch."""
    rates = [card["figures"][name]["value"] for name in ("acceptance_before", "acceptance_after")]
    rise = " to ".join(f"{rate:.2g}" for rate in rates)
    return f"{card['constraint_description']} on {card['base']['name']}: acceptance rate {rise}"


def editor_schema() -> dict[str, Any]:
    """Return the JSON Schema of constraint files, with the installed samplers and their options."""
    from guardwrap.samplers.sampler_registry import sampler_schema  # imports scipy

    schema = json_schema()
    sampler = schema["properties"]["sampler"]
    schema["properties"]["sampler"] = {"description": sampler["description"], "default": None, **sampler_schema()}
    return schema
