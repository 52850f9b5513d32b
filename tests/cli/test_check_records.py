"""``guardwrap check --file`` with output of ``guardwrap generate``."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaForCausalLM

from guardwrap.calls import records as output_records
from guardwrap.calls.records import checksum_of
from tests.cli.fixtures_commands import HAS_A, NEVER, assert_one_line, generate, records, run

pytestmark = pytest.mark.usefixtures("command_line")
RULES = """\
guardwrap: 1
constraint:
- {kind: regex, name: has an a, pattern: a}
- {kind: length, max: 30}
budget: {max_attempts: 500}
"""
LINES = [
    {"prompt": "ab"},
    {"prompt": "cd", "constraint": {"kind": "regex", "name": "has a b", "pattern": "b"}},
    {"prompt": "ef", "budget": {"max_attempts": 400}, "id": 7},
]


@pytest.fixture
def output(model: str) -> list[dict[str, Any]]:
    Path("c.yaml").write_text(RULES)
    Path("in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    result = generate(model, "--jsonl", "in.jsonl", "-c", "c.yaml", "-n", 2, "-o", "out.jsonl", "--seed", 1)
    assert result.exit_code == 0, result.output
    return records(Path("out.jsonl").read_text())


def check(*options: Any, code: int = 0) -> str:
    """Return what is printed behind the lines about the constraint file itself."""
    result = run("check", "c.yaml", "--file", "out.jsonl", *options)
    assert result.exit_code == code, result.output
    assert not result.stderr, result.stderr
    lines = str(result.stdout).splitlines(keepends=True)
    return "".join(line for line in lines if not re.match("c.yaml: valid|no examples|note: '.*not checked here", line))


def audit(code: int = 0) -> Any:
    return json.loads(check("--json", code=code))["records"]


def write(lines: list[dict[str, Any]], *, sealed: bool = True) -> None:
    """Write the lines; with ``sealed``, as someone who forges them would, with checksums that fit."""
    for line in lines:
        if sealed:
            line["report"]["checksum"] = checksum_of(line)
    Path("out.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_all_hold(model: str, output: Any) -> None:
    assert check() == "3 records with 6 texts: all hold\n"
    assert check("-n", 2, "--model", model) == "3 records with 6 texts: all hold\n"
    data = audit()
    of_all = {"repeated": 0, "shares": {}}
    assert data == {"ok": True, "records": 3, "texts": 6, "short": 0, "not_judged": {}, **of_all, "violations": []}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"texts": ["a", "no"]}, "out.jsonl:2: text 2 is rejected by 'has an a', 'has a b'\n"),
        ({"texts": ["ab" * 20, "ab"]}, "text 1 is rejected by 'Length(max=30)' (has 40 characters, not at most 30)"),
        ({"texts": ["ab"]}, "out.jsonl:2: has 1 text, and its report 2 of 2"),
        ({"texts": ["ab", "ab", "ab"]}, "out.jsonl:2: has 3 texts, and its report 2 of 2"),
        ({"ok": False}, "out.jsonl:2: says ok: false, with 2 of 2 texts"),
        ({"report": {"accepted": None}}, "does not say how many texts were requested and accepted"),
        ({"report": {"constraint": "0" * 64}}, "out.jsonl:2: was made with other rules (digest 000000000000, not "),
        ({"report": {"usage": {"attempts": 501}}}, "out.jsonl:2: took 501 attempts, above its limit of 500"),
        ({"report": {"usage": {}}}, "took None attempts"),
        ({"report": {"budget": {"max_attempts": 600}}}, "was made with max_attempts 600, above the limit of 500"),
        ({"report": {"budget": {}}}, "was made with max_attempts unlimited, above the limit of 500"),
    ],
)
def test_what_is_forged_is_a_violation(output: list[dict[str, Any]], changes: dict[str, Any], says: str) -> None:
    report = changes.get("report", {})
    output[1] |= {name: value for name, value in changes.items() if name != "report"}
    output[1]["report"] |= report
    write(output)
    out = check(code=1)
    assert says in out
    assert out.endswith(" texts: 1 record with violations\n")
    assert audit(code=1)["violations"][0]["where"] == "out.jsonl:2"


def test_what_was_changed_is_a_violation(output: list[dict[str, Any]]) -> None:
    output[0]["texts"][0] = "a text with an a"
    write(output, sealed=False)
    assert check(code=1).startswith("out.jsonl:1: was changed after it was written\n")


def test_negative_control_texts_that_are_not_judged(
    output: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    output[0]["texts"][0] = "no"
    write(output)
    check(code=1)
    monkeypatch.setattr(output_records, "judged_again", lambda *_, **__: ([], ()))
    check()


def test_other_rules_and_another_model(model: str, output: Any) -> None:
    Path("c.yaml").write_text(RULES.replace("max: 30", "max: 31"))
    out = check(code=1)
    assert out.count("was made with other rules") == 3
    Path("c.yaml").write_text(RULES.replace("500", "300"))
    out = check(code=1)
    assert "out.jsonl:1: was made with max_attempts 500, above the limit of 300" in out
    assert "out.jsonl:3" not in out, "this line has a limit of its own"
    Path("c.yaml").write_text(RULES)
    shutil.copytree(model, "other")
    assert check("--model", "other").endswith("all hold\n")
    changed = LlamaForCausalLM.from_pretrained("other")
    changed.lm_head.weight.data[0, 0] += 1
    changed.save_pretrained("other")
    assert check("--model", "other", code=1).count("was made with other files of the model") == 3
    assert check("-n", 3, code=1).count("has 2 texts of 2 requested, not 3") == 3


def test_files_behind_rules(model: str) -> None:
    code = "def fine(text):\n    return True\n"
    Path("verified_rule.py").write_text(code)
    Path("c.yaml").write_text(
        HAS_A.replace("constraint: ", "constraint:\n- ") + "- {kind: python, function: 'verified_rule:fine'}\n"
    )
    result = generate(model, "ab", "-c", "c.yaml", "--allow-code", "-o", "out.jsonl")
    assert result.exit_code == 0, result.output
    assert check("--allow-code").endswith("all hold\n")
    Path("verified_rule.py").write_text(code.replace("True", "1 > 0"))
    assert "was made with other files of the rule: verified_rule" in check("--allow-code", code=1)


def test_what_records_lack_is_noted(model: str) -> None:
    """A record has neither the tokens of a text nor how it ended, and a chat's prompt as text depends on the model."""
    rules = "- {kind: regex, pattern: a}\n- {kind: length, unit: tokens, max: 9}\n- {kind: finished}\n"
    rules += "- {kind: no_copy, words: 50}\n"
    Path("c.yaml").write_text(f"guardwrap: 1\nconstraint:\n{rules}")
    Path("in.jsonl").write_text('{"prompt": "ab"}\n{"messages": [{"role": "user", "content": "cd"}]}\n')
    result = generate(model, "--jsonl", "in.jsonl", "-c", "c.yaml", "-o", "out.jsonl", "--seed", 1)
    assert result.exit_code == 0, result.output
    out = check()
    assert out.splitlines()[-1] == "2 records with 2 texts: all hold"
    assert "reads what no record has, so it judged none of the texts of 2 records" in out
    assert audit()["not_judged"] == {
        "Length(max=9, unit='tokens')": 2,
        "Finished()": 2,
        "NoCopy(words=50)": 1,
    }


