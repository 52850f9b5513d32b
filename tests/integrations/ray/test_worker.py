"""Records that a worker makes from rows, without Ray."""

import json
import pickle
from typing import Any

import pytest

from guardwrap import Budget, GuardedGenerator, Regex
from guardwrap.calls.prompts import Item
from guardwrap.calls.records import to_bytes
from guardwrap.constraints.files.constraint_file import PerPromptOptions
from guardwrap.errors import GuardwrapError, UsageError
from guardwrap.integrations.ray.datasets import TableWorker
from guardwrap.integrations.ray.ray_job import Recipe, Worker, blocks, left
from guardwrap.integrations.ray.result_folder import Folder
from guardwrap.integrations.ray.rows import PromptRow, numbered

OPTIONS: dict[str, Any] = {"seed": 1, "max_new_tokens": 6, "top_k": 0}
HAS_A = Regex("a", name="has an a")


def rows(count=8, named=False, **own):
    given = ({"prompt": f"ab{number} ", **({"id": f"row-{number}"} if named else {})} for number in range(count))
    return list(
        numbered(Item(f"in:{number + 1}", fields, PerPromptOptions(**own)) for number, fields in enumerate(given))
    )


def recipe(model, **more):
    return Recipe(model, HAS_A, **{"options": OPTIONS, **more})


@pytest.fixture(scope="module")
def worker(model):
    return Worker(recipe(model))


def texts(worker, *parts):
    return {record["id"]: record["texts"] for part in parts for record, _ in worker.records(part)}


def test_texts_do_not_depend_on_blocks_their_order_or_the_worker(worker, model):
    given = rows(named=True)
    expected = texts(worker, given)
    assert all("a" in text for found in expected.values() for text in found)
    assert texts(worker, given[5:], given[:2], given[2:5]) == expected
    assert texts(Worker(recipe(model)), *([row] for row in reversed(given))) == expected


def test_rows_without_ids_get_the_texts_of_a_call(worker, model):
    found = GuardedGenerator(model, HAS_A).run([row.item.fields["prompt"] for row in rows()], **OPTIONS)
    given = rows()
    assert texts(worker, given[4:], given[:4]) == {n: list(each.texts) for n, each in enumerate(found)}


def test_a_table_gets_the_texts_of_its_rows_and_the_reasons_of_those_without(worker, model):
    given = rows(named=True)
    expected = texts(worker, given)
    table = [{"id": row.id, **row.item.fields} for row in given]
    records = TableWorker(recipe(model)).records_with_reasons([*table, {"id": "no prompt"}])
    assert [record["texts"] for record in records] == [*expected.values(), []]
    assert [record["ok"] for record in records] == [True] * len(given) + [False]
    assert json.loads(records[0]["report"])["accepted"] == 1
    assert "reason" not in records[0]
    assert "no prompt" in records[-1]["reason"]
    assert records[-1]["report"] is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_model_of_a_worker_computes_in_the_type_of_the_run(model, dtype):
    assert str(recipe(model, dtype=dtype).made().model.dtype) == f"torch.{dtype}"


class ByBlock(Worker):
    """Deliberate fault: the random stream of a row is its position in its block."""

    def _drawn(self, rows):
        return super()._drawn(
            [PromptRow(row.id, Item(row.item.where, row.item.fields, PerPromptOptions())) for row in rows]
        )


def test_negative_control_randomness_of_the_block_changes_texts(model):
    broken, given = ByBlock(recipe(model)), rows(named=True)
    assert texts(broken, given) != texts(broken, given[5:], given[:5])


def test_a_row_that_cannot_be_drawn_for_is_kept_apart(worker):
    chat = PromptRow("chat", Item("in:10", {"messages": [{"role": "user", "content": "ab"}]}))
    never = PromptRow(
        "never", Item("in:11", {"prompt": "ab"}, PerPromptOptions(Regex("a.*Z"), budget=Budget(max_attempts=3)))
    )
    given = rows()
    found = {record["id"]: record for record, _ in worker.records([*given[:3], chat, *given[3:], never])}
    assert {name: record["texts"] for name, record in found.items() if record["ok"]} == texts(worker, given)
    assert [(name, record["texts"]) for name, record in found.items() if not record["ok"]] == [
        ("chat", []),
        ("never", []),
    ]
    assert "chat template" in found["chat"]["reason"]
    assert found["never"]["reason"].startswith("ended by max_attempts; ")
    assert found["never"]["report"]["usage"]["attempts"] == 3
    assert "report" not in found["chat"]


def crashes(text):
    raise RuntimeError(f"secret {text}")


def test_a_constraint_that_crashes_fails_its_row_and_says_nothing_of_the_text(worker):
    given = rows(3)
    bad = PromptRow("bad", Item("in:4", {"prompt": "ab"}, PerPromptOptions(crashes)))
    records = [record for record, _ in worker.records([*given, bad])]
    assert [record["ok"] for record in records] == [True, True, True, False]
    assert "secret" not in json.dumps(records[3])


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"generator": "no/such-folder"}, "no/such-folder"),
        ({"options": {**OPTIONS, "temperatur": 1}}, "temperature"),
        ({"chat": True}, "no chat template"),
    ],
)
def test_what_is_wrong_with_the_run_ends_it_and_fails_no_row(model, more, problem):
    broken = Worker(Recipe(**{**vars(recipe(model)), **more}))
    assert broken.broken is not None
    assert problem in str(broken.broken)
    with pytest.raises(GuardwrapError):
        list(broken.records(rows(1)))
    assert str(pickle.loads(pickle.dumps(broken.broken))) == str(broken.broken)


def test_an_unexpected_error_says_its_type_alone(model, monkeypatch):
    def fail(*_: object) -> None:
        raise KeyError("secret text")

    broken = Worker(recipe(model))
    monkeypatch.setattr(Worker, "_drawn", fail)
    with pytest.raises(GuardwrapError) as caught:
        list(broken.records(rows(2)))
    assert "KeyError" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_blocks_are_the_same_ones_however_many_rows_are_done() -> None:
    given = rows(10)
    whole = list(blocks(given, 4))
    assert [len(block) for block in whole] == [4, 4, 2]
    some: list[PromptRow | None] = [None if number in (1, 4, 5, 6, 7) else row for number, row in enumerate(given)]
    assert list(blocks(some, 4)) == [[given[0], given[2], given[3]], given[8:]]


def test_rows_with_a_record_are_left_out_and_failed_ones_drawn_again_with_another_seed(tmp_path):
    given = rows(3, named=True)
    with Folder.opened(tmp_path, resume=False, overwrite=False) as folder:
        for row, ok in ((given[0], True), (given[2], False)):
            folder.add([to_bytes({"id": row.id, **row.item.fields, "texts": [], "ok": ok})])
        assert list(left(given, folder)) == [None, given[1], None]
        none, fresh, again = left(given, folder, retry_seed=5)
        assert none is None
        assert fresh == given[1]
        assert again is not None
        assert (again.again, again.item.own.seed, again.item.own.number) == (1, 5, given[2].item.own.number)
        other = PromptRow("row-0", Item("in:1", {"id": "row-0", "prompt": "another"}))
        with pytest.raises(UsageError, match=r"in:1: .* has the id 'row-0' with another prompt"):
            list(left([other], folder))
