"""The output folder: no record is lost or duplicated, whenever a process is killed."""

import json
import os
from pathlib import Path

import pytest

from guardwrap.errors import UsageError
from guardwrap.integrations.ray.result_folder import LOCK, Folder
from guardwrap.integrations.ray.rows import key_of

ORDER = {key_of(name): place for place, name in enumerate("abcd")}


def line(name, ok=True, text="t", again=0):
    report = {"settings": {"drawn_again": again} if again else {}}
    return json.dumps({"id": name, "prompt": "p", "texts": [text] * ok, "ok": ok, "report": report}).encode() + b"\n"


def opened(path, resume=True, overwrite=False):
    return Folder.opened(path, resume=resume, overwrite=overwrite)


def texts(path, name="results.jsonl"):
    found = [json.loads(each) for each in (path / name).read_text().splitlines()]
    return [(each["id"], *each["texts"]) for each in found]


def test_blocks_become_one_file_in_the_order_of_the_rows(tmp_path):
    with opened(tmp_path / "out", resume=False) as folder:
        folder.add([line("d"), line("b", ok=False)])
        folder.add([])
        folder.add([line("a"), line("c")])
        assert len(folder.done) == 4
        folder.merge(ORDER)
        assert texts(folder.path) == [("a", "t"), ("c", "t"), ("d", "t")]
        assert texts(folder.path, "failed.jsonl") == [("b",)]
        assert list((folder.path / "parts").iterdir()) == []
        assert len(folder.done) == 4


def test_a_row_that_stands_there_twice_counts_once(tmp_path):
    """This happens if a worker dies after its block was written, or a process between two files."""
    with opened(tmp_path) as folder:
        folder.add([line("a"), line("b", ok=False)])
        folder.merge(ORDER)
        folder.add([line("a"), line("b", text="later", again=1), line("c")])
        folder.add([line("b", ok=False, again=1)])  # a complete record stays
        folder.merge(ORDER)
        assert texts(tmp_path) == [("a", "t"), ("b", "later"), ("c", "t")]
        assert not (tmp_path / "failed.jsonl").exists()


def test_a_record_is_not_given_up_for_one_with_fewer_texts(tmp_path):
    with opened(tmp_path) as folder:
        some, fewer, more = (
            json.dumps({**json.loads(line("a", ok=False, again=again)), "texts": ["t"] * count}).encode() + b"\n"
            for again, count in enumerate((2, 1, 3))
        )
        for record, kept in ((some, 2), (fewer, 2), (more, 3), (some, 3), (line("a"), 1), (more, 1)):
            folder.add([record])
            assert [len(each["texts"]) for each in folder.records()] == [kept]


def test_negative_control_lines_that_are_strung_together_double_rows(tmp_path):
    with opened(tmp_path) as folder:
        folder.add([line("a")])
        folder.add([line("a"), line("b")])
        strung = [json.loads(each)["id"] for part in folder._files for each in part.read_text().splitlines()]
        assert strung == ["a", "a", "b"]
        folder.merge(ORDER)
        assert [name for name, _ in texts(tmp_path)] == ["a", "b"]


def test_half_a_file_is_none(tmp_path):
    with opened(tmp_path) as folder:
        folder.add([line("a")])
        (tmp_path / "parts" / ".00000001.jsonl.tmp").write_bytes(line("b")[:20])
    with opened(tmp_path) as folder:
        assert set(folder.done) == {key_of("a")}
        folder.add([line("b")])
        folder.merge(ORDER)
        assert [name for name, _ in texts(tmp_path)] == ["a", "b"]


def test_a_link_in_the_place_of_the_lock_is_not_followed(tmp_path):
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / LOCK).symlink_to(tmp_path / "victim")
    with pytest.raises(UsageError, match="cannot write to"), opened(tmp_path / "out"):
        pass
    assert (tmp_path / "victim").read_bytes() == b"precious"


class Killed(BaseException):
    """Simulates SIGKILL: guardwrap does not catch it."""


def killed_at(moment, monkeypatch):
    """Stop the process at the n-th step that changes the disk."""
    steps = 0

    def dying(step):
        def call(*given, **more):
            nonlocal steps
            steps += 1
            if steps == moment:
                raise Killed
            return step(*given, **more)

        return call

    for owner, name in ((Path, "replace"), (Path, "unlink"), (os, "fsync")):
        monkeypatch.setattr(owner, name, dying(getattr(owner, name)))


def drawn(out):
    """Simulate a run: generate for rows without a record, in blocks of one row, and merge the files."""
    with opened(out) as folder:
        for name in "dbac":
            if key_of(name) not in folder.done:
                folder.add([line(name, ok=name != "b")])
        folder.merge(ORDER)


def test_whatever_step_is_the_last_one_nothing_is_lost_or_doubled(tmp_path):
    for moment in range(1, 30):
        out, ends = tmp_path / str(moment), 0
        for last in (moment, 4, 1, 6, 1000):
            with pytest.MonkeyPatch.context() as patch:
                killed_at(last, patch)
                try:
                    drawn(out)
                except Killed:
                    ends += 1
        assert ends >= 2
        assert texts(out) == [("a", "t"), ("c", "t"), ("d", "t")]
        assert texts(out, "failed.jsonl") == [("b",)]
        assert list((out / "parts").iterdir()) == []


def test_negative_control_a_run_that_ignores_what_is_there_doubles_rows(tmp_path):
    def careless(out):
        with opened(out) as folder:
            folder.done.clear()
            for name in "ab":
                folder.add([line(name)])

    careless(tmp_path)
    careless(tmp_path)
    written = [json.loads(part.read_text())["id"] for part in sorted((tmp_path / "parts").glob("*.jsonl"))]
    assert written == ["a", "b", "a", "b"]


def test_two_runs_do_not_write_to_one_folder(tmp_path):
    with opened(tmp_path), pytest.raises(UsageError, match="another run is writing to"), opened(tmp_path):
        pass
    with opened(tmp_path):  # the lock is released
        pass


def test_what_is_there_is_not_written_over_unasked(tmp_path):
    with opened(tmp_path, resume=False) as folder:
        folder.begin({"seed": 1})
        folder.add([line("a")])
    for resume, overwrite, problem in (
        (False, False, "has results; continue with --resume or replace them with --overwrite"),
        (True, True, "--resume keeps the results that --overwrite replaces"),
    ):
        with pytest.raises(UsageError, match=problem), opened(tmp_path, resume, overwrite):
            pass
    with opened(tmp_path) as folder:
        assert folder.made_with() == {"seed": 1}
        assert len(folder.done) == 1
    with opened(tmp_path, resume=False, overwrite=True) as folder:
        assert folder.made_with() is None
        assert not folder.done
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="it is not a folder, which --ray needs"), opened(tmp_path / "file"):
        pass


def test_lines_of_others_are_refused(tmp_path):
    for text in ('{"id": 1}\n', "no\n", "[]\n", '{"id": 1, "ok": true, "report": []}\n'):
        (tmp_path / "results.jsonl").write_text(text)
        with pytest.raises(UsageError, match=r"results.jsonl:1: was not written by guardwrap"), opened(tmp_path):
            pass
    (tmp_path / "results.jsonl").unlink()
    (tmp_path / "run.json").write_text("{")
    with opened(tmp_path) as folder, pytest.raises(UsageError, match="cannot be read"):
        folder.made_with()
