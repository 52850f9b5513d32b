"""Calls that are answered from a file: only the same call is, and only with texts that satisfy its rules.

Covers ``answer_cache/answer_file.py``, ``answer_cache/call_context.py`` and ``answer_cache/digests.py`` too.
"""

import asyncio
import itertools
import json
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, TemperatureLogitsWarper

from guardwrap import (
    Budget,
    Constraint,
    Endpoint,
    GuardedGenerator,
    JSONSchema,
    Keyword,
    Length,
    Masked,
    Prompt,
    Regex,
    Repair,
    Twisted,
    constraint,
    qrs,
)
from guardwrap.answer_cache import answer_file, call_cache, call_context
from guardwrap.answer_cache.answer_file import AnswerFile
from guardwrap.answer_cache.call_context import cache_of
from guardwrap.answer_cache.digests import model_digest
from guardwrap.errors import UsageError
from guardwrap.outcomes import Usage
from guardwrap.pipelines.task_calls import call_of
from guardwrap.testing import World, llama_world

RULE = ~Regex("c") & Keyword("a", whole_words=False)
SETTINGS: dict[str, Any] = {"max_new_tokens": 6, "temperature": 1.5, "top_k": 0, "num_return_sequences": 2, "seed": 7}
PROMPTS = ["ab", "a", "e. d"]


@pytest.fixture
def world() -> World:
    return llama_world(letters="abcde .", max_new_tokens=6)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers.sqlite"


def wrapped(world: World, path: Path, rule: Any = RULE, **options: Any) -> GuardedGenerator:
    return GuardedGenerator(world.pipeline(), rule, cache=path, **{"budget": Budget(max_attempts=None), **options})


@contextmanager
def without_model(world: World) -> Iterator[None]:
    """Let every pass of the model fail."""

    def fail(*_: Any) -> None:
        raise AssertionError("the model was run")

    handle = world.model.register_forward_pre_hook(fail)
    try:
        yield
    finally:
        handle.remove()


def is_cached(guarded: GuardedGenerator, prompts: Any = PROMPTS, **options: Any) -> list[bool]:
    return [outcome.report.cached for outcome in guarded.run(prompts, progress=False, **{**SETTINGS, **options})]


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as file, file:
        return int(file.execute("select count(*) from answers").fetchone()[0])


def test_the_same_call_runs_no_model(world: World, path: Path) -> None:
    first = wrapped(world, path).run(PROMPTS, **SETTINGS)
    again = wrapped(world, path)
    again.run("ab", seed=1, max_new_tokens=2)  # how the model is decoded is tested once, which runs it
    with without_model(world):
        second = again.run(PROMPTS, **SETTINGS)
    for before, after in zip(first, second, strict=True):
        assert (after.texts, after.draws, after.prompt) == (before.texts, before.draws, before.prompt)
        assert after.report.cached
        assert not before.report.cached
        nothing: dict[str, Any] = {"cached": False, "notes": (), "usage": Usage(), "rejections": {}}
        assert replace(after.report, **nothing) == replace(before.report, **nothing)
        assert after.report.usage == Usage()
        assert not after.report.rejections
        attempts = before.report.usage.attempts
        assert f"with {attempts} attempts" in after.report.notes[-1]
        assert "from the cache" in after.report.headline()


def test_every_way_to_call_is_answered(world: World, path: Path) -> None:
    guarded = wrapped(world, path)
    texts = [outcome.texts for outcome in guarded.run(PROMPTS, **SETTINGS)]
    records = guarded(PROMPTS, **SETTINGS)
    with without_model(world):
        assert [outcome.texts for outcome in guarded.stream(PROMPTS, **SETTINGS)] == texts
        assert [outcome.texts for outcome in asyncio.run(guarded.arun(PROMPTS, **SETTINGS))] == texts
        assert guarded(PROMPTS, **SETTINGS) == records
        pieces: dict[tuple[int, int], str] = {}

        def on_piece(prompt: int, number: int, text: str) -> None:
            pieces[prompt, number] = pieces.get((prompt, number), "") + text

        list(guarded.stream(PROMPTS, on_piece=on_piece, **SETTINGS))
    assert [tuple(pieces[i, j] for j in range(2)) for i in range(3)] == texts


