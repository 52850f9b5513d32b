"""Tests lie as the package does, so that who looks for those of a module finds them by its name."""

from pathlib import Path

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "guardwrap"

WHOLE = {
    "benchmarks",
    "callers",
    "docs",
    "examples",
    "exactness",
    "layout",
    "mistakes",
    "paper",
    "public",
    "seeds",
    "wheel",
    "words",
}
"""What is of no module: rules that hold from end to end, and what lies beside the package."""

UNTESTED = {"engine"}  # another name of guardwrap.pipelines.embedded_model


def folders(root: Path) -> set[str]:
    return {str(path.parent.relative_to(root)) for path in root.rglob("*.py")}


def strays(tests: Path) -> set[str]:
    """Test files beside the folders that are of no module of the package."""
    named = {path.stem.removeprefix("test_") for path in tests.glob("test_*.py")}
    return {name for name in named - WHOLE if not (PACKAGE / f"{name}.py").exists()}


def test_each_folder_is_one_of_the_package() -> None:
    assert folders(TESTS) == folders(PACKAGE) - UNTESTED


def test_each_file_beside_them_is_of_a_module_or_of_the_whole() -> None:
    assert strays(TESTS) == set()
    assert {path.stem.removeprefix("test_") for path in TESTS.glob("test_*.py")} >= WHOLE


def test_the_check_can_fail(tmp_path: Path) -> None:
    (tmp_path / "samplings").mkdir()
    for name in ("test_errors.py", "test_wheel.py", "test_models.py", "samplings/test_qrs.py"):
        (tmp_path / name).touch()
    assert strays(tmp_path) == {"models"}
    assert folders(tmp_path) - folders(PACKAGE) == {"samplings"}


def test_each_folder_is_a_package() -> None:
    """Else two files of one basename are one module."""
    assert not [folder for folder in folders(TESTS) if not (TESTS / folder / "__init__.py").exists()]
