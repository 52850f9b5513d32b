"""Eight model families: answers are parsed as their templates do, and nothing that is banned is in a message.

Each family is a tokenizer with its markers and a table that strings them together at random: answers, reasoning, calls,
and all of these cut off and malformed.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from guardwrap import Budget, GuardedGenerator, JSONSchema, Part, Regex, ToolCalls
from guardwrap.constraints.verdicts import Context, MessageMonitor, Verdict
from guardwrap.errors import UsageError
from guardwrap.models.calls import Call
from guardwrap.models.parsed_message import CUT_OFF, NO_ANSWER, UNPARSED
from guardwrap.models.regions import MessageRegions
from guardwrap.models.templates import FAMILIES, family_of
from guardwrap.outcomes import Draw
from guardwrap.testing import TableConfig, TableModel, World
from tests import fixtures_models
from tests.models.test_parsed_message import held


@dataclass(frozen=True)
class Syntax:
    """How a family writes: the end of the prompt, the end of a message, and what surrounds each part."""

    marks: str
    anchor: str
    end: str
    call: tuple[str, str]
    thought: tuple[str, str] | None = ("<think>", "</think>")
    answer: tuple[str, str] = ("", "")
    between: str = ""
    """What stands between two calls."""

    arguments: str = '{"a":1}'
    broken: str = '{"a":'
    after_thought: str = ""


SYNTAX = {
    "Qwen or Hermes": Syntax(
        "<|im_start|>",
        "<|im_start|>assistant\n",
        "<|im_end|>",
        ('<tool_call>\n{"name":"f","arguments":', "}\n</tool_call>"),
        between="\n",
    ),
    "Qwen (calls in XML)": Syntax(
        "<|im_start|> <function= <parameter=",
        "<|im_start|>assistant\n",
        "<|im_end|>",
        ("<tool_call>\n<function=f>\n", "\n</function>\n</tool_call>"),
        between="\n",
        arguments="<parameter=a>\n1\n</parameter>",
        broken="</parameter>",
    ),
    "DeepSeek": Syntax(
        "<｜Assistant｜>",
        "<｜Assistant｜>",
        "<｜end▁of▁sentence｜>",
        ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n", "\n```<｜tool▁call▁end｜>"),
        between="\n",
    ),
    "Llama 3": Syntax(
        "<|start_header_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|eot_id|>",
        ('{"name": "f", "parameters": ', "}"),
        thought=None,
    ),
    "Mistral": Syntax(
        "[TOOL_CALLS] [ARGS]", "[/INST]", "</s>", ("[TOOL_CALLS]f[ARGS]", ""), thought=("[THINK]", "[/THINK]")
    ),
    "Mistral (lists of calls)": Syntax(
        "[TOOL_CALLS]",
        "[/INST]",
        "</s>",
        ('[TOOL_CALLS] [{"id": "9", "name": "f", "arguments": ', "}]"),
        thought=None,
    ),
    "Gemma": Syntax(
        "<start_of_turn>",
        "<start_of_turn>model\n",
        "<end_of_turn>",
        ("<start_function_call>call:f", "<end_function_call>"),
        thought=None,
        arguments="{a:1}",
        broken="{a:",
    ),
    "Gemma 4": Syntax(
        "<|turn> <|tool_call>",
        "<|turn>model\n",
        "<turn|>",
        ("<|tool_call>call:f", "<tool_call|>"),
        thought=("<|channel>thought\n", "<channel|>"),
        arguments="{a:1}",
        broken="{a:",
    ),
    "Harmony": Syntax(
        "<|channel|> <|message|>",
        "<|start|>assistant",
        "<|return|>",
        ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>", "<|call|>"),
        thought=("<|channel|>analysis<|message|>", "<|end|>"),
        answer=("<|channel|>final<|message|>", ""),
        between="<|start|>assistant",
        after_thought="<|start|>assistant",
    ),
    "GLM": Syntax(
        "<|assistant|> <arg_key>",
        "<|assistant|>",
        "<|observation|>",
        ("<tool_call>f\n", "\n</tool_call>"),
        between="\n",
        arguments="<arg_key>a</arg_key>\n<arg_value>1</arg_value>",
        broken="</arg_key>",
    ),
}
ONE_CALL = {"Llama 3", "Mistral (lists of calls)"}
"""Families that write several calls in another way than one after the other, or write one only."""


def test_every_family_is_here() -> None:
    assert {*SYNTAX} == {family.name for family in FAMILIES}


def tokenizer_of(syntax: Syntax, pieces: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer with these pieces, and special tokens that stand for markers as in the family."""
    letters = fixtures_models.bytes_to_letters()
    names = ["".join(letters[byte] for byte in piece.encode()) for piece in pieces]
    every = dict.fromkeys([syntax.end, *names, *(letters[byte] for byte in range(256))])
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(every)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    anchor = syntax.anchor.replace("\n", "{{ '\\n' }}")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=syntax.end,
        pad_token=syntax.end,
        clean_up_tokenization_spaces=False,
        chat_template="{# " + syntax.marks + " #}{{ messages[-1]['content'] }}" + anchor,
    )


