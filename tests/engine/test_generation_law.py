"""The settings that define a(y): transformers' functions are recognized by their exact class, all others are called."""

import itertools
import math
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

from guardwrap import GuardedGenerator, Length, Prompt, qrs
from guardwrap.engine import generation_law as law_module
from guardwrap.engine.generation_law import ended_rows, with_processors
from guardwrap.engine.scheduling.scheduler import Scheduler
from guardwrap.errors import UsageError
from guardwrap.models import prepare as prepare_module
from guardwrap.testing import World, goodness_of_fit, llama_world, table_world
from tests.fixtures_models import t5

FITS, FAILS = 1e-3, 1e-9

IDS = torch.tensor([[1, 2], [1, 3], [3, 2]])


class FirstRow(StoppingCriteria):
    """A criterion like those of LangChain and LlamaIndex: a single answer, read from the first row."""

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return any(input_ids[0][-1] == stop for stop in (2,))


@pytest.mark.parametrize(
    "criterion",
    [
        FirstRow(),
        lambda ids, scores: ids[:, -1] == 2,
        lambda ids, scores: ids[0, -1] == 2,
        lambda ids, scores: ids[:1, -1] == 2,
    ],
)
def test_each_row_ends_by_its_own_tokens(criterion: Any) -> None:
    assert ended_rows(criterion, IDS, None).tolist() == [True, False, True]
    assert ended_rows(criterion, IDS[1:2], None).tolist() == [False]


def test_of_encoder_decoder_models_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = t5()
    guarded = GuardedGenerator(model, Length(min=0), tokenizer=tokenizer)
    options: dict[str, Any] = {"do_sample": True, "num_beams": 1, "max_new_tokens": 6, "num_return_sequences": 30}

    def texts() -> tuple[str, ...]:
        return guarded.run("abc", seed=1, batch_size=10, stopping_criteria=[FirstRow()], **options)[0].texts

    def too_late(found: tuple[str, ...]) -> int:
        """Return the probability of texts that continue after a `b`."""
        return sum("b" in text[:-1] for text in found)

    assert any("b" in text for text in texts())
    assert too_late(texts()) == 0
    monkeypatch.setattr(
        "guardwrap.engine.transformers_loop.ended_rows", lambda ends, *given, **more: ends(*given, **more)
    )
    assert too_late(texts()) > 0  # negative control: called once for all rows


class Annealed(TemperatureLogitsWarper):
    """Uses another temperature at each token: it reads the tokens, unlike its base class."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores / (1.0 + 2.0 * (input_ids.shape[1] - 1))


def test_what_is_derived_from_a_warper_is_given_the_tokens() -> None:
    """At the first token the temperature is 1, then 3, then 5."""
    world = table_world(letters="ab", max_new_tokens=3)
    guarded = GuardedGenerator(world.pipeline(), Length(min=0), seed=1)

    def drawn() -> list[Any]:
        options = {"logits_processor": [Annealed(1.5)], "num_return_sequences": 4_000, **world.settings}
        return [draw.token_ids for draw in guarded.run(world.prompt, **options)[0].draws]

    table = world.model.table.detach().double()
    gold: dict[Any, float] = {}
    frontier: dict[Any, float] = {(): 1.0}
    for position in range(3):
        steps = (table[position] / (1.0 + 2.0 * position)).softmax(-1)
        grown = {(*ids, t): p * float(steps[ids[-1] if ids else 1, t]) for ids, p in frontier.items() for t in range(3)}
        over = {ids: p for ids, p in grown.items() if ids[-1] == 0 or position == 2}
        gold |= over
        frontier = {ids: p for ids, p in grown.items() if ids not in over}
    assert goodness_of_fit(drawn(), gold) > FITS
    with pytest.MonkeyPatch.context() as broken:  # negative control: treated like its base class
        broken.setattr(Annealed, "__call__", TemperatureLogitsWarper.__call__)
        assert goodness_of_fit(drawn(), gold) < FAILS


class EarlyEnd(MaxLengthCriteria):
    """Ends a text after two new tokens, whatever its limit is."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= 3, device=input_ids.device)


def test_what_is_derived_from_a_criterion_is_called() -> None:
    world = table_world(letters="ab", max_new_tokens=6)
    guarded = GuardedGenerator(world.pipeline(), Length(min=0), seed=1)
    options = {"stopping_criteria": [EarlyEnd(99)], "num_return_sequences": 50, **world.settings}
    (outcome,) = guarded.run(world.prompt, **options)
    assert max(len(draw.token_ids) for draw in outcome.draws) == 2
    model, tokenizer = t5()
    seen = GuardedGenerator(model, Length(min=0), tokenizer=tokenizer, seed=1)
    (outcome,) = seen.run("abc", do_sample=True, num_beams=1, max_new_tokens=6, stopping_criteria=[EarlyEnd(99)])
    assert len(outcome.draws[0].token_ids) <= 2


