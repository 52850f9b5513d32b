"""Time limits for loading a file, judging a text and verdicts, with a clock that the tests control."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hostile
import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from guardwrap import GuardedGenerator
from guardwrap.constraints import All, AnyOf, JSONSchema, Keyword, Not, Python, Regex, Verdict, parse, prefix_reader
from guardwrap.constraints.checking import judge, run_check, run_verdict
from guardwrap.constraints.json.json_schema import fenced
from guardwrap.constraints.json.references import References
from guardwrap.constraints.kinds.text_constraint import TextConstraint
from guardwrap.constraints.prefix_reader import PATIENCE, PrefixReader
from guardwrap.errors import CheckFailed, ConstraintError, SpecError, Unsatisfiable
from guardwrap.outcomes import Draw
from guardwrap.support import time_limits
from guardwrap.testing import llama_world
from tests.constraints.fixtures_strategies import profile

ROOT = Path(__file__).parents[2]


@contextmanager
def watched(seconds: int = 20) -> Iterator[None]:
    """Fail if something hangs."""

    def bark(*_: Any) -> None:
        raise AssertionError(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, bark)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time_limits, "now", made)
    monkeypatch.setattr(prefix_reader, "now", made)
    return made


@dataclass(frozen=True, eq=False, repr=False)
class Busy(TextConstraint):
    """Takes a number of seconds for each text, and then checks the time limit."""

    seconds: float
    clock: Clock
    verdict_found: Verdict = Verdict.UNDECIDED
    on: Any = "completion"
    calls: list[str] = field(default_factory=list)
    name: str = "busy"

    def spec(self) -> dict[str, Any]:
        return {"kind": "busy", "id": id(self)}

    def holds(self, text: str) -> bool:
        self.calls.append(text)
        self.clock.seconds += self.seconds
        time_limits.check_deadline()
        return True

    def prefix_verdict(self, prefix: str) -> Verdict:
        self.holds(prefix)
        return self.verdict_found


def drawn(*texts: str) -> list[Draw]:
    return [Draw("", (), text) for text in texts]


# ------------------------------------------------------------------------------------------------------- one text


@pytest.mark.parametrize(
    "kind", [All, lambda parts: Not(AnyOf([Not(part) for part in parts])), lambda p: All([All(p)])]
)
def test_all_parts_together_have_one_limit(clock, kind):
    parts = [Busy(0.4, clock) for _ in range(500)]
    with pytest.raises(
        CheckFailed, match="when the 2 s that all parts together may spend on one text of 6 char"
    ) as caught:
        run_check(kind(parts), drawn("secret"))
    assert "secret" not in str(caught.value)
    assert sum(len(part.calls) for part in parts) == 5


def test_the_limit_is_of_one_text_and_not_of_the_batch(clock):
    constraint = Busy(0.7, clock) & Busy(0.7, clock)
    assert run_check(constraint, drawn(*"abcdefgh")) == [True] * 8
    assert all(judgement.satisfied for judgement in judge(constraint, drawn(*"abcdefgh")))
    with pytest.raises(CheckFailed):
        run_check(constraint & Busy(0.7, clock), drawn(*"abcdefgh"))


def test_all_parts_of_a_view_have_one_limit(clock):
    busy = Busy(0.4, clock, on="lines")
    with pytest.raises(CheckFailed, match="ran out"):
        busy.accepts("a\n" * 100)
    assert len(busy.calls) == 5


def test_the_users_own_functions_have_no_limit(clock):
    def slow(text: str) -> bool:
        clock.seconds += 50
        return True

    assert (Python(slow) & Busy(1.5, clock)).accepts("a")
    assert (Python(slow) & Regex("a")).accepts("a")


def test_a_limit_is_that_of_its_thread(clock):
    seen: list[bool] = []

    def other() -> None:
        seen.append(Regex("a").accepts("a"))

    with time_limits.time_limit(1):
        clock.seconds = 5
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with pytest.raises(time_limits.TimeLimit):
            time_limits.check_deadline()
    assert seen == [True]
    time_limits.check_deadline()


def test_of_limits_in_each_other_the_earliest_holds(clock):
    with time_limits.time_limit(1), time_limits.time_limit(5):
        assert time_limits.seconds_left() == 1
        assert time_limits.seconds_left(0.25) == 0.25
    with time_limits.time_limit(5), time_limits.time_limit(1):
        assert time_limits.seconds_left() == 1
    assert time_limits.seconds_left() is None


# --------------------------------------------------------------------------------------------------------- verdicts


class Spy:
    """A stand-in for a compiled expression that records the timeouts."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def search(self, text: str, timeout: float) -> None:
        self.seconds.append(timeout)
        raise TimeoutError