class Halved(TemperatureLogitsWarper):
    """A warper of one's own."""


class Nothing(LogitsProcessor):
    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return scores


CALLS: dict[str, dict[str, Any]] = {
    "seed": {"seed": 8},
    "temperature": {"temperature": 1.4},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.9},
    "min_p": {"min_p": 0.01},
    "typical_p": {"typical_p": 0.9},
    "max_new_tokens": {"max_new_tokens": 5},
    "min_new_tokens": {"min_new_tokens": 2},
    "num_return_sequences": {"num_return_sequences": 3},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "bad_words_ids": {"bad_words_ids": [[3]]},
    "eos_token_id": {"eos_token_id": [0, 4]},
    "sequence_bias": {"sequence_bias": {(3,): 0.5}},
    "skip_special_tokens": {"skip_special_tokens": False},
    "constraints": {"constraints": ~Regex("d")},
    "budget": {"budget": Budget(max_attempts=900)},
    "sampler": {"sampler": qrs(beta=1.0)},
    "proposal": {"proposal": Masked()},
    "a hint": {"proposal": Prompt("b{prompt}")},
    "constraint_each": {"constraint_each": [Length(max=9)] * 3},
}


@pytest.mark.parametrize("change", CALLS)
def test_another_call_is_drawn(change: str, world: World, path: Path) -> None:
    guarded = wrapped(world, path)
    assert is_cached(guarded) == [False] * 3
    assert is_cached(guarded, **CALLS[change]) == [False] * 3
    assert is_cached(guarded, **CALLS[change]) == [True] * 3, "each of these calls may be answered"
    assert is_cached(guarded) == [True] * 3


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "beta": ({"sampler": qrs(beta=1.0)}, {"sampler": qrs(beta=0.9)}),
    "target_tvd": ({"sampler": qrs(target_tvd=0.1, pilot=9)}, {"sampler": qrs(target_tvd=0.2, pilot=9)}),
    "pilot": ({"sampler": qrs(target_tvd=0.1, pilot=9)}, {"sampler": qrs(target_tvd=0.1, pilot=8)}),
    "unseen": ({"proposal": Masked()}, {"proposal": Masked(unseen=0.0)}),
    "a hint": ({"proposal": Prompt("b{prompt}")}, {"proposal": Prompt("d{prompt}")}),
    "rules of one name": ({"constraints": Regex("a", name="one")}, {"constraints": Regex("b|a", name="one")}),
    "names": (
        {"constraints": Keyword("a", whole_words=False, name="one")},
        {"constraints": Keyword("a", whole_words=False, name="two")},
    ),
}


@pytest.mark.xdist_group("local")
def test_stop_strings_count(local: tuple[Any, Any], path: Path) -> None:
    """The embedded model, because transformers looks for stop strings in tokenizers of bytes only."""
    guarded = GuardedGenerator(local[0], Length(min=0), tokenizer=local[1], cache=path)
    for stop, expected in ((".", False), ("e", False), (".", True), ("e", True)):
        (outcome,) = guarded.run("The old boat", stop_strings=[stop], seed=1, max_new_tokens=4)
        assert outcome.report.cached is expected


@pytest.mark.parametrize("name", OPTIONS)
def test_another_value_of_an_option_is_drawn(name: str, world: World, path: Path) -> None:
    guarded = wrapped(world, path)
    one, other = OPTIONS[name]
    assert is_cached(guarded, **one) == [False] * 3
    assert is_cached(guarded, **other) == [False] * 3


def test_the_place_in_a_call_counts(world: World, path: Path) -> None:
    guarded = wrapped(world, path)
    assert is_cached(guarded) == [False] * 3
    assert is_cached(guarded, ["ab", "ab", "ab"]) == [True, False, False]
    assert is_cached(guarded, ["a", "a"]) == [False, True]


