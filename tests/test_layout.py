"""The house: ARCHITECTURE.md names what exists, and the pages link to terms that the glossary has."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
PACKAGE = ROOT / "guardwrap"


def unknown_names(document: str) -> set[str]:
    """Return what a document names in backticks and does not exist: files, tests, and members with their modules."""
    files = [path for folder in (PACKAGE, TESTS) for path in folder.rglob("*.py")]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    defined = {*re.findall(r"(?:def|class) (\w+)", text), *(part for path in files for part in path.parts)}
    defined |= {path.stem for path in files}
    named = re.findall(r"`([\w./]+\.py|test_\w+|\w+\.\w+)`", document)
    return {name for name in named if not set(re.split(r"[./]", name.removesuffix(".py"))) <= defined}


def test_architecture_names_what_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert unknown_names(text) == set()
    folders = set(re.findall(r"`(\w+)/`", text))
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= folders
    wrong = {"account.py", "account.commit", "request_state.nothing", "test_nothing"}
    assert unknown_names(f"`{'` `'.join(wrong)}` `RequestState.commit` `scheduling/backend.py`") == wrong


def test_each_folder_of_tests_is_a_package() -> None:
    """Otherwise two files of one name would be one module."""
    folders = {path.parent for path in TESTS.rglob("test_*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]


def missing_terms(page: str, glossary: str) -> set[str]:
    """Return the anchors of the glossary that a page links to and that no heading there has."""
    headings = re.findall(r"^### (.*)$", glossary, re.M)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return set(re.findall(r"glossary\.md#([^)]+)\)", page)) - anchors


def test_the_glossary_has_the_terms_that_pages_link_to() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        assert missing_terms(page.read_text(encoding="utf-8"), glossary) == set(), page
    assert missing_terms("[a](glossary.md#attempt) [b](glossary.md#no-such-term)", glossary) == {"no-such-term"}
