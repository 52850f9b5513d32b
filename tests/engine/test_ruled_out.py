"""Runs whose settings leave no text name the settings, and the probability of the tokens that they leave out."""

import dataclasses
import math
from collections.abc import Callable, Collection
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from guardwrap import (
    Budget,
    BudgetExhausted,
    Constraint,
    Finished,
    GuardedGenerator,
    JSONSchema,
    Keyword,
    Length,
    Masked,
    Prompt,
    Regex,
    Twisted,
    constraint,
    qrs,
)
from guardwrap.engine import ruled_out
from guardwrap.engine.refill.decode import RefillBackend
from guardwrap.engine.scheduling import all_rejected
from guardwrap.errors import CheckFailed
from guardwrap.models.early_abort import PrefixWatch
from guardwrap.models.masking import ConstraintMask
from guardwrap.outcomes import Obstacle, Outcome, Report
from guardwrap.testing import World, llama_world, table_world

RARE = Regex("b+", match="fullmatch")
"""Only the letter b begins a text, and it is the least likely one of ``world()``."""

WITHOUT_E_AND_C = Keyword(["e", "c"], match="none", whole_words=False) & Length(min=1)
"""What ``Twisted()`` can follow: the most likely letters of ``world()`` violate it at once."""


def world(**settings: Any) -> World:
    """A world in which first tokens are, from the most likely down: e, c, f, a, d, b, the end."""
    return table_world(3, letters="abcdef", max_new_tokens=4, **settings)


def run(world: World, rule: Constraint, **options: Any) -> Outcome:
    sampler = options.pop("sampler", "rejection")
    batch_size = options.pop("batch_size", 32)
    guarded = GuardedGenerator(
        world.pipeline(), rule, seed=1, on_exhausted="none", sampler=sampler, batch_size=batch_size
    )
    (outcome,) = guarded.run(world.prompt, **{**world.settings, **options})
    return outcome


def report_of(world: World, rule: Constraint, **options: Any) -> Report:
    return run(world, rule, **options).report


def first_tokens(world: World, letters: str) -> float:
    """The probability of texts that begin with one of these letters, from all texts of the world."""
    firsts = world.tokenizer.convert_tokens_to_ids(list(letters))
    return sum(p for ids, p in world.law().items() if ids[0] in firsts)


