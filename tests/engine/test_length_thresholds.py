"""Texts that cross a threshold of the model's: drawn as ``generate`` draws them, and weighed under that distribution.

All architectures are in benchmarks/thresholds.py.
"""

from typing import Any

import pytest
import thresholds
import torch
from transformers.generation import StoppingCriteriaList

from guardwrap import GuardedGenerator, Length
from guardwrap.engine import forward_passes, sequence_scores
from guardwrap.engine.forward_passes import length_threshold
from guardwrap.engine.generation_law import GenerationLaw
from guardwrap.engine.refill import row_states
from guardwrap.engine.refill.mode_selection import select_rows
from guardwrap.engine.refill.row_states import Separate
from guardwrap.engine.refill.slots import Slots
from guardwrap.errors import ContextExceeded, ModelError
from guardwrap.testing import character_tokenizer

# These warnings are about the tiny models, and about texts past the trained length.
pytestmark = pytest.mark.filterwarnings("ignore")

NEAR = 1e-3
"""Nats."""

CROSSED = [
    ("llama", "dynamic"),
    ("llama", "longrope"),
    ("gemma3_text", "dynamic"),  # rotary embeddings by the type of the layer
    ("gemma3_text", "longrope"),
    ("phi3", "longrope"),  # generate computes the whole text again
    ("phimoe", "longrope"),
    ("deepseek_v32", "windows"),  # index_topk
    ("glm_moe_dsa", "windows"),
    ("deepseek_v32", "dynamic"),
    ("moshi", "windows"),
]
"""Architectures and thresholds at which the distribution of a token changes with the pass."""

USUAL = [
    ("gemma3_text", "windows"),
    ("llama4_text", "windows"),  # attention_chunk_size, floor_scale
    ("gpt_neo", "windows"),
    ("doge", "windows"),  # keep_window_size
    ("mistral", "windows"),
    ("gpt_oss", "windows"),
]
"""Architectures whose windows give the same distribution in any pass."""


def small(name: str, case: str, **special: Any) -> Any:
    settings = thresholds.settings_of(name, case)
    assert settings is not None
    return thresholds.built(name, settings | special)


def measured(model: Any) -> dict[str, float]:
    return thresholds.measured(model, attempts=1, cache=False)  # the cache makes transformers' own difference


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case"), CROSSED + USUAL)
def test_drawn_and_weighed_as_generate_draws(name: str, case: str) -> None:
    model = small(name, case)
    assert length_threshold(model) == (thresholds.AT if (name, case) in CROSSED else None)
    try:
        for _ in range(2):
            model(torch.ones(1, thresholds.AT + 1, dtype=torch.long))
    except UnboundLocalError:
        pytest.skip("this release of transformers raises at the threshold")
    apart = measured(model)
    assert all(difference < NEAR for difference in apart.values()), apart


@pytest.mark.parametrize("name", ["roberta", "camembert"])
def test_positions_are_those_that_generate_passes(name: str) -> None:
    """These models count positions themselves where none are passed: from another number, and no padding tokens."""
    apart = measured(small(name, ""))
    assert all(difference < NEAR for difference in apart.values()), apart


@pytest.mark.slow
def test_a_cache_that_changes_the_distribution() -> None:
    """Nemotron-H clamps its time steps in another way with a cache."""
    model = small("nemotron_h", "windows")
    apart = measured(model)
    assert all(difference < NEAR for difference in apart.values()), apart
    assert (length_threshold(model), forward_passes.one_pass_length(model)) == (None, 0)
    forward_passes.note_cache(model, differs=False)  # a negative control
    assert measured(model)["weight"] > NEAR


def test_a_cache_of_another_class_is_refused() -> None:
    model = small("minimax", "dynamic")
    guarded = GuardedGenerator(model, Length(min=0), tokenizer=character_tokenizer(thresholds.LETTERS))
    with pytest.raises(ModelError, match="past 12 tokens its texts depend on its cache"):
        guarded("ab", max_new_tokens=2)


def test_rows_share_a_batch_up_to_the_threshold() -> None:
    model = small("phi3", "longrope")
    assert select_rows(model) is Slots
    guarded = GuardedGenerator(model, Length(min=0), tokenizer=character_tokenizer(thresholds.LETTERS))
    assert guarded.run("ab", max_new_tokens=20)[0].report.mode == "refill"


def test_negative_control_one_pass_is_weighed_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("llama", "dynamic")
    monkeypatch.setattr(sequence_scores, "one_pass_length", lambda model: None)
    assert measured(model)["weight"] > 0.1


