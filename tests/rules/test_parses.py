"""Which texts parse, which prefixes of Python cannot be mended, and texts nested so deeply that parsers overflow."""

from __future__ import annotations

import ast
import inspect
import sys
import threading
import warnings
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import Code, Parses, Part
from guardwrap.constraints import Verdict, parse, views
from guardwrap.constraints.checking import run_verdict
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.errors import ConstraintError, SpecError
from guardwrap.outcomes import Draw
from guardwrap.rules import parses
from guardwrap.rules.parses import fault_or_too_deep
from guardwrap.serve.request_models import GuardwrapFields
from guardwrap.serve.request_policy import RequestPolicy, constraints_of
from guardwrap.support.time_limits import TimeLimit
from guardwrap.testing import check_constraint
from tests.constraints.fixtures_strategies import assert_sound, profile

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


PYTHON = Parses("python")

VALID = [
    "",
    "x = 1",
    "def f(a,\n      b):\n    '''doc\n  string'''\n\n    return a\n\n# end\nx = f(\n  1, 2)\n",
    "if x:\n\ty = 1\nelse:\n\ty = 2\n",
    "x = 1 + \\\n    2\n",
    "@decorated\n\n# comment\nclass A:\n    pass\n",
    "try:\n    pass\n\nexcept* E:\n    pass\n",
    "x = [\n1,\n\n2 # ]\n]\n",
    "s = '\\d'\r\nt = 'a\\\nb'\r\n",
    'x = """\nx = = 1\n"""\n',
    "match x:\n    case 1:\n        pass\n",
    "f'{x!r:>{width}}'\n",
    "return\n",
]
INVALID = [
    "x = = 1\n",
    "def f(:\n    pass\n",
    "if x:\npass\n",
    "  x = 1\n",
    "if x:\n    a\n  b\n",
    "x = (]\n",
    "print 'a'\ny = 1\n",
    "try:\n    pass\nx = 1\n",
    "'unterminated\n",
    "x = 1 2\nz",
    "else:\n",
    "if x:\n\ta\n        b\n",
    "a\0",
    "\ud800",
    "f'{a b}'\nx\n",
]
PIECES = [
    *("x", "1", "a b", "= ", "(", ")", "[", "]", "{", "}", ",", ":", "@", "*", "#", "'", '"', "'''", '"""', "f'{"),
    *(
        "\n",
        "\n",
        "\n    ",
        "\n\t",
        "\n  ",
        "\\\n",
        "\r\n",
        "\r",
        "\f",
        ";",
        "\\",
        "\\d",
        "é",
        "\0",
        "\ud800",
        "\ufeff",
    ),
    *("if x:", "else:", "def f():", "class A:", "try:", "except:", "pass", "return ", "lambda: ", "async ", "match x:"),
    *("case 1:", "print 'a'", "not ", "import a", "from a import (", "x = 1\n", "    pass\n", "0x", "1_", "..."),
]


@pytest.mark.parametrize("text", VALID)
def test_modules_are_accepted(text):
    assert PYTHON.accepts(text)
    assert run_verdict(PYTHON, text) is Verdict.UNDECIDED


@pytest.mark.parametrize("text", [*INVALID, "x = " + "1" * 5_000])
def test_other_texts_are_rejected(text):
    assert not PYTHON.accepts(text)
    assert PYTHON.fault(text)


def test_verdicts_are_sound():
    check_constraint(PYTHON, VALID + INVALID)


@profile(300)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_verdicts_are_sound_on_fragments(text):
    assert_sound(PYTHON, text)


def test_prefixes_of_real_modules_are_never_violated():
    for module in (parses, views, threading):
        lines = inspect.getsource(module).splitlines(keepends=True)[:250]
        for end in range(0, len(lines), 7):
            assert parses.python_verdict("".join(lines[:end])) is Verdict.UNDECIDED


@pytest.mark.parametrize("text", ["x = = 1\n", "def f(:\n", "  x = 1\n", "x = (]\n", "else:\n", "x = 1 2\n"])
def test_a_line_that_cannot_be_mended_is_violated(text):
    assert run_verdict(PYTHON, text) is Verdict.VIOLATED
    assert run_verdict(PYTHON, text[:-1]) is Verdict.UNDECIDED  # the last token may change


