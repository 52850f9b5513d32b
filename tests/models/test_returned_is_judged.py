"""What is returned is what was judged: every family of templates, with texts before, between and after each part.

Each answer is a row of pieces: texts, thoughts, calls, white space, and markers that stand where they should not.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import pytest
import transformers
from packaging import version

from guardwrap import Budget, Part, Regex, ToolCalls
from guardwrap.constraints import Constraint
from guardwrap.constraints.prefix_reader import PrefixReader
from guardwrap.constraints.stop_strings import stopped
from guardwrap.constraints.views import view
from guardwrap.models import calls, parsed_message, regions
from guardwrap.models.calls import Call
from guardwrap.models.parsed_message import NO_ANSWER, UNPARSED, answer_message
from guardwrap.models.prepare import PreparedPrompt
from guardwrap.models.templates import FAMILIES
from guardwrap.outcomes import EXACT, Draw, Outcome, Report, Usage
from guardwrap.serve.parsed_request import ParsedRequest
from guardwrap.serve.replies import Reply, ResponsesReply
from guardwrap.testing import World
from tests.models.test_templates import CHAT, SYNTAX, Syntax, world_of

REPORT = Report(EXACT, "rejection", 1, 1, 1, "complete", Usage(1, 1), Budget(), None, {}, "0")
OWN: dict[str, dict[str, Any]] = {
    "no strip": {"content": {"content_args": {"strip": False}}},
    "own join": {"content": {"repeats": True, "join": " | "}},
    "a list of texts": {"content": {"repeats": True}},
    "a default": {"tool_calls": {"repeats": False}},
    "two kinds of thoughts": {"thinking": {"open": "<plan>", "close": "</plan>", "content": "text"}},
}
"""Changes of the template of Qwen, for tokenizers that have a ``response_template`` of their own."""

MORE = ["hello", " hi \n", " \n ", "<plan>", "</plan>", "a", "b", "|"]
ANY = {part: Part(message=part, missing="pass") for part in ("answer", "reasoning", "tool_calls")}
RULES: list[Constraint] = [
    *(rule for part in ANY.values() for rule in (~Regex("hi", on=part), Regex("hello", on=part))),
    *(Regex(r"hello(\nhi)*", on=on, match="fullmatch") for on in ("answer", "reasoning")),
    *(~Regex(r"hello\nhi", on=on) for on in ("answer", "reasoning")),
    ~Regex("hi"),
    Regex("hello"),
    ToolCalls([{"name": "f"}]),
    ToolCalls([{"name": "f"}], choice="required", parallel=False),
]


@dataclass(frozen=True)
class Writer:
    """A family: its syntax, its call, and a prompt."""

    syntax: Syntax
    world: World
    call: Call
    prompt: PreparedPrompt
    own: bool

    def pieces(self) -> dict[str, str]:
        """Return what answers are made of."""
        syntax = self.syntax
        call = syntax.call[0] + syntax.arguments + syntax.call[1]
        thought = syntax.thought or ("", "")
        pieces = {
            "text": "hello".join(syntax.answer),
            "text with white space": " hi \n".join(syntax.answer),
            "white space": " \n ",
            "call": call,
            "broken call": syntax.call[0] + syntax.broken + syntax.call[1],
            "call that ends early": syntax.call[0] + syntax.arguments[:2],
        }
        if syntax.thought:
            pieces |= {
                "thought": "hello".join(thought) + syntax.after_thought,
                "thought with white space": " hi \n".join(thought) + syntax.after_thought,
                "empty thought": "".join(thought) + syntax.after_thought,
                "nested thought": thought[0] + "hi".join(thought) + thought[1],
                "opening marker": thought[0],
                "closing marker": thought[1],
            }
        if self.own:
            pieces["plan"] = "<plan>hi</plan>"
        return pieces

    def ids(self, answer: str) -> list[int]:
        return [*self.world.tokenizer(answer)["input_ids"]]


@cache
def writer(name: str) -> Writer:
    family, change = name if name in SYNTAX else "Qwen or Hermes", OWN.get(name)
    world = world_of(family, more=MORE)
    if change is not None:
        template = next(each.template for each in FAMILIES if each.name == family)
        fields = {key: {**value, **change.get(key, {})} for key, value in template["fields"].items()}
        fields |= {key: value for key, value in change.items() if key not in fields}
        defaults = {**template["defaults"], **({"content": ""} if name == "a default" else {})}
        world.tokenizer.response_template = {**template, "defaults": defaults, "fields": fields}
    call = Call.read(world.pipeline(), {}).with_parts("answer")
    (prompt,) = call.prompts(enumerate(call.read_prompts(CHAT).prompts), 1)
    return Writer(SYNTAX[family], world, call, prompt, change is not None)


NAMES = [*SYNTAX, *OWN]
if version.parse(transformers.__version__) < version.parse("5.24"):
    NAMES.remove("own join")  # its response templates have none yet, and say so


def answers(name: str, length: int = 3) -> list[tuple[str, bool]]:
    """Return every row of so many pieces, ended by the model or cut off."""
    pieces = [*writer(name).pieces().values()]
    return [("".join(row), ended) for row in product(pieces, repeat=length) for ended in (True, False)]


def sample(name: str, count: int) -> list[tuple[str, bool]]:
    """Return some of these answers, the same in every run."""
    rows = answers(name)
    return random.Random(name).sample(rows, min(count, len(rows)))


def draw_of(name: str, answer: str, ended: bool, stops: Sequence[str] = ()) -> Draw:
    own = writer(name)
    ids = own.ids(answer)
    return own.call.draw(own.prompt, [*ids, 0] if ended else ids, ended, stops=stops)


def regions_of(name: str, answer: str, ended: bool) -> dict[str, list[Any]] | None:
    """Return the value of every region by field, as transformers' own parser reports them; None if it raises."""
    own = writer(name)
    prompt = own.world.tokenizer.decode(own.prompt.law.prompt_ids)
    try:
        parser = own.call.pipe.tokenizer.get_response_parser(prefix=prompt)
        events = [*parser.initial_events, *parser.feed(answer + (own.syntax.end if ended else ""))]
        events += parser.finalize()[1]
    except ValueError:
        return None
    values: dict[str, list[Any]] = {}
    for event in events:
        if event["type"] == "region_close":
            values.setdefault(event["field"], []).append(event["value"])
    return values


