"""``guardwrap check``: examples, texts and messages, for people and for programs."""

import json
import shutil
import subprocess

import pytest

from guardwrap.constraints.files.constraint_data import catalogue_names
from guardwrap.support.files import adapters
from tests.cli.fixtures_commands import HAS_A, TWO_PARTS, assert_one_line, python, run, texts

pytestmark = pytest.mark.usefixtures("command_line")


def test_check_runs_the_examples(tmp_path):
    (tmp_path / "two.yaml").write_text(TWO_PARTS)
    result = run("check", "two.yaml")
    assert result.exit_code == 0, result.output
    assert "two.yaml: valid, 2 parts" in result.stdout
    assert "4 of 4 examples as expected" in result.stdout


def test_check_names_all_failing_parts(tmp_path):
    (tmp_path / "two.yaml").write_text(TWO_PARTS)
    result = run("check", "two.yaml", *texts("zzzzzzzzz", "abc", "xyz"))
    assert result.exit_code == 1
    first, second, third, count = result.stdout.splitlines()[-4:]
    reasons = "'has an a', 'short' (has 9 characters, not at most 5)"
    assert first == f"! text 1 rejected by {reasons}, but expected to pass: 'zzzzzzzzz'"
    assert second == "text 2 accepted: 'abc'"
    assert third == "! text 3 rejected by 'has an a', but expected to pass: 'xyz'"
    assert count == "1 of 3 texts as expected; the others are marked with !"
    (tmp_path / "texts.txt").write_text("abc\n\n")
    result = run("check", "two.yaml", "--file", "texts.txt")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-2] == "! text 2 rejected by 'has an a', but expected to pass: ''"
    assert run("check", "two.yaml", "--text", "abc", "--file", "-", stdin="ba\n").exit_code == 0


def test_check_lists_examples_that_are_wrong(tmp_path):
    wrong = TWO_PARTS.replace("[abc, a]", "[abc, zzzzzzz]").replace("[xyz, ", "[xyz, ab, ")
    (tmp_path / "two.yaml").write_text(wrong)
    result = run("check", "two.yaml")
    assert result.exit_code == 1
    assert "3 of 5 examples as expected" in result.stdout
    assert (
        "listed under accepts, but rejected by 'has an a', 'short' (has 7 characters, not at most 5): 'zzzzzzz'"
        in result.stdout
    )
    assert "listed under rejects, but accepted by every part: 'ab'" in result.stdout


def test_check_says_what_in_a_json_text_is_wrong(tmp_path):
    schema = {"required": ["a"], "properties": {"a": {"items": {"type": "string"}}}}
    part = {"kind": "json_schema", "name": "list", "schema": schema}
    (tmp_path / "json.yaml").write_text(json.dumps({"guardwrap": 1, "constraint": [part, part]}))
    result = run("check", "json.yaml", *texts('{"a": ["b", 1]}', '{"a"', '{"a": []}'))
    first, second, third, _ = result.stdout.splitlines()[-4:]
    reason = "'list' ($.a[1]: 1 is not of type 'string')"
    assert first == f"! text 1 rejected by {reason}, {reason}, but expected to pass: " + """'{"a": ["b", 1]}'"""
    assert "(is not JSON: Expecting ':' delimiter: line 1 column 5), " in second
    assert third == """text 3 accepted: '{"a": []}'"""


NOTED = """\
guardwrap: 1
constraint:
- kind: json_schema
  name: drink
  schema:
    propertys: {a: {type: string}}
    properties: {b: {minlength: 3, example: x, x-own: 1}}
- {kind: json_schema, name: older, schema: {$schema: "http://json-schema.org/draft-07/schema#", prefixItems: [{}]}}
- {kind: not, of: {kind: keyword, words: "tea, coffee"}}
- {kind: length, name: brief, max: 5, unit: tokens}
- {kind: length, name: short, max: 8}
examples:
  accepts: ["{}"]
  rejects: ["{\\"b\\": 12345}"]
"""


