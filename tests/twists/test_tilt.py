"""Tilts: what is kept of a step, the weights of texts that have not succeeded, and the direction that is fitted."""

import numpy as np
import pytest
import torch

from guardwrap import Keyword
from guardwrap.models.vocabulary import Vocabulary
from guardwrap.testing import llama_world, table_world
from guardwrap.twists import tilt, twist
from guardwrap.twists.progress_of import automaton_of
from guardwrap.twists.state_values import SoftCounts, TokenStates, log_values
from guardwrap.twists.tilt import StepRecords, TiltData, TokenEmbeddings, capped_shares, step_of
from guardwrap.twists.twist import Twist

TOKENS, DIMENSIONS = 60, 4
VECTORS = np.random.default_rng(1).normal(size=(TOKENS, DIMENSIONS))


def embeddings_of(dtype=torch.float32):
    head = torch.nn.Linear(DIMENSIONS, TOKENS, bias=False)
    head.weight = torch.nn.Parameter(torch.from_numpy(VECTORS).to(dtype))

    class Model:
        def get_output_embeddings(self):
            return head

    return TokenEmbeddings.of(Model())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_embeddings_are_centered_and_scaled(dtype, monkeypatch):
    monkeypatch.setattr("guardwrap.twists.tilt._ROWS", 7)  # in several pieces
    embeddings = embeddings_of(dtype)
    vectors = torch.from_numpy(VECTORS).to(dtype).double().numpy()
    vectors -= vectors.mean(0)
    vectors /= np.sqrt(np.square(vectors).sum(1).mean())
    direction, shares = np.arange(DIMENSIONS) - 1.0, np.arange(TOKENS) / TOKENS
    assert embeddings.dimensions == DIMENSIONS
    assert embeddings.products(direction) == pytest.approx(vectors @ direction, abs=1e-5)
    assert embeddings.sums(shares) == pytest.approx(shares @ vectors, abs=1e-4)


@pytest.mark.parametrize(
    "head",
    [
        None,
        torch.nn.Identity(),
        torch.nn.Linear(2, 3, device="meta"),
        type("Quantized", (), {"weight": torch.zeros(3, 2, dtype=torch.int8)})(),
        type("Constant", (), {"weight": torch.ones(3, 2)})(),
    ],
)
def test_models_without_embeddings_at_hand_have_no_tilt(head):
    class Model:
        def get_output_embeddings(self):
            return head

    assert TokenEmbeddings.of(Model()) is None


def test_no_draw_has_more_than_its_cap():
    weights = np.array([1e6, *[1.0] * 24])
    shares = capped_shares(weights)
    assert shares.sum() == pytest.approx(1)
    assert shares[0] == pytest.approx(1 / 5, abs=1e-6)
    assert shares[1:] == pytest.approx(shares[1])
    alike = np.array([1.0, 2.0, 3.0, 2.0])
    assert capped_shares(alike) == pytest.approx(alike / 8)
    assert capped_shares(np.array([4.0])) == pytest.approx([1.0])


def test_what_is_kept_of_a_step_has_the_sum_of_all_tokens():
    chance = np.random.default_rng(2)
    logs, tilts = chance.normal(-5, 3, TOKENS), chance.normal(size=TOKENS)
    logs[3] = -np.inf
    worths = np.where(np.arange(TOKENS) % 20 == 5, 0.5, 0.0)
    step = step_of(16, None, logs, tilts, worths, lambda token: 0.0)
    assert len(step.tokens) == 32
    assert 3 not in step.tokens
    whole = np.exp(np.delete(logs + tilts, 3)).sum()
    assert np.exp(step.logs + tilts[step.tokens]).sum() == pytest.approx(whole, rel=1e-6)
    assert step.leaps.tolist() == [5, 25, 45]
    # The columns may be other tokens than their numbers.
    columns = np.arange(TOKENS)[::-1].copy()
    turned = step_of(16, columns, logs, tilts, worths, lambda token: 0.0)
    assert turned.tokens.tolist() == columns[step.tokens].tolist()
    assert turned.leaps.tolist() == [54, 34, 14]


def drawn_texts(direction, count, seed, length=6):
    """Return texts whose tokens are tilted in a direction, and the records of their steps under a flat law."""
    embeddings, chance = embeddings_of(), np.random.default_rng(seed)
    shares = np.exp(embeddings.products(direction))
    texts = chance.choice(TOKENS, (count, length), p=shares / shares.sum()).tolist()
    records = StepRecords(count, length)
    logs = np.full(TOKENS, -np.log(TOKENS))
    for text in texts:
        for place in range(length):
            worths = shares * (place == length - 1)  # any token may be the one that succeeds
            records.steps[tuple(text[:place])] = step_of(256, None, logs, np.zeros(TOKENS), worths, lambda token: 0.0)
    return embeddings, texts, records