WAYS: dict[str, tuple[Constraint, str, dict[str, Any]]] = {
    "rejection": (RARE, "b", {}),
    "masked": (RARE, "b", {"proposal": Masked()}),
    "masked, weighed": (RARE, "b", {"proposal": Masked(), "sampler": qrs(1.0)}),
    "twisted": (WITHOUT_E_AND_C, "abdf", {"proposal": Twisted()}),
    "twisted, weighed": (WITHOUT_E_AND_C, "abdf", {"proposal": Twisted(), "sampler": qrs(1.0)}),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", [world, partial(llama_world, 1, letters="abcdef", max_new_tokens=4)])
@pytest.mark.parametrize("way", WAYS)
def test_the_first_line_names_the_setting_and_the_enumerated_probability(way: str, make: Callable[..., World]) -> None:
    rule, letters, options = WAYS[way]
    if make is not world:
        likely = max("abcdef", key=lambda letter: first_tokens(make(), letter))
        letters = "abcdef".replace(likely, "") if "twisted" in way else min("abcdef".replace(likely, ""))
        rule = Keyword(likely, match="none", whole_words=False) & Length(min=1) if "twisted" in way else rule
        rule = rule if "twisted" in way else Regex(f"{letters}+", match="fullmatch")
    top_k = 2 if make is world else 1
    probability = first_tokens(make(), letters)
    guarded = GuardedGenerator(make().pipeline(), rule, seed=1)
    with pytest.raises(BudgetExhausted) as caught:
        guarded(make().prompt, **{**make(top_k=top_k).settings, **options})
    report = caught.value.report
    assert report.ended == "impossible"
    assert report.obstacle is not None
    assert report.obstacle.settings == (f"top_k={top_k}",)
    assert report.obstacle.probability == pytest.approx(probability, rel=1e-5)
    sentence = (
        f"no text that these settings allow satisfies the constraint: top_k={top_k} leaves out all possible first "
        f"tokens, which have probability {probability:.3g} without it"
    )
    assert sentence in str(caught.value).splitlines()[0]
    assert str(report).splitlines()[0].endswith(sentence)
    beyond = "pass proposal=Masked(beyond_truncation=True), " if way == "masked" else ""
    assert f"pass top_k=0, {beyond}weaken the constraint" in report.advice()
    assert report.usage.attempts <= all_rejected.LOOK


def word(*letters: str) -> list[list[int]]:
    return [world().tokenizer.convert_tokens_to_ids(list(letters))]


SETTINGS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "top_p": ({"top_p": 0.5}, ("top_p=0.5",)),
    "min_p": ({"min_p": 0.5}, ("min_p=0.5",)),
    "typical_p": ({"typical_p": 0.2}, ("typical_p=0.2",)),
    "epsilon_cutoff": ({"epsilon_cutoff": 0.1}, ("epsilon_cutoff=0.1",)),
    "eta_cutoff": ({"eta_cutoff": 0.9}, ("eta_cutoff=0.9",)),
    "bad words": ({"bad_words_ids": word("b")}, ("bad_words_ids",)),
    "suppressed": ({"suppress_tokens": word("b")[0]}, ("suppress_tokens",)),
    "suppressed at the beginning": ({"begin_suppress_tokens": word("b")[0]}, ("begin_suppress_tokens",)),
    "two": ({"top_k": 3, "top_p": 0.5}, ("top_k=3", "top_p=0.5")),
    "one of two": ({"top_k": 6, "top_p": 0.5}, ("top_p=0.5",)),
    "one of two, the other way": ({"top_k": 2, "top_p": 0.97}, ("top_k=2",)),
    "two of three": ({"top_k": 3, "top_p": 0.97, "bad_words_ids": word("b")}, ("bad_words_ids", "top_k=3")),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_each_setting_is_named(name: str) -> None:
    options, settings = SETTINGS[name]
    report = report_of(world(), RARE, **options)
    assert report.ended == "impossible"
    assert report.obstacle is not None
    assert report.obstacle.settings == settings
    probability = first_tokens(world(), "b")
    if len(settings) == len(options):
        assert report.obstacle.probability == pytest.approx(probability, rel=1e-5)
    else:
        assert probability < report.obstacle.probability < probability / 0.95, "the other setting stays"
    assert all(setting in report.headline() for setting in settings)


def test_negative_control_all_settings_turned_off_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a setting that leaves out nothing is named."""
    candidates = ruled_out._Place._candidates

    def broken(place: Any, off: Collection[Any]) -> Any:
        return candidates(place, place._settings() if off else off)

    monkeypatch.setattr(ruled_out._Place, "_candidates", broken)
    options, right = SETTINGS["one of two"]
    obstacle = report_of(world(), RARE, **options).obstacle
    assert obstacle is not None
    assert obstacle.settings != right


def test_negative_control_nothing_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = ruled_out._Place._candidates
    monkeypatch.setattr(ruled_out._Place, "_candidates", lambda place, off: candidates(place, ()))
    report = report_of(world(), RARE, top_k=2)
    assert (report.ended, report.obstacle) == ("impossible", None)


def test_negative_control_what_is_alive_is_called_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong proof would end requests that have texts."""
    assert report_of(world(), Regex("bb", match="fullmatch"), top_k=0).ended == "complete"
    monkeypatch.setattr(all_rejected, "LOOK", 1)
    monkeypatch.setattr(ConstraintMask, "outlook", lambda mask, ids, tokens: [False] * len(tokens))
    assert report_of(world(), Regex("bb", match="fullmatch"), top_k=0).ended == "impossible"


def test_a_text_that_ends_too_early_is_the_token_limits_fault() -> None:
    for rule, options in (
        (Regex("[a-f]{3}", match="fullmatch"), {}),
        (Finished() & Length(min=1), {"proposal": Twisted()}),
        (Regex("[a-f]{3}", match="fullmatch"), {"proposal": Masked()}),
    ):
        report = report_of(world(), rule, max_new_tokens=1, **options)
        assert report.ended == "impossible"
        assert report.obstacle is not None
        assert report.obstacle.settings == ("max_new_tokens=1",)
        assert report.obstacle.probability == pytest.approx(first_tokens(world(), "abcdef"), rel=1e-5)
        assert "max_new_tokens=1 ends every text too early" in report.headline()
        assert "raise max_new_tokens" in report.advice()


def test_later_tokens_if_only_one_prefix_is_possible() -> None:
    """After ``e`` and ``ef``, the letter that is needed is not among the most likely."""
    for length in (1, 2):
        made, prefix = world(), ""
        for _ in range(length):
            prefix += max("abcdef", key=lambda letter, before=prefix: following(made, before)[letter])  # type: ignore[misc]
        shares = following(made, prefix)
        needed = min("abcdef", key=shares.__getitem__)
        rule = Regex(f"{prefix}{needed}", match="fullmatch")
        report = report_of(world(), rule, top_k=2, max_new_tokens=4)
        assert report.ended == "impossible"
        assert report.obstacle is not None
        assert report.obstacle.after == length
        assert report.obstacle.probability == pytest.approx(shares[needed], rel=1e-5)
        first = "the first token" if length == 1 else "the first 2 tokens"
        assert f"top_k=2 leaves out all tokens that are possible after {first}, which" in report.headline()
        assert prefix + needed not in report.headline().replace(repr(prefix + needed), ""), "no generated text"
        assert report.usage.computed_tokens > 0


def following(world: World, prefix: str) -> dict[str, float]:
    """The probability of each letter after a prefix, from all texts of the world."""
    ids = tuple(world.tokenizer.convert_tokens_to_ids(list(prefix)))
    shares = dict.fromkeys("abcdef", 0.0)
    for text, p in world.law().items():
        if text[: len(ids)] == ids and len(text) > len(ids) and text[len(ids)] != world.tokenizer.eos_token_id:
            shares[world.tokenizer.convert_ids_to_tokens(text[len(ids)])] += p
    whole = sum(p for text, p in world.law().items() if text[: len(ids)] == ids)
    return {letter: share / whole for letter, share in shares.items()}


@pytest.mark.parametrize("proposal", [None, Masked()])
def test_a_prompt_that_violates_the_constraint_is_no_settings_fault(proposal: Any) -> None:
    report = report_of(world(top_k=2), ~Regex("a", on="full"), proposal=proposal)
    assert (report.ended, report.obstacle) == ("impossible", None)
    assert report.headline().endswith("no text that these settings allow satisfies the constraint")


def test_what_no_setting_rules_out_is_not_blamed_on_one() -> None:
    """The letter z has no token, so no setting is the reason."""
    for proposal in (None, Masked()):
        report = report_of(world(top_k=2), Regex("z", match="fullmatch"), proposal=proposal)
        assert (report.ended, report.obstacle) == ("impossible", None)
        assert "top_k=2" not in report.headline()


def test_greedy_search_is_not_asked_for_a_reason() -> None:
    made = world()
    (outcome,) = GuardedGenerator(made.pipeline(), RARE, on_exhausted="none").run(made.prompt, do_sample=False)
    assert (outcome.report.ended, outcome.report.obstacle) == ("deterministic", None)


def test_a_function_that_may_count_its_calls_is_not_called_again() -> None:
    calls = []

    def no_b(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        calls.append(len(ids))
        scores[:, world().tokenizer.convert_tokens_to_ids("b")] = -math.inf
        return scores

    report = report_of(world(), RARE, logits_processor=[no_b], proposal=Masked())
    assert (report.ended, report.obstacle, len(calls)) == ("impossible", None, 1)


def test_a_request_with_several_possible_tokens_keeps_its_budget() -> None:
    """Both letters may begin a text, so nothing is known after one token."""
    report = report_of(world(), Regex("[ec]b", match="fullmatch"), top_k=2, budget=Budget(max_attempts=300))
    assert (report.ended, report.usage.attempts, report.obstacle) == ("max_attempts", 300, None)


@pytest.mark.parametrize("most", [1, 40])
def test_small_budgets_end_with_the_reason_too(most: int) -> None:
    report = report_of(world(), RARE, top_k=2, budget=Budget(max_attempts=most))
    assert (report.ended, report.usage.attempts) == ("impossible", most)
    assert report.obstacle is not None


@pytest.mark.parametrize("batch_size", [1, 7, 300])
def test_the_batch_size_does_not_matter(batch_size: int) -> None:
    report = report_of(world(), RARE, top_k=2, batch_size=batch_size)
    assert (report.ended, report.usage.attempts, report.usage.tokens) == (
        "impossible",
        all_rejected.LOOK,
        all_rejected.LOOK,
    )


def test_texts_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is asked about and continues gets the same texts and attempts as without."""
    rule = Regex("b.*", match="fullmatch")

    def texts() -> list[Any]:
        made = world()
        guarded = GuardedGenerator(made.pipeline(), rule, seed=4, on_exhausted="none")
        settings = {**made.settings, "num_return_sequences": 2, "budget": Budget(max_attempts=30)}
        outcomes = guarded.run([made.prompt] * 30, **settings)
        return [(each.texts, each.report.ended, each.report.usage.attempts) for each in outcomes]

    monkeypatch.setattr(all_rejected, "LOOK", 3)
    asked = texts()
    monkeypatch.setattr(all_rejected, "LOOK", -1)
    assert texts() == asked
    assert {ended for _, ended, _ in asked} == {"complete", "max_attempts"}


def raises(*_: Any) -> Any:
    raise CheckFailed("the check", "it broke")


@pytest.mark.parametrize("broken", [(RefillBackend, "diagnose"), (ConstraintMask, "outlook")])
def test_an_error_in_the_search_keeps_the_old_message(broken: tuple[Any, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*broken, raises)
    report = report_of(world(), RARE, top_k=2, proposal=Masked())
    assert (report.ended, report.obstacle) == ("impossible", None)
    assert report_of(world(), RARE, top_k=2).ended == "max_attempts"


def test_tokens_that_there_was_no_time_for_make_it_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ruled_out, "FIRST_JUDGED", 1)
    monkeypatch.setattr(ruled_out, "JUDGED", 1)
    ticks = iter(range(1000))
    monkeypatch.setattr(ruled_out, "time", SimpleNamespace(monotonic=lambda: next(ticks) * ruled_out.SECONDS / 6))
    report = report_of(world(), WITHOUT_E_AND_C, top_k=2)
    assert report.ended == "impossible"
    assert report.obstacle is not None
    assert report.obstacle.at_least
    assert 0 < report.obstacle.probability < first_tokens(world(), "abdf") - 0.01
    assert "which have probability at least 0." in report.headline()


def test_no_time_at_all_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ruled_out, "SECONDS", 0.0)
    report = report_of(world(), RARE, top_k=2, proposal=Masked())
    assert (report.ended, report.obstacle) == ("impossible", None)


def test_settings_of_the_proposal_are_meant() -> None:
    """Attempts come from the prompt of the proposal, under the same settings."""
    report = report_of(world(), RARE, top_k=2, proposal=Prompt("a{prompt}"))
    assert report.ended == "impossible"
    assert report.obstacle is not None
    assert report.obstacle.settings == ("top_k=2",)


def test_all_attempts_are_drawn_for_estimates() -> None:
    made = world()
    (attempts,) = GuardedGenerator(made.pipeline(), RARE, seed=1).attempts(made.prompt, 400, **made.settings, top_p=0.5)
    assert len(attempts) == 400


def test_a_json_array_under_the_default_top_k() -> None:
    """With a larger vocabulary, the bracket is not among the 50 most likely tokens."""
    letters = "".join(map(chr, range(0x4E00, 0x4E00 + 100))) + "[]1,"
    made = table_world(1, letters=letters, max_new_tokens=6)
    bracket = made.tokenizer.convert_tokens_to_ids("[")
    with torch.no_grad():
        made.model.table[..., bracket] -= 5
    schema = JSONSchema({"type": "array"})
    settings: dict[str, Any] = {"do_sample": True, "max_new_tokens": 6, "temperature": 1.0, "top_k": 50}
    (outcome,) = GuardedGenerator(made.pipeline(), schema, seed=1, on_exhausted="none").run(made.prompt, **settings)
    assert outcome.report.ended == "impossible"
    prompt = torch.tensor([made.tokenizer(made.prompt)["input_ids"]])
    shares = made.model(input_ids=prompt).logits[0, -1].detach().double().softmax(-1)
    assert outcome.report.obstacle is not None
    assert outcome.report.obstacle.probability == pytest.approx(float(shares[bracket]), rel=1e-5)


def json_world() -> World:
    """A world in which the most likely tokens are a space and a letter, and a bracket is possible."""
    made = table_world(1, letters="a[]1 ", max_new_tokens=4)
    with torch.no_grad():
        for letter, score in {"a": 2.0, " ": 3.0, "[": -1.0, "]": -2.0, "1": -2.0}.items():
            made.model.table[..., made.tokenizer.convert_tokens_to_ids(letter)] = score
    return made


@pytest.mark.parametrize("proposal", [None, Masked()])
def test_white_space_alone_is_no_proof_but_the_setting_is_named(proposal: Any) -> None:
    """JSON may begin with white space, after which the bracket might be likely: the run uses its budget."""
    schema, made = JSONSchema({"type": "array"}), json_world()
    report = report_of(made, schema, top_k=2, proposal=proposal, budget=Budget(max_attempts=300))
    assert report.obstacle is not None
    assert report.obstacle.textless
    assert not report.obstacle.at_least
    assert report.obstacle.probability == pytest.approx(first_tokens(made, "["), rel=1e-5)
    sentence = "top_k=2 leaves out all possible first tokens except those without visible text, which have probability"
    assert sentence in report.headline()
    if proposal is None:
        assert (report.ended, report.usage.attempts) == ("max_attempts", 300)
        assert "pass top_k=0, raise the budget, weaken the constraint" in report.advice()


def test_a_setting_that_leaves_what_is_needed_is_not_named() -> None:
    made = json_world()
    report = report_of(made, JSONSchema({"type": "array", "minItems": 3}), top_k=4, budget=Budget(max_attempts=300))
    assert report.obstacle is None


def test_negative_control_white_space_taken_for_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PrefixWatch, "adds_text", lambda watch, ids, tokens: [True] * len(tokens))
    obstacle = report_of(json_world(), JSONSchema({"type": "array"}), top_k=2).obstacle
    assert obstacle is not None
    assert obstacle.settings == ("max_new_tokens=4",), "only spaces were followed, and the bracket was forgotten"


def test_checks_without_verdicts_run_as_long_as_the_budget() -> None:
    @constraint
    def never(text: str) -> bool:
        return False

    report = report_of(world(), never, top_k=2, budget=Budget(max_attempts=300))
    assert (report.ended, report.usage.attempts) == ("max_attempts", 300)


def test_reports_keep_it_as_plain_data() -> None:
    report = report_of(world(), RARE, top_k=2)
    probability = pytest.approx(first_tokens(world(), "b"), rel=1e-5)
    assert report.to_dict()["obstacle"] == {
        "settings": ["top_k=2"],
        "probability": probability,
        "after": 0,
        "at_least": False,
        "textless": False,
        "of_attempt": False,
    }
    assert (
        str(dataclasses.replace(report, obstacle=Obstacle(("a", "b=1", "c"), 0.25)))
        .splitlines()[0]
        .endswith("a, b=1 and c leave out all possible first tokens, which have probability 0.25 without them")
    )