def test_check_notes_what_is_valid_and_perhaps_not_meant(tmp_path):
    """A misspelled keyword of a schema has no effect, and the tokens of a text are not known: both get a note."""
    (tmp_path / "noted.yaml").write_text(NOTED)
    result = run("check", "noted.yaml", *texts("{}", "123456789"))
    assert result.exit_code == 1, result.output
    told = [line.removeprefix("note: ") for line in result.stdout.splitlines() if line.startswith("note: ")]
    assert told == [
        "'brief' counts tokens, which are known for generated texts only; it is not checked here",
        "'drink' allows keys that it does not declare in 'b', so the model may add some; "
        "to forbid them, set additionalProperties: false",
        "'minlength' in 'drink' is not a JSON Schema keyword and has no effect (did you mean 'minLength'?)",
        "'propertys' in 'drink' is not a JSON Schema keyword and has no effect (did you mean 'properties'?)",
        "'prefixItems' in 'older' has no effect: it is not a keyword of draft 7, which $schema declares, "
        "but of draft 2020-12 and later",
        "'tea, coffee' is one phrase; for several words write a list: [tea, coffee]",
    ]
    assert "2 of 2 examples as expected" in result.stdout
    assert result.stdout.endswith(
        "text 1 accepted: '{}'\n"
        "! text 2 rejected by 'short' (has 9 characters, not at most 8), but expected to pass: '123456789'\n"
        "1 of 2 texts as expected; the others are marked with !\n"
    )
    assert json.loads(run("check", "noted.yaml", "--json").stdout)["notes"] == told


def test_check_notes_numbers_and_line_breaks_that_yaml_reads_otherwise(tmp_path):
    (tmp_path / "odd.yaml").write_text(
        "guardwrap: 1\nconstraint:\n- {kind: length, min: 1, max: 010, unit: words}\n- kind: regex\n  name: a\n"
        '  pattern: |\n    tea\n- {kind: regex, name: b, flags: [verbose], pattern: "x\\n"}\n'
    )
    told = [line for line in run("check", "odd.yaml").stdout.splitlines() if line.startswith("note: ")]
    assert told == [
        "note: line 3: 010 is 8, because a number that begins with 0 is octal; write 8 if you mean that",
        "note: pattern of 'a' ends with a line break, which the text must have too; write |- instead of |",
    ]


@pytest.mark.parametrize(
    ("rule", "more", "noted"),
    [
        ("{kind: length, max: 5, unit: words}", "", True),
        ("{kind: not, of: {kind: regex, pattern: x}}", "", True),
        ("{kind: not, of: {kind: regex, pattern: x}}", "examples: {accepts: ['']}", False),
        ("{kind: length, min: 1, max: 5, unit: words}", "", False),
        ("{kind: regex, pattern: a, on: answer}", "", False),
        ("{kind: python, function: 'cli_crash:bad'}", "", False),
        ("{kind: length, max: '{n}'}", "fields: [n]", False),
    ],
)
def test_a_rule_that_the_empty_text_passes_gets_a_note(tmp_path, rule, more, noted):
    (tmp_path / "cli_crash.py").write_text("def bad(text):\n    raise ValueError(text)\n")
    (tmp_path / "rules.yaml").write_text(f"guardwrap: 1\nconstraint: {rule}\n{more}\n")
    result = run("check", "rules.yaml", "--allow-code")
    assert result.exit_code == 0, result.output
    assert ("note: the empty text passes; if it should not, add" in result.stdout) is noted
    assert len(json.loads(run("check", "rules.yaml", "--allow-code", "--json").stdout)["notes"]) == noted


@pytest.mark.parametrize("name", catalogue_names())
def test_the_catalogue_gets_no_notes(name):
    assert "note: " not in run("check", f"catalogue:{name}").stdout


def test_check_as_json(tmp_path):
    (tmp_path / "two.yaml").write_text(TWO_PARTS)
    result = run("check", "two.yaml", "--json", "--text", "zzzzzzzzz")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert data["ok"] is False
    assert data["parts"] == ["has an a", "short"]
    assert data["examples"][2] == {
        "text": "xyz",
        "expected": False,
        "failed": ["has an a"],
        "reasons": [],
        "accepted": False,
    }
    assert data["texts"] == [
        {
            "text": "zzzzzzzzz",
            "expected": True,
            "accepted": False,
            "failed": ["has an a", "short"],
            "reasons": ["has 9 characters, not at most 5"],
        }
    ]
    assert run("check", "two.yaml", "--digest").stdout == data["digest"] + "\n"