def differences(name: str, answer: str, ended: bool, stops: Sequence[str] = ()) -> Iterator[str]:
    """Yield where something that is returned is not what was judged."""
    draw = draw_of(name, answer, ended, stops)
    if draw.message is None:
        if draw.fault is None:
            yield "no message and no fault"
        return
    message, own = json.loads(draw.message), writer(name)
    written = {key: value for key, value in message.items() if key != "role"}
    strings = {part: view(draw, part) or [] for part in ANY}  # type: ignore[arg-type]
    texts = {"answer": ("content",), "reasoning": ("reasoning_content", "thinking")}
    for part, names in texts.items():
        returned = [value for key, value in written.items() if key in names and value]
        returned = [text for value in returned for text in (value if isinstance(value, list) else [value])]
        if strings[part] != (["\n".join(returned)] if returned else []):
            yield f"{part}: {strings[part]} was judged, {returned} is returned"
    called = written.get("tool_calls", [])
    if [json.loads(text) for text in strings["tool_calls"]] != (called if isinstance(called, list) else [called]):
        yield "tool calls"
    lines = draw.text.split("\n")
    for value in written.values():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        shown = text.split("\n")
        if text and not any(lines[at : at + len(shown)] == shown for at in range(len(lines))):
            yield f"{text!r} is not in the text that rules without a part judge"
    (record,) = own.call.records(own.prompt, [draw], [])
    if record["generated_text"][-1] != message:
        yield "the record"
    if not stops and own.call.family is not None:  # nothing that the model wrote in a region is lost
        values = regions_of(name, answer, ended) or {}
        for key, key_values in values.items():
            if key == "tool_calls":
                expected: Any = [c for v in key_values for c in (v if isinstance(v, list) else [v])]
            else:
                expected = "\n".join(text for text in key_values if text)
            if message.get(key, type(expected)()) != expected:
                yield f"{key}: the model wrote {expected!r}"
    yield from http_differences(draw, strings, tuple(stops))