@pytest.mark.parametrize("on", ["sentences", "lines", "first_sentence"])
def test_a_verdict_in_a_view_has_the_time_of_a_verdict(on):
    constraint, spy = Regex("a", on=on), Spy()
    constraint.__dict__["compiled"] = spy
    assert constraint.verdict("A b.\nC d.\n") is Verdict.UNDECIDED
    assert len(spy.seconds) == 1
    assert max(spy.seconds) <= time_limits.VERDICT_SECONDS


def test_a_clock_that_was_ahead_gives_no_more_than_the_limit():
    time_limits.now()
    time_limits._clock.cpu += 0.9 * time_limits._STALE  # as if another thread had run meanwhile
    with time_limits.time_limit(0.05):
        time_limits._clock.read_at = float("-inf")
        assert 0 < (time_limits.seconds_left() or 0) <= 0.05


def test_a_verdict_out_of_time_is_undecided(clock):
    busy = Busy(0.04, clock, Verdict.VIOLATED)
    assert run_verdict(busy, "a") is Verdict.VIOLATED
    assert run_verdict(AnyOf([busy] * 9), "a") is Verdict.UNDECIDED
    assert run_verdict(Not(All([Busy(0.04, clock, Verdict.SATISFIED)] * 9)), "a") is Verdict.UNDECIDED


def test_a_part_whose_verdicts_are_slow_is_given_up(clock):
    slow, quick = Busy(0.2, clock), Busy(0.001, clock, Verdict.VIOLATED, name="quick")
    reader = PrefixReader(slow & quick)
    found = [reader.read(reader.start, "a" * i).blame for i in range(1, 8)]
    assert found == [None] * 3 + ["quick"] * 4
    assert (len(slow.calls), reader.slow) == (3, {0})


def test_of_several_parts_the_slowest_is_given_up(clock):
    parts = [Busy(0.045, clock), Busy(0.01, clock), Busy(0.001, clock, Verdict.VIOLATED, name="quick")]
    reader = PrefixReader(All(parts))
    assert [reader.read(reader.start, "a").blame for _ in range(4)] == [None, None, None, "quick"]
    assert reader.slow == {0}


def test_a_part_that_is_slow_now_and_then_is_not_given_up(clock):
    """A pause, as for Python's garbage collector."""
    busy = Busy(0.001, clock, Verdict.VIOLATED, name="busy")
    reader = PrefixReader(busy)
    for number in range(300):
        object.__setattr__(busy, "seconds", 0.2 if number % 100 == 0 else 0.001)
        assert reader.read(reader.start, f"a{number}").blame == (None if number % 100 == 0 else "busy")


def test_verdicts_on_all_candidates_of_a_token_have_a_limit_too(clock):
    """Each verdict is in time, but a thousand of them would delay the batch by 40 s."""
    slow = Busy(0.04, clock)
    reader = PrefixReader(slow & Busy(0.0, clock, Verdict.VIOLATED, name="quick"))
    for number in range(1, 4):
        began = clock.seconds
        assert not any(reader.violated(reader.start, [f"a{i}" for i in range(1000)]))  # UNDECIDED, so not masked
        assert 1.9 < clock.seconds - began < 2.1
        assert reader.slow == ({0} if number == 3 else set())
    calls = len(slow.calls)
    assert all(reader.violated(reader.start, ["a", "b"]))
    assert len(slow.calls) == calls


def test_verdicts_on_candidates_that_are_in_time_are_not_given_up(clock):
    reader = PrefixReader(Busy(0.04, clock, Verdict.VIOLATED))
    for _ in range(20):
        assert all(reader.violated(reader.start, [f"a{i}" for i in range(45)]))
    assert not reader.slow


def test_the_users_prefix_function_uses_up_no_ones_time(clock):
    def slow(prefix: str) -> Verdict:
        clock.seconds += 50
        return Verdict.UNDECIDED

    reader = PrefixReader(Python(lambda text: True, prefix=slow) & Keyword("a", match="none"))
    assert reader.read(reader.start, "b a c").blame is not None
    assert not reader.slow


def test_a_users_prefix_function_may_judge_whole_texts(clock):
    busy = Busy(1.5, clock)
    asking = Python(lambda text: True, prefix=lambda text: Verdict(busy.accepts(text)))
    assert run_verdict(asking, "a") is Verdict.SATISFIED


