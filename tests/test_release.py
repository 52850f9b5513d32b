"""What a release consists of besides the code: its version wherever it is named, the citation, policies, workflows."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import support
import yaml

from guardwrap import __version__

ROOT = Path(__file__).parents[1]


SUPPORT = support.PAGE.read_text(encoding="utf-8")


def test_the_page_of_what_is_tested_is_up_to_date() -> None:
    assert support.updated(SUPPORT) == SUPPORT, "run PYTHONPATH=. python benchmarks/support.py"


@pytest.mark.parametrize("claim", ["2.13.0", "`>=2.6`", "0.32.0", ", `rwkv`", "3.13, ", "2.60.0", "`<start_of_turn>`"])
def test_negative_control_a_page_with_another_claim_is_seen(claim: str) -> None:
    stale = SUPPORT.replace(claim, "")
    assert stale != SUPPORT
    assert support.updated(stale) == SUPPORT


@pytest.mark.parametrize(
    ("old", "new", "shown"),
    [
        ("torch==2.13.0", "torch==2.99.0", "| 2.99.0 |"),
        ("transformers>=5.18", "transformers>=5.21.0", "| 5.21.0, "),
        ("VLLM_VERSION := 0.32.0", "VLLM_VERSION := 0.99.0", "| 0.99.0 |"),
        ("smolagents==1.26.0", "smolagents==1.99.0", "| 1.99.0 |"),
        ('"3.13", "3.14"', '"3.13", "3.14", "3.15"', ", 3.15 |"),
    ],
)
def test_new_settings_change_the_page(old: str, new: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = support.read
    monkeypatch.setattr(support, "read", lambda name: read(name).replace(old, new))
    assert shown not in SUPPORT
    assert shown in support.updated(SUPPORT)


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


WORKFLOWS = ("release", "pages")


def workflow(name: str) -> dict[Any, Any]:
    """Return a workflow's YAML. YAML 1.1 reads its key ``on`` as True."""
    loaded: dict[Any, Any] = yaml.safe_load(
        (ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8")
    )
    return loaded


def with_permission(jobs: dict[str, Any], permission: str) -> set[str]:
    """Return the jobs that may write what the permission names. A job without permissions has none here."""
    return {name for name, job in jobs.items() if job.get("permissions", {}).get(permission) == "write"}


def interpolated(jobs: dict[str, Any]) -> list[str]:
    """Return the scripts into which a workflow writes values, which the shell would read as code."""
    return [step["run"] for job in jobs.values() for step in job["steps"] if "${{" in step.get("run", "")]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_only_tags_start_a_release_and_nothing_is_permitted_by_default(name: str) -> None:
    content = workflow(name)
    assert content[True] == {"push": {"tags": ["v*"]}}
    assert content["permissions"] == {}
    assert interpolated(content["jobs"]) == []
    assert interpolated({"job": {"steps": [{"run": "echo ${{ github.ref_name }}"}, {"run": "make"}, {"uses": "a"}]}})
    checkouts = [
        step
        for job in content["jobs"].values()
        for step in job["steps"]
        if step.get("uses", "").startswith("actions/checkout")
    ]
    assert checkouts
    assert all(step["with"] == {"persist-credentials": False} for step in checkouts)


def test_only_the_job_that_publishes_gets_an_identity() -> None:
    jobs = workflow("release")["jobs"]
    assert with_permission(jobs, "id-token") == {"publish"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["environment"]["name"] == "pypi"
    assert all(job["permissions"] == {"contents": "read"} for name, job in jobs.items() if name != "publish")
    actions = [step["uses"] for step in jobs["publish"]["steps"]]
    assert [action.split("@")[0] for action in actions] == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]
    assert jobs["publish"]["steps"][-1]["with"] == {"attestations": True}
    assert with_permission(workflow("pages")["jobs"], "id-token") == {"deploy"}
    assert workflow("pages")["jobs"]["deploy"]["environment"]["name"] == "github-pages"


def test_what_is_published_was_checked() -> None:
    jobs = workflow("release")["jobs"]
    assert (jobs["publish"]["needs"], jobs["try"]["needs"]) == ("try", "build")
    scripts = [step.get("run", "") for step in jobs["build"]["steps"]]
    assert scripts.index(".github/release/check_tag.sh") < scripts.index("make dist PYTHON=python")
    assert "python .github/release/check_wheel.py" in [step.get("run") for step in jobs["try"]["steps"]]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.partition("\ndist: ")[2].partition("\n\n")[0]
    assert all(part in recipe for part in ("-m build", "twine check --strict", ".github/release/check_wheel.py"))


@pytest.mark.parametrize(
    ("tag", "message"),
    [
        (f"v{__version__}", ""),
        (__version__, "the version is"),
        ("v9.9.9", "the version is"),
        (f"v{__version__}.post1", "the version is"),
        ("v$(touch${IFS}run)", "the version is"),
        ("v1.2.3", "CHANGELOG.md has no heading for 1.2.3"),
    ],
)
def test_the_tag_must_be_the_version(tag: str, message: str, tmp_path: Path) -> None:
    script = tmp_path / ".github" / "release" / "check_tag.sh"
    for path in (".github/release/check_tag.sh", "CHANGELOG.md", "guardwrap/__init__.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    if tag == "v1.2.3":
        (tmp_path / "guardwrap" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    env = {**os.environ, "GITHUB_REF_NAME": tag}
    done = subprocess.run([script], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == bool(message)
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == bool(message)
    assert not (tmp_path / "run").exists()
