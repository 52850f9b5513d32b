"""The command line: ``guardwrap demo``, ``generate``, ``check`` and ``catalogue``."""

from guardwrap.cli.app import app, main

__all__ = ["app", "main"]
