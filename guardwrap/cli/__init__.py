"""Command-line interface: ``guardwrap generate``, ``check``, ``plan``, ``serve`` and the other commands."""

from guardwrap.cli.signals import end_at_once_from_now_on, open_closed_streams

__all__ = ["main"]


def main() -> None:
    """Run the command line."""
    end_at_once_from_now_on()
    open_closed_streams()
    from guardwrap.cli.typer_app import app

    app()