def http_differences(draw: Draw, strings: Mapping[str, Any], stops: tuple[str, ...]) -> Iterator[str]:
    """Yield where a reply, a stream, or a reply of the Responses API differs from what was judged."""
    outcome, request = Outcome(CHAT, (draw.text,), (draw,), REPORT), ParsedRequest("m", [CHAT], {}, stops=stops)
    expected = {part: "".join(strings[part]) for part in ("answer", "reasoning")}
    called = [json.loads(text)["function"] for text in strings["tool_calls"]]

    def same(where: str, answer: str, reasoning: str, functions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        made = [{"name": each["name"], "arguments": json.loads(each["arguments"])} for each in functions]
        if (answer, reasoning, made) != (expected["answer"], expected["reasoning"], called):
            yield f"{where}: {answer!r}, {reasoning!r}, {made}"

    for where, reply in (
        ("a message", answer_message(draw, stops)),
        ("a reply", Reply(request).whole([outcome], 1)["choices"][0]["message"]),
    ):
        functions = [each["function"] for each in reply.get("tool_calls", ())]
        yield from same(where, reply["content"] or "", reply.get("reasoning_content", ""), functions)
    deltas = [chunk["choices"][0]["delta"] for chunk in Reply(request).text(draw, 0, 0)]
    functions = [each["function"] for delta in deltas for each in delta.get("tool_calls", ())]
    streamed = ["".join(delta.get(key) or "" for delta in deltas) for key in ("content", "reasoning_content")]
    yield from same("a stream", streamed[0], streamed[1], functions)
    events = list(ResponsesReply(request, len).text(draw, 0, 0))
    pieces = {kind: "".join(each["delta"] for each in events if each["type"] == f"response.{kind}.delta")
              for kind in ("output_text", "reasoning_text")}  # fmt: skip
    items = [each["item"] for each in events if each["type"] == "response.output_item.done"]
    functions = [each for each in items if each["type"] == "function_call"]
    yield from same("a stream of the Responses API", pieces["output_text"], pieces["reasoning_text"], functions)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_what_is_returned_is_what_was_judged(name: str) -> None:
    assert not [(answer, found) for answer, ended in sample(name, 200) for found in differences(name, answer, ended)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stop", ["\n", "h", " hi", "f"])
def test_a_message_ends_before_a_stop_string(name: str, stop: str) -> None:
    """A line break between two fields is none, and neither is what a call's JSON spells in another way."""
    for answer, ended in sample(name, 60):
        draw = draw_of(name, answer, ended, [stop])
        assert not [*differences(name, answer, ended, [stop])]
        before, found, _ = answer.partition(stop)
        expected = draw_of(name, before, False) if found else draw_of(name, answer, ended)
        if expected.fault is None:
            assert (draw.message, draw.text) == (expected.message, expected.text)
        assert (draw.fault in (UNPARSED, NO_ANSWER)) is (expected.fault in (UNPARSED, NO_ANSWER))


def unsound(name: str, answer: str, ended: bool, stops: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield rules whose verdict on a prefix, token by token, is not that on the whole."""
    own = writer(name)
    ids = [*own.ids(answer), *([0] if ended else [])]
    texts = [own.world.tokenizer.decode(ids[:end]).rstrip("\ufffd") for end in range(1, len(ids) + 1)]
    draw = draw_of(name, answer, ended, stops)
    for rule in RULES:
        rule = stopped(rule, stops)
        holds = draw.fault is None and rule.check([draw])[0]
        reader = PrefixReader(rule).after(own.call.context(own.prompt))
        reading = reader.start
        for text in texts:
            reading = reader.read(reading, text)
            if reading.blame is not None:
                if holds:
                    yield f"{rule.title}: violated by {text!r}"
                break
            if reading.undecided is None and not holds and draw.fault is None:
                yield f"{rule.title}: satisfied by {text!r}"
                break


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_verdicts_on_prefixes_hold_for_the_whole(name: str) -> None:
    assert not [(answer, found) for answer, ended in sample(name, 12) for found in unsound(name, answer, ended)]
    rows = sample(name, 18)[12:]
    assert not [(row, found) for row in rows for stop in ("\n", " hi") for found in unsound(name, *row, (stop,))]


@pytest.mark.parametrize("broken", ["the last piece alone", "a reply from another field", "stop strings that are kept"])
def test_negative_controls(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stops: tuple[str, ...] = ()
    if broken == "the last piece alone":
        monkeypatch.setattr(regions, "_together", lambda values: values[-1])
    elif broken == "a reply from another field":
        right = parsed_message.message_parts
        monkeypatch.setattr(calls, "message_parts", lambda fields: right({**fields, "content": "other"}))
    else:
        stops = ("hi",)
        monkeypatch.setattr(calls, "cut", lambda text, _: text)
    name = "Qwen or Hermes"
    rows = sample(name, 200)
    if stops:
        assert any("hi" in str(draw_of(name, answer, True, stops).message) for answer, _ in rows)
    else:
        assert [found for answer, ended in rows for found in differences(name, answer, ended)]
