"""Adapters on an unchanged model: their draws, and loading and unloading in a wrapper."""

import dataclasses
import gc
import re
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from peft import LoraConfig, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import MixtralConfig, MixtralForCausalLM

from guardwrap import Adapter, GuardedGenerator, Keyword, Length, Prompt, constraint, qrs
from guardwrap.adapters import Card, attach, merged, save_adapter
from guardwrap.adapters import loaded as loaded_module
from guardwrap.constraints.base import All
from guardwrap.constraints.regex_analysis import filtered_warnings
from guardwrap.engine.model_weights import shared_copy
from guardwrap.engine.refill import mode_selection
from guardwrap.errors import AdapterError, AdapterMismatch, CheckFailed, UsageError
from guardwrap.testing import World, goodness_of_fit, llama_world
from tests import fixtures_models
from tests.fixtures_adapters import CONSTRAINT, card_of, guarded_of, trained, world_of

DRAWS = 5_000
FITS, FAILS = 1e-3, 1e-9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    world = world_of()
    save_adapter(tmp_path / "small", trained(world.model), card_of(world))
    return tmp_path / "small"


def other(world: World, *, seed: int = 0) -> World:
    """Return the world of the adapter."""
    return dataclasses.replace(world, model=trained(world.model, seed=seed).get_base_model())


def normal(law: Mapping[Any, float]) -> dict[Any, float]:
    total = sum(law.values())
    return {ids: p / total for ids, p in law.items()}


def state_of(model: Any) -> Any:
    """Return everything about a model that an adapter could change, with exact weights."""
    numbers = {name: (id(t), t.data_ptr(), t.clone()) for name, t in model.state_dict(keep_vars=True).items()}
    flags = {name: (p.requires_grad, p.grad) for name, p in model.named_parameters()}
    modules = [
        (
            name,
            id(module),
            type(module),
            sorted(vars(module)),
            len(module._forward_hooks),
            len(module._forward_pre_hooks),
        )
        for name, module in model.named_modules()
    ]
    return numbers, flags, modules, module_modes(model), model.config.to_dict(), model.generation_config.to_dict()


def module_modes(model: Any) -> list[bool]:
    return [module.training for module in model.modules()]


def unchanged(before: Any, model: Any) -> bool:
    now = state_of(model)
    pairs = zip(before[0].values(), now[0].values(), strict=True)
    same = all(one[:2] == two[:2] and torch.equal(one[2], two[2]) for one, two in pairs)
    return same and before[0].keys() == now[0].keys() and before[1:] == now[1:]


def texts(outcome: Any) -> list[tuple[int, ...]]:
    return [draw.token_ids for draw in outcome.draws]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sampler", ["rejection", "qrs"])
def test_the_model_stays_as_it_is(folder: Path, dtype: torch.dtype, sampler: str) -> None:
    world = world_of()
    world.model.to(dtype)
    next(world.model.parameters()).requires_grad_(False)  # some parameters are frozen
    before = state_of(world.model)

    @constraint
    def looks(text: str) -> bool:
        assert unchanged(before, world.model)
        if len(text) > 3:
            raise RuntimeError
        return True

    guarded = guarded_of(world, Adapter(folder, allow_mismatch=True), sampler=sampler)
    assert unchanged(before, world.model)
    guarded.run(world.prompt, num_return_sequences=20, **world.settings)
    with pytest.raises(CheckFailed):
        guarded.run([world.prompt] * 50, constraints=looks, **world.settings)
    assert unchanged(before, world.model)
    guarded.unload_adapter()
    assert unchanged(before, world.model)


def test_training_leaves_the_model_as_it_is() -> None:
    world = world_of()
    before = state_of(world.model)
    adapted = trained(world.model, trainable=True)
    shared = {parameter.data_ptr() for parameter in world.model.parameters()}
    free = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    assert free
    assert not shared & {parameter.data_ptr() for parameter in free}
    assert shared <= {parameter.data_ptr() for parameter in adapted.parameters()}
    ids = torch.tensor([[1, 2, 1, 2]], device=world.model.device)
    adapted.train()
    adapted(input_ids=ids, labels=ids).loss.backward()
    torch.optim.AdamW(free, lr=0.1).step()
    assert all(parameter.grad is not None for parameter in free)
    assert unchanged(before, world.model)


