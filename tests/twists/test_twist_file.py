"""Twists in files: another process draws the same texts, and no other file is taken for one.

Covers ``twists/twist_file.py``.
"""

import json
import zipfile

import numpy as np
import pytest

from guardwrap import GuardedGenerator, Keyword, Length, Masked, Twisted
from guardwrap.constraints import parse
from guardwrap.constraints.files.proposal_fields import proposal_spelt
from guardwrap.errors import UsageError
from guardwrap.testing import llama_world, table_world
from guardwrap.twists import twist_file
from guardwrap.twists.twist_file import read_twist

RULE = Keyword("ab", whole_words=False)
WORLD = table_world(letters="abc", max_new_tokens=6, temperature=0.8)
CALL = {"num_return_sequences": 20, "seed": 5, **WORLD.settings}


def guarded_of(rule=RULE, world=WORLD, **twist):
    return GuardedGenerator(world.pipeline(), rule, proposal=Twisted(**twist))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file, and the outcome of a call of the wrapper that wrote it, after it had learned from shorter texts."""
    path = tmp_path_factory.mktemp("twist") / "ab.npz"
    guarded = guarded_of()
    guarded.run(WORLD.prompt, **{**CALL, "max_new_tokens": 3})
    guarded.save_twist(path)
    return path, guarded.run(WORLD.prompt, **CALL)[0]


def test_a_saved_twist_draws_the_same_texts_without_learning(saved):
    """Negative control: a wrapper that learns in this call has another ψ and draws other texts."""
    path, before = saved
    (after,) = guarded_of(learned=path).run(WORLD.prompt, **CALL)
    assert after.texts == before.texts
    assert [draw.log_proposal for draw in after.draws] == [draw.log_proposal for draw in before.draws]
    assert f"the twist was read from {str(path)!r}; it had been learned from 128 attempts" in after.report.notes
    (anew,) = guarded_of().run(WORLD.prompt, **CALL)
    assert [draw.log_proposal for draw in anew.draws] != [draw.log_proposal for draw in before.draws]


def test_a_twist_that_was_read_can_be_saved_and_used_for_longer_texts(saved, tmp_path):
    guarded = guarded_of(learned=saved[0])
    longer = {**CALL, "max_new_tokens": 9}
    (outcome,) = guarded.run(WORLD.prompt, **longer)
    guarded.save_twist(tmp_path / "again.npz")
    (again,) = guarded_of(learned=tmp_path / "again.npz").run(WORLD.prompt, **longer)
    assert again.texts == outcome.texts
    assert "from 128 attempts" in again.report.notes[0]


def test_a_twist_of_another_model_is_used_and_noted(saved):
    other = table_world(7, letters="abc", max_new_tokens=6, temperature=0.8)
    (outcome,) = guarded_of(world=other, learned=saved[0]).run(other.prompt, **{**CALL, **other.settings})
    assert all("ab" in text for text in outcome.texts)
    assert any("of another model" in note for note in outcome.report.notes)


def test_the_tilt_is_saved_for_the_model_that_it_was_learned_for(tmp_path, monkeypatch):
    """Negative control: without the tilt, the same texts have other probabilities."""
    world, rule = llama_world(letters="abc", max_new_tokens=6, temperature=0.8), Keyword("abcab", whole_words=False)
    call = {**CALL, **world.settings, "num_return_sequences": 2}
    path = tmp_path / "abcab.npz"
    guarded = guarded_of(rule, world)
    guarded.run(world.prompt, **{**call, "seed": 6})
    guarded.save_twist(path)
    (before,) = guarded.run(world.prompt, **call)
    (tilted,) = [twisted.tilt for twisted, _ in guarded.session._learned.values()]
    assert tilted is not None
    (after,) = guarded_of(rule, world, learned=path).run(world.prompt, **call)
    assert [draw.log_proposal for draw in after.draws] == [draw.log_proposal for draw in before.draws]

    other = llama_world(7, letters="abc", max_new_tokens=6, temperature=0.8)
    elsewhere = guarded_of(rule, other, learned=path)
    elsewhere.run(other.prompt, **call)
    assert [twisted.tilt for twisted, _ in elsewhere.session._learned.values()] == [None]

    monkeypatch.setattr("guardwrap.session.twisting.read_twist", lambda *args: (*read_twist(*args)[:2], None))
    (plain,) = guarded_of(rule, world, learned=path).run(world.prompt, **call)
    assert [draw.log_proposal for draw in plain.draws] != [draw.log_proposal for draw in before.draws]


@pytest.mark.parametrize("rule", [Keyword("ba", whole_words=False), RULE & Length(max=4, unit="characters")])
def test_a_twist_of_another_constraint_is_refused(saved, rule):
    with pytest.raises(UsageError, match=r"was learned for another constraint|is no twist for this constraint"):
        guarded_of(rule, learned=saved[0]).run(WORLD.prompt, **CALL)


def test_a_twist_of_another_automaton_is_refused(saved, monkeypatch):
    monkeypatch.setattr("guardwrap.session.twisting.automaton_digest", lambda automaton: "0" * 64)
    with pytest.raises(UsageError, match="by another version of guardwrap"):
        guarded_of(learned=saved[0]).run(WORLD.prompt, **CALL)


def changed(saved, tmp_path, **arrays):
    with np.load(saved[0]) as file:
        content = {**{name: file[name] for name in file.files}, **arrays}
    np.savez(tmp_path / "changed.npz", **content)
    return tmp_path / "changed.npz"


@pytest.mark.parametrize(
    "arrays",
    [
        {"header": np.frombuffer(b"{}", dtype=np.uint8)},
        {"states": np.array([0, 10_000])},
        {"visits": np.array([[1]])},
        {"ends": np.array([np.nan])},
        {"data": np.array(["a"])},
        {"indices": np.array([-1])},
        {"indptr": np.array([0, 10**9])},
        {"visits": np.array([{}], dtype=object)},
    ],
)
def test_a_damaged_file_is_refused(saved, tmp_path, arrays):
    with pytest.raises(UsageError, match="is no twist for this constraint; give a file that save_twist"):
        guarded_of(learned=changed(saved, tmp_path, **arrays)).run(WORLD.prompt, **CALL)


def test_a_file_with_negative_sums_is_refused(saved, tmp_path):
    with np.load(saved[0]) as file:
        data = -file["data"]
    with pytest.raises(UsageError, match="is no twist"):
        guarded_of(learned=changed(saved, tmp_path, data=data)).run(WORLD.prompt, **CALL)


def test_files_that_are_none(saved, tmp_path, monkeypatch):
    for content in (b"", b"robot", json.dumps({}).encode()):
        (tmp_path / "none.npz").write_bytes(content)
        with pytest.raises(UsageError, match="is no twist"):
            guarded_of(learned=tmp_path / "none.npz").run(WORLD.prompt, **CALL)
    with pytest.raises(UsageError, match=r"cannot read the twist .*: No such file"):
        guarded_of(learned=tmp_path / "missing.npz").run(WORLD.prompt, **CALL)
    with zipfile.ZipFile(saved[0]) as archive:
        size = sum(part.file_size for part in archive.infolist())
    monkeypatch.setattr(twist_file, "MOST_BYTES", size - 1)
    with pytest.raises(UsageError, match="is no twist"):
        guarded_of(learned=saved[0]).run(WORLD.prompt, **CALL)


def test_what_cannot_be_saved(saved, tmp_path):
    guarded = GuardedGenerator(WORLD.pipeline(), RULE, proposal=Masked())
    guarded.run(WORLD.prompt, **CALL)
    with pytest.raises(UsageError, match="no twist was learned for this constraint; draw texts with"):
        guarded.save_twist(tmp_path / "none.npz")
    again = guarded_of(learned=saved[0])
    again.run(WORLD.prompt, **CALL)
    with pytest.raises(UsageError, match=r"cannot write the twist .*; choose another path"):
        again.save_twist(tmp_path / "no" / "folder.npz")
    with pytest.raises(UsageError, match=r"Twisted\(learned=3\): pass the path"):
        Twisted(learned=3)  # type: ignore[arg-type]  # an invalid value


def test_a_twist_in_a_file_of_constraints(saved):
    """Its path is relative to the file."""
    path, before = saved
    file = path.with_name("rule.yaml")
    file.write_text(
        "guardwrap: 1\nconstraint: {kind: keyword, words: ab, whole_words: false}\n"
        "proposal: {twisted: {learned: ab.npz}}\n"
    )
    guarded = GuardedGenerator(WORLD.pipeline(), file)
    assert guarded.run(WORLD.prompt, **CALL)[0].texts == before.texts
    proposal = parse(file.read_text()).proposal
    assert isinstance(proposal, Twisted)
    assert proposal_spelt(proposal) == {"twisted": {"learned": "ab.npz"}}
