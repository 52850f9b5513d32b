"""``guardwrap check`` with messages, for rules that judge a part of them."""

import json

import pytest

from tests.cli.fixtures_commands import HAS_A, assert_one_line, run

pytestmark = pytest.mark.usefixtures("command_line")

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