def test_negative_control_the_last_line_is_complete(monkeypatch):
    """Judging the last line as if it were complete would call ``x i`` violated, which ``x if y else z`` continues."""
    judge = parses.python_verdict
    monkeypatch.setattr(Parses, "prefix_verdict", lambda self, text: judge(text + "\n"))
    monkeypatch.setattr(Parses, "monitor", TextConstraint.monitor)
    with pytest.raises(AssertionError, match="unsound"):
        check_constraint(PYTHON, ["x if y else z"])


def test_negative_control_an_error_at_the_end_is_final(monkeypatch):
    """Without the flag for incomplete input, a block that has not begun would be violated."""
    monkeypatch.setattr(parses, "PyCF_ALLOW_INCOMPLETE_INPUT", 0)
    with pytest.raises(AssertionError, match="unsound"):
        check_constraint(PYTHON, ["if x:\n    pass\n"])


@pytest.mark.parametrize(
    "text",
    [
        "(" * 15_000,
        "[" * 150 + "]" * 150,
        "-" * 29_000 + "1",
        "not " * 7_000 + "x",
        "x" + "()" * 14_000,
        "x" + ".x" * 14_000,
        "lambda:" * 4_000 + "x",
        "f'" + "{x}" * 9_000 + "'",
        "".join(" " * level + "if x:\n" for level in range(150)),
        "{" * 50 + ":" * 50,
        "f(a=" * 90,
        "\\\n" * 14_000,
        "\f" * 29_000,
        "'" * 29_999,
        "x = " + "9" * 29_000,
    ],
)
def test_hostile_texts_are_judged(text):
    """The length bounds the time, and a test that hangs fails. Threads may have smaller stacks than the main one."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append((PYTHON.accepts(text), run_verdict(PYTHON, text + "\n"))))
    thread.start()
    thread.join()
    assert len(answers) == 1
    assert answers[0][0] or PYTHON.fault(text)


def test_warnings_of_the_parser_are_not_shown(capfd):
    """They would quote the text, and an ``error`` filter would turn them into syntax errors."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert PYTHON.accepts(r"x = '\d'")
        warnings.simplefilter("error")
        assert PYTHON.accepts(r"x = '\d'")
    assert not shown
    assert capfd.readouterr().err == ""


def test_negative_control_the_warning_exists():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SyntaxError):
            ast.parse(r"x = '\d'")


def test_nothing_is_executed(tmp_path):
    marker = tmp_path / "ran"
    source = f"open({str(marker)!r}, 'w').close()"
    assert PYTHON.accepts(source)
    assert not marker.exists()
    exec(source)  # negative control
    assert marker.exists()


LEVELS = (16, 64, 1_000, 10_000)


def aliases(levels):
    return "a0: &a0 [1, 1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, levels))


def entities(levels):
    inner = "".join(f"<!ENTITY a{n} '&a{n - 1};&a{n - 1};'>" for n in range(1, levels))
    return f"<!DOCTYPE a [<!ENTITY a0 'x'>{inner}]><a>&a{levels - 1};</a>"


def around(opening, middle="", closing="", begin="", end=""):
    return lambda levels: begin + opening * levels + middle + closing * levels + end


