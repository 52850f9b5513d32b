"""``guardwrap verify``: compare the output of ``guardwrap generate`` with rules, for auditors."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from guardwrap.calls.records import audited, model_digest, read_records
from guardwrap.cli.options import AllowCode, Constraints
from guardwrap.cli.shared import read_constraints
from guardwrap.errors import UsageError
from guardwrap.support.process import quieten_transformers

VIOLATED = 1
"""Exit code."""


def verify(
    outputs: Annotated[
        list[str],
        typer.Argument(metavar="OUTPUT...", show_default=False, help="Files of guardwrap generate; - is stdin."),
    ],
    constraints: Constraints = ...,  # type: ignore[assignment]  # required
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            show_default=False,
            help="The model that the texts must come from: a Hub id, a folder, or 'local'. Its files are compared.",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option("-n", min=1, metavar="N", show_default=False, help="The number of texts of each line."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False,
    allow_code: AllowCode = False,
) -> None:
    """Compare output files of guardwrap generate with rules: texts, digests and limits.

    Each text is judged again. The digests of the rules, of the files behind them and of the model must be those that
    the line names, the line must be as it was written, and the numbers of texts and attempts within its limits and
    those of the rules. That the model drew a text is not proven. Exit code 0: all hold; 1: some are violated; 2: a file
    cannot be read.
    """
    rules = read_constraints(constraints, allow_code=allow_code)
    digest = None if model is None else model_digest(model)
    if model is not None and digest is None:
        raise UsageError(f"--model {model!r}: there is no such folder, and its version on the Hub is not known")
    quieten_transformers()
    audit = audited(read_records(outputs), rules, model=digest, count=count)
    if not audit.records:
        raise UsageError(f"no line in {', '.join(outputs)}; give an output file of guardwrap generate")
    if as_json:
        typer.echo(json.dumps(audit.to_dict(), ensure_ascii=False, indent=2))
    else:
        for line in audit.lines():
            typer.echo(line)
    raise typer.Exit(VIOLATED if audit.violations else 0)
