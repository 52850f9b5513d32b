"""An ``LLM`` of vLLM, with an engine of a finite law in place of a model; ``test_vllm.py`` has the real one."""

import json
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from guardwrap import Budget, GuardedGenerator, Masked, Prompt, Regex, Repair, ToolCalls
from guardwrap.engine.endpoint.vllm_engine import EngineEndpoint, endpoint_of
from guardwrap.errors import ContextExceeded, EndpointError, UsageError
from guardwrap.testing import goodness_of_fit

LAW = {"ab": 0.1, "ad": 0.3, "c": 0.2, "d": 0.3, "db": 0.1}
"""The probabilities of texts; each character is a token, and none ends with its text."""

LIKELY = SimpleNamespace(logprob=-1.0)


class Engine:
    """Draws texts of LAW, a token of each per step."""

    def __init__(self, **config: Any) -> None:
        self.model_config = SimpleNamespace(model="finite", max_model_len=config.get("max_model_len", 10_000_000))
        self.vllm_config = SimpleNamespace(
            scheduler_config=SimpleNamespace(max_num_seqs=8), lora_config=config.get("lora")
        )
        self.law = LAW
        self.running: dict[str, tuple[str, int]] = {}
        self.prompts: dict[str, tuple[list[int], Any]] = {}  # their tokens and settings
        self.added: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.broken = False

    def add_request(self, name: str, prompt: Any, settings: Any, **options: Any) -> None:
        ids = prompt["prompt_token_ids"]
        if not ids:
            raise ValueError("The prompt is empty.\n")
        if len(ids) >= self.model_config.max_model_len:
            raise ValueError("The prompt fills the context.")
        self.prompts[name] = ids, settings
        self.added.append({"prompt": "".join(map(chr, ids)), "settings": vars(settings), **options})
        (text,) = random.Random(getattr(settings, "seed", None)).choices([*self.law], [*self.law.values()])
        self.running[name] = text, 0

    def abort_request(self, names: list[str]) -> None:
        self.aborted += names
        for name in names:
            self.running.pop(name, None)

    def has_unfinished_requests(self) -> bool:
        return bool(self.running)

    def step(self) -> list[Any]:
        if self.broken:
            raise RuntimeError("a secret text")
        outputs = []
        for name, (text, at) in list(self.running.items()):
            ids, settings = self.prompts[name]
            most = min(settings.max_tokens, self.model_config.max_model_len - len(ids))  # as vLLM, without an error
            ended = at + 1 == min(len(text), most)
            self.running[name] = text, at + 1
            if ended:
                del self.running[name]
            drawn = SimpleNamespace(
                text=text[at],
                token_ids=[ord(text[at])],
                logprobs=None if settings.logprobs is None else [{ord(text[at]): LIKELY}],
                finish_reason="stop" if ended else None,
            )
            scored = getattr(settings, "prompt_logprobs", None) is not None
            outputs.append(
                SimpleNamespace(
                    request_id=name,
                    outputs=[drawn],
                    finished=ended,
                    prompt_token_ids=ids,
                    prompt_logprobs=[None, *({token: LIKELY} for token in ids[1:])] if scored else None,
                )
            )
        return outputs


class Tokenizer:
    """Each character is a token, after a mark of the beginning if there is one."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [*([ord("^")] if add_special_tokens and "^" in text else []), *map(ord, text)]

    def apply_chat_template(self, messages: Any, **options: Any) -> str:
        return json.dumps([messages, options])


class LLM:
    """What the engine is wrapped in."""

    def __init__(self, **config: Any) -> None:
        self.llm_engine = Engine(**config)

    def get_tokenizer(self) -> Any:
        return Tokenizer()


LLM.__module__ = "vllm.entrypoints.llm"


@pytest.fixture(autouse=True)
def _library(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SimpleNamespace(RequestOutputKind=SimpleNamespace(DELTA="delta"), StructuredOutputsParams=dict)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=SimpleNamespace))
    monkeypatch.setitem(sys.modules, "vllm.lora.request", SimpleNamespace(LoRARequest=lambda *names: names))
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", settings)


def is_idle(llm: LLM) -> bool:
    """Wait for the engine's thread, which aborts requests after a call has returned."""
    for _ in range(1000):
        if not llm.llm_engine.running:
            return True
        time.sleep(0.01)
    return False


