"""Constraint files: reading, writing, digests, and errors for hostile files."""

from __future__ import annotations

import re
import sys
import time
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from guardwrap.budget import Budget
from guardwrap.constraints import (
    All,
    AnyOf,
    Classifier,
    Constraint,
    ConstraintFile,
    Finished,
    JSONSchema,
    Keyword,
    Length,
    Not,
    Python,
    Regex,
    dump,
    json_schema,
    load,
    parse,
)
from guardwrap.constraints.files.constraint_file import as_constraint_file
from guardwrap.errors import ConstraintError, SpecError
from tests.constraints.fixtures_strategies import nameable_trees, profile, short, short_prefix

HEAD = "guardwrap: 1\nconstraint:\n"

# ----------------------------------------------------------------------------------------------------- there and back


@pytest.mark.slow
@profile(250)
@given(nameable_trees)
def test_round_trip(constraint):
    again = parse(dump(constraint)).constraint
    assert again == constraint
    assert repr(again) == repr(constraint)
    assert dump(again) == dump(constraint)


anything = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
yaml_like = st.sampled_from(
    [
        *(
            "on",
            "yes",
            "no",
            "null",
            "~",
            "1",
            "1e3",
            "0x1F",
            "1:30",
            "2024-01-01",
            "true",
            ".inf",
            "<<",
            "=",
            "#",
            "!",
        ),
        *("&a", "*a", "%", "@", "|", ">-", "'", "a:"),
        *(
            "- a",
            "a: b",
            "# a",
            '"',
            " a",
            "a ",
            "a\n",
            "\n\na",
            "\ta",
            "a\x85b",
            "\u2028",
            "\ufeff",
            "\x00",
            "\x7f",
            "\r",
        ),
    ]
)


@pytest.mark.slow
@profile(400)
@given(anything | yaml_like, st.none() | anything | yaml_like, st.none() | anything)
def test_any_string_survives(word, name, description):
    made = Keyword([word, "a"], name=name, ignore_invisible=False) if word.strip() else Regex("a", name=word)
    tree = All(
        [made, Not(Finished(), name=name), JSONSchema({"const": {word: [word, None, 1.5, True, {}]}})], name=name
    )
    file = ConstraintFile(tree, name, description, None, Budget(max_seconds=1.5), (word, ""), (word,))
    again = parse(dump(file))
    assert again.constraint.digest == tree.digest
    assert again.constraint.spec() == tree.spec()
    for field in ("name", "description", "sampler", "budget", "accepts", "rejects"):
        assert getattr(again, field) == getattr(file, field)


@profile(200)
@given(st.lists(anything | yaml_like, min_size=1, max_size=3))
def test_any_pattern_survives(parts):
    try:
        made = Regex("".join(parts))
    except ConstraintError:
        return
    assert parse(dump(made)).constraint.spec() == made.spec()


def test_load_reads_what_dump_wrote(tmp_path):
    path = tmp_path / "ü.yaml"
    tree = Keyword("früh ☀") | Length(max=3, unit="words")
    path.write_text(dump(tree), encoding="utf-8")
    assert load(path).constraint == load(str(path)).constraint == tree
    path.write_bytes(b"\xef\xbb\xbf" + dump(tree).encode())
    assert load(path).constraint == tree


def test_what_has_no_name_is_not_dumped():
    for tree in (Python(lambda text: True), ~Python(lambda text: True) & Finished()):
        with pytest.raises(ConstraintError, match="object in memory"):
            dump(tree)
    with pytest.raises(ConstraintError, match="surrogate"):
        dump(Keyword("\ud800"))


def test_composites_keep_their_names():
    tree = All([Not(Finished(), name="n"), AnyOf([Finished(), Length(max=1)], name="o")], name="a")
    again: Any = parse(dump(tree)).constraint
    assert (again.name, again.of[0].name, again.of[1].name) == ("a", "n", "o")


@pytest.mark.slow
@profile(60)
@given(nameable_trees)
def test_files_obey_the_published_schema(constraint):
    jsonschema.validate(yaml.safe_load(dump(constraint)), json_schema())


# ------------------------------------------------------------------------------------------------------------- digests

# Stored reports refer to these digests. Do not change them; raise the version of the format instead.
PINNED = {
    "df24f343770ca0e969d9d9f5cb551219a110e9c235ce646a3a1582ec7c0ca538": lambda: Regex(r"\d{3}-\d{4}"),
    "caec0dc16fdfe522e48ecbccbf86a60fa68afc179acc28a9c73e26749f5590cc": lambda: (
        ~Keyword(["mug", "cup"], match="all", on="last_sentence")
    ),
    "f101560d34b431658b0d21187c26993595e633c8052abbb974366cbd42b73654": lambda: (
        Length(min=1, max=20, unit="words") & Finished()
    ),
    "d256e6d03e8b0a9089d38f5233445bc72185e8aaa8e44b26d73ee199c5bce39e": lambda: JSONSchema(
        {"type": "object", "required": ["ü"]}, where="fenced"
    ),
    "ba619ca44d418257b5464296692625b4f59cec83f85a83636902c771c6fea2d2": lambda: (
        Classifier("some/model", "positive", 0.98, on="last_sentence") | Python("module:function")
    ),
    "a553b7a710d5db3a3778e6e464a05e95d5b1858f83bb4c59d0ce53f955f79288": lambda: Regex(
        "a", match="fullmatch", flags=["multiline", "ignorecase"], timeout=2
    ),
}


