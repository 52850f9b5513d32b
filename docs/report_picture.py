"""The picture of report.md: the page of a small evaluation, on a computer's screen and on a phone's.

``python docs/report_picture.py FOLDER`` runs ``guardwrap evaluate`` on the embedded model, which takes some minutes and
continues with the attempts that the folder has, and draws ``docs/images/report.png`` with chromium.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

PICTURE = Path(__file__).parent / "images" / "report.png"
CONFIG = """\
constraint: {kind: keyword, words: [tea]}
prompts: ["Each morning I drink a cup of"]
proposals:
  hint: "I love my tea. {prompt}"
  milder hint: "Coffee or tea? {prompt}"
generation: {do_sample: true, top_k: 0, max_new_tokens: 12}
attempts: 1500
base_attempts: 3000
batch_size: 64
steps: [1, 2, 5, 10, 20]
seed: 0
"""
LIGHT, DARK = 1, 0  # as chromium counts them
HEIGHT = 1400  # pixels: what was found, with its chart
COLOURS = 64


def evaluated(folder: Path) -> Path:
    """Evaluate, or only draw the page if that is done, and return the page."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / "evaluation.json").exists():
        arguments = ["report", str(folder)]
    else:
        (folder / "small.yaml").write_text(CONFIG)
        arguments = ["evaluate", str(folder / "small.yaml"), "--out", str(folder)]
    subprocess.run([sys.executable, "-m", "guardwrap", *arguments], check=True)
    return folder / "report.html"


def screen(page: Path, width: int, scheme: int, height: int = HEIGHT) -> Image.Image:
    """Show a page on a screen of this width; chromium's own windows are no narrower than 500 pixels, a frame may be."""
    with tempfile.TemporaryDirectory() as folder:
        frame, shot = Path(folder, "frame.html"), Path(folder, "shot.png")
        style = f"border:0;width:{width}px;height:{height}px"
        frame.write_text(f'<body style="margin:0"><iframe src="{page.resolve().as_uri()}" style="{style}"></iframe>')
        chromium = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        size = f"--window-size={max(width, 500)},{height}"
        told = [f"--blink-settings=preferredColorScheme={scheme}", size, f"--screenshot={shot}", frame.as_uri()]
        subprocess.run([*chromium, *told], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return Image.open(shot).convert("RGB").crop((0, 0, width, height))


def picture(page: Path) -> Image.Image:
    """Put a computer's screen in the light and a phone's in the dark side by side, in few colours."""
    broad, slim = screen(page, 1280, LIGHT).crop((130, 0, 1150, HEIGHT)), screen(page, 390, DARK)
    both = Image.new("RGB", (broad.width + slim.width, HEIGHT))
    both.paste(broad, (0, 0))
    both.paste(slim, (broad.width, 0))
    return both.quantize(COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    picture(evaluated(Path(sys.argv[1]))).save(PICTURE, optimize=True)
