"""Prompts of one call with different constraints, samplers, budgets and seeds."""

from typing import Any

import pytest

from guardwrap import Budget, Fallback, GuardedGenerator, Keyword, Length, Masked, Prompt, Regex
from guardwrap.constraints import ConstraintFile, constraint
from guardwrap.constraints.files.constraint_file import PerPromptOptions, parse
from guardwrap.engine.scheduling.scheduler import Scheduler
from guardwrap.errors import BudgetExhausted, UsageError
from guardwrap.testing import World

OURS = Regex("a")
EACH = [Regex("b"), None, ~Regex("c"), Keyword("d", whole_words=False) & ~Regex("^d")]
PROMPTS = ["ab", "cd", "ab", "ef"]
BUDGET = Budget(max_attempts=20_000)


def guarded_of(world: World, given: Any = OURS, **options: Any) -> GuardedGenerator:
    return GuardedGenerator(world.pipeline(), given, **{"budget": BUDGET, "batch_size": 8, **options})


def alone(world: World, number: int, given: Any, **options: Any) -> tuple[str, ...]:
    """Return the texts of a prompt in a call whose prompts all have the same options."""
    outcomes = guarded_of(world).run(
        PROMPTS, constraints=given, seed=3, num_return_sequences=3, **world.settings, **options
    )
    return outcomes[number].texts


@pytest.mark.slow
def test_each_prompt_gets_what_it_would_get_in_a_call_of_its_own_constraint(world: World) -> None:
    settings = {"seed": 3, "num_return_sequences": 3, **world.settings}
    outcomes = guarded_of(world).run(PROMPTS, constraint_each=EACH, **settings)
    expected = [OURS if own is None else OURS & own for own in EACH]
    for number, (outcome, both) in enumerate(zip(outcomes, expected, strict=True)):
        assert outcome.ok
        assert outcome.texts == alone(world, number, both)
        assert outcome.report.constraint == both.digest
        assert all(map(both.accepts, outcome.texts))
    streamed = guarded_of(world).stream(iter(PROMPTS), constraint_each=iter(EACH), **settings)
    assert [outcome.texts for outcome in streamed] == [outcome.texts for outcome in outcomes]
    records = guarded_of(world)(PROMPTS, constraint_each=EACH, return_full_text=False, **settings)
    assert [tuple(r["generated_text"] for r in each) for each in records] == [outcome.texts for outcome in outcomes]
    # Negative control: constraints in another order belong to other prompts.
    turned = guarded_of(world).run(PROMPTS, constraint_each=EACH[::-1], **settings)
    assert [outcome.texts for outcome in turned] != [outcome.texts for outcome in outcomes]


@pytest.mark.slow
def test_mappings_are_constraints_as_in_lines_of_json(world: World) -> None:
    settings = {"seed": 3, "num_return_sequences": 3, **world.settings}
    rule, data = Regex("b"), {"kind": "regex", "pattern": "b"}
    guarded = guarded_of(world)
    mappings = guarded.run(PROMPTS[:2], constraint_each=[data, None], **settings)
    for each in (rule, [rule]):
        objects = guarded.run(PROMPTS[:2], constraint_each=[each, None], **settings)
        assert [outcome.texts for outcome in objects] == [outcome.texts for outcome in mappings]
    assert guarded_of(world, data).constraint.digest == rule.digest
    with pytest.raises(UsageError, match=r"constraint_each\[0\]: pattrn: .* \(did you mean 'pattern'"):
        guarded.run(PROMPTS[:1], constraint_each=[{"kind": "regex", "pattrn": "b"}], **settings)
    with pytest.raises(UsageError, match="allow_code"):
        guarded.run(PROMPTS[:1], constraint_each=[{"kind": "python", "function": "os:remove"}], **settings)


def test_all_prompts_share_one_batch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Scheduler] = []

    class Counted(Scheduler):
        def __init__(self, *args: Any, **options: Any) -> None:
            made.append(self)
            super().__init__(*args, **options)

    monkeypatch.setattr("guardwrap.engine.scheduling.batch.Scheduler", Counted)
    guarded_of(world).run(PROMPTS, constraint_each=EACH, seed=1, **world.settings)
    assert len(made) == 1