def test_texts_follow_the_law() -> None:
    """Negative control: they do not have the law of texts that follow no rule."""
    llm, rule = LLM(), ~Regex("^a.*b|^c")
    (outcome,) = GuardedGenerator(llm, rule, budget=Budget(max_attempts=None), seed=1).run(
        "p", num_return_sequences=2000
    )
    gold = {text: p / 0.7 for text, p in LAW.items() if text in ("ad", "d", "db")}
    assert goodness_of_fit(outcome.texts, gold) > 1e-3
    assert goodness_of_fit(outcome.texts, LAW) < 1e-9
    assert outcome.report.drawn_from.startswith("exactly")
    assert is_idle(llm)
    assert not any("did not count" in note for note in outcome.report.notes)
    assert sum("seed" in note for note in outcome.report.notes) == 1


def test_a_text_is_aborted_once_it_is_lost() -> None:
    llm, endless = LLM(), 1_000_000
    llm.llm_engine.law = {"b" * endless: 1.0}
    guarded = GuardedGenerator(llm, Regex("x", match="fullmatch"), budget=Budget(max_attempts=4), seed=1)
    (outcome,) = guarded.run("p", max_new_tokens=endless)
    assert outcome.report.usage.tokens < endless / 2  # the engine may be a few steps ahead
    assert is_idle(llm)
    assert len(llm.llm_engine.aborted) == 4


def test_what_the_engine_is_asked() -> None:
    llm = LLM()
    law: dict[str, Any] = {"temperature": 0.5, "top_k": 3, "min_p": 0.1, "max_new_tokens": 9, "stop_strings": ["."]}
    guarded = GuardedGenerator(llm, Regex("[a-d]+", match="fullmatch"), proposal=Masked(), seed=1)
    guarded([[{"role": "user", "content": "hi"}]], chat_template_kwargs={"thinking": False}, **law)
    guarded("hi", **law)
    chat, text = llm.llm_engine.added[0], llm.llm_engine.added[-1]
    options = {"add_generation_prompt": True, "tokenize": False, "thinking": False}
    assert json.loads(chat["prompt"]) == [[{"role": "user", "content": "hi"}], options]
    assert text["prompt"] == "hi"
    asked = text["settings"]
    assert isinstance(asked.pop("seed"), int)
    assert asked == {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 1.0,
        "min_p": 0.1,
        "max_tokens": 9,
        "stop": ["."],
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logprobs": None,
        "structured_outputs": {"regex": "[a-d]+"},
        "output_kind": "delta",
    }


def test_wrappers_of_an_engine_share_the_thread_that_steps_it() -> None:
    llm = LLM()
    first, second = GuardedGenerator(llm, Regex("a")), GuardedGenerator(llm, Regex("d"))
    assert first.session.model is second.session.model
    assert first.batch_size == 8
    assert GuardedGenerator(LLM(), Regex("a")).session.model is not first.session.model


def test_threads_that_wrap_an_engine_share_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    right = EngineEndpoint.__init__

    def slow(self: EngineEndpoint, llm: Any) -> None:
        time.sleep(0.1)  # long enough for the other thread to look for an endpoint as well
        right(self, llm)

    monkeypatch.setattr(EngineEndpoint, "__init__", slow)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(endpoint_of, [LLM()] * 2)
    assert first is second


def test_texts_that_may_outgrow_the_context_are_refused() -> None:
    llm = LLM(max_model_len=8)
    llm.llm_engine.law = {"abcdabcd": 1.0}
    guarded = GuardedGenerator(llm, Regex(""), seed=1)
    with pytest.raises(
        ContextExceeded, match=r"3 tokens with max_new_tokens=6 need more; pass max_new_tokens=5 or less"
    ):
        guarded("abc", max_new_tokens=6)
    assert guarded.run("abc", max_new_tokens=5)[0].texts == ("abcda",)
    assert is_idle(llm)


def test_a_prompt_without_room_is_refused_before_the_engine_has_it() -> None:
    guarded = GuardedGenerator(LLM(max_model_len=8), Regex(""), seed=1)
    with pytest.raises(ContextExceeded, match="the prompt has 8 tokens and the model's context 8; shorten the prompt"):
        guarded("abcdefgh", max_new_tokens=1)