class Hesitant(TextConstraint):
    """Never completes a verdict."""

    on = "completion"
    name = "hesitant"
    asked = 0

    def spec(self) -> dict[str, Any]:
        return {"kind": "hesitant"}

    def holds(self, text: str) -> bool:
        return True

    def prefix_verdict(self, prefix: str) -> Verdict:
        type(self).asked += 1
        raise time_limits.TimeLimit(0.05, shared=True)


def test_a_call_gives_up_a_slow_part():
    world = llama_world(letters="ab", max_new_tokens=6)
    guarded = GuardedGenerator(world.pipeline(), Hesitant() & ~Regex("bbb"), seed=1)
    for calls in (1, 2):
        guarded.run([world.prompt] * 5, progress=False, **world.settings)
        assert Hesitant.asked == calls * (PATIENCE + 1)


# -------------------------------------------------------------------------------------------------- what once hung


def test_a_schema_with_many_anchors_is_crawled_once(monkeypatch):
    crawled, crawl = [], References.add

    def counting(self: References, *arguments: Any, **options: Any) -> None:
        crawled.append(arguments)
        crawl(self, *arguments, **options)

    JSONSchema({})  # reads the meta-schema, if that has not happened yet
    monkeypatch.setattr(References, "add", counting)
    count = 300
    schema = {
        "$defs": {f"d{i}": {"$anchor": f"a{i}", "minimum": i} for i in range(count)},
        "items": {"anyOf": [{"$ref": f"#a{i}"} for i in reversed(range(count))]},
    }
    made = JSONSchema(schema)
    assert made.accepts("[0, 1]")
    assert not made.accepts("[-1]")
    assert len(crawled) == 1


def test_references_that_double_end(monkeypatch):
    monkeypatch.setattr(time_limits, "CHECK_SECONDS", 0.1)
    parts: dict[str, Any] = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
    made = JSONSchema({"$defs": {**parts, "d40": {}}, "$ref": "#/$defs/d0"})
    with watched(), pytest.raises(CheckFailed, match="ran out"):
        made.accepts("1")


@pytest.mark.parametrize(
    "schema", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"not": {"$ref": "#"}}, {"unevaluatedItems": {"$ref": "#"}}]
)
def test_references_in_circles_end(schema):
    with watched(), pytest.raises(CheckFailed, match="nested too deeply"):
        JSONSchema({**schema, "contains": {"$ref": "#"}}).accepts("[" * 400 + "]" * 400)


def further(frames: int, judge: Any) -> Any:
    return further(frames - 1, judge) if frames else judge()


@pytest.mark.parametrize(
    "schema",
    [
        {"$dynamicAnchor": "n", "items": {"$dynamicRef": "#n"}, "unevaluatedItems": {"not": {"$ref": "#n"}}},
        {
            "allOf": [{"$ref": "#/$defs/a"}],
            "$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"items": {"$ref": "#"}}},
        },
        {"$id": "a:b", "$ref": "#/$defs/x", "$defs": {"x": {"$id": "a:c", "$anchor": "q", "items": {"$ref": "#q"}}}},
    ],
    ids=["dynamic", "not", "ids"],
)
def test_the_stack_never_ends_within_rust(schema):
    """A panic in the library is not an Exception. Each run ends in another of the library's frames."""
    made, deep = JSONSchema(schema), "[" * 450 + "]" * 450
    for frames in range(0, 80):
        with pytest.raises(CheckFailed, match="nested too deeply"):
            further(frames, lambda: made.accepts(deep))


def test_a_schema_nested_too_deep_is_refused():
    schema: Any = {}
    for _ in range(300):
        schema = {"not": schema}
    with pytest.raises(ConstraintError, match="nested too deeply"):
        JSONSchema(schema)


def test_branches_keep_no_errors(monkeypatch):
    """Each error has the whole value in its message: many branches times a long text exceed all memory."""
    monkeypatch.setattr(time_limits, "CHECK_SECONDS", 1.0)
    text = json.dumps(["a" * 100_000])
    branches = [{"type": "string", "minLength": i} for i in range(400)]
    for schema in ({"anyOf": branches}, {"oneOf": branches}, {"items": {"anyOf": [{"maxLength": 1}] * 400}}):
        made = JSONSchema(schema)
        tracemalloc.start()
        assert not made.accepts(text)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
        tracemalloc.stop()


@pytest.mark.parametrize("inner", [True, {}, {"unheard": 1}])
@pytest.mark.parametrize("keyword", ["items", "contains", "unevaluatedItems"])
def test_many_items_without_a_keyword_to_judge_them_by_end(monkeypatch, keyword, inner):
    looks = 0

    def counting() -> float:
        nonlocal looks
        looks += 1
        return 0.0

    monkeypatch.setattr(time_limits, "now", counting)
    assert JSONSchema({keyword: inner}).accepts(json.dumps([1] * 1_000))
    assert looks >= 1_000 or (inner is True and keyword != "contains")  # the library returns at once for True


