"""Checkpoints that are damaged, cannot be written, or belong to another training."""

import builtins
import errno
import hashlib
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from guardwrap import Regex
from guardwrap.constraints import load
from guardwrap.errors import UsageError
from guardwrap.testing import llama_world
from guardwrap.training import rounds, train
from guardwrap.training.trainer import Trainer
from guardwrap.training.training_state import newest_checkpoint, write_checkpoint
from tests.training.fixtures_training import guarded_of, settings_of, trainer_of
from tests.training.test_families import FAMILY


class Killed(BaseException):
    """Ends a training like a kill: nothing is caught or cleaned up."""


def numbers(trainer):
    return {name: tensor.clone() for name, tensor in trainer.policy.parameters.items()}


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def folders(place):
    return sorted(place.glob("*-*.safetensors"))


@pytest.fixture(scope="module")
def killed_once(tmp_path_factory):
    """Return the folder of a training that was killed in its second round, after four checkpoints."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    count = 0

    def counted(*args):
        nonlocal count
        count += 1
        if count == 5:
            raise Killed
        return write_checkpoint(*args)

    trainer = trainer_of(folder, updates=10)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("guardwrap.training.trainer.write_checkpoint", counted)
        with pytest.raises(Killed):
            trainer.run()
    return folder


@pytest.fixture
def killed(tmp_path, killed_once):
    """Return a copy of that folder."""
    return shutil.copytree(killed_once, tmp_path / "run")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the policy of an uninterrupted training."""
    trainer = trainer_of(tmp_path_factory.mktemp("whole"), updates=10)
    trainer.run()
    return numbers(trainer)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [cut, flip, empty])
def test_a_damaged_checkpoint_is_left_out_and_the_one_before_is_used(killed, whole, caplog, damage):
    old, new = folders(killed / "checkpoints")
    damage(new)
    trainer = trainer_of(killed, updates=10)
    assert f"cannot use checkpoint {new} (it is damaged): trying the previous one" in caplog.text
    assert folders(killed / "checkpoints") == [old]  # it must not count as the previous one later
    trainer.run()
    assert same(numbers(trainer), whole)


def test_without_a_whole_checkpoint_it_begins_anew_and_says_so(killed, whole, caplog):
    for path in folders(killed / "checkpoints"):
        cut(path)
    trainer = trainer_of(killed, updates=10)
    assert "the training starts from the beginning" in caplog.text
    assert trainer.state.done == 0
    trainer.run()
    assert same(numbers(trainer), whole)


LEFT = ".00000001-0123456789abcdef.safetensors.0123456789abcdef.tmp"
"""Names of temporary files that a killed process leaves."""


@pytest.mark.slow
def test_what_else_lies_in_the_folder_is_left_alone(killed, whole):
    place = killed / "checkpoints"
    foreign = {"zebra.safetensors": b"stripes", "99999999-cafe.safetensors": b"no", LEFT: b"half", "notes": b"n"}
    for name, content in foreign.items():
        (place / name).write_bytes(content)
    (place / "99999999-folder").mkdir()
    trainer = trainer_of(killed, updates=10)
    assert trainer.state.fit is not None  # it resumed
    trainer.run()
    assert same(numbers(trainer), whole)
    assert len([path for path in folders(place) if path.name not in foreign]) == 2
    assert {name for name in foreign if (place / name).exists()} == foreign.keys() - {LEFT}


def found(folder):
    """Return the newest checkpoint, which must exist."""
    checkpoint = newest_checkpoint(folder)
    assert checkpoint is not None
    return checkpoint


@pytest.mark.usefixtures("watchdog")
def test_named_pipes_are_no_checkpoints_and_in_nobodys_way(tmp_path):
    os.mkfifo(tmp_path / ("00000009-" + "a" * 16 + ".safetensors"))
    os.mkfifo(tmp_path / LEFT)
    assert newest_checkpoint(tmp_path) is None
    assert write_checkpoint(tmp_path, {"x": torch.zeros(2)}, {})
    assert found(tmp_path)[1] == {}


def test_the_two_newest_are_kept(tmp_path):
    for number in range(4):
        assert write_checkpoint(tmp_path, {"a": torch.tensor(number)}, {"number": number})
    assert [path.name[:8] for path in folders(tmp_path)] == ["00000003", "00000004"]
    tensors, state = found(tmp_path)
    assert (tensors, state) == ({"a": torch.tensor(3)}, {"number": 3})
    assert newest_checkpoint(tmp_path / "nowhere") is None


