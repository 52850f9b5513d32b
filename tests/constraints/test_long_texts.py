"""The cost of verdicts on long texts: each text is read a bounded number of times, and kept once."""

import long_texts
import pytest

from guardwrap.constraints import Verdict, checking
from guardwrap.constraints.base import Constraint
from guardwrap.constraints.prefix_reader import READ_AGAIN, READ_ALWAYS, PrefixReader
from guardwrap.engine.scheduling.backend import TokenIds, last_state
from guardwrap.models.early_abort import PrefixWatch

LENGTH, PIECE = 6_000, 4
TEXTS = long_texts.texts()


def characters_read(rule: Constraint, text: str, patch: pytest.MonkeyPatch) -> int:
    """Return how many characters the rule's verdicts read while the text grows."""
    read = 0
    verdict = checking.run_verdict

    def counted(constraint: Constraint, prefix: str) -> Verdict:
        nonlocal read
        read += len(prefix)
        return verdict(constraint, prefix)

    patch.setattr(checking, "run_verdict", counted)
    reader = PrefixReader(rule)
    reading = reader.start
    for end in range(PIECE, LENGTH, PIECE):
        reading = reader.read(reading, text[:end])
        assert reading.blame is None, end
    return read


@pytest.mark.parametrize("name", long_texts.RULES)
def test_a_text_is_read_a_bounded_number_of_times(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, rule = long_texts.RULES[name]
    always = READ_ALWAYS * READ_ALWAYS // (2 * PIECE)
    most = len(rule.parts) * (always + READ_AGAIN * LENGTH)
    assert characters_read(rule, TEXTS[text], monkeypatch) <= most


def test_negative_control_a_rule_that_rereads_at_each_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking.Rereading, "rereads", False)
    _, rule = long_texts.RULES["length, words"]
    assert characters_read(rule, TEXTS["prose"], monkeypatch) > 10 * READ_AGAIN * LENGTH


def test_a_watch_keeps_one_reading_of_an_attempt() -> None:
    watch = PrefixWatch(PrefixReader(long_texts.RULES["keyword"][1]), lambda ids, before: "a " * len(ids))
    attempt = TokenIds()
    for token in range(1_000):
        attempt.append(token)
        assert watch(attempt) is None
    length, reading = last_state(attempt, watch) or (0, None)
    assert reading is not None
    assert (length, reading.text) == (1_000, "a " * 1_000)
    assert not {name for name, value in vars(watch).items() if isinstance(value, dict | list | set)}
