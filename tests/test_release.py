"""What a release consists of besides the code: its version wherever it is named, the citation, the policies."""

import re
from pathlib import Path
from typing import Any

import yaml

from guardwrap import __version__

ROOT = Path(__file__).parents[1]


def released(changelog: str) -> dict[str, str]:
    """Return the dates of the versions in a changelog, newest first."""
    return dict(re.findall(r"^## (\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)$", changelog, re.M))


def test_the_changelog_and_the_citation_name_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", changelog, re.M)[:2] == ["Unreleased", __version__]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    assert str(citation["date-released"]) == released(changelog)[__version__]
    assert released("## Unreleased\n## 1.2.3 - 2026-01-02\n## 0.1.0\n") == {"1.2.3": "2026-01-02"}


def test_the_citation_has_the_paper() -> None:
    citation: Any = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["license"] == "Apache-2.0"
    (paper,) = citation["references"]
    assert paper["title"] == "Guaranteed Generation from Large Language Models"
    assert [author["family-names"] for author in paper["authors"]] == [
        "Kim",
        "Thonet",
        "Rozen",
        "Lee",
        "Jung",
        "Dymetman",
    ]
    assert f'Paper = "{paper["url"]}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_documented_tags_are_of_this_version() -> None:
    """A reader who copies a tag from the docs gets this release."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    tags = re.findall(r"(?:@|rev: )v(\d+\.\d+\.\d+)\b", "".join(page.read_text(encoding="utf-8") for page in pages))
    assert len(tags) >= 2
    assert set(tags) == {__version__}


def test_the_security_policy_says_how_to_report_and_what_counts() -> None:
    policy = (ROOT / ".github" / "SECURITY.md").read_text(encoding="utf-8")
    assert "**Report a vulnerability**" in policy
    assert all(part in policy for part in ("Unchecked text", "One request harms another", "`allow_code=True`"))