def full_disk(monkeypatch):
    """Let every write fail halfway, as on a full disk."""
    real = builtins.open

    class Full:
        def __init__(self, file):
            self._file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self._file.close()

        def write(self, content):
            self._file.write(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def writelines(self, content):
            self.write(b"".join(content))

    def opened(path, mode="r", *args, **options):
        file = real(path, mode, *args, **options)
        return Full(file) if "w" in mode else file

    def write_text(self, text, **_):
        with opened(self, "w") as file:
            file.write(text)

    monkeypatch.setattr(builtins, "open", opened)
    monkeypatch.setattr(Path, "write_text", write_text)


@pytest.mark.slow
def test_on_a_full_disk_the_training_goes_on_and_nothing_is_lost(tmp_path, whole, monkeypatch, caplog):
    with monkeypatch.context() as patched:
        full_disk(patched)
        trainer = trainer_of(tmp_path, updates=10)
        trainer.run()
    assert same(numbers(trainer), whole)
    assert "cannot write a checkpoint in" in caplog.text
    assert "No space left on device" in caplog.text
    assert "cannot write the learning curve" in caplog.text
    assert not list((tmp_path / "checkpoints").iterdir())


@pytest.mark.slow
def test_attempts_are_kept_until_a_checkpoint_has_them(killed, whole, monkeypatch):
    old = folders(killed / "checkpoints")
    with monkeypatch.context() as patched:
        patched.setattr("guardwrap.training.trainer.write_checkpoint", lambda *_: False)
        trainer_of(killed, updates=10).run()
    assert folders(killed / "checkpoints") == old
    drawn = []
    trainer = trainer_of(killed, updates=10)
    monkeypatch.setattr(trainer.task, "draw", lambda *args: drawn.append(args))
    trainer.run()
    assert not drawn
    assert same(numbers(trainer), whole)
    assert not list((killed / "draws").iterdir())


@pytest.mark.parametrize(
    ("what", "others", "constraint"),
    [
        ("seed", {"seed": 1}, None),
        ("prompts", {"prompts": ["b"]}, None),
        ("constraint", {}, Regex("ab")),
        ("method", {"method": "sft"}, None),
        ("rank", {"rank": 3}, None),
        ("generation", {"generation": {"do_sample": True, "max_new_tokens": 3, "top_k": 0}}, None),
    ],
)
def test_the_folder_of_another_training_is_refused_by_name(killed, what, others, constraint):
    options = {} if constraint is None else {"constraint": constraint}
    with pytest.raises(UsageError, match=f"contains another training, which differs in {what}; give another folder"):
        trainer_of(killed, **{"updates": 10, **others}, **options)


def test_a_training_of_another_model_is_refused(killed):
    with pytest.raises(UsageError, match="differs in model"):
        trainer_of(killed, llama_world(seed=1), updates=10)


def killed_before_its_first_checkpoint(folder, monkeypatch, **others):
    """Remove everything but a training's attempts."""

    def absorb(*_):
        raise Killed

    trainer = trainer_of(folder, **others)
    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_absorb", absorb)
        with pytest.raises(Killed):
            trainer.run()
    assert list((folder / "draws").rglob("*.json"))


def drawn_by(folder, **others):
    trainer = trainer_of(
        folder, updates=1, warm_samples=100, samples=100, **others
    )  # the first round of the other training
    trainer.run()
    return trainer.state.buffer.samples


@pytest.mark.parametrize("others", [{"prompts": ["b"]}, {"seed": 1}, {"fields": [{"double": "ab"}]}])
def test_attempts_of_another_training_are_not_taken(tmp_path, others, monkeypatch):
    (tmp_path / "family.yaml").write_text(FAMILY)
    family = load(tmp_path / "family.yaml").constraint
    first = {"constraint": family, "fields": [{"double": "aa"}]} if "fields" in others else {}
    others = {**first, **others}
    killed_before_its_first_checkpoint(tmp_path / "shared", monkeypatch, **first)
    assert drawn_by(tmp_path / "shared", **others) == drawn_by(tmp_path / "fresh", **others)


def test_negative_control_attempts_that_do_not_say_whose_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "digest", lambda self, law: law)
    killed_before_its_first_checkpoint(tmp_path / "shared", monkeypatch)
    assert drawn_by(tmp_path / "shared", prompts=["b"]) != drawn_by(tmp_path / "fresh", prompts=["b"])


def test_draws_of_g_serve_any_training_of_the_same_law(tmp_path, monkeypatch):
    first = trainer_of(tmp_path / "first", gold_attempts=50)
    first.find_gold()
    shutil.copytree(tmp_path / "first" / "gold", tmp_path / "second" / "gold")
    second = trainer_of(tmp_path / "second", gold_attempts=50, method="sft", rank=3, samples=100)
    with monkeypatch.context() as patched:
        patched.setattr(second.task, "draw", None)
        second.find_gold()
    assert second.gold == first.gold
    shutil.copytree(tmp_path / "first" / "gold", tmp_path / "third" / "gold")
    third = trainer_of(tmp_path / "third", gold_attempts=50, constraint=Regex("ab"))
    third.find_gold()
    assert third.gold != first.gold


@pytest.mark.slow
def test_budgets_may_be_raised(tmp_path):
    first = trainer_of(tmp_path, tokens=100)
    first.run()
    assert first.state.tokens >= 100
    assert 0 < first.state.samples < 400
    again = trainer_of(tmp_path, tokens=10_000, seconds=10_000.0, gold_attempts=50, final_attempts=50)
    assert again.state.samples == first.state.samples
    again.run()
    assert again.state.done == len(again.state.plan) == 4
    assert 390 < again.state.samples <= 400  # the first round had not drawn from the model itself yet


