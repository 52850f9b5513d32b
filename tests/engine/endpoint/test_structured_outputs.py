"""Which constraints a server can enforce, and which are never translated."""

import random
import re
from typing import Any

import pytest
import regex

from guardwrap import Grammar, GuardedGenerator, JSONSchema, Keyword, Masked, Prompt, Regex
from guardwrap.engine.endpoint.endpoint_law import masking
from guardwrap.errors import EndpointError, UsageError
from tests.engine.endpoint.fixtures_server import Server, endpoint

SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
SUMS = 'start: N ("+" N)*\nN: /[0-9]+/'
LAW: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 5}


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (JSONSchema(SCHEMA), {"json": SCHEMA}),
        (JSONSchema(SCHEMA, whitespace="compact"), {"json": SCHEMA, "disable_any_whitespace": True}),
        (Regex(r"[A-Z][a-z]{2,5}(?: \(x\)| y)*\.", match="fullmatch"), {"regex": r"[A-Z][a-z]{2,5}(?: \(x\)| y)*\."}),
        (Grammar(SUMS), {"grammar": SUMS}),
        (~Regex("b") & Keyword("age") & JSONSchema(SCHEMA) & Grammar(SUMS), {"json": SCHEMA}),
    ],
)
def test_what_a_server_has_words_for(rule, words):
    part, found = masking(rule)
    assert found == words
    assert part in [*getattr(rule, "of", ()), rule]


PATTERNS = [
    r"\d+",  # which engines interpret differently
    r"\w",
    r"\s",
    r"a.b",
    r"^a$",
    r"\bword\b",
    r"(?=a)b",
    r"(?i)a",
    r"(?P<x>a)(?P=x)",
    r"(a)\1",
    r"a+?",
    r"a++",
    r"[\d]",
    r"[[:alpha:]]",
    r"[a&&b]",
    r"(?:a){e<=1}",
    r"a{,3}",
    "\\N{DIGIT ONE}",
    r"\p{L}",
    r"\x41",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_expressions_that_engines_may_read_otherwise(pattern):
    with pytest.raises(UsageError, match="structured_outputs supports"):
        masking(Regex(pattern, match="fullmatch"))


@pytest.mark.parametrize(
    "rule",
    [
        Regex("ab"),  # a search
        Regex("ab", match="fullmatch", flags=["ignorecase"]),
        Regex("ab", match="fullmatch", on="first_sentence"),
        JSONSchema(SCHEMA, where="fenced"),
        JSONSchema({}),
        JSONSchema(SCHEMA) | Keyword("a"),
        Grammar('start: N\nN: /[0-9]+/\n%ignore " "'),
        Grammar("sum: N\nN: /[0-9]+/", start="sum"),
    ],
)
def test_what_it_has_none_for(rule):
    with pytest.raises(UsageError, match="leave Masked\\(\\) out"):
        masking(rule)


def test_plain_expressions_are_read_alike():
    """Random patterns of the accepted syntax are valid, and mean the same, in both of Python's engines."""
    chance = random.Random(0)
    atoms = ["a", "b", r"\.", r"\(", "[ab]", "[^a]", "(?:a|b)", "(ab)", " ", "-"]
    repeats = ["", "", "*", "+", "?", "{2}", "{1,3}", "{2,}"]
    for _ in range(300):
        pattern = "".join(chance.choice(atoms) + chance.choice(repeats) for _ in range(chance.randint(1, 5)))
        assert masking(Regex(pattern, match="fullmatch"))[1] == {"regex": pattern}
        for text in ("", "a", "ab", "abab", "a.(b", "-- ", "bba"):
            assert bool(re.fullmatch(pattern, text)) == bool(regex.fullmatch(pattern, text))


@pytest.fixture
def server():
    def text(prompt, chance):
        return chance.choice((["ab"], ["abb"], ["ac"])), "stop", 2

    with Server(text).running() as running:
        yield running


def test_it_is_sent_and_the_whole_constraint_judges(server):
    rule = Regex("ab*", match="fullmatch") & ~Regex("bb")
    guarded = GuardedGenerator(endpoint(server), rule, proposal=Masked(Prompt("{prompt}!")), seed=1)
    (outcome,) = guarded.run("a", num_return_sequences=20, **LAW)
    assert set(outcome.texts) == {"ab"}
    mask = "masked by the server for Regex(pattern='ab*', match='fullmatch')"
    words = f"not your model's own distribution: attempts came from the prompt '{{prompt}}!', {mask} (g')"
    assert outcome.report.drawn_from == words
    assert all(asked["structured_outputs"] == {"regex": "ab*"} for asked in server.seen)
    assert {asked["prompt"] for asked in server.seen} == {"a!"}
    guarded("a", proposal=False, **LAW)
    unmasked = [asked for asked in server.seen if asked["prompt"] == "a"]  # cancelled requests may still arrive
    assert unmasked
    assert not any("structured_outputs" in asked for asked in unmasked)


def test_a_server_that_does_not_take_it(server):
    server.refusals = [(400, {}, {"error": {"message": "Unrecognized request argument", "code": None}})]
    guarded = GuardedGenerator(endpoint(server), Regex("ab", match="fullmatch"), proposal=Masked(), batch_size=1)
    with pytest.raises(EndpointError, match=r"does not support structured_outputs, as vLLM does, leave Masked\(\) out"):
        guarded("a", **LAW)
