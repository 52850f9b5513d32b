"""The settings file of an evaluation."""

import inspect
import re
from pathlib import Path

import pytest

from guardwrap import Keyword, Masked, Prompt, Regex, Twisted
from guardwrap.cli.commands.evaluate_command import evaluate
from guardwrap.constraints import Length, catalogue
from guardwrap.errors import SpecError, UsageError
from guardwrap.evaluation.evaluation_settings import (
    EvaluationSettings,
    marks_of,
    position_to_compare,
    read_evaluation_settings,
    shaped_proposal,
)
from guardwrap.training.training_settings import read_settings as read_training


def test_the_place():
    settings = EvaluationSettings(constraint="x", prompts=["p"], proposals={"cap": "{prompt}"})
    word, digits = Keyword("dragon"), Regex(r"\d")
    assert position_to_compare(settings, word) is word
    assert position_to_compare(settings, digits & Length(max=10, unit="words")) is digits
    for without in (word & digits, ~digits, word | digits, Keyword("x", match="none"), Regex("x", match="fullmatch")):
        assert position_to_compare(settings, without) is None
    assert position_to_compare(settings.model_copy(update={"position": "castle"}), ~digits) == Keyword("castle")


def test_what_is_highlighted():
    settings = EvaluationSettings(constraint="x", prompts=["p"], proposals={"cap": "{prompt}"})
    word, digits = Keyword("dragon"), Regex(r"\d")
    assert marks_of(settings, word & digits & ~Keyword("castle")) == (word, digits)
    assert marks_of(settings, ~digits) == ()
    assert marks_of(settings.model_copy(update={"position": "castle"}), digits) == (Keyword("castle"), digits)


