"""Judgements are cached, and everything that they depend on is part of the key."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from peft import LoraConfig
from tokenizers import normalizers

from guardwrap import Budget, GuardedGenerator, Length, Masked, Regex, qrs
from guardwrap.adapters import attach
from guardwrap.constraints import ConstraintFile
from guardwrap.engine import prefix_cache
from guardwrap.engine.scheduling import judging
from guardwrap.engine.scheduling.backend import JudgementCache
from guardwrap.outcomes import Draw, Outcome
from guardwrap.testing import World, goodness_of_fit, table_world
from tests.fixtures_adapters import CONSTRAINT, guarded_of, trained, world_of

FITS, FAILS = 1e-3, 1e-9
DRAWS = 1_000


def beside_rejection(sampler: Any) -> tuple[World, list[Outcome]]:
    """Two equal prompts of one call with an adapter: the first one rejects, the other one weighs.

    No text weighs more than 1.8, and without weights the texts are .23 away from g (total variation distance).
    """
    world = world_of()
    each = [ConstraintFile(CONSTRAINT, sampler="rejection"), ConstraintFile(CONSTRAINT, sampler=sampler)]
    guarded = guarded_of(world, trained(world.model))
    options = {"num_return_sequences": DRAWS, "constraint_each": each, **world.settings}
    return world, guarded.run([world.prompt] * 2, **options)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [{"qrs": {"beta": 1.8}}, {"imh": {"steps": 8}}])
def test_weights_are_a_requests_own(sampler: Any) -> None:
    world, (_, weighed) = beside_rejection(sampler)
    assert goodness_of_fit([draw.token_ids for draw in weighed.draws], world.gold(CONSTRAINT)) > FITS


def test_negative_control_a_weight_of_whoever_was_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shared(dict[Any, Any]):
        """Negative control: reuses the first request's result for all requests."""

        def get(self, request: Any, default: Any = None) -> Any:
            return super().get(None, default)

        def __setitem__(self, request: Any, found: Any) -> None:
            super().setdefault(None, found)

    monkeypatch.setattr(prefix_cache, "JudgementCache", lambda: JudgementCache(by_request=Shared()))  # type: ignore[arg-type]
    world, (_, weighed) = beside_rejection({"qrs": {"beta": 1.8}})
    assert goodness_of_fit([draw.token_ids for draw in weighed.draws], world.gold(CONSTRAINT)) < FAILS


def folded(world: World) -> World:
    """A world whose tokenizer maps capitals to lowercase, so that different texts have the same tokens."""
    world.tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    return world


CAPITAL = Regex("^A(a|b)*$|^a$", on="full")
"""Satisfied by hardly any text after "a" and by all after "A"."""


@pytest.mark.parametrize("proposal", [None, Masked(unseen=0.0)])
def test_prompts_with_equal_tokens_have_verdicts_of_their_own(proposal: Any) -> None:
    world = folded(table_world(letters="ab", max_new_tokens=3))
    guarded = GuardedGenerator(world.pipeline(), CAPITAL, proposal=proposal, seed=2, budget=Budget(max_attempts=500))
    for prompts in (["A", "a"], ["a", "A"]):
        for prompt, outcome in zip(
            prompts, guarded.run(prompts, num_return_sequences=60, **world.settings), strict=True
        ):
            assert {draw.prompt for draw in outcome.draws} <= {prompt}
            assert all(CAPITAL.check([draw])[0] for draw in outcome.draws)
            assert outcome.draws


def test_negative_control_what_is_known_of_another_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "_judged_by", lambda launch: "")
    monkeypatch.setattr(judging, "_read_of", lambda draw: draw.text)
    with pytest.raises(AssertionError):
        test_prompts_with_equal_tokens_have_verdicts_of_their_own(None)


def test_a_text_is_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text is judged once, and weighed once per request; there are only a few distinct texts."""
    judged: list[int] = []
    parts: Callable[..., Any] = vars(judging)["judge_parts"]

    def counted(constraints: Any, draws: Any, **options: Any) -> Any:
        judged.append(len(draws))
        return parts(constraints, draws, **options)

    monkeypatch.setattr(judging, "judge_parts", counted)
    world = world_of()
    guarded = GuardedGenerator(
        world.pipeline(),
        Length(min=0),
        adapter=attach(world.model, LoraConfig(r=2, target_modules="all-linear")),
        sampler=qrs(1.0),
        seed=1,
        batch_size=8,
    )
    (outcome,) = guarded.run(world.prompt, num_return_sequences=1_000, **world.settings)
    assert len(outcome.texts) == 1_000
    assert sum(judged) < 100


def test_a_cached_judgement_is_of_all_that_a_rule_may_read() -> None:
    """Each field of a draw is part of the key, except the tokens, which the cache is of, and their log-probability."""
    draw = Draw("p", (1,), "t")
    others: dict[str, Any] = {
        "prompt": "q", "text": "u", "finished": False, "full": "pt", "fault": "none", "parts": (("answer", ("t",)),),
        "begun": "b", "message": "{}",
    }  # fmt: skip
    assert {field.name for field in dataclasses.fields(Draw)} == {*others, "token_ids", "log_proposal"}
    keys = {judging._read_of(dataclasses.replace(draw, **{name: value})) for name, value in others.items()}
    assert len({*keys, judging._read_of(draw)}) == len(others) + 1