NESTED = {
    "python": {
        "brackets": around("(", "1", ")", end="\n"),
        "open brackets": around("("),
        "lists": around("[", "1", "]", end="\n"),
        "wrong lists": around("[", "1 1", "]", end="\n"),
        "dictionaries": around("{1:", "1", "}", end="\n"),
        "calls": around("f(", "1", ")", end="\n"),
        "signs": around("-", "1", end="\n"),
        "not": around("not ", "1", end="\n"),
        "lambdas": around("lambda:", "1", end="\n"),
        "attributes": around(".a", begin="a", end="\n"),
        "operators": around("+1", begin="1", end="\n"),
        "powers": around("**1", begin="1", end="\n"),
        "conditions": around("1 if 1 else ", "1", end="\n"),
        "indices": around("[0]", begin="a", end="\n"),
        "targets": around("[", "a", "]", end="=1\n"),
        "patterns": around("[", "a", "]", begin="match x:\n case ", end=":pass\n"),
        "f-strings": around("f'{", "1", "}'", end="\n"),
        "elif": around("elif 1:pass\n", begin="if 1:pass\n"),
        "blocks": lambda levels: "".join(" " * n + "if 1:\n" for n in range(levels)) + " " * levels + "pass\n",
    },
    "json": {"arrays": around("[", "1", "]"), "objects": around('{"a":', "1", "}"), "open": around("[")},
    "jsonl": {"arrays": around("[", "1", "]"), "objects": around('{"a":', "1", "}")},
    "toml": {
        "arrays": around("[", "1", "]", begin="a="),
        "tables": around("{a=", "1", "}", begin="a="),
        "keys": around(".a", begin="a", end="=1"),
        "headers": around(".a", begin="[a", end="]"),
    },
    "yaml": {
        "lists": around("[", "1", "]"),
        "mappings": around("{a: ", "1", "}"),
        "items": around("- ", "1"),
        "keys": around("? ", "1"),
        "anchors": around("&a ", "1"),
        "tags": around("!!str ", "1"),
        "aliases": aliases,
        "indents": lambda levels: "".join(" " * n + "a:\n" for n in range(levels)) + " " * levels + "b",
    },
    "xml": {
        "elements": around("<a>", "", "</a>"),
        "namespaces": around("<a xmlns:b='u'>", "", "</a>"),
        "entities": entities,
        "open": around("<a>"),
    },
    "html": {
        "div": around("<div>", "", "</div>"),
        "formatting": around("<b><i>", "x"),
        "links": around("<a>", "x", "</a>"),
        "tables": around("<table><tr><td>", "x", "</td></tr></table>"),
        "templates": around("<template>", "x", "</template>"),
        "svg": around("<svg>", "", "</svg>"),
        "misnested": around("<b><p>", "x", "</b></p>"),
    },
    "csv": {"quotes": around('"', "", '"'), "commas": around(",")},
    "markdown_table": {"bars": around("|", "|", "", begin="|", end="\n|-|\n")},
}


@pytest.mark.parametrize(("language", "nested"), [(language, name) for language in NESTED for name in NESTED[language]])
def test_every_nesting_is_judged_within_the_limits(language, nested, monkeypatch):
    """CheckFailed would say that the time limit of two CPU seconds, or Python's of recursion, was reached."""
    rule = Parses(language)
    for levels in LEVELS:
        text = NESTED[language][nested](levels)[:29_000]
        assert rule.check([Draw("", (), text)]) in ([True], [False])
        rule.accepts(text)
        run_verdict(rule, text)


def deep_in_the_stack(call, frames=None):
    """Call a function where little of the stack is left."""
    if frames is None:
        depth = 0
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            depth, frame = depth + 1, frame.f_back
        frames = sys.getrecursionlimit() - depth - 150
    return call() if frames <= 0 else deep_in_the_stack(call, frames - 1)


TEXTS = [
    (Parses("python"), "-" * 90 + "1\n"),
    (Parses("toml"), "a=" + "[" * 200 + "]" * 200),
    (Parses("yaml"), "[" * 55 + "]" * 55),
    (Code("python", defines="def f(x=1)"), "def f(x=" + "-" * 90 + "1): pass\n"),
]


@pytest.mark.parametrize(("rule", "text"), TEXTS)
def test_the_judgement_does_not_depend_on_the_stack(rule, text, monkeypatch):
    """Negative control: without a stack of its own, the parser overflows or rejects where the caller stands deep."""
    shallow = rule.holds(text), rule.fault(text)
    assert deep_in_the_stack(lambda: (rule.holds(text), rule.fault(text))) == shallow
    in_threads: list[str] = []
    monkeypatch.setattr(
        parses, "in_thread", lambda call, seconds, name: (in_threads.__iadd__([name]), ([call()], None))[1]
    )
    if rule.language == "toml":
        assert shallow[0]
        assert not deep_in_the_stack(lambda: rule.holds(text))
        assert in_threads


def test_sql_is_judged_alike_deep_in_the_stack():
    pytest.importorskip("sqlglot")
    rule = Parses("sql")
    texts = ["SELECT " + "(" * 30 + "1" + ")" * 30, "SELECT " + "NOT " * 5_000 + "1"]
    for text in texts:
        assert deep_in_the_stack(lambda text=text: rule.fault(text)) == rule.fault(text)
    assert [rule.fault(text) for text in texts] == ["", "is nested too deeply"]


def test_what_takes_too_long_in_its_thread_is_late(monkeypatch):
    monkeypatch.setattr(parses, "in_thread", lambda call, seconds, name: ([], None))

    def overflows():
        raise RecursionError

    with pytest.raises(TimeLimit):
        fault_or_too_deep(overflows)