def pieces_of(syntax: Syntax) -> list[str]:
    call = syntax.call[0] + syntax.arguments + syntax.call[1]
    pieces = ["x", "bad", " ", "\n", call, *syntax.call, syntax.arguments, syntax.broken, *syntax.answer]
    pieces += [*(syntax.thought or ()), syntax.between, syntax.after_thought, "{", "}"]
    return [piece for piece in dict.fromkeys(pieces) if piece]


def world_of(name: str, tokens: int = 9, *, more: Sequence[str] = ()) -> World:
    """Return a world of a family, whose model writes its pieces and ``more`` at random."""
    syntax = SYNTAX[name]
    pieces = [*pieces_of(syntax), *more]
    tokenizer = tokenizer_of(syntax, pieces)
    model = TableModel(TableConfig(vocab_size=len(tokenizer), max_position_embeddings=200))
    with torch.no_grad():
        model.table.copy_(torch.randn(model.table.shape, generator=torch.Generator().manual_seed(0)))
        known = [0, *(tokenizer.convert_tokens_to_ids(piece_name(piece)) for piece in pieces)]
        others = [i for i in range(len(tokenizer)) if i not in known]
        model.table[:, :, others] = -30.0
        model.table[:, :, 0] += 1.0
    for part in (model.config, model.generation_config):
        part.eos_token_id = part.pad_token_id = 0
        part.bos_token_id = None
    return World(model, tokenizer, "x", tokens)


def piece_name(piece: str) -> str:
    letters = fixtures_models.bytes_to_letters()
    return "".join(letters[byte] for byte in piece.encode())


CHAT = [{"role": "user", "content": "x"}]


def judged(name: str, answer: str, *, finished: bool = True) -> Draw:
    """Return the draw of an answer, with the family's template."""
    world = world_of(name)
    call = Call.read(world.pipeline(), {}).with_parts("answer")
    (prompt,) = call.prompts(enumerate(call.read_prompts(CHAT).prompts), 1)
    ids = world.tokenizer(answer)["input_ids"]
    return call.draw(prompt, [*ids, 0] if finished else ids, finished)


def expected_call(name: str) -> str:
    value: Any = "1" if name in ("GLM", "Qwen (calls in XML)") else 1
    return json.dumps({"type": "function", "function": {"name": "f", "arguments": {"a": value}}})


def cases(name: str) -> Iterator[tuple[str, str, bool, Any, str | None]]:
    """Yield answers: what they are, the text, whether it ended, the parts of the message, and its fault."""
    syntax, call = SYNTAX[name], expected_call(name)
    say = "hello".join(syntax.answer)
    do = syntax.call[0] + syntax.arguments + syntax.call[1]
    yield "an answer", say, True, {"answer": ("hello",)}, None
    yield "a call", do, True, {"tool_calls": (call,)}, None
    yield "an answer that is cut off", say[: len(say) - 2], False, {"answer": ("hel",)}, None
    yield "nothing", "", True, {}, NO_ANSWER
    broken = syntax.call[0] + syntax.broken + syntax.call[1]
    if name in ("GLM", "Qwen (calls in XML)"):  # the template finds no argument in it
        yield "a malformed call", broken, True, {"tool_calls": (call.replace('{"a": "1"}', "{}"),)}, None
    else:
        yield "a malformed call", broken, True, {}, UNPARSED
    if name not in ("Llama 3",):  # whose calls have no marker
        cut = do[: len(syntax.call[0]) + 3]
        yield "a call that is cut off", cut, False, None, None
    if name not in ONE_CALL:
        yield "two calls", do + syntax.between + do, True, {"tool_calls": (call, call)}, None
    if syntax.thought is not None:
        thought = "hm".join(syntax.thought) + syntax.after_thought
        yield "reasoning and an answer", thought + say, True, {"reasoning": ("hm",), "answer": ("hello",)}, None
        yield "reasoning and a call", thought + do, True, {"reasoning": ("hm",), "tool_calls": (call,)}, None
        yield "reasoning alone", thought, True, {}, NO_ANSWER
        yield "reasoning that is cut off", syntax.thought[0] + "hm", False, {}, NO_ANSWER


CASES = [(name, *case) for name in SYNTAX for case in cases(name)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "answer", "finished", "parts", "fault"), [(c[0], *c[2:]) for c in CASES],
                         ids=[f"{case[0]}: {case[1]}" for case in CASES])  # fmt: skip
