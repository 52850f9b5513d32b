"""The typer app, which turns errors into one-line messages and exit codes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any

import typer

from guardwrap import __version__
from guardwrap.cli.deferred_commands import DeferredGroup, add_commands
from guardwrap.cli.shared import Verbose, fail
from guardwrap.cli.signals import (
    INTERRUPTED,
    describe_os_error,
    end_at_once,
    end_from_now_on,
    ends_at_once,
    let_go,
    open_closed_streams,
)
from guardwrap.errors import REMOVED, GuardwrapError


class OneLineErrors(DeferredGroup):
    """A group of commands that reports an error as one line on stderr, with its cause and what to do.

    Exit codes: 0 done, 1 a failed check or an unexpected error, 2 bad input, 3 texts are missing or nothing was
    learned, 130 interrupted, 143 terminated.
    """

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command, and exit unless ``standalone_mode`` is False."""
        args = list(sys.argv[1:] if args is None else args) or ["--help"]
        run = partial(
            super().main,
            args=args,
            prog_name=prog_name,
            complete_var=complete_var,
            standalone_mode=False,
            windows_expand_args=windows_expand_args,
            **extra,
        )
        if not standalone_mode:
            return run()
        try:
            code = run()
            if not code:
                sys.stdout.flush()
        except GuardwrapError as error:
            code = fail(str(error), 2)
        except (KeyboardInterrupt, typer.Abort):
            code = fail("interrupted", INTERRUPTED)
        except OSError as error:  # also when the reader of stdout has ended, as in `guardwrap catalogue | head -1`
            code = fail(describe_os_error(error), 1)
        except SystemExit as error:  # rich raises it for a broken pipe
            broken = error.__context__
            code = fail(describe_os_error(broken), 1) if isinstance(broken, BrokenPipeError) else error.code
        except Exception as error:
            code = self._unexpected(error)
        let_go()
        sys.exit(code if isinstance(code, int) else 0)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options before the command."""
        with ends_at_once():  # typer imports pydantic here, and would exit without a message
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that the context names."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # typer itself would exit without a message
            raise typer.Exit(fail("interrupted", INTERRUPTED)) from None

    def _unexpected(self, error: Exception) -> int:
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
    begun = [name for name in known if name.startswith(f"{bare}-")]
    meant = " or ".join(f"--{name}" for name in begun or get_close_matches(bare, known, n=1))
    return f"No such option: {unknown}{f' (did you mean {meant}?)' if meant else ''}"


app = typer.Typer(
    cls=OneLineErrors,
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


add_commands(app)


def main() -> None:
    """Run the command line."""
    open_closed_streams()
    try:
        app()
    except KeyboardInterrupt:  # a second Ctrl-C, while the first one was handled
        end_at_once()
    finally:
        end_from_now_on()  # until Python itself has exited
