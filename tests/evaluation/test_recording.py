"""Recorded attempts: used again, continued, and without texts that violate the constraint."""

import json
import os
import re

import pytest

from guardwrap import Regex
from guardwrap.errors import UsageError
from guardwrap.evaluation import evaluation_run as recording
from guardwrap.evaluation import tradeoff
from guardwrap.evaluation.evaluation_run import evaluate
from guardwrap.evaluation.evaluation_settings import EvaluationSettings
from tests.evaluation.fixtures_recordings import Source, placed, undrawn

SECRET = "eeeeeeeeee"  # a text without an a
SETTINGS = EvaluationSettings(
    constraint="x", prompts=["Tell me."], proposals={"cap": "Use an a. {prompt}"}, attempts=250, steps=[1], texts=60
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(recording, "CHUNK", 100)
    monkeypatch.setattr(tradeoff, "diversity", lambda texts: {})
    monkeypatch.setattr("guardwrap.evaluation.figures.diversity", lambda texts: {})
    undrawn(monkeypatch)


def run(folder, source=None, **changes):
    return evaluate(source or Source(placed()), SETTINGS.model_copy(update=changes), Regex("a"), folder)


def test_attempts_are_kept(tmp_path):
    whole = run(tmp_path / "once").to_dict()
    source = Source(placed())
    assert run(tmp_path / "out", source).to_dict() == whole
    assert len(source.calls) == 6
    assert len({seed for _, _, seed in source.calls}) == 6, "no randomness is shared"
    again = Source(placed())
    assert run(tmp_path / "out", again).to_dict() == whole
    assert again.calls == []
    more = Source(placed())
    run(tmp_path / "out", more, attempts=300)
    assert [count for _, count, _ in more.calls] == [50, 50], "nothing that is made is thrown away"
    assert run(tmp_path / "out", again).to_dict() == whole, "a longer recording serves a shorter one"
    assert again.calls == []
    other = Source(placed())
    run(tmp_path / "out", other, generation={"temperature": 2.0})
    assert len(other.calls) == 6, "another law has a recording of its own"
    assert len(list((tmp_path / "out" / "attempts").iterdir())) == 4
    assert all(SECRET not in path.read_text() for path in tmp_path.rglob("*.jsonl")), "unchecked text never gets out"


def test_what_is_kept_is_told_apart_from_what_is_drawn(tmp_path):
    told = []

    def tick(attempts, *, kept=False):
        told.append((attempts, kept))

    settings = SETTINGS.model_copy(update={"prompts": ["Tell me.", "Say."]})
    evaluate(Source(placed()), settings, Regex("a"), tmp_path, tick)
    assert set(told) == {(0, True), (1, False)}, "one by one, as they are drawn"
    assert sum(attempts for attempts, _ in told) == 2 * 2 * 250
    told.clear()
    evaluate(Source(placed()), settings.model_copy(update={"attempts": 260}), Regex("a"), tmp_path, tick)
    assert [attempts for attempts, kept in told if kept] == [2 * 250] * 2
    assert sum(attempts for attempts, kept in told if not kept) == 2 * 2 * 10


def adapter(folder, *, weights=b"weights", rank=8):
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    return folder


def drawn(folder, **proposals):
    """Evaluate, and return which proposals were drawn from."""
    source = Source(placed())
    run(folder, source, proposals=proposals, attempts=50)
    return [given for given, _, _ in source.calls]


def test_a_changed_adapter_is_drawn_anew(tmp_path):
    small = adapter(tmp_path / "small")
    given = {"adapter": str(small)}
    assert drawn(tmp_path / "out", x=given) == [str(small), None]
    assert drawn(tmp_path / "out", x=given) == []
    (small / "README.md").write_text("About it.")
    assert drawn(tmp_path / "out", x=given) == [], "no part of what it computes"
    moved = adapter(tmp_path / "moved")
    assert drawn(tmp_path / "out", x={"adapter": str(moved)}) == [], "the same files elsewhere"
    adapter(small, weights=b"others")
    assert drawn(tmp_path / "out", x=given) == [str(small)]
    adapter(small, weights=b"others", rank=4)
    assert drawn(tmp_path / "out", x=given) == [str(small)]
    (small / "more.safetensors").write_bytes(b"")
    assert drawn(tmp_path / "out", x=given) == [str(small)]


def test_a_ready_made_adapter_of_a_new_version_is_drawn_anew(tmp_path, monkeypatch):
    folder, given = adapter(tmp_path / "small"), {"adapter": "catalogue:small"}
    monkeypatch.setattr("guardwrap.support.network.adapters", lambda: {"small": folder})
    assert drawn(tmp_path / "out", x=given) == ["catalogue:small", None]
    assert drawn(tmp_path / "out", x=given) == []
    adapter(folder, weights=b"others")
    assert drawn(tmp_path / "out", x=given) == ["catalogue:small"]


def test_negative_control_a_digest_that_does_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("guardwrap.evaluation.evaluation_run._digest", lambda source: source)
    given = {"adapter": str(adapter(tmp_path / "small"))}
    drawn(tmp_path / "out", x=given)
    adapter(tmp_path / "small", weights=b"others")
    assert drawn(tmp_path / "out", x=given) == [], "attempts of other weights"


def test_kinds_of_proposals_are_told_apart(tmp_path):
    folder = str(adapter(tmp_path / "small"))
    kinds = [{"adapter": folder}, {"model": folder}, {"model": "a/hub-id"}, {"adapter": "a/hub-id"}, "a{prompt}"]
    sources = [folder, folder, "a/hub-id", "a/hub-id", "a{prompt}"]
    assert [drawn(tmp_path / "out", x=given)[:1] for given in kinds] == [[source] for source in sources]
    assert [drawn(tmp_path / "out", x=given) for given in kinds] == [[]] * 5


def test_a_model_is_loaded_once_and_only_to_draw(tmp_path):
    loaded = []

    def load(name):
        loaded.append(name)
        return f"loaded {name}"

    for _ in range(2):
        source = Source(placed())
        settings = SETTINGS.model_copy(update={"proposals": {"other": {"model": "m"}}})
        evaluate(source, settings, Regex("a"), tmp_path, load=load)
        assert {given for given, _, _ in source.calls} <= {None, "loaded m"}
    assert len(source.calls) == 0
    assert loaded == ["m"]


def test_an_interruption_loses_one_chunk_at_most(tmp_path):
    class Interrupted(Source):
        def attempts(self, *args, **options):
            if len(self.calls) == 1:
                raise KeyboardInterrupt
            return super().attempts(*args, **options)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Interrupted(placed()))
    (path,) = (tmp_path / "attempts").glob("cap-*")
    path.write_bytes(path.read_bytes()[:-10])  # half a line, as after a power failure
    source = Source(placed())
    assert run(tmp_path, source).to_dict() == run(tmp_path / "whole").to_dict()
    assert [(template is None, count) for template, count, _ in source.calls] == [
        (False, 100),
        (False, 100),
        (False, 50),
        (True, 100),
        (True, 100),
        (True, 50),
    ]


