"""A group of commands whose modules are imported when they run, so that ``--help`` does not wait for them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from guardwrap.cli.signals import ends_at_once


class CommandSource(NamedTuple):
    """Where a command is defined, and its line in the list of commands."""

    module: str  # name of a module of ``guardwrap.cli.commands``
    function: str  # name of the function there
    summary: str  # first paragraph of the function's docstring


COMMANDS: Mapping[str, CommandSource] = {
    "demo": CommandSource(
        "demo_command",
        "demo",
        "Show constraints on a real model: texts with their reports, a cost estimate, and a cheaper proposal.",
    ),
    "init": CommandSource(
        "init_command",
        "init",
        "Write a first constraint file: with the rules of the options, or without options an example to edit.",
    ),
    "generate": CommandSource("generate_command", "generate", "Generate texts that satisfy the constraints."),
    "plan": CommandSource("plan_command", "plan", "Estimate the cost of a run from a small pilot."),
    "evaluate": CommandSource(
        "evaluate_command",
        "run_evaluation",
        "Measure how far proposals and samplers are from the constrained distribution g, and what they cost.",
    ),
    "train": CommandSource(
        "train_command",
        "run_training",
        "Train an adapter that satisfies a constraint more often, and stays close to the model's own distribution.",
    ),
    "report": CommandSource(
        "report_command", "report", "Write one HTML file that shows the results in a folder and its subfolders."
    ),
    "serve": CommandSource(
        "serve_command", "serve", "Serve a model over HTTP, with OpenAI's API and vLLM's extensions."
    ),
    "check": CommandSource("check_command", "check", "Validate constraint files, run their examples and check texts."),
    "verify": CommandSource(
        "verify_command", "verify", "Compare output files of guardwrap generate with rules: texts, digests and limits."
    ),
    "catalogue": CommandSource(
        "catalogue_command",
        "show_catalogue",
        "List the ready-made constraint files and adapters, or print a constraint file.",
    ),
    "doctor": CommandSource(
        "doctor_command",
        "doctor",
        "Print versions and the speed of a model, and what to do if something is missing or slow.",
    ),
}
"""The commands, in the order in which help lists them."""


class _PlainFlags:
    """Commands whose help shows flags without the type of a value: ``--chat``, which does not accept a ``<bool>``."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, with that of ``--help``."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) or getattr(parameter, "count", False):
                parameter.metavar = ""
        return parameters


class _Command(_PlainFlags, TyperCommand):
    pass


class _Group(_PlainFlags, TyperGroup):
    pass


class DeferredGroup(_Group):
    """A group that imports a command when it is looked up. Its own help shows summaries and imports nothing."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name, or None."""
        if isinstance(self.commands.get(cmd_name), _Summary):
            self.commands[cmd_name] = _imported(cmd_name)
        return self.commands.get(cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the group."""
        summaries = _Group(
            name=self.name,
            commands=dict(self.commands),
            params=self.params,
            help=self.help,
            subcommand_metavar=self.subcommand_metavar,
            rich_markup_mode=self.rich_markup_mode,
        )
        summaries.format_help(ctx, formatter)


class _Summary(TyperCommand):
    """A command that is not imported yet."""


def _imported(name: str) -> Any:
    source = COMMANDS[name]
    with ends_at_once():
        function = getattr(import_module(f"guardwrap.cli.commands.{source.module}"), source.function)
    single = typer.Typer(rich_markup_mode="markdown", pretty_exceptions_enable=False, add_completion=False)
    single.command(name, cls=_Command)(function)
    return get_command(single)


def add_commands(app: typer.Typer) -> None:
    """Add all commands to an app, without importing them."""
    for name, source in COMMANDS.items():
        app.command(name, cls=_Summary, help=source.summary)(_not_imported)


def _not_imported() -> None:
    raise AssertionError("DeferredGroup.get_command returns the command itself")
