"""Answers parsed into messages: the whole message is judged, and partial messages are never returned."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from guardwrap import Budget, BudgetExhausted, GuardedGenerator, JSONSchema, Regex
from guardwrap.errors import UsageError
from guardwrap.models.parsed_message import CUT_OFF, NO_ANSWER, UNPARSED, message_text, written_fields
from guardwrap.models.task_calls import call_of
from guardwrap.outcomes import Draw
from guardwrap.testing import World, goodness_of_fit, table_world
from tests import fixtures_models

CHAT = [{"role": "user", "content": "a"}]
BAN = ~Regex("1")


@cache
def enumerated() -> tuple[World, dict[tuple[int, ...], float]]:
    world = thinking()
    return world, world.law()


def thinking() -> World:
    """A world of answers such as ``(1)a[1]``: reasoning in ( ), calls that are JSON in [ ], and content."""
    return fixtures_models.with_template(table_world(1, letters="a12()[]", max_new_tokens=4))


def region_of(text: str) -> str:
    """Return the region in which an answer ends, without the parser: "(" reasoning, "[" a call, "" content."""
    region = ""
    for letter in text:
        if not region and letter in "([":
            region = letter
        elif region + letter in ("()", "[]"):
            region = ""
    return region


def parts_of(raw: str) -> dict[str, list[str]]:
    """Split an answer into the pieces of its parts, letter by letter."""
    pieces: dict[str, list[str]] = {"": [""], "(": [], "[": []}
    region = ""
    for letter in raw.replace("<end>", "$"):
        if not region and letter in "([":
            region = letter
            pieces[region].append("")
        elif region + letter in ("()", "[]", "$"):
            region = ""
            pieces[""].append("")
        else:
            pieces[region][-1] += letter.replace("$", "<end>")
    return pieces


def whole_message(world: World, raw: str) -> dict[str, Any] | None:
    """Return the message that an answer is, with all pieces of a text, or None if it cannot be parsed."""
    try:
        message: dict[str, Any] = world.tokenizer.parse_response(raw, prefix="a")
    except ValueError:
        return None
    pieces = parts_of(raw)
    for name, region in (("content", ""), ("reasoning_content", "(")):
        message[name] = "\n".join(piece for piece in map(str.strip, pieces[region]) if piece)
    return message


def held(value: Any) -> Iterator[str]:
    """Yield all text in a message."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from (str(key), *held(item))
    elif isinstance(value, list):
        for item in value:
            yield from held(item)
    else:
        yield str(value)


def why_not(world: World, ids: tuple[int, ...], *, content_alone: bool = False) -> str | None:
    """Return why an answer violates the ban; ``content_alone`` is the negative control that checks too little."""
    raw = world.tokenizer.decode(ids)
    message = whole_message(world, raw)
    if message is None:
        return UNPARSED
    if content_alone:
        return "banned" if "1" in message.get("content", "") else None
    if not message.get("content") and not message.get("tool_calls"):
        return NO_ANSWER
    if ids[-1] != world.tokenizer.eos_token_id and region_of(raw):
        return CUT_OFF
    return "banned" if any("1" in text for text in held(message)) else None


def gold(world: World, law: Mapping[tuple[int, ...], float], **rule: Any) -> dict[tuple[int, ...], float]:
    kept = {ids: p for ids, p in law.items() if why_not(world, ids, **rule) is None}
    return {ids: p / sum(kept.values()) for ids, p in kept.items()}


def test_messages_are_drawn_exactly() -> None:
    world, law = enumerated()
    guarded = GuardedGenerator(world.pipeline(), BAN, budget=Budget(max_attempts=None), batch_size=64)
    outcome = guarded.run(CHAT, **world.settings, num_return_sequences=2000, seed=3)[0]
    drawn = [draw.token_ids for draw in outcome.draws]
    assert goodness_of_fit(drawn, gold(world, law)) > 1e-3
    assert goodness_of_fit(drawn, gold(world, law, content_alone=True)) < 1e-9  # negative control


