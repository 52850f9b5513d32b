"""Corner cases of transformers that once made the wrapper fail silently."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedTokenizerFast,
)
from transformers.generation import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)

from guardwrap import (
    Budget,
    Constraint,
    Draw,
    Fallback,
    Finished,
    GuardedGenerator,
    Keyword,
    Length,
    Regex,
    Verdict,
    constraint,
)
from guardwrap.errors import BudgetExhausted, CheckFailed, GuardwrapError, ModelError, PromptError, UsageError
from guardwrap.models import prepare
from guardwrap.models.early_abort import StablePrefix
from guardwrap.testing import World, character_tokenizer, llama_world

ANYTHING = Length(min=0)


@pytest.fixture
def own() -> World:
    """A new world per test, whose model and tokenizer the test may change."""
    return llama_world(letters="abcdefghij", max_new_tokens=8)


def greedy(world: World, prompt: Any, **options: Any) -> tuple[Any, Any]:
    options = {"do_sample": False, "max_new_tokens": 8, **options}
    pipe = world.pipeline()
    return GuardedGenerator(pipe, ANYTHING)(prompt, **options), pipe(prompt, **options)


def test_a_deadline_ends_though_attempts_end_with_their_first_token(own: World) -> None:
    never = Length(min=100)
    budget = Budget(max_attempts=None, deadline=0.2)
    done = threading.Event()

    def run() -> None:
        for seed in range(6):
            guarded = GuardedGenerator(own.pipeline(), never, budget=budget, batch_size=4)
            assert guarded.run("a", max_new_tokens=8, seed=seed)[0].report.ended == "deadline"
        done.set()

    threading.Thread(target=run, daemon=True).start()
    assert done.wait(60), "still running long after the deadline"


def test_the_parsed_content_of_a_chat_is_judged(own: World) -> None:
    own.tokenizer.chat_template = (
        "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}a{% endif %}"
    )
    own.tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "a",
        "fields": {
            "reasoning_content": {"open": "d", "close": "c", "content": "text"},
            "content": {"close_pattern": "<end>", "content": "text"},
        },
    }
    chat = [{"role": "user", "content": "bb"}]
    judged = Regex("[fgh]") & ~Regex("e")
    guarded = GuardedGenerator(own.pipeline(), judged, seed=1)
    records = guarded(chat, max_new_tokens=8, num_return_sequences=6)
    contents = [record["generated_text"][-1].get("content", "") for record in records]
    assert all(judged.accepts(content) for content in contents)
    raw = guarded(chat, max_new_tokens=8, num_return_sequences=6, return_full_text=False)
    assert all(judged.accepts(record["generated_text"]) for record in raw)


def byte_tokenizer(*last: Any) -> PreTrainedTokenizerFast:
    names = ["<end>", *(f"<0x{byte:02X}>" for byte in range(256)), *"abc"]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), *last])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


def test_a_run_of_byte_tokens_is_not_settled_before_it_ends() -> None:
    """Byte fallback decodes a run as a whole: the line break of a prefix may turn out to be invalid UTF-8."""
    tokenizer = byte_tokenizer()
    stable = StablePrefix(tokenizer, tokenizer.decode)
    assert stable.works
    line, lead = tokenizer.convert_tokens_to_ids(["<0x0A>", "<0xF0>"])
    a = tokenizer.convert_tokens_to_ids("a")
    assert "\n" in tokenizer.decode([a, line])
    assert "\n" not in tokenizer.decode([a, line, lead])
    assert stable([a, line]) == "a"
    assert stable([a, line, a]) == "a\na"
    chance = torch.Generator().manual_seed(0)
    pool = torch.tensor([a, line, lead, *tokenizer.convert_tokens_to_ids(["<0xC3>", "<0xA9>", "b"])])
    for _ in range(500):
        ids = pool[torch.randint(len(pool), (8,), generator=chance)].tolist()
        assert all(tokenizer.decode(ids).startswith(stable(ids[:end])) for end in range(9))


def test_a_decoder_that_rewrites_across_tokens_gets_no_early_abort() -> None:
    tokenizer = byte_tokenizer(decoders.Replace("ab", "X"))
    assert not StablePrefix(tokenizer, tokenizer.decode).works


def test_padding_made_by_the_tokenizer_is_not_prompt(own: World) -> None:
    own.tokenizer.padding_side = "left"
    options = {"tokenizer_encode_kwargs": {"padding": "max_length", "max_length": 12}}
    ours, theirs = greedy(own, "abc", **options)
    assert ours == theirs


def test_generate_infers_padding_from_the_settings_of_the_call(own: World) -> None:
    ids = torch.tensor([[7, 7, 7, 1, 2, 3], [4, 5, 6, 1, 2, 3]])
    guarded = GuardedGenerator(own.model, ANYTHING, tokenizer=own.tokenizer)
    for options in (
        {"pad_token_id": 7, "do_sample": False, "max_new_tokens": 8},
        {"generation_config": GenerationConfig(pad_token_id=7, do_sample=False, max_new_tokens=8)},
    ):
        assert guarded.generate(ids, **options).tolist() == own.model.generate(ids, **options).tolist()


def test_padding_with_several_ends_is_transformers_own(own: World) -> None:
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    own.model.generation_config.pad_token_id = None
    options = {"eos_token_id": [5, 2], "do_sample": False, "max_new_tokens": 8}
    guarded = GuardedGenerator(own.model, ANYTHING, tokenizer=own.tokenizer)
    ours, theirs = guarded.generate(ids, **options), own.model.generate(ids, **options)
    assert ours.tolist() == theirs.tolist()


def test_model_inputs_are_refused_not_dropped(own: World) -> None:
    guarded = GuardedGenerator(own.model, ANYTHING, tokenizer=own.tokenizer)
    with pytest.raises(UsageError, match="position_ids"):
        guarded.generate(torch.tensor([[1, 2, 3]]), position_ids=torch.tensor([[3, 4, 5]]), max_new_tokens=2)


@pytest.mark.parametrize("criterion", [MaxLengthCriteria(5), EosTokenCriteria(torch.tensor([4]))])
def test_stopping_criteria_of_the_user_take_the_place_of_ours(own: World, criterion: Any) -> None:
    for end in (None, 0):
        options = {"max_new_tokens": 20, "stopping_criteria": StoppingCriteriaList([criterion]), "eos_token_id": end}
        ours, theirs = greedy(own, "abc", **options)
        assert ours == theirs


def stops_at_b(ids: torch.Tensor, scores: Any, **_: Any) -> bool:
    """A criterion like those of LangChain and LlamaIndex: it looks at the first row and answers for all."""
    return any(ids[0][-1] == stop for stop in (2,))


class Stops(StoppingCriteria):
    __call__ = staticmethod(stops_at_b)


def test_a_stopping_criterion_that_reads_the_first_row_ends_no_other(own: World, monkeypatch: Any) -> None:
    guarded = GuardedGenerator(own.pipeline(), ANYTHING)
    options = {
        **own.settings,
        "stopping_criteria": [Stops()],
        "num_return_sequences": 50,
        "seed": 3,
        "max_new_tokens": 8,
    }

    def texts(size: int) -> tuple[str, ...]:
        return guarded.run("ac", batch_size=size, **options)[0].texts

    alone = texts(1)
    assert any("b" in text for text in alone)
    assert all("b" not in text[:-1] for text in alone)
    assert texts(16) == alone
    monkeypatch.setattr(
        "guardwrap.engine.token_sampling.ended_rows", lambda ends, ids, _: ends(ids, None) | ids.new_zeros(len(ids))
    )
    assert texts(16) != alone  # the negative control: called once for all rows


def test_the_model_configuration_fills_up_that_of_the_call(own: World) -> None:
    own.model.generation_config.num_return_sequences = 3
    own.model.generation_config.stop_strings = ["b"]
    config = GenerationConfig(max_new_tokens=5, do_sample=True)
    records = GuardedGenerator(own.pipeline(), ANYTHING, seed=0)("a", generation_config=config)
    assert len(records) == 3
    assert all("b" not in record["generated_text"][1:-1] for record in records)
    assert own.model.generation_config.stop_strings == ["b"]


def test_stop_strings_are_made_into_a_criterion_once(own: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers builds it from the whole vocabulary each time."""
    made = []

    class Counted(StopStringCriteria):
        def __init__(self, *args: Any) -> None:
            made.append(args[1])
            super().__init__(*args)

    monkeypatch.setattr(prepare, "StopStringCriteria", Counted)
    guarded = GuardedGenerator(own.pipeline(), ANYTHING, seed=0)
    options: dict[str, Any] = {
        "max_new_tokens": 8,
        "temperature": 2.0,
        "num_return_sequences": 4,
        "stop_strings": ["b", "ca"],
    }
    texts = [text for outcome in guarded.run(["a", "ab", "abc", "d"], **options) for text in outcome.texts]
    assert made == [["b", "ca"]]
    assert any(text.endswith(("b", "ca")) for text in texts)
    assert not any("b" in text[:-1] or "ca" in text[:-1] for text in texts)
    own.tokenizer.add_tokens(["bb"])
    guarded.run(["a", "ab"], **options)
    assert made == [["b", "ca"]] * 2