@pytest.mark.parametrize("digest", PINNED)
def test_pinned_digests(digest):
    assert PINNED[digest]().digest == digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: Keyword("a"), lambda: Keyword(["a"])),
        (lambda: Keyword(["a", "b"]), lambda: Keyword(("a", "b"))),
        (lambda: Keyword("a", name="x"), lambda: Keyword("a", name="y")),
        (lambda: Keyword("a", min_count=1, match="any"), lambda: Keyword("a")),
        (
            lambda: Regex("a", flags="multiline"),  # type: ignore[arg-type]  # not asked for, and understood
            lambda: Regex("a", flags=["multiline"]),
        ),
        (
            lambda: Regex("a", flags=["dotall", "multiline", "dotall"]),
            lambda: Regex("a", flags=("multiline", "dotall")),
        ),
        (lambda: Regex("a", timeout=1), lambda: Regex("a")),
        (lambda: Regex("a", timeout=2), lambda: Regex("a", timeout=2.0)),
        (lambda: JSONSchema({"a": 1, "b": [2]}), lambda: JSONSchema({"b": (2,), "a": 1})),
        (lambda: Finished() & Length(max=1) & Length(min=1), lambda: All([Finished(), Length(max=1), Length(min=1)])),
        (lambda: Finished() & (Length(max=1) & Length(min=1)), lambda: All((Finished(), Length(max=1), Length(min=1)))),
        (lambda: Finished() | Length(max=1) | Length(min=1), lambda: AnyOf([Finished(), Length(max=1), Length(min=1)])),
        (lambda: ~Finished(), lambda: Not(Finished(name="done"), name="not done")),
        (lambda: All([Finished()], name="x"), lambda: All([Finished()])),
        (
            lambda: Python(short, prefix=short_prefix),
            lambda: Python(
                "tests.constraints.fixtures_strategies:short",
                prefix="tests.constraints.fixtures_strategies:short_prefix",
            ),
        ),
    ],
)
def test_one_meaning_one_digest(one, other):
    assert one() == other()
    assert hash(one()) == hash(other())


DIFFERENT = [
    *(
        Keyword("a"),
        Keyword("A"),
        Keyword("b"),
        Keyword(["a", "b"]),
        Keyword("a", match="all"),
        Keyword("a", match="none"),
    ),
    *(
        Keyword("a", min_count=2),
        Keyword("a", max_count=2),
        Keyword("a", case_sensitive=True),
        Keyword("a", whole_words=False),
        Keyword("a", spacing="exact"),
        Keyword("a", normalize="NFC"),
        Keyword("a", ignore_invisible=False),
        Keyword("a", stem="english"),
    ),
    *(Keyword("a", on="full"), Keyword("a", on="lines"), Keyword("a", min_count=0), Keyword("é"), Keyword("e\u0301")),
    *(
        Regex("a"),
        Regex("a", match="fullmatch"),
        Regex("a", flags=["dotall"]),
        Regex("a", checksum="luhn"),
        Regex("a", on="full"),
    ),
    *(
        Regex("a", timeout=2),
        Regex("1"),
        Regex("a "),
        Length(min=1),
        Length(max=1),
        Length(max=1, unit="words"),
        Length(max=11),
    ),
    *(
        Finished(),
        ~Finished(),
        ~~Finished(),
        All([Finished()]),
        AnyOf([Finished()]),
        Finished() & Regex("a"),
        Finished() | Regex("a"),
    ),
    *(
        JSONSchema({}),
        JSONSchema(True),
        JSONSchema(False),
        JSONSchema({"const": 1}),
        JSONSchema({"const": "1"}),
        JSONSchema({"const": True}),
    ),
    *(JSONSchema({"name": "a"}), JSONSchema({"name": "b"}), JSONSchema({"properties": {"name": {}, "kind": {}}})),
    *(
        JSONSchema({"properties": {"kind": {}}}),
        JSONSchema({"const": {"kind": "a", "name": "b"}}),
        JSONSchema({"const": {"kind": "a"}}),
    ),
    *(
        JSONSchema({}, where="fenced"),
        JSONSchema({"const": None}),
        JSONSchema({"const": [{"kind": 1, "of": {"kind": 1, "name": 2}}]}),
    ),
    *(Classifier("m", "a", 0.5), Classifier("m", "b", 0.5), Classifier("n", "a", 0.5), Classifier("m", "a", 0.6)),
    *(
        Classifier("m", "a", 0.5, side="below"),
        Classifier("m", "a", 0.5, too_long="truncate"),
        Classifier("m", "a", 0.5, on="lines"),
    ),
    *(
        Python("m:f"),
        Python("m:g"),
        Python("m:f", batched=True),
        Python("m:f", prefix="m:g"),
        Python("m:f", on="lines"),
    ),
    *(
        (Finished() & Regex("a")) | Regex("b"),
        Finished() & (Regex("a") | Regex("b")),
        ~(Finished() & Regex("a")),
        ~Finished() & Regex("a"),
    ),
]


def test_different_meanings_different_digests():
    seen: dict[str, Constraint] = {}
    for made in DIFFERENT:
        assert made.digest not in seen, f"{made!r} and {seen[made.digest]!r}"
        seen[made.digest] = made


