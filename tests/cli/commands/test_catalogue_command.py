"""``guardwrap catalogue``."""

import json

import pytest

from guardwrap.constraints.files.constraint_data import catalogue_names
from tests.cli.fixtures_commands import ROOT, TWO_PARTS, assert_one_line, run

pytestmark = pytest.mark.usefixtures("command_line")


def test_catalogue_lists_and_prints(monkeypatch):
    result = run("catalogue")
    assert result.exit_code == 0
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [name for name, _, kind in rows if kind == "constraint"] == catalogue_names()
    assert [name for name, _, kind in rows if kind == "adapter"] == ["dragon", "json-object"]
    assert all(about for _, about, _ in rows)
    for name in ("no-urls", "catalogue:no-urls"):
        assert run("catalogue", name).stdout == (ROOT / "constraints" / "no-urls.yaml").read_text()
    monkeypatch.setattr("typer.testing._NamedTextIOWrapper.isatty", lambda self: True, raising=False)
    table = run("catalogue").stdout
    assert all(name in table for name in catalogue_names())
    assert "-c catalogue:NAME" in table
    assert "--adapter catalogue:NAME" in table


def test_catalogue_schema():
    from jsonschema import Draft202012Validator
    from yaml import safe_load

    schema = json.loads(run("catalogue", "--schema").stdout)
    Draft202012Validator.check_schema(schema)
    assert Draft202012Validator(schema).is_valid(safe_load(TWO_PARTS))
    assert not Draft202012Validator(schema).is_valid(safe_load(TWO_PARTS.replace("constraint:", "constrain:")))


def test_catalogue_bad_calls():
    assert_one_line(run("catalogue", "no-url"), "did you mean 'no-urls'")
    assert_one_line(run("catalogue", "../pyproject"), "unknown catalogue entry")
    assert_one_line(run("catalogue", "no-urls", "--schema"), "--schema")


def test_catalogue_search():
    names = [line.split("\t")[0] for line in run("catalogue", "search", "Emoji").stdout.splitlines()]
    assert names[0] == "no-emoji"
    assert "uuid" not in names
    assert run("catalogue", "search", "luhn").stdout.startswith("no-payment-cards\t")
    assert_one_line(run("catalogue", "search", "no-emojy"), "no-emoji")
    assert_one_line(run("catalogue", "search"), "search WORD")
    assert_one_line(run("catalogue", "no-urls", "extra"), "search WORD")