def test_negative_controls_of_what_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for broken in (lambda model, **_: model, lambda model, **_: shared_copy(model)):
        world = world_of()
        before = state_of(world.model)
        with monkeypatch.context() as patch:
            patch.setattr("guardwrap.adapters.lora.shared_copy", broken)
            trained(world.model)
        assert not unchanged(before, world.model)


class Passes:
    """Counts a model's passes; cannot be copied, as it has a lock."""

    def __init__(self) -> None:
        self.lock, self.count = threading.Lock(), 0

    def hook(self, *_: Any) -> None:
        with self.lock:
            self.count += 1


def test_hooks_see_what_an_adapted_model_computes() -> None:
    world, passes = world_of(), Passes()
    world.model.register_forward_pre_hook(passes.hook)
    adapted = trained(world.model)
    ids = torch.tensor([[1, 2, 1, 2]], device=world.model.device)
    adapted(input_ids=ids)
    assert passes.count == 1
    world.model(input_ids=ids)
    assert passes.count == 2


def test_tied_weights_stay_tied() -> None:
    world = world_of()
    world.model.lm_head.weight = world.model.model.embed_tokens.weight
    world.model.config.tie_word_embeddings = True
    base = trained(world.model).get_base_model()
    head = base.lm_head.get_base_layer() if hasattr(base.lm_head, "get_base_layer") else base.lm_head
    assert head.weight is base.model.embed_tokens.weight
    # A merged layer has its own weights; the other one shares the model's.
    adapted = trained(world.model, target_modules=["lm_head"])
    twin = merged(adapted)
    assert twin.model.embed_tokens.weight.data_ptr() == world.model.model.embed_tokens.weight.data_ptr()
    ids = torch.tensor([[1, 2, 1]], device=world.model.device)
    with torch.no_grad():
        assert torch.allclose(twin(input_ids=ids).logits, adapted(input_ids=ids).logits, atol=1e-5)


def test_other_threads_see_the_model_itself(folder: Path) -> None:
    world = world_of()
    guarded = guarded_of(world, folder)
    ids = torch.tensor([[1, 2, 1]], device=world.model.device)
    with torch.no_grad():
        expected = world.model(input_ids=ids).logits
    seen: list[bool] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            with torch.no_grad():
                seen.append(torch.equal(world.model(input_ids=ids).logits, expected))

    thread = threading.Thread(target=look)
    thread.start()
    for sampler in ("rejection", "qrs"):
        guarded.run([world.prompt] * 10, sampler=sampler, num_return_sequences=20, **world.settings)
        guarded.load_adapter(folder)
    done.set()
    thread.join()
    assert len(seen) > 10
    assert all(seen)


@pytest.mark.slow
def test_rejection_draws_from_the_adapters_law(folder: Path) -> None:
    world = world_of()
    inside = world.gold(CONSTRAINT)
    law = other(world).law()
    (outcome,) = guarded_of(world, folder).run(world.prompt, num_return_sequences=4 * DRAWS, **world.settings)
    assert goodness_of_fit(texts(outcome), normal({ids: law[ids] for ids in inside})) > FITS
    assert goodness_of_fit(texts(outcome), inside) < FAILS, "g' is g: the test shows nothing"
    report = outcome.report
    assert report.drawn_from == (
        "not your model's own distribution: attempts came from "
        "the adapter 'small' (KL(g‖g') = 0.61 [0.5, 0.72] nats, measured on its card's prompts) (g')"
    )
    assert report.acceptance is not None
    assert report.acceptance.low < sum(law[ids] for ids in inside) < report.acceptance.high
    assert report.notes == ()