@pytest.mark.slow
def test_a_file_brings_its_budget_and_its_sampler(world: World) -> None:
    never = ConstraintFile(Regex("^$") & Regex("x"), budget=Budget(max_attempts=7))
    each = [never, ConstraintFile(Regex("b"), sampler="imh")]
    told = guarded_of(world, proposal=Prompt("a{prompt}"))
    options = {"constraint_each": each, "top_k": 0, "seed": 1, **world.settings}
    first, second = told.run(PROMPTS[:2], **options)
    assert (first.report.usage.attempts, first.report.sampler) == (7, "rejection")
    assert (second.ok, second.report.sampler) == (True, "imh")
    first, second = told.run(PROMPTS[:2], budget=Budget(max_attempts=9), sampler="qrs", **options)
    assert (first.report.usage.attempts, first.report.sampler, second.report.sampler) == (9, "qrs", "qrs")
    with pytest.raises(BudgetExhausted):
        told(PROMPTS[:2], **options)


@pytest.mark.slow
def test_weights_and_masks_are_of_the_prompts_own_constraint(world: World) -> None:
    for options in (
        {"proposal": Masked()},
        {"proposal": Masked(), "sampler": "imh"},
        {"proposal": Prompt("a{prompt}")},
    ):
        run: dict[str, Any] = {"seed": 3, "num_return_sequences": 3, **world.settings, "top_k": 0, **options}
        outcomes = guarded_of(world).run(PROMPTS, constraint_each=EACH, **run)
        for number, own in enumerate(EACH):
            whole = guarded_of(world).run(PROMPTS, constraints=OURS if own is None else OURS & own, **run)
            assert outcomes[number].texts == whole[number].texts


def test_a_fallback_satisfies_the_prompts_own_constraint(world: World) -> None:
    guarded = guarded_of(world, on_exhausted=Fallback("ab"), budget=Budget(max_attempts=1))
    each = [Regex("x{3}") | Regex("^ab$"), Regex("x{3}")]
    first, second = guarded.run(PROMPTS[:2], constraint_each=each, seed=1, **world.settings)
    assert (first.texts, first.report.fallback) == (("ab",), True)
    assert second.texts == ()
    assert any("withheld" in note for note in second.report.notes)


def test_a_seed_of_its_own_gives_what_the_prompt_gets_alone(world: World) -> None:
    each = [
        None,
        PerPromptOptions(Regex("b"), seed=11),
        PerPromptOptions(seed=12, budget=Budget(max_attempts=5_000), sampler="imh"),
    ]
    outcomes = guarded_of(world, proposal=Masked()).run(PROMPTS[:3], constraint_each=each, seed=3, **world.settings)
    for number, seed, rest in ((1, 11, {"constraints": OURS & Regex("b")}), (2, 12, {"sampler": "imh"})):
        (single,) = guarded_of(world, proposal=Masked()).run(PROMPTS[number], seed=seed, **rest, **world.settings)
        assert outcomes[number].texts == single.texts
        assert outcomes[number].report.seed == seed
    assert outcomes[0].report.seed == 3


@pytest.mark.slow
def test_tensors_have_constraints_of_their_own(world: World) -> None:
    inputs = world.tokenizer(PROMPTS[:2], return_tensors="pt")
    guarded = guarded_of(world)
    options = {**inputs, "do_sample": True, "seed": 3, "max_new_tokens": 6}
    rows = guarded.generate(**options, constraint_each=EACH[:2])
    for number, own in enumerate(EACH[:2]):
        whole = guarded.generate(**options, constraints=OURS if own is None else OURS & own)
        one, other = (world.tokenizer.decode(r[number], skip_special_tokens=True) for r in (rows, whole))
        assert one == other
    with pytest.raises(UsageError, match="its length is 1, the number of prompts 2"):
        guarded.generate(**options, constraint_each=EACH[:1])


