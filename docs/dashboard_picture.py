"""The picture of serve.md: the panels of Grafana's dashboard, drawn from what Prometheus answers to their queries.

``python docs/dashboard_picture.py`` starts ``guardwrap serve`` with the rules and limits of ``deploy/serve/serve.yaml``
and the embedded model. It starts Prometheus (Debian: ``apt-get install prometheus``), sends requests for about four
minutes, and draws ``docs/images/dashboard.png`` with matplotlib. Grafana itself is not needed. A query without an
answer is an error.
"""

import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import Any

import httpx
import matplotlib
import yaml
from matplotlib import dates, pyplot, ticker
from PIL import Image
from serve_picture import started

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
PICTURE = ROOT / "docs" / "images" / "dashboard.png"
SCRAPE, STEP, WINDOW = "2s", 2, "20s"
PHASES = ((60, 2, ("tea",)), (90, 8, ("tea", "brief")), (60, 40, ("tea", "brief", "rare")), (30, 2, ("brief",)))
"""Seconds, concurrent clients, and the rules that they ask for."""
PROMPTS = ("Each morning I drink a cup of", "What is tea?", "My favorite drink is", "Write about breakfast:")
RARE = {"kind": "regex", "pattern": r"\d{3}-\d{4}"}
COLOURS = 64
UNITS = {
    "percentunit": ticker.PercentFormatter(1, decimals=0),
    "bytes": ticker.FuncFormatter(lambda value, _: f"{value / 2**30:.2f} GiB"),
    "s": ticker.FuncFormatter(lambda value, _: f"{value:g} s"),
}


def wanted(rule: str) -> dict[str, Any]:
    """Return the body of a request."""
    constraint = RARE if rule == "rare" else rule
    own = {"constraint": constraint, "budget": {"max_attempts": 20 if rule == "rare" else 100}}
    return {"model": "local", "prompt": random.choice(PROMPTS), "max_tokens": 16, "guardwrap": own}


def load(url: str) -> None:
    """Send requests, more at once in some phases than in others."""
    for seconds, clients, rules in PHASES:
        end = time.monotonic() + seconds

        def send(rules: tuple[str, ...] = rules, end: float = end) -> None:
            while time.monotonic() < end:
                body = wanted(random.choice(rules))
                httpx.post(f"{url}/v1/completions", json=body, timeout=300)

        with ThreadPoolExecutor(clients) as pool:
            for one in [pool.submit(send) for _ in range(clients)]:
                one.result()


@contextmanager
def prometheus(url: str, folder: Path) -> Iterator[httpx.Client]:
    """Run Prometheus with the settings of ``deploy/``, except the address and the interval."""
    settings = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": SCRAPE, "evaluation_interval": SCRAPE}
    settings["scrape_configs"][0]["static_configs"] = [{"targets": [url.removeprefix("http://")]}]
    settings["rule_files"] = [str(DEPLOY / "alerts.yml")]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    places = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    command = ["prometheus", *places, "--web.listen-address=127.0.0.1:19090"]
    with Popen(command, stdout=DEVNULL, stderr=DEVNULL) as process:
        try:
            with httpx.Client(base_url="http://127.0.0.1:19090", timeout=60) as client:
                yield client
        finally:
            process.terminate()


def series(
    client: httpx.Client, target: dict[str, Any], begin: float, end: float
) -> dict[str, list[tuple[float, float]]]:
    """Return the lines of one query by their names in the legend."""
    query = target["expr"].replace("$__rate_interval", WINDOW).replace("$instance", ".*")
    asked = {"query": query, "start": begin, "end": end, "step": STEP}
    answer = client.get("/api/v1/query_range", params=asked).json()
    if answer["status"] != "success" or not answer["data"]["result"]:
        raise SystemExit(f"no answer to {query}: {answer}")
    lines = {}
    for line in answer["data"]["result"]:
        label = target["legendFormat"]
        for name in re.findall(r"\{\{(\w+)\}\}", label):
            label = label.replace("{{" + name + "}}", line["metric"].get(name, ""))
        lines[label] = [(at, float(value)) for at, value in line["values"]]
    return lines


def draw(axes: Any, panel: dict[str, Any], lines: dict[str, list[tuple[float, float]]]) -> None:
    """Draw one panel."""
    for label, points in lines.items():
        if all(y == 0 or y != y for _, y in points) and len(lines) > 3:
            continue  # a status or a limit that did not occur
        shown = label if len(label) < 34 else label[:33] + "…"
        axes.plot([datetime.fromtimestamp(at, UTC) for at, _ in points], [y for _, y in points], label=shown)
    axes.set_title(panel["title"], loc="left", fontsize=10, fontweight="bold")
    defaults = panel["fieldConfig"]["defaults"]
    axes.set_ylim(0, defaults.get("max"))
    if formatter := UNITS.get(defaults["unit"]):
        axes.yaxis.set_major_formatter(formatter)
    axes.xaxis.set_major_locator(dates.MinuteLocator())
    axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, frameon=False, ncols=2, loc="upper left", bbox_to_anchor=(0, -0.1))


def main() -> None:
    """Draw it."""
    matplotlib.use("Agg")
    random.seed(0)
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    drawn = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        config = str(DEPLOY / "serve" / "serve.yaml")
        serve = [sys.executable, "-m", "guardwrap", "serve", "--config", config, "--port", "0"]
        url = running.enter_context(started(serve, "http://", "stdout"))
        client = running.enter_context(prometheus(url, Path(folder)))
        begin = time.time()
        load(url)
        end = time.time()
        for panel in dashboard["panels"]:
            lines: dict[str, list[tuple[float, float]]] = {}
            for target in panel["targets"]:
                lines |= series(client, target, begin, end)
            drawn.append((panel, lines))
        text = httpx.get(f"{url}/metrics").text
        print(len([line for line in text.splitlines() if not line.startswith("#")]), "series")
        print(len([target for panel in dashboard["panels"] for target in panel["targets"]]), "queries answered")
        print(client.get("/api/v1/alerts").json()["data"])
    rows = max(panel["gridPos"]["y"] for panel, _ in drawn) // 8 + 1
    figure = pyplot.figure(figsize=(13, 2.9 * rows))
    grid = figure.add_gridspec(rows, 24, hspace=0.75, wspace=7)
    for panel, lines in drawn:
        place = panel["gridPos"]
        draw(figure.add_subplot(grid[place["y"] // 8, place["x"] : place["x"] + place["w"]]), panel, lines)
    figure.savefig(PICTURE, dpi=90, bbox_inches="tight")
    few = Image.open(PICTURE).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
