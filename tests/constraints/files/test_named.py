"""References in constraint files: to the catalogue and to other files."""

import re
from pathlib import Path

import pytest

from guardwrap.constraints import All, Keyword, Length, Not, Regex, catalogue, load, parse
from guardwrap.errors import SpecError
from guardwrap.support.limits import MAX_DEPTH, MAX_FILES

TEA = "guardwrap: 1\nconstraint: {kind: keyword, words: tea}\n"


def written(path: Path, constraint: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"guardwrap: 1\nconstraint: {constraint}\n")
    return path


def refused(path: Path, **options: bool) -> str:
    with pytest.raises(SpecError) as caught:
        load(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("spelt", "made"),
    [
        ("catalogue:no-urls", lambda tea: catalogue("no-urls").constraint),
        ("{file: tea.yaml}", lambda tea: tea),
        ("[{file: tea.yaml}]", lambda tea: tea),
        ("[catalogue:no-urls, {file: tea.yaml}]", lambda tea: All([catalogue("no-urls").constraint, tea])),
        ("{kind: not, of: {file: tea.yaml}}", Not),
        ("{kind: any, of: [{file: tea.yaml}, catalogue:no-urls]}", lambda tea: tea | catalogue("no-urls").constraint),
        ("{kind: all, of: [catalogue:no-urls, {file: tea.yaml}]}", lambda tea: catalogue("no-urls").constraint & tea),
        ("[{kind: length, max: 3, unit: words}, {file: tea.yaml}]", lambda tea: Length(max=3, unit="words") & tea),
    ],
)
def test_what_is_named_is_what_is_spelt_out(tmp_path, spelt, made):
    (tmp_path / "tea.yaml").write_text(TEA)
    found = load(written(tmp_path / "rules.yaml", spelt)).constraint
    assert found.digest == made(Keyword("tea")).digest
    assert parse("guardwrap: 1\nconstraint: [{kind: regex, pattern: a}]").constraint != found  # digests can differ


def test_a_file_is_looked_for_beside_the_one_that_names_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "rules" / "inner.yaml", "{kind: regex, pattern: a}")
    written(tmp_path / "inner.yaml", "{kind: regex, pattern: b}")
    written(tmp_path / "rules" / "outer.yaml", "{file: inner.yaml}")
    written(tmp_path / "most.yaml", "[{file: rules/outer.yaml}, {file: inner.yaml}]")
    assert load("most.yaml").constraint == Regex("a") & Regex("b")


def test_only_the_constraint_is_taken(tmp_path):
    (tmp_path / "tea.yaml").write_text(
        TEA + "name: tea\nsampler: imh\nbudget: {max_attempts: 3}\nexamples: {accepts: [tea]}\n"
    )
    found = load(written(tmp_path / "rules.yaml", "[{file: tea.yaml}]"))
    assert (found.name, found.sampler, found.budget, found.accepts) == (None, None, None, ())


@pytest.mark.parametrize(
    ("spelt", "says"),
    [
        ("[catalogue:no-url]", "constraint.0: unknown catalogue entry 'no-url' (did you mean 'no-urls'?)"),
        ("{kind: not, of: no-urls}", "constraint.of: 'no-urls' is not a constraint; did you mean catalogue:no-urls?"),
        ("tea.yaml", "{file: tea.yaml}"),
        ("something", "'something' is not a constraint; give a kind, catalogue:NAME, or file: NAME"),
        ("{file: te.yaml}", "there is no file"),
        ("{file: te.yaml}", "(did you mean 'tea.yaml'?)"),
        ("{file: /etc/passwd}", "is an absolute path; give a path relative to this file"),
        ("{file: 'C:\\rules.yaml'}", "is an absolute path"),
        ("{file: tea.yaml, nam: x}", "constraint.nam: unknown field 'nam'; known: file"),
        ("{file: 3}", "constraint.file: must be a string"),
        ("[]", "constraint: List should have at least 1 item"),
        ("[{kind: keyword, words: a}, {kind: not, of: {kind: keyword, words: a}}]", "no text can satisfy both"),
    ],
)
def test_what_cannot_be_found_has_its_line(tmp_path, spelt, says):
    (tmp_path / "tea.yaml").write_text(TEA)
    (tmp_path / "wrong.yaml").write_text("guardwrap: 1\n\nconstraint: {kind: regex, patern: a}\n")
    message = refused(written(tmp_path / "rules.yaml", spelt))
    assert message.startswith(f"{tmp_path}/rules.yaml:2: constraint")
    assert says in message


