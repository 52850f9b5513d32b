"""Outcomes as OpenAI's response objects."""

import dataclasses
import json

import pytest

from guardwrap import Budget
from guardwrap.outcomes import EXACT, Closeness, Distribution, Draw, Obstacle, Outcome, Remedy, Report, Usage
from guardwrap.serve.error_responses import ErrorResponse
from guardwrap.serve.parsed_request import ParsedRequest
from guardwrap.serve.replies import Reply, event, require_complete

REPORT = Report(
    EXACT,
    "rejection",
    1,
    2,
    2,
    "complete",
    Usage(5, 30),
    Budget(),
    None,
    {"r": 3},
    "0",
)
NOTHING = Distribution(Closeness.NOTHING)
DRAWS = (Draw("p", (1, 2, 0), "one", True), Draw("p", (1, 2, 3), "two\nSTOP", False))


def outcome(draws=DRAWS, report=REPORT):
    return Outcome("p", tuple(draw.text for draw in draws), draws, report)


def reply(chat=True, **more):
    return Reply(ParsedRequest("tiny", ["p"], {}, n=2, **more), chat, "1", 2)


def test_a_chat():
    whole = reply().whole([outcome()], 7)
    assert whole["id"] == "chatcmpl-1"
    assert [choice["message"]["content"] for choice in whole["choices"]] == ["one", "two\nSTOP"]
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["stop", "length"]
    assert whole["usage"] == {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}
    assert whole["guardwrap"] == REPORT.to_dict() | {"said": str(REPORT)}
    assert json.loads(json.dumps(whole, allow_nan=False)) == whole


def test_stop_strings_are_cut_off():
    whole = reply(chat=False, stops=("\nST",)).whole([outcome(), outcome()], 7)
    assert [choice["text"] for choice in whole["choices"]] == ["one", "two"] * 2
    assert [choice["finish_reason"] for choice in whole["choices"]] == ["stop"] * 4
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert whole["guardwrap"] == [REPORT.to_dict() | {"said": str(REPORT)}] * 2


def test_pieces_have_the_numbers_of_the_whole():
    made = reply(stops=("\nST",))
    text, ends = list(made.text(DRAWS[1], 1, 1)), list(made.ends(outcome(), 1))
    assert [piece["choices"][0]["index"] for piece in text + ends] == [3, 3, 2, 3]
    assert [piece["choices"][0]["delta"] for piece in text] == [
        {"role": "assistant", "content": ""},
        {"content": "two"},
    ]
    assert [("guardwrap" in piece) for piece in text + ends] == [False, False, True, True]
    assert not [piece for piece in text + ends if "usage" in piece]
    with_usage = [*reply(usage=True).text(DRAWS[0], 0, 0), *reply(usage=True).ends(outcome(), 0)]
    assert {piece["usage"] for piece in with_usage} == {None}
    assert [piece["choices"][0]["text"] for piece in reply(chat=False).text(DRAWS[0], 0, 0)] == ["one"]


def test_an_event_is_one_line_whatever_the_text():
    sent = event({"text": "a\n\ndata: x\r\u2028\ud800"})
    assert sent.startswith(b"data: ")
    assert sent.endswith(b"\n\n")
    assert b"\n" not in sent[:-2]
    assert sent.isascii()


def test_what_is_not_complete_is_refused_with_its_report():
    short = Report(NOTHING, "rejection", 1, 2, 1, "max_attempts", Usage(5, 30), Budget(), None, {"r": 5}, "0")
    with pytest.raises(ErrorResponse) as caught:
        require_complete(outcome(DRAWS[:1], short), ParsedRequest("tiny", ["p"], {}))
    assert (caught.value.status, caught.value.code) == (422, "max_attempts")
    body = caught.value.body()
    assert body["error"]["guardwrap"]["usage"]["attempts"] == 5
    assert "one" not in json.dumps(body)
    assert require_complete(outcome(), ParsedRequest("tiny", ["p"], {}))