SPELLINGS = [
    ("kind: regex, pattern: '\\d'", lambda: Regex(r"\d")),
    (
        "kind: regex, pattern: a, flags: [multiline, dotall], on: lines, timeout: 2, name: x",
        lambda: Regex("a", flags=["dotall", "multiline"], on="lines", timeout=2),
    ),
    ("kind: keyword, words: mug", lambda: Keyword("mug")),
    (
        "kind: keyword, words: [yes, no, on, off], match: none, whole_words: false",
        lambda: Keyword(["yes", "no", "on", "off"], match="none", whole_words=False),
    ),
    ("kind: keyword, words: ['1', 'true', 'null'], max_count: 2, min_count: null_", None),
    ("kind: length, max: 3, unit: words, min: null", lambda: Length(max=3, unit="words")),
    (
        "kind: json_schema, schema: {type: object, required: [on, y]}",
        lambda: JSONSchema({"type": "object", "required": ["on", "y"]}),
    ),
    ("kind: json_schema, schema: true, where: fenced", lambda: JSONSchema(True, where="fenced")),
    ("kind: finished", Finished),
    (
        "kind: classifier, model: m, label: yes, threshold: 1, on: last_sentence",
        lambda: Classifier("m", "yes", 1.0, on="last_sentence"),
    ),
    ("kind: not, of: {kind: finished}, name: no", lambda: ~Finished()),
    ("kind: all, of: [{kind: finished}, {kind: length, max: 3}]", lambda: Finished() & Length(max=3)),
    (
        "kind: any, of: [{kind: any, of: [{kind: finished}]}, {kind: length, max: 3}]",
        lambda: Finished() | Length(max=3),
    ),
]


@pytest.mark.parametrize(("text", "made"), [s for s in SPELLINGS if s[1]], ids=[s[0] for s in SPELLINGS if s[1]])
def test_yaml_and_python_spellings(text, made):
    found: Any = parse(f"{{guardwrap: 1, constraint: {{{text}}}}}").constraint
    assert found.digest == made().digest
    assert repr(found) == repr(made()) or found.name


# ------------------------------------------------------------------------------------------------------ hostile files


def refused(text, path="<string>", **kwargs):
    """Return the one-line message with which a text is rejected, or None."""
    try:
        parse(text, **kwargs)
        return None
    except SpecError as error:
        message = str(error)
    assert len(message.splitlines()) == 1, message
    assert message.startswith(path), message
    assert len(message) < 1500
    return message


@pytest.mark.slow
@profile(400)
@given(st.text())
def test_any_text(text):
    refused(text)
    refused(HEAD + text)


SYNTAX = [
    *"[]{}:,-?!&*|>'\"%@`#~ \n\t<=.",
    *(
        "\n  ",
        ": ",
        "- ",
        "&a ",
        "*a",
        "!!",
        "!!str ",
        "!!int ",
        "!!float ",
        "!!bool ",
        "!!null ",
        "!!set ",
        "<<: ",
        "---\n",
    ),
    *("...\n", "%YAML 1.1\n", "%TAG ! a\n", "!!timestamp ", "!!binary ", "!!python/name:os.system ", "\ufeff", "\x85"),
    *(
        "kind: ",
        "regex",
        "pattern: ",
        "of: ",
        "on: ",
        "name: ",
        "0x",
        "1",
        "1:30",
        ".nan",
        "2001-01-01",
        "null",
        "true",
    ),
    *("\\U00110000", "\\xff", "\\ud800", "a"),
]
syntax = st.lists(st.sampled_from(SYNTAX), max_size=20).map("".join)


@pytest.mark.slow
@profile(600)
@given(syntax)
def test_line_noise(text):
    refused(text)
    refused(HEAD + "  " + text)
    refused(f"{{guardwrap: 1, constraint: {text}}}")


