"""What the package promises from outside: names, errors, imports, files."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import guardwrap
from guardwrap import errors

ROOT = Path(__file__).parents[1]


def test_importing_guardwrap_imports_no_torch() -> None:
    code = (
        "import sys, guardwrap, guardwrap.errors, guardwrap.outcomes, guardwrap.samplers, guardwrap.constraints;"
        "guardwrap.Regex('a'); guardwrap.Budget();"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.slow
def test_other_libraries_are_imported_for_what_needs_them_only() -> None:
    code = (
        "import sys, guardwrap.cli, guardwrap.generator, guardwrap.integrations;"
        "assert not {'peft', 'langchain_core', 'llama_index', 'haystack', 'fastapi', 'openai'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_exported_members_exist_and_are_documented() -> None:
    for name in guardwrap.__all__:
        member = getattr(guardwrap, name)
        assert inspect.getdoc(member), f"{name} has no docstring"
    assert set(guardwrap.__all__) <= set(dir(guardwrap))
    assert guardwrap.__all__ == sorted(guardwrap.__all__, key=str)
    with pytest.raises(AttributeError):
        _ = guardwrap.nothing


def test_the_error_tree_is_drawn_as_it_is() -> None:
    drawn = re.findall(
        r"^[│ ├└─]*(\w+)(?: \(ValueError\))?(?:  .*)?$", errors.__doc__.split("::")[1].split("Messages")[0], re.M
    )
    classes = [n.name for n in ast.parse(inspect.getsource(errors)).body if isinstance(n, ast.ClassDef)]
    assert sorted(name for name in drawn if name) == sorted(classes)
    for name in classes:
        assert issubclass(getattr(errors, name), errors.GuardwrapError)
        assert name in errors.__all__


@pytest.mark.parametrize(("name", "lines"), [("README.md", 200), ("ARCHITECTURE.md", 185), ("CONTRIBUTING.md", 60)])
def test_documents_are_short(name: str, lines: int) -> None:
    assert len((ROOT / name).read_text().splitlines()) <= lines


def test_content_folders_are_no_packages() -> None:
    assert not list((ROOT / "constraints").glob("**/*.py"))
