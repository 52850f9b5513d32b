"""Texts nested so deeply that parsers overflow: the judgement is one of the text, wherever it is made.

Covers ``rules/parses.py``.
"""

import sys
from types import FrameType

import pytest

from guardwrap import Code, Parses
from guardwrap.constraints.checking import run_verdict
from guardwrap.documents.time_limits import TimeLimit
from guardwrap.outcomes import Draw
from guardwrap.rules import parses
from guardwrap.rules.parses import fault_or_too_deep

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
