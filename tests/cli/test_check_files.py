"""Arguments of ``guardwrap check``: which files and texts they stand for."""

import pytest

from guardwrap.cli.commands.check_command import (
    ExpectedText,
    constraint_files,
    require_rules,
    texts_for,
    texts_to_check,
)
from guardwrap.errors import PromptError


def names(*targets):
    return [name for name, error in constraint_files(targets) if error is None]


def errors(*targets):
    return [str(error) for _, error in constraint_files(targets) if error is not None]


def test_folders_are_expanded_in_order_and_each_file_comes_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a" / "z").mkdir(parents=True)
    for name in ("a/b.yml", "a/c.yaml", "a/z/a.yaml", "a/notes.txt", "d.yaml"):
        (tmp_path / name).touch()
    (tmp_path / "a" / "folder.yaml").mkdir()
    assert names("d.yaml", "a", "a/c.yaml") == ["d.yaml", "a/b.yml", "a/c.yaml", "a/z/a.yaml"]
    assert names("catalogue:no-urls", "catalogue:no-urls") == ["catalogue:no-urls"]


def test_what_names_no_file_is_an_error_with_a_way_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "rules.yaml").touch()
    assert errors("empty") == ["there is no .yaml or .yml file in the folder 'empty'; name a constraint file"]
    tail = "; pass a text to check with --text"
    assert errors("rule.yaml") == [f"there is no file or folder 'rule.yaml' (did you mean 'rules.yaml'?){tail}"]
    meant = " (did you mean catalogue:no-urls?)"
    assert errors("no-urls", "rules.yaml") == [f"there is no file or folder 'no-urls'{meant}{tail}"]
    assert errors("nowhere/at all", "x" * 5000)[0] == f"there is no file or folder 'nowhere/at all'{tail}"


def test_lines_are_texts_and_lines_of_json_have_expectations(tmp_path):
    plain, rows = tmp_path / "texts.txt", tmp_path / "texts.jsonl"
    plain.write_text('{"text": "a"}\n\n')
    lines = ['"a\\nb"', '{"text": "c", "expected": "pass"}', '{"text": "d", "expected": "fail", "context": 1}']
    lines += ['{"text": "e", "expected": false}', '{"message": {"content": "f"}, "expected": "fail"}']
    lines += ['{"text": "g", "rule": "tea.yaml", "role": "user"}']
    rows.write_text("\n".join(lines))
    texts, records = texts_to_check(["x"], [str(plain), str(rows)])
    assert records == []
    assert texts == [
        ExpectedText("x"),
        ExpectedText('{"text": "a"}'),
        ExpectedText(""),
        ExpectedText("a\nb"),
        ExpectedText("c"),
        ExpectedText("d", False),
        ExpectedText("e", False),
        ExpectedText({"content": "f"}, False),
        ExpectedText("g", rule="tea.yaml"),
    ]
    assert [text.where for text in texts[:3]] == ["--text", f"{plain}:1", f"{plain}:2"]


@pytest.mark.parametrize(
    ("rule", "files"),
    [
        (None, ["a/tea.yaml", "b/tea.yml", "b/coffee.yaml", "catalogue:tea"]),
        ("tea", ["a/tea.yaml", "b/tea.yml", "catalogue:tea"]),
        ("tea.yaml", ["a/tea.yaml"]),
        ("./b/tea", ["b/tea.yml"]),
        ("catalogue:tea", ["a/tea.yaml", "b/tea.yml", "catalogue:tea"]),
        ("b/coffee.yaml", ["b/coffee.yaml"]),
    ],
)
def test_a_rule_is_the_end_of_a_path(rule, files):
    names = ["a/tea.yaml", "b/tea.yml", "b/coffee.yaml", "catalogue:tea"]
    texts = [ExpectedText("x", rule=rule)]
    require_rules(texts, names)
    assert [name for name in names if texts_for(name, texts)] == files


@pytest.mark.parametrize(
    ("rule", "meant"),
    [
        ("tee", " (did you mean 'tea'?)"),
        ("cofee.yaml", " (did you mean 'coffee.yaml'?)"),
        ("c/tea.yaml", " (did you mean 'a/tea.yaml'?)"),
        ("ea.yaml", " (did you mean 'tea.yaml'?)"),
        ("zzz", ""),
    ],
)
def test_a_rule_that_is_no_file_is_an_error(rule, meant):
    texts = [ExpectedText("x"), ExpectedText("y", rule=rule, where="texts.jsonl:2")]
    with pytest.raises(PromptError) as caught:
        require_rules(texts, [".", "a/tea.yaml", "b/coffee.yaml"])
    assert str(caught.value) == f'texts.jsonl:2: "rule" names no file that is checked: {rule!r}{meant}'


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("tea", "not JSON"),
        ("", "not JSON"),
        ("7", 'give a string, or an object with "text"'),
        ('{"txt": "a"}', 'an object with "text"'),
        ('{"text": 1}', 'an object with "text"'),
        ('{"text": "a", "expected": "maybe"}', '"expected" must be "pass" or "fail"'),
        ('{"text": "a", "expected": 1}', '"expected" must be "pass" or "fail"'),
        ('{"text": "a", "expect": "fail"}', "unknown field 'expect' (did you mean 'expected'?)"),
        ('{"text": "a", "rules": "b.yaml"}', "unknown field 'rules' (did you mean 'rule'?)"),
        ('{"text": "a", "rule": ["b.yaml"]}', '"rule" must be the name of a constraint file'),
        ('{"text": "a", "rule": ""}', '"rule" must be the name of a constraint file'),
        ('{"text": "\\ud800"}', "surrogate"),
        ('{"message": "a"}', "message: must be a mapping of fields"),
        ('{"message": {"contents": "a"}}', "unknown field 'contents' (did you mean 'content'?)"),
        ('{"message": {"tool_calls": [{"name": 1}]}}', "message: tool_calls.0.name: must be a string"),
        ('{"text": "a", "message": {"content": "a"}}', 'an object with "text" (a string) or "message"'),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, says):
    path = tmp_path / "texts.jsonl"
    path.write_text(f'"a"\n{line}\n')
    with pytest.raises(PromptError, match=r"texts\.jsonl:2: ") as caught:
        texts_to_check([], [str(path)])
    assert says in str(caught.value)