@pytest.mark.parametrize("broken", [b"{}\n", b"[1]\n", b"no\n", b'{"law": {}, "versions": {}}\n'])
def test_a_recording_of_something_else(tmp_path, broken):
    run(tmp_path)
    (path,) = (tmp_path / "attempts").glob("cap-*")
    path.write_bytes(broken)
    with pytest.raises(UsageError, match="is not a recording of these attempts; remove it"):
        run(tmp_path)


@pytest.mark.usefixtures("watchdog")
def test_a_named_pipe_is_no_recording(tmp_path):
    run(tmp_path)
    (path,) = (tmp_path / "attempts").glob("cap-*")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UsageError, match="is a named pipe, not a recording; remove it"):
        run(tmp_path)


def test_a_source_that_gives_too_few(tmp_path):
    class Short(Source):
        def attempts(self, *args, **options):
            return [attempts[:-1] for attempts in super().attempts(*args, **options)]

    with pytest.raises(UsageError, match="did not return the requested 100 attempts per prompt"):
        run(tmp_path, Short(placed()))


def test_a_recorded_weight_is_a_number(tmp_path):
    run(tmp_path)
    (path,) = (tmp_path / "attempts").glob("cap-*")
    text = path.read_text()
    broken = re.sub(r'("log_weight": )-?[\d.]+', r"\1NaN", text, count=1)
    assert broken != text
    path.write_text(broken)
    with pytest.raises(UsageError, match="is not a recording of these attempts; remove it"):
        run(tmp_path)