def test_what_is_wrong_in_a_named_file_has_the_line_there(tmp_path):
    (tmp_path / "wrong.yaml").write_text("guardwrap: 1\n\nconstraint: {kind: regex, patern: a}\n")
    written(tmp_path / "inner.yaml", "{file: wrong.yaml}")
    message = refused(written(tmp_path / "rules.yaml", "{kind: all, of: [{file: inner.yaml}]}"))
    assert message.startswith(f"{tmp_path}/wrong.yaml:3: constraint.patern: unknown field 'patern' (did you mean")


def test_files_that_refer_to_each_other_end(tmp_path, watchdog):
    for name, other in (("a", "b"), ("b", "a"), ("me", "me")):
        written(tmp_path / f"{name}.yaml", f"{{kind: not, of: {{file: {other}.yaml}}}}")
    for name in ("a", "me"):
        assert "refers to itself" in refused(tmp_path / f"{name}.yaml")
    (tmp_path / "link.yaml").symlink_to(tmp_path / "other.yaml")
    written(tmp_path / "other.yaml", "{file: link.yaml}")
    assert "refers to itself" in refused(tmp_path / "other.yaml")
    # Two references to the same file are not a cycle.
    (tmp_path / "tea.yaml").write_text(TEA)
    twice = written(tmp_path / "twice.yaml", "{kind: any, of: [{file: tea.yaml}, {kind: all, of: [{file: tea.yaml}]}]}")
    assert load(twice).constraint.accepts("tea")


def test_chains_of_files_have_a_limit(tmp_path):
    written(tmp_path / "0.yaml", "{kind: regex, pattern: a}")
    for i in range(1, MAX_FILES + 2):
        written(tmp_path / f"{i}.yaml", f"{{file: {i - 1}.yaml}}")
    assert load(tmp_path / f"{MAX_FILES}.yaml").constraint == Regex("a")
    assert f"more than {MAX_FILES} levels deep" in refused(tmp_path / f"{MAX_FILES + 1}.yaml")


def test_files_together_are_nested_no_deeper_than_one(tmp_path):
    def nots(count: int, inner: str) -> str:
        return "{kind: not, of: " * count + inner + "}" * count

    written(tmp_path / "inner.yaml", nots(MAX_DEPTH // 2 - 1, "{kind: regex, pattern: a}"))
    assert load(written(tmp_path / "outer.yaml", nots(MAX_DEPTH // 2, "{file: inner.yaml}"))).constraint.digest
    deep = written(tmp_path / "outer.yaml", nots(MAX_DEPTH // 2 + 1, "{file: inner.yaml}"))
    assert f"nested deeper than {MAX_DEPTH} levels, counting the files that it names" in refused(deep)


@pytest.mark.slow
def test_files_together_have_the_time_of_one(tmp_path, watchdog):
    """2^8 readings of a slow file are stopped by the time limit of the first file."""
    written(tmp_path / "0.yaml", "{kind: keyword, words: [" + ", ".join(f"w{i}" for i in range(2000)) + "]}")
    for i in range(1, MAX_FILES + 1):
        written(tmp_path / f"{i}.yaml", f"{{kind: any, of: [{{file: {i - 1}.yaml}}, {{file: {i - 1}.yaml}}]}}")
    assert re.search(r"takes more than|more than \d+ items together", refused(tmp_path / f"{MAX_FILES}.yaml"))


def test_code_in_a_named_file_is_code(tmp_path):
    written(tmp_path / "code.yaml", "{kind: python, function: 'operator:truth'}")
    outer = written(tmp_path / "rules.yaml", "[{file: code.yaml}]")
    assert "names Python code" in refused(outer)
    assert load(outer, allow_code=True).constraint.accepts("a")
