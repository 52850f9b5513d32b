"""The picture of serve.md: the server's page after a request, on a computer's screen and on a phone's.

``python docs/serve_picture.py`` starts ``guardwrap serve`` on the embedded model, fills in the page's form in chromium,
and draws ``docs/images/serve.png``. With a folder it writes the page on four screens there, to be looked at.
"""

import base64
import io
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from websockets.sync.client import connect

PICTURE = Path(__file__).parent / "images" / "serve.png"
RULES = {
    "tea.yaml": "guardwrap: 1\ndescription: Names tea.\nconstraint: {kind: keyword, words: [tea]}\n",
    "brief.yaml": "guardwrap: 1\ndescription: One sentence that ends by itself.\nconstraint: {kind: finished}\n",
}
SCREENS = {"broad": (1280, "light"), "slim": (390, "dark"), "broad-dark": (1280, "dark"), "slim-light": (390, "light")}
HEIGHT = 1400
COLOURS = 64
FILLED = """
document.getElementById("seed").value = 7;
document.getElementById("n").value = 2;
document.getElementById("max_tokens").value = 12;
document.getElementById("try").requestSubmit();
"""
DONE = 'document.querySelector("#found pre") !== null && !document.getElementById("send").disabled'

Ask = Callable[..., Any]


@contextmanager
def started(command: list[str], sign: str, stream: str) -> Iterator[str]:
    """Run a program until the end of the context; yields the word of its output that begins with ``sign``."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, text=True, env=environment, **{stream: subprocess.PIPE}) as process:  # type: ignore[call-overload]
        try:
            words = (word for line in getattr(process, stream) for word in line.split())
            yield next(word for word in words if word.startswith(sign))
        finally:
            process.kill()


@contextmanager
def browser(folder: str) -> Iterator[Ask]:
    """Start chromium; yields what asks its DevTools protocol about a page of its own."""
    chromium = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    told = ["--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
    with started([*chromium, *told], "ws://", "stderr") as address, connect(address, max_size=None) as socket:
        numbers, session = itertools.count(), dict[str, str]()

        def ask(method: str, **parameters: Any) -> Any:
            number = next(numbers)
            socket.send(json.dumps({"id": number, "method": method, "params": parameters, **session}))
            while (reply := json.loads(socket.recv(60))).get("id") != number:
                pass
            return reply["result"]

        target = ask("Target.createTarget", url="about:blank")["targetId"]
        session["sessionId"] = ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        yield ask


def evaluated(ask: Ask, script: str) -> Any:
    """Run a script in the page."""
    return ask("Runtime.evaluate", expression=script, awaitPromise=True)["result"].get("value")


def until(ask: Ask, script: str) -> None:
    """Wait until a script is true."""
    wait = "new Promise((done) => setTimeout(done, 100))"
    while evaluated(ask, script) is not True:
        evaluated(ask, wait)


def screens(url: str, ask: Ask) -> Iterator[tuple[str, Image.Image]]:
    """Yield the page after a request, on each screen."""
    for name, (width, scheme) in SCREENS.items():
        ask("Emulation.setDeviceMetricsOverride", width=width, height=HEIGHT, deviceScaleFactor=1, mobile=width < 500)
        ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        ask("Page.navigate", url=url)
        until(ask, 'document.querySelectorAll("#named option").length > 1')
        evaluated(ask, FILLED)
        until(ask, DONE)
        until(ask, 'document.getElementById("accepted").textContent !== "0"')
        shot = base64.b64decode(ask("Page.captureScreenshot", format="png")["data"])
        yield name, Image.open(io.BytesIO(shot)).convert("RGB")


def picture(broad: Image.Image, slim: Image.Image) -> Image.Image:
    """Put a computer's screen and a phone's side by side, in few colours."""
    broad = broad.crop((130, 0, 1150, HEIGHT))
    both = Image.new("RGB", (broad.width + slim.width, HEIGHT))
    both.paste(broad, (0, 0))
    both.paste(slim, (broad.width, 0))
    return both.quantize(COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)


def main(folder: Path | None = None) -> None:
    """Draw it."""
    with tempfile.TemporaryDirectory() as rules, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for name, rule in RULES.items():
            Path(rules, name).write_text(rule)
        serve = [sys.executable, "-m", "guardwrap", "serve", "--port", "0", "--constraints", rules]
        with started(serve, "http://", "stdout") as url, browser(profile) as ask:
            drawn = dict(screens(url, ask))
    if folder is not None:
        for name, image in drawn.items():
            image.save(folder / f"{name}.png")
    else:
        picture(drawn["broad"], drawn["slim"]).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
