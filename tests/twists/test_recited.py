"""Texts that a twist is given to learn from: they are recited to it, and change what texts cost but not their law."""

import math

import numpy as np
import pytest

from guardwrap import Budget, Finished, GuardedGenerator, Keyword, Twisted, qrs
from guardwrap.calls import twisting
from guardwrap.errors import UsageError
from guardwrap.testing import goodness_of_fit, llama_world
from guardwrap.twists.tilt import TiltData, TokenEmbeddings
from guardwrap.twists.twist import Recited

RULE = Keyword("ab", whole_words=False)


def world_of(**more):
    return llama_world(**{"letters": "abcdef", "max_new_tokens": 6, "temperature": 0.8, **more})


def texts_of(world, count):
    guarded = GuardedGenerator(world.pipeline(), RULE, budget=Budget(max_attempts=None), seed=5)
    outcome = guarded.run(world.prompt, num_return_sequences=count, **world.settings)[0]
    return list(outcome.texts)


def twisted_of(world, examples, rule=RULE, **options):
    budget = Budget(max_attempts=None)
    proposal = Twisted(examples=examples)
    return GuardedGenerator(world.pipeline(), rule, proposal=proposal, budget=budget, seed=3, **options)


def learned(guarded):
    return [twisted for twisted, _ in guarded.session._learned.values()]


def left_to_learn(guarded, world):
    return guarded.session.job(world.settings).source.twists.constraint.left


def test_each_text_is_recited_and_its_steps_are_kept(monkeypatch):
    world = world_of()
    added = []
    right = TiltData.add_draws

    def add(self, texts, records):
        right(self, texts, records)
        added.append((texts, list(self.attempts)))

    monkeypatch.setattr(TiltData, "add_draws", add)
    texts = ["cab", "eeeab", "ab", "fab"]
    guarded = twisted_of(world, texts)
    (outcome,) = guarded.run(world.prompt, **world.settings)
    ((given, attempts),) = added
    assert [world.tokenizer.decode(ids).replace(" ", "") for ids in given] == texts
    assert len(attempts) == len(texts), "each leaps"
    for attempt in attempts:
        assert attempt.worths.tolist() == [*[0.0] * (len(attempt.steps) - 1), 1.0]
        assert attempt.steps[-1].leaps.tolist() == [attempt.tokens[-1]]
        for step, token in zip(attempt.steps, attempt.tokens, strict=True):
            assert token in step.tokens
    # 2 rounds of 64 for the values, and the texts.
    assert outcome.report.usage.learning_attempts == 132
    assert any("learned from 132 attempts" in note for note in outcome.report.notes)
    assert not any("learned nothing" in note for note in outcome.report.notes)


def test_a_text_is_drawn_as_it_is_given():
    world = world_of()
    seen = []

    class Watching:
        end_ids = (world.tokenizer.eos_token_id,)

        def log_factors(self, *given):
            seen.append(given[0])

    recited = Recited(Watching(), (3, 1))  # type: ignore[arg-type]
    law = np.full(len(world.tokenizer), -math.log(len(world.tokenizer)))
    for prefix, token in (((), 3), ((3,), 1), ((3, 1), world.tokenizer.eos_token_id)):
        factors = recited.log_factors(prefix, None, law)
        assert np.argmax(factors) == token
        assert (factors > -1).sum() == 1
        columns = np.arange(len(law))[::-1]
        assert columns[np.argmax(recited.log_factors(prefix, columns, law))] == token
    assert seen[::2] == [(), (3,), (3, 1)]


def test_texts_tilt_tokens_towards_what_they_have_in_common():
    world = world_of(letters="abcdefgh", max_new_tokens=8)
    guarded = twisted_of(world, ["eeeeeab", "eeeeab", "eeab", "eeeeeeab"] * 8)
    guarded.run(world.prompt, **world.settings)
    (twisted,) = learned(guarded)
    tilts = {letter: twisted.tilt[world.tokenizer.convert_tokens_to_ids(letter)] for letter in "cdefgh"}
    assert max(tilts, key=lambda letter: tilts[letter]) == "e"


@pytest.mark.slow
def test_whatever_the_texts_qrs_goes_to_g():
    """Negative control: the same texts by rejection follow g', which is far from g."""
    world = world_of(letters="abc", max_new_tokens=4)
    texts = ["cab", "ccab", "cabc", "cab"] * 5
    gold = world.gold(RULE)
    guarded = twisted_of(world, texts)
    (attempts,) = guarded.attempts(world.prompt, 2_000, **world.settings)
    beta = math.exp(max(attempt.log_weight for attempt in attempts if attempt.satisfied))
    (outcome,) = guarded.run(world.prompt, sampler=qrs(2 * beta), num_return_sequences=3_000, **world.settings)
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], gold) > 1e-3
    (outcome,) = guarded.run(world.prompt, sampler="rejection", num_return_sequences=3_000, **world.settings)
    assert goodness_of_fit([draw.token_ids for draw in outcome.draws], gold) < 1e-9


