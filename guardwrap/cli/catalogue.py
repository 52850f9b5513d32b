"""``guardwrap catalogue``: the ready-made constraint files."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from guardwrap.constraints.files import catalogue as entry
from guardwrap.constraints.files import catalogue_names, catalogue_path
from guardwrap.constraints.spec import json_schema
from guardwrap.constraints.views import sentences
from guardwrap.content import PREFIX
from guardwrap.errors import UsageError

__all__ = ["catalogue"]


def catalogue(
    name: Annotated[str | None, typer.Argument(show_default=False, help="Print this file instead of the list.")] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON Schema of constraint files, for editors.")
    ] = False,
) -> None:
    """List the ready-made constraint files, or print one.

    Use one as it is with `-c catalogue:NAME`, or save a copy and change it.
    """
    if schema and name:
        raise UsageError("--schema goes without a name: the schema is the same for every file")
    if schema:
        typer.echo(json.dumps(json_schema(), indent=2))
    elif name:
        typer.echo(catalogue_path(name.removeprefix(PREFIX)).read_text(encoding="utf-8"), nl=False)
    else:
        _print_list()


def _print_list() -> None:
    rows = [(name, (sentences(entry(name).description or "") or [""])[0]) for name in catalogue_names()]
    if not sys.stdout.isatty():  # for other programs: one line each
        for name, about in rows:
            typer.echo(f"{name}\t{about}")
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "what it asks for", box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.columns[0].no_wrap = True
    table.columns[0].style = "cyan"
    for row in rows:
        table.add_row(*row)
    console = Console(highlight=False, markup=False)
    console.print(table)
    console.print(f"\nUse one with -c {PREFIX}NAME; see it whole with guardwrap catalogue NAME.", style="dim")