@pytest.mark.parametrize(
    ("ended", "remedies", "most", "fields"),
    [
        ("max_attempts", ["mask", "budget", "constraint", "prompt"], None, {"masked"}),
        ("max_attempts", ["budget", "constraint", "prompt"], None, {"weaker", "describes"}),
        ("max_attempts", ["budget", "constraint"], None, {"weaker"}),
        ("max_seconds", ["length", "mask", "budget", "constraint"], 8, {"masked", "max_tokens"}),
        ("max_seconds", ["length", "budget", "constraint"], 7, {"weaker"}),
        ("impossible", ["texts", "constraint", "prompt"], None, {"top_k", "weaker", "describes"}),
        ("timeout", ["time"], None, {"timeout"}),
        ("deterministic", ["sampling"], None, {"temperature"}),
    ],
)
def test_the_error_names_the_fields_to_change(ended, remedies, most, fields):
    counts = (NOTHING, "rejection", 1, 2, 0, ended, Usage(5, 30), Budget(timeout=2), None, {"r": 5}, "0")
    request = ParsedRequest("tiny", ["p"], {"max_new_tokens": 7}, most_tokens=most)
    report = Report(*counts, remedies=tuple(map(Remedy, remedies)))
    with pytest.raises(ErrorResponse) as caught:
        require_complete(outcome((), report), request)
    _, _, named = caught.value.message.partition("in this request: ")
    names = ("masked", "max_tokens", "top_k", "weaker", "describes", "timeout", "temperature")
    assert {field for field in names if field in named} == fields
    assert ("above 7" in named) is ("max_tokens" in fields)
    own_name = dataclasses.replace(request, length_field="max_completion_tokens", prompt_field="input")
    with pytest.raises(ErrorResponse) as caught:
        require_complete(outcome((), report), own_name)
    assert ("max_completion_tokens above 7" in caught.value.message) is ("max_tokens" in fields)


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        (("top_k=50",), ['"top_k": -1']),
        (("top_p=0.9", "min_p=0.1"), ['"top_p": 1']),
        (("max_new_tokens=7",), ["a max_tokens above 7"]),
        (("bad_words_ids",), []),
    ],
)
def test_the_error_begins_with_the_settings_that_rule_all_texts_out(settings, fields):
    counts = (NOTHING, "rejection", 1, 2, 0, "impossible", Usage(256, 256), Budget(), None, {"r": 256}, "0")
    report = Report(*counts, obstacle=Obstacle(settings, 0.0031), remedies=(Remedy.SETTINGS, Remedy.CONSTRAINT))
    with pytest.raises(ErrorResponse) as caught:
        require_complete(outcome((), report), ParsedRequest("tiny", ["p"], {"max_new_tokens": 7}))
    assert caught.value.code == "impossible"
    begins = "no text from 256 attempts: no text that these settings allow satisfies the constraint: "
    assert caught.value.message.startswith(f"{begins}{' and '.join(settings)} ")
    assert "probability 0.0031 without" in caught.value.message
    _, _, named = caught.value.message.partition("in this request: ")
    assert named == ", ".join([*fields, "a weaker constraint"])
    assert caught.value.body()["error"]["guardwrap"]["obstacle"]["settings"] == list(settings)


def test_settings_that_leave_only_white_space_are_named_too():
    counts = (NOTHING, "rejection", 1, 2, 0, "max_attempts", Usage(5, 30), Budget(), None, {"r": 5}, "0")
    remedies = (Remedy.SETTINGS, Remedy.MASK, Remedy.BUDGET)
    report = Report(*counts, obstacle=Obstacle(("top_k=50",), 0.0031, textless=True), remedies=remedies)
    with pytest.raises(ErrorResponse) as caught:
        require_complete(outcome((), report), ParsedRequest("tiny", ["p"], {}))
    assert "the budget of attempts is spent: top_k=50 leaves out all possible first" in caught.value.message
    _, _, named = caught.value.message.partition("in this request: ")
    assert named.startswith('"top_k": -1, "guardwrap": {"proposal": "masked"')


def contents(chunks):
    choices = [chunk["choices"][0] for chunk in chunks]
    return [choice["delta"].get("content") if "delta" in choice else choice["text"] for choice in choices]


def test_the_pieces_of_a_text_are_sent_and_then_its_rest():
    made = reply(stops=("\nST",))
    first, second = list(made.piece("t", 1, 1)), list(made.piece("wo\n", 1, 1))
    assert [chunk["choices"][0]["delta"] for chunk in first] == [{"role": "assistant", "content": ""}, {"content": "t"}]
    assert contents(second) == ["wo"]
    assert contents(made.piece("ST", 1, 1)) == []
    assert contents(made.text(DRAWS[1], 1, 1)) == []
    assert {chunk["choices"][0]["index"] for chunk in first + second} == {3}
    held_back = Draw("p", (1, 2, 3), "two\nS")
    assert contents([*made.piece("two\nS", 0, 0), *made.text(held_back, 0, 0)]) == ["", "two", "\nS"]
    plain = reply(chat=False)
    assert contents([*plain.piece("on", 0, 0), *plain.piece("e", 0, 0), *plain.text(DRAWS[0], 0, 0)]) == ["on", "e"]