def test_what_a_budget_cut_off_is_drawn_when_it_is_raised(tmp_path, monkeypatch):
    """In the last round too: it was done with what it had drawn, and the rest was lost."""
    monkeypatch.setattr(rounds, "CHUNK", 50)
    only: dict[str, Any] = {"rounds": 1, "warm_samples": 200, "samples": 400}
    whole = trainer_of(tmp_path / "whole", **only)
    whole.run()
    cut = trainer_of(tmp_path / "cut", **only, tokens=whole.state.tokens * 5 // 8)
    cut.run()
    assert 200 < cut.state.samples < 390
    again = trainer_of(tmp_path / "cut", **only, tokens=whole.state.tokens * 5 // 8)
    again.run()
    assert (again.state.samples, again.state.tokens) == (cut.state.samples, cut.state.tokens)
    more = trainer_of(tmp_path / "cut", **only, tokens=10**6)
    more.run()
    assert 390 < more.state.samples <= 400


def test_learning_that_the_time_cut_off_goes_on_when_it_is_raised(tmp_path, monkeypatch):
    only: dict[str, Any] = {"rounds": 1, "warm_samples": 400, "updates": 40, "patience": 100}
    whole = trainer_of(tmp_path / "whole", **only)
    whole.run()
    cut = trainer_of(tmp_path / "cut", **only, seconds=1000.0)
    with monkeypatch.context() as patched:
        patched.setattr(cut, "_late", lambda: bool(cut.state.fit and cut.state.fit.step >= 10))
        cut.run()
    assert cut.state.curve[0].updates <= 10
    more = trainer_of(tmp_path / "cut", **only, seconds=2000.0)
    more.run()
    assert same(numbers(more), numbers(whole))
    assert [row.updates for row in more.state.curve] == [row.updates for row in whole.state.curve]


def test_attempts_that_were_recorded_without_rejected_texts_are_drawn_again(tmp_path):
    """``sft`` records none, and ``replay`` branches them."""
    task = trainer_of(tmp_path).task
    for keeps in (False, True, False):
        drawn = rounds.draw_round(
            task, None, 50, seed=(0, "base"), digest="", folder=tmp_path / "draws", keep_rejected=keeps
        )
        assert bool(drawn.rejected) == keeps


@pytest.mark.slow
def test_more_samples_are_divided_among_more_rounds(tmp_path):
    first = trainer_of(tmp_path)
    first.run()
    more = trainer_of(tmp_path, samples=1000)
    assert more.state.plan[:4] == first.state.plan
    assert len(more.state.plan) == 7
    more.run()
    assert (more.state.samples, more.state.done) == (1000, 7)
    assert [row.samples for row in more.state.curve[:4]] == [row.samples for row in first.state.curve]
    less = trainer_of(tmp_path, samples=500)  # already spent
    less.run()
    assert less.state.samples == 1000
    assert same(numbers(less), numbers(more))


@pytest.mark.slow
def test_more_samples_for_dpg_are_more_steps(tmp_path):
    trainer_of(tmp_path, method="dpg", hints=["b{prompt}"], warm_samples=100).run()
    more = trainer_of(tmp_path, method="dpg", hints=["b{prompt}"], warm_samples=100, samples=800)
    more.run()
    assert (more.state.samples, more.state.dpg_steps) == (800, 3 + 4)


@pytest.mark.slow
def test_more_samples_in_the_midst_of_a_round(killed, tmp_path):
    shutil.copytree(killed, tmp_path / "copy")
    trainer = trainer_of(killed, updates=10, samples=800)
    trainer.run()
    assert trainer.state.samples == 800
    # Killed again: the second resumed run has the same settings and result.
    again = trainer_of(tmp_path / "copy", updates=10, samples=800)
    again.run()
    assert same(numbers(again), numbers(trainer))


@pytest.mark.slow
def test_a_training_that_is_over_is_only_measured_again(tmp_path):
    world = llama_world()
    first = train(guarded_of(world), settings_of(world), tmp_path)
    (tmp_path / "curve.jsonl").unlink()  # as if killed before it was written
    again = train(guarded_of(world), settings_of(world), tmp_path)
    assert again.figures == first.figures
    assert again.samples == first.samples
    assert (tmp_path / "adapter" / "curve.jsonl").read_text().count("\n") == 4


def test_the_checkpoint_module_reads_what_it_wrote_in_part(tmp_path, monkeypatch, caplog):
    write_checkpoint(tmp_path, {"a": torch.tensor(1)}, {"number": 1})
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
    assert not write_checkpoint(tmp_path, {"a": torch.tensor(2)}, {"number": 2})
    assert "cannot write a checkpoint" in caplog.text
    assert found(tmp_path)[1] == {"number": 1}


def test_a_checkpoint_of_an_older_version_is_not_overwritten(tmp_path):
    content = safetensors.torch.save({"x": torch.zeros(2)}, {"state": "{}"})  # the state was in the header
    path = tmp_path / "checkpoints" / f"00000001-{hashlib.sha256(content).hexdigest()[:16]}.safetensors"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"is of an older version; finish with that version, or give another folder$"):
        trainer_of(tmp_path)
    assert path.read_bytes() == content
