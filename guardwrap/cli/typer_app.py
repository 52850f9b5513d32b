"""The typer app, and the one place where errors become lines and exit codes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from guardwrap import __version__
from guardwrap.cli.commands.catalogue_command import show_catalogue
from guardwrap.cli.commands.check_command import check
from guardwrap.cli.commands.demo_command import demo
from guardwrap.cli.commands.doctor_command import doctor
from guardwrap.cli.commands.evaluate_command import run_evaluation
from guardwrap.cli.commands.generate_command import generate
from guardwrap.cli.commands.init_command import init
from guardwrap.cli.commands.plan_command import plan
from guardwrap.cli.commands.report_command import report
from guardwrap.cli.commands.serve_command import serve
from guardwrap.cli.commands.train_command import run_training
from guardwrap.cli.shared import Verbose, fail
from guardwrap.cli.signals import (
    INTERRUPTED,
    describe_os_error,
    end_at_once,
    end_from_now_on,
    let_go,
    open_closed_streams,
)
from guardwrap.errors import GuardwrapError

__all__ = ["app", "main"]


class OneLineErrors(TyperGroup):
    """A group of commands whose errors are one line on stderr: cause and way out.

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
        """Run a command; ends the process unless ``standalone_mode`` is off."""
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
        except OSError as error:  # also where whoever read stdout has had enough, as in `guardwrap catalogue | head -1`
            code = fail(describe_os_error(error), 1)
        except SystemExit as error:  # as rich ends a program
            broken = error.__context__
            code = fail(describe_os_error(broken), 1) if isinstance(broken, BrokenPipeError) else error.code
        except Exception as error:
            code = self._unexpected(error)
        let_go()
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Run what was asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # of which typer says nothing
            raise typer.Exit(fail("interrupted", INTERRUPTED)) from None

    def _unexpected(self, error: Exception) -> int:
        format_message = getattr(error, "format_message", None)
        if format_message is not None:  # a usage error of the command line itself
            message = _no_option(error) or " ".join(str(format_message()).split())
            command = getattr(getattr(error, "ctx", None), "command_path", "guardwrap")
            return fail(f"{message} (see {command} --help)", int(getattr(error, "exit_code", 2)))
        # Not its message: it may quote a text that no constraint has seen.
        logging.getLogger("guardwrap").debug("unexpected error", exc_info=error)
        return fail(f"unexpected {type(error).__name__}; run again with -vv for where it happened", 1)


def _no_option(error: Any) -> str | None:
    """Say which option an unknown one may stand for; None of other errors.

    The library compares names with their dashes, and so finds --endpoint for --report.
    """
    given = getattr(error, "option_name", None)
    context = getattr(error, "ctx", None)
    if given is None or context is None:
        return None
    bare = given.lstrip("-").replace("_", "-")
    known = [name.lstrip("-") for option in context.command.params for name in option.opts if name.startswith("--")]
    begun = [name for name in known if name.startswith(f"{bare}-")]
    meant = " or ".join(f"--{name}" for name in begun or get_close_matches(bare, known, n=1))
    return f"No such option: {given}{f' (did you mean {meant}?)' if meant else ''}"


app = typer.Typer(
    cls=OneLineErrors,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Texts of Hugging Face models that satisfy your constraints, drawn from the model's own distribution.",
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
    """Set what holds for every command."""


app.command()(demo)
app.command()(init)
app.command()(generate)
app.command()(plan)
app.command("evaluate")(run_evaluation)
app.command("train")(run_training)
app.command()(report)
app.command()(serve)
app.command()(check)
app.command("catalogue")(show_catalogue)
app.command()(doctor)


def main() -> None:
    """Run the command line."""
    open_closed_streams()
    try:
        app()
    except KeyboardInterrupt:  # a second one, while the first was seen to
        end_at_once()
    finally:
        end_from_now_on()  # Python itself takes a while to end
