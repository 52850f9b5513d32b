"""The constraint ``Parses``: parameters, files, views, limits, and monitors that judge by lines.

Covers ``constraints/languages/parses.py``.
"""

from __future__ import annotations

import pytest

from guardwrap import Parses, Part
from guardwrap.constraints import Verdict, parse
from guardwrap.constraints.checking import run_verdict
from guardwrap.constraints.languages import parses
from guardwrap.errors import ConstraintError, SpecError
from guardwrap.serve.request_models import GuardwrapFields
from guardwrap.serve.request_policy import RequestPolicy, constraints_of
from guardwrap.testing import check_constraint

LIMIT = 30_000
CODE = Part(between=("```python\n", "```"))


def test_a_file_names_the_language():
    constraint = parse("guardwrap: 1\nconstraint: {kind: parses, language: toml, name: settings}\n").constraint
    assert constraint == Parses("toml")
    assert constraint != Parses("yaml")
    assert constraint.accepts("a = 1")
    assert not constraint.accepts("a = ")
    with pytest.raises(SpecError, match="language"):
        parse("guardwrap: 1\nconstraint: {kind: parses, language: perl}\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"language": "pythn"}, "did you mean 'python'"),
        ({"language": None}, "is not one of"),
        ({"language": "json", "dialect": "mysql"}, "only language='sql' has dialects"),
    ],
)
def test_invalid_parameters(options, message):
    with pytest.raises(ConstraintError, match=message):
        Parses(**options)


@pytest.mark.parametrize("language", ["sql", "html"])
def test_a_missing_library_is_named_with_its_extra(language, monkeypatch):
    monkeypatch.setattr(parses, "find_spec", lambda name: None)
    with pytest.raises(ConstraintError, match=rf"pip install 'guardwrap\[{language}\]'$"):
        Parses(language)


def test_requests_to_the_server_may_use_it():
    (file,) = constraints_of(
        GuardwrapFields(constraint={"kind": "parses", "language": "xml"}), RequestPolicy(models=("m",))
    )
    assert file.constraint == Parses("xml")


def test_a_part_between_fences_is_judged_alone():
    constraint = Parses("python", on=CODE)
    texts = [
        "Here you are:\n```python\nx = 1\n```\nDone.",
        "```python\nx = = 1\ny = 2\n```",
        "```python\nx = (\n```",
        "no code",
        '```python\nx = """\n  y = = 1\n"""\n```',
        "```python\ndef f():\n    return 1\n```\nand\n```python\nf(]\n\n```",
    ]
    assert [constraint.accepts(text) for text in texts] == [True, False, False, False, True, False]
    check_constraint(constraint, texts)
    assert run_verdict(constraint, "```python\nx = = 1\ny = 2") is Verdict.VIOLATED  # before the fence is closed


@pytest.mark.parametrize("language", ["python", "toml", "yaml", "xml", "csv", "markdown_table"])
def test_long_texts_are_rejected_in_languages_whose_parser_cannot_be_interrupted(language):
    constraint, text = Parses(language), "a" * (LIMIT + 1)
    assert not constraint.accepts(text)
    assert constraint.fault(text) == "has more than 30000 characters"
    assert run_verdict(constraint, text) is constraint.monitor().read(text).verdict is Verdict.VIOLATED


def test_the_limit_is_the_last_length_that_passes():
    longest = "a" * LIMIT
    assert Parses("python").accepts(longest)
    assert not Parses("python").accepts(longest + "a")
    assert Parses("json").accepts(f'"{longest}"')  # JSON is read within the time limit, and has no other


def test_the_monitor_of_lines_judges_only_where_a_line_ends(monkeypatch):
    judged = []

    def note(constraint, text):
        judged.append(text)
        return Verdict.UNDECIDED

    monkeypatch.setattr(parses, "run_verdict", note)
    monitor = Parses("python").monitor()
    for text in ["x", " = ", "1", "\n", "y", "=2\nz"]:
        monitor = monitor.read(text)
    assert judged == ["x = 1\n", "x = 1\ny=2\nz"]


@pytest.mark.parametrize(
    ("language", "piece", "most"), [("sql", "SELECT 1;", 8_000), ("html", "<b></b>", 12_000), ("yaml", "- a\n", 6_000)]
)
def test_words_and_punctuation_are_limited(language, piece, most):
    fits = piece * (most // len(parses._PIECE.findall(piece)))
    assert Parses(language).accepts(fits)
    too_much = fits + piece
    assert not Parses(language).accepts(too_much)
    assert f"more than {most} words" in Parses(language).fault(too_much)
    assert Parses(language).verdict(too_much) is Verdict.VIOLATED


def test_negative_control_a_limit_that_only_verdicts_apply(monkeypatch):
    monkeypatch.setattr(parses, "MAX_CHARACTERS", 3)
    monkeypatch.setattr(parses.Parses, "_fault", lambda self, text: None)
    with pytest.raises(AssertionError, match="unsound"):
        check_constraint(Parses("csv"), ["a,b,c"])
