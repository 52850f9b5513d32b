"""What other libraries do not promise is listed, and what a new release has taken away is named."""

import ast
import importlib
import pkgutil
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from transformers import TextGenerationPipeline

import guardwrap
from guardwrap.support import transformers_internals

PACKAGE = Path(guardwrap.__file__).parent
PUBLIC = {
    "transformers",
    *(f"transformers.{part}" for part in ("generation", "pipelines", "modeling_outputs", "utils")),
}
OPERATIONS = (
    "ANY", "ASSERT", "ASSERT_NOT", "AT", "AT_BEGINNING", "AT_BEGINNING_STRING", "AT_BOUNDARY", "AT_END",
    "AT_END_STRING", "AT_NON_BOUNDARY", "BRANCH", "GROUPREF", "IN", "LITERAL", "MAX_REPEAT", "MIN_REPEAT",
    "NOT_LITERAL", "SUBPATTERN",
)  # fmt: skip
USED: tuple[str, ...] = (
    *(f"re._constants.{name}" for name in OPERATIONS),
    "re._parser.SubPattern.getwidth",
    "re._parser.parse",
    "regex.Pattern._pickled_data",
    "jsonschema.Draft202012Validator._resolver",
    "referencing._core.Resolver._base_uri",
    "peft.tuners.tuners_utils.BaseTunerLayer.get_base_layer",
    "langchain_core.language_models.llms.BaseLLM._generate",
    "langchain_core.language_models.chat_models.BaseChatModel._convert_input",
    "langchain_core.language_models.chat_models.BaseChatModel._generate",
    "llama_index.core.llms.LLM._get_messages",
    "llama_index.core.llms.LLM._get_prompt",
)
"""Full names of what the package uses, except of transformers and torch. Libraries of extras may be missing."""


def missing(names: Iterable[str] = USED) -> list[str]:
    """Return the names that the installed releases do not have."""
    return [name for name in names if is_installed(name) and not exists(name)]


def is_installed(name: str) -> bool:
    return find_spec(name.partition(".")[0]) is not None


def exists(name: str) -> bool:
    """Return whether a full name can be resolved: as an attribute, or as a module that must be imported first."""
    parts = name.split(".")
    value = importlib.import_module(parts[0])
    for end, part in enumerate(parts[1:], start=2):
        if not hasattr(value, part):
            try:
                importlib.import_module(".".join(parts[:end]))
            except ImportError:
                return False
        value = getattr(value, part)
    return True


LISTED = {part for name in USED for part in name.split(".") if part.startswith("_")}
DOCUMENTED = {"_asdict", "_exit", "_replace"}
"""Public in spite of the underscore: of ``NamedTuple`` and ``os``."""


def gone(used: tuple[tuple[object, str], ...]) -> list[str]:
    return [f"{getattr(owner, '__name__', owner)}.{name}" for owner, name in used if not hasattr(owner, name)]


def test_nothing_that_is_used_has_vanished() -> None:
    assert gone(transformers_internals.USED) == []
    assert missing() == []


def test_negative_control_a_name_that_has_vanished() -> None:
    assert gone((*transformers_internals.USED, (transformers_internals.Chat, "not_there"))) == ["Chat.not_there"]
    lost = ("re._parser.not_there", "re._not_there.parse", "regex.Pattern._not_there")
    assert missing((*USED, *lost, "not_installed._name")) == list(lost)


def is_private(name: str) -> bool:
    return name.startswith("_") and name.strip("_") != "" and not name.startswith("__")


