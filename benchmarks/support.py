"""The tables of docs/stability.md: what is tested, read from the project's settings and from the tests themselves.

    PYTHONPATH=. python benchmarks/support.py

writes them into the page, between its comments. ``tests/test_release.py`` compares the two.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement

from guardwrap.models.templates import FAMILIES
from tests.engine.refill.test_row_states import PLAIN, REFILL
from tests.engine.test_transformers_loop import MODELS
from tests.fixtures_models import llava, speech_to_text, whisper
from tests.models.test_templates import SYNTAX
from tests.serve.test_agents import PACKAGES

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "stability.md"
CORE = ("torch", "accelerate", "peft", "bitsandbytes")
LIBRARIES = ("openai", "fastapi", "langchain-core", "llama-index-core", "opentelemetry-api")
"""Packages of the two tables of versions that guardwrap or one of its extras depends on."""

DISTRIBUTIONS = {"agents": "openai-agents", "haystack": "haystack-ai", "pydantic_ai": "pydantic-ai-slim"}
"""Modules of agent frameworks whose packages have another name."""


def accepted(settings: str) -> dict[str, str]:
    """Return the versions that pyproject.toml accepts, by package; without the extras for developers."""
    project: Any = tomllib.loads(settings)["project"]
    extras = [each for name, each in project["optional-dependencies"].items() if name not in ("test", "dev")]
    requirements = map(Requirement, [*project["dependencies"], *(line for extra in extras for line in extra)])
    ranges = {each.name: ", ".join(sorted(map(str, each.specifier), reverse=True)) for each in requirements}
    return {name: f"`{each}`" for name, each in {**ranges, "Python": project["requires-python"]}.items()}


def pins(text: str) -> dict[str, str]:
    """Return the versions that a text pins with ``==``, by package, without the name of their build."""
    return dict(re.findall(r"([\w-]+)(?:\[[\w,-]+\])?==(\d[\w.]*)", text))


def part(pattern: str, text: str) -> str:
    """Return the group of the only match of a pattern."""
    (match,) = re.findall(pattern, text, re.M)
    return str(match)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def versions() -> Iterator[tuple[str, ...]]:
    """Yield what guardwrap runs on: accepted versions, tested versions, and what tests them."""
    ranges, lock = accepted(read("pyproject.toml")), pins(read("requirements.lock"))
    releases = yaml.safe_load(read(".github/workflows/test.yml"))["jobs"]["releases"]
    oldest = part(r">=([\d.]+)", ranges["transformers"])
    yield "", "accepted", "tested", "by"
    yield "operating system", "", part(r"^(\w+)-latest$", releases["runs-on"]).capitalize(), "`make test-matrix`"
    yield "Python", ranges["Python"], ", ".join(releases["strategy"]["matrix"]["python"]), "`make test-matrix`"
    tested = f"{oldest}, {lock['transformers']}, and the newest that pip finds"
    yield "transformers", ranges["transformers"], tested, "`make test-matrix`"
    for package in CORE:
        yield package, ranges[package], lock[package], "`make test`"


def frameworks() -> Iterator[tuple[str, ...]]:
    """Yield the servers, clusters and frameworks: accepted versions, tested versions, and what tests them."""
    ranges, lock, makefile = accepted(read("pyproject.toml")), pins(read("requirements.lock")), read("Makefile")
    agents = pins(part(r"^AGENTS := ((?:.*\\\n)*.*)", makefile))
    yield "", "accepted", "tested", "by"
    yield "vLLM", "", part(r"^VLLM_VERSION := (\S+)$", makefile), "`make test-vllm`"
    yield "Ray", ranges["ray"], part(r'"ray\[data\]==([\d.]+)"', makefile), "`make test-ray`"
    yield "TRL", ranges["trl"], part(r"--disable-pip-version-check trl==([\d.]+)", makefile), "`make test-trl`"
    yield "lm-evaluation-harness", "", part(r'"lm_eval\[api\]==([\d.]+)"', makefile), "`make test-lm-eval`"
    for package in LIBRARIES:
        by = {lock[package]: "`make test`"}
        if package in agents:
            by.setdefault(agents[package], "`make test-agents`")
        yield package, ranges[package], ", ".join(by), ", ".join(by.values())
    for title, module in PACKAGES.items():
        if module != "guardwrap":
            package = DISTRIBUTIONS.get(module, re.sub(r"[._]", "-", module))
            yield f"{title} (`{package}`)", "", agents[package], "`make test-agents`"


def architectures() -> Iterator[tuple[str, ...]]:
    """Yield the modes, by their names in reports, and the architectures that are tested in each."""
    others = [make()[0] for make in MODELS.values()] + [make().model for make in (llava, whisper, speech_to_text)]
    yield "mode", "architectures"
    for mode, names in (
        ("refill", REFILL),
        ("plain", PLAIN),
        ("generate", [each.config.model_type for each in others]),
    ):
        yield f"`{mode}`", ", ".join(f"`{name}`" for name in sorted(names))


def formats() -> Iterator[tuple[str, ...]]:
    """Yield the formats of messages: what a chat template is recognized by, and whether reasoning is read."""
    yield "format", "the chat template contains", "tool calls", "reasoning"
    for family in FAMILIES:
        marks = " and ".join(f"`{mark}`" for mark in family.marks)
        yield family.name, marks.replace("|", r"\|"), "yes", "yes" if SYNTAX[family.name].thought else "no"


TABLES = {"versions": versions, "frameworks": frameworks, "architectures": architectures, "formats": formats}


def table(rows: Iterable[tuple[str, ...]]) -> str:
    """Return rows as Markdown; the first one is the head."""
    head, *others = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *others))


def updated(page: str) -> str:
    """Return the page with new tables between ``<!-- NAME -->`` and ``<!-- end -->``."""
    for name, rows in TABLES.items():
        begin, rest = page.split(f"<!-- {name} -->", 1)
        _, end = rest.split("<!-- end -->", 1)
        page = f"{begin}<!-- {name} -->\n\n{table(rows())}\n\n<!-- end -->{end}"
    return page


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
