"""Kinds of models (half precision, adapters, dispatched, tied, quantized), each of which is left unchanged."""

import contextlib
import gc
import itertools
import random
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from re import _parser as parser  # the same as in guardwrap.constraints.regex_analysis
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
from transformers.models.llama import modeling_llama

from guardwrap import Budget, Draw, GuardedGenerator, Keyword, Length, Regex, Verdict, constraint
from guardwrap.calls import base_session, job, source
from guardwrap.constraints import regex_analysis
from guardwrap.engine.generation_law import GenerationLaw
from guardwrap.engine.refill import mode_selection
from guardwrap.engine.refill.decode import RefillBackend
from guardwrap.engine.refill.row_states import Plain, Wave
from guardwrap.engine.refill.slots import Prefix, SlotLayer, Slots
from guardwrap.engine.scheduling import scheduler
from guardwrap.engine.scheduling.backend import AttemptState
from guardwrap.engine.scheduling.request_state import RequestState
from guardwrap.errors import CheckFailed, UsageError
from guardwrap.models import calls, prepare
from guardwrap.support import transformers_internals
from guardwrap.testing import character_tokenizer, table_world

LETTERS = "abcdefghijklmnopqrstuvwxyz .,"
PROMPTS = ["a", "hello there", "some words", "b c", "x"]
LORA = {"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM", "init_lora_weights": False}
ANYTHING = Length(min=0)

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft's


def tiny(**special: Any) -> Any:
    settings = {
        "vocab_size": len(LETTERS) + 1,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": 0,
        **special,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **settings)).eval()


def adapted(wrap: Callable[[Any, LoraConfig], Any]) -> Any:
    """A model with an adapter whose weights are random, not the zeros that training begins with."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return wrap(tiny(), LoraConfig(**LORA)).eval()


def lora(_: Path) -> Any:
    return adapted(get_peft_model)


def added(_: Path) -> Any:
    def add(model: Any, config: LoraConfig) -> Any:
        try:
            model.add_adapter(config)
        except ValueError as error:  # transformers 5.24 requires peft 0.22 before its release
            if "version of PEFT" not in str(error):
                raise
            pytest.skip(str(error))
        return model

    return adapted(add)


def loaded(folder: Path) -> Any:
    lora(folder).save_pretrained(folder)
    model = tiny()
    model.load_adapter(folder)
    return model.eval()


def saved(folder: Path, **options: Any) -> Any:
    tiny().save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def dispatched(_: Path) -> Any:
    from accelerate import dispatch_model

    return dispatch_model(tiny(), {"": "cpu"}, force_hooks=True)


def offloaded(folder: Path) -> Any:
    """The last layer lies on disk; accelerate's hooks fetch it for each call."""
    places = dict.fromkeys(("model.embed_tokens", "model.layers.0", "model.rotary_emb", "lm_head"), "cpu")
    places |= {"model.layers.1": "disk", "model.norm": "disk"}
    return saved(folder, device_map=places, offload_folder=folder / "off")


def eight_bit(folder: Path) -> Any:
    quantized = BitsAndBytesConfig(load_in_8bit=True)
    return saved(folder, quantization_config=quantized, device_map={"": "cpu"}, dtype=torch.float16)


MODELS: dict[str, Callable[[Path], Any]] = {
    "bf16": lambda _: tiny().to(torch.bfloat16),
    "fp16": lambda _: tiny().to(torch.float16),
    "tied": lambda _: tiny(tie_word_embeddings=True),
    "device_map": lambda folder: saved(folder, device_map={"": "cpu"}),
    "dispatched": dispatched,
    "offloaded": offloaded,
    "PeftModel": lora,
    "add_adapter": added,
    "load_adapter": loaded,
    "8-bit": eight_bit,
}


def guard(model: Any, judged: Any = ANYTHING, **options: Any) -> GuardedGenerator:
    return GuardedGenerator(model, judged, tokenizer=character_tokenizer(LETTERS), batch_size=3, **options)


@torch.no_grad()
def alone(model: Any, prompt: str, new: tuple[int, ...]) -> torch.Tensor:
    """Logits of each new token, of a whole forward pass without cache or padding; ``[new, vocabulary]``."""
    ids = character_tokenizer(LETTERS)(prompt)["input_ids"]
    logits = model(input_ids=torch.tensor([[*ids, *new]], device=model.device), use_cache=False).logits
    return logits[0, len(ids) - 1 : -1].double().cpu()


