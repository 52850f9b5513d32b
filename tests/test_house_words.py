"""No house words in docstrings, comments, messages and help: what ``fixtures_house_words`` lists, and finds."""

from pathlib import Path

import pytest

from tests.fixtures_house_words import findings, in_python, in_text

ROOT = Path(__file__).parents[1]
FOLDERS = sorted(path for path in (ROOT / "guardwrap").rglob("*") if (path / "__init__.py").exists())


@pytest.mark.parametrize("folder", [ROOT / "guardwrap", *FOLDERS], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_folder_has_none(folder: Path) -> None:
    assert [str(finding) for path in folder.glob("*.py") for finding in findings(path)] == []


def test_examples_and_benchmarks_have_none() -> None:
    files = [*(ROOT / "examples").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py"), *(ROOT / "docs").glob("*.py")]
    assert len(files) > 20
    assert [str(finding) for path in files for finding in findings(path)] == []


def test_negative_control_of_each_place() -> None:
    source = '''"""The dearest of modules."""

# A word that
# goes on in the next line.
raise ValueError(f"{name} is refused by name")
heeded = "dear"  # one word alone is no prose; a name is none either
'''
    assert [(finding.place, finding.words) for finding in in_python(source, "x.py")] == [
        ("x.py:4", "goes on"),
        ("x.py:1", "dearest"),
        ("x.py:5", "refused by name"),
    ]


def test_negative_control_across_lines_of_prose() -> None:
    assert [finding.place for finding in in_text("A text\nthat needs\nno words. Fine.", "page.md")] == ["page.md:2"]
    assert list(in_text("A text that goes on to the next part.", "page.md")) == []
