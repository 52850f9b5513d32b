"""``explain``: the parts of a wrapper's constraint that reject a text, judged as in a call."""

from pathlib import Path
from typing import Any

import pytest

from guardwrap import Draw, GuardedGenerator, JSONSchema, Keyword, Length, NumbersFrom, Part, Regex
from guardwrap.calls.missing_texts import plain_draw
from guardwrap.constraints.explanation import Rejection
from guardwrap.errors import UsageError
from guardwrap.testing import llama_world

WORLD = llama_world(max_new_tokens=4)
RULE = Regex("a", name="has an a") & Regex("^[bc]", name="begins")


def guard(constraint: Any = RULE, **options: Any) -> GuardedGenerator:
    return GuardedGenerator(WORLD.pipeline(), constraint, **options)


def test_every_part_that_rejects_a_text_is_named() -> None:
    guarded = guard()
    assert [each.part for each in guarded.explain("e").rejections] == ["has an a", "begins"]
    assert guarded.explain("ba").accepted
    assert guarded.explain("e", constraints=Keyword("e")).accepted
    schema = JSONSchema({"properties": {"a": {"type": "string"}}}, name="object")
    (rejection,) = guarded.explain('{"a": 1}', constraints=schema).rejections
    assert rejection == Rejection("object", "1 is not of type 'string'", "$.a")


def test_a_text_is_judged_with_its_tokens_its_prompt_and_as_an_answer() -> None:
    count = len(WORLD.tokenizer("abc")["input_ids"])
    assert guard(Length(max=count, unit="tokens")).explain("abc").accepted
    explanation = guard(Length(max=count - 1, unit="tokens")).explain("abc")
    assert (explanation.accepted, explanation.unchecked) == (False, ())
    assert guard(NumbersFrom()).explain("5", prompt="5 or 6").accepted
    assert not guard(NumbersFrom()).explain("5", prompt="6").accepted
    assert not guard(Regex("a", on=Part(message="answer"))).explain("b").accepted
    assert plain_draw("a", "b", None) == Draw("b", (), "a", parts=(("answer", ("a",)),))


def test_attempts_are_explained_as_they_were_judged() -> None:
    guarded = guard()
    (attempts,) = guarded.attempts("b", 40, weigh=False, seed=1, **WORLD.settings)
    assert 0 < sum(attempt.satisfied for attempt in attempts) < 40
    for attempt in attempts:
        assert guarded.explain(attempt.draw).accepted == attempt.satisfied


def test_a_file_with_fields_needs_their_values(tmp_path: Path) -> None:
    path = tmp_path / "fields.yaml"
    path.write_text("guardwrap: 1\nfields: [word]\nconstraint: {kind: keyword, words: '{word}'}\n")
    guarded = guard(str(path))
    assert guarded.explain("tea", fields={"word": "tea"}).accepted
    assert not guarded.explain("tea", fields={"word": "milk"}).accepted
    with pytest.raises(UsageError, match="word"):
        guarded.explain("tea")


def test_the_page_shows_what_is_printed() -> None:
    page = (Path(__file__).parents[2] / "docs" / "wrap.md").read_text()
    guarded = guard(Keyword("coffee", name="mentions coffee") & Length(max=5, unit="words"))
    text = "A cup of tea, please, and a biscuit."
    assert f'guarded.explain("{text}")' in page
    assert "".join(f"    {line}\n" for line in str(guarded.explain(text)).splitlines()) in page


def test_anything_else_is_an_error() -> None:
    text: Any = ["a"]
    with pytest.raises(UsageError, match=r"a text or a Draw, not list; pass attempt\.draw"):
        guard().explain(text)