def test_negative_control_rows_that_stay_together_are_drawn_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("llama", "dynamic")
    select_rows(model)
    monkeypatch.setattr(row_states, "length_threshold", lambda model: None)
    apart = measured(model)
    assert apart["generate"] > 0.1
    assert apart["batch"] > 0.1


def test_negative_control_the_text_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Phi-3 drops its cache at the threshold."""
    model = small("phi3", "longrope")
    monkeypatch.setattr(forward_passes, "length_threshold", lambda model: None)
    assert measured(model)["generate"] > 0.1


def test_negative_control_what_a_long_text_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("llama", "dynamic")
    monkeypatch.setattr(forward_passes, "restore_rotary", lambda model: None)
    apart = measured(model)
    assert apart["generate"] > 0.01


def test_a_text_is_computed_with_gradients_as_without() -> None:
    """For training."""
    model = small("llama", "dynamic")
    ids = torch.randint(1, 28, (20,), generator=torch.Generator().manual_seed(0))
    law = GenerationLaw(
        prompt_ids=ids[:5],
        mode="sample",
        processors=[],
        warpers=[],
        criteria=StoppingCriteriaList(),
        end_ids=frozenset({0}),
        max_length=40,
        pad_id=0,
        return_dict=False,
        count=1,
        max_time=None,
        beam_results=None,
        generate=model.generate,
    )
    new = ids[5:].tolist()
    ((_, scores),) = next(sequence_scores.scored(model, [(law, new)]))
    log = sequence_scores.of_tokens(scores, new).sum()
    log.backward()
    assert all(weights.grad is not None and weights.grad.abs().sum() > 0 for weights in model.parameters())
    assert float(log) == pytest.approx(thresholds.log_generate(model, ids[:5].tolist(), new), abs=NEAR)


def test_thresholds_are_read_once_for_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("llama", "longrope")
    assert length_threshold(model) == thresholds.AT
    monkeypatch.setattr(forward_passes, "_limits", lambda config: pytest.fail("read again"))
    assert length_threshold(model) == thresholds.AT


def test_rows_cross_one_by_one() -> None:
    """Rows of unlike lengths join, cross, end and move, as each alone."""
    model = small("llama", "dynamic")
    rows, alone = row_states.rows_of(Slots, model), Separate(model)
    chance = torch.Generator().manual_seed(2)
    count = 0
    with torch.no_grad():
        for step in range(40):
            if step % 4 == 0:
                prompts = [tuple(torch.randint(1, 28, (length,), generator=chance).tolist()) for length in (3, 9, 15)]
                torch.testing.assert_close(rows.add(prompts), alone.add(prompts), atol=1e-4, rtol=1e-4)
                count += 3
            tokens = torch.randint(1, 28, (count,), generator=chance)
            torch.testing.assert_close(rows.forward(tokens), alone.forward(tokens), atol=1e-4, rtol=1e-4)
            if step % 5 == 4:
                kept = [row for row in range(count) if (row + step) % 3]
                order = rows.keep(kept)
                assert sorted(order) == kept
                separate = [alone._texts[row] for row in order], [alone._pasts[row] for row in order]
                alone._texts, alone._pasts = separate
                count = len(kept)


@pytest.mark.parametrize("case", ["windows", "dynamic", "longrope"])
def test_a_prompt_past_the_trained_length(case: str) -> None:
    model = small("mistral", case, max_position_embeddings=thresholds.AT)
    tokenizer = character_tokenizer(thresholds.LETTERS)
    guarded = GuardedGenerator(model, Length(min=0), tokenizer=tokenizer)
    settings: dict[str, Any] = {"do_sample": False, "max_new_tokens": 5, "min_new_tokens": 5}
    prompt = "hello there, you who read"
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    theirs = model.generate(ids, attention_mask=torch.ones_like(ids), **settings)
    assert list(guarded.run(prompt, **settings)[0].draws[0].token_ids) == theirs[0, ids.shape[1] :].tolist()


@pytest.mark.parametrize("name", ["gpt2", "opt", "ctrl", "gptj"])
def test_a_prompt_past_the_table_of_positions(name: str) -> None:
    model = small(name, "", max_position_embeddings=thresholds.AT)
    guarded = GuardedGenerator(model, Length(min=0), tokenizer=character_tokenizer(thresholds.LETTERS))
    with pytest.raises(ContextExceeded, match="the model's context 12; shorten the prompt"):
        guarded("hello there, you who read", max_new_tokens=2)
