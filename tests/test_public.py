"""What the package promises from outside: names, errors, imports, files."""

import ast
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import textwrap
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import guardwrap
from guardwrap import adapters, constraints, errors, metrics, rules, samplers, testing, training

ROOT = Path(__file__).parents[1]


def test_importing_guardwrap_imports_no_torch() -> None:
    code = (
        "import sys, guardwrap, guardwrap.errors, guardwrap.outcomes, guardwrap.samplers, guardwrap.constraints;"
        "import guardwrap.evaluation.evaluation_report, guardwrap.outcomes.html;"
        "guardwrap.Regex('a'); guardwrap.Budget();"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_rules_are_imported_when_they_are_used() -> None:
    code = (
        "import sys, guardwrap.constraints, guardwrap.twists.progress_of;"
        "rules = lambda: {name for name in sys.modules if name.startswith('guardwrap.rules')};"
        "twist = guardwrap.twists.progress_of.automaton_of(guardwrap.constraints.Length(max=3));"
        "assert not rules(), rules();"
        "assert {'Split', 'Judge'} <= set(dir(guardwrap.constraints));"
        "assert guardwrap.Depth is guardwrap.constraints.Depth;"
        "assert 'guardwrap.rules.judge' not in rules() and rules()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.slow
def test_other_libraries_are_imported_for_what_needs_them_only() -> None:
    code = (
        "import sys, guardwrap.cli, guardwrap.generator, guardwrap.integrations;"
        "assert not {'peft', 'langchain_core', 'llama_index', 'fastapi', 'openai'} & set(sys.modules)"
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


def undocumented(kind: type) -> set[str]:
    """Return the public methods of a class that have no docstring and inherit none."""
    methods = (FunctionType, property, cached_property)
    public = {name for name, value in vars(kind).items() if name[0] != "_" and isinstance(value, methods)}
    documented = {name for base in kind.__mro__ for name, value in vars(base).items() if value.__doc__}
    return public - documented


def test_each_method_of_a_kind_has_a_docstring_or_inherits_one() -> None:
    modules = [
        importlib.import_module(module.name)
        for package in (constraints, rules)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    members = [member for module in modules for member in vars(module).items()]
    kinds = {kind for name, kind in members if isinstance(kind, type) and name == kind.__name__ and name[0] != "_"}
    ours = {kind for kind in kinds if kind.__module__.startswith(("guardwrap.constraints", "guardwrap.rules"))}
    assert {kind: names for kind in ours if (names := undocumented(kind))} == {}

    class Mute(guardwrap.Finished):  # negative control
        def check(self, *arguments: Any) -> Any: ...

        def hum(self) -> None: ...

    assert undocumented(Mute) == {"hum"}


def test_the_error_tree_is_drawn_as_it_is() -> None:
    drawn = re.findall(
        r"^[│ ├└─]*(\w+)(?: \(ValueError\))?(?:  .*)?$", errors.__doc__.split("::")[1].split("Messages")[0], re.M
    )
    classes = [n.name for n in ast.parse(inspect.getsource(errors)).body if isinstance(n, ast.ClassDef)]
    assert sorted(name for name in drawn if name) == sorted(classes)
    for name in classes:
        assert issubclass(getattr(errors, name), errors.GuardwrapError)
        assert name in errors.__all__


def test_content_folders_are_no_packages() -> None:
    assert not list((ROOT / "constraints").glob("**/*.py"))


def without_a_type(cls: type) -> set[str]:
    """Return the public attributes of a class whose types a type checker has to infer.

    It knows the type of a parameter, so ``self.name = name`` is enough.
    """
    typed: set[str] = set()
    inferred: set[str] = set()
    for base in cls.__mro__:
        if not base.__module__.startswith(("guardwrap", "tests")):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        typed |= {
            ast.unparse(node.target).removeprefix("self.") for node in ast.walk(tree) if isinstance(node, ast.AnnAssign)
        }
        starts = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
        for start in starts:
            parameters = {argument.arg for argument in [*start.args.args, *start.args.kwonlyargs]}
            for node in ast.walk(start):
                if isinstance(node, ast.Assign) and ast.unparse(node.value) not in parameters:
                    inferred |= set(re.findall(r"\bself\.([a-z]\w*)", " ".join(map(ast.unparse, node.targets))))
    return inferred - typed


class Untyped:
    typed: int

    def __init__(self, name: str) -> None:
        self.name = name
        self.typed, self.first = len(name), name[0]
        self.size: int = len(name)


def test_attributes_of_public_classes_have_types() -> None:
    modules = (guardwrap, adapters, constraints, errors, metrics, samplers, testing, training)
    members = {getattr(module, name) for module in modules for name in module.__all__}
    classes = {member for member in members if inspect.isclass(member) and member.__module__.startswith("guardwrap")}
    assert len(classes) > 50
    assert {cls.__name__: found for cls in classes if (found := without_a_type(cls))} == {}
    assert without_a_type(Untyped) == {"first"}