def rope(kind: str) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(
            "llama",
            vocab_size=11,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=48,
            max_position_embeddings=12,
            initializer_range=0.3,
            rope_parameters={"rope_type": kind, "factor": 4.0, "rope_theta": 10000.0},
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=0,
        )
        return AutoModelForCausalLM.from_config(config).eval()


def test_frequencies_that_depend_on_the_longest_row_do_not_mix_rows() -> None:
    model = rope("dynamic")
    guarded = GuardedGenerator(model, ANYTHING, tokenizer=character_tokenizer("abcdefghij"), seed=1)
    options: dict[str, Any] = {"num_return_sequences": 4, "max_new_tokens": 6, "seed": 1, "progress": False}
    alone = guarded.run(["abc"], **options)[0]
    beside = guarded.run(["abc", "abcdefghija"], **options)[0]
    assert alone.texts == beside.texts
    assert [d.log_proposal for d in alone.draws] == pytest.approx([d.log_proposal for d in beside.draws], abs=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_is_fed_more_than_tokens_is_refused() -> None:
    config = AutoConfig.for_model("xlm", vocab_size=12, emb_dim=32, n_layers=2, n_heads=4, max_position_embeddings=64)
    config.pad_token_id = config.eos_token_id = 0
    model = AutoModelForCausalLM.from_config(config).eval()
    guarded = GuardedGenerator(model, ANYTHING, tokenizer=character_tokenizer("abcdefghij"))
    with pytest.raises(ModelError, match="passes it other inputs"):
        guarded("abc", max_new_tokens=3)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_dropout_is_refused() -> None:
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(llama_world().model, LoraConfig(lora_dropout=0.5, task_type="CAUSAL_LM"))
    guarded = GuardedGenerator(model, ANYTHING, tokenizer=character_tokenizer("ab"))
    with pytest.raises(UsageError, match=r"model.eval\(\)"):
        guarded("ab", max_new_tokens=3)
    model.eval()
    assert guarded("ab", max_new_tokens=3, seed=1) == guarded("ab", max_new_tokens=3, seed=1)


def test_a_hopeless_prompt_does_not_starve_the_others(own: World) -> None:
    @constraint(on="full")
    def hopeless_for_a(text: str) -> bool:
        return not text.startswith("a") and "c" in text

    guarded = GuardedGenerator(own.pipeline(), hopeless_for_a, seed=1, budget=Budget(max_attempts=400))
    stream = guarded.stream(["a", "b", "d"], max_new_tokens=8, num_return_sequences=5)
    finished = list(stream)
    assert [outcome.ok for outcome in finished] == [False, True, True]
    assert finished[1].report.usage.seconds < finished[0].report.usage.seconds


def test_nothing_accepted_is_lost_when_a_checker_crashes(own: World) -> None:
    count = 0

    @constraint(on="full")
    def crashing(text: str) -> bool:
        nonlocal count
        if not text.startswith("a"):
            return True
        count += 1
        if count > 60:
            raise RuntimeError(text)
        return False

    guarded = GuardedGenerator(own.pipeline(), crashing, seed=1, batch_size=4)
    with pytest.raises(CheckFailed) as caught:
        guarded.run(["a", "b", "d", "e", "f"], max_new_tokens=4)
    assert [outcome.prompt for outcome in caught.value.outcomes if outcome.ok] == ["b", "d", "e", "f"]


def test_prompts_before_one_that_raises_are_served(own: World) -> None:
    def prompts() -> Iterator[str]:
        yield "a"
        yield "b"
        raise RuntimeError("no more")

    records = GuardedGenerator(own.pipeline(), ANYTHING, seed=1)(prompts(), max_new_tokens=4)
    assert next(records)
    assert next(records)
    with pytest.raises(RuntimeError, match="no more"):
        next(records)


def test_a_generator_of_messages_is_a_chat(own: World) -> None:
    own.tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    options = {"max_new_tokens": 4, "do_sample": False}
    pipe = own.pipeline()

    def messages() -> Iterator[dict[str, str]]:
        yield {"role": "user", "content": "ab"}
        yield {"role": "assistant", "content": "c"}
        yield {"role": "user", "content": "d"}

    assert GuardedGenerator(pipe, ANYTHING)(messages(), **options) == pipe(messages(), **options)
    assert GuardedGenerator(pipe, ANYTHING)((x for x in list[str]()), **options) == []


def test_errors_are_ours_and_one_line(own: World) -> None:
    guarded: Any = GuardedGenerator(own.pipeline(), ANYTHING)
    no_text: Any = lambda _: None  # noqa: E731
    own.tokenizer.chat_template = "{{ raise_exception('') }}"
    fallback = GuardedGenerator(
        own.pipeline(), Length(min=99), on_exhausted=Fallback(no_text), budget=Budget(max_attempts=1)
    )
    wrong: dict[str, Any] = {
        "paged": lambda: guarded("abc", cache_implementation="paged"),
        "template": lambda: guarded([{"role": "user", "content": "a"}]),
        "beams": lambda: guarded("abc", num_beams=2, num_return_sequences=3, do_sample=False),
        "max time": lambda: guarded("abc", stopping_criteria=[MaxTimeCriteria(1.0)]),
        "text": lambda: guarded.generate("abc"),
        "list": lambda: guarded.generate([[1, 2]]),
        "batch": lambda: guarded.generate(own.tokenizer("abc", return_tensors="pt")),
        "first": lambda: list(guarded.stream(["a"], first=-1)),
        "fallback": lambda: fallback("abc", max_new_tokens=2),
    }
    for name, call in wrong.items():
        with pytest.raises(GuardwrapError) as caught:
            call()
        assert isinstance(caught.value, UsageError | PromptError), name
        assert str(caught.value), name
        assert "\n" not in str(caught.value), name


def test_threads_share_a_wrapper(own: World) -> None:
    guarded = GuardedGenerator(own.pipeline(), Keyword("b", whole_words=False), batch_size=4)
    options = {"max_new_tokens": 6, "num_return_sequences": 3, "temperature": 1.5}
    alone = {seed: guarded("ac", seed=seed, **options) for seed in range(8)}
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda seed=seed: found.update({seed: guarded("ac", seed=seed, **options)}))
        for seed in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == alone


def test_finished_and_exhausted_say_what_they_are(own: World) -> None:
    with pytest.raises(BudgetExhausted):
        GuardedGenerator(own.pipeline(), Finished(), budget=Budget(max_attempts=2))(
            "a", min_new_tokens=3, max_new_tokens=3
        )
    assert Finished().verdict("anything") is Verdict.UNDECIDED


def test_what_waits_for_its_judgement_is_not_launched_again(own: World) -> None:
    """Expensive constraints judge attempts in batches; until then, attempts that ended count as in flight."""
    judged: list[int] = []

    class Costly(Constraint):
        cost = 2

        def check(self, draws: Sequence[Draw], /) -> list[bool]:
            judged.append(len(draws))
            return [True] * len(draws)

        def spec(self) -> dict[str, Any]:
            return {"kind": "costly"}

    guarded = GuardedGenerator(own.pipeline(), Costly(), seed=2, batch_size=12)
    outcomes = guarded.run(["a", "b", "cd", "e", "f"], max_new_tokens=8, num_return_sequences=4, progress=False)
    assert all(outcome.report.usage.surplus_attempts == 0 for outcome in outcomes)
    assert sum(judged) == 20
    assert max(judged) > 4
