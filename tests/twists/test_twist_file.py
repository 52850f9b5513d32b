"""Twists in files: another process draws the same texts, and no other file is taken for one."""

import json
import os
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import save_file

from guardwrap import Budget, Finished, GuardedGenerator, Keyword, Length, Masked, Regex, Twisted, qrs
from guardwrap.calls import twisting
from guardwrap.constraints import parse
from guardwrap.constraints.files.file_fields import proposal_spelt
from guardwrap.errors import UsageError
from guardwrap.testing import llama_world, table_world
from guardwrap.twists import twist_file
from guardwrap.twists.progress_of import automaton_of
from guardwrap.twists.state_values import log_values
from guardwrap.twists.tilt import MOST_TILT
from guardwrap.twists.twist_file import read_twist

qrs_sampler = sys.modules["guardwrap.samplers.qrs"]  # the package has a function of that name

RULE = Keyword("ab", whole_words=False)
WORLD = table_world(letters="abc", max_new_tokens=6, temperature=0.8)
AUTOMATON = automaton_of(RULE)
assert AUTOMATON is not None
STATES = len(AUTOMATON)
CALL = {"num_return_sequences": 20, "seed": 5, **WORLD.settings}


def guarded_of(rule=RULE, world=WORLD, **twist):
    return GuardedGenerator(world.pipeline(), rule, proposal=Twisted(**twist))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file, and the outcome of a call of the wrapper that wrote it, after it had learned from shorter texts."""
    path = tmp_path_factory.mktemp("twist") / "ab.safetensors"
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
    assert "the twist was read from a file; it had been learned from 128 attempts" in after.report.notes
    assert str(path) not in f"{after.report}{after.report!r}"
    (anew,) = guarded_of().run(WORLD.prompt, **CALL)
    assert [draw.log_proposal for draw in anew.draws] != [draw.log_proposal for draw in before.draws]


def test_a_twist_that_was_read_can_be_saved_and_used_for_longer_texts(saved, tmp_path):
    guarded = guarded_of(learned=saved[0])
    longer = {**CALL, "max_new_tokens": 9}
    (outcome,) = guarded.run(WORLD.prompt, **longer)
    guarded.save_twist(tmp_path / "again.safetensors")
    (again,) = guarded_of(learned=tmp_path / "again.safetensors").run(WORLD.prompt, **longer)
    assert again.texts == outcome.texts
    assert "from 128 attempts" in again.report.notes[0]


def test_a_twist_of_another_model_is_used_and_noted(saved):
    other = table_world(7, letters="abc", max_new_tokens=6, temperature=0.8)
    (outcome,) = guarded_of(world=other, learned=saved[0]).run(other.prompt, **{**CALL, **other.settings})
    assert all("ab" in text for text in outcome.texts)
    assert any("of another model" in note for note in outcome.report.notes)


@pytest.mark.slow
def test_the_tilt_is_saved_for_the_model_that_it_was_learned_for(tmp_path, monkeypatch):
    """Negative control: without the tilt, the same texts have other probabilities."""
    world, rule = llama_world(letters="abc", max_new_tokens=6, temperature=0.8), Keyword("abcab", whole_words=False)
    call = {**CALL, **world.settings, "num_return_sequences": 2}
    path = tmp_path / "abcab.safetensors"
    monkeypatch.setattr(twisting, "decided", lambda *ways: (False, ""))  # a file has no mixture to write words with
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

    monkeypatch.setattr("guardwrap.calls.twisting.read_twist", lambda *args: (*read_twist(*args)[:2], None))
    (plain,) = guarded_of(rule, world, learned=path).run(world.prompt, **call)
    assert [draw.log_proposal for draw in plain.draws] != [draw.log_proposal for draw in before.draws]


@pytest.mark.parametrize("rule", [Keyword("ba", whole_words=False), RULE & Length(max=4, unit="characters")])
def test_a_twist_of_another_constraint_is_refused(saved, rule):
    with pytest.raises(UsageError, match=r"was learned for another constraint|is no twist for this constraint"):
        guarded_of(rule, learned=saved[0]).run(WORLD.prompt, **CALL)


def test_a_twist_of_another_automaton_is_refused(saved, monkeypatch):
    monkeypatch.setattr("guardwrap.calls.twisting.automaton_digest", lambda automaton: "0" * 64)
    with pytest.raises(UsageError, match="by another version of guardwrap"):
        guarded_of(learned=saved[0]).run(WORLD.prompt, **CALL)


def contents(path):
    """Return the tensors of a file, and the fields of its header."""
    with safe_open(path, framework="numpy") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["guardwrap_twist"])  # noqa: SIM118


def changed(saved, tmp_path, header=None, metadata=None, **tensors):
    """Write a file again with other tensors, where None leaves one out, and other fields of its header."""
    known, fields = contents(saved[0])
    fields = {name: value for name, value in {**fields, **(header or {})}.items() if value is not None}
    kept = {name: each for name, each in {**known, **tensors}.items() if each is not None}
    save_file(kept, tmp_path / "changed.safetensors", metadata or {"guardwrap_twist": json.dumps(fields)})
    return tmp_path / "changed.safetensors"


DAMAGED: dict[str, dict[str, Any]] = {
    "no metadata": {"metadata": {"other": "{}"}},
    "no JSON": {"metadata": {"guardwrap_twist": "robot"}},
    "deep JSON": {"metadata": {"guardwrap_twist": '{"format": ' + "[" * 40_000}},
    "an old version": {"header": {"format": 1}},
    "a field too many": {"header": {"tokens": 10**18}},
    "a field too few": {"header": {"attempts": None}},
    "negative attempts": {"header": {"attempts": -1}},
    "attempts that are no number": {"header": {"attempts": "768"}},
    "no digest": {"header": {"constraint": "../etc"}},
    "a tensor too few": {"tilt": None},
    "a tensor too many": {"more": np.zeros(1)},
    "a state that the constraint lacks": {"states": np.array([0, 10_000])},
    "a matrix": {"visits": np.array([[1]])},
    "another type": {"visits": np.ones(3, dtype=np.float64)},
    "a short type": {"ends": np.zeros(3, dtype=np.float16)},
    "negative visits": {"visits": lambda visits: -visits},
    "no visits": {"visits": lambda visits: 0 * visits},
    "NaN": {"ends": lambda ends: ends * np.nan},
    "infinity": {"sums": lambda sums: sums + np.inf},
    "a tilt without a number": {"tilt": np.array([0.0, np.nan])},
    "negative sums": {"sums": lambda sums: -sums},
    "sums that are too large": {"sums": lambda sums: 1e300 * sums},
    "sums that do not add up": {"sums": lambda sums: 0.9 * sums},
    "lengths that differ": {"ends": lambda ends: ends[:-1]},
    "negative successors": {"after": lambda after: after - 10},
    "successors out of order": {"after": lambda after: after[::-1].copy()},
    "rows that do not begin at 0": {"begins": lambda begins: begins + 1},
    "rows that run backward": {"begins": lambda begins: begins[::-1].copy()},
    "rows of another number": {"begins": np.zeros(0, dtype=np.int64)},
    "a huge row": {"begins": lambda begins: np.append(begins[:-1], 2**62)},
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_refused(saved, tmp_path, damage):
    known, _ = contents(saved[0])
    parts = {name: part(known[name]) if callable(part) else part for name, part in DAMAGED[damage].items()}
    with pytest.raises(UsageError, match=r"is no twist for this constraint .*; give a file that save_twist") as refused:
        guarded_of(learned=changed(saved, tmp_path, **parts)).run(WORLD.prompt, **CALL)
    assert str(tmp_path) not in str(refused.value), "clients of a server may see it"


def test_an_unchanged_copy_is_read(saved, tmp_path):
    """Negative control of the damages."""
    (outcome,) = guarded_of(learned=changed(saved, tmp_path)).run(WORLD.prompt, **CALL)
    assert outcome.texts == saved[1].texts


def test_any_byte_may_be_flipped_and_any_end_be_missing(saved, tmp_path):
    """A damage that leaves a sound file is no error: a digit of the title, or of a sum."""
    content, states = saved[0].read_bytes(), STATES
    other, messages = tmp_path / "other.safetensors", []
    damages = [content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :] for place in range(len(content))]
    for damaged in damages + [content[:end] for end in range(0, len(content), 7)]:
        other.write_bytes(damaged)
        try:
            read_twist(other, states)
        except UsageError as error:
            messages.append(str(error))
    assert len(messages) > 0.9 * len(content)
    assert not any(str(tmp_path) in message for message in messages)


@pytest.mark.slow
def test_a_tilt_for_another_vocabulary_is_refused(tmp_path):
    world, rule = llama_world(letters="abc", max_new_tokens=6, temperature=0.8), Keyword("abcab", whole_words=False)
    guarded = guarded_of(rule, world)
    guarded.run(world.prompt, **world.settings)
    guarded.save_twist(tmp_path / "it.safetensors")
    path = changed((tmp_path / "it.safetensors",), tmp_path, tilt=np.zeros(3))
    with pytest.raises(UsageError, match="has a tilt for 3 tokens, and the model 4; learn it again"):
        guarded_of(rule, world, learned=path).run(world.prompt, **world.settings)


def test_a_tilt_of_a_file_is_kept_within_its_range(saved, tmp_path):
    path = changed(saved, tmp_path, tilt=np.array([1e308, -200.0, 1.5]))
    tilt = read_twist(path, STATES)[2]
    assert tilt is not None
    assert tilt.tolist() == [MOST_TILT, -MOST_TILT, 1.5]


def header_of(shape, kind="F64", size=0):
    return {"states": {"dtype": kind, "shape": shape, "data_offsets": [0, size]}}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"robot",
        b"{}",
        b"\xff" * 8 + b"{}",
        json.dumps({}).encode(),
        *(
            len(raw).to_bytes(8, "little") + raw
            for raw in (
                b"{}",
                b"[" * 50_000,
                b"\xff\xfe",
                json.dumps(header_of([10**13], size=8 * 10**13)).encode(),
                json.dumps(header_of([2**62, 2**62], size=0)).encode(),
                json.dumps(header_of([-1])).encode(),
                json.dumps(header_of([0], "F1")).encode(),
                json.dumps({"__metadata__": {"guardwrap_twist": "{}"}}).encode(),
            )
        ),
    ],
)
def test_files_that_are_none(tmp_path, content):
    (tmp_path / "none.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match="is no twist"):
        read_twist(tmp_path / "none.safetensors", 5)


def test_files_that_cannot_be_read(saved, tmp_path, monkeypatch):
    with pytest.raises(UsageError, match=r"cannot read the twist 'missing.safetensors': No such file"):
        read_twist(tmp_path / "missing.safetensors", 5)
    with pytest.raises(UsageError, match=r"cannot read the twist .*: Is a directory"):
        read_twist(tmp_path, 5)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=r"cannot read the twist 'pipe': it is a named pipe"):
        read_twist(tmp_path / "pipe", 5)
    monkeypatch.setattr(twist_file, "MOST_BYTES", saved[0].stat().st_size - 1)
    with pytest.raises(UsageError, match=r"it has more than .* bytes"):
        read_twist(saved[0], 5)
    guarded = guarded_of()
    guarded.run(WORLD.prompt, **CALL)
    with pytest.raises(UsageError, match="are read at most"):
        guarded.save_twist(tmp_path / "large.safetensors")


def test_no_more_values_are_computed_than_a_call_needs(saved, monkeypatch):
    rows = []

    def counted(automaton, counts, tokens):
        rows.append(tokens)
        return log_values(automaton, counts, tokens)

    monkeypatch.setattr(twisting, "log_values", counted)
    guarded_of(learned=saved[0]).run(WORLD.prompt, **CALL)
    assert max(rows) == CALL["max_new_tokens"]
    monkeypatch.setattr(twisting, "MOST_PRODUCTS", 10)
    with pytest.raises(
        UsageError, match="has too many transitions for texts of 6 tokens; set max_new_tokens to at most"
    ):
        guarded_of(learned=saved[0]).run(WORLD.prompt, **CALL)


@pytest.mark.parametrize("count", [40, 400])
def test_what_a_tilt_hides_is_reported(saved, tmp_path, count, monkeypatch):
    """Of two letters, the file tilts one away. Negative control: without the bound, and what it says of the unseen."""
    world, rule = llama_world(letters="ab ", max_new_tokens=5, seed=2, dtype=torch.float32), Finished() & Regex("ab")
    monkeypatch.setattr(twisting, "rounds_of", lambda attempts: (32,) * 3)
    guarded = guarded_of(rule, world)
    guarded.run(world.prompt, **world.settings)
    guarded.save_twist(tmp_path / "it.safetensors")
    path = changed((tmp_path / "it.safetensors",), tmp_path, tilt=np.array([0.0, 0.0, 0.0, -200.0]))
    gold = world.gold(rule)

    def distances():
        outcome = guarded_of(rule, world, learned=path).run(
            world.prompt,
            num_return_sequences=count,
            sampler=qrs(target_tvd=0.02),
            seed=1,
            budget=Budget(max_attempts=None),
            **world.settings,
        )[0]
        ids = Counter(draw.token_ids for draw in outcome.draws)
        true = sum(max(share - ids[each] / count, 0) for each, share in gold.items())
        return true, outcome.report.evidence["tvd"].high

    true, reported = distances()
    assert true > 0.15
    assert true <= reported
    monkeypatch.setattr(twisting, "LEAST_SHARE", 1e-12)
    monkeypatch.setattr(qrs_sampler, "unseen_share", lambda weights, most: 0.0)
    true, reported = distances()
    assert true > reported + 0.1


def test_what_cannot_be_saved(saved, tmp_path):
    guarded = GuardedGenerator(WORLD.pipeline(), RULE, proposal=Masked())
    guarded.run(WORLD.prompt, **CALL)
    with pytest.raises(UsageError, match="no twist was learned for this constraint; draw texts with"):
        guarded.save_twist(tmp_path / "none.safetensors")
    again = guarded_of(learned=saved[0])
    again.run(WORLD.prompt, **CALL)
    with pytest.raises(UsageError, match=r"cannot write the twist .*; choose another path"):
        again.save_twist(tmp_path / "no" / "folder.safetensors")
    with pytest.raises(UsageError, match=r"Twisted\(learned=3\): pass the path"):
        Twisted(learned=3)  # type: ignore[arg-type]  # an invalid value


def test_a_twist_in_a_file_of_constraints(saved):
    """Its path is relative to the file."""
    path, before = saved
    file = path.with_name("rule.yaml")
    file.write_text(
        "guardwrap: 1\nconstraint: {kind: keyword, words: ab, whole_words: false}\n"
        "proposal: {twisted: {learned: ab.safetensors}}\n"
    )
    guarded = GuardedGenerator(WORLD.pipeline(), file)
    assert guarded.run(WORLD.prompt, **CALL)[0].texts == before.texts
    proposal = parse(file.read_text()).proposal
    assert isinstance(proposal, Twisted)
    assert proposal_spelt(proposal) == {"twisted": {"learned": "ab.safetensors"}}