def short_of_the_best(model: Any, prompt: str, new: tuple[int, ...]) -> float:
    """How far the token least like a greedy one is below the best but the end, in units of the logits' spread."""
    logits = alone(model, prompt, new)[:, 1:]
    new = tuple(token - 1 for token in new)
    chosen = logits.gather(1, torch.tensor(new)[:, None]).squeeze(1)
    return float(((logits.amax(-1) - chosen) / logits.std(-1)).max())


ROUNDING = 0.1
"""In units of the spread of the logits: bfloat16 was off by up to 0.01, 8 bits by 0.03, a wrong token by 0.2."""


def assert_right(model: Any) -> None:
    """Greedy texts are the model's own, sampled ones satisfy the constraint, and log a' is that of a forward pass."""
    exact = model.dtype == torch.float32
    settings = {"do_sample": False, "max_new_tokens": 9, "min_new_tokens": 9}
    outcomes = guard(model).run(PROMPTS, progress=False, **settings)
    for prompt, outcome in zip(PROMPTS, outcomes, strict=True):
        new = outcome.draws[0].token_ids
        if exact:
            ids = character_tokenizer(LETTERS)(prompt, return_tensors="pt")["input_ids"]
            theirs = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **settings)
            assert list(new) == theirs[0, ids.shape[1] :].tolist()
        else:  # two tokens may be equally likely except for rounding, which depends on the batch
            assert short_of_the_best(model, prompt, new) < ROUNDING

    judged = Keyword("e", whole_words=False) & ~Regex("[yz]")
    outcomes = guard(model, judged, seed=0).run(PROMPTS, num_return_sequences=2, max_new_tokens=9, progress=False)
    for prompt, outcome in zip(PROMPTS, outcomes, strict=True):
        assert len(outcome.texts) == 2
        assert outcome.report.mode == "refill"
        for draw in outcome.draws:
            assert judged.accepts(draw.text)
            steps = (alone(model, prompt, draw.token_ids) / 0.7).log_softmax(-1)
            exactly = steps.gather(1, torch.tensor(draw.token_ids)[:, None]).sum().item()
            assert draw.log_proposal == pytest.approx(exactly, abs=1e-4 if exact else 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_kinds_of_models(name: str, tmp_path: Path) -> None:
    assert_right(MODELS[name](tmp_path))


@pytest.mark.parametrize("how", [added, loaded])
def test_an_adapter_counts_and_is_the_same_however_it_came(how: Callable[[Path], Any], tmp_path: Path) -> None:
    def texts(model: Any) -> list[tuple[str, ...]]:
        return [outcome.texts for outcome in guard(model, seed=0).run(PROMPTS, max_new_tokens=9, progress=False)]

    usual = texts(lora(tmp_path))
    assert texts(how(tmp_path)) == usual
    assert texts(tiny()) != usual


@pytest.mark.parametrize("name", ["bf16", "PeftModel"])
def test_negative_control_misplaced_states_are_wrong(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = SlotLayer.place

    def misplaced(self: Any, rows: Any, columns: Any, keys: torch.Tensor, values: torch.Tensor) -> None:
        place(self, rows, columns, keys.roll(1, dims=0), values)

    monkeypatch.setattr(SlotLayer, "place", misplaced)
    monkeypatch.setattr(source, "select_rows", lambda model, separate: Slots)
    with pytest.raises(AssertionError):
        assert_right(MODELS[name](tmp_path))


# State after a call.


def state(guarded: GuardedGenerator) -> dict[str, Any]:
    """Everything that a call could have changed, as plain data."""
    model, tokenizer = guarded.model, guarded.tokenizer
    seen: dict[str, Any] = {
        "torch": torch.get_rng_state().tolist(),
        "numpy": str(np.random.get_state()),  # the global one, which is the user's
        "random": random.getstate(),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "warnings": list(warnings.filters),
        "generation_config": model.generation_config.to_dict(),
        "config": model.config.to_dict(),
        "tokenizer": (tokenizer.padding_side, tokenizer.truncation_side, len(tokenizer), tokenizer.chat_template),
        "active": list(model.active_adapters) if isinstance(model, PeftModel) else None,
    }
    for name, module in model.named_modules():
        hooks = {key: list(value) for key, value in vars(module).items() if "hooks" in key and value}
        adapters = [getattr(module, key, None) for key in ("active_adapters", "disable_adapters", "merged_adapters")]
        seen[f"module {name}"] = (module.training, hooks, sorted(vars(module)), str(adapters))
    for name, weights in model.named_parameters():
        seen[f"weights {name}"] = (weights.requires_grad, weights.grad, weights.dtype, weights.tolist())
    return seen


def assert_left_alone(guarded: GuardedGenerator, call: Callable[[], Any]) -> Any:
    before = state(guarded)
    result = call()
    after = state(guarded)
    assert {name: value for name, value in after.items() if value != before.get(name)} == {}
    return result


def two_adapters(_: Path) -> Any:
    model = lora(_)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model.add_adapter("other", LoraConfig(**LORA))
    model.set_adapter("other")
    # The first call of PEFT's generate leaves a method of the base model's on it.
    model.generate(input_ids=torch.tensor([[1]]), attention_mask=torch.tensor([[1]]), max_new_tokens=1)
    return model.eval()


KEPT: dict[str, Callable[[Path], Any]] = {"plain": lambda _: tiny(), "dispatched": dispatched, "adapters": two_adapters}


def raising(monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException) -> list[int]:
    """Let the n-th attention layer that is computed raise; returns a list that has their number so far."""
    calls = [0]
    rotated = modeling_llama.apply_rotary_pos_emb

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == number:
            raise error
        return rotated(*args, **kwargs)

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", counted)
    return calls


def texts_of(guarded: GuardedGenerator) -> list[tuple[str, ...]]:
    options: dict[str, Any] = {"num_return_sequences": 2, "max_new_tokens": 6, "seed": 5, "progress": False}
    return [outcome.texts for outcome in guarded.run(["ab", "hello", "some words"], **options)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KEPT)
def test_an_interrupt_leaves_everything_as_it_was(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While rows are selected for a new model, in prompts, and between tokens."""

    def fresh() -> GuardedGenerator:
        guarded = guard(KEPT[kind](tmp_path), Regex("[a-j]"))
        mode_selection._chosen.pop(guarded.model, None)  # so that rows are selected at the first use
        return guarded

    usual = fresh()
    with monkeypatch.context() as patched:
        calls = raising(patched, 0, KeyboardInterrupt())
        texts = assert_left_alone(usual, lambda: texts_of(usual))
        first = calls[0]
        assert texts_of(usual) == texts
        assert first > calls[0] - first > 20  # the first time includes the calls of the test that selects rows
    for number, error in zip(range(1, first, 8), itertools.cycle([KeyboardInterrupt, RuntimeError]), strict=False):
        guarded = fresh()

        def interrupted(guarded: GuardedGenerator = guarded, error: type[BaseException] = error) -> None:
            # For the test that selects rows, an error of the model means that it does not support this class of rows.
            with contextlib.suppress(error):
                texts_of(guarded)

        with monkeypatch.context() as patched:
            calls = raising(patched, number, error("by the test"))
            assert_left_alone(guarded, interrupted)
            assert calls[0] >= number
        assert texts_of(guarded) == texts


@pytest.mark.parametrize("where", ["check", "verdict"])
def test_a_checker_that_crashes_leaves_everything_as_it_was(where: str, tmp_path: Path) -> None:
    guarded = guard(two_adapters(tmp_path), Regex("[a-j]"))
    texts = texts_of(guarded)
    calls = itertools.count()

    def crash(text: str) -> Any:
        if next(calls) == 5:
            raise ZeroDivisionError
        return Verdict.UNDECIDED if where == "verdict" else "q" in text

    judged = constraint(crash) if where == "check" else constraint(prefix=crash)(bool)

    def crashing() -> None:
        with pytest.raises(CheckFailed, match="ZeroDivisionError"):
            guarded.run(["ab", "hello"], constraints=judged, seed=1, max_new_tokens=6, progress=False)

    assert_left_alone(guarded, crashing)
    assert texts_of(guarded) == texts


def misspelt(guarded: GuardedGenerator) -> None:
    with pytest.raises(UsageError):
        guarded("ab", seed=1, max_tokens=4)


CALLS: dict[str, Callable[[GuardedGenerator], Any]] = {
    "call": lambda guarded: guarded("ab", seed=1, max_new_tokens=4),
    "call of the pipeline's": lambda guarded: list(guarded(iter(["ab", "c"]), seed=1, max_new_tokens=4)),
    "generate": lambda guarded: guarded.generate(torch.tensor([[1, 2], [0, 3]]), seed=1, max_new_tokens=4),
    "greedy": lambda guarded: guarded("ab", seed=1, max_new_tokens=4, do_sample=False),
    "beams": lambda guarded: guarded("ab", seed=1, max_new_tokens=4, do_sample=False, num_beams=2),
    "stop strings": lambda guarded: guarded("ab", seed=1, max_new_tokens=4, stop_strings=["e"]),
    "truncation": lambda guarded: guarded(
        "abcd", seed=1, max_new_tokens=4, tokenizer_encode_kwargs={"truncation": True, "max_length": 2}
    ),
    "misspelt": misspelt,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_with_a_seed_leaves_everything_as_it_was(name: str) -> None:
    guarded = guard(tiny())
    guarded.model.generation_config.stop_strings = ["q"]
    assert_left_alone(guarded, lambda: CALLS[name](guarded))


def test_without_a_seed_a_call_takes_one_number_of_torchs() -> None:
    guarded = guard(tiny())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        torch.randint(2**63 - 1, ())
        expected = torch.get_rng_state()
        torch.manual_seed(3)
        guarded.run(PROMPTS, max_new_tokens=4, progress=False)
        assert torch.equal(torch.get_rng_state(), expected)


LEAKS: dict[str, Callable[[GuardedGenerator], Any]] = {
    "a hook": lambda guarded: guarded.model.base_model.model.lm_head.register_forward_hook(lambda *_: None),
    "torch's numbers": lambda guarded: torch.rand(1),
    "numpy's numbers": lambda guarded: np.random.rand(),
    "python's numbers": lambda guarded: random.random(),
    "the adapter": lambda guarded: guarded.model.set_adapter("default"),
    "adapters off": lambda guarded: guarded.model.base_model.disable_adapter_layers(),
    "requires_grad": lambda guarded: next(guarded.model.parameters()).requires_grad_(True),
    "a weight": lambda guarded: next(guarded.model.parameters()).data.mul_(1.001),
    "training": lambda guarded: guarded.model.base_model.model.lm_head.train(),
    "a setting": lambda guarded: setattr(guarded.model.generation_config, "stop_strings", None),
    "padding": lambda guarded: setattr(guarded.tokenizer, "padding_side", "left"),
    "warnings": lambda guarded: warnings.simplefilter("ignore"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LEAKS)
def test_negative_control_leaks_are_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = guard(two_adapters(tmp_path))
    guarded.model.generation_config.stop_strings = ["q"]
    guarded("a", seed=1, max_new_tokens=2)
    advance = RefillBackend.advance

    def leaking(self: RefillBackend) -> Any:
        LEAKS[name](guarded)
        return advance(self)

    monkeypatch.setattr(RefillBackend, "advance", leaking)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), pytest.raises(AssertionError):
        assert_left_alone(guarded, lambda: guarded("a", seed=1, max_new_tokens=2, min_new_tokens=2))


# Threads.


class Gate:
    """Holds the thread that comes first until the other one is through, or half a second if that has to wait for it."""

    def __init__(self) -> None:
        self.came, self.go = threading.Event(), threading.Event()

    def __call__(self) -> None:
        if not self.came.is_set():
            self.came.set()
            self.go.wait(0.5)

    def both(self, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[Any, Any]:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(first()))
        thread.start()
        assert self.came.wait(30)
        result = second()
        self.go.set()
        thread.join()
        return found[0], result


def after(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, gate: Callable[[], None]) -> None:
    """Come by a gate at the end of each call of a method."""
    method = getattr(target, name)

    def gated(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        gate()
        return result

    monkeypatch.setattr(target, name, gated)


def unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (prepare, transformers_internals, base_session):
        monkeypatch.setattr(module, "library_lock", contextlib.nullcontext())
    for module in (calls, transformers_internals):
        monkeypatch.setattr(module, "tokenizer_lock", lambda tokenizer: contextlib.nullcontext())


@pytest.mark.parametrize("locked", [True, False])
def test_a_thread_does_not_use_the_truncation_of_another(locked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = guard(tiny())
    short = {"max_new_tokens": 4, "seed": 1, "tokenizer_encode_kwargs": {"truncation": True, "max_length": 2}}
    long = {"max_new_tokens": 4, "seed": 1}

    def texts(options: dict[str, Any]) -> Any:
        (outcome,) = guarded.stream(["abcdef"], **options)  # of a batch of its own, whose prompts its thread prepares
        return outcome.texts

    alone = [texts(options) for options in (short, long)]
    if not locked:
        unlocked(monkeypatch)
    gate = Gate()
    after(monkeypatch, guarded.tokenizer, "set_truncation_and_padding", gate)
    found = gate.both(*(lambda options=options: texts(options) for options in (short, long)))
    assert (list(found) == alone) is locked


@pytest.mark.parametrize("locked", [True, False])
def test_threads_do_not_exchange_warning_filters(locked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not locked:
        monkeypatch.setattr(regex_analysis, "_ALONE", contextlib.nullcontext())
    inside, left = Gate(), threading.Event()
    parse = parser.parse

    def slow(*args: Any) -> Any:
        if inside.came.is_set():
            inside.go.set()
            left.wait(0.5)
        else:
            inside()
        return parse(*args)

    monkeypatch.setattr(parser, "parse", slow)

    def first() -> None:
        regex_analysis.extent("a", ())
        left.set()

    with warnings.catch_warnings():
        before = list(warnings.filters)
        inside.both(first, lambda: regex_analysis.extent("b", ()))
        assert (warnings.filters == before) is locked


@pytest.mark.slow
def test_threads_with_constraints_and_stop_strings_of_their_own() -> None:
    guarded = guard(tiny())
    guarded.model.generation_config.stop_strings = ["b"]
    orders: list[dict[str, Any]] = [
        {"constraints": Keyword("b", whole_words=False)},
        {"constraints": ~Regex("[ac]"), "stop_strings": ["d", "e"]},
        {"constraints": Regex(r"a(?=b|c)|d"), "stop_strings": ["f"], "tokenizer_encode_kwargs": {"truncation": True}},
        {"constraints": Regex("[a-x ]*", match="fullmatch")},
        {"constraints": Length(min=3), "stop_strings": ["a"], "temperature": 2.0},
        {"constraints": Length(min=3), "do_sample": False},
    ]

    def texts(number: int) -> list[tuple[str, ...]]:
        options = {"max_new_tokens": 6, "seed": number, "progress": False, **orders[number]}
        return [outcome.texts for outcome in guarded.run(["ac", "hello there", "d"], **options)]

    expected = [texts(number) for number in range(len(orders))]
    found: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: texts(i)})) for i in range(len(orders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found.get(number) for number in range(len(orders))] == expected
    assert guarded.model.generation_config.stop_strings == ["b"]


# Prompts without end.

STATE = (RequestState, GenerationLaw, AttemptState, Draw, Prefix, torch.Tensor)
"""State of a prompt and its attempts while they are in progress."""


def streamed(count: int) -> tuple[int, list[int]]:
    """Serve so many prompts; how many were taken at most ahead of the outcomes, and how much state there was."""
    taken = 0
    world = table_world(letters="abcd", max_new_tokens=4)

    def prompts() -> Iterator[str]:
        nonlocal taken
        for taken in range(1, count + 1):
            yield "".join("abcd"[taken // 4**place % 4] for place in range(taken % 7 + 1))

    @constraint(on="full")
    def judged(text: str) -> bool:  # most texts of most prompts, and none of some prompts
        return "b" in text and not text.startswith("ddd")

    guarded = GuardedGenerator(world.pipeline(), judged, batch_size=8, seed=0, budget=Budget(max_attempts=40))
    outcomes = guarded.stream(prompts(), **world.settings)
    ahead, alive, exhausted = 0, [], 0
    for served, outcome in enumerate(outcomes, start=1):
        ahead = max(ahead, taken - served)
        exhausted += not outcome.ok
        if served % (count // 3) == 0:
            gc.collect()
            alive.append(sum(issubclass(type(thing), STATE) for thing in gc.get_objects()))
    assert served == count
    assert exhausted
    return ahead, alive


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [(Slots, 600), (Wave, 600), (Plain, 600)])
def test_a_stream_of_prompts_takes_constant_memory(kind: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "select_rows", lambda model, separate: kind)
    ahead, alive = streamed(count)
    assert 8 < ahead <= scheduler.WINDOW * 8
    assert max(alive[1:]) < alive[0] + 120  # the negative control below has 500 more


class Hoarding(Slots):
    def __init__(self, model: Any) -> None:
        super().__init__(model, prompts=10_000)


@pytest.mark.slow
def test_negative_control_a_stream_that_keeps_what_it_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "select_rows", lambda model, separate: Hoarding)
    monkeypatch.setattr(job, "WINDOW", 1_000)
    ahead, alive = streamed(600)
    assert ahead > 4 * 8
    assert max(alive[1:]) > alive[0] + 500
