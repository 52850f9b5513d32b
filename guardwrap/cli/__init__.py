"""The command line: ``guardwrap demo``, ``generate``, ``check`` and ``catalogue``."""

from guardwrap.cli.signals import ends_at_once

with ends_at_once():
    from guardwrap.cli.typer_app import app, main

__all__ = ["app", "main"]
