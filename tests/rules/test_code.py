"""Rules on what Python code imports, calls and defines."""

from __future__ import annotations

import time
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guardwrap import Code, Part, Verdict
from guardwrap.constraints import parse
from guardwrap.errors import ConstraintError, GuardwrapError
from guardwrap.testing import check_constraint

SOLVE = "def solve(xs: list[int], *, top=3) -> int"


@pytest.mark.parametrize(
    ("rule", "accepted", "rejected"),
    [
        ({}, ["x = 1", ""], ["x ="]),
        (
            {"imports": ["math", "os.path"]},
            ["import math", "from os.path import join", "import os.path as p", "from math import *", "importx = 1"],
            [
                "import os",
                "from os import path, system",
                "def f():\n import re",
                "from . import math",
                "__import__('os')",
            ],
        ),
        ({"imports": []}, ["x = 1"], ["import math"]),
        ({"imports": ["importlib"]}, ["import importlib"], ["import os"]),
        (
            {"forbid_imports": ["os"]},
            ["import math", "import osx", "from . import os", "os = 1"],
            ["import os.path", "import math, os as x", "from os import path", "import importlib", "f = __import__"],
        ),
        ({"forbid_imports": ["os.path"]}, ["import os"], ["from os import path", "import os.path"]),
        (
            {"forbid_calls": ["os.system", "eval"]},
            ["import os\nos.getcwd()", "x.eval", "system()", "from os import getcwd", "'eval'"],
            [
                "eval('1')",
                "f = eval",
                "import os\nos.system('ls')",
                "import os as o\no.system('ls')",
                "from os import system as s\ns('ls')",
                "from os import *",
                "import builtins\nbuiltins.eval('1')",
                "class A:\n  def f(self): return [eval(x) for x in y]",
            ],
        ),
        (
            {"defines": SOLVE},
            [
                "def solve(xs: list[int], *, top=3) -> int:\n  return 1",
                "import math\n@cache\ndef solve(xs: list[int], *, top: int = 3) -> int: ...",
            ],
            [
                "def solve(ys: list[int], *, top=3) -> int: ...",
                "def solve(xs, *, top=3) -> int: ...",
                "def solve(xs: list[int], top=3) -> int: ...",
                "def solve(xs: list[int], *, top=4) -> int: ...",
                "def solve(xs: list[int], *, top=3): ...",
                "async def solve(xs: list[int], *, top=3) -> int: ...",
                "if x:\n  def solve(xs: list[int], *, top=3) -> int: ...",
                "x = 1",
            ],
        ),
        (
            {"defines": ["class Stack", "def f(a, /, *b, **c)"]},
            ["class Stack: ...\ndef f(a, /, *b, **c): ..."],
            ["class Stack: ..."],
        ),
    ],
)
def test_what_is_accepted(rule: dict[str, Any], accepted: list[str], rejected: list[str]) -> None:
    constraint = Code("python", **rule)
    assert [text for text in accepted if not constraint.accepts(text)] == []
    assert [text for text in rejected if constraint.accepts(text)] == []
    check_constraint(constraint, [*accepted, *rejected, *(f"{text}\n" for text in (*accepted, *rejected))])


LINES = st.lists(
    st.sampled_from(
        [
            "import os",
            "import math as eval",
            "eval(1)",
            "x = (",
            ")",
            "'''",
            "if x:",
            "    import re",
            "else:",
            "    y = 1",
            "def f(a):",
            "def f(b):",
            "# c",
            "",
            "  \\",
            "@d",
            "    '''",
            "x = eval",
            "import \\",
            "class f: pass",
        ]
    ),
    max_size=7,
).map("\n".join)
RULES = (Code(forbid_imports=["os"], forbid_calls=["eval"]), Code(imports=["math"], defines="def f(a)"))


@pytest.mark.slow
@given(text=LINES)
@settings(max_examples=150, deadline=None)
def test_laws(text: str) -> None:
    for rule in RULES:
        check_constraint(rule, [text, text + "\n"])


def test_attempts_end_at_the_line_that_breaks_a_rule() -> None:
    rule = Code(imports=["math"], defines="def f(a)")
    texts = (
        "import o",
        "import os",
        "import os\n",
        "def f(b):\n",
        "def f(b):\n    pass\nx",
        "def f(a):\n    import os\n",
        "'''\nimport os\n",
    )
    assert [rule.verdict(text).name for text in texts] == [
        "UNDECIDED", "UNDECIDED", "VIOLATED", "UNDECIDED", "VIOLATED", "VIOLATED", "UNDECIDED",
    ]  # fmt: skip
    assert rule.monitor().read("import os\n").verdict is Verdict.VIOLATED


def test_negative_control_a_line_that_has_not_ended() -> None:
    def judge_the_last_line(self: Code, prefix: str) -> Verdict:
        return Verdict.UNDECIDED if self.holds(prefix) else Verdict.VIOLATED

    rule = Code(forbid_imports=["os"])
    check_constraint(rule, ["import os_tools"])
    with patch.object(Code, "prefix_verdict", judge_the_last_line), pytest.raises(AssertionError):
        check_constraint(rule, ["import os_tools"])


def test_parameters_views_and_files() -> None:
    fenced = Part(between=("```python\n", "```"))
    assert Code(imports=[], on=fenced).accepts("See:\n```python\nx = 1\n```")
    assert not Code(imports=[], on=fenced).accepts("See:\n```python\nimport os\n```")
    file = parse("guardwrap: 1\nconstraint: {kind: code, imports: [math], defines: 'def f(a)'}\n")
    assert file.constraint == Code("python", imports=["math"], defines=["def f(a):"[:-1]])
    assert Code(imports=[]).fault("x = 1\nimport os") == "line 2: imports a module that is not allowed"
    assert Code(defines="def f(a)").fault("x = 1") == "does not define f"


@pytest.mark.parametrize(
    "options",
    [
        {"language": "ruby"},
        {"imports": "math"},
        {"imports": ["a b"]},
        {"imports": [], "forbid_imports": ["os"]},
        {"forbid_calls": [1]},
        {"defines": "solve(xs)"},
        {"defines": "def f(): pass\ndef g()"},
        {"defines": 5},
        {"defines": ["def f(a)", "def f(b)"]},
    ],
)
def test_errors(options: dict[str, Any]) -> None:
    with pytest.raises(ConstraintError) as caught:
        Code(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 29_000,
        "a" + ".b" * 14_000,
        "-" * 29_000 + "1",
        "import os\n" * 2_900,
        "a=" * 14_000,
        "\x00",
        "x\n" * 14_000,
        "def f(a:" + "[" * 90 + "]" * 90 + "): ...",
    ],
)
def test_hostile_texts(text: str) -> None:
    start = time.process_time()
    rule = Code(forbid_calls=["os.system"], imports=["os"], defines="def f(a: int)")
    try:
        assert not rule.accepts(text)
        rule.verdict(text)
    except GuardwrapError:
        pass
    assert time.process_time() - start < 3