def test_prompts_of_the_same_tokens_differ(world: World, path: Path) -> None:
    """The tokenizer reads unknown letters as "a". A rule may read the prompt."""
    guarded = wrapped(world, path)
    assert is_cached(guarded, ["a"]) == [False]
    assert is_cached(guarded, ["z"]) == [False]
    assert is_cached(guarded, ["a"]) == [True]


@pytest.mark.parametrize("change", [{"parses": True}, {"trims": True}, {"reads_parts": True}, {"family": "qwen"}])
def test_how_answers_are_parsed_counts(change: dict[str, Any], world: World, path: Path) -> None:
    call, file = call_of(world.pipeline(), {}), AnswerFile(path)
    one, other = (cache_of(file, each, models=(), options=()).context for each in (call, replace(call, **change)))
    assert one != other


def in_place(world: World) -> None:
    world.model.lm_head.weight.data[0, 0] += 0.5


def behind_torch(world: World) -> None:
    """A change that torch does not count."""
    weight = world.model.lm_head.weight
    weight.detach().numpy()[:] *= 1.5


def a_buffer(world: World) -> None:
    world.model.register_buffer("extra", torch.ones(1))


CHANGES: dict[str, Callable[[World], None]] = {
    "in place": in_place,
    "behind torch's back": behind_torch,
    "by a step of training": lambda world: world.model.lm_head.weight.data.copy_(world.model.lm_head.weight.data * 1.1),
    "a buffer": a_buffer,
    "of precision": lambda world: world.model.to(torch.float32) and None,
    "of the configuration": lambda world: setattr(world.model.config, "attention_dropout", 0.125),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_model_is_noticed(change: str, world: World, path: Path) -> None:
    guarded = wrapped(world, path)
    assert is_cached(guarded) == [False] * 3
    CHANGES[change](world)
    assert is_cached(guarded) == [False] * 3


@pytest.mark.parametrize("library", ["guardwrap", "torch", "transformers", "tokenizers", "numpy", "regex", "py3langid"])
def test_another_version_of_a_library_draws(
    library: str, world: World, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = wrapped(world, path)
    guarded.run(PROMPTS, progress=False, **SETTINGS)
    assert all(is_cached(guarded))
    versions = {**call_context._versions(), library: "0.0.1"}
    monkeypatch.setattr(call_context, "_versions", lambda: versions)
    assert not any(is_cached(guarded))


def test_libraries_of_extras_that_are_not_installed_have_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "py3langid":
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(call_context, "version", version)
    versions = call_context._versions.__wrapped__()
    assert {"guardwrap", "torch", "tokenizers", "babel", "llama-index-core"} <= versions.keys()
    assert "py3langid" not in versions


def test_equal_models_share_answers(world: World, path: Path) -> None:
    assert is_cached(wrapped(world, path)) == [False] * 3
    assert is_cached(wrapped(llama_world(letters="abcde .", max_new_tokens=6), path)) == [True] * 3
    assert is_cached(wrapped(llama_world(letters="abcde .", max_new_tokens=6, seed=5), path)) == [False] * 3
    assert is_cached(wrapped(llama_world(letters="bacde .", max_new_tokens=6), path)) == [False] * 3


def test_weights_are_read_again_only_after_a_change(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from guardwrap.answer_cache import digests

    calls: list[Any] = []
    whole = digests._whole_digest

    def counted(model: Any) -> str:
        calls.append(model)
        return whole(model)

    monkeypatch.setattr(digests, "_whole_digest", counted)
    assert model_digest(world.model) == model_digest(world.model)
    assert len(calls) == 1
    in_place(world)
    model_digest(world.model)
    assert len(calls) == 2


NOT_CACHED: dict[str, tuple[dict[str, Any], str]] = {
    "no seed": ({"seed": None}, "the call has no seed"),
    "code": ({"constraints": constraint(lambda text: True)}, "a rule runs a model or code"),
    "a processor of one's own": ({"logits_processor": [Nothing()]}, "Nothing is not from transformers"),
    "a warper of one's own": ({"logits_processor": [Halved(2.0)]}, "Halved is not from transformers"),
    "greedy": ({"do_sample": False, "num_return_sequences": 1, "temperature": None}, "only texts that are sampled"),
    "a clock": ({"max_time": 100.0}, "without max_time"),
    "a twist": ({"proposal": Twisted()}, "what Twisted() has learned may change"),
}


@pytest.mark.parametrize("name", NOT_CACHED)
def test_what_is_not_known_to_repeat_is_drawn(name: str, world: World, path: Path) -> None:
    options, reason = NOT_CACHED[name]
    guarded = wrapped(world, path, rule=Length(min=0))
    for _ in range(2):
        (outcome,) = guarded.run("ab", **{**SETTINGS, **options})
        assert not outcome.report.cached
        assert any(note.startswith("not cached: ") and reason in note for note in outcome.report.notes)
    assert rows(path) == 0


def test_repair_is_not_cached(world: World, path: Path) -> None:
    """What is returned may come from other prompts."""
    guarded = wrapped(world, path, rule=Length(min=0), on_exhausted=Repair(message=lambda prompt, rejected: prompt))
    (outcome,) = guarded.run("ab", **SETTINGS)
    assert "not cached: Repair() may follow" in outcome.report.notes
    assert rows(path) == 0


def test_the_seed_of_the_wrapper_counts(world: World, path: Path) -> None:
    options = {**SETTINGS, "seed": None}
    for expected in (False, True):
        guarded = wrapped(world, path, seed=3)
        assert [guarded.run("ab", **options)[0].report.cached for _ in range(3)] == [expected] * 3


def test_pilots_are_drawn(world: World, path: Path) -> None:
    guarded = wrapped(world, path)
    options = {name: value for name, value in SETTINGS.items() if name != "num_return_sequences"}
    assert len(guarded.attempts("ab", 8, **options)[0]) == 8
    guarded.plan("ab", pilot=8, **options)
    assert rows(path) == 0


def test_rejected_attempts_are_shown_again(world: World, path: Path) -> None:
    guarded = wrapped(world, path, rule=~Keyword("e", whole_words=False))
    shown: list[list[Any]] = [[], []]
    for each in shown:
        list(guarded.stream(["ab"], on_rejected=each.append, **SETTINGS))
    assert shown[0]
    assert len(shown[0]) == len(shown[1])


def test_a_budget_that_ended_is_not_kept(world: World, path: Path) -> None:
    guarded = wrapped(world, path, rule=Keyword("eeeee"), budget=Budget(max_attempts=3))
    assert [guarded.run("ab", **SETTINGS)[0].ok for _ in range(2)] == [False, False]
    assert rows(path) == 0


def changed(path: Path, change: Callable[[Any], Any]) -> None:
    with closing(sqlite3.connect(path)) as file, file:
        for key, answer in file.execute("select key, answer from answers").fetchall():
            data = change(json.loads(answer))
            file.execute("update answers set answer = ? where key = ?", (json.dumps(data), key))


WRONG: dict[str, Callable[[Any], Any]] = {
    "another text": lambda data: {**data, "draws": [{**each, "token_ids": [3, 3]} for each in data["draws"]]},
    "a text too few": lambda data: {**data, "draws": data["draws"][:1]},
    "no such tokens": lambda data: {**data, "draws": [{**each, "token_ids": [10**9]} for each in data["draws"]]},
    "another seed": lambda data: {**data, "report": {**data["report"], "seed": 1}},
    "another rule": lambda data: {**data, "report": {**data["report"], "constraint": "0"}},
    "no report": lambda data: {**data, "report": None},
    "a list": lambda data: [data],
    "a number": lambda data: 1,
    "fields of another version": lambda data: {**data, "report": {**data["report"], "unheard": 1, "sampler": 3}},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_was_changed_breaks_no_rule(
    name: str, world: World, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rule = Keyword("e", whole_words=False)
    guarded = wrapped(world, path, rule=rule)
    before = guarded.run(PROMPTS, **SETTINGS)
    changed(path, WRONG[name])
    after = guarded.run(PROMPTS, **SETTINGS)
    assert [outcome.texts for outcome in after] == [outcome.texts for outcome in before]
    assert not any(outcome.report.cached for outcome in after)
    assert caplog.text.count("an answer of the cache is not used") == 3
    assert is_cached(guarded) == [True] * 3, "and the answer was replaced"


def test_negative_control_a_text_that_is_not_judged_breaks_a_rule(
    world: World, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded = wrapped(world, path, rule=Keyword("e", whole_words=False))
    guarded.run(PROMPTS, **SETTINGS)
    changed(path, WRONG["another text"])
    monkeypatch.setattr(call_cache, "judge", lambda constraint, draws: [])
    outcomes = guarded.run(PROMPTS, **SETTINGS)
    assert any("e" not in text for outcome in outcomes for text in outcome.texts)


def test_a_slow_rule_is_left_to_the_scheduler(world: World, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = wrapped(world, path)
    guarded.run(PROMPTS, **SETTINGS)
    monkeypatch.setattr(call_cache, "JUDGED_WITHIN", 0.0)
    assert is_cached(guarded) == [False] * 3


def test_a_file_that_is_something_else(world: World, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no answers here, but enough text for a header\n" * 9)
    for name in ("notes.txt", "missing/answers.sqlite", "."):
        with pytest.raises(UsageError, match="cannot be used"):
            wrapped(world, tmp_path / name)


def test_a_file_that_cannot_be_read_or_written(
    world: World, path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process holds it, the disk is full: the call is answered all the same."""
    monkeypatch.setattr(answer_file, "PATIENCE", 0.01)
    guarded = wrapped(world, path)
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("begin exclusive")
        assert is_cached(guarded) == [False] * 3
        file.execute("rollback")
    assert "could not be written" in caplog.text
    path.write_bytes(b"broken" * 1000)
    assert is_cached(guarded) == [False] * 3
    assert "could not be read" in caplog.text


def test_old_answers_are_removed(world: World, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_file, "MOST", 4)
    guarded = wrapped(world, path)
    for seed in range(3):
        guarded.run(PROMPTS, **{**SETTINGS, "seed": seed})
    assert rows(path) == 4
    assert is_cached(guarded, seed=2) == [True] * 3
    assert is_cached(guarded, seed=0) == [False] * 3


def test_prompts_without_end(world: World, path: Path) -> None:
    """Answers that are known are passed on as they are asked for, although nothing is drawn."""
    guarded = wrapped(world, path)
    guarded.run(["ab"] * 50, **SETTINGS)
    served = guarded.stream(itertools.repeat("ab"), batch_size=2, **SETTINGS)
    assert all(next(served).report.cached for _ in range(50))
    assert not next(served).report.cached


def test_order_and_other_callers(world: World, path: Path) -> None:
    guarded = wrapped(world, path)
    prompts = [letters * 2 for letters in "abcdeabcde"]
    alone = [outcome.texts for outcome in GuardedGenerator(world.pipeline(), RULE).run(prompts, **SETTINGS)]
    guarded.run(prompts[:3], **SETTINGS)
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(guarded.run, prompts, progress=False, **SETTINGS) for _ in range(8)]
        for call in calls:
            assert [outcome.texts for outcome in call.result()] == alone
    assert is_cached(guarded, prompts) == [True] * 10


def test_values_are_parsed(world: World, path: Path) -> None:
    rule: Constraint = JSONSchema({"enum": ["a", 1, True]})
    world = llama_world(letters='"a1true', max_new_tokens=4)
    guarded = wrapped(world, path, rule=rule)
    first, second = (guarded.run("a", **{**SETTINGS, "max_new_tokens": 4})[0] for _ in range(2))
    assert second.report.cached
    assert second.values == first.values


def test_an_endpoint_has_no_cache(path: Path) -> None:
    with pytest.raises(UsageError, match="leave cache= out"):
        GuardedGenerator(Endpoint("http://127.0.0.1:1/v1", model="m"), Length(min=1), cache=path)


@pytest.mark.parametrize("option", [{"cache": "a.sqlite"}, {"deterministic": True}])
def test_options_of_the_wrapper_are_none_of_calls(option: dict[str, Any], world: World, path: Path) -> None:
    with pytest.raises(UsageError, match="an option of the wrapper"):
        wrapped(world, path).run("ab", **SETTINGS, **option)
