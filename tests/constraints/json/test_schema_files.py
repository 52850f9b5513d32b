"""JSON Schemas in separate files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import pytest

from guardwrap.constraints import JSONSchema, dump, json_schema, load, parse
from guardwrap.errors import SpecError
from guardwrap.support.limits import MAX_BYTES, MAX_DEPTH, MAX_VALUES
from guardwrap.training import read_settings

SCHEMA = {"type": "object", "properties": {"a": {"format": "date"}}, "required": ["a"]}
RULES = "guardwrap: 1\nconstraint: {kind: json_schema, file: %s}\n"


def write(folder: Path, name: str, text: str, rules: str = RULES) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    (folder / "rules.yaml").write_text(rules % name)
    return folder / "rules.yaml"


def test_json_and_yaml_are_the_schema_itself(tmp_path: Path) -> None:
    for name, text in (("s.json", json.dumps(SCHEMA, indent="\t")), ("s.yaml", dump_yaml())):
        constraint = load(write(tmp_path, name, text)).constraint
        assert constraint == JSONSchema(SCHEMA)
        assert constraint.digest == JSONSchema(SCHEMA).digest
        assert parse(dump(constraint)).constraint == constraint, "the dumped text does not depend on the schema's file"


def dump_yaml() -> str:
    return "type: object\nproperties: {a: {format: date}}\nrequired: [a]\n"


def test_inside_others_and_beside_the_file_whatever_the_folder_one_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = """
guardwrap: 1
constraint:
  kind: all
  of:
    - {kind: length, max: 99}
    - {kind: not, of: {kind: json_schema, where: fenced, file: %s}}
"""
    (tmp_path / "in").mkdir()
    path = write(tmp_path / "in", "s.json", "true", rules)
    (tmp_path / "s.json").write_text("false")
    monkeypatch.chdir(tmp_path)
    assert load(path).constraint.spec()["of"][1]["of"] == {"kind": "json_schema", "where": "fenced", "schema": True}
    assert parse(rules % "s.json").constraint.spec()["of"][1]["of"]["schema"] is False
    assert JSONSchema(file="s.json") == JSONSchema(False)


def test_a_schema_may_speak_of_files(tmp_path: Path) -> None:
    inner = {"const": {"kind": "json_schema", "file": "none.json"}}
    text = "guardwrap: 1\nconstraint: " + json.dumps({"kind": "json_schema", "schema": inner})
    assert parse(text).constraint == JSONSchema(inner)


def test_in_settings(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("true")
    settings = tmp_path / "settings.yaml"
    settings.write_text("prompts: [a]\nconstraint: {kind: json_schema, file: s.json}\n")
    assert read_settings(settings)[1] == JSONSchema(True)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("s.json", "{'a': 1}", r"s\.json:1: malformed JSON"),
        ("s.json", '{\n"a": 1,\n"a": 2}', r"s\.json: duplicate key 'a'"),
        ("s.json", '{"type": "thing"}', r"rules\.yaml:2: constraint\.file: invalid JSON Schema at type"),
        ("s.json", "[1]", r"rules\.yaml:2: constraint"),
        ("s.json", "[" * 100_000, "s.json: nested deeper|malformed"),
        ("s.json", '{"not": ' * (MAX_DEPTH + 1) + "{}" + "}" * (MAX_DEPTH + 1), "nested deeper than"),
        ("s.json", json.dumps({"enum": list(range(MAX_VALUES))}), "more than 20000 values"),
        ("s.json", '{"title": "' + "a" * MAX_BYTES + '"}', "larger than"),
        ("s.yaml", "a: &a [*a]", r"s\.yaml:1: an alias refers to a value that contains it"),
        ("s.yaml", "a: !!python/object:os.system x", "not supported"),
        ("s.yaml", "", "empty file"),
        ("s.json", '{"const": NaN}', "not JSON"),
    ],
    ids=lambda value: value[:30],
)
def test_files_that_hold_no_schema(tmp_path: Path, name: str, text: str, message: str) -> None:
    path = write(tmp_path, name, text)
    with pytest.raises(SpecError, match=message) as caught:
        load(path)
    assert len(str(caught.value).splitlines()) == 1


def test_what_is_no_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    os.mkfifo(tmp_path / "pipe.json")
    for spelt, message in (
        ("none.json", "cannot read '.*none.json'"),
        ("pipe.json", "it is a named pipe; give a regular file"),
        (".", "cannot read"),
        ("a" * 5000, "cannot read"),
        ('"\\0"', "cannot read"),
        ("''", "cannot read"),
        ("[a]", "constraint.file: must be a string"),
        ("s.json, schema: {}", "needs either a schema .* or a file that holds one"),
        ("null", "needs either a schema .* or a file that holds one"),
    ):
        path.write_text(RULES % spelt)
        with pytest.raises(SpecError, match=message):
            load(path)


def test_editors_know_of_it() -> None:
    validator = jsonschema.Draft202012Validator(json_schema())

    def valid(**fields: object) -> bool:
        return bool(validator.is_valid({"guardwrap": 1, "constraint": {"kind": "json_schema", **fields}}))

    assert valid(file="a.json")
    assert valid(schema={}, formats=False)
    assert not valid(schema={}, type="a:B")
    assert not valid(file={})
