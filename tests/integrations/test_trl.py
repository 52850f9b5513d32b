"""Rewards from constraints, called as TRL's trainers call reward functions."""

import logging
import pickle
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from guardwrap import Finished, Keyword, Length, NoCopy, Regex
from guardwrap.cli.typer_app import app
from guardwrap.constraints import Constraint, catalogue
from guardwrap.errors import UsageError
from guardwrap.integrations.trl import reward, rewards
from guardwrap.outcomes import Draw
from guardwrap.testing import llama_world
from tests.test_docs import blocks, command_lines

TEA = [Keyword("tea", name="mentions tea"), Length(max=15, name="short")]
TEXTS = ["a cup of tea", "a cup of coffee", "a very large cup of tea", "a very large cup"]


@dataclass(frozen=True)
class Crashing(Constraint):
    """A rule that crashes on texts with a bomb."""

    def check(self, draws: Sequence[Draw], /) -> list[bool]:
        if any("bomb" in draw.text for draw in draws):
            raise ValueError("the text was " + draws[0].text)
        return ["tea" in draw.text for draw in draws]


def called(function, completions, prompts=None, **columns):
    """Call a reward function with what trainers pass beside the columns of the data set."""
    extra = {"trainer_state": object(), "log_extra": print, "log_metric": print}
    return function(prompts=prompts or ["p"] * len(completions), completions=completions, **columns, **extra)


def chat(text, **fields):
    return [{"role": "assistant", "content": text, **fields}]


def test_all_rules_or_their_share():
    assert called(reward(TEA), TEXTS) == [1.0, 0.0, 0.0, 0.0]
    assert called(reward(TEA, score="share"), TEXTS) == [1.0, 0.5, 0.5, 0.0]
    assert called(reward(TEA), list(map(chat, TEXTS)), [chat("p")] * 4) == [1.0, 0.0, 0.0, 0.0]


def test_a_function_for_each_rule_has_its_name():
    functions = rewards(TEA)
    assert [function.__name__ for function in functions] == ["mentions tea", "short"]
    assert [called(function, TEXTS) for function in functions] == [[1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]]
    assert pickle.loads(pickle.dumps(functions[0])) == functions[0]
    assert reward(TEA, name="tea").__name__ == "tea"


def test_files_and_the_catalogue(tmp_path):
    path = tmp_path / "rules.yaml"
    path.write_text("guardwrap: 1\nconstraint: {kind: keyword, words: tea}\n")
    assert called(reward(str(path)), TEXTS) == [1.0, 0.0, 1.0, 0.0]
    assert called(reward("catalogue:no-urls"), ["see https://example.com", "see"]) == [0.0, 1.0]


def test_fields_are_filled_from_columns(tmp_path):
    rule = tmp_path / "rules.yaml"
    rule.write_text('guardwrap: 1\nfields: [must_mention]\nconstraint: {kind: keyword, words: "{must_mention}"}\n')
    columns = {"must_mention": ["tea", "tea", ["cup"], "milk"], "other": [1, 2, 3, 4]}
    assert called(reward(rule), TEXTS, **columns) == [1.0, 0.0, 1.0, 0.0]
    with pytest.raises(UsageError, match=r"has a field 'must_mention', and the data set no such column \(did you mean"):
        called(reward(rule), TEXTS, must_mentions=["tea"] * 4)


def test_a_function_for_each_rule_of_a_file_with_fields(tmp_path):
    rule = tmp_path / "rules.yaml"
    text = 'guardwrap: 1\nfields: [word]\nconstraint:\n- {kind: keyword, name: has it, words: "{word}"}\n'
    text += "- {kind: length, name: short, max: 15}\n"
    rule.write_text(text)
    with pytest.raises(UsageError, match=r"give a value for each field under examples: fields:, or use reward\(\)"):
        rewards(str(rule))
    rule.write_text(text + "examples: {fields: {word: milk}}\n")
    first, second = rewards(str(rule))
    assert (first.__name__, second.__name__) == ("has it", "short")
    assert called(first, TEXTS, word=["tea", "tea", "cup", "milk"]) == [1.0, 0.0, 1.0, 0.0]
    assert called(second, TEXTS, word=["tea", "tea", "cup", "milk"]) == [1.0, 1.0, 0.0, 0.0]


def test_parts_of_messages():
    call = {"type": "function", "function": {"name": "buy", "arguments": '{"what": "tea"}'}}
    completions = [
        chat("milk", reasoning_content="tea"),
        chat("tea", reasoning_content="milk"),
        [*chat("", tool_calls=[call]), {"role": "tool", "content": "done"}, *chat("tea it is")],
        [{"role": "user", "content": "tea"}],
    ]
    prompts = [chat("p")] * 4
    assert called(reward(Keyword("tea", on="answer")), completions, prompts) == [0.0, 1.0, 1.0, 0.0]
    assert called(reward(Keyword("tea", on="reasoning")), completions, prompts) == [1.0, 0.0, 0.0, 0.0]


def test_tokens_and_how_a_text_ended():
    ids = [[5, 6, 2], [5, 6, 7], [2], [9]]
    assert called(reward(Length(max=2, unit="tokens")), TEXTS, completion_ids=ids) == [0.0, 0.0, 1.0, 1.0]
    assert called(reward(Finished(), eos_token_id=2), TEXTS, completion_ids=ids) == [1.0, 0.0, 1.0, 0.0]
    assert called(reward(Finished(), eos_token_id=[2, 7]), TEXTS, completion_ids=ids) == [1.0, 1.0, 1.0, 0.0]
    with pytest.raises(UsageError, match=r"asks how a text ended; pass eos_token_id="):
        reward([Finished(), Regex("a")])


