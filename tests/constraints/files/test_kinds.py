"""Constraint kinds and samplers of plug-ins, which entry points register."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from guardwrap.constraints import Python, Regex
from guardwrap.constraints.files.constraint_data import client_kinds, constraint_fields, kinds

ROOT = Path(__file__).parents[3]

PLUGIN = '''
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from guardwrap.constraints import Constraint, TextConstraint, View
from guardwrap.constraints.checking import run_check
from guardwrap.outcomes import Draw
from guardwrap.samplers import rejection

@dataclass(frozen=True, eq=False, repr=False)
class Shouted(TextConstraint):
    """All in capitals."""
    on: View = field(default="completion", kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["shouted"] = field(default="shouted", kw_only=True)

    def holds(self, text: str) -> bool:
        return text == text.upper()

@dataclass(frozen=True, eq=False, repr=False)
class AtLeast(Constraint):
    """So many of the parts hold."""
    count: int
    of: Sequence[Constraint]
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["at_least"] = field(default="at_least", kw_only=True)

    def __post_init__(self) -> None:
        if self.count > len(self.of):
            raise ValueError(f"count={self.count} is more than there are parts")

    def check(self, draws):
        judged = [run_check(part, draws) for part in self.of]
        return [sum(of_one) >= self.count for of_one in zip(*judged)]

@dataclass(frozen=True, eq=False, repr=False)
class Quoted(Constraint):
    """A constraint holds between the first quotation marks, and another one around them."""
    constraint: Constraint
    around: Constraint | None = field(default=None, kw_only=True)
    others: dict[str, Constraint] = field(default_factory=dict, kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    kind: Literal["quoted"] = field(default="quoted", kw_only=True)

    def check(self, draws):
        parts = [(draw.text + '""').split('"')[:3] for draw in draws]
        inner = run_check(self.constraint, [Draw("", (), inside) for _, inside, _ in parts])
        outer = [True] * len(parts)
        if self.around is not None:
            outer = run_check(self.around, [Draw("", (), before + after) for before, _, after in parts])
        return [one and other for one, other in zip(inner, outer)]

@dataclass(frozen=True, eq=False, repr=False)
class Unreadable(Constraint):
    """A field of a type that nothing can be read as."""
    lock: Nowhere
    kind: Literal["unreadable"] = field(default="unreadable", kw_only=True)

    def check(self, draws):
        return [True] * len(draws)

other = rejection._replace(name="other")

def every(number: int, *, after: float = 0.0, which: Literal["first", "last"] = "first"):
    if number < 1:
        raise ValueError("number must be at least 1")
    return rejection._replace(name=f"every {number} {after} {which}")

def none(option: int = 0):
    return "no sampler"

def unreadable(option: Nowhere = None):
    return rejection
'''
USE = """
from guardwrap.constraints import dump, parse
from guardwrap.errors import GuardwrapError
from guardwrap.samplers import sampler_named, sampler_names

constraint = parse("guardwrap: 1\\nconstraint: {kind: not, of: {kind: shouted}}").constraint
assert constraint.accepts("quiet") and not constraint.accepts("LOUD")
assert parse(dump(constraint)).constraint == constraint
assert sampler_named("other").name == "other" and "rejection" in sampler_names()
for wrong in (lambda: parse("guardwrap: 1\\nconstraint: {kind: shoutd}"), lambda: sampler_named("othr")):
    try:
        wrong()
    except GuardwrapError as error:
        print(error)
"""


def run(folder: Path, code: str, *arguments: str, **entries: str) -> subprocess.CompletedProcess[str]:
    (folder / "shouting.py").write_text(PLUGIN)
    info = folder / "shouting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    groups = "".join(f"[guardwrap.{group}]\n{line}\n" for group, line in entries.items())
    (info / "entry_points.txt").write_text(groups)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    return subprocess.run([sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True)


class Elsewhere(Regex):
    """A kind of another package."""

    kind = "elsewhere"  # type: ignore[assignment]


def test_clients_of_a_server_may_send_guardwraps_own_kinds_without_code(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kinds().keys() - client_kinds() == {"python"}
    assert "elsewhere" not in kinds()
    assert not Elsewhere.open_to_clients()
    monkeypatch.setattr(Elsewhere, "__module__", "guardwrap.constraints.kinds.text")  # negative control
    assert Elsewhere.open_to_clients()
    monkeypatch.delattr(Python, "open_to_clients")  # negative control
    assert "python" in client_kinds()


def test_the_fields_that_take_constraints() -> None:
    fields = {name: inner for name, kind in kinds().items() if (inner := constraint_fields(kind))}
    assert fields == {"all": ["of"], "any": ["of"], "not": ["of"], "share": ["of"], "split": ["each"]}


def test_new_kinds_and_samplers(tmp_path: Path) -> None:
    done = run(tmp_path, USE, constraints="shouted = shouting:Shouted", samplers="other = shouting:other")
    assert done.returncode == 0, done.stderr
    kind, sampler = done.stdout.splitlines()
    assert "did you mean 'shouted'" in kind
    assert "did you mean 'other'" in sampler


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"constraints": "regex = shouting:Shouted"}, "uses the name of another constraint kind, 'regex'"),
        ({"constraints": "new = shouting:other"}, "not a frozen dataclass"),
        ({"samplers": "rejection = shouting:other"}, "must be a Sampler, or a function that returns one, under a name"),
        ({"samplers": "new = shouting:Shouted"}, "must be a Sampler, or a function that returns one, under a name"),
    ],
)
def test_plugins_that_cannot_be_added(tmp_path: Path, entries: dict[str, str], says: str) -> None:
    done = run(tmp_path, "import guardwrap.samplers as s; s.sampler_names()\n" + USE, **entries)
    assert done.returncode != 0
    assert says in done.stderr


KINDS = "at_least = shouting:AtLeast\nquoted = shouting:Quoted\nshouted = shouting:Shouted"

NESTED = """
import json

