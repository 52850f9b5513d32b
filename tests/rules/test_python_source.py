"""Python source: what the grammar accepts, and which prefixes cannot be mended.

Covers ``rules/parses.py``.
"""

from __future__ import annotations

import ast
import inspect
import threading
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import Parses
from guardwrap.constraints import Verdict, views
from guardwrap.constraints.checking import run_verdict
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.rules import parses
from guardwrap.testing import check_constraint
from tests.constraints.fixtures_strategies import assert_sound, profile

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
