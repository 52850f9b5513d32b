"""Command-line interface: ``guardwrap generate``, ``check``, ``plan``, ``serve`` and the other commands."""

from guardwrap.cli.signals import ends_at_once

with ends_at_once():
    from guardwrap.cli.typer_app import app, main

__all__ = ["app", "main"]