def test_repair_turns_without_room_lose_no_texts() -> None:
    guarded = GuardedGenerator(
        LLM(max_model_len=200), Regex("d"), seed=1, budget=Budget(max_attempts=1), on_exhausted=Repair(otherwise="none")
    )
    outcomes = guarded.run([[{"role": "user", "content": "hi" * 10}]] * 8, max_new_tokens=4)
    assert {len(outcome.texts) for outcome in outcomes} == {0, 1}


def test_only_the_template_writes_special_tokens_of_chats() -> None:
    llm = LLM()
    guarded = GuardedGenerator(llm, Regex(""), seed=1)
    guarded([[{"role": "user", "content": "^hi"}]])
    guarded("^hi")
    chat, text = (added["prompt"] for added in llm.llm_engine.added)
    assert (chat[:2], text) == ("[[", "^^hi")


def test_chats_reach_the_template_as_those_of_a_server_do() -> None:
    llm = LLM()
    guarded = GuardedGenerator(llm, Regex(""), seed=1)
    function = {"name": "f", "arguments": '{"city": "Paris"}'}
    chat = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "sunny"},
    ]
    guarded([chat])
    (user, assistant, _), _ = json.loads(llm.llm_engine.added[0]["prompt"])
    assert user == {"role": "user", "content": "a\nb"}
    assert assistant["tool_calls"][0]["function"]["arguments"] == {"city": "Paris"}
    assert function["arguments"] == '{"city": "Paris"}'
    image = [{"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(UsageError, match=r"takes only text; start `vllm serve`"):
        guarded([[{"role": "user", "content": image}]])
    assert is_idle(llm)


@pytest.mark.parametrize("template", ["{prompt}", lambda prompt: prompt[-1]])
def test_texts_that_are_scored_need_room_for_a_token(template: Any) -> None:
    """vLLM scores a text as a prompt. A prompt of the proposal may be shorter than that of the model."""
    llm = LLM(max_model_len=8)
    llm.llm_engine.law = {"abcdabcd": 1.0}
    guarded = GuardedGenerator(llm, Regex(""), proposal=Prompt(template), sampler="qrs", seed=1)
    with pytest.raises(ContextExceeded, match=r"=5 and a token for weights need more; pass max_new_tokens=4 or less"):
        guarded("abc", temperature=1.0, max_new_tokens=5)
    assert guarded.run("abc", temperature=1.0, max_new_tokens=4)[0].texts == ("abcd",)
    with pytest.raises(ContextExceeded, match="the prompt has 7 tokens and the model's context 8; shorten the prompt"):
        guarded("abcdefg", temperature=1.0, max_new_tokens=1)
    assert is_idle(llm)


def test_faults_are_named_and_leave_no_request() -> None:
    llm = LLM()
    guarded = GuardedGenerator(llm, Regex("a"), seed=1)
    with pytest.raises(EndpointError, match=r"vLLM rejects the request: The prompt is empty\.$"):
        guarded.run([""])
    llm.llm_engine.broken = True
    with pytest.raises(EndpointError, match=r"vLLM failed \(RuntimeError\); see its log$"):
        guarded("p")
    llm.llm_engine.broken = False
    assert guarded("p")
    assert is_idle(llm)


def test_adapters_are_folders_with_a_number_for_each_version(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"with an adapter_config\.json"):
        GuardedGenerator(LLM(lora=True), Regex("a"), adapter=str(tmp_path))
    config = tmp_path / "adapter_config.json"
    config.write_text("{}")
    with pytest.raises(UsageError, match="enable_lora=True"):
        GuardedGenerator(LLM(), Regex("a"), adapter=str(tmp_path))
    llm = LLM(lora=True)
    guarded = GuardedGenerator(llm, Regex("a"), adapter=tmp_path, seed=1)
    numbers = set()
    for moment in (1, 1, 2):
        os.utime(config, (moment, moment))
        guarded("p")
        name, number, folder = llm.llm_engine.added[-1]["lora_request"]
        assert folder == str(tmp_path)
        assert folder in name
        numbers.add(number)
    assert len(numbers) == 2


@pytest.mark.parametrize("rule", [Regex("a", on="reasoning"), ToolCalls([{"name": "f", "parameters": {}}])])
def test_parts_of_messages_are_refused(rule: Any) -> None:
    with pytest.raises(UsageError, match="start `vllm serve`"):
        GuardedGenerator(LLM(), rule).run([[{"role": "user", "content": "hi"}]])