def test_check_bad_files(tmp_path):
    (tmp_path / "bad.yaml").write_text("guardwrap: 1\nconstraint: {kind: regx, pattern: a}\n")
    assert_one_line(run("check", "bad.yaml"), "bad.yaml:2", "did you mean 'regex'")
    assert_one_line(run("check", "missing.yaml"), "missing.yaml")
    assert_one_line(run("check", "catalogue:no-url"), "did you mean 'no-urls'")
    assert_one_line(run("check", "bad.yaml", "--json"), "bad.yaml:2")


def test_check_reads_the_sampler_too(tmp_path):
    (tmp_path / "c.yaml").write_text(HAS_A + "sampler: {qrs: {pilot: 5}}\n")
    assert run("check", "c.yaml", "--text", "a").exit_code == 0
    (tmp_path / "c.yaml").write_text(HAS_A + "sampler: {qrs: {pilt: 5}}\n")
    assert_one_line(
        run("check", "c.yaml", "--text", "a"), "c.yaml:", "sampler.qrs.pilt: unknown field", "did you mean 'pilot'"
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("sampler: qsr", "sampler: unknown sampler 'qsr' (did you mean 'qrs'?)"),
        ("sampler: {imh: {stps: 3}}", "sampler.imh.stps: unknown field 'stps' (did you mean 'steps'?)"),
        ("sampler: {qrs: {target_tvd: 2}}", "sampler.qrs"),
        ("sampler: {rejection: {steps: 3}}", "sampler.rejection"),
        ("proposal: maskd", "proposal: 'maskd' is not one of masked, twisted (did you mean 'masked'?)"),
        ("proposal: {masked: {unsee: 0.1}}", "proposal.masked.unsee: unknown field 'unsee' (did you mean 'unseen'?)"),
        ("proposal: {prompt: no place}", "proposal.prompt: Prompt('no place') needs {prompt}"),
        ("adapter: catalogue:dragn", "adapter: unknown adapter 'dragn' (did you mean 'dragon'?)"),
        ("adapter: ./nowhere", "adapter: there is no folder 'nowhere'"),
        ("constraint: catalogue:no-url", "unknown catalogue entry 'no-url' (did you mean 'no-urls'?)"),
        (
            "constraint: {kind: not, of: {file: tw.yaml}}",
            "constraint.of: there is no file 'tw.yaml' (did you mean 'two.y",
        ),
        ("constraint: {kind: json_schema, file: nowhere.json}", "cannot read 'nowhere.json'"),
        ("constraint: {kind: grammar, file: nowhere.lark}", "cannot read 'nowhere.lark'"),
    ],
)
def test_check_finds_what_would_be_found_at_first_use(tmp_path, line, says):
    (tmp_path / "two.yaml").write_text(TWO_PARTS)
    head = "guardwrap: 1\nname: x\n"
    head += "constraint: {kind: regex, pattern: a}\n" if not line.startswith("constraint") else "description: y\n"
    (tmp_path / "c.yaml").write_text(head + line + "\n")
    assert_one_line(run("check", "c.yaml"), "c.yaml:4: ", says)


def test_check_says_when_a_checker_crashes_without_quoting_the_text(tmp_path):
    (tmp_path / "cli_crash.py").write_text("def bad(text):\n    raise ValueError(text)\n")
    (tmp_path / "code.yaml").write_text("guardwrap: 1\nconstraint: {kind: python, function: 'cli_crash:bad'}\n")
    result = run("check", "code.yaml", "--allow-code", "--text", "secret")
    assert_one_line(result, "cli_crash:bad", "ValueError")
    assert "secret" not in result.output


DRAGON = "guardwrap: 1\nconstraint: {kind: keyword, words: [dragon]}\nadapter: "
OTHER = DRAGON.replace("[dragon]", "[drgon]")


@pytest.mark.parametrize("adapter", ["catalogue:dragon", "./mine", "{source: ./mine, allow_mismatch: false}"])
def test_check_says_when_the_adapter_was_trained_for_another_constraint(tmp_path, adapter):
    shutil.copytree(adapters()["dragon"], tmp_path / "mine")
    (tmp_path / "c.yaml").write_text(DRAGON + adapter)
    assert run("check", "c.yaml").exit_code == 0, "it is for this one"
    (tmp_path / "c.yaml").write_text(OTHER + adapter)
    says = (
        "c.yaml:3: adapter: the adapter '",
        """trained for another constraint, "Keyword(words=['dragon'])", than Keyword(words=['drgon'])""",
        "allow_mismatch",
    )
    assert_one_line(run("check", "c.yaml"), *says)
    stricter = "[{kind: keyword, words: [dragon]}, {kind: length, max: 50}]"
    (tmp_path / "c.yaml").write_text(DRAGON.replace("{kind: keyword, words: [dragon]}", stricter) + adapter)
    assert run("check", "c.yaml").exit_code == 0, "it demands that too"
    (tmp_path / "c.yaml").write_text(OTHER + adapter)
    assert run("check", "c.yaml", "--digest").exit_code == 0, "a digest is of the constraint alone"