def test_short_records_are_noted_and_are_violations_of_a_number(model: str) -> None:
    Path("c.yaml").write_text(NEVER)
    assert generate(model, "ab", "-c", "c.yaml", "--max-attempts", 2, "-o", "out.jsonl").exit_code == 3
    assert check() == "note: 1 record with fewer texts than requested\n1 record with 0 texts: all hold\n"
    assert "has 0 texts of 1 requested, not 1" in check("-n", 1, code=1)


def test_what_cannot_be_read(output: list[dict[str, Any]]) -> None:
    for text, says in [
        ("{", "out.jsonl:1: not JSON"),
        (json.dumps(output[0]).replace('"ok"', '"texts": ["b"], "ok"'), "out.jsonl:1: not JSON"),  # twice
    ]:
        Path("out.jsonl").write_text(text and f"{text}\n")
        assert_one_line(run("check", "c.yaml", "--file", "out.jsonl"), says)
    assert_one_line(run("check", "c.yaml", "--file", "nowhere.jsonl"), "nowhere.jsonl")
    write(output)
    assert_one_line(run("check", "c.yaml", "--file", "out.jsonl", "--model", "no/../folder"), "no such folder")
    for option in (("--model", "x"), ("-n", 1)):
        assert_one_line(run("check", "c.yaml", *option), "give a .jsonl file of them with --file")


