"""The field ``repair`` of constraint files."""

import jsonschema
import pytest
import yaml

from guardwrap.calls.missing_texts import Repair
from guardwrap.constraints import dump, parse
from guardwrap.constraints.files.constraint_file import as_constraint_file, json_schema
from guardwrap.constraints.files.file_fields import MESSAGE
from guardwrap.errors import SpecError

HEAD = "guardwrap: 1\nconstraint: {kind: keyword, words: tea}\n"


@pytest.mark.parametrize(
    ("spelt", "repair"),
    [
        ("repair: 2", Repair(max_turns=2)),
        ("repair: {}", Repair()),
        ("repair: {max_turns: 3}", Repair(max_turns=3)),
        ("repair: {message: 'No: {reasons}'}", Repair(message="No: {reasons}")),
    ],
)
def test_there_and_back(spelt, repair):
    file = parse(HEAD + spelt)
    assert file.repair is not None
    assert Repair(**file.repair) == repair
    jsonschema.validate(yaml.safe_load(dump(file)), json_schema())
    assert parse(dump(file)).repair == file.repair
    assert file.constraint.digest == parse(HEAD).constraint.digest
    assert parse(HEAD).repair is None


@pytest.mark.parametrize(
    ("spelt", "says"),
    [
        ("repair: 0", "3: repair: must be at least 1, not 0"),
        ("repair: true", "3: repair: must be a whole number, not True"),
        ("repair: twice", "3: repair: must be a whole number, not 'twice'"),
        ("repair: {turns: 2}", "3: repair.turns: unknown field 'turns'"),
        ("repair: {message: again}", "3: repair.message: needs {reasons} where the reasons belong"),
        ("repair: {max_turns: 2, otherwise: none}", "3: repair.otherwise: unknown field 'otherwise'"),
    ],
)
def test_mistakes(spelt, says):
    with pytest.raises(SpecError) as caught:
        parse(HEAD + spelt)
    assert says in str(caught.value)
    if "again" not in spelt:  # a JSON Schema of editors does not look into the message
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(yaml.safe_load(HEAD + spelt), json_schema())


def test_the_first_of_several_files_applies():
    files = [parse(HEAD), parse(HEAD + "repair: 2"), parse(HEAD + "repair: 3")]
    assert as_constraint_file(files).repair == {"max_turns": 2, "message": MESSAGE}
