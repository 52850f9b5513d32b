"""The typer app, which imports a command when it runs, and turns errors into one-line messages and exit codes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from guardwrap import __version__
from guardwrap.cli.options import Verbose
from guardwrap.cli.shared import fail
from guardwrap.cli.signals import describe_os_error, discard_unwritten_output
from guardwrap.errors import REMOVED, GuardwrapError

COMMANDS: Mapping[str, str] = {
    "demo": "Show constraints on a real model: texts with their reports, a cost estimate, and a cheaper proposal.",
    "generate": "Generate texts that satisfy the constraints.",
    "plan": "Estimate the cost of a run from a small pilot.",
    "evaluate": "Measure how far proposals and samplers are from the constrained distribution g, and what they cost.",
    "train": (
        "Train an adapter that satisfies a constraint more often, and stays close to the model's own distribution."
    ),
    "report": "Write one HTML file that shows the results in a folder and its subfolders.",
    "serve": "Serve a model over HTTP, with OpenAI's API and vLLM's extensions.",
    "check": "Validate constraint files, run their examples and check texts.",
    "catalogue": "List the ready-made constraint files and adapters, or print a constraint file.",
    "doctor": "Print versions and the speed of a model, and what to do if something is missing or slow.",
}
"""The commands in the order of help, each with the first paragraph of its function's docstring.

The function has the command's name, and is in ``guardwrap.cli.commands.NAME_command``.
"""


class _PlainFlags:
    """Commands whose help shows flags without the type of a value: ``--chat``, which does not accept a ``<bool>``."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) or getattr(parameter, "count", False):
                parameter.metavar = ""
        return parameters


class _Command(_PlainFlags, TyperCommand):
    pass


class _Group(_PlainFlags, TyperGroup):
    pass


class _Summary(TyperCommand):
    """A command that is not imported yet."""


class Commands(_Group):
    """The commands, each imported when it is looked up. An error is one line on stderr: its cause and what to do.

    Exit codes: 0 done, 1 a failed check or an unexpected error, 2 bad input, 3 texts are missing or nothing was
    learned, 130 interrupted, 143 terminated.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name, or None."""
        if isinstance(self.commands.get(cmd_name), _Summary):
            self.commands[cmd_name] = _imported(cmd_name)
        return self.commands.get(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the group, which shows summaries and imports nothing."""
        summaries = _Group(
            name=self.name,
            commands=dict(self.commands),
            params=self.params,
            help=self.help,
            subcommand_metavar=self.subcommand_metavar,
            rich_markup_mode=self.rich_markup_mode,
        )
        summaries.format_help(ctx, formatter)

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **options: Any
    ) -> Any:
        """Run a command, and exit unless ``standalone_mode`` is False."""
        args = list(sys.argv[1:] if args is None else args) or ["--help"]
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **options)
        try:
            code = super().main(args, standalone_mode=False, **options)
            if not code:
                sys.stdout.flush()
        except GuardwrapError as error:
            code = fail(str(error), 2)
        except OSError as error:  # also when the reader of stdout has ended, as in `guardwrap catalogue | head -1`
            code = fail(describe_os_error(error), 1)
        except SystemExit as error:  # rich raises it for a broken pipe
            broken = error.__context__
            code = fail(describe_os_error(broken), 1) if isinstance(broken, BrokenPipeError) else error.code
        except Exception as error:
            code = _unexpected(error)
        discard_unwritten_output()
        sys.exit(code if isinstance(code, int) else 0)


def _imported(name: str) -> Any:
    function = getattr(import_module(f"guardwrap.cli.commands.{name}_command"), name)
    single = typer.Typer(rich_markup_mode="markdown", pretty_exceptions_enable=False, add_completion=False)
    single.command(name, cls=_Command)(function)
    return get_command(single)


def _unexpected(error: Exception) -> int:
    format_message = getattr(error, "format_message", None)
    if format_message is not None:  # a usage error of the command line itself
        message = _no_option(error) or " ".join(str(format_message()).split())
        command = getattr(getattr(error, "ctx", None), "command_path", "guardwrap")
        return fail(f"{message} (see {command} --help)", int(getattr(error, "exit_code", 2)))
    # The message of an unexpected error may quote unchecked text, so only its type is shown.
    logging.getLogger("guardwrap").debug("unexpected error", exc_info=error)
    return fail(f"unexpected {type(error).__name__}; run again with -vv for a traceback", 1)


def _no_option(error: Any) -> str | None:
    """Return the message for an unknown option, with the nearest known ones; None for other errors.

    typer compares names including their dashes, and would suggest --endpoint for --report.
    """
    unknown = getattr(error, "option_name", None)
    context = getattr(error, "ctx", None)
    if unknown is None or context is None:
        return None
    bare = unknown.lstrip("-").replace("_", "-")
    known = [name.lstrip("-") for option in context.command.params for name in option.opts if name.startswith("--")]
    if bare in REMOVED:
        return f"No such option: {unknown} ({REMOVED[bare]})"
    longer = [name for name in known if name.startswith(f"{bare}-")]
    meant = " or ".join(f"--{name}" for name in longer or get_close_matches(bare, known, n=1))
    return f"No such option: {unknown}{f' (did you mean {meant}?)' if meant else ''}"


app = typer.Typer(
    cls=Commands,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Generate texts with Hugging Face models that satisfy your constraints, from the model's own distribution.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"guardwrap {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    verbose: Verbose = 0,
) -> None:
    """Handle the options of all commands."""


def _not_imported() -> None:
    raise AssertionError("Commands.get_command returns the command itself")


for _name, _summary in COMMANDS.items():
    app.command(_name, cls=_Summary, help=_summary)(_not_imported)
