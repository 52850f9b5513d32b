"""``python -m guardwrap``: the command line."""

from guardwrap.cli import main

main()