@profile(200)
@given(st.binary())
def test_any_bytes(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    for content in (data, HEAD.encode() + data):
        path.write_bytes(content)
        with pytest.raises(SpecError) as caught:
            load(path)
        assert str(path) in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1


VALID = """\
guardwrap: 1
name: example
description: what it is for
constraint:
  kind: all
  name: both
  of:
    - {kind: regex, pattern: 'a+', flags: [multiline], match: search, on: lines, timeout: 1.5}
    - kind: keyword
      words: [mug, cup]
      max_count: 3
      case_sensitive: true
    - kind: not
      of: {kind: length, max: 20, unit: words}
    - kind: any
      of:
        - {kind: json_schema, schema: {type: object, properties: {a: {pattern: b}}}, where: text}
        - {kind: classifier, model: some/model, label: good, threshold: 0.5}
        - {kind: finished}
sampler: rejection
budget: {max_attempts: 10, max_seconds: 1.5}
examples:
  accepts: [a mug]
  rejects: [b]
"""


def test_the_valid_file_is_valid():
    assert refused(VALID) is None


LINES = VALID.splitlines(keepends=True)
TOKENS = [
    *(
        "null",
        "true",
        "1",
        "-1",
        "1.5",
        "[]",
        "{}",
        "''",
        "a",
        "[a]",
        "{a: b}",
        "[[a]]",
        "[1]",
        "{kind: finished}",
        "[{kind: finished}]",
    ),
    *(
        "1e400",
        "0x10",
        "12345678901234567890",
        "!!str 1",
        "2001-01-01",
        "*x",
        "&x a",
        "'\\'",
        '"\\0"',
        '"\\n"',
        "kind",
        "of",
        "{kind: regex}",
    ),
]


@pytest.mark.slow
@profile(450)
@given(st.data())
def test_mutated_files(data):
    text = VALID
    for _ in range(data.draw(st.integers(1, 3))):
        way = data.draw(st.integers(0, 4))
        if way == 0:  # replace a value
            ends = [i for i in range(len(text)) if text[i] in ":,[" and text[i + 1 : i + 2] != "\n"]
            start = data.draw(st.sampled_from(ends)) + 1
            stop = min(i for i in range(start, len(text)) if text[i] in ",}]\n")
            text = text[:start] + " " + data.draw(st.sampled_from(TOKENS)) + text[stop:]
        elif way == 1:  # delete or repeat a line
            lines = text.splitlines(keepends=True)
            i = data.draw(st.integers(0, len(lines) - 1))
            text = "".join(lines[:i] + lines[i : i + 1] * data.draw(st.sampled_from([0, 2])) + lines[i + 1 :])
        elif way == 2:  # change the indentation of a line
            lines = text.splitlines(keepends=True)
            i = data.draw(st.integers(0, len(lines) - 1))
            text = "".join([*lines[:i], " " * data.draw(st.integers(0, 6)) + lines[i].lstrip(), *lines[i + 1 :]])
        elif way == 3:  # misspell a word
            i = data.draw(st.integers(0, len(text) - 1))
            text = text[:i] + data.draw(st.sampled_from(["x", "", "\n", "\t", ":", "é", '"'])) + text[i + 1 :]
        else:  # move a value to the next line
            lines = text.splitlines(keepends=True)
            i = data.draw(st.integers(0, len(lines) - 1))
            key = lines[i].split(":")[0]
            lines[i] = f"{key}: {data.draw(st.sampled_from(TOKENS))}\n"
            text = "".join(lines)
        if not text.strip():
            break
    refused(text)


def nested(opening, closing, count):
    return opening * count + "a" + closing * count


HOSTILE = {
    "empty": ("", "empty file"),
    "comment": ("# nothing\n", "empty file"),
    "scalar": ("a", ":1: a constraint file is a mapping"),
    "list": ("- a", ":1: a constraint file is a mapping"),
    "number": ("1", "mapping"),
    "several documents": ("a: 1\n---\nb: 2\n", ":2: malformed"),
    "no version": ("constraint: {kind: finished}", "begin the file with the line 'guardwrap: 1'"),
    "no constraint": ("guardwrap: 1", "needs a field 'constraint'"),
    "other version": ("guardwrap: 2\nconstraint: {kind: finished}", ":1: guardwrap: must be 1, not 2"),
    "version true": ("guardwrap: true\nconstraint: {kind: finished}", ":1: guardwrap: .* number 1"),
    "version 1.0": ("guardwrap: 1.0\nconstraint: {kind: finished}", ":1: guardwrap: .* number 1"),
    "version text": ("guardwrap: '1'\nconstraint: {kind: finished}", ":1: guardwrap: .* number 1"),
    "flow depth": ("a: " + nested("[", "]", 100_000), "nested deeper"),
    "flow depth of mappings": ("a: " + nested("{a: ", "}", 100_000), "nested deeper"),
    "open flow": ("[" * 200_000, "nested deeper"),
    "block depth": ("".join(" " * i + "- \n" for i in range(900)), ":6[0-9]: nested deeper"),
    "block depth of keys": ("".join(" " * i + "a:\n" for i in range(900)), ":6[0-9]: nested deeper"),
    "compact block depth": ("- " * 100_000, "nested deeper"),
    "explicit keys": ("? " * 100_000, "nested deeper|malformed"),
    "nots": (HEAD + "  " + "{kind: not, of: " * 80 + "{kind: finished}" + "}" * 80, "nested deeper"),
    "alias bomb": (
        "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
        + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 10)}]\n" for i in range(9)),
        "with aliases expanded",
    ),
    "alias chain": (
        "k0: &a0 [x]\n" + "".join(f"k{i}: &a{i} [x, *a{i - 1}]\n" for i in range(1, 1_000)),
        "with aliases expanded",
    ),
    "long string many times": (
        "a: &a '" + "x" * 400_000 + "'\nb: [" + "*a, " * 10_000 + "]",
        "characters, with aliases expanded",
    ),
    "long key many times": (
        "a: &a\n  ? '" + "x" * 400_000 + "'\n  : 1\nb: [" + "*a, " * 20_000 + "]",
        "characters, with aliases expanded",
    ),
    "recursive list": ("a: &a [*a]", ":1: an alias refers to a value that contains it"),
    "recursive mapping": (
        "guardwrap: 1\nconstraint: &c\n  kind: not\n  of: *c\n",
        ":2: an alias refers to a value that contains it",
    ),
    "recursive key": ("&a {*a : 1}", "string"),
    "undefined alias": ("a: 1\nb: *c", ":2: malformed YAML: a value that begins with . refers to another value"),
    "python object": ("a: !!python/object/apply:os.system ['true']", ":1: a YAML '?python/object"),
    "python name": ("a: !!python/name:os.system ''", ":1: a YAML"),
    "python tuple": ("a: !!python/tuple [1]", ":1: a YAML"),
    "unknown tag": ("a: !thing b", ":1: a YAML '!thing' is not supported"),
    "long tag": ("a: !" + "x" * 5000 + " b", "is not supported"),
    "tag of several lines": ("a: !<x%0Ay> b", "is not supported"),
    "timestamp": ("a: 2001-01-01", ":1: a YAML timestamp is not supported; put it in quotes"),
    "timestamp nonsense": ("a: !!timestamp nonsense", ":1: a YAML timestamp"),
    "timestamp that is no date": ("a: 2001-13-45", ":1: a YAML timestamp"),
    "set": ("a: !!set {b, c}", ":1: a YAML set"),
    "omap": ("a: !!omap [b: c]", ":1: a YAML omap"),
    "pairs": ("a: !!pairs [b: c]", ":1: a YAML pairs"),
    "binary": ("a: !!binary aGk=", ":1: a YAML binary"),
    "mapping as text": ("a: !!str {b: c}", ":1: a YAML str is not supported"),
    "list as mapping": ("a: !!map [b]", ":1: a YAML map is not supported"),
    "int nonsense": ("a: !!int b", ":1: 'b' is not a valid YAML int"),
    "float nonsense": ("a: !!float b", ":1: 'b' is not a valid YAML float"),
    "bool nonsense": ("a: !!bool b", ":1: 'b' is not a valid YAML bool"),
    "empty int": ("a: !!int ''", ":1: '' is not a valid YAML int"),
    "huge int": ("b: 1\na: 1" + "0" * 5000, ":2: a number with more than 40 characters"),
    "huge hex": ("a: 0x" + "f" * 5000, ":1: a number with more than"),
    "huge binary": ("a: 0b" + "1" * 500_000, ":1: a number with more than"),
    "huge sexagesimal": ("a: 1" + ":1" * 400_000, ":1: a number with more than"),
    "huge float": ("a: 1." + "0" * 5000, ":1: a number with more than"),
    "nan": ("a: .nan", ":1: '.nan' is not a finite number"),
    "inf": ("x: 1\na: -.inf", ":2: '-.inf' is not a finite number"),
    "overflow": ("a: 1.0e+400", ":1: '1.0e.400' is not a finite number"),
    "duplicate key": ("guardwrap: 1\nname: a\nname: b", ":3: duplicate key 'name'"),
    "duplicate key in other characters": ('a: 1\n"\\x61": 2', ":2: duplicate key 'a'"),
    "merge key": ("a: &a {b: 1}\nc:\n  <<: *a", ":3: merge keys"),
    "number as key": ("1: a", ":1: a key must be a string"),
    "null as key": ("~: a", ":1: a key must be a string"),
    "bool as key": ("true: a", ":1: a key must be a string"),
    "list as key": ("[a]: b", ":1: a key must be a string"),
    "mapping as key": ("? {a: b}\n: c", ":1: a key must be a string"),
    "value key": ("=: a", ":1: a key must be a string"),
    "tab": ("guardwrap: 1\nconstraint:\n\tkind: finished", ":3: malformed YAML: a tab: indent with spaces"),
    "too few spaces": (
        "a:\n  b: c\n d: e",
        ":3: malformed YAML: this line does not align with a line above it: indent",
    ),
    "too many spaces": ("a:\n  b: c\n    d: e", ":3: malformed YAML: unexpected colon: indent this line"),
    "colon in a value": ("a: b: c", ":1: malformed YAML: .* put a value that contains ': ' in quotes"),
    "set as a value": ("a: 1\nb: [a-z]+", ":2: malformed YAML: text after .* put the whole value in quotes"),
    "reserved character": ("a: @me", ":1: malformed YAML: a value cannot begin with this character: put it in quotes"),
    "colon forgotten": ("a: 1\nb\nc: 2", ":2: malformed YAML: a key without its colon"),
    "nul": ("a: \0", "malformed YAML"),
    "control character": ("a: \x07", "malformed YAML"),
    "unclosed quote": ("a: 'b\nc: d\n", ":1: malformed YAML: a quote that begins here is not closed"),
    "unclosed bracket": ("b: 1\na: [b\n", ":2: malformed YAML: the . that begins here is not closed"),
    "comment in a list": (
        "a: 1\nb: [[c], d, #e]\nf: [g]\n- h",
        ":2: malformed YAML: the . that begins here is not closed, .* or begin with #$",
    ),
    "comment in a mapping": (
        "a: 1\nb:\n  - {c: [1], d: #e}\n",
        ":3: malformed YAML: the . or . that begins here is not closed",
    ),
    "comment as a value": (
        HEAD + "  kind: regex\n  pattern: #tag",
        ":4: constraint.pattern: must be a string, but is empty; put it in quotes if it begins with #",
    ),
    "comment as a word": (
        HEAD + "  kind: keyword\n  words:\n    - a\n    - #b",
        ":6: constraint.words.1: must be a string, but",
    ),
    "indented too little": (
        HEAD + "  kind: not\n  of:\n    kind: regex\n  pattern: a",
        ":6: constraint.pattern: field 'pattern' belongs to 'of' above it: indent it like the fields there$",
    ),
    "quote closed lines later": (
        "a: 1\nb: 'c\nd: e\nf: 'g'",
        ":2: malformed YAML: a quote that begins here is not closed on",
    ),
    "double quote closed later": (
        'a: "x\nb: c\n\nc: "y"',
        ":1: malformed YAML: a quote that begins here is not closed on",
    ),
    "question mark in brackets": (
        "a:\n  - {b: c, d: https?://}",
        ":2: malformed YAML: the . that begins .* in quotes that contain one of , : ",
    ),
    "no space after the dash": (
        "a:\n  -kind: b\n    c: d",
        ":2: malformed YAML: a space is missing after the - in this",
    ),
    "... and a list before": ("a:\n  - b: c\n  -kind: d", ":3: malformed YAML: a space is missing after the - in this"),
    "no space after the colon": (
        "a:\n  - b: c\n    unit:words\n    d: e",
        ":3: .*: a space is missing after the colon in",
    ),
    "field twice": ("a: 1\nb:\n  c: 2\n  d: 3\n  c: 4", ":5: duplicate key 'c', first in line 3; indent it if it"),
    "budget as a number": (
        "guardwrap: 1\nbudget: 200\nconstraint: {kind: finished}",
        ":2: budget: must be a mapping of fields, not 200; {max_attempts: 1000} is one",
    ),
    "several under not": (
        HEAD + "  kind: not\n  of:\n    - {kind: finished}",
        ":4: constraint.of: must be a mapping .*; combine several with kind: all",
    ),
    "space in a reference": (
        HEAD + "  - catalogue: printable-text",
        ":3: constraint.0: write 'catalogue:printable-text', without the space$",
    ),
    "catalogue taken for a kind": (
        HEAD + "  kind: catalogue\n  name: printable-text",
        ":3: constraint.kind: 'catalogue' is not a kind; write catalogue:NAME, .* instead of this mapping$",
    ),
    "file taken for a kind": (
        HEAD + "  - {kind: file, name: other.yaml}",
        ":3: constraint.0.kind: 'file' is not a kind; write {file: NAME}, .* instead of this mapping$",
    ),
    "hint as a text": (
        HEAD + "  {kind: finished}\nproposal: 'Tea. {prompt}'",
        ":4: proposal: write {prompt: 'Tea. {prompt}'} for a hint",
    ),
    "colon in an example": (
        HEAD + "  {kind: finished}\nexamples:\n  accepts:\n    - Note: a",
        ":6: .*must be a string, not dict; put it in quotes if it is a text with ': '",
    ),
    "type of a schema": (
        HEAD + "  {kind: json_schema, schema: {type: int}}",
        "unknown type 'int' .did you mean 'integer'.*known: array, boolean",
    ),
    "number among words in a line": (
        HEAD + "  kind: keyword\n  words: [a, 7]",
        ":4: constraint.words.1: must be a string, not int; put it in quotes$",
    ),
    "two mistakes": (
        HEAD + "  - {kind: keyword, words: [a, 7]}\n  - {kind: length, max: b}",
        ":3: constraint.0.words.1: must be .*; also line 4: constraint.1.max: must be a whole number, not 'b'$",
    ),
    "more than ten mistakes": (
        HEAD + "  - {kind: length, max: b}\n" * 13,
        "^<string>:3: constraint.0.max: (.*; ){2}(line .*; ){8}3 more mistakes$",
    ),
    "a part of a combination": (
        HEAD + "  {kind: not, on: answer, of: {kind: finished}}",
        ":3: constraint.on: kind: not judges no text itself; move 'on' into each rule under its 'of'$",
    ),
    "a part of a combination in another one": (
        HEAD + "  {kind: all, of: [{kind: any, on: answer, of: [{kind: finished}]}]}",
        ":3: constraint.of.0.on: kind: any judges no text itself",
    ),
    "bad escape": ('a: "\\q"', ":1: malformed YAML: a backslash in double quotes .* in single quotes"),
    "escape beyond Unicode": ('a: "\\UFFFFFFFF"', "malformed YAML"),
    "escape just beyond Unicode": ('a: "\\U00110000"', "malformed YAML"),
    "half a surrogate pair": ('a: "\\ud800"', ":1: half of a surrogate pair"),
    "a surrogate pair the wrong way round": ('a: "\\ude00\\ud83d"', ":1: half of a surrogate pair"),
    "half a surrogate pair as key": ('"\\ud800": a', ":1: half of a surrogate pair"),
    "raw surrogate": ("a: \ud800", "malformed YAML"),
    "long version directive": ("%YAML 1." + "1" * 5000 + "\n---\na: 1", "malformed YAML"),
    "other version directive": ("%YAML 2.0\n---\na: 1", "malformed YAML"),
    "tag directive twice": ("%TAG ! a\n%TAG ! b\n---\na: 1", "malformed YAML"),
    # Written so that counting them takes a quarter of the time limit, even on a busy machine.
    "many values": ("a:\n" + "-\n" * 200_000, "more than 20000 values"),
    "many keys": ("?\n" * 80_000, "more than 20000 values"),
    "long file": ("a: " + "x" * 2_000_000, "larger than"),
    "key of several lines": ('guardwrap: 1\n"a\\nb": 1\nconstraint: {kind: finished}', r":2: 'a\\nb': unknown field"),
    "long key": (f"guardwrap: 1\n{'k' * 900}: 1\nconstraint: {{kind: finished}}", ":2: .*unknown field"),
    "lines in a kind": ('guardwrap: 1\nconstraint: {kind: "a\\nb\\u2028c"}', ":2: .*unknown kind"),
    "long kind": (f"guardwrap: 1\nconstraint: {{kind: {'k' * 900}}}", ":2: .*unknown kind"),
    "lines in a pattern": (HEAD + '  {kind: regex, pattern: "(\\n\\r\\u2028"}', ":3: .*invalid regular expression"),
    "lines in a contradiction": (
        HEAD + '  {kind: all, of: [{kind: keyword, words: "a\\nb"}, {kind: keyword, words: "a\\nb", match: none}]}',
        "both required and banned",
    ),
    "lines in a choice": (HEAD + '  {kind: regex, pattern: a, match: "a\\nb"}', "is not one of search, fullmatch"),
    "memory in a pattern": (HEAD + "  {kind: regex, pattern: '((a{1000}){1000}){1000}'}", ":3: .*expands to"),
    "words of another type": (
        HEAD + "  kind: keyword\n  words: {a: b}",
        ":4: constraint.words: must be a string, not dict",
    ),
    "number among words": (
        HEAD + "  kind: keyword\n  words:\n    - a\n    - 1",
        ":6: constraint.words.1: must be a string, not int; put it in quotes",
    ),
    "constraint of another type": ("guardwrap: 1\nconstraint: a", ":2: constraint: "),
    "empty list of parts": (HEAD + "  {kind: all, of: []}", "constraint.of"),
    "kind of another type": (HEAD + "  {kind: [regex]}", "constraint"),
    "kind null": (HEAD + "  {kind: null}", "constraint"),
    "schema that is none": (
        HEAD + "  {kind: json_schema, schema: {type: nonsense}}",
        ":3: constraint.schema.type: invalid JSON Schema at type",
    ),
    "schema elsewhere": (
        HEAD + "  {kind: json_schema, schema: {$ref: 'http://example.com/'}}",
        "only references within the schema",
    ),
    "half a pattern below another field": (
        HEAD + "  - kind: finished\n  - kind: regex\n    match: search\n    pattern: '(a'",
        r":6: constraint\.1\.pattern: invalid regular expression",
    ),
    "unknown type deep in a schema": (
        HEAD + "  kind: json_schema\n  where: fenced\n  schema:\n    properties:\n      a:\n        type: strng",
        r":8: constraint\.schema\.properties\.a\.type: invalid JSON Schema at properties/a/type: .*'string'",
    ),
    "half a pattern in a schema": (
        HEAD + "  kind: json_schema\n  where: fenced\n  schema: {pattern: '('}",
        r":5: constraint\.schema: invalid regular expression",
    ),
    "grammar that is none": (
        HEAD + "  kind: grammar\n  start: start\n  grammar: 'start: b'",
        r":5: constraint\.grammar: ",
    ),
    "budget of zero": (
        HEAD + "  {kind: finished}\nbudget:\n  max_tokens: 1\n  max_attempts: 0",
        r":6: budget\.max_attempts: .* at least 1, or None \(in a file null\) for no limit",
    ),
    "budget without a name": (
        HEAD + "  {kind: finished}\nbudget: {200}",
        r":4: expected \{name: value\}, got only '200'",
    ),
    "budget of another type": (HEAD + "  {kind: finished}\nbudget: many", ":4: budget"),
    "examples of another type": (
        HEAD + "  {kind: finished}\nexamples: {accepts: [1]}",
        ":4: examples.accepts.0: must be a string",
    ),
    "contradiction": (
        HEAD + "  kind: all\n  of:\n    - {kind: length, min: 3}\n    - {kind: length, max: 2}",
        ":[2-4]: constraint: no text can satisfy both",
    ),
    "contradiction inside": (
        HEAD + "  kind: not\n  of:\n    kind: length\n    min: 3\n    max: 2",
        ":[4-6]: constraint.of",
    ),
    "nested part": (
        HEAD + "  kind: all\n  of:\n    - kind: finished\n    - kind: regex",
        ":6: constraint.of.1: needs a field 'pattern'",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(name):
    text, expected = HOSTILE[name]
    start = time.perf_counter()
    message = refused(text)
    assert message is not None
    assert re.search(expected, message), message
    assert time.perf_counter() - start < 20


@pytest.mark.parametrize("name", [name for name in HOSTILE if len(HOSTILE[name][0]) < 5000])
def test_hostile_files_on_disk(name, tmp_path):
    path = tmp_path / "hostile.yaml"
    path.write_text(HOSTILE[name][0], encoding="utf-8", errors="surrogatepass")
    with pytest.raises(SpecError) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    (tmp_path / "latin.yaml").write_bytes("name: früh".encode("latin-1"))
    (tmp_path / "utf16.yaml").write_bytes("name: früh".encode("utf-16"))
    (tmp_path / "long.yaml").write_bytes(b"a: " + b"x" * 2_000_000)
    (tmp_path / "cut.yaml").write_bytes(b"a: x" + "ü".encode() * 1_000_000)
    for path, expected in [
        (tmp_path, "directory"),
        (tmp_path / "missing.yaml", "No such file"),
        (tmp_path / "missing" / "a.yaml", "No such file"),
        (tmp_path / "latin.yaml", "not UTF-8"),
        (tmp_path / "utf16.yaml", "not UTF-8"),
        (tmp_path / "long.yaml", "larger than"),
        (tmp_path / "cut.yaml", "larger than"),
        (tmp_path / ("n" * 5000), "too long"),
    ]:
        with pytest.raises(SpecError, match=expected) as caught:
            load(path)
        assert str(path) in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(SpecError, match="null"):
        load("a\0b")
    with pytest.raises(SpecError):
        load("")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "{kind: regexp, pattern: a}",
            "constraint.kind: unknown kind 'regexp' (did you mean 'regex'?)",
        ),
        ("{kind: keywords, words: a}", "did you mean 'keyword'?"),
        ("{kind: jsonschema, schema: {}}", "did you mean 'json_schema'?"),
        ("{kind: nto, of: {kind: finished}}", "did you mean 'not'?"),
        ("{kind: regex, patern: a}", "unknown field 'patern' (did you mean 'pattern'?)"),
        ("{kind: keyword, words: a, whole_word: true}", "did you mean 'whole_words'?"),
        ("{kind: length, maximum: 3}", "unknown field 'maximum'"),
        ("{kind: all, off: [{kind: finished}]}", "did you mean 'of'?"),
        (
            "{kind: not, of: {kind: regex, patern: a}}",
            "constraint.of.patern: unknown field 'patern' (did you mean 'pattern'?)",
        ),
        ("{kind: all, of: [{kind: finished, nmae: a}]}", "did you mean 'name'?"),
        ("{kind: regex, pattern: a, match: full_match}", "did you mean 'fullmatch'?"),
        ("{kind: regex, pattern: a, flags: [multline]}", "did you mean 'multiline'?"),
        ("{kind: regex, pattern: a, on: line}", "did you mean 'lines'?"),
        ("{kind: length, max: 3, unit: word}", "did you mean 'words'?"),
    ],
)
def test_near_misses(text, expected):
    message = refused(f"guardwrap: 1\nconstraint:\n  {text}")
    assert expected in message
    assert ":3: " in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("constrant: {kind: finished}", "did you mean 'constraint'?"),
        ("constraint: {kind: finished}\nbudget: {max_attempt: 3}", "did you mean 'max_attempts'?"),
        ("constraint: {kind: finished}\nexamples: {accept: [a]}", "did you mean 'accepts'?"),
        ("constraint: {kind: finished}\nexample: {accepts: [a]}", "did you mean 'examples'?"),
    ],
)
def test_near_misses_of_the_file(text, expected):
    assert expected in refused(f"guardwrap: 1\n{text}")