import jsonschema

from guardwrap import Finished, Keyword, Regex
from guardwrap.constraints import base, constraint, dump, json_schema, parse
from guardwrap.errors import ConstraintError, SpecError
from shouting import AtLeast, Quoted, Shouted

TEXT = '''
guardwrap: 1
constraint:
  kind: not
  of:
    kind: quoted
    name: of the quotation
    constraint:
      kind: at_least
      count: 2
      of:
        - {kind: shouted, name: loud}
        - {kind: any, of: [{kind: keyword, words: tea}, {kind: quoted, constraint: {kind: finished}}]}
        - kind: all
          of:
            - {kind: length, max: 9}
            - {kind: regex, pattern: "^t", on: last_sentence}
    around: {kind: not, of: {kind: shouted}}
    others: {name: {kind: shouted, name: also}}
'''.strip()
found = parse(TEXT, path="r.yaml").constraint
inner = AtLeast(2, [Shouted(), Keyword("tea") | Quoted(Finished()), base_length & Regex("^t", on="last_sentence")])
made = ~Quoted(inner, around=~Shouted(), others={"name": Shouted()})
"""
NESTED = NESTED.replace("base_length", "Length(max=9)").replace("Keyword, Regex", "Keyword, Length, Regex")

MEANS = (
    NESTED
    + """
assert found.digest == made.digest, "names change no digest, wherever they are"
assert found.of.name == "of the quotation"
assert parse(dump(found)).constraint.digest == made.digest
assert dump(parse(dump(found)).constraint) == dump(found)
assert made.digest != (~Quoted(inner, around=~Shouted())).digest
assert made.digest != (~Quoted(inner, around=~Shouted(), others={"other": Shouted()})).digest
assert [found.accepts(text) for text in ('so "tea"', 'so "coffee"', 'SO "tea"', 'so "TEA TO BE SEEN"')] == [
    False, True, True, False,
]
data = parse(TEXT).source.data
jsonschema.validate(data, json_schema())
try:
    jsonschema.validate(json.loads(json.dumps(data).replace('"count": 2', '"count": "two"')), json_schema())
except jsonschema.ValidationError:
    pass
else:
    raise AssertionError("the schema takes anything")

local = constraint(lambda text: True)

held = base.held
assert sum(isinstance(part, Shouted) for part in base.walk(found)) == 3
try:
    dump(Quoted(Shouted(), around=local))
except ConstraintError as error:
    assert "object in memory" in str(error)
else:
    raise AssertionError("what has no name is written")
