"""The picture in the README: the first screens of ``guardwrap demo``.

``python docs/recording.py`` runs the command on the embedded model and writes ``docs/images/demo.svg``. Texts, figures
and seconds come from this run. Later screens are left out.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

PICTURE = Path(__file__).parent / "images" / "demo.svg"
WIDTH = 106  # characters per line
SCREENS = 2

# A dark background with a light border is legible on light and dark pages. The demo uses only colors 2 and 6.
GREY = (230, 233, 240)
THEME = TerminalTheme((22, 27, 34), GREY, [GREY, GREY, (126, 211, 133), GREY, GREY, GREY, (121, 192, 255), GREY])


def recorded() -> str:
    """Run the command as if on a terminal of this width and return its output."""
    env = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "guardwrap", "demo"]
    return subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout


def first_screens(written: str, count: int) -> str:
    """Return the first ``count`` screens of the output."""
    return re.split(rf"\n(?=\S*{count + 1}\. )", written, maxsplit=1)[0].rstrip("\n")


def picture(written: str) -> str:
    """Return the output as an SVG picture of a terminal that loads no fonts."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, highlight=False)
        console.print("$ guardwrap demo", style="bold")
        console.print(Text.from_ansi(written), overflow="fold")
        console.print()  # without it, rich cuts off the bottom of the last line
    plain = re.sub(r"@font-face {{.*?\n    }}", "", CONSOLE_SVG_FORMAT, flags=re.S)
    plain = plain.replace("Fira Code, monospace", "ui-monospace, Menlo, Consolas, monospace")
    shown = console.export_svg(title="", theme=THEME, code_format=plain, unique_id="demo")
    return "\n".join(line.strip() for line in shown.splitlines() if line.strip()) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(first_screens(recorded(), SCREENS)))