def test_texts_that_must_end_are_learned_from():
    world = world_of()
    guarded = twisted_of(world, ["ab", "cab", "cc"], RULE & Finished())
    (outcome,) = guarded.run(world.prompt, sampler="qrs", **world.settings)
    assert outcome.ok
    assert outcome.report.usage.learning_attempts == 131
    assert any("learned nothing from 1 example:" in note for note in outcome.report.notes), "cc is no satisfying text"


@pytest.mark.slow
def test_other_texts_are_learned_apart_and_attempts_are_for_the_values(monkeypatch):
    world = world_of()
    monkeypatch.setattr(
        TiltData, "fitted", lambda self, embeddings: np.full(len(embeddings.weight), len(self.attempts))
    )
    guarded = twisted_of(world, ["ab", "cab"])
    assert left_to_learn(guarded, world) == 130
    proposals = [Twisted(examples=["ab", "cab"]), Twisted(examples=["ab"]), Twisted(examples=["ab"], attempts=80)]
    for proposal in (*proposals, *proposals):
        guarded.run(world.prompt, proposal=proposal, **world.settings)
    assert [(each.spent.attempts, each.tilt[0]) for each in learned(guarded)] == [(130, 2), (129, 1), (81, 1)]
    assert left_to_learn(guarded, world) == 0


def test_a_text_that_the_model_cannot_draw_is_left_out(monkeypatch):
    world = world_of()
    fitted = []

    def fit(self, embeddings):
        fitted.append(len(self.attempts))
        return np.zeros(len(embeddings.weight))

    monkeypatch.setattr(TiltData, "fitted", fit)
    guarded = twisted_of(world, ["ab", "f" * 20 + "ab", "cab"])
    (outcome,) = guarded.run(world.prompt, **world.settings)
    assert outcome.ok
    assert fitted == [2], "the other one is longer than texts may be"
    assert any("learned nothing from 1 example:" in note for note in outcome.report.notes)


def test_where_satisfying_texts_are_common_there_is_nothing_to_learn():
    rule = Keyword("a", whole_words=False)
    (outcome,) = twisted_of(world_of(), ["ba", "a"], rule).run(world_of().prompt, **world_of().settings)
    assert outcome.ok
    assert any("learned nothing from 2 examples:" in note for note in outcome.report.notes)


def test_what_was_learned_is_saved(tmp_path):
    world = world_of()
    guarded = twisted_of(world, texts_of(world, 20))
    first = guarded.run(world.prompt, num_return_sequences=5, **world.settings)[0]
    guarded.save_twist(tmp_path / "it.safetensors")
    again = GuardedGenerator(world.pipeline(), RULE, proposal=Twisted(learned=tmp_path / "it.safetensors"), seed=3)
    assert again.run(world.prompt, num_return_sequences=5, **world.settings)[0].texts == first.texts


def test_texts_that_a_time_limit_cuts_off_are_recited_by_the_next_call(monkeypatch):
    world = world_of()
    guarded = twisted_of(world, ["ab", "cab", "bab"])
    right = twisting.TwistedConstraint._recite

    def cut(self, prompt, attempts):
        return right(self, prompt, lambda prompts, twists, count, seed: attempts(prompts[:1], twists[:1], count, seed))

    with monkeypatch.context() as patch:
        patch.setattr(twisting.TwistedConstraint, "_recite", cut)
        (outcome,) = guarded.run(world.prompt, **world.settings)
    assert outcome.ok
    assert not any("learned nothing" in note for note in outcome.report.notes), "the other two were not tried"
    (twisted,) = learned(guarded)
    assert not twisted.learned
    assert guarded.run(world.prompt, **world.settings)[0].ok
    assert twisted.learned
    assert twisted.spent.attempts == 128 + 1 + 64 + 3


def test_without_embeddings_texts_are_no_help(monkeypatch):
    monkeypatch.setattr(TokenEmbeddings, "of", lambda model: None)
    world = world_of()
    (outcome,) = twisted_of(world, ["ab", "cab"]).run(world.prompt, **world.settings)
    assert outcome.report.usage.learning_attempts == 128
    assert any("learned nothing from 2 examples:" in note for note in outcome.report.notes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"examples": "ab"}, "give a list of texts"),
        ({"examples": ["ab", 3]}, "give a list of texts"),
        ({"examples": 3}, "give a list of texts"),
        ({"examples": ["ab"], "learned": "it.safetensors"}, "leave examples= or learned= out"),
    ],
)
def test_parameters(options, message):
    with pytest.raises(UsageError, match=message):
        Twisted(**options)


def test_texts_that_do_not_satisfy_the_constraint_are_refused():
    world = world_of()
    with pytest.raises(UsageError, match=r"none of 2 texts satisfies .* without their prompts"):
        twisted_of(world, ["c", "ba"]).run(world.prompt, **world.settings)
