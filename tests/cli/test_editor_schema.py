"""The schema with which editors complete and check constraint files."""

import re
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from guardwrap.cli.commands.catalogue_command import editor_schema
from guardwrap.constraints import Classifier, Keyword, Regex, load, parse
from guardwrap.constraints.files.constraint_data import catalogue_names, catalogue_path
from guardwrap.support.validation import read_document
from tests.cli.fixtures_commands import TWO_PARTS

pytestmark = pytest.mark.usefixtures("command_line")

SCHEMAS = (Draft7Validator(editor_schema()), Draft202012Validator(editor_schema()))


def read(text: str) -> Any:
    """Read YAML as guardwrap and editors do: `on` is a string, which PyYAML reads as true."""
    return read_document(text, "a test", "a mapping").data


def fits(text: str) -> bool:
    data = read(text)
    one, other = (schema.is_valid(data) for schema in SCHEMAS)
    assert one is other
    return one


def fields(schema, path=()):
    """Yield every property in a schema, with its path and the description of its object."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            for name, field in schema["properties"].items():
                yield (*path, name), field, schema.get("description")
        for key, value in schema.items():
            yield from fields(value, (*path, key))
    elif isinstance(schema, list):
        for i, value in enumerate(schema):
            yield from fields(value, (*path, i))


def test_every_field_is_described():
    found = list(fields(editor_schema()))
    assert len(found) > 80
    for path, field, about in found:
        said = field.get("description")
        assert isinstance(said, str), path
        assert said.strip(), path
        assert said != path[-1], path
        if path[-1] != "kind":  # its object has the description
            assert said != about, path
        assert not re.search(r"----|``|\n", said), path


@pytest.mark.slow
def test_what_is_valid_fits():
    assert fits(TWO_PARTS)
    for name in catalogue_names():
        assert fits(catalogue_path(name).read_text(encoding="utf-8")), name


HEAD = "guardwrap: 1\nconstraint: {kind: regex, pattern: a}\n"


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "sampler: qrs",
        HEAD + "sampler: {qrs: {target_tvd: 0.05, pilot: 30}}",
        HEAD + "sampler: {rejection: {}}",
        HEAD + "sampler: {imh: }",
        HEAD + "proposal: masked",
        HEAD + "proposal: {masked: {unseen: 0.5, proposal: {prompt: 'a {prompt}'}}}",
        HEAD + "proposal: {prompt: 'a {prompt}'}",
        HEAD + "adapter: owner/name",
        HEAD + "adapter: {source: owner/name, revision: v1, allow_mismatch: true}",
        "guardwrap: 1\nconstraint: catalogue:no-urls",
        "guardwrap: 1\nconstraint: [catalogue:no-urls, {kind: not, of: {kind: any, of: [catalogue:no-markdown]}}]",
    ],
)
def test_what_can_be_written_fits(text):
    parse(text)
    assert fits(text)


@pytest.mark.parametrize(
    "text",
    [
        HEAD.replace("constraint", "constrain"),
        HEAD.replace("pattern", "patern"),
        HEAD.replace("kind", "knd"),
        HEAD.replace("kind: regex, ", ""),
        HEAD.replace("regex", "regx"),
        HEAD.replace("guardwrap: 1", "guardwrap: 2"),
        HEAD.replace("guardwrap: 1\n", ""),
        HEAD + "sampler: qsr",
        HEAD + "sampler: {qrs: {target_tv: 0.05}}",
        HEAD + "sampler: {qrs: {pilot: many}}",
        HEAD + "sampler: {qrs: {}, imh: {}}",
        HEAD + "proposal: maskd",
        HEAD + "proposal: {masked: {unsen: 0.5}}",
        HEAD + "proposal: {promt: 'a {prompt}'}",
        HEAD + "adapter: {sorce: owner/name}",
        HEAD + "budget: {max_atempts: 3}",
        HEAD + "examples: {accept: [a]}",
        "guardwrap: 1\nconstraint: catalogue:no-url",
        "guardwrap: 1\nconstraint: [{fil: a.yaml}]",
        "guardwrap: 1\nconstraint: []",
    ],
)
def test_what_is_misspelt_does_not_fit(text):
    assert not fits(text)


def test_a_file_that_is_named_fits(tmp_path):
    (tmp_path / "tea.yaml").write_text(HEAD)
    (tmp_path / "rules.yaml").write_text("guardwrap: 1\nconstraint: {kind: all, of: [{file: tea.yaml}]}\n")
    assert load(tmp_path / "rules.yaml").constraint.accepts("a")
    assert fits((tmp_path / "rules.yaml").read_text())


def test_kinds_say_what_they_are():
    definitions = editor_schema()["$defs"]
    for kind in (Regex, Keyword, Classifier):
        assert (
            definitions[kind.__name__]["properties"]["kind"]["description"] == definitions[kind.__name__]["description"]
        )
        assert "kind" in definitions[kind.__name__]["required"]