def test_a_plan_is_of_each_prompts_own_constraint(world: World) -> None:
    never = ConstraintFile(Regex("x{3}"), budget=Budget(max_attempts=3), sampler="imh")
    plan = guarded_of(world).plan(PROMPTS[:2], pilot=60, constraint_each=[None, never], seed=1, **world.settings)
    possible, impossible = plan.forecasts
    assert possible.pilot == impossible.pilot == 60
    assert possible.acceptance.value > 0
    assert impossible.acceptance.value == 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            Regex("b"),
            "takes a list with one constraint per prompt; for one that holds for all prompts, use constraints=",
        ),
        ("catalogue:no-urls", "takes a list with one constraint per prompt"),
        ([Regex("b")], "its length is 1, the number of prompts 2"),
        ([Regex("b")] * 3, "its length is 3, the number of prompts 2"),
        (iter([Regex("b")]), "there are more prompts"),
        (iter([Regex("b")] * 3), "there are fewer prompts"),
        ([Regex("b"), 7], r"constraint_each\[1\]: 7 .int. is not a constraint"),
        ([Regex("b"), "catalogue:no-url"], r"constraint_each\[1\]: unknown catalogue entry 'no-url'"),
        ([Regex("b"), ~OURS], r"constraint_each\[1\]: no text can satisfy both"),
        (
            [ConstraintFile(OURS, proposal=Masked()), None],
            r"constraint_each\[0\]: all prompts of a call share one proposal",
        ),
        ([PerPromptOptions(seed=-1), None], r"constraint_each\[0\]: seed=-1"),
    ],
)
def test_what_cannot_work(world: World, given: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        guarded_of(world).run(PROMPTS[:2], constraint_each=given, **world.settings)


def test_what_is_wrong_with_a_list_is_found_before_anything_is_drawn(world: World) -> None:
    asked: list[str] = []

    @constraint
    def noted(text: str) -> bool:
        asked.append(text)
        return True

    for each in ([None, 7], [None]):
        with pytest.raises(UsageError):
            guarded_of(world, noted).run(PROMPTS[:2], constraint_each=each, **world.settings)
    assert asked == []
    guarded_of(world, noted).run(PROMPTS[:2], constraint_each=[None, None], **world.settings)
    assert asked


ROW = 'guardwrap: 1\nfields: [word, n]\nconstraint: [{kind: regex, pattern: "{word}"}, {kind: length, min: "{n}"}]\n'


def test_fields_fill_the_constraint_of_each_prompt(world: World) -> None:
    file = parse(ROW, path="row.yaml")
    rows: list[dict[str, Any]] = [{"word": letter, "n": n} for letter, n in (("a", 1), ("b", 2), ("a", 1), ("c", 1))]
    settings = {"seed": 3, "num_return_sequences": 3, **world.settings}
    guarded = guarded_of(world, file)
    outcomes = guarded.run(PROMPTS, fields=rows, **settings)
    rules = [Regex(row["word"]) & Length(min=row["n"]) for row in rows]
    for number, (outcome, rule) in enumerate(zip(outcomes, rules, strict=True)):
        assert outcome.report.constraint == rule.digest
        assert all(map(rule.accepts, outcome.texts))
        assert outcome.texts == alone(world, number, rule)
    same = guarded.run(PROMPTS, constraint_each=[PerPromptOptions(fields=row) for row in rows], **settings)
    assert [outcome.texts for outcome in same] == [outcome.texts for outcome in outcomes]
    filled = guarded_of(world).run(PROMPTS, constraint_each=[file.filled(row) for row in rows], **settings)
    assert [outcome.report.constraint for outcome in filled] == [(OURS & rule).digest for rule in rules]
    each = guarded_of(world).run(PROMPTS, constraint_each=[file] * 4, fields=rows, **settings)
    assert [outcome.texts for outcome in each] == [outcome.texts for outcome in filled]
    one = guarded.run(PROMPTS, fields=rows[1], **settings)
    assert {outcome.report.constraint for outcome in one} == {rules[1].digest}


def test_fields_that_do_not_fit(world: World) -> None:
    guarded = guarded_of(world, parse(ROW, path="row.yaml"))
    row = {"word": "a", "n": 1}
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "row.yaml requires the fields 'word', 'n'"),
        ({"fields": {"word": "a"}}, "has no field 'n', which row.yaml requires"),
        ({"fields": [row, {"word": "a"}]}, r"\[1\]: has no field 'n'"),
        ({"fields": [row]}, "one item per prompt; its length is 1"),
        ({"fields": [row] * 3}, "its length is 3"),
        ({"fields": "word"}, "fields takes a mapping"),
        ({"fields": [row, "word"]}, "fields takes a mapping"),
        ({"fields": [row], "constraint_each": [None, None]}, "different lengths"),
        ({"fields": [row, {"word": "a", "n": "1"}]}, "row.yaml:3: constraint.1.min: must be a whole number"),
    ]
    for options, says in cases:
        with pytest.raises(UsageError, match=says):
            guarded.run(PROMPTS[:2], **options, **world.settings)