class Cut(TopKLogitsWarper):
    """Derived from a truncation."""


def test_what_is_derived_from_a_truncation_truncates_a_proposal() -> None:
    world = llama_world(letters="ab")
    guarded = GuardedGenerator(world.pipeline(), Length(min=0), proposal=Prompt("a{prompt}"), sampler=qrs(1.0))
    with pytest.raises(UsageError, match="top_k"):
        guarded.run(world.prompt, logits_processor=[Cut(2)], **world.settings)


def test_settings_that_print_alike_are_not_equal() -> None:
    """Each call in a batch has its own warper: one excludes no letter, the other excludes the rarest."""
    world = table_world(letters="ab", max_new_tokens=1)
    with torch.no_grad():
        world.model.table[...] = torch.tensor([0.0005, 0.6, 0.3995]).log()
    guarded = GuardedGenerator(world.pipeline(), Length(min=0))
    settings = {"num_return_sequences": 8, "seed": 1, **world.settings}
    # The least probability that eta's rule keeps, as the entropy is large.
    jobs = [guarded._session.job({**settings, "eta_cutoff": cutoff}) for cutoff in (0.00046, 0.00054)]
    together = itertools.chain.from_iterable(job.requests([world.prompt]) for job in jobs)
    outcomes = [outcome for _, outcome in Scheduler(jobs[0].source.backend(32)).serve(together, window=64)]
    for outcome, left in zip(outcomes, (1.0, 0.9995), strict=True):
        values = [draw.log_proposal for draw in outcome.draws if draw.text == "a"]
        assert values == pytest.approx([math.log(0.6 / left)] * len(values), abs=1e-5)
        assert values


def group_of(world: World, **options: Any) -> Any:
    guarded = GuardedGenerator(world.pipeline(), Length(min=0))
    (prompt,) = guarded._session.job({**world.settings, **options}).call.prompts(enumerate([world.prompt]), 1)
    return prompt.law.group


def test_equal_settings_share_a_batch() -> None:
    world = table_world()
    assert group_of(world, eta_cutoff=0.001) == group_of(world, eta_cutoff=0.001)
    assert group_of(world, eta_cutoff=0.00046) != group_of(world, eta_cutoff=0.00054)
    assert group_of(world, top_k=2) != group_of(world, top_k=3)


class Counter(LogitsProcessor):
    """Keeps a state: excludes a letter at every other call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        scores = scores.clone()
        scores[:, 1 + self.calls % 2] = -torch.inf
        return scores


class MinLengthLogitsProcessor(Counter):
    """Has the name of a class of transformers."""


@pytest.mark.parametrize("kind", [Counter, MinLengthLogitsProcessor])
def test_what_may_keep_a_state_is_named_in_the_report(kind: Any) -> None:
    world = table_world()
    guarded = GuardedGenerator(world.pipeline(), Length(min=0), seed=1)
    (outcome,) = guarded.run(world.prompt, logits_processor=[kind()], **world.settings)
    assert any(note.startswith(f"{kind.__name__} is not from transformers") for note in outcome.report.notes)
    (outcome,) = guarded.run(world.prompt, min_new_tokens=2, repetition_penalty=1.2, **world.settings)
    assert outcome.report.notes == ()
    assert law_module._FUNCTIONS_OF_THE_TEXT.isdisjoint(prepare_module._ROWWISE)


@pytest.mark.parametrize("ends", [2, [1, 3], [0, 99]])
def test_minimum_lengths_give_the_scores_of_transformers(ends: Any) -> None:
    scores = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))
    for processor in (
        transformers.MinLengthLogitsProcessor(5, ends),
        MinNewTokensLengthLogitsProcessor(3, 2, ends),
        RepetitionPenaltyLogitsProcessor(1.5),
    ):
        for length in range(1, 8):
            ids = torch.arange(length).expand(2, -1)
            ours = with_processors(LogitsProcessorList([processor, processor]), ids, scores.clone())
            assert ours.equal(processor(ids, processor(ids, scores)))


def test_derived_minimum_lengths_are_called() -> None:
    class Later(transformers.MinLengthLogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            return scores + 1

    scores = torch.zeros(1, 4)
    assert with_processors(LogitsProcessorList([Later(5, 2)]), torch.zeros(1, 2), scores).equal(scores + 1)
