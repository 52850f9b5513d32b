"""Attempts that are kept: used again, gone on with, and never more than what the constraint let through."""

import pytest
from placed import Source, placed

from guardwrap import Regex
from guardwrap.errors import UsageError
from guardwrap.evaluation import recording, tradeoff
from guardwrap.evaluation.run import evaluate
from guardwrap.evaluation.settings import Settings

SECRET = "eeeeeeeeee"  # a text without an a
SETTINGS = Settings(
    constraint="x", prompts=["Tell me."], proposals={"cap": "Use an a. {prompt}"}, attempts=250, steps=[1], texts=60
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(recording, "CHUNK", 100)
    monkeypatch.setattr(tradeoff, "diversity", lambda texts: {})
    monkeypatch.setattr("guardwrap.evaluation.figures.diversity", lambda texts: {})


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
    assert [count for _, count, _ in more.calls] == [100, 100]
    assert run(tmp_path / "out", again).to_dict() == whole, "a longer recording serves a shorter one"
    assert again.calls == []
    other = Source(placed())
    run(tmp_path / "out", other, generation={"temperature": 2.0})
    assert len(other.calls) == 6, "another law has a recording of its own"
    assert len(list((tmp_path / "out" / "attempts").iterdir())) == 4
    assert all(SECRET not in path.read_text() for path in tmp_path.rglob("*.jsonl")), "unchecked text never gets out"


def test_an_interruption_loses_one_chunk_at_most(tmp_path):
    class Interrupted(Source):
        def attempts(self, *args, **options):
            if len(self.calls) == 4:
                raise KeyboardInterrupt
            return super().attempts(*args, **options)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Interrupted(placed()))
    (path,) = (tmp_path / "attempts").glob("cap-*")
    path.write_bytes(path.read_bytes()[:-10])  # half a line, as where the power fails
    source = Source(placed())
    assert run(tmp_path, source).to_dict() == run(tmp_path / "whole").to_dict()
    assert [(template is None, count) for template, count, _ in source.calls] == [
        (False, 100),
        (False, 100),
        (False, 50),
    ]


@pytest.mark.parametrize("broken", [b"{}\n", b"[1]\n", b"no\n", b'{"law": {}, "versions": {}}\n'])
def test_a_recording_of_something_else(tmp_path, broken):
    run(tmp_path)
    (path,) = (tmp_path / "attempts").glob("cap-*")
    path.write_bytes(broken)
    with pytest.raises(UsageError, match="is not a recording of these attempts; remove it"):
        run(tmp_path)


def test_a_source_that_gives_too_few(tmp_path):
    class Short(Source):
        def attempts(self, *args, **options):
            return [attempts[:-1] for attempts in super().attempts(*args, **options)]

    with pytest.raises(UsageError, match="asked for 100 attempts a prompt"):
        run(tmp_path, Short(placed()))