def test_code_is_refused_and_not_imported(tmp_path, monkeypatch):
    (tmp_path / "hostile_module.py").write_text("def f(text):\n    return 'a' in text\n")
    monkeypatch.syspath_prepend(tmp_path)
    for text in (
        "{kind: python, function: 'hostile_module:f'}",
        "{kind: not, of: {kind: python, function: 'hostile_module:f'}}",
        "{kind: all, of: [{kind: finished}, {kind: python, function: 'hostile_module:f'}]}",
        "{kind: any, of: [{kind: all, of: [{kind: finished}, {kind: python, function: 'hostile_module:f'}]}]}",
        "{kind: any, of: [{kind: not, of: {kind: python, function: 'm:f', prefix: 'hostile_module:f'}}]}",
    ):
        assert re.search(r":3: constraint[.\w]*\.function: names Python code", refused(HEAD + "  " + text))
        assert "hostile_module" not in sys.modules
    found = parse(HEAD + "  {kind: python, function: 'hostile_module:f'}", allow_code=True).constraint
    assert "hostile_module" not in sys.modules, "imported when it is used, not when it is read"
    assert found.accepts("a")
    assert not found.accepts("b")
    path = tmp_path / "code.yaml"
    path.write_text(dump(found))
    assert load(path, allow_code=True).constraint == found
    with pytest.raises(SpecError, match="allow_code"):
        load(path)
    del sys.modules["hostile_module"]


