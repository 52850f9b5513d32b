"""The commands, one file each; ``typer_app.py`` puts them together."""
