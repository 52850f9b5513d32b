"""The cost of verdicts on long texts: each text is read a bounded number of times, and kept once."""

import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import long_texts
import pytest

from guardwrap.constraints import checking, escapes
from guardwrap.constraints.base import walk
from guardwrap.constraints.files.constraint_data import kinds
from guardwrap.constraints.kinds import keyword
from guardwrap.constraints.kinds.text_folding import TextFolding
from guardwrap.constraints.prefix_reader import READ_AGAIN, PrefixReader, ReadPrefix
from guardwrap.constraints.verdicts import READ_ALWAYS, Monitor
from guardwrap.engine.scheduling.backend import TokenIds, last_state
from guardwrap.models.early_abort import PrefixWatch
from guardwrap.rules import hits, parses
from guardwrap.support import time_limits

LENGTH, PIECE = 6_000, 6
TEXTS = long_texts.texts()
UNDECIDED = {"classifier", "code", "entails", "finished", "judge", "python", "similar"}
"""Kinds without verdicts on prefixes, or with a user's own."""
READERS = (
    *((checking, "run_verdict", 1), (escapes, "decodings", 0)),
    *((time_limits, "matches", 1), (time_limits, "within", 1), (TextFolding, "fold", 1), (TextFolding, "settled", 1)),
)
"""What reads a whole text, and the position of that argument."""


@contextmanager
def characters_counted(patch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count the characters of long texts that are read, each reading once, whatever it calls."""
    counts, depth = [0], 0

    def counting(read: Callable[..., Any], position: int) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal depth
            size = len(arguments[position]) - options.get("pos", 0)
            counts[0] += size if size > READ_ALWAYS and depth == 0 else 0
            depth += 1
            try:
                return read(*arguments, **options)
            finally:
                depth -= 1

        return counted

    with patch.context() as during:
        for owner, name, position in READERS:
            read = getattr(owner, name)
            counted = counting(read, position)
            modules = [each for key, each in sys.modules.items() if key.startswith("guardwrap")]
            for each in (owner, *modules):
                if vars(each).get(name) is read:
                    during.setattr(each, name, counted)
        yield counts


def characters_read(name: str, patch: pytest.MonkeyPatch) -> int:
    """Return how many characters a rule's verdicts read while its text grows."""
    text, rule = long_texts.RULES[name]
    reader = long_texts.reader_of(rule)
    reading = reader.start
    with characters_counted(patch) as counts:
        for end in range(PIECE, LENGTH, PIECE):
            reading = reader.read(reading, TEXTS[text][:end])
            assert reading.blame is None, end
    assert not reader.slow
    return counts[0]


def most_characters(name: str) -> int:
    """Return how many characters may be read: each text as often as it grows by a 32nd, as it is written and folded."""
    return len(long_texts.RULES[name][1].parts) * 2 * READ_AGAIN * LENGTH


@pytest.mark.parametrize("name", long_texts.RULES)
def test_a_text_is_read_a_bounded_number_of_times(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert characters_read(name, monkeypatch) <= most_characters(name)


def test_every_kind_and_every_monitor_is_measured() -> None:
    rules = [rule for _, rule in long_texts.RULES.values()]
    measured = {type(part) for rule in rules for part in walk(rule)}
    assert {kind for kind, rule in kinds().items() if rule not in measured} == UNDECIDED

    read = set[type[Monitor]]()
    for text, rule in long_texts.RULES.values():
        reader = long_texts.reader_of(rule)
        todo: list[Any] = [monitor for monitor, _ in reader.read(reader.start, TEXTS[text][:200]).monitors]
        while todo:
            monitor = todo.pop()
            read.add(type(monitor))
            inner = [*vars(monitor).values(), *getattr(monitor, "parts", ())]
            todo += [each for each in inner if isinstance(each, Monitor)]
    monitors = {
        each for each in subclasses(Monitor) if each.__module__.startswith(("guardwrap.constraints", "guardwrap.rules"))
    }
    abstract = {each for each in monitors if each.__abstractmethods__}
    assert {each.__qualname__ for each in monitors - abstract - read} == {"Undecided"}


def subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    """Yield all classes that derive from one."""
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


@pytest.mark.parametrize(
    ("name", "monitor"),
    [
        pytest.param("order", checking.Rereading, marks=pytest.mark.slow),
        pytest.param("no copy, one word", checking.Resuming, marks=pytest.mark.slow),
        pytest.param("parses, python", parses.LineMonitor, marks=pytest.mark.slow),
        pytest.param("secrets, one word", hits.HitMonitor, marks=pytest.mark.slow),
        ("keyword, stems of one word", keyword.KeywordMonitor),
    ],
)
def test_negative_control_a_rule_that_rereads_at_each_token(
    name: str, monitor: type[Monitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "rereads", False)
    assert characters_read(name, monkeypatch) > most_characters(name)


def test_negative_control_a_text_that_is_decoded_again_at_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def decoded(monitor: hits.HitMonitor, piece: str) -> tuple[()]:
        list(hits.decodings(monitor.closed.written.text + piece, anywhere=True))  # type: ignore[attr-defined]
        return ()

    monkeypatch.setattr(hits.HitMonitor, "_decoded", decoded)
    assert characters_read("personal data, json", monkeypatch) > most_characters("personal data, json")


def watched(name: str, tokens: int) -> tuple[PrefixWatch, TokenIds]:
    """Return an attempt of so many tokens of six characters each, and what watches it."""
    text, rule = long_texts.RULES[name]
    watch = PrefixWatch(long_texts.reader_of(rule), lambda ids, before: TEXTS[text][: PIECE * len(ids)])
    attempt = TokenIds()
    for token in range(tokens):
        attempt.append(token)
        assert watch(attempt) is None
    return watch, attempt


def test_a_watch_keeps_one_reading_of_an_attempt() -> None:
    watch, attempt = watched("keyword", 1_000)
    length, reading = last_state(attempt, watch) or (0, None)
    assert reading is not None
    assert (length, reading.text) == (1_000, TEXTS["prose"][: PIECE * 1_000])
    assert not {name for name, value in vars(watch).items() if isinstance(value, dict | list | set)}


@pytest.mark.parametrize(
    "name",
    [
        "keyword, stems of one word",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("ten rules", "personal data, json")),
    ],
)
def test_what_is_kept_of_an_attempt_is_a_few_copies_of_its_text(name: str) -> None:
    watched(name, 10)  # compiles expressions
    sizes = []
    for tokens in (200, 700):
        tracemalloc.start()
        try:
            kept = watched(name, tokens)
            sizes.append(tracemalloc.get_traced_memory()[0])
        finally:
            tracemalloc.stop()
        assert kept
    assert 4_000 / 500 * (sizes[1] - sizes[0]) < 1_000_000


def test_negative_control_a_watch_that_keeps_all_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    readings, read = [], PrefixReader.read

    def kept(reader: PrefixReader, before: ReadPrefix, text: str) -> ReadPrefix:
        readings.append(read(reader, before, text))
        return readings[-1]

    monkeypatch.setattr(PrefixReader, "read", kept)
    with pytest.raises(AssertionError):
        test_what_is_kept_of_an_attempt_is_a_few_copies_of_its_text("ten rules")