def test_every_reason_is_counted_under_its_name() -> None:
    world, _ = enumerated()
    guarded = GuardedGenerator(world.pipeline(), BAN, batch_size=64)
    attempts = guarded.attempts(CHAT, 500, **world.settings, seed=0)[0]
    expected = Counter(why_not(world, attempt.draw.token_ids) for attempt in attempts)
    assert set(expected) == {UNPARSED, NO_ANSWER, CUT_OFF, "banned", None}
    with pytest.raises(BudgetExhausted) as raised:
        guarded(CHAT, **world.settings, num_return_sequences=500, seed=0, budget=Budget(max_attempts=500))
    report = raised.value.report
    assert report.rejections == {BAN.title: expected["banned"]} | {
        reason: expected[reason] for reason in (UNPARSED, NO_ANSWER, CUT_OFF)
    }
    assert report.accepted == expected[None]
    assert any("the whole message was judged" in note for note in report.notes)


def test_the_note_says_whether_a_rule_judged_the_whole_message() -> None:
    world, _ = enumerated()
    part, other = Regex("", on="answer"), ~Regex("x", on="tool_calls")
    for rule, whole in ((BAN, True), (part, False), (part & other, False), (part & BAN, True), (~part | BAN, True)):
        guarded = GuardedGenerator(world.pipeline(), rule, budget=Budget(max_attempts=200))
        notes = " ".join(guarded.run(CHAT, **world.settings, seed=0)[0].report.notes)
        assert ("the whole message was judged" in notes, "each rule judged its part" in notes) == (whole, not whole)


def test_no_message_holds_what_is_banned() -> None:
    world, _ = enumerated()
    guarded = GuardedGenerator(world.pipeline(), BAN, budget=Budget(max_attempts=None), batch_size=64)
    records = guarded(CHAT, **world.settings, num_return_sequences=200, seed=1)
    messages = [record["generated_text"][-1] for record in records]
    assert any(message.get("tool_calls") for message in messages)
    assert any(message.get("reasoning_content") for message in messages)
    assert not [message for message in messages if any("1" in text for text in held(message))]
    texts = guarded.run(CHAT, **world.settings, num_return_sequences=200, seed=1)[0].texts
    assert list(texts) == [message_text(written_fields(world.tokenizer, message)) for message in messages]


def drawn(world: World, answer: str, finished: bool = True, given: Any = CHAT, **options: Any) -> Draw:
    """Expected results for answers, spelled out letter by letter."""
    call = call_of(world.pipeline(), options)
    prompt = next(call.prompts(enumerate(call.read_prompts(given).prompts), 1))
    ids = world.tokenizer(answer)["input_ids"]
    return call.draw(prompt, [*ids, world.tokenizer.eos_token_id] if finished else ids, finished)


@pytest.mark.parametrize(
    ("answer", "finished", "text", "fault"),
    [
        ("(1)a", True, "1\na", None),
        ("[1]", True, '[{"type": "function", "function": 1}]', None),
        ("a(1)[1]", True, '1\na\n[{"type": "function", "function": 1}]', None),
        ("aa", False, "aa", None),
        ("(1", True, "1<end>", NO_ANSWER),
        ("(1", False, "1", NO_ANSWER),
        ("", True, "", NO_ANSWER),
        ("a(1", False, "1\na", CUT_OFF),
        ("a[1", False, 'a\n[{"type": "function", "function": 1}]', CUT_OFF),
        ("[a]", True, "[a]<end>", UNPARSED),
        ("[", False, "[", UNPARSED),
    ],
)
def test_what_becomes_of_an_answer(answer: str, finished: bool, text: str, fault: str | None) -> None:
    world = thinking()
    draw = drawn(world, answer, finished)
    assert (draw.text, draw.fault) == (text, fault)


def test_a_ban_holds_for_what_json_spells_in_another_way() -> None:
    world = fixtures_models.with_template(table_world(letters='a1()[]"\\n', max_new_tokens=9))
    said = drawn(world, '["a\\na\\"a"]').text
    calls = [{"type": "function", "function": 'a\na"a'}]
    assert said == json.dumps(calls) + '\na\na"a'
    assert not (~Regex('a"a')).accepts(said)
    assert not (~Regex("a\na")).accepts(said)


def test_half_a_surrogate_pair_is_no_message() -> None:
    world = fixtures_models.with_template(table_world(letters='a1()[]"\\ud80', max_new_tokens=9))
    assert drawn(world, '["\\ud800"]').fault == UNPARSED