def test_booleans_are_words_but_for_true_and_false():
    text = HEAD + "  {kind: keyword, words: [yes, No, ON, off, y], on: lines, case_sensitive: TRUE, whole_words: False}"
    found: Any = parse(text).constraint
    assert found.words == ("yes", "No", "ON", "off", "y")
    assert (found.on, found.case_sensitive, found.whole_words) == ("lines", True, False)
    assert "case_sensitive" in refused(HEAD + "  {kind: keyword, words: a, case_sensitive: yes}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("constraint: {kind: regex, pattern: a}", "'guardwrap: 1', the version of its format"),
        ("# rules\nname: x\nconstraint: {kind: regex, pattern: a}", "'guardwrap: 1', the version of its format"),
        (
            "kind: regex\npattern: a",
            "'guardwrap: 1', the version of its format, and write the rules under 'constraint:'",
        ),
    ],
)
def test_a_file_without_the_version_is_told_where_it_goes(text, says):
    assert refused(text) == f"<string>:1: begin the file with the line {says}"
    assert "did you mean 'guardwrap'" in str(refused("gardwrap: 1\n" + text))
    assert "begin the file" not in str(refused(f"guardwrap: 1\n{text}\nother: x"))


def test_a_surrogate_pair_in_a_string_of_json_is_a_character() -> None:
    assert parse('guardwrap: 1\nconstraint: {kind: regex, pattern: "\\ud83d\\ude00x"}\n').constraint == Regex("😀x")
    assert parse('guardwrap: 1\nname: "\\ud83d\\ude00"\nconstraint: {kind: regex, pattern: a}\n').name == "😀"


