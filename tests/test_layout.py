"""The house: where files lie, how large folders and functions may be, and which test belongs to which module."""

import ast
import re
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "guardwrap"

WHOLE = {
    "benchmarks",
    "callers",
    "docs",
    "docs_prose",
    "examples",
    "exactness",
    "house_words",
    "layout",
    "mistakes",
    "paper",
    "public",
    "release",
    "seeds",
    "wheel",
}
"""Tests of no module: rules that hold from end to end, and what lies beside the package."""

SAME_NAME = {"GuardedLLM"}
"""LangChain and LlamaIndex both call their base class LLM, and their users expect this name from each."""

MOST_IN_ROOT, MOST_IN_FOLDER, MOST_LINES = 10, 20, 80


def modules(package: Path) -> set[str]:
    return {str(path.relative_to(package)) for path in package.rglob("*.py") if path.name != "__init__.py"}


def covered(tests: Path) -> dict[str, set[str]]:
    """Return for each test file the modules that its docstring names."""
    found = {}
    for path in tests.rglob("test_*.py"):
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[str(path.relative_to(tests))] = set(re.findall(r"``([\w/]+\.py)``", docstring.partition("Covers ")[2]))
    return found


def without_test(package: Path, tests: Path) -> set[str]:
    """Return the modules for which there is no test of their name, and that no test's docstring names."""
    tested = covered(tests)
    of_their_name = {str(Path(test).with_name(Path(test).name.removeprefix("test_"))) for test in tested}
    return modules(package) - of_their_name - set().union(*tested.values())


def covered_in_vain(package: Path, tests: Path) -> set[str]:
    """Return the modules that a test's docstring names and that do not exist."""
    return set().union(*covered(tests).values()) - modules(package)


def shared_names(package: Path) -> set[str]:
    """Return the names that more than one public class or function has; overloads count once."""
    found: Counter[str] = Counter()
    for path in package.rglob("*.py"):
        kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        names = {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, kinds)}
        found.update(name for name in names if not name.startswith("_"))
    return {name for name, count in found.items() if count > 1}


def long_functions(package: Path) -> dict[str, int]:
    """Return the functions of more lines than are allowed, docstrings included."""
    found = {}
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > MOST_LINES:
                    found[f"{path.relative_to(package)}:{node.name}"] = lines
    return found


def crowded(package: Path) -> dict[str, int]:
    """Return the folders with more files than are allowed."""
    files = Counter(path.parent for path in package.rglob("*.py"))
    limits = {folder: MOST_IN_ROOT if folder == package else MOST_IN_FOLDER for folder in files}
    return {str(folder.relative_to(package)): files[folder] for folder in files if files[folder] > limits[folder]}


def test_each_folder_of_tests_is_one_of_the_package() -> None:
    folders = {str(path.parent.relative_to(TESTS)) for path in TESTS.rglob("*.py")}
    assert folders == {str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py")}


def test_each_folder_of_tests_is_a_package() -> None:
    """Otherwise two files of one name would be one module."""
    folders = {path.parent for path in TESTS.rglob("test_*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def test_each_module_has_a_test_that_is_found_by_name() -> None:
    assert without_test(PACKAGE, TESTS) == set()
    assert covered_in_vain(PACKAGE, TESTS) == set()


def test_each_test_beside_the_folders_is_of_a_module_or_of_the_whole() -> None:
    names = {path.stem.removeprefix("test_") for path in TESTS.glob("test_*.py")}
    assert {name for name in names if not (PACKAGE / f"{name}.py").exists()} == WHOLE


def test_no_folder_is_crowded() -> None:
    assert crowded(PACKAGE) == {}


def test_no_two_files_share_a_name() -> None:
    names = Counter(path.name for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    assert [name for name, count in names.items() if count > 1] == []


def test_no_two_public_classes_or_functions_share_a_name() -> None:
    assert shared_names(PACKAGE) == SAME_NAME


def test_functions_are_short() -> None:
    assert long_functions(PACKAGE) == {}


def unknown_names(document: str) -> set[str]:
    """Return what a document names in backticks and does not exist: files, tests, and members with their modules."""
    files = [path for folder in (PACKAGE, TESTS) for path in folder.rglob("*.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    defined = {*re.findall(r"(?:def|class) (\w+)", text), *(part for path in files for part in path.parts)}
    defined |= {path.stem for path in files}
    named = re.findall(r"`([\w./]+\.py|test_\w+|\w+\.\w+)`", document)
    return {name for name in named if not set(re.split(r"[./]", name.removesuffix(".py"))) <= defined}


def test_architecture_names_what_exists() -> None:
    text = (TESTS.parent / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert unknown_names(text) == set()
    folders = set(re.findall(r"`(\w+)/`", text))
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= folders
    wrong = {"account.py", "account.commit", "request_state.nothing", "test_nothing"}
    assert unknown_names(f"`{'` `'.join(wrong)}` `RequestState.commit` `scheduling/backend.py`") == wrong


def test_negative_controls(tmp_path: Path) -> None:
    package, tests = tmp_path / "package", tmp_path / "tests"
    for folder in (package / "samplers", tests / "samplers"):
        folder.mkdir(parents=True)
    (package / "samplers" / "qrs.py").write_text("def draw(): pass\ndef _draw(): pass\n")
    (package / "samplers" / "imh.py").write_text("class draw: pass\ndef _draw(): pass\n")
    (tests / "samplers" / "test_weights.py").write_text('"""Weights.\n\nCovers ``samplers/qrs.py`` and ``qrs.py``."""')
    assert without_test(package, tests) == {"samplers/imh.py"}
    assert covered_in_vain(package, tests) == {"qrs.py"}
    assert shared_names(package) == {"draw"}
    passes = "    pass\n" * (MOST_LINES - 1)
    (package / "samplers" / "imh.py").write_text(f"def short():\n{passes}def long():\n    pass\n{passes}")
    assert long_functions(package) == {"samplers/imh.py:long": MOST_LINES + 1}
    assert crowded(package) == {}
    for number in range(MOST_IN_ROOT + 1):
        (package / f"{number}.py").touch()
    assert crowded(package) == {".": MOST_IN_ROOT + 1}
