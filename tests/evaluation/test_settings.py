"""An evaluation's file."""

import pytest

from guardwrap import Keyword, Regex
from guardwrap.constraints import Length
from guardwrap.errors import SpecError
from guardwrap.evaluation.settings import Settings, marks_of, place_of, read_settings


def test_the_place():
    settings = Settings(constraint="x", prompts=["p"], proposals={"cap": "{prompt}"})
    word, digits = Keyword("dragon"), Regex(r"\d")
    assert place_of(settings, word) is word
    assert place_of(settings, digits & Length(max=10, unit="words")) is digits
    for without in (word & digits, ~digits, word | digits, Keyword("x", match="none"), Regex("x", match="fullmatch")):
        assert place_of(settings, without) is None
    assert place_of(settings.model_copy(update={"position": "castle"}), ~digits) == Keyword("castle")


def test_what_is_highlighted():
    settings = Settings(constraint="x", prompts=["p"], proposals={"cap": "{prompt}"})
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
        (CONFIG + "steps: [0]\n", "c.yaml:5: steps: each number of steps must be at least 1"),
        (CONFIG + "generation: {seed: 1}\n", "c.yaml:5: generation: seed is no setting of the model's law"),
        (CONFIG.replace("{prompt}", ""), "c.yaml:3: proposals: the template of a prompt needs {prompt}"),
        (CONFIG + "generation: {adapter: x}\n", "c.yaml:5: generation: adapter is no setting of the model's law"),
        (CONFIG + "  lora: {adaptor: x}\n", "c.yaml:3: proposals: 'lora' is neither a template nor {adapter: PATH}"),
        (CONFIG + "  lora: {}\n", "c.yaml:3: proposals: 'lora' is neither a template nor {adapter: PATH} nor {model:"),
        (CONFIG + "  two: {adapter: x, model: y}\n", "c.yaml:3: proposals: 'two' is neither a template nor"),
        (CONFIG + "  lora: {adapter: [x]}\n", "c.yaml:5: proposals.lora.adapter: must be a string"),
        (CONFIG + "  lora: [x]\n", "c.yaml:5: proposals.lora: must be"),
        (CONFIG.replace("cap:", "base:"), "c.yaml:3: proposals: a proposal needs a name, and 'base' is"),
        (CONFIG.replace("words", "wrods"), "c.yaml:1: constraint.wrods: unknown field 'wrods' (did you mean 'words'?)"),
        (CONFIG.replace("kind: keyword, words: a", "kind: not"), "c.yaml:1: constraint: needs a field 'of'"),
        (CONFIG.replace("prompts", "# "), "c.yaml:1: the file: needs a field 'prompts'"),
        ("# nothing\n", "c.yaml: empty file; it needs model, dtype, constraint, prompts"),
        ("- 1\n", "c.yaml:1: this file is a mapping with the fields model, dtype, constraint"),
    ],
)
def test_settings_that_cannot_work(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(SpecError) as error:
        read_settings("c.yaml")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_proposals_that_are_no_prompts(tmp_path):
    (tmp_path / "small").mkdir()
    text = CONFIG + "  lora: {adapter: small}\n  hub: {adapter: some/adapter}\n  other: {model: local}\n"
    (tmp_path / "c.yaml").write_text(text)
    settings, _ = read_settings(tmp_path / "c.yaml")
    assert settings.proposals == {
        "cap": "Use an a. {prompt}",
        "lora": {"adapter": str(tmp_path / "small")},  # beside the file
        "hub": {"adapter": "some/adapter"},
        "other": {"model": "local"},
    }


def test_settings(tmp_path):
    (tmp_path / "c.yaml").write_text(CONFIG + "model: tiny\nattempts: 50\n")
    (tmp_path / "tiny").mkdir()
    settings, constraint = read_settings(tmp_path / "c.yaml", changes={"attempts": 7})
    assert constraint == Keyword("a")
    assert settings.model == str(tmp_path / "tiny")
    assert (settings.attempts, settings.base_attempts, settings.seed) == (7, None, 0)
    for named in ("catalogue:no-contact-details", "word.yaml"):
        (tmp_path / "word.yaml").write_text("guardwrap: 1\nconstraint: {kind: keyword, words: b}\n")
        (tmp_path / "d.yaml").write_text(CONFIG.replace("{kind: keyword, words: a}", named))
        _, constraint = read_settings(tmp_path / "d.yaml")
        assert (constraint == Keyword("b")) == (named == "word.yaml")
    (tmp_path / "d.yaml").write_text(
        CONFIG.replace("{kind: keyword, words: a}", "{kind: python, function: 'os:getcwd'}")
    )
    with pytest.raises(SpecError, match=r"d\.yaml:1: names Python code"):
        read_settings(tmp_path / "d.yaml")