def test_the_direction_of_the_texts_is_found():
    direction = np.array([2.0, 0.0, -1.0, 1.0])
    embeddings, texts, records = drawn_texts(direction, 300, 3)
    data = TiltData()
    data.add(texts, records)
    fitted = data.fitted(embeddings)
    assert np.corrcoef(fitted, embeddings.products(direction))[0, 1] > 0.98
    assert 0.8 < fitted.std() / embeddings.products(direction).std() < 1.2


def test_a_fit_after_another_is_the_one_without_it():
    """The optimizer goes on from the direction before, which decides how long it takes, and not where it ends."""
    embeddings, texts, records = drawn_texts(np.array([2.0, 0.0, -1.0, 1.0]), 200, 6)
    twice, once = TiltData(), TiltData()
    twice.add(texts[:60], records)
    before = twice.fitted(embeddings)
    twice.add(texts[60:], records)
    once.add(texts, records)
    assert twice.fitted(embeddings) == pytest.approx(once.fitted(embeddings), abs=0.01)
    assert np.abs(before - once.fitted(embeddings)).max() > 0.05


def test_texts_that_have_nothing_in_common_are_not_tilted(monkeypatch):
    monkeypatch.setattr(tilt, "PRIOR_VARIANCE", 1e3)
    embeddings, texts, records = drawn_texts(np.zeros(DIMENSIONS), 12, 4)
    data = TiltData()
    data.add(texts, records)
    shortened = data.fitted(embeddings)
    monkeypatch.setattr(tilt, "_LENGTHS", np.array([1.0]))
    assert data.fitted(embeddings).std() > 3 * shortened.std()


def test_no_attempts_no_tilt():
    assert not TiltData().fitted(embeddings_of()).any()
    data, (embeddings, texts, records) = TiltData(), drawn_texts(np.zeros(DIMENSIONS), 4, 5)
    data.add(texts[:1], records)
    assert not data.fitted(embeddings).any()


def test_texts_count_with_the_weights_of_their_beginnings():
    logs = np.full(TOKENS, -np.log(TOKENS))
    leaps = np.where(np.arange(TOKENS) == 7, 0.25, 0.0)
    records = StepRecords(1, 3)
    records.steps[()] = step_of(256, None, logs, logs * 0, leaps * 0, lambda token: np.log(0.5))
    records.steps[(1,)] = step_of(256, None, logs, logs * 0, leaps, lambda token: np.log(4.0))
    records.steps[(1, 2)] = step_of(256, None, logs, logs * 0, 2 * leaps, lambda token: 0.0)
    data = TiltData()
    data.add([(1, 2, 3, 4)], records)
    (attempt,) = data.attempts
    assert attempt.worths == pytest.approx([0, 0.5 * 0.25, 0.5 * 4 * 0.5])
    assert attempt.tokens == [1, 2, 3]
    data.add([(5, 5)], records)  # leads nowhere
    assert len(data.attempts) == 1


def states_of(world, rule):
    def decode(ids):
        return world.tokenizer.decode(ids, skip_special_tokens=True)

    automaton = automaton_of(rule)
    assert automaton is not None
    return TokenStates(automaton, Vocabulary(world.tokenizer, decode, skips=True))


@pytest.mark.parametrize("make", [table_world, llama_world])
@pytest.mark.parametrize("share", [0.0, 0.6])
def test_a_step_knows_the_weight_of_each_token(make, share):
    world = make(letters="abc", max_new_tokens=4, temperature=0.8)
    states = states_of(world, Keyword("ab", whole_words=False, min_count=2))
    automaton = states.automaton
    size = len(world.tokenizer)
    tilts = np.random.default_rng(8).normal(size=size)
    values = np.minimum(log_values(automaton, SoftCounts(len(automaton)), 4), np.log(0.05))
    records = StepRecords(1, 4)
    ends = [world.tokenizer.eos_token_id]
    twisted = Twist(states, values, ends, 4, strength=0.8, model_share=share, tilt=tilts, records=records)
    law = np.log(np.random.default_rng(9).dirichlet(np.ones(size)))
    for prefix in ((), (1,), (1, 2), (1, 2, 1)):
        factors = twisted.log_factors(prefix, None, law)
        weights = np.logaddexp.reduce(law + factors) - factors
        step = records.steps[prefix]
        assert [step.log_weight(token) for token in range(size)] == pytest.approx(weights.tolist())


def test_tokens_are_tilted_only_where_success_is_unlikely():
    world = table_world(letters="abc", max_new_tokens=4, temperature=0.8)
    states = states_of(world, Keyword("ab", whole_words=False))
    values = np.full((5, len(states.automaton)), np.log(tilt.LIKELY) - 0.1)
    tilts = np.arange(len(world.tokenizer), dtype=float)
    law = np.log(np.full(len(tilts), 1 / len(tilts)))
    low = Twist(states, values, [], 4, tilt=tilts).log_factors((), None, law)
    assert low == pytest.approx(tilts)
    high = Twist(states, values + 0.2, [], 4, tilt=tilts).log_factors((), None, law)
    assert high == pytest.approx(0.0)
    assert twist.FLOOR < -1
