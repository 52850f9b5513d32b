"""What transformers does not promise stands in one module, and what a new release has taken away is named."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import guardwrap
from guardwrap import private

PACKAGE = Path(guardwrap.__file__).parent
PUBLIC = {
    "transformers",
    *(f"transformers.{part}" for part in ("generation", "pipelines", "modeling_outputs", "utils")),
}


def gone(used: tuple[tuple[object, str], ...]) -> list[str]:
    return [f"{getattr(owner, '__name__', owner)}.{name}" for owner, name in used if not hasattr(owner, name)]


def test_nothing_that_is_used_has_vanished() -> None:
    assert gone(private.USED) == []


def test_negative_control_a_name_that_has_vanished() -> None:
    assert gone((*private.USED, (private.Chat, "not_there"))) == ["Chat.not_there"]


def uses(path: Path) -> Iterator[str]:
    """Yield imports from inside transformers, and attributes of others that begin with an underscore."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("transformers"):
            if node.module not in PUBLIC:
                yield f"{path.name}: from {node.module}"
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = node.value
            if isinstance(owner, ast.Name) and owner.id in ("pipe", "model", "generator", "tokenizer"):
                yield f"{path.name}: {owner.id}.{node.attr}"


def test_nowhere_else() -> None:
    found = [use for path in PACKAGE.rglob("*.py") if path.name != "private.py" for use in uses(path)]
    assert found == []


@pytest.mark.parametrize(
    "line", ["from transformers.cache_utils import DynamicLayer", "x = model._sample(1)", "y = pipe._batch_size"]
)
def test_negative_control_of_nowhere_else(line: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(line)
    assert len(list(uses(tmp_path / "module.py"))) == 1