def test_check_takes_an_adapter_for_another_constraint_that_is_allowed_or_not_known_to_be_one(tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(adapters()["dragon"], folder)
    (tmp_path / "c.yaml").write_text(OTHER + "{source: ./mine, allow_mismatch: true}")
    assert run("check", "c.yaml").exit_code == 0
    (tmp_path / "c.yaml").write_text(OTHER + "./mine")
    assert run("check", "c.yaml").exit_code == 2
    (folder / "card.yaml").rename(folder / "card.txt")  # an adapter of peft's
    assert run("check", "c.yaml").exit_code == 0
    (tmp_path / "c.yaml").write_text(OTHER + "somebody/on-the-hub")  # nothing is downloaded
    assert run("check", "c.yaml").exit_code == 0


def test_check_names_the_line_of_a_card_that_says_nothing(tmp_path):
    shutil.copytree(adapters()["dragon"], tmp_path / "mine")
    (tmp_path / "mine" / "card.yaml").write_text("guardwrap_adapter: 1\n")
    (tmp_path / "c.yaml").write_text(DRAGON + "./mine")
    assert_one_line(run("check", "c.yaml"), "card.yaml:1", "constraint_digest")


def test_a_card_is_read_without_torch(tmp_path):
    (tmp_path / "c.yaml").write_text(OTHER + "catalogue:dragon")
    code = (
        "import sys\nfrom guardwrap.cli import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert end.code == 2, end.code\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    process = python(code, "check", tmp_path / "c.yaml", stderr=subprocess.PIPE)
    assert "another constraint" in process.communicate()[1]
    assert process.returncode == 0


BROKEN = "guardwrap: 1\nconstraint: {kind: regx, pattern: a}\n"
WRONG = HAS_A + "examples: {accepts: [b]}\n"


@pytest.fixture
def rules(tmp_path):
    """A folder with a valid file, one with a wrong example, and one that is invalid."""
    (tmp_path / "rules" / "more").mkdir(parents=True)
    (tmp_path / "rules" / "b-two.yaml").write_text(TWO_PARTS)
    (tmp_path / "rules" / "a-broken.yaml").write_text(BROKEN)
    (tmp_path / "rules" / "more" / "wrong.yml").write_text(WRONG)
    return tmp_path / "rules"


@pytest.mark.usefixtures("rules")
def test_every_file_is_checked_and_the_worst_one_sets_the_exit_code():
    result = run("check", "rules/a-broken.yaml", "rules/b-two.yaml", "rules/more/wrong.yml", "catalogue:no-urls")
    assert result.exit_code == 2
    (error,) = result.stderr.splitlines()
    assert error.startswith("guardwrap: rules/a-broken.yaml:2: ")
    lines = result.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines if ": valid" in line] == [
        "rules/b-two.yaml",
        "rules/more/wrong.yml",
        "catalogue",
    ]
    assert lines[-1] == "4 files: 2 as expected, 1 with unexpected results, 1 invalid"
    assert run("check", "rules/b-two.yaml", "rules/more/wrong.yml").exit_code == 1
    assert run("check", "rules/more/wrong.yml", "rules/b-two.yaml").exit_code == 1
    assert run("check", "rules/b-two.yaml", "catalogue:no-urls").exit_code == 0
    assert run("check", "rules/b-two.yaml", "rules/a-broken.yaml").exit_code == 2


def test_a_folder_stands_for_the_files_below_it(rules):
    result = run("check", "rules")
    assert result.exit_code == 2
    assert result.stdout.endswith("\n3 files: 1 as expected, 1 with unexpected results, 1 invalid\n")
    (rules / "a-broken.yaml").unlink()
    (rules / "more" / "wrong.yml").unlink()
    result = run("check", "rules")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "1 file: 1 as expected")
    (rules / "card.yaml").write_text("title: not a rule\n")
    result = run("check", "rules")
    assert result.exit_code == 2
    assert "guardwrap: rules/card.yaml:1: " in result.stderr
    assert "keep other YAML files out of the folder, or name the constraint files" in result.stderr