@pytest.mark.slow
def test_qrs_goes_from_the_adapter_back_to_g(folder: Path) -> None:
    world = world_of()
    inside = world.gold(CONSTRAINT)
    a, law = world.law(), other(world).law()
    most = max(a[ids] / law[ids] for ids in inside)
    (outcome,) = guarded_of(world, folder).run(
        world.prompt, sampler=qrs(most * 1.01), num_return_sequences=DRAWS, **world.settings
    )
    assert goodness_of_fit(texts(outcome), inside) > FITS
    assert str(outcome.report.proposal).startswith("the adapter 'small'")
    assert re.search(rf"\n  attempts from +{re.escape(str(outcome.report.proposal))}\n", str(outcome.report))


def test_log_weights_are_those_of_the_enumerated_laws(folder: Path) -> None:
    world = world_of()
    a, law = world.law(), other(world).law()
    (attempts,) = guarded_of(world, folder).attempts(world.prompt, 300, **world.settings)
    kept = [attempt for attempt in attempts if attempt.satisfied]
    assert len(kept) > 20
    for attempt in kept:
        ids = attempt.draw.token_ids
        expected = torch.tensor(a[ids] / law[ids]).log().item()
        assert attempt.log_weight == pytest.approx(expected, abs=1e-4)


def test_negative_control_attempts_from_the_model_with_the_adapters_weights(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of()
    inside = world.gold(CONSTRAINT)
    law = other(world).law()
    monkeypatch.setattr(loaded_module, "merged", lambda adapted: world.model)
    (outcome,) = guarded_of(world, folder).run(world.prompt, num_return_sequences=DRAWS, **world.settings)
    assert goodness_of_fit(texts(outcome), normal({ids: law[ids] for ids in inside})) < FAILS


@pytest.mark.parametrize(
    "config", [{}, {"use_rslora": True}, {"use_dora": True}, {"rank_pattern": {"q_proj": 3}, "lora_alpha": 3}]
)
def test_merged_is_unmerged(config: Mapping[str, Any]) -> None:
    world = llama_world(letters="abcdefgh ", max_new_tokens=24)
    adapted = trained(world.model, **config)
    ids = torch.randint(9, (4, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        one, two, none = (m(input_ids=ids).logits for m in (merged(adapted), adapted, world.model))
    assert torch.allclose(one, two, atol=1e-5)
    assert (one - none).abs().max() > 0.02, "the adapter does nothing: the test shows nothing"


def test_what_was_found_of_the_model_holds_for_the_adapter_in_its_weights(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, tried = world_of(), []
    tested = mode_selection._tested

    def noted(model: Any, *kinds: Any) -> Any:
        tried.append(model)
        return tested(model, *kinds)

    monkeypatch.setattr(mode_selection, "_tested", noted)
    guarded = guarded_of(world, folder)
    for sampler in ("rejection", "rejection", qrs(1.0)):
        assert guarded.run(world.prompt, sampler=sampler, **world.settings)[0].ok
        assert guarded.run(world.prompt, adapter=False, **world.settings)[0].ok
    # The merged copy and the model count once; layers with an unmerged adapter differ.
    assert len(tried) == 2
    assert not [module for module in tried[0].modules() if isinstance(module, BaseTunerLayer)]
    assert [module for module in tried[1].modules() if isinstance(module, BaseTunerLayer)]


def test_merged_or_not_a_seed_gives_the_same_texts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of()
    seen = []
    for size in (64, 5):
        guarded = guarded_of(world, folder, batch_size=size)
        seen.append(guarded.run([world.prompt] * 3, num_return_sequences=30, **world.settings))

    def full(adapted: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20 GiB")

    monkeypatch.setattr(loaded_module, "merged", full)
    seen.append(guarded_of(world, folder).run([world.prompt] * 3, num_return_sequences=30, **world.settings))
    assert seen[0] != seen[2]  # notes differ
    assert [o.texts for o in seen[0]] == [o.texts for o in seen[1]] == [o.texts for o in seen[2]]
    note = "the adapter is not merged into the weights, and slower: CUDA out of memory."
    assert [o.report.notes for o in seen[2]] == [(note,)] * 3


def test_only_adapted_layers_have_weights_of_their_own() -> None:
    world = world_of()
    twin = merged(trained(world.model, target_modules=["q_proj"]))
    shared = {parameter.data_ptr() for parameter in world.model.parameters()}
    own = [name for name, parameter in twin.named_parameters() if parameter.data_ptr() not in shared]
    assert own == [f"model.layers.{i}.self_attn.q_proj.weight" for i in range(2)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    world = llama_world(letters="abcdefgh ", max_new_tokens=24)
    world.model.to(dtype)
    adapted = trained(world.model, trainable=True)
    assert {p.dtype for p in adapted.parameters() if p.requires_grad} == {torch.float32}
    ids = torch.tensor([[1, 2, 3]], device=world.model.device)
    with torch.no_grad():
        assert adapted(input_ids=ids).logits.dtype == merged(adapted)(input_ids=ids).logits.dtype == dtype
    save_adapter(tmp_path, adapted)
    guarded = GuardedGenerator(world.pipeline(), Length(min=1), adapter=tmp_path, seed=0)
    (outcome,) = guarded.run(world.prompt, **world.settings)
    assert outcome.report.notes == (f"the adapter is merged into {str(dtype)[6:]} weights, which rounds it slightly",)


def test_an_adapter_that_does_nothing_weighs_nothing(tmp_path: Path) -> None:
    world = llama_world(letters="abcdefgh ", max_new_tokens=24)
    world.model.to(torch.bfloat16)
    save_adapter(tmp_path / "none", attach(world.model, LoraConfig(r=2, target_modules="all-linear")))
    guarded = GuardedGenerator(world.pipeline(), Length(min=1), adapter=tmp_path / "none", seed=0)
    (attempts,) = guarded.attempts(world.prompt, 64, **world.settings)
    weights = np.array([attempt.log_weight for attempt in attempts if attempt.satisfied], float)
    assert np.abs(weights).max() <= 1e-9


def test_an_adapter_that_is_unloaded_meanwhile_is_still_that_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call reads the adapter once, because another thread may unload it."""
    world = world_of()
    guarded = guarded_of(world, trained(world.model))
    looks = iter([guarded.adapter, None, None])
    monkeypatch.setattr(type(guarded._session), "adapter", property(lambda self: next(looks)), raising=False)
    (outcome,) = guarded.run(world.prompt, **world.settings)
    assert "in training" in outcome.report.drawn_from


def test_swap_and_unload(folder: Path, tmp_path: Path) -> None:
    world = world_of()
    save_adapter(tmp_path / "second", trained(world.model, seed=5), card_of(world))

    def drawn(guarded: GuardedGenerator, **options: Any) -> tuple[Any, str]:
        (outcome,) = guarded.run(world.prompt, num_return_sequences=30, seed=3, **options, **world.settings)
        return outcome.texts, outcome.report.drawn_from.split(" (")[0]

    guarded = guarded_of(world, None)
    plain = drawn(guarded)
    without = guarded.adapter
    assert without is None
    assert plain[1] == "exactly your model's own distribution, given the constraint"
    guarded.load_adapter(folder)
    assert guarded.adapter is not None
    assert guarded.adapter.card == Card.read(folder / "card.yaml")
    first = drawn(guarded)
    assert first[1] == "not your model's own distribution: attempts came from the adapter 'small'"
    second = "not your model's own distribution: attempts came from the adapter 'second'"
    assert drawn(guarded, adapter=tmp_path / "second")[1] == second
    assert drawn(guarded) == first
    assert drawn(guarded, adapter=False) == plain
    stream = guarded.stream([world.prompt] * 3, num_return_sequences=30, seed=3, **world.settings)
    assert next(stream).texts == first[0]
    guarded.load_adapter(tmp_path / "second")
    assert drawn(guarded)[1] == second
    guarded.unload_adapter()
    assert {outcome.report.drawn_from.split(" (")[0] for outcome in stream} == {
        "not your model's own distribution: attempts came from the adapter 'small'"
    }
    assert drawn(guarded) == plain
    assert len({plain[0], first[0]}) == 2


def test_an_unloaded_adapter_is_gone(folder: Path) -> None:
    world = world_of()
    world.model.to(torch.bfloat16)
    guarded = guarded_of(world, Adapter(folder, allow_mismatch=True))
    for sampler in ("rejection", "qrs"):
        guarded.run(world.prompt, sampler=sampler, **world.settings)
    assert guarded.adapter is not None
    kept = [weakref.ref(guarded.adapter.model(merge=merge)[0]) for merge in (True, False)]
    gc.collect()
    assert all(reference() is not None for reference in kept)
    guarded.unload_adapter()
    gc.collect()
    assert all(reference() is None for reference in kept)


@pytest.mark.slow
def test_an_adapter_in_training_is_drawn_from_as_it_stands() -> None:
    world = world_of()
    adapted = trained(world.model, trainable=True)
    guarded = guarded_of(world, None)
    inside = world.gold(CONSTRAINT)
    for _ in range(2):
        law = dataclasses.replace(world, model=adapted.get_base_model()).law()
        (outcome,) = guarded.run(world.prompt, adapter=adapted, num_return_sequences=DRAWS, **world.settings)
        assert goodness_of_fit(texts(outcome), normal({ids: law[ids] for ids in inside})) > FITS
        with torch.no_grad():
            for name, parameter in adapted.named_parameters():
                if "lora_B" in name:
                    parameter.neg_()
    assert outcome.report.proposal == "the checkpoint 'in training' (KL(g‖g') is not known: it has no card)"


@pytest.mark.slow
def test_threads_with_and_without(folder: Path) -> None:
    world = world_of()
    guarded = guarded_of(world, folder)
    options = {"num_return_sequences": 30, "seed": 3, **world.settings}
    expected = {which: guarded.run(world.prompt, adapter=which, **options)[0].texts for which in (None, False)}
    assert expected[None] != expected[False]
    right: list[bool] = []

    def work(which: Any) -> None:
        right.extend(guarded.run(world.prompt, adapter=which, **options)[0].texts == expected[which] for _ in range(5))

    threads = [threading.Thread(target=work, args=(which,)) for which in (None, False, None, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 20


@pytest.mark.slow
def test_generate_and_plan_and_the_pipelines_format(folder: Path) -> None:
    world = world_of()
    guarded = guarded_of(world, folder)
    ids = torch.tensor([world.tokenizer(world.prompt)["input_ids"]], device=world.model.device)
    rows = guarded.generate(ids, num_return_sequences=DRAWS, **world.settings)
    law, inside = other(world).law(), world.gold(CONSTRAINT)
    drawn = []
    for row in rows[:, ids.shape[1] :].tolist():
        end = row.index(0) + 1 if 0 in row else len(row)
        drawn.append(tuple(row[:end]))
    assert goodness_of_fit(drawn, normal({ids: law[ids] for ids in inside})) > FITS
    records = guarded(world.prompt, num_return_sequences=2, **world.settings)
    assert all("a" in record["generated_text"][1:] for record in records)
    assert guarded.plan(world.prompt, pilot=400, **world.settings).sampler == "qrs"
    assert guarded.plan(world.prompt, pilot=400, adapter=False, **world.settings).sampler == "rejection"
    with pytest.raises(UsageError, match="top_k=0"):
        guarded.generate(ids, sampler="qrs", **{**world.settings, "top_k": 2})
    with pytest.raises(UsageError, match="beam search looks for the model's own"):
        guarded(world.prompt, num_beams=2, do_sample=False, max_new_tokens=3)


def test_a_model_that_moves_takes_its_adapter_along(folder: Path) -> None:
    world = world_of()
    guarded = guarded_of(world, folder)
    assert guarded.adapter is not None
    old, _ = guarded.adapter.model(merge=True)
    assert guarded.adapter.model(merge=True)[0] is old
    with torch.no_grad():
        world.model.lm_head.weight.mul_(2)  # a layer without an adapter
        world.model.model.layers[0].self_attn.q_proj.weight.mul_(1.5)
    new, _ = guarded.adapter.model(merge=True)
    ids = torch.tensor([[1, 2, 1]], device=world.model.device)
    with torch.no_grad():
        assert torch.allclose(new(input_ids=ids).logits, trained(world.model)(input_ids=ids).logits, atol=1e-5)
        assert not torch.allclose(new(input_ids=ids).logits, old(input_ids=ids).logits, atol=1e-2)
    world.model.to(torch.bfloat16)
    assert guarded.adapter.model(merge=True)[0].dtype == torch.bfloat16
    assert guarded.run(world.prompt, **world.settings)[0].ok


def test_the_card_is_for_one_constraint(folder: Path) -> None:
    world = world_of()
    elsewhere = Keyword("b", whole_words=False)
    says = (
        re.escape(f'for another constraint, "{CONSTRAINT.title}", than {elsewhere.title}; ') + ".*allow_mismatch=True"
    )
    with pytest.raises(AdapterMismatch, match=says):
        GuardedGenerator(world.pipeline(), elsewhere, adapter=folder)
    guarded = guarded_of(world, folder)
    with pytest.raises(AdapterMismatch, match="another constraint"):
        guarded.run(world.prompt, constraints=elsewhere, **world.settings)
    (outcome,) = guarded.run(
        world.prompt, constraints=elsewhere, adapter=Adapter(folder, allow_mismatch=True), **world.settings
    )
    assert "KL(g‖g') is not known: it was trained for another constraint" in outcome.report.drawn_from
    guarded.load_adapter(folder, allow_mismatch=True)
    assert guarded.run(world.prompt, constraints=elsewhere, **world.settings)[0].ok
    assert guarded.run(world.prompt, **world.settings)[0].report.drawn_from.count("0.61") == 1
    # A name is not part of a constraint's digest.
    named = All(CONSTRAINT.of, name="ours")
    assert GuardedGenerator(world.pipeline(), named, adapter=folder).adapter is not None


def test_a_stricter_constraint_than_the_cards_needs_no_permission(folder: Path) -> None:
    world = world_of()
    stricter = CONSTRAINT & Length(min=2, unit="characters")
    guarded = GuardedGenerator(world.pipeline(), stricter, adapter=folder, batch_size=64, seed=1)
    law, inside = other(world).law(), world.gold(stricter)
    (outcome,) = guarded.run(world.prompt, num_return_sequences=DRAWS, **world.settings)
    assert goodness_of_fit(texts(outcome), normal({ids: law[ids] for ids in inside})) > FITS
    assert "KL(g‖g') is not known: it was trained for a weaker constraint" in outcome.report.drawn_from
    weaker = CONSTRAINT.of[0]
    with pytest.raises(AdapterMismatch, match="another constraint"):
        GuardedGenerator(world.pipeline(), weaker, adapter=folder)


def test_the_card_is_for_one_model(folder: Path) -> None:
    finer = world_of()
    with torch.no_grad():
        finer.model.lm_head.weight.mul_(1.02)
    with pytest.raises(AdapterMismatch, match=r"trained on 'tiny/llama', and this model has another weights"):
        guarded_of(finer, folder)
    (outcome,) = guarded_of(finer, Adapter(folder, allow_mismatch=True)).run(finer.prompt, **finer.settings)
    assert "KL(g‖g') is not known: it was trained on another model" in outcome.report.drawn_from
    turned = world_of()
    turned.model.config.rope_parameters["rope_theta"] = 500.0
    with pytest.raises(AdapterMismatch, match="another configuration"):
        guarded_of(turned, folder)
    before = guarded_of(world_of(), folder)
    with pytest.raises(AdapterMismatch):
        before.load_adapter(_of(turned, folder.parent / "turned"))
    assert before.adapter is not None
    assert before.adapter.name == "small"


def _of(world: World, folder: Path) -> Path:
    save_adapter(folder, trained(world.model), card_of(world))
    return folder


def test_what_cannot_work(folder: Path) -> None:
    world = world_of()
    with pytest.raises(UsageError, match="not both"):
        guarded_of(world, folder).run(world.prompt, proposal=Prompt("b{prompt}"), **world.settings)
    with pytest.raises(UsageError, match="not both"):
        guarded_of(world, folder, proposal=Prompt("b{prompt}"))
    with pytest.raises(UsageError, match="the wrapper has a proposal"):
        guarded_of(world, None, proposal=Prompt("b{prompt}")).load_adapter(folder)
    with pytest.raises(UsageError, match="not both"):
        guarded_of(world, None, proposal=Prompt("b{prompt}")).run(world.prompt, adapter=folder, **world.settings)
    with pytest.raises(UsageError, match="the model in training has 4 tokens, but the model itself 3"):
        guarded_of(world, llama_world(letters="abc").model)
    with pytest.raises(UsageError, match="is not a folder, a Hub id"):
        guarded_of(world, 3)
    with filtered_warnings("ignore"):
        model = get_peft_model(world_of().model, LoraConfig(r=2, target_modules=["q_proj"]))
    with pytest.raises(UsageError, match="already has an adapter"):
        GuardedGenerator(model.eval(), CONSTRAINT, tokenizer=world.tokenizer, adapter=folder)
    compiled = world_of()
    forward = compiled.model.forward
    compiled.model.forward = lambda *args, **kwargs: forward(*args, **kwargs)
    with pytest.raises(UsageError, match="forward was replaced by a function"):
        guarded_of(compiled, folder)
    t5, tokenizer = fixtures_models.t5()
    for given in (
        lambda: GuardedGenerator(t5, CONSTRAINT, tokenizer=tokenizer, adapter=folder),
        lambda: GuardedGenerator(fixtures_models.llava(), CONSTRAINT, adapter=folder),
        lambda: GuardedGenerator(fixtures_models.whisper(), CONSTRAINT, adapter=folder),
    ):
        with pytest.raises(UsageError, match="adapter= is supported only for causal language models"):
            given()
    with pytest.raises(UsageError, match="an encoder and a decoder"):
        attach(t5, LoraConfig(r=2, target_modules="all-linear"))


def test_experts_are_refused_before_they_are_trained() -> None:
    sizes = {"vocab_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 2}
    model = MixtralForCausalLM(MixtralConfig(**sizes, **heads)).eval()
    with pytest.raises(AdapterError, match=r"experts of MixtralForCausalLM .* target_modules=\['q_proj'"):
        attach(model, LoraConfig(r=2, target_modules="all-linear"))
    assert attach(model, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))


@pytest.mark.slow
def test_a_full_checkpoint(tmp_path: Path) -> None:
    world, second = world_of(), world_of(seed=4)
    second.model.generation_config.min_new_tokens = 4  # its settings do not affect a
    second.model.save_pretrained(tmp_path / "full")
    guarded = guarded_of(world, tmp_path / "full")
    (outcome,) = guarded.run(world.prompt, num_return_sequences=DRAWS, **world.settings)
    law = second.law()
    inside = world.gold(CONSTRAINT)
    assert goodness_of_fit(texts(outcome), normal({ids: law[ids] for ids in inside})) > FITS
    assert outcome.report.drawn_from.startswith(
        "not your model's own distribution: attempts came from the checkpoint 'full' (KL(g‖g') is not known"
    )
    assert guarded.run(world.prompt, sampler="qrs", **world.settings)[0].ok


@pytest.mark.slow
def test_hooks_of_accelerate_are_copied_too(folder: Path) -> None:
    world = world_of()
    law, inside = other(world).law(), world.gold(CONSTRAINT)
    add_hook_to_module(world.model, AlignDevicesHook(execution_device="cpu", io_same_device=True))
    (outcome,) = guarded_of(world, folder).run(world.prompt, num_return_sequences=DRAWS, **world.settings)
    assert goodness_of_fit(texts(outcome), normal({ids: law[ids] for ids in inside})) > FITS


def test_loading_leaves_the_global_generator_alone(folder: Path) -> None:
    world = world_of()
    before = torch.get_rng_state()
    guarded_of(world, folder)
    assert torch.equal(before, torch.get_rng_state())
    one, two = (attach(world.model, LoraConfig(r=2, target_modules=["q_proj"]), seed=seed) for seed in (0, 0))
    third = attach(world.model, LoraConfig(r=2, target_modules=["q_proj"]), seed=1)
    first = [next(p for n, p in m.named_parameters() if "lora_A" in n) for m in (one, two, third)]
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])
