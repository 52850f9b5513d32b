"""``guardwrap init``: its file, and the schema with which editors complete and check it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator, Draft202012Validator

from guardwrap.budget import Budget
from guardwrap.cli.commands.init_command import FILE, SCHEMA, editor_schema
from guardwrap.constraints import Classifier, Keyword, Regex, load, parse
from guardwrap.constraints.files.constraint_data import catalogue_names, catalogue_path
from guardwrap.errors import SpecError
from guardwrap.proposals import Masked
from guardwrap.support.validation import read_document
from tests.cli.fixtures_commands import TWO_PARTS, assert_one_line, run

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


# -------------------------------------------------------------------------------------------------------------- init


def test_init_writes_a_file_that_holds(tmp_path):
    result = run("init")
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == [SCHEMA, "rules.yaml"]
    checked = run("check", "rules.yaml", "--text", "I drink a cup of tea.")
    assert checked.exit_code == 0, checked.output
    assert "4 of 4 examples as expected" in checked.stdout
    assert "guardwrap check rules.yaml" in Path("rules.yaml").read_text()


def test_init_writes_the_rules_of_its_options(tmp_path):
    words = ["--mention", "Rückgabe", "--never", "Acme Corp", "--never", "PATH"]
    limits = ["--max-sentences", "2", "--max-words", "8", "--language", "de", "--use", "no-urls"]
    assert run("init", *words, *limits).exit_code == 0
    rules = load("rules.yaml").constraint
    german = "Die Rückgabe ist bis Ende Mai möglich."
    assert rules.accepts(german)
    for broken in (
        "Die Lieferung ist bis Ende Mai möglich.",
        f"{german} Acme Corp zahlt.",
        f"PATH: {german}",
        "Rückgabe möglich. Bis Mai. Ohne Frist.",
        f"{german} Sie ist kostenlos.",
        "Rückgabe: please send everything back before the summer.",
        "Die Rückgabe steht auf www.laden.de.",
    ):
        assert not rules.accepts(broken), broken


def test_init_with_a_least_length_and_an_end(tmp_path):
    assert run("init", "--min-words", "2", "--max-words", "3", "--finished").exit_code == 0
    rules = load("rules.yaml").constraint
    assert [rules.accepts(text) for text in ("", "one", "one two", "one two three", "a b c d")] == [
        False,
        False,
        True,
        True,
        False,
    ]
    length, finished = rules.parts
    assert (length.spec()["min"], finished.spec()) == (2, {"kind": "finished"})


def test_init_with_a_format(tmp_path):
    assert run("init", "--parses", "json").exit_code == 0
    assert load("rules.yaml").constraint.accepts("[1]")
    assert not load("rules.yaml").constraint.accepts("[1")


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (("--use", "no-urlz"), "did you mean 'no-urls'?"),
        (("--parses", "jsn"), "did you mean 'json'?"),
        (("--language", "xx"), "'xx' is not one of"),
        (("--never", ""), "at least one character"),
        (("--max-words", "0"), "greater than or equal to 1"),
        (("--min-words", "3", "--max-words", "2"), "exceeds"),
    ],
)
def test_init_with_an_invalid_rule_writes_nothing(tmp_path, options, cause):
    result = run("init", *options)
    assert result.exit_code != 0
    assert cause in result.output
    assert not list(tmp_path.iterdir())


def test_the_line_for_editors_leads_to_the_schema_without_a_network(tmp_path):
    (tmp_path / "rules").mkdir()
    assert run("init", "rules/mine.yaml").exit_code == 0
    first = Path("rules/mine.yaml").read_text().splitlines()[0]
    found = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", first)
    assert found
    schema = json.loads((tmp_path / "rules" / found[1]).read_text())
    assert schema == editor_schema() == json.loads(run("catalogue", "--schema").stdout)


def test_init_overwrites_nothing_unasked(tmp_path):
    (tmp_path / "rules.yaml").write_text("mine")
    assert_one_line(run("init"), "'rules.yaml' exists; give another name, or --overwrite")
    assert (tmp_path / "rules.yaml").read_text() == "mine"
    assert run("init", "--overwrite").exit_code == 0
    assert run("init", "other.yaml").exit_code == 0  # a schema of guardwrap may be replaced
    for other in ("{}", "[]", "no JSON"):
        (tmp_path / SCHEMA).write_text(other)
        assert_one_line(run("init", "third.yaml"), f"'{SCHEMA}' exists and is not a guardwrap schema")
        assert (tmp_path / SCHEMA).read_text() == other
    assert_one_line(run("init", "nowhere/rules.yaml"), "no such folder")


# ----------------------------------------------------------------------------------------------------- suggestions


def uncommented(text: str) -> str:
    """Return the file with its suggestions followed."""
    return re.sub(r"^(\s*)# ([a-z_]+: .*)$", r"\1\2", text, flags=re.MULTILINE)


def test_what_is_commented_out_is_valid():
    plain, followed = parse(FILE), parse(uncommented(FILE))
    assert plain.constraint.digest == followed.constraint.digest
    assert plain.budget == Budget()
    assert (plain.sampler, plain.proposal, plain.adapter, plain.repair) == (None, None, None, None)
    assert followed.sampler == "qrs"
    assert isinstance(followed.proposal, Masked)
    assert followed.adapter is not None
    assert followed.repair is not None
    assert followed.budget is not None
    assert followed.budget.max_tokens == 20_000
    with pytest.raises(SpecError, match="repair"):
        parse(uncommented(FILE).replace("{reasons}", "reasons"))  # negative control


# ---------------------------------------------------------------------------------------------------------- the schema


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
    assert fits(FILE)
    assert fits(uncommented(FILE))
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