@pytest.mark.parametrize(
    ("number", "note"),
    [
        ("010", "line 2: 010 is 8, because a number that begins with 0 is octal; write 8 if you mean that"),
        ("+07", "line 2: +07 is 7, because a number that begins with 0 is octal; write 7 if you mean that"),
        ("1:30", "line 2: 1:30 is 90, in base 60; write 90 if you mean that"),
        *((number, None) for number in ("0", "10", "0x1F", "1_000", "00")),
    ],
)
def test_numbers_that_yaml_reads_in_another_base_get_a_note(number: str, note: str | None) -> None:
    file = parse(f"guardwrap: 1\nconstraint: {{kind: length, max: {number}}}\n")
    assert file.source is not None
    assert list(file.source.notes) == ([] if note is None else [note])


FALLBACK = 'guardwrap: 1\nconstraint: {kind: length, max: %s}\nfallback: "Please ask again."\n'


def test_a_fallback_is_read_and_written_and_checked() -> None:
    file = parse(FALLBACK % 20)
    assert file.fallback == "Please ask again."
    assert parse(dump(file)).fallback == file.fallback
    assert as_constraint_file([parse(FALLBACK % 30), Regex("a"), file]).fallback == file.fallback
    with pytest.raises(SpecError, match=r"<string>:3: fallback: 'Length\(max=3\)' rejects it"):
        parse(FALLBACK % 3)
    with pytest.raises(SpecError, match=r":3: fallback: must be a string"):
        parse("guardwrap: 1\nconstraint: {kind: length, max: 3}\nfallback: 5\n")
    later = "guardwrap: 1\nfields: [n]\nconstraint: {kind: length, max: '{n}'}\nfallback: abc\n"
    assert parse(later).filled({"n": 2}).fallback == "abc"  # rules of single prompts judge it when it is needed
    tokens = "guardwrap: 1\nconstraint: {kind: length, min: 1, unit: tokens}\nfallback: abc\n"
    assert parse(tokens).fallback == "abc"
