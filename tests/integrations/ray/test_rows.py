"""Ids of rows, and the numbers of their random streams."""

import dataclasses

import pytest

from guardwrap.calls.prompts import Item
from guardwrap.constraints.files.constraint_file import PerPromptOptions
from guardwrap.errors import PromptError
from guardwrap.integrations.ray.rows import (
    MOST,
    PromptRow,
    block_size,
    id_in,
    key_of,
    numbered,
    randomness_place,
    row_digest,
)


def items(*ids, **more):
    for number, name in enumerate(ids):
        fields = {"prompt": f"p{number}", **({} if name is None else {"id": name}), **more}
        yield Item(f"in.jsonl:{number + 1}", fields, PerPromptOptions(seed=fields.get("seed")))


def places(*ids):
    return {row.id: row.item.own.number for row in numbered(items(*ids))}


def test_a_row_without_an_id_has_the_place_that_it_has_in_a_call() -> None:
    assert places(None, None, None) == {0: 0, 1: 1, 2: 2}


def test_the_place_of_a_row_with_an_id_follows_from_that_alone() -> None:
    there = places("a", "b", 3)
    assert places(3, "b", "x", "a") == {**there, "x": key_of("x")}
    assert len(set(there.values())) == 3


def test_negative_control_a_place_by_number_is_another_when_rows_move() -> None:
    def by_number(*ids):
        return {row.id: number for number, row in enumerate(numbered(items(*ids)))}

    assert by_number("a", "b") != by_number("b", "a")
    assert places("a", "b") == places("b", "a")


def test_a_number_and_its_text_are_two_ids() -> None:
    assert len(list(numbered(items(7, "7")))) == 2


def test_the_place_is_the_same_in_all_versions() -> None:
    """Folders of older versions can be resumed only if these values stay the same."""
    assert places("row-1") == {"row-1": 8344473580398424634}
    assert randomness_place(PromptRow("row-1", Item("", {})), named=True) == key_of("row-1")


def test_a_row_with_a_seed_gets_what_it_gets_alone() -> None:
    (row,) = numbered(items("a", seed=7))
    assert row.item.own == PerPromptOptions(seed=7, number=None)


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        (("a", "b", "a"), 'in.jsonl:3: the id "a" occurs twice; ids must be unique'),
        ((4, 4), "in.jsonl:2: the id 4 occurs twice"),
        (("a", None), "in.jsonl:2: has no id, but earlier rows have one"),
        ((None, 1), "in.jsonl:2: has an id, but earlier rows have none"),
        ((1.5,), 'in.jsonl:1: "id" is neither a whole number nor a string'),
        ((True,), '"id" is neither a whole number nor a string'),
        (([1],), '"id" is neither a whole number nor a string'),
    ],
)
def test_ids_that_name_no_row_are_refused(ids, problem):
    with pytest.raises(PromptError) as caught:
        list(numbered(items(*ids)))
    assert problem in str(caught.value)


def test_an_id_that_is_null_is_none() -> None:
    assert id_in("here", {"id": None}) is None


def test_blocks_follow_from_the_input_alone() -> None:
    assert [block_size(rows) for rows in (1, 31, 320, 10_000, 10**7)] == [1, 1, 20, MOST, MOST]


def test_a_record_has_the_fingerprint_of_its_row() -> None:
    fields = {"prompt": "p", "meta": {"b": 1, "a": [2.5, None]}}
    record = {"id": 3, **fields, "texts": ["t"], "ok": True, "report": {}, "reason": "r"}
    assert row_digest(record) == row_digest(fields)
    assert row_digest({**fields, "prompt": "q"}) != row_digest(fields)


def test_rows_are_plain_data() -> None:
    (row,) = numbered(items("a"))
    assert dataclasses.asdict(row)["again"] == 0