@pytest.mark.parametrize("given", ["a", CHAT])
def test_an_answer_that_is_not_parsed_ends_before_the_token_that_ended_it(given: Any) -> None:
    world, _ = enumerated()
    whole = Regex("[1()]+", match="fullmatch")
    guarded = GuardedGenerator(world.pipeline(), whole, budget=Budget(max_attempts=5000), batch_size=64)
    options = {} if isinstance(given, str) else {"return_full_text": False}
    records = guarded(given, **world.settings, num_return_sequences=20, seed=0, **options)
    before = given if isinstance(given, str) else ""
    texts = [record["generated_text"].removeprefix(before) for record in records]
    assert all(map(whole.accepts, texts))
    assert any(len(text) < world.max_new_tokens for text in texts)
    (outcome,) = guarded.run(given, **world.settings, num_return_sequences=20, seed=0, **options)
    assert list(outcome.texts) == texts
    assert not any("message" in note for note in outcome.report.notes)
    kept = guarded.attempts(given, 200, **world.settings, seed=0, skip_special_tokens=False, **options)[0]
    assert any(attempt.draw.text.endswith("<end>") for attempt in kept)


def test_json_passes_where_answers_are_not_parsed() -> None:
    world, _ = enumerated()
    guarded = GuardedGenerator(world.pipeline(), JSONSchema({"type": "integer"}), batch_size=64)
    for given in ("a", CHAT):
        (record,) = guarded(given, **world.settings, seed=0, return_full_text=False)
        assert isinstance(json.loads(record["generated_text"]), int)


def test_a_message_that_was_begun_is_parsed_only_if_a_setting_says_so() -> None:
    world = thinking()
    begun = [*CHAT, {"role": "assistant", "content": "a"}]
    assert drawn(world, "(1)a", given=begun).text == "(1)a"
    assert drawn(world, "(1)a", given=begun, continue_final_message=False).text == "1\na"
    assert drawn(world, "(1)a", continue_final_message=True).text == "(1)a"


def test_reasoning_that_the_prompt_began_is_judged_as_reasoning() -> None:
    world = thinking()
    world.tokenizer.chat_template = world.tokenizer.chat_template.replace("{{ m['content'] }}", "{{ m['content'] }}(")
    assert drawn(world, "1", finished=False).fault == NO_ANSWER
    assert drawn(world, "1)a").text == "1\na"
    assert drawn(world, "1)a(", finished=False).fault == CUT_OFF


def test_arguments_are_judged_as_the_tools_schema_casts_them() -> None:
    world = fixtures_models.with_template(table_world(letters='a1()[]"{}:,rguments0.', max_new_tokens=9))
    world.tokenizer.response_template["fields"]["tool_calls"]["transform"]["function"] = {
        "name": "{content.a}",
        "arguments": "{content.arguments}",
    }
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "a", "parameters": parameters}}]
    said = drawn(world, '[{"a":"a","arguments":{"a":"1.0"}}]', tools=tools).text
    if '"a": "1.0"' in said:
        pytest.skip("this release of transformers does not cast what a transform fills in")
    assert '"arguments": {"a": 1}' in said


def test_a_template_that_cannot_be_used_is_refused() -> None:
    world = thinking()
    world.tokenizer.response_template["fields"]["content"]["content"] = "yaml"
    guarded = GuardedGenerator(world.pipeline(), BAN)
    with pytest.raises(UsageError, match="response_template cannot be used: Field 'content'"):
        guarded(CHAT, **world.settings)


def test_messages_beside_images_are_judged_whole() -> None:
    pipe = fixtures_models.llava()
    pipe.tokenizer.response_template = fixtures_models.template(".", "cd", "ef", content="text")
    banned = ~Regex("a")
    guarded = GuardedGenerator(pipe, banned, seed=1, budget=Budget(max_attempts=5000))
    content = [{"type": "image", "image": fixtures_models.picture()}, {"type": "text", "text": "b"}]
    chat = [{"role": "user", "content": content}]
    records = guarded(chat, do_sample=True, max_new_tokens=6, num_return_sequences=20)
    messages = [record["generated_text"][-1] for record in records]
    assert any(message.get("reasoning_content") for message in messages)
    assert any(message.get("tool_calls") for message in messages)
    said = [[value for name, value in message.items() if name != "role"] for message in messages]
    assert not [values for values in said if any("a" in text for text in held(values))]
    raw = guarded(chat, do_sample=True, max_new_tokens=6, num_return_sequences=20, return_full_text=False)
    assert not any("<end>" in record["generated_text"] for record in raw)