def test_unique_items_take_linear_time():
    items = [x for i in range(2_000) for x in (i, f"{i}", [i], {"a": i})]
    unique = JSONSchema({"uniqueItems": True})
    with watched():
        assert unique.accepts(json.dumps(items))
        assert not unique.accepts(json.dumps([*items, 1999.0]))
        assert unique.accepts(json.dumps([0, 1, False, True, "1", [1], [True]]))


@pytest.mark.parametrize("text", ["1e400", "-1e400", "1" + "0" * 400, '[{"a": 1E+999}]'])
def test_numbers_beyond_a_double_are_not_json(text):
    for schema in ({"multipleOf": 0.1}, {"items": {"additionalProperties": {"multipleOf": 0.1}}}, {}, True):
        made = JSONSchema(schema)
        assert made.accepts(text) is False
        assert (~made).accepts(text) is True
        for end in range(1, len(text) + 1):  # e-400 may still follow until another character does
            finished = end > len(text.rstrip("}]"))
            assert made.verdict(text[:end]) is (Verdict.VIOLATED if finished else Verdict.UNDECIDED)
    assert JSONSchema({"multipleOf": 0.1}).accepts("1e300")


def test_a_nested_schema_keyword_does_not_change_the_judge(monkeypatch):
    monkeypatch.setattr(time_limits, "CHECK_SECONDS", 0.1)
    inner = {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": r"^(?:\w|\w\w)+$"}
    with watched(), pytest.raises(CheckFailed, match="ran out"):
        JSONSchema({"allOf": [inner]}).accepts(json.dumps("a" * 60 + "!"))


def test_no_expression_is_run_by_re(monkeypatch):
    class Never:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError("re was asked")

    monkeypatch.setattr("jsonschema._keywords.re", Never())
    monkeypatch.setattr("jsonschema._utils.re", Never())
    of_a = {"patternProperties": {"^a": {"pattern": r"^\p{Lu}"}}, "propertyNames": {"pattern": r"^\p{L}$|^ab"}}
    for schema in (
        {**of_a, "additionalProperties": False},
        {**of_a, "unevaluatedProperties": False},
        {"$ref": "#/$defs/a", "$defs": {"a": of_a}, "unevaluatedProperties": False},
    ):
        made = JSONSchema(schema)
        assert [made.accepts(text) for text in ('{"ab": "É"}', '{"ab": "é"}', '{"b": "É"}')] == [True, False, False]


def test_a_long_timeout_is_refused():
    for seconds in (86_400, 2.5):
        with pytest.raises(ConstraintError, match="at most 2"):
            Regex("a", timeout=seconds)
    assert Regex("a", timeout=2).timeout == 2


def test_brackets_left_open(monkeypatch):
    """20 KB of them took 6 s until they were rejected, so they must not be parsed."""
    with monkeypatch.context() as nothing:
        nothing.setattr("guardwrap.constraints.regex_analysis._TOKENS", None)
        for opened in ("[" * 20_000, "[a" * 10_000, "(?x)#" + "[" * 20_000):
            with pytest.raises(ConstraintError, match=r"has more than 3000 '\['; write fewer sets"):
                Regex(opened)
    assert Regex("[ab]" * 1_000).accepts("ab" * 500)


def test_long_fixed_texts():
    with pytest.raises(ConstraintError, match="more than 500 fixed characters in a row; use a Keyword"):
        Regex("ab" * 300)
    word = "aß" * 600
    assert Keyword(word).accepts(f"x {word.upper().replace('SS', 'ß')} y")
    assert not Keyword(word).accepts(f"x {word}a y")


@pytest.mark.slow
def test_contradictions_are_seen_among_many_parts():
    parts = [Keyword(f"w{i}") for i in range(1_500)]
    with watched():
        All(parts)
        with pytest.raises(Unsatisfiable):
            All([*parts, ~parts[1_400]])
        with pytest.raises(Unsatisfiable):
            All([*parts[:100], Keyword("w7", match="none")])


@pytest.mark.slow
def test_many_words_that_may_stand_in_each_other():
    words = [f"w{i}" for i in range(9_000)]
    with watched():
        assert Keyword(words, max_count=1).verdict("w1 w2 w3 ") is Verdict.UNDECIDED
        assert Keyword(words[:900], max_count=1).verdict("w1 w2 w3 ") in (Verdict.UNDECIDED, Verdict.VIOLATED)


_FENCE = regex.compile(r"^[ \t]*```(?:json)?[ \t]*\n(.*?)^[ \t]*```[ \t]*$", regex.MULTILINE | regex.DOTALL)
fences = st.lists(st.sampled_from(["```", "json", "\n", " ", "\t", "{}", "a", "\r", "``"]), max_size=14).map("".join)


@profile(300)
@given(fences)
def test_blocks_are_those_of_the_plain_expression(text):
    assert [block.rstrip("\n") for block in fenced(text)] == [block.rstrip("\n") for block in _FENCE.findall(text)]


def test_many_open_fences():
    with watched():
        assert fenced("```json\n" * 100_000) == []
        assert len(fenced("```\n" * 100_000)) == 50_000


# ---------------------------------------------------------------------------------------------------------- loading


def test_loading_has_a_limit(clock, monkeypatch, tmp_path):
    compose = time_limits.check_deadline

    def slower() -> None:
        clock.seconds += 0.1
        compose()

    monkeypatch.setattr("guardwrap.support.yaml_nodes.check_deadline", slower)
    text = "guardwrap: 1\nconstraint: {kind: keyword, words: [" + "a," * 30 + "]}"
    with pytest.raises(SpecError, match=r"^f\.yaml: reading it takes more than 1\.7 s; make it smaller$"):
        parse(text, path="f.yaml")
    parse("guardwrap: 1\nconstraint: {kind: finished}")


def test_expressions_of_a_file_have_one_limit():
    head = "guardwrap: 1\nconstraint:\n  kind: any\n  of:\n"
    part = "    - {kind: regex, pattern: 'a{40000}'}\n"
    parse(head + part * 3)
    with pytest.raises(SpecError, match=r":8: constraint\.of\.3\.pattern: .*more than 150000 items together"):
        parse(head + part * 5)
    parse(head + part * 3)  # the count begins again for each file
    with pytest.raises(SpecError, match="words have 120000 items; at most 100000"):
        parse(f"guardwrap: 1\nconstraint: {{kind: keyword, words: {'a' * 120_000}}}")


def test_directives_have_a_limit():
    with pytest.raises(SpecError, match="more than 100 directives"):
        parse("%X\n" * 200 + "---\nguardwrap: 1")


# -------------------------------------------------------------------------------------------------- hostile files

REFUSED = ["brackets", "braces", "dashes", "documents", "repeats beyond memory", "a day's timeout"]
GIVEN_UP = [
    *("backtracking", "backtracking in lines", "references doubling", "references in a circle", "a slow pattern"),
    *("slow expressions", "a slow pattern of another draft"),
]
JUDGED = {"unique items": "True", "fences": "False", "a number beyond a double": "False", "anchors in a schema": "True"}

SCRIPT = """
import json, hostile
from guardwrap.constraints import checking
from guardwrap.constraints.kinds import text
from guardwrap.support import time_limits
time_limits.CHECK_SECONDS = 0.05
checking.VERDICT_SECONDS = text.VERDICT_SECONDS = 0.005
found = {}
for name, (file, text) in hostile.cases(0.01).items():
    print(name, flush=True)
    found[name] = hostile.measured(file(), text())["outcome"]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_hostile_files_and_texts_end():
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTHONPATH": f"{ROOT / 'benchmarks'}:{ROOT}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[-1000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) >= 100
    for name, outcome in found.items():
        assert outcome in ("True", "False") or outcome.startswith(("refused: ", "CheckFailed: ")), (name, outcome)
        assert "raised" not in outcome, (name, outcome)
    assert [name for name in REFUSED if not found[name].startswith("refused: ")] == []
    assert [name for name in GIVEN_UP if not found[name].startswith("CheckFailed: ")] == []
    assert {name: found[name] for name in JUDGED} == JUDGED


@pytest.mark.slow
def test_the_benchmark_prints_a_line_for_each_case(capsys, tmp_path):
    hostile.main(["--only", "dashes", "a number beyond a double", "--out", str(tmp_path / "found.json")])
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 7
    assert [row["outcome"][:7] for row in json.loads((tmp_path / "found.json").read_text())] == ["refused", "False"]


def test_a_firm_limit_holds_for_those_that_ignore_outer_ones() -> None:
    with time_limits.time_limit(0.0), time_limits.time_limit(10.0, ignore_outer=True):
        time_limits.check_deadline()
    with (
        time_limits.time_limit(0.0, firm=True),
        time_limits.time_limit(5.0),
        time_limits.time_limit(10.0, ignore_outer=True) as clock,
    ):
        assert clock.seconds == 0.0
        with pytest.raises(time_limits.TimeLimit):
            time_limits.check_deadline()