def test_negative_control_what_is_not_known_is_no_zero(tmp_path):
    """Rules that read what is missing would judge an empty prompt, no tokens, or every text as cut off."""
    rule = tmp_path / "rules.yaml"  # a file with fields, whose rules are known once these are filled
    rule.write_text('guardwrap: 1\nfields: [word]\nconstraint: [{kind: keyword, words: "{word}"}, {kind: finished}]\n')
    with pytest.raises(UsageError, match="how a text ended without eos_token_id"):
        called(reward(str(rule)), TEXTS, word=["cup"] * 4, completion_ids=[[5, 2]] * 4)
    assert called(reward(str(rule), eos_token_id=2), TEXTS, word=["cup"] * 4, completion_ids=[[5, 2]] * 4) == [1.0] * 4
    with pytest.raises(UsageError, match="reads what is not known here"):
        called(reward(Length(max=2, unit="tokens")), TEXTS)
    assert called(reward(NoCopy(words=2)), ["to be or"], ["to be or not"]) == [0.0]
    with pytest.raises(UsageError, match="the prompt of a chat as text"):
        called(reward(NoCopy(words=2)), [chat("to be or")], [chat("to be or not")])


def test_a_crash_is_no_reward_and_hurts_no_other_completion(caplog):
    texts = ["tea", "a bomb of tea", "milk"]
    with caplog.at_level(logging.INFO):
        assert called(reward(Crashing()), texts) == [1.0, None, 0.0]
        assert called(reward([Crashing(), Regex("zebra")]), texts) == [0.0, 0.0, 0.0], "decided by the other rule"
        assert called(reward([Crashing(), Regex("a")], score="share"), texts) == [1.0, None, 0.0]
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 3
    assert all("raised ValueError" in warning and "bomb" not in warning for warning in warnings)


def test_what_is_no_message_has_no_reward(caplog):
    completions = [chat("tea"), chat(3)]
    assert called(reward(Keyword("tea")), completions, [chat("p")] * 2) == [1.0, None]
    assert "it is not a message" in caplog.text


def test_a_score_that_is_none():
    with pytest.raises(UsageError, match="give 'all' or 'share'"):
        reward(TEA, score="mean")  # type: ignore[arg-type]


def trained_by_page(word: str) -> tuple[Any, list[dict[str, Any]]]:
    """Run the page's script with a word for two steps on a model in the folder; return its trainer and its log."""
    (script,) = (block for block in blocks("training.md", "python") if word in block)
    assert "max_steps=200" in script
    small = "max_steps=2, use_cpu=True, report_to='none', per_device_train_batch_size=8, logging_steps=1"
    script = script.replace("HuggingFaceTB/SmolLM2-135M", "model").replace("max_steps=200", small)
    namespace: dict[str, Any] = {}
    exec(compile(script, "training.md", "exec"), namespace)
    trainer = namespace["trainer"]
    return trainer, [line for line in trainer.state.log_history if "reward" in line]


@pytest.mark.slow
def test_the_script_of_the_page_trains(tmp_path, monkeypatch):
    """As written but for the model and the size: the rewards of each rule are in TRL's log."""
    pytest.importorskip("trl", reason="TRL is not installed; see `make test-trl`")
    monkeypatch.chdir(tmp_path)
    world = llama_world(letters="abcdefghijklmnopqrstuvwxyzW ", max_new_tokens=6, dtype=torch.float32)
    for saved in (world.model, world.tokenizer):
        saved.save_pretrained("model")
    (rules,) = (block for block in blocks("training.md", "yaml") if "must_mention" in block)
    Path("reward.yaml").write_text(rules)
    _, (first, second) = trained_by_page("rewards(")
    names = ["mentions it", "short", *(part.title for part in catalogue("no-repetition").constraint.parts)]
    for line in (first, second):
        means = [line[f"rewards/{name}/mean"] for name in names]
        assert sum(means) == pytest.approx(line["reward"])
        assert all(0 <= mean <= 1 for mean in means)


@pytest.mark.slow
def test_the_data_of_the_page_train(tmp_path, monkeypatch):
    """As written but for the model: each pair has a text that passes and one that does not, and trainers take them."""
    trl = pytest.importorskip("trl", reason="TRL is not installed; see `make test-trl`")
    monkeypatch.chdir(tmp_path)
    world = llama_world(letters="abcdefghijklmnopqrstuvwxyzO ", max_new_tokens=6, dtype=torch.float32)
    for saved in (world.model, world.tokenizer):
        saved.save_pretrained("model")
    Path("dragon-rule.yaml").write_text("guardwrap: 1\nconstraint: {kind: regex, pattern: '[aeiou]'}\n")
    (command,) = (line for line in command_lines("training.md") if "--keep-rejected" in line)
    assert CliRunner().invoke(app, [*shlex.split(command), "--model", "model", "--seed", "1"]).exit_code == 0
    (script,) = (block for block in blocks("training.md", "python") if "load_dataset" in block)
    namespace: dict[str, Any] = {}
    exec(compile(script, "training.md", "exec"), namespace)
    sft, dpo = namespace["sft_data"], namespace["dpo_data"]
    assert (set(sft.column_names), len(sft)) == ({"prompt", "completion"}, 4)
    assert (set(dpo.column_names), set(dpo["prompt"])) == ({"prompt", "chosen", "rejected"}, {"One day"})
    vowels = set("aeiou")
    assert all(vowels & set(row["chosen"]) and not vowels & set(row["rejected"]) for row in dpo)
    for kind, data in (("SFT", sft), ("DPO", dpo)):
        options = getattr(trl, f"{kind}Config")(kind, max_steps=1, use_cpu=True, report_to="none")
        getattr(trl, f"{kind}Trainer")("model", args=options, train_dataset=data).train()