def test_parts_of_an_answer(name: str, answer: str, finished: bool, parts: Any, fault: str | None) -> None:
    draw = judged(name, answer, finished=finished)
    if parts is None:
        assert draw.fault in (UNPARSED, CUT_OFF, NO_ANSWER)
    else:
        assert (dict(draw.parts or ()), draw.fault) == (parts, fault)


ANY = Part(message="answer", missing="pass")


@pytest.mark.slow
@pytest.mark.parametrize("name", SYNTAX)
def test_nothing_that_is_banned_is_in_a_message(name: str) -> None:
    world = world_of(name)
    rule = ~Regex("bad") & Regex("^x*$", on=ANY)  # a rule on a part, and one on everything that is returned
    guarded = GuardedGenerator(world.pipeline(), rule, budget=Budget(max_attempts=None), batch_size=64)
    records = guarded(CHAT, **world.settings, num_return_sequences=200, seed=1)
    messages = [record["generated_text"][-1] for record in records]
    assert not [message for message in messages if any("bad" in text for text in held(message))]
    kinds = Counter(kind for message in messages for kind, value in message.items() if value)
    assert kinds["tool_calls"]
    assert kinds["content"] or name in ("Harmony", "Llama 3")
    assert not [m for m in messages if m.get("content", "").strip("x")]
    if SYNTAX[name].thought is not None:
        assert kinds["reasoning_content"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SYNTAX)
def test_early_verdicts_end_attempts_that_would_have_been_rejected_and_no_others(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(name)
    rule = ~Regex("bad", on=ANY) & JSONSchema({"required": ["function"]}, on=Part(message="tool_calls", missing="pass"))

    def texts() -> tuple[Any, int]:
        guarded = GuardedGenerator(world.pipeline(), rule, budget=Budget(max_attempts=None), batch_size=64)
        (outcome,) = guarded.run(CHAT, **world.settings, num_return_sequences=200, seed=1)
        return [draw.token_ids for draw in outcome.draws], outcome.report.usage.tokens

    early, fewer = texts()
    monkeypatch.setattr(MessageMonitor, "verdict", Verdict.UNDECIDED)
    late, more = texts()
    assert early == late
    assert fewer < more


def test_an_unknown_family_is_refused() -> None:
    world = fixtures_models.with_template(world_of("GLM"))
    del world.tokenizer.response_template
    assert family_of(world.tokenizer) is None
    guarded = GuardedGenerator(world.pipeline(), Regex("a", on="answer"))
    with pytest.raises(UsageError, match=r"no known model family .*set tokenizer.response_template"):
        guarded(CHAT, **world.settings)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", SYNTAX)
def test_a_call_that_comes_piece_by_piece_is_read_as_one(name: str, size: int) -> None:
    """The name of the tool may be in another piece than the rest of the marker."""
    syntax, world = SYNTAX[name], world_of(name)
    world.tokenizer.response_template = next(family.template for family in FAMILIES if family.name == name)
    start = MessageRegions.begin(world.tokenizer, "x" + syntax.anchor)
    right = "" if syntax.thought is None else "hm".join(syntax.thought) + syntax.after_thought
    right += syntax.call[0] + syntax.arguments + syntax.call[1]
    twice = right + syntax.between + syntax.call[0] + syntax.arguments + syntax.call[1]
    answers = [right] if name in ONE_CALL else [right, twice]

    def verdicts(answer: str, tool: str, **options: Any) -> list[Verdict]:
        monitor = ToolCalls([{"name": tool}], **options).monitor_in(Context(message=start))
        each = []
        for place in range(0, len(answer), size):
            monitor = monitor.read(answer[place : place + size])
            each.append(monitor.verdict)
        return [*each, monitor.read(syntax.end).verdict]

    for answer in answers:
        assert message_of_pieces(start, answer, size) == message_of_pieces(start, answer, len(answer))
        assert {*verdicts(answer, "f")} == {Verdict.UNDECIDED}
        # The end of a list is known only with the end of the message.
        assert (verdicts(answer, "g")[-1] is Verdict.VIOLATED) is (name != "Mistral (lists of calls)")
    if name not in ONE_CALL:
        assert verdicts(twice, "f", parallel=False)[-1] is Verdict.VIOLATED


def message_of_pieces(start: Any, answer: str, size: int) -> Any:
    state, _ = start
    for place in range(0, len(answer), size):
        state, _ = state.read(answer[place : place + size])
    return state.message()


def test_the_newer_form_of_deepseek() -> None:
    newer = '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a":1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    assert dict(judged("DeepSeek", newer).parts or ()) == {"tool_calls": (expected_call("DeepSeek"),)}