def test_an_error_without_the_name_of_its_file_gets_it(tmp_path):
    (tmp_path / "cli_crash.py").write_text("def bad(text):\n    raise ValueError(text)\n")
    (tmp_path / "code.yaml").write_text("guardwrap: 1\nconstraint: {kind: python, function: 'cli_crash:bad'}\n")
    (tmp_path / "fields.yaml").write_text("guardwrap: 1\nfields: [n]\nconstraint: {kind: regex, pattern: '{n}'}\n")
    result = run("check", "code.yaml", "fields.yaml", "--allow-code", "--text", "a")
    assert result.exit_code == 2
    crash, missing = result.stderr.splitlines()
    assert crash.startswith("guardwrap: code.yaml: ")
    assert missing.startswith("guardwrap: fields.yaml: ")
    assert "examples: fields:" in missing


def test_a_text_in_the_place_of_a_file_is_an_error_that_names_the_option(tmp_path):
    (tmp_path / "two.yaml").write_text(TWO_PARTS)
    result = run("check", "two.yaml", "A glass of water.")
    assert result.exit_code == 2
    said = "guardwrap: there is no file or folder 'A glass of water.'; pass a text to check with --text\n"
    assert result.stderr == said
    assert_one_line(run("check", "a" * 5000), "--text")


@pytest.mark.usefixtures("rules")
def test_texts_are_checked_with_every_file_and_their_expected_verdict(tmp_path):
    rows = ["abc", {"text": "xyz", "expected": "fail"}, {"text": "b", "expected": False}, {"text": "a", "id": 7}]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    result = run("check", "rules/b-two.yaml", "catalogue:no-urls", "--file", "texts.jsonl")
    assert result.exit_code == 1, "no-urls accepts xyz"
    assert "text 2 rejected by 'has an a', as expected: 'xyz'" in result.stdout
    assert "text 2 accepted, but expected to fail: 'xyz'" in result.stdout
    assert run("check", "rules/b-two.yaml", "--file", "texts.jsonl").exit_code == 0
    (tmp_path / "texts.jsonl").write_text('{"text": "abc", "expected": "fail"}')
    assert run("check", "rules/b-two.yaml", "--file", "texts.jsonl").exit_code == 1


@pytest.mark.usefixtures("rules")
def test_json_of_several_files_is_one_object():
    result = run("check", "rules", "--json", "--text", "ab")
    assert result.exit_code == 2
    data = json.loads(result.stdout)
    broken, two, wrong = data["files"]
    assert data["ok"] is False
    assert (broken["file"], broken["ok"]) == ("rules/a-broken.yaml", False)
    assert "did you mean 'regex'" in broken["error"]
    assert (two["file"], two["ok"], two["texts"][0]["accepted"]) == ("rules/b-two.yaml", True, True)
    assert (wrong["file"], wrong["ok"]) == ("rules/more/wrong.yml", False)
    (nowhere,) = json.loads(run("check", "rules/b-two.yaml", "nowhere.yaml", "--json").stdout)["files"][1:]
    assert (nowhere["file"], nowhere["ok"]) == ("nowhere.yaml", False)


@pytest.mark.usefixtures("rules")
def test_digests_of_several_files_have_their_names():
    one = run("check", "rules/b-two.yaml", "--digest").stdout.strip()
    result = run("check", "rules/b-two.yaml", "rules/more/wrong.yml", "rules/a-broken.yaml", "--digest")
    assert result.exit_code == 2
    first, second = result.stdout.splitlines()
    assert first == f"{one}  rules/b-two.yaml"
    assert second.endswith("  rules/more/wrong.yml")


MESSAGES = """\
guardwrap: 1
constraint:
  - {kind: json_schema, name: JSON, schema: {type: object}, on: answer}
  - {kind: not, name: no secret, of: {kind: regex, pattern: secret, on: reasoning}}
  - {kind: tool_calls, name: tools, tools: [{name: f, parameters: {properties: {x: {type: integer}}}}]}
examples:
  accepts:
    - message: {content: '{"a": 1}', reasoning: "Braces: {"}
    - message: {content: '{}', reasoning: think, tool_calls: [{name: f, arguments: {x: 1}}]}
  rejects:
    - message: {content: 'Here: {}', reasoning: think}
    - message: {content: '{}', reasoning: a secret}
    - message: {content: '{}', reasoning: think, tool_calls: [{name: f, arguments: {x: a}}]}
    - message: {content: '{}', reasoning: think, tool_calls: [{name: g}]}
    - message: {reasoning: think}
"""