def bound(tree: ast.AST) -> set[str]:
    """Names and attributes that a module gives a meaning to itself."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module or ''}.{alias.name}" for alias in node.names)


def uses(path: Path, everywhere: set[str]) -> Iterator[str]:
    """Yield private names of others: imports, attributes, keyword arguments, and names given to getattr and the like.

    Parameters
    ----------
    path
        A module.
    everywhere
        What any module of the package binds: what ``self`` may have.
    """
    tree = ast.parse(path.read_text())
    own = bound(tree)
    for node in ast.walk(tree):
        for name in imported(node):
            if name.startswith("transformers.") and isinstance(node, ast.ImportFrom) and node.module not in PUBLIC:
                yield f"{path.name}: from {node.module}"
            elif not name.startswith("guardwrap") and any(map(is_private, name.split("."))):
                yield f"{path.name}: import {name}"
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            if node.attr not in (everywhere if is_self(node.value) else own):
                yield f"{path.name}: {ast.unparse(node)}"
        elif isinstance(node, ast.keyword) and is_private(node.arg or "") and node.arg not in own:
            yield f"{path.name}: {node.arg}="
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr", "delattr"):
            given = str(node.args[1].value) if isinstance(node.args[1], ast.Constant) else ""
            if is_private(given) and given not in own:
                yield f"{path.name}: {given!r}"


def unlisted(found: Iterator[str]) -> list[str]:
    """What is neither listed nor documented: its last private part decides."""

    def last(use: str) -> str:
        name = use.partition(": ")[2].rpartition(" ")[2].strip("'=")
        return next((part for part in reversed(name.split(".")) if is_private(part)), name)

    return [use for use in found if last(use) not in LISTED | DOCUMENTED]


def modules() -> list[Path]:
    return [path for path in PACKAGE.rglob("*.py") if not path.stem.endswith("_internals")]


@cache
def names_of_the_package() -> set[str]:
    return set().union(*(bound(ast.parse(path.read_text())) for path in PACKAGE.rglob("*.py")))


@pytest.mark.slow
def test_nowhere_else() -> None:
    everywhere = names_of_the_package()
    assert [use for path in modules() for use in unlisted(uses(path, everywhere))] == []


def test_what_is_listed_is_used() -> None:
    source = "\n".join(path.read_text() for path in modules())
    assert [name for name in USED if name.rpartition(".")[2] not in source] == []


@pytest.mark.parametrize(
    "line",
    [
        "from transformers.cache_utils import DynamicLayer",
        "x = model._sample(1)",
        "y = pipe._batch_size",
        "import re._casefix",
        "from regex import _regex_core",
        "from huggingface_hub.utils._http import get_session",
        "z = compiled._groups",
        "server = uvicorn.Server(config)._serve",
        "validator.evolve(_registry=1)",
        "w = getattr(tokenizer, '_tokenizer')",
        "class A(B):\n    def f(self):\n        return self._of_no_module_of_ours",
    ],
)
def test_negative_control_of_nowhere_else(line: str, tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(line)
    assert len(unlisted(uses(tmp_path / "module.py", names_of_the_package()))) == 1


def test_nothing_private_of_others_is_overridden() -> None:
    """By a class of ours that derives from one of theirs."""
    listed = LISTED | {name for _, name in transformers_internals.USED}
    found = []
    for module in pkgutil.walk_packages(guardwrap.__path__, "guardwrap."):
        if module.name.endswith("__main__") or module.name.startswith("guardwrap.integrations"):
            continue  # they need libraries of optional extras; those of integrations are documented as to be overridden
        for kind in vars(importlib.import_module(module.name)).values():
            if isinstance(kind, type) and kind.__module__ == module.name:
                found += [f"{kind.__qualname__}.{name}" for name in overridden(kind) if name not in listed]
    assert found == []


STANDARD = {"abc", "builtins", "enum", "typing", "typing_extensions"}


def overridden(kind: type) -> list[str]:
    theirs = [base for base in kind.__mro__[1:] if base.__module__.split(".")[0] not in {"guardwrap", *STANDARD}]
    names = [name for name in vars(kind) if is_private(name) and name != "_abc_impl"]
    return [name for name in names if any(name in vars(base) for base in theirs)]


def test_negative_control_of_what_is_overridden() -> None:
    class Ours(transformers_internals.DynamicLayer):
        _new = 1

    assert overridden(Ours) == []
    assert overridden(type("Pipe", (TextGenerationPipeline,), {"_forward": 1})) == ["_forward"]