CONFIG = """\
constraint: {kind: keyword, words: a}
prompts: [Tell me., Tell more.]
proposals:
  cap: "Use an a. {prompt}"
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CONFIG + "bets: [1]\n", "c.yaml:5: bets: unknown field 'bets' (did you mean 'betas'?); known: model, "),
        (CONFIG + "betas: [1, 0]\n", "c.yaml:5: betas: each β must be a number above 0"),
        (CONFIG + "sampler: qsr\n", "c.yaml:5: sampler: unknown sampler 'qsr' (did you mean 'qrs'?); known: auto, "),
        (
            CONFIG + "sampler:\n  qrs:\n    target_tdv: 0.1\n",
            "c.yaml:7: sampler.qrs.target_tdv: unknown field 'target_tdv' (did you mean 'target_tvd'?); known: beta, ",
        ),
        (CONFIG + "sampler: {imh: {steps: few}}\n", "c.yaml:5: sampler.imh.steps: must be a whole number, not"),
        (CONFIG + "sampler: {imh: {}, qrs: {}}\n", "c.yaml:5: sampler: {'imh': {}, 'qrs': {}} is not a sampler; give"),
        (CONFIG + "steps: [0]\n", "c.yaml:5: steps: each number of steps must be at least 1"),
        (CONFIG + "generation: {seed: 1}\n", "c.yaml:5: generation: seed is not a generation setting"),
        (CONFIG.replace("{prompt}", ""), "c.yaml:3: proposals: Prompt('Use an a. ') needs {prompt}"),
        (CONFIG + "generation: {adapter: x}\n", "c.yaml:5: generation: adapter is not a generation setting"),
        (
            CONFIG + "  lora: {adaptor: x}\n",
            "c.yaml:3: proposals: 'lora' is not a proposal: give a template, {adapter: PATH}",
        ),
        (
            CONFIG + "  lora: {}\n",
            "c.yaml:3: proposals: 'lora' is not a proposal: give a template, {adapter: PATH} or {model:",
        ),
        (CONFIG + "  two: {adapter: x, model: y}\n", "c.yaml:3: proposals: 'two' is not a proposal: give a template"),
        (CONFIG + "  lora: {adapter: [x]}\n", "c.yaml:3: proposals: 'lora' is not a proposal: give a template"),
        (CONFIG + "  m: {masked: {unsen: 0.1}}\n", "c.yaml:3: proposals: "),
        (CONFIG + "  m: {masked: {}, twisted: {}}\n", "c.yaml:3: proposals: 'm' is not a proposal"),
        (CONFIG + "  m: {twisted: {strength: 2}}\n", "c.yaml:3: proposals: "),
        (CONFIG + "  lora: [x]\n", "c.yaml:5: proposals.lora: must be"),
        (CONFIG.replace("cap:", "base:"), "c.yaml:3: proposals: a proposal needs a name other than 'base'"),
        (CONFIG.replace("words", "wrods"), "c.yaml:1: constraint.wrods: unknown field 'wrods' (did you mean 'words'?)"),
        (CONFIG.replace("kind: keyword, words: a", "kind: not"), "c.yaml:1: constraint: needs a field 'of'"),
        (CONFIG.replace("prompts", "# "), "c.yaml:1: the file: needs a field 'prompts'"),
        ("# nothing\n", "c.yaml: empty file; this file must be a mapping with the fields model, dtype, constraint"),
        ("- 1\n", "c.yaml:1: this file must be a mapping with the fields model, dtype, constraint"),
    ],
)
def test_settings_that_cannot_work(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(SpecError) as error:
        read_evaluation_settings("c.yaml")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_proposals_that_are_no_prompts(tmp_path):
    (tmp_path / "small").mkdir()
    text = CONFIG + "  lora: {adapter: small}\n  hub: {adapter: some/adapter}\n  other: {model: local}\n"
    (tmp_path / "c.yaml").write_text(text)
    settings, _ = read_evaluation_settings(tmp_path / "c.yaml")
    assert settings.proposals == {
        "cap": "Use an a. {prompt}",
        "lora": {"adapter": str(tmp_path / "small")},  # next to the file
        "hub": {"adapter": "some/adapter"},
        "other": {"model": "local"},
    }
    (tmp_path / "tea.npz").write_text("")
    shaped = "  mask: masked\n  twist: {twisted: {learned: tea.npz, strength: 0.5}}\n  chosen: auto\n"
    (tmp_path / "c.yaml").write_text(CONFIG + shaped)
    settings, _ = read_evaluation_settings(tmp_path / "c.yaml")
    learned = str(tmp_path / "tea.npz")
    assert settings.proposals["twist"] == {"twisted": {"learned": learned, "strength": 0.5}}
    assert [shaped_proposal(given) for given in settings.proposals.values()] == [
        Prompt("Use an a. {prompt}"), Masked(), Twisted(strength=0.5, learned=learned), None,
    ]  # fmt: skip


def test_settings(tmp_path):
    (tmp_path / "c.yaml").write_text(CONFIG + "model: tiny\nattempts: 50\n")
    (tmp_path / "tiny").mkdir()
    settings, constraint = read_evaluation_settings(tmp_path / "c.yaml", changes={"attempts": 7})
    assert constraint == Keyword("a")
    assert settings.model == str(tmp_path / "tiny")
    assert (settings.attempts, settings.base_attempts, settings.seed) == (7, None, 0)
    for named in ("catalogue:no-contact-details", "word.yaml"):
        (tmp_path / "word.yaml").write_text("guardwrap: 1\nconstraint: {kind: keyword, words: b}\n")
        (tmp_path / "d.yaml").write_text(CONFIG.replace("{kind: keyword, words: a}", named))
        _, constraint = read_evaluation_settings(tmp_path / "d.yaml")
        assert (constraint == Keyword("b")) == (named == "word.yaml")
    (tmp_path / "d.yaml").write_text(
        CONFIG.replace("{kind: keyword, words: a}", "{kind: python, function: 'os:getcwd'}")
    )
    with pytest.raises(SpecError, match=r"d\.yaml:1: constraint\.function: names Python code"):
        read_evaluation_settings(tmp_path / "d.yaml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"atempts": 7}, "atempts: unknown field 'atempts' (did you mean 'attempts'?); known: model, "),
        ({"attempts": "7"}, "attempts: must be a whole number, not"),
        ({"attempts": 1}, "attempts: must be at least 2, not 1"),
        ({"attempts": 7.5}, "attempts: must be a whole number, not"),
        ({"model": 7}, "model: must be a string, not int"),
        ({"dtype": "flaot16"}, "dtype: 'flaot16' is not one of float32, bfloat16, float16 (did you mean 'float16'?)"),
        (
            {"proposals": {"base": "{prompt}"}},
            "proposals: a proposal needs a name other than 'base', which is the model itself",
        ),
        ({"sampler": {"qrs": {"bta": 1}}}, "sampler.qrs.bta: unknown field 'bta' (did you mean 'beta'?); known: beta"),
        ({"constraint": {"kind": "keyword", "wrods": "a"}}, "constraint.wrods: unknown field 'wrods' (did you mean"),
        ({"constraint": {"kind": "python", "function": "os:getcwd"}}, "constraint.function: names Python code"),
        ({"model": object()}, "<object object at "),
    ],
)
def test_what_replaces_a_field_is_held_to_the_same_rules(tmp_path, changes, message):
    (tmp_path / "c.yaml").write_text(CONFIG)
    with pytest.raises(UsageError) as error:
        read_evaluation_settings(tmp_path / "c.yaml", changes=changes)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_the_file_itself_is_wrong_whatever_replaces_its_fields(tmp_path):
    for text, says in ((CONFIG.replace("prompts", "promts"), ":2: promts"), (CONFIG + "attempts: 1\n", ":5: attempts")):
        (tmp_path / "c.yaml").write_text(text)
        with pytest.raises(SpecError, match=rf"c\.yaml{says}: "):
            read_evaluation_settings(tmp_path / "c.yaml", changes={"attempts": 7})
    (tmp_path / "c.yaml").write_text(CONFIG.replace("words", "wrods"))
    with pytest.raises(SpecError, match=r"c\.yaml:1: constraint\.wrods: "):
        read_evaluation_settings(tmp_path / "c.yaml", changes={"attempts": 7})


def test_a_constraint_can_be_replaced(tmp_path, monkeypatch):
    (tmp_path / "c.yaml").write_text(CONFIG)
    (tmp_path / "word.yaml").write_text("guardwrap: 1\nconstraint: {kind: keyword, words: b}\n")
    _, constraint = read_evaluation_settings(
        tmp_path / "c.yaml", changes={"constraint": {"kind": "keyword", "words": "c"}}
    )
    assert constraint == Keyword("c")
    settings, constraint = read_evaluation_settings(
        tmp_path / "c.yaml", changes={"constraint": str(tmp_path / "word.yaml")}
    )
    assert constraint == Keyword("b")
    assert settings.constraint == str(tmp_path / "word.yaml")


@pytest.mark.parametrize("read", [read_evaluation_settings, read_training], ids=["evaluation", "training"])
def test_a_list_of_constraints_all_of_which_must_hold(tmp_path, read):
    (tmp_path / "word.yaml").write_text("guardwrap: 1\nconstraint: {kind: keyword, words: b}\n")
    text = "prompts: [Hm]\nconstraint:\n  - {kind: keyword, words: a}\n  - file: word.yaml\n  - catalogue:no-urls\n"
    text += "proposals: {cap: 'A. {prompt}'}\n" if read is read_evaluation_settings else ""
    (tmp_path / "c.yaml").write_text(text)
    settings, constraint = read(tmp_path / "c.yaml")
    assert constraint == Keyword("a") & Keyword("b") & catalogue("no-urls").constraint
    assert type(settings).model_validate_json(settings.model_dump_json()) == settings, "as results keep it"
    assert constraint.accepts("a b")
    assert not any(map(constraint.accepts, ("a", "b", "a b http://x.org")))  # all constraints must hold
    _, alone = read(tmp_path / "c.yaml", changes={"constraint": [{"kind": "keyword", "words": "a"}]})
    assert alone == Keyword("a")
    for wrong, says in (
        (text.replace("words: a", "wrods: a"), "c.yaml:3: constraint.0.wrods: unknown field 'wrods' (did you mean"),
        (text.replace("file: word", "file: wrd"), "c.yaml:4: constraint.1: there is no file "),
        (text.replace("file: word.yaml", "word.yaml"), "c.yaml:4: constraint.1: to use the constraint of another file"),
        (text.replace("- catalogue:no-urls", "- catalogue:no-url"), "c.yaml:5: constraint.2: unknown catalogue entry"),
        (text.replace("- catalogue:no-urls", "- [catalogue:no-urls]"), "c.yaml:5: constraint.2: must be "),
        (
            re.sub("constraint:\n(  -.*\n)+", "constraint: []\n", text),
            "c.yaml:2: constraint: List should have at least 1",
        ),
        (
            text.replace("file: word.yaml", "{kind: python, function: 'os:getcwd'}"),
            "c.yaml:4: constraint.1.function: na",
        ),
    ):
        (tmp_path / "c.yaml").write_text(wrong)
        with pytest.raises(SpecError) as error:
            read(tmp_path / "c.yaml")
        assert says in str(error.value)
        assert "\n" not in str(error.value)


def test_the_names_of_version_0_1_stay():
    assert EvaluationSettings is EvaluationSettings


def test_the_file_that_the_help_shows_is_one(tmp_path: Path) -> None:
    shown = [line.strip() for line in (inspect.getdoc(evaluate) or "").splitlines() if re.match(r" {4}\w+: ", line)]
    assert len(shown) == 5
    path = tmp_path / "evaluation.yaml"
    path.write_text("\n".join(shown))
    settings, constraint = read_evaluation_settings(path)
    assert constraint.accepts("a cup of tea")
    assert settings.generation["top_k"] == 0, "what a proposal never gives cannot be weighed"
    path.write_text("\n".join(shown).replace("prompts", "prompt"))
    with pytest.raises(SpecError, match="did you mean 'prompts'"):
        read_evaluation_settings(path)


RULE = "guardwrap: 1\nconstraint: {kind: regex, pattern: aaa}\n"


@pytest.mark.parametrize(
    ("more", "unused"),
    [("", ""), ("proposal: masked\n", "proposal"), ("budget: {max_attempts: 9}\nfallback: aaa\n", "budget, fallback")],
)
def test_what_a_constraint_file_says_of_requests_is_not_ignored_silently(tmp_path, caplog, more, unused):
    (tmp_path / "rule.yaml").write_text(RULE + more)
    tasks = {"evaluation.yaml": read_evaluation_settings, "training.yaml": read_training}
    for name, read in tasks.items():
        proposals = 'proposals: {hint: "b {prompt}"}\n' if name == "evaluation.yaml" else ""
        (tmp_path / name).write_text(f"constraint: rule.yaml\nprompts: [a]\n{proposals}")
        caplog.clear()
        read(tmp_path / name)
        warning = f"{tmp_path / 'rule.yaml'}: no effect here: {unused}; only its constraint is used"
        assert [record.getMessage() for record in caplog.records] == ([warning] if unused else [])


def test_a_family_of_rules_is_refused_before_a_model_is_loaded(tmp_path):
    (tmp_path / "rule.yaml").write_text(
        'guardwrap: 1\nfields: [words]\nconstraint: {kind: keyword, words: "{words}"}\n'
        "examples: {fields: {words: [tea]}, accepts: [tea]}\n"
    )
    (tmp_path / "c.yaml").write_text('constraint: rule.yaml\nprompts: [a]\nproposals: {hint: "b {prompt}"}\n')
    with pytest.raises(UsageError, match=r"c.yaml: the constraint requires the fields 'words'; write their values"):
        read_evaluation_settings(tmp_path / "c.yaml")