def test_rules_on_parts_of_messages_are_checked_with_messages(tmp_path):
    (tmp_path / "rules.yaml").write_text(MESSAGES)
    lines = [
        {"message": {"content": "{}", "reasoning": "a"}},
        {"message": {"content": "no", "reasoning": "a"}, "expected": "fail"},
        {"message": {"content": "no", "reasoning": "a"}},
    ]
    (tmp_path / "messages.jsonl").write_text("\n".join(map(json.dumps, lines)))
    result = run("check", "rules.yaml", "--file", "messages.jsonl")
    assert "7 of 7 examples as expected" in result.stdout
    first, second, third, count = result.stdout.splitlines()[-4:]
    assert first.startswith("text 1 accepted")
    assert second.startswith("text 2 rejected by 'JSON' (is not JSON")
    assert ", as expected: " in second
    assert third.startswith("! text 3 rejected by 'JSON'")
    assert count == "2 of 3 texts as expected; the others are marked with !"
    assert (result.exit_code, run("check", "rules.yaml").exit_code) == (1, 0)
    wrong = MESSAGES.replace("reasoning: a secret", "reasoning: a secert")
    (tmp_path / "wrong.yaml").write_text(wrong)
    assert "6 of 7 examples as expected" in run("check", "wrong.yaml").stdout


def test_a_text_for_a_rule_on_messages_is_an_error_with_a_way_out(tmp_path):
    for on in ("answer", "reasoning", "tool_calls"):
        (tmp_path / "rules.yaml").write_text(f"guardwrap: 1\nconstraint: {{kind: regex, pattern: a, on: {on}}}\n")
        result = run("check", "rules.yaml", "--text", "a")
        assert_one_line(result, f"rules.yaml: a rule judges a part of messages ({on})", '{"message": {"content": "..."')
        assert run("check", "rules.yaml").exit_code == 0
    (tmp_path / "rules.yaml").write_text(
        "guardwrap: 1\nconstraint: {kind: regex, pattern: a, on: answer}\nexamples: {accepts: [a]}\n"
    )
    assert_one_line(run("check", "rules.yaml"), "and a text under examples: is no message: give messages there")


def test_texts_and_messages_go_to_their_files(tmp_path):
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "answer.yaml").write_text("guardwrap: 1\nconstraint: {kind: regex, pattern: a, on: answer}\n")
    (folder / "text.yaml").write_text(HAS_A)
    lines = [{"message": {"content": "a"}}, {"text": "a", "rule": "text"}]
    lines += [{"message": {"content": "b"}, "rule": "answer.yaml", "expected": "fail"}]
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    result = run("check", "rules", "--file", "texts.jsonl", "--json")
    assert result.exit_code == 0, result.output
    checked = {
        each["file"]: [text["expected"] for text in each["texts"]] for each in json.loads(result.stdout)["files"]
    }
    assert checked == {"rules/answer.yaml": [True, False], "rules/text.yaml": [True, True]}
    path.write_text(path.read_text().replace('"text"}', '"txt"}'))
    meant = """texts.jsonl:2: "rule" names no file that is checked: 'txt' (did you mean 'text'?)"""
    assert_one_line(run("check", "rules", "--file", "texts.jsonl"), meant)


def test_a_text_that_is_no_message_is_named_and_its_file_is_not_called_invalid(tmp_path):
    (tmp_path / "answer.yaml").write_text("guardwrap: 1\nconstraint: {kind: regex, pattern: a, on: answer}\n")
    (tmp_path / "text.yaml").write_text(HAS_A)
    (tmp_path / "texts.jsonl").write_text('{"message": {"content": "a"}}\n"a"\n')
    result = run("check", "answer.yaml", "text.yaml", "--file", "texts.jsonl")
    assert result.exit_code == 2
    assert result.stderr.startswith(
        "guardwrap: answer.yaml: a rule judges a part of messages (answer), and the text of "
    )
    assert 'texts.jsonl:2 is no message: in a .jsonl file for --file, give "rule" with' in result.stderr
    assert result.stdout.endswith("2 files: 1 as expected, 1 with a text that is no message\n")