base.held = lambda part: {"of": part.of} if hasattr(part, "of") else {}  # negative control: as if only `of` held parts
assert "lambda" in dump(Quoted(Shouted(), around=local))
"""
)


@pytest.mark.slow
def test_kinds_that_hold_other_constraints(tmp_path: Path) -> None:
    done = run(tmp_path, MEANS, constraints=KINDS)
    assert done.returncode == 0, done.stderr


WRONG = {
    "count: 2": ("count: two", "r.yaml:9: constraint.of.constraint.count: must be a whole number, not"),
    "kind: at_least": ("kind: at_last", ":8: constraint.of.constraint.kind: unknown kind 'at_last' (did you mean 'at_"),
    "kind: shouted, name: loud": ("kind: shuoted", ":11: constraint.of.constraint.of.0.kind: unknown kind 'shuoted' ("),
    "words: tea": ("wrods: tea", ".constraint.of.1.of.0.wrods: unknown field 'wrods' (did you mean 'words'?)"),
    "max: 9": ("max: 9, min: 10", ":15: constraint.of.constraint.of.2.of.0: "),
    "around:": (
        "arround:",
        ":17: constraint.of.arround: unknown field 'arround' (did you mean 'around'?); known: cons",
    ),
    "{kind: shouted, name: also}": ("5", ":18: constraint.of.others.name: "),
    "kind: finished": ("kind: python, function: 'os:getcwd'", "of.1.constraint.function: names Python code ('os:get"),
    "on: last_sentence": ("on: last_sentences", "is not one of completion, full, first_sentence, last_sentence, sent"),
    "  count: 2": ("  count: 4", ":7: constraint.of.constraint: count=4 is more than there are parts"),
    "constraint: {kind: finished}": (
        "of: {kind: finished}",
        "unknown field 'of' (did you mean 'constraint', which is missing?); known: constraint,",
    ),
    "{kind: not, of: {kind: shouted}}": ("[]", ":17: constraint.of.around: "),
}

REFUSED = """
import json, sys
for text, expected in json.loads(sys.argv[1]):
    try:
        parse(text, path="r.yaml")
    except SpecError as error:
        assert expected in str(error) and "\\n" not in str(error), (str(error), expected)
    else:
        raise AssertionError(text)
deep = "{kind: finished}"
for _ in range(61):
    deep = "{kind: quoted, constraint: " + deep + "}"
try:
    parse("guardwrap: 1\\nconstraint: " + deep)
except SpecError as error:
    assert "nested deeper than 60 levels" in str(error)
else:
    raise AssertionError("any depth")
shallow = "{kind: finished}"
for _ in range(57):
    shallow = "{kind: quoted, constraint: " + shallow + "}"
assert len(list(base.walk(parse("guardwrap: 1\\nconstraint: " + shallow).constraint))) == 58
many = ", ".join(["{kind: shouted}"] * 10_001)
try:
    parse("guardwrap: 1\\nconstraint: {kind: at_least, count: 1, of: [" + many + "]}")
except SpecError as error:
    assert "more than 20000 values" in str(error) or "takes more than" in str(error)  # on a slow machine
else:
    raise AssertionError("any size")
""".replace("\\\\n", "\\n")


@pytest.mark.slow
def test_what_is_wrong_inside_a_plugins_kind_has_its_line(tmp_path: Path) -> None:
    text = NESTED.split("'''")[1].strip()
    assert all(old in text for old in WRONG)
    cases = [(text.replace(old, new, 1), expected) for old, (new, expected) in WRONG.items()]
    done = run(tmp_path, NESTED + REFUSED, json.dumps(cases), constraints=KINDS)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_field_that_yaml_cannot_give(tmp_path: Path) -> None:
    done = run(tmp_path, USE, constraints="bad = shouting:Unreadable\n" + KINDS)
    assert done.returncode != 0
    last = done.stderr.splitlines()[-1]
    assert "ConstraintError: the kind 'bad' of 'shouting' has a field that cannot be read from YAML: " in last
    assert "Nowhere" in last


SAMPLERS = """
from guardwrap.errors import GuardwrapError
from guardwrap.samplers import sampler_named

assert sampler_named({"every": {"number": 3, "which": "last"}}).name == "every 3 0.0 last"
assert sampler_named({"other": None}).name == "other"
for given in (
    "every", {"every": {"numbr": 1}}, {"every": {"number": "3"}}, {"every": {"number": 0}},
    {"every": {"number": 1, "which": "lats"}}, {"other": {"number": 1}}, {"evry": {}}, {"none": {"option": 1}},
    {"unreadable": {}},
):
    try:
        sampler_named(given)
    except GuardwrapError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.slow
def test_samplers_of_a_plugin_with_options(tmp_path: Path) -> None:
    entries = ("every = shouting:every", "other = shouting:other", "none = shouting:none",
               "unreadable = shouting:unreadable")  # fmt: skip
    done = run(tmp_path, SAMPLERS, samplers="\n".join(entries))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "UsageError sampler.every: needs a field 'number'",
        "UsageError sampler.every.numbr: unknown field 'numbr' (did you mean 'number'?); known: number, after, which",
        "UsageError sampler.every.number: must be a whole number, not '3'",
        "UsageError sampler.every: number must be at least 1",
        "UsageError sampler.every.which: 'lats' is not one of first, last (did you mean 'last'?)",
        "UsageError sampler.other: this sampler does not accept options; give 'other' alone",
        "UnknownName unknown sampler 'evry' (did you mean 'every'?); known: auto, every, imh, none, other, qrs, "
        "rejection, unreadable",
        "UsageError the plug-in sampler 'none' returns str; its function must return a Sampler",
        "UsageError the sampler 'unreadable' has an option that YAML cannot give: name 'Nowhere' is not defined",
    ]