def test_a_row_of_ray_that_failed(output: list[dict[str, Any]]) -> None:
    write([*output])
    with Path("out.jsonl").open("a") as file:
        file.write('{"id": 1, "prompt": "a", "texts": [], "ok": false, "reason": "too long"}\n')
    assert check() == "note: 1 record with fewer texts than requested\n4 records with 6 texts: all hold\n"


def test_parts_of_the_rules_are_checked_alone(output: Any) -> None:
    """With several files, each is one part of the rules, so digests are not compared."""
    Path("part.yaml").write_text(HAS_A)
    result = run("check", "part.yaml", "c.yaml", "--file", "out.jsonl")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("3 records with 6 texts: all hold") == 2
    assert run("check", "part.yaml", "--file", "out.jsonl").exit_code == 1


def write_inputs(lines: list[dict[str, str]], rules: str) -> None:
    """Write prompts, and a constraint file whose budget suffices for the pilot of shares."""
    Path("in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Path("c.yaml").write_text(f"guardwrap: 1\n{rules}budget: {{max_attempts: 20000}}\n")


def test_repeated_texts_and_shares_are_counted(model: str) -> None:
    write_inputs(
        [{"prompt": "ab"}],
        "constraint:\n- {kind: length, max: 2}\n"
        "- {kind: share, name: has an a, of: {kind: regex, pattern: a}, share: 0.25, exact: true}\n",
    )
    result = generate(model, "--jsonl", "in.jsonl", "-c", "c.yaml", "-n", 8, "-o", "out.jsonl", "--seed", 1)
    assert result.exit_code == 0, result.output
    (line,) = records(Path("out.jsonl").read_text())
    found = audit()
    assert found["ok"]
    assert found["shares"] == {"has an a": 0.25}
    line["texts"] = [*line["texts"][:6], *line["texts"][:2]]
    write([line])
    found = audit()
    assert found["repeated"] == 8 - len(set(line["texts"])) >= 2
    assert found["shares"] == {"has an a": sum("a" in text for text in line["texts"]) / 8}
    assert f"note: {found['repeated']} texts repeated from earlier ones" in check()
    assert "note: 'has an a' holds in" in check()


def test_shares_with_fields_are_counted(model: str) -> None:
    """Each record has the rule that its line fills."""
    write_inputs(
        [{"prompt": "ab", "letter": letter} for letter in "ab"],
        "fields: [letter]\nconstraint:\n"
        "- {kind: share, name: has it, of: {kind: regex, pattern: '{letter}'}, share: 0.25, exact: true}\n",
    )
    result = generate(model, "--jsonl", "in.jsonl", "-c", "c.yaml", "-n", 4, "-o", "out.jsonl", "--seed", 1)
    assert result.exit_code == 0, result.output
    assert audit()["shares"] == {"has it": 0.25}


def test_an_unreachable_share_leaves_the_other_lines(model: str) -> None:
    """Its own line says why, and a resumed run has nothing left to do."""
    write_inputs(
        [{"prompt": "ab", "pattern": pattern} for pattern in ("a", "nowhere", "b")],
        "fields: [pattern]\nconstraint: {kind: share, of: {kind: regex, pattern: '{pattern}'}, share: 0.5}\n",
    )
    command = ("--jsonl", "in.jsonl", "-c", "c.yaml", "-n", 4, "-o", "out.jsonl", "--seed", 1)
    assert generate(model, *command).exit_code == 3
    written = Path("out.jsonl").read_text()
    assert [line["ok"] for line in records(written)] == [True, False, True]
    assert records(written)[1]["report"]["ended"] == "impossible"
    assert generate(model, *command, "--resume").exit_code == 3
    assert Path("out.jsonl").read_text() == written
